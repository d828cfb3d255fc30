"""Working context: there after a clean restart, perhaps gone after a crash, never among what is durable."""

import asyncio
import operator
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.channels import LastValue
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph
from langgraph.pregel import NodeBuilder, Pregel
from langgraph.types import Command, interrupt

from langgraph_ledger import Batched, LedgerError, LedgerSaver, StateConflict, audit
from tests.direct import at, contents, query
from tests.four_ways import Backend, Flavoured

Opener = Callable[..., Flavoured]
SECRET = "what was thought but is not to be kept " * 40


class State(TypedDict, total=False):
    number: int
    scratchpad: str
    notes: Annotated[list[str], operator.add]


def thinking(saver: Any, ask_at: int | None = None, to: int = 4) -> Any:
    def think(state: State) -> Any:
        number = state.get("number", 0) + 1
        if number == ask_at:
            interrupt("go on?")
        return {"number": number, "scratchpad": f"{number} {SECRET}", "notes": [f"note {number} {SECRET}"]}

    builder = StateGraph(State).add_node("think", think).add_edge(START, "think")
    builder.add_conditional_edges("think", lambda state: END if state["number"] >= to else "think")
    return builder.compile(checkpointer=saver)


CHANNELS = {"scratchpad", "notes"}


def durable(backend: Backend) -> str:
    rows = contents(backend)
    rows.pop("working_context")
    return repr(rows)


def lose(backend: Backend) -> None:
    """What a power cut may do to what is not synced."""
    if backend.kind == "postgres":
        query(backend, "TRUNCATE working_context")
    else:
        for ending in ("", "-wal", "-shm"):
            Path(f"{backend.url}-working{ending}").unlink(missing_ok=True)


@pytest.mark.parametrize("flush", ["always", Batched(3, None)], ids=["always", "batched"])
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_there_after_a_clean_restart(open_four: Opener, backend: Backend, durability: str, flush: Any) -> None:
    four = open_four(working_channels=CHANNELS, compression="none", flush=flush)
    four.invoke(thinking(four.saver), {"number": 0}, at("1"), durability=durability)
    assert SECRET[:30] not in durable(backend)
    again = open_four(working_channels=CHANNELS)
    values = again.get_state(thinking(again.saver), at("1")).values
    assert values["scratchpad"] == f"4 {SECRET}"
    assert len(values["notes"]) == 4
    assert again.call("recover", "1").lost_context == ()
    assert again.invoke(thinking(again.saver, to=6), {"number": 4}, at("1"))["scratchpad"] == f"6 {SECRET}"


def test_only_the_latest_is_kept_and_an_old_checkpoint_never_shows_a_newer_one(
    open_four: Opener, backend: Backend
) -> None:
    four = open_four(working_channels=CHANNELS)
    graph = thinking(four.saver)
    four.invoke(graph, {"number": 0}, at("1"), durability="sync")
    states = list(four.get_state_history(graph, at("1")))
    assert states[0].values["scratchpad"].startswith("4 ")
    for old in states[1:]:
        assert "scratchpad" not in old.values
        assert not old.values.get("notes")
    old = four.get_tuple({"configurable": {**states[1].config["configurable"]}})
    assert "scratchpad" not in old.checkpoint["channel_values"]
    place = backend if backend.kind == "postgres" else Backend("sqlite", f"{backend.url}-working")
    assert query(place, "SELECT channel FROM working_context WHERE task_id = '' ORDER BY channel") == [
        ("notes",),
        ("scratchpad",),
    ]


def test_lost_in_a_crash(open_four: Opener, backend: Backend) -> None:
    four = open_four(working_channels=CHANNELS)
    four.invoke(thinking(four.saver, ask_at=3), {"number": 0}, at("1"))
    four.close()
    lose(backend)
    again = open_four(working_channels=CHANNELS)
    report = again.call("recover", "1")
    assert report.lost_context == ("notes", "scratchpad")
    assert "lost context" in str(report)
    graph = thinking(again.saver, to=5)
    values = again.get_state(graph, at("1")).values
    assert (values["number"], values.get("notes"), "scratchpad" in values) == (2, [], False)
    found = again.invoke(graph, Command(resume="yes"), at("1"))
    assert found["number"] == 5
    assert [note.split()[1] for note in found["notes"]] == ["3", "4", "5"]
    assert again.call("recover", "1").lost_context == ()


def test_a_side_file_that_is_damaged(sqlite_path: str) -> None:
    with LedgerSaver(sqlite_path, working_channels=CHANNELS) as saver:
        thinking(saver).invoke({"number": 0}, at("1"))
    Path(f"{sqlite_path}-working").write_bytes(os.urandom(8192))
    with LedgerSaver(sqlite_path, working_channels=CHANNELS) as saver:
        assert saver.recover("1").lost_context == ("notes", "scratchpad")
        graph = thinking(saver, to=6)
        assert graph.invoke({"number": 4}, at("1"))["scratchpad"].startswith("6 ")
        assert graph.get_state(at("1")).values["scratchpad"].startswith("6 ")


def fan_out(saver: Any) -> Any:
    def left(state: State) -> Any:
        return {"scratchpad": f"left {SECRET}"}

    def right(state: State) -> Any:
        return {"number": interrupt("how many?")}

    builder = StateGraph(State).add_node("left", left).add_node("right", right)
    return builder.add_edge(START, "left").add_edge(START, "right").compile(checkpointer=saver)


def test_what_a_task_wrote_is_kept_while_another_waits(open_four: Opener, backend: Backend) -> None:
    four = open_four(working_channels={"scratchpad"}, compression="none")
    four.invoke(fan_out(four.saver), {"notes": []}, at("1"))
    assert "left what was" not in durable(backend)
    again = open_four(working_channels={"scratchpad"})
    found = again.invoke(fan_out(again.saver), Command(resume=7), at("1"))
    assert (found["number"], found["scratchpad"]) == (7, f"left {SECRET}")


def test_a_refused_run_does_not_write_over_the_winners(open_four: Opener, backend: Backend) -> None:
    four = open_four(working_channels=CHANNELS)
    done: list[int] = []

    def think(state: State) -> Any:
        if not done:
            done.append(1)
            with LedgerSaver(backend.url, working_channels=CHANNELS) as other:
                thinking(other).invoke({"number": 0}, at("1"))
        return {"number": 1, "scratchpad": "the loser's"}

    graph = StateGraph(State).add_node("think", think).add_edge(START, "think").compile(checkpointer=four.saver)
    with pytest.raises(StateConflict):
        four.invoke(graph, {"number": 0}, at("1"), durability="sync")
    assert four.get_state(graph, at("1")).values["scratchpad"].startswith("4 ")


def test_a_deleted_thread_leaves_none(open_four: Opener, backend: Backend) -> None:
    four = open_four(working_channels=CHANNELS)
    four.invoke(thinking(four.saver), {"number": 0}, at("1"))
    with LedgerSaver(backend.url) as other:  # knows of no working channels
        other.delete_thread("1")
    place = backend if backend.kind == "postgres" else Backend("sqlite", f"{backend.url}-working")
    assert query(place, "SELECT COUNT(*) FROM working_context") == [(0,)]


def test_channels_that_must_not_be_lost(open_four: Opener) -> None:
    four = open_four(working_channels={"number"})
    with pytest.raises(LedgerError, match="'number' carries input"):
        four.invoke(thinking(four.saver), {"number": 0}, at("1"), durability="sync")
    four = open_four(working_channels={"a"})
    graph = Pregel(
        nodes={"double": NodeBuilder().subscribe_only("a").do(lambda a: a + a).write_to("a")},
        channels={"a": LastValue(str), "b": LastValue(str)},
        input_channels="a",
        output_channels="a",
        checkpointer=four.saver,
    )
    with pytest.raises(LedgerError, match=r"'a' (triggers node 'double'|carries input)"):
        four.invoke(graph, "x", at("2"), durability="sync")


@pytest.mark.parametrize(
    ("channels", "message"),
    [
        ("scratchpad", "expected a set"),
        (["__start__"], "LangGraph's own"),
        (["branch:to:a"], "LangGraph's own"),
        ([5], "channel"),
    ],
)
def test_names_that_are_none(channels: Any, message: str) -> None:
    with pytest.raises(LedgerError, match=message):
        LedgerSaver(":memory:", working_channels=channels)


def test_in_memory_and_in_an_audit() -> None:
    with LedgerSaver(":memory:", working_channels=CHANNELS) as saver:
        graph = thinking(saver)
        graph.invoke({"number": 0}, at("1"))
        assert graph.get_state(at("1")).values["scratchpad"].startswith("4 ")
        found = {row.name: row.verdict for row in audit(graph).rows if row.kind == "channel"}
        assert found == {"number": "durable", "scratchpad": "working context", "notes": "working context"}


def test_a_saver_that_only_reads(sqlite_path: str) -> None:
    with LedgerSaver(sqlite_path, working_channels=CHANNELS) as saver:
        thinking(saver).invoke({"number": 0}, at("1"))
    with LedgerSaver(sqlite_path, working_channels=CHANNELS, read_only=True) as saver:
        assert thinking(saver).get_state(at("1")).values["scratchpad"].startswith("4 ")
    lose(Backend("sqlite", sqlite_path))
    with LedgerSaver(sqlite_path, working_channels=CHANNELS, read_only=True) as saver:
        assert "scratchpad" not in thinking(saver).get_state(at("1")).values
        assert asyncio.run(saver.arecover("1")).lost_context == ("notes", "scratchpad")


def test_a_value_of_a_class_that_is_gone(open_four: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is lost, and the thread is read all the same."""
    module = ModuleType("deployed_once")
    module.Thought = type("Thought", (), {"__module__": "deployed_once"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "deployed_once", module)
    serde = JsonPlusSerializer(pickle_fallback=True)
    before = open_four(working_channels=CHANNELS, serde=serde)
    graph = StateGraph(State).add_node("think", lambda state: {"number": 1, "scratchpad": module.Thought()})
    graph.add_edge(START, "think")
    before.invoke(graph.compile(before.saver), {"number": 0}, at("1"))
    monkeypatch.delitem(sys.modules, "deployed_once")
    after = open_four(working_channels=CHANNELS, serde=serde)
    assert after.get_tuple(at("1")).checkpoint["channel_values"]["number"] == 1
    assert after.call("recover", "1").lost_context == ("scratchpad",)
