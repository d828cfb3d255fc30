"""Retention beyond the interface's own: how many, how old, which status, dry runs, copies of parts, time to live."""

import asyncio
import operator
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from langgraph_ledger.errors import InvalidInput
from tests.direct import at, query
from tests.four_ways import Backend, Flavoured
from tests.test_memory import text


class State(TypedDict):
    items: Annotated[list, operator.add]


def graph_on(saver: Any) -> Any:
    """A node, then a subgraph called anew each time."""
    inner = StateGraph(State)
    inner.add_node("inner", lambda state: {"items": [f"inner {len(state['items'])}"]})
    inner.add_edge(START, "inner")
    builder = StateGraph(State)
    builder.add_node("work", lambda state: {"items": [text(len(state["items"]), 2000)]})
    builder.add_node("sub", inner.compile())
    builder.add_edge(START, "work")
    builder.add_edge("work", "sub")
    return builder.compile(checkpointer=saver)


@pytest.fixture
def graph(four: Flavoured) -> Any:
    """Four turns on thread "t"."""
    made = graph_on(four.saver)
    for turn in range(4):
        four.invoke(made, {"items": [f"turn {turn}"]}, at("t"))
    return made


def ids(four: Flavoured, thread: str, ns: str | None = "") -> list[str]:
    config = at(thread)
    if ns is None:
        del config["configurable"]["checkpoint_ns"]
    return [str(t.checkpoint["id"]) for t in four.list(config)]


def age(backend: Backend, checkpoint_ids: list[str], days: float) -> None:
    """Makes checkpoints look as old as this."""
    then = (datetime.now(UTC) - timedelta(days=days)).isoformat()
    for checkpoint_id in checkpoint_ids:
        query(backend, "UPDATE checkpoint_log SET created_at = ? WHERE checkpoint_id = ?", then, checkpoint_id)


def test_keep_last(four: Flavoured, graph: Any) -> None:
    before, state = ids(four, "t"), four.get_state(graph, at("t")).values
    rehearsed = four.call("prune", ["t"], keep_last=3, dry_run=True)
    assert ids(four, "t") == before
    freed = four.call("prune", ["t"], keep_last=3)
    assert (rehearsed.checkpoints, rehearsed.bytes) == (freed.checkpoints, freed.bytes)
    assert (rehearsed.dry_run, freed.dry_run, freed.threads) == (True, False, 1)
    assert ids(four, "t") == before[:3]
    assert freed.bytes > 0
    assert four.get_state(graph, at("t")).values == state
    assert len(four.get_state_history(graph, at("t"))) == 3
    four.invoke(graph, {"items": ["more"]}, at("t"))
    assert four.call("prune", ["t"], keep_last=1000).checkpoints == 0


def test_older_than(four: Flavoured, graph: Any, backend: Backend) -> None:
    before = ids(four, "t")
    age(backend, before[6:], days=10)
    four.call("prune", ["t"], older_than=timedelta(days=5))
    assert ids(four, "t") == before[:6]
    age(backend, before[:6], days=10)
    four.call("prune", ["t"], older_than=timedelta(days=5))
    assert ids(four, "t") == before[:1]


def test_the_figures_are_what_went(four: Flavoured, graph: Any) -> None:
    before = four.call("stats", "t")
    freed = four.call("prune", ["t"])
    after = four.call("stats", "t")
    assert freed.checkpoints == before.checkpoints - after.checkpoints
    assert freed.pending_writes == before.pending_writes - after.pending_writes
    assert freed.chunks == before.chunks - after.chunks
    assert freed.bytes == before.bytes_stored - after.bytes_stored


def test_namespaces_of_calls_go_with_their_root(four: Flavoured, graph: Any) -> None:
    assert len(ids(four, "t", None)) > len(ids(four, "t"))
    four.call("prune", ["t"])
    assert ids(four, "t", None) == ids(four, "t")


def test_the_namespace_of_an_interrupted_call_stays(four: Flavoured) -> None:
    inner = StateGraph(State)
    inner.add_node("ask", lambda state: {"items": [interrupt("?")]})
    inner.add_edge(START, "ask")
    builder = StateGraph(State)
    builder.add_node("sub", inner.compile())
    builder.add_edge(START, "sub")
    made = builder.compile(checkpointer=four.saver)
    four.invoke(made, {"items": ["a"]}, at("t"))
    four.call("prune", ["t"])
    assert four.invoke(made, Command(resume="yes"), at("t"))["items"][-1] == "yes"


def test_all_threads_by_status(four: Flavoured, graph: Any) -> None:
    def fail(state: State) -> dict[str, Any]:
        raise ValueError("no")

    builder = StateGraph(State)
    builder.add_node("fail", fail)
    builder.add_edge(START, "fail")
    failing = builder.compile(checkpointer=four.saver)
    for number in range(3):
        with pytest.raises(ValueError, match="no"):
            four.invoke(failing, {"items": []}, at(f"f{number}"))
    assert four.call("prune", ["t", "f0"], strategy="delete", status="failed", dry_run=True).threads == 1
    assert four.call("prune", None, strategy="delete", status="failed").threads == 3
    assert [s.session_id for s in four.call("sessions")] == ["t"]
    assert four.call("prune", None).threads == 1


def test_idle_threads(four: Flavoured, graph: Any, backend: Backend) -> None:
    assert four.call("prune", None, strategy="delete", older_than=timedelta(days=1)).threads == 0
    query(backend, "UPDATE sessions SET last_active_at = ?", (datetime.now(UTC) - timedelta(days=2)).isoformat())
    assert four.call("prune", None, strategy="delete", older_than=timedelta(days=1)).threads == 1
    assert four.get_tuple(at("t")) is None


def delta_graph(four: Flavoured, frequency: int) -> Any:
    """Five turns on thread "t" whose state is deltas, whole every so many steps."""

    class Deltas(TypedDict):
        items: Annotated[list, DeltaChannel(lambda held, writes: [*held, *(x for w in writes for x in w)],
                                            snapshot_frequency=frequency)]  # fmt: skip

    builder = StateGraph(Deltas)
    builder.add_node("work", lambda state: {"items": [f"work {len(state['items'])}"]})
    builder.add_edge(START, "work")
    made = builder.compile(checkpointer=four.saver)
    for turn in range(5):
        four.invoke(made, {"items": [f"turn {turn}"]}, at("t"))
    return made


@pytest.mark.parametrize("frequency", [3, 1000])
def test_delta_channels_keep_what_they_are_rebuilt_from(four: Flavoured, frequency: int) -> None:
    made = delta_graph(four, frequency)
    state = four.get_state(made, at("t")).values
    before = len(ids(four, "t"))
    four.call("prune", ["t"])
    assert four.get_state(made, at("t")).values == state
    assert four.invoke(made, {"items": ["on"]}, at("t"))["items"][:-2] == state["items"]
    if frequency == 3:
        assert len(ids(four, "t")) < before


def test_parents_that_go_in_a_circle(four: Flavoured, backend: Backend) -> None:
    """Somebody has made it with SQL. What walks from parent to parent comes to an end all the same."""
    delta_graph(four, 1000)
    latest, _, third, *_ = before = ids(four, "t")
    query(backend, "UPDATE checkpoint_log SET parent_checkpoint_id = ? WHERE checkpoint_id = ?", latest, third)
    four.call("copy_thread", "t", "past", checkpoint_id=latest)
    assert ids(four, "past") == before[:3]
    four.call("prune", ["t"])
    assert ids(four, "t") == before[:3]


def test_a_head_that_is_not_the_latest_stays(four: Flavoured, graph: Any, backend: Backend) -> None:
    """Somebody has moved it back with SQL."""
    latest, _, third, *_ = ids(four, "t")
    moved = "UPDATE agent_state_ledger SET checkpoint_id = ? WHERE session_id = 't' AND agent_id = ''"
    query(backend, moved, third)
    four.call("prune", ["t"])
    assert ids(four, "t") == [latest, third]
    assert four.get_tuple(at("t")).checkpoint["id"] == third


def test_copies_of_parts(four: Flavoured, graph: Any) -> None:
    history = four.get_state_history(graph, at("t"))
    four.call("copy_thread", "t", "head", last=1)
    assert ids(four, "head") == ids(four, "t")[:1]
    assert four.get_state(graph, at("head")).values == history[0].values
    chosen = history[5]
    four.call("copy_thread", "t", "past", checkpoint_id=chosen.config["configurable"]["checkpoint_id"])
    assert ids(four, "past") == ids(four, "t")[5:]
    assert four.get_state_history(graph, at("past"))[0].values == chosen.values
    four.invoke(graph, {"items": ["another future"]}, at("past"))
    with pytest.raises(InvalidInput, match="no checkpoint"):
        four.call("copy_thread", "t", "nowhere", checkpoint_id="missing")
    assert four.get_tuple(at("nowhere")) is None


def test_time_to_live(open_four: Callable[..., Flavoured], backend: Backend) -> None:
    four = open_four(ttl=timedelta(days=30))
    graph = graph_on(four.saver)
    for thread in ("kept", "old", "for ever"):
        four.invoke(graph, {"items": []}, at(thread))
    four.call("set_ttl", "for ever", None)
    then = (datetime.now(UTC) - timedelta(days=31)).isoformat()
    query(backend, "UPDATE sessions SET last_active_at = ? WHERE session_id <> 'kept'", then)
    assert four.call("sweep", dry_run=True).threads == 1
    assert four.call("sweep").threads == 1
    assert {s.session_id for s in four.call("sessions")} == {"kept", "for ever"}
    four.call("set_ttl", "kept", timedelta(microseconds=1))
    assert four.call("sweep").threads == 1
    with pytest.raises(InvalidInput, match="no thread"):
        four.call("set_ttl", "kept", None)


def test_compact_gives_room_back(four: Flavoured, graph: Any) -> None:
    for number in range(20):
        four.invoke(graph, {"items": [text(number, 50_000)]}, at(f"large {number}"))
    for number in range(20):
        four.call("delete_thread", f"large {number}")
    before = four.call("stats").bytes_on_disk
    assert four.call("compact") > 0
    assert four.call("stats").bytes_on_disk < before
    assert four.get_state(graph, at("t")).values["items"]


WRONG: list[dict[str, Any]] = [
    {"keep_last": 0}, {"keep_last": "1"}, {"older_than": 5}, {"older_than": timedelta(-1)}, {"status": "idle"},
    {"strategy": "delete", "keep_last": 2},
]  # fmt: skip


@pytest.mark.parametrize("options", WRONG, ids=str)
def test_wrong_options(four: Flavoured, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(options)) if len(options) == 1 else "keep_last"):
        four.call("prune", ["t"], **options)


def test_pruning_and_running_on_one_thread(four: Flavoured) -> None:
    """Runs and prunes side by side: no error, and each run's work is in the state."""
    builder = StateGraph(State)
    builder.add_node("work", lambda state: {"items": [text(len(state["items"]), 2000)]})
    builder.add_edge(START, "work")
    graph = builder.compile(checkpointer=four.saver)

    async def both() -> None:
        async def prune() -> None:
            for _ in range(15):
                await four.saver.aprune(["t"])

        async def work() -> None:
            for turn in range(8):
                await graph.ainvoke({"items": [f"turn {turn}"]}, at("t"))

        await asyncio.gather(prune(), work())

    if four.runner is not None:
        four.runner.run(both())
    else:
        asyncio.run(both())
    items = four.get_state(graph, at("t")).values["items"]
    assert [item for item in items if item.startswith("turn")] == [f"turn {turn}" for turn in range(8)]
