"""Random edits and forks through a saver against a plain model, and what is stored of it."""

import random
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, MessagesState, StateGraph

from tests.direct import at, query
from tests.four_ways import Backend, Flavoured
from tests.test_memory import message, text

SERDE = JsonPlusSerializer()


def frozen(value: Any) -> Any:
    """The value as LangGraph's serde restores it, apart from what is going to be changed in place."""
    return SERDE.loads_typed(SERDE.dumps_typed(value))


def typed(value: Any) -> Any:
    """A value with the types of all its parts, so that comparing compares those too."""
    if isinstance(value, dict):
        return dict, [(typed(k), typed(v)) for k, v in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [typed(v) for v in value]
    return type(value), value


class Model:
    """A thread in memory: every checkpoint's state, and random steps from any of them."""

    def __init__(self, four: Flavoured, seed: int) -> None:
        self.four, self.random, self.thread = four, random.Random(seed), str(uuid4())
        self.states: dict[str, dict[str, Any]] = {}
        self.configs: dict[str, tuple[Any, Any]] = {}
        self.number = 0

    def next(self) -> int:
        self.number += 1
        return self.number

    def edit(self, state: dict[str, Any]) -> set[str]:
        """Changes some channels, in place or not; returns which."""
        pick = self.random
        messages, notes = state.setdefault("messages", []), state.setdefault("notes", {})
        step = pick.randrange(11)
        if step <= 3 or not messages:
            messages.append(message(self.next(), pick.choice((5, 200, 2500))))
        elif step == 4:
            state["messages"] = messages[pick.randrange(len(messages)) :]
        elif step == 5:
            messages[pick.randrange(len(messages))].content = f"changed {self.next()}"
        elif step == 6:
            messages.pop(pick.randrange(len(messages)))
        elif step == 7:
            pick.shuffle(messages)
        elif step == 8:
            state["messages"] = []
        elif step == 9:
            notes[f"note {pick.randrange(5)}"] = {"deep": [{"er": [text(self.next(), pick.choice((3, 3000)))]}] * 3}
            return {"notes"}
        else:
            state["numbers"] = list(range(pick.randrange(2000)))
            state["blob"] = bytes(pick.randbytes(pick.choice((0, 10, 5000))))
            return {"numbers", "blob"}
        return {"messages"}

    def step(self) -> None:
        parent = self.random.choice(list(self.states)) if self.states and self.random.random() < 0.2 else None
        parent = parent or (list(self.states)[-1] if self.states else None)
        saved = self.four.get_tuple(at(self.thread, parent)) if parent else None
        state = dict(saved.checkpoint["channel_values"]) if saved else {}
        versions = dict(saved.checkpoint["channel_versions"]) if saved else {}
        config = saved.config if saved else at(self.thread)
        for _ in range(self.random.randrange(1, 4)):
            changed = self.edit(state)
            new = {c: f"{len(self.states) + 1:08}.{self.next()}" for c in changed}
            versions = {**versions, **new}
            values = {channel: value for channel, value in state.items() if channel in versions}
            made = {
                "v": 4, "id": str(uuid6()), "ts": "2020-01-01T00:00:00+00:00", "channel_values": values,
                "channel_versions": versions, "versions_seen": {},
            }  # fmt: skip
            config = self.four.put(config, made, {"source": "loop", "step": len(self.states), "parents": {}}, new)
            self.states[made["id"]] = frozen(values)

    def check(self) -> None:
        listed = {str(t.checkpoint["id"]): t.checkpoint["channel_values"] for t in self.four.list(at(self.thread))}
        assert typed(listed) == typed(dict(reversed(self.states.items())))
        for checkpoint_id in self.random.sample(list(self.states), min(5, len(self.states))):
            found = self.four.get_tuple(at(self.thread, checkpoint_id))
            assert typed(found.checkpoint["channel_values"]) == typed(self.states[checkpoint_id])


@pytest.mark.parametrize("seed", range(4))
def test_random_edits_and_forks(open_four: Callable[..., Flavoured], backend: Backend, seed: int) -> None:
    """Every checkpoint is restored as it was saved, type for type, by the saver that saved it and by fresh ones."""
    model = Model(open_four(), seed)
    for _ in range(12):
        model.step()
    model.check()
    model.four = open_four()
    for _ in range(12):
        model.step()
    model.check()
    model.four = open_four(compression="none")
    model.step()
    model.check()
    model.four = open_four()
    model.check()
    assert model.four.call("stats", model.thread).dedupe_ratio > 2
    assert dangling(backend, model.thread) == 0


def dangling(backend: Backend, thread: str) -> int:
    """How many chunks nothing refers to, as the collector sees it."""
    from langgraph_ledger import LedgerSaver

    with LedgerSaver(backend.url) as saver:
        return saver.prune([thread], keep_last=10_000).chunks


def test_zstd_reads_lz4_and_the_reverse(open_four: Callable[..., Flavoured]) -> None:
    pytest.importorskip("zstandard")
    thread = str(uuid4())
    for number, codec in enumerate(("lz4", "zstd", "none", "lz4")):
        four = open_four(compression=codec)
        made = {
            "v": 4, "id": str(uuid6()), "ts": "", "channel_values": {"a": [text(number, 5000)]},
            "channel_versions": {"a": str(number)}, "versions_seen": {},
        }  # fmt: skip
        four.put(at(thread), made, {"source": "loop", "step": number, "parents": {}}, {"a": str(number)})
    values = [t.checkpoint["channel_values"]["a"] for t in four.list(at(thread))]
    assert values == [[text(n, 5000)] for n in (3, 2, 1, 0)]


def chat(saver: Any) -> Any:
    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(text(len(state["messages"]), 4000), id=f"a{len(state['messages'])}")]}

    builder = StateGraph(MessagesState)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    return builder.compile(checkpointer=saver)


def test_a_conversation_is_stored_once(four: Flavoured, backend: Backend) -> None:
    """Input, task writes and channel share each message; what is stored is about the size of what was said."""
    graph, thread, turns = chat(four.saver), str(uuid4()), 30
    for turn in range(turns):
        said = text(1000 + turn, 4000)
        four.invoke(graph, {"messages": [HumanMessage(said, id=f"h{turn}")]}, at(thread))
    statistics = four.call("stats", thread)
    content = turns * 8000
    assert statistics.bytes_live > content
    assert statistics.bytes_plain < 1.5 * content
    assert statistics.dedupe_ratio > 10
    large = query(
        backend, "SELECT count(*) FROM agent_memory WHERE session_id = ? AND plain_bytes > 3000 AND children IS NULL",
        thread,
    )  # fmt: skip
    assert large == [(2 * turns,)]


def test_an_unchanged_channel_is_not_written_again(four: Flavoured, backend: Backend) -> None:
    thread, values = str(uuid4()), {"big": [text(i, 2000) for i in range(20)], "step": 0}
    config: Any = at(thread)
    versions = {"big": "1", "step": "1"}
    counts = []
    for step in range(4):
        values["step"], versions["step"] = step, str(step + 1)
        made = {
            "v": 4, "id": str(uuid6()), "ts": "", "channel_values": dict(values),
            "channel_versions": dict(versions), "versions_seen": {},
        }  # fmt: skip
        new = dict(versions) if step == 0 else {"step": versions["step"]}
        config = four.put(config, made, {"source": "loop", "step": step, "parents": {}}, new)
        counts.append(query(backend, "SELECT count(*) FROM agent_memory WHERE session_id = ?", thread)[0][0])
    assert counts[0] >= 20
    assert counts == [counts[0]] * 4
