"""The threads that golden ledgers hold: how each comes to be, what is seen of it, and how it goes on."""

import hashlib
import json
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt

from langgraph_ledger import LedgerSaver, StateConflict, hold
from tests.direct import at
from tests.four_ways import Flavoured
from tests.scenarios.normalise import namespaces, normal_form

LONG = 60
"""Characters of a text, or members of a list, that are shown as they are."""

CRASHING = False
"""Whether the process ends in the tool that is to have been cut off."""


class Items(TypedDict, total=False):
    items: Annotated[list[Any], operator.add]
    scratch: str


def extend(state: list[str], writes: Sequence[list[str]]) -> list[str]:
    return [*state, *(item for write in writes for item in write)]


class Delta(TypedDict, total=False):
    items: Annotated[list[str], DeltaChannel(extend, snapshot_frequency=3)]


def _chain(state: Any, **nodes: Any) -> Any:
    names = list(nodes)
    return StateGraph(state).add_sequence(list(nodes.items())).add_edge(START, names[0])


# --- graphs


def talking(saver: Any) -> Any:
    def reply(state: MessagesState) -> Any:
        number = len(state["messages"])
        return {"messages": [AIMessage(f"answer {number}: " + f"{number} and more. " * 50)]}

    return _chain(MessagesState, reply=reply).compile(checkpointer=saver)


def _asking() -> Any:
    return _chain(Items, ask=lambda state: {"items": [interrupt({"question": "well?"})]})


def asking(saver: Any) -> Any:
    return _asking().add_node("after", _says("after")).add_edge("ask", "after").compile(checkpointer=saver)


def asking_below(saver: Any) -> Any:
    return _chain(Items, before=_says("before"), below=_asking().compile()).compile(checkpointer=saver)


def with_memory_below(saver: Any) -> Any:
    inner = _chain(Items, count=lambda state: {"items": [len(state["items"])]}).compile(checkpointer=True)
    return _chain(Items, below=lambda state, config: {"items": inner.invoke(state, config)["items"][-1:]}).compile(
        checkpointer=saver
    )


def in_deltas(saver: Any) -> Any:
    return _chain(Delta, one=_says("one"), two=_says("two")).compile(checkpointer=saver)


def scratching(saver: Any) -> Any:
    def think(state: Items) -> Any:
        return {"items": [state.get("scratch", "none")], "scratch": f"thought {len(state['items'])} " * 50}

    return _chain(Items, think=think).compile(checkpointer=saver)


def _says(text: str) -> Callable[[Any], Any]:
    return lambda state: {"items": [text]}


@tool
def pay(amount: int) -> str:
    """Pay a bill."""
    if amount < 0:
        raise ValueError("cannot pay less than nothing")
    return f"{amount} paid"


@tool
def send(text: str) -> str:
    """Send a mail."""
    if CRASHING:
        os._exit(0)
    return f"sent: {text}"


def paying(saver: Any) -> Any:
    calls = [{"name": "pay", "args": {"amount": n}, "id": f"call {n}", "type": "tool_call"} for n in (5, -1)]
    return _chain(
        MessagesState,
        plan=lambda state: {"messages": [AIMessage("", tool_calls=calls)]},
        tools=ToolNode([pay], handle_tool_errors=True),
    ).compile(checkpointer=saver)


def sending(saver: Any) -> Any:
    def mail(state: Items, config: RunnableConfig) -> Any:
        with hold("file:report.csv"):
            call = {"name": "send", "args": {"text": "the report"}, "id": "a mail", "type": "tool_call"}
            return {"items": [send.invoke(call, config).content]}

    return _chain(Items, mail=mail).compile(checkpointer=saver)


# --- what is done on each thread


def hello() -> Any:
    """A message of its own each time: LangGraph gives the object an id."""
    return {"messages": [HumanMessage("hello")]}


def one() -> Any:
    return {"items": ["one"]}


def answer() -> Any:
    return Command(resume={"answer": "yes"})


VALUES: list[Any] = [
    None, True, 1, 1.5, float("inf"), -(2**63), "", "NUL \0, \u2028, 😀", b"\0\xff", [], {}, {"deep": [{"er": (1, 2)}]},
    {1, 2}, frozenset({"a"}), datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC), HumanMessage("in a list", id="1"),
]  # fmt: skip


def turns(count: int, given: Callable[[], Any] = hello) -> Callable[[Any, Any, LedgerSaver], None]:
    def act(graph: Any, config: Any, saver: LedgerSaver) -> None:
        for _ in range(count):
            graph.invoke(given(), config)

    return act


def fork(graph: Any, config: Any, saver: LedgerSaver) -> None:
    turns(2)(graph, config, saver)
    old = list(graph.get_state_history(config))[-2]
    graph.update_state(old.config, {"messages": [HumanMessage("otherwise")]})
    graph.invoke(None, config)


def crash(graph: Any, config: Any, saver: LedgerSaver) -> None:
    """In a process of its own, which is gone in the middle of the tool."""
    global CRASHING
    saver.setup()
    if pid := os.fork():
        assert os.waitpid(pid, 0)[1] == 0
        return
    CRASHING = True
    graph.invoke(one(), config, durability="sync")
    os._exit(1)


def meet(graph: Any, config: Any, saver: LedgerSaver) -> None:
    slow = graph.stream(hello(), config, durability="sync", stream_mode="tasks")
    next(slow)  # its node is about to run
    graph.invoke(hello(), config)
    with pytest.raises(StateConflict):
        list(slow)


def delete(graph: Any, config: Any, saver: LedgerSaver) -> None:
    graph.invoke(hello(), config)
    saver.delete_thread(config["configurable"]["thread_id"])


@dataclass(frozen=True)
class Thread:
    """`act` is done when a ledger is made; `next` is what its graph is given when it goes on."""

    graph: Callable[[Any], Any]
    act: Callable[[Any, Any, LedgerSaver], None]
    next: Callable[[], Any] = hello
    options: Mapping[str, Any] = field(default_factory=dict)


PLAIN = {
    "messages": Thread(talking, turns(3)),
    "question": Thread(asking, turns(1, one), answer),
    "question below": Thread(asking_below, turns(1, one), answer),
    "fork": Thread(talking, fork),
    "memory below": Thread(with_memory_below, turns(2, one), one),
    "delta": Thread(in_deltas, turns(4, one), one),
    "tools": Thread(paying, turns(1)),
    "cut off": Thread(sending, crash, lambda: None),
    "refused": Thread(talking, meet),
    "values": Thread(scratching, turns(1, lambda: {"items": VALUES}), one),
    "many values": Thread(scratching, turns(1, lambda: {"items": [f"item {n * n}" for n in range(500)]}), one),
    "working": Thread(scratching, turns(2, one), one, {"working_channels": {"scratch"}}),
    "zstd": Thread(talking, turns(1), hello, {"compression": "zstd"}),
    "not compressed": Thread(talking, turns(1), hello, {"compression": "none"}),
    "deleted": Thread(talking, delete),
}
ENCRYPTED = {name: PLAIN[name] for name in ("messages", "question", "tools", "working")}
LEDGERS: Mapping[str, Mapping[str, Thread]] = {"plain": PLAIN, "encrypted": ENCRYPTED}


def look(four: Flavoured, name: str) -> Any:
    """All that can be seen of a thread, in normal form."""
    config, spaces = at(name), dict[str, list[Any]]()
    for found in four.list({"configurable": {"thread_id": name}}):
        spaces.setdefault(found.config["configurable"]["checkpoint_ns"], []).append(found)
        assert four.get_tuple(found.config) == found
    report = four.call("recover", name)
    sessions = {session.session_id: session for session in four.call("sessions")}
    found = {
        "checkpoints": namespaces(spaces),
        "latest": spaces and four.get_tuple(config).checkpoint["id"],
        "session": name in sessions and [sessions[name].status, dict(sessions[name].outcome)],
        "log": [[entry.checkpoint_type, entry.call_id, entry.checkpoint_id] for entry in four.call("history", name)],
        "interrupts": [question.value for question in report.interrupts],
        "next": report.next,
        "unknown": [[call.name, call.arguments] for call in report.unknown],
        "held": [held.resource for held in report.held],
        "lost": report.lost_context,
        "findings": four.call("verify", name),
    }
    return short(normal_form(found))


def go_on(four: Flavoured, name: str, thread: Thread) -> Any:
    """What the thread's graph makes of it."""
    return short(normal_form(four.invoke(thread.graph(four.saver), thread.next(), at(name))))


def short(value: Any) -> Any:
    """The same, with a digest in the place of what is long."""
    if isinstance(value, dict):
        return {key: short(member) for key, member in value.items()}
    if (isinstance(value, str) and len(value) > LONG) or (isinstance(value, list) and len(value) > LONG):
        digest = hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]
        return f"{type(value).__name__} of {len(value)}, {digest}"
    return [short(member) for member in value] if isinstance(value, list) else value
