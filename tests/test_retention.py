"""Deleting, pruning and copying: what has to stay stays, and nothing else does."""

import operator
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypedDict
from uuid import uuid4

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base.id import uuid6
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from langgraph_ledger import StateConflict, errors
from tests.direct import at, contents, query, save, shared_backend
from tests.four_ways import Backend, Flavoured

backend = shared_backend
BULKY = "bulky " * 200


def extend(state: list[str], writes: Sequence[list[str]]) -> list[str]:
    return [*state, *(item for write in writes for item in write)]


class State(TypedDict, total=False):
    items: Annotated[list[Any], operator.add]


class Delta(TypedDict, total=False):
    items: Annotated[list[str], DeltaChannel(extend, snapshot_frequency=4)]
    other: Annotated[list[str], DeltaChannel(extend, snapshot_frequency=1000)]
    n: int


@pytest.fixture
def thread() -> str:
    return str(uuid4())


def work(state: Any) -> Any:
    return {"items": [f"work {len(state['items'])} {BULKY}"]}


def ask(state: Any) -> Any:
    return {"items": [interrupt("well?")]}


def more(state: Any) -> Any:
    return {"other": [f"more {len(state['items'])} {BULKY}"], "n": state.get("n", 0) + 1}


def graph_on(saver: Any, *nodes: Callable[[Any], Any], state: Any = State, **options: Any) -> Any:
    return (
        StateGraph(state).add_sequence(nodes).add_edge(START, nodes[0].__name__).compile(checkpointer=saver, **options)
    )


def nested_on(saver: Any) -> Any:
    """A graph whose subgraph stops to ask."""
    inner = StateGraph(State).add_sequence([work, ask, work_again]).add_edge(START, "work").compile()
    builder = (
        StateGraph(State).add_node(work).add_node("inner", inner).add_edge(START, "work").add_edge("work", "inner")
    )
    return builder.compile(checkpointer=saver)


def work_again(state: Any) -> Any:
    return {"items": ["again"]}


def rows(backend: Backend, thread: str) -> dict[str, int]:
    """How many rows of a thread each table has, tombstones left out."""
    counts = {}
    for table in (
        "sessions",
        "agent_state_ledger",
        "checkpoint_log",
        "agent_memory",
        "pending_writes",
        "working_context",
    ):
        extra = " AND deleted_at IS NULL" if table == "agent_state_ledger" else ""
        ((counts[table],),) = query(backend, f"SELECT count(*) FROM {table} WHERE session_id = ?{extra}", thread)
    return counts


def sound(four: Flavoured, backend: Backend, thread: str) -> None:
    """Digests and chains hold, every checkpoint can be read, all memory is used, each write has its checkpoint."""
    assert [found for found in four.call("verify", thread) if not found.harmless] == []
    everywhere = {"configurable": {"thread_id": thread}}
    found = four.list(everywhere)
    places = {(t.config["configurable"]["checkpoint_ns"], t.checkpoint["id"]) for t in found}
    writes = query(backend, "SELECT agent_id, checkpoint_id FROM pending_writes WHERE session_id = ?", thread)
    assert set(writes) <= places
    heads = query(backend, "SELECT agent_id, checkpoint_id FROM agent_state_ledger WHERE session_id = ?", thread)
    assert {head for head in heads if head[1] is not None} <= places
    refers = dict(query(backend, "SELECT memory_id, children FROM agent_memory WHERE session_id = ?", thread))
    used: set[bytes] = set()
    select = "SELECT memory_ids FROM {} WHERE session_id = ?"
    waiting = [ids for t in ("checkpoint_log", "pending_writes") for (ids,) in query(backend, select.format(t), thread)]
    while waiting:
        ids = bytes(waiting.pop() or b"")
        for one in {ids[i : i + 16] for i in range(0, len(ids), 16)} - used:
            used.add(one)
            waiting.append(refers[one])
    assert used == refers.keys()


# --- deleting


def test_delete_thread_leaves_nothing(four: Flavoured, backend: Backend, thread: str) -> None:
    graph, other = nested_on(four.saver), str(uuid4())
    for name in (thread, other):
        four.invoke(graph, {"items": ["in"]}, at(name))
    assert min(v for k, v in rows(backend, thread).items() if k != "working_context") > 0
    before = rows(backend, other)
    four.call("delete_thread", thread)
    assert set(rows(backend, thread).values()) == {0}
    assert rows(backend, other) == before
    assert four.get_tuple(at(thread)) is None
    assert four.call("history", thread) == []
    four.call("delete_thread", thread)
    four.call("delete_thread", str(uuid4()))
    four.invoke(graph, {"items": ["anew"]}, at(thread))
    assert four.get_state(graph, at(thread)).values["items"][0] == "anew"


def test_a_run_does_not_bring_a_deleted_thread_back(four: Flavoured, backend: Backend, thread: str) -> None:
    save(four, at(thread), "1")
    stale = four.get_tuple(at(thread)).config
    four.call("delete_thread", thread)
    for call in (
        lambda: save(four, stale, "2"),
        lambda: four.put_writes(stale, [("a", 1)], "task"),
        lambda: save(four, at(thread, "1"), "2"),
    ):
        with pytest.raises(StateConflict, match="deleted"):
            call()
    assert rows(backend, thread) | {"checkpoint_log": 0} == dict.fromkeys(rows(backend, thread), 0)
    assert four.list(at(thread)) == []


def with_run(thread: str, run_id: str) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}, "metadata": {"run_id": run_id}}


def test_delete_for_runs_moves_the_head_back(four: Flavoured, backend: Backend, thread: str) -> None:
    graph, other = graph_on(four.saver, work), str(uuid4())
    runs = [str(uuid4()) for _ in range(3)]
    states = []
    for run_id in runs:
        four.invoke(graph, {"items": [run_id]}, with_run(thread, run_id))
        states.append(four.get_state(graph, at(thread)).values)
    four.invoke(graph, {"items": ["other"]}, with_run(other, runs[2]))
    four.invoke(graph, {"items": ["stays"]}, with_run(other, str(uuid4())))
    stale = four.get_tuple(at(thread)).config
    four.call("delete_for_runs", [runs[2], str(uuid4())])
    assert four.get_state(graph, at(thread)).values == states[1]
    assert {t.metadata["run_id"] for t in four.list(at(thread))} == set(runs[:2])
    assert four.get_state(graph, at(other)).values["items"][2] == "stays"
    sound(four, backend, thread)
    with pytest.raises(StateConflict):
        save(four, stale, "x")
    four.invoke(graph, {"items": ["next"]}, at(thread))
    assert four.get_state(graph, at(thread)).values["items"][:-2] == states[1]["items"]
    four.call("delete_for_runs", [])
    four.call("delete_for_runs", runs)
    sound(four, backend, thread)


# --- copying


def test_a_copy_goes_on_where_the_source_was(four: Flavoured, backend: Backend, thread: str) -> None:
    graph, target = nested_on(four.saver), str(uuid4())
    four.invoke(graph, {"items": ["in"]}, at(thread))
    latest = four.get_tuple(at(thread))
    four.put_writes(latest.config, [("items", ["pending"])], str(uuid4()))
    before = contents(backend)
    four.call("copy_thread", thread, target)
    after = contents(backend)
    assert all(row in after[table] for table, found in before.items() for row in found)

    def seen(name: str) -> list[Any]:
        def plain(config: Any) -> Any:
            return {k: v for k, v in config["configurable"].items() if k != "thread_id"} if config else None

        found = four.list({"configurable": {"thread_id": name}})
        return [(plain(t.config), t.checkpoint, t.metadata, plain(t.parent_config), t.pending_writes) for t in found]

    assert seen(target) == seen(thread)
    assert len({place["checkpoint_ns"] for place, *_ in seen(target)}) == 2
    beginnings = {"checkpoint_log": rows(backend, thread)["checkpoint_log"] + 2}  # of the chains of both namespaces
    assert rows(backend, target) == rows(backend, thread) | beginnings
    sound(four, backend, target)
    answer = four.invoke(graph, Command(resume="yes"), at(target))
    assert answer["items"][-2:] == ["yes", "again"]
    assert four.get_state(graph, at(thread)).interrupts
    assert four.invoke(graph, Command(resume="no"), at(thread))["items"][-2:] == ["no", "again"]


def test_where_a_thread_can_be_copied_to(four: Flavoured, backend: Backend, thread: str) -> None:
    target = str(uuid4())
    save(four, at(thread), "1", {"a": BULKY})
    save(four, at(target), "1")
    before = contents(backend)
    with pytest.raises(errors.InvalidInput, match="holds checkpoints already"):
        four.call("copy_thread", thread, target)
    assert contents(backend) == before
    stale = four.get_tuple(at(target)).config
    four.call("delete_thread", target)
    four.call("copy_thread", thread, target)
    assert four.get_tuple(at(target)).checkpoint == four.get_tuple(at(thread)).checkpoint
    with pytest.raises(StateConflict):
        save(four, stale, "2")
    save(four, four.get_tuple(at(target)).config, "2")
    four.call("copy_thread", str(uuid4()), "nothing is copied to here")
    assert set(rows(backend, "nothing is copied to here").values()) == {0}


# --- pruning


def test_keep_latest(four: Flavoured, backend: Backend, thread: str) -> None:
    """The latest stays, with its writes and subgraphs, be it a fork; what it left does not."""
    graph = nested_on(four.saver)
    for turn in range(2):
        four.invoke(graph, {"items": [f"turn {turn}"]}, at(thread))
        four.invoke(graph, Command(resume="yes"), at(thread))
    old = four.get_state_history(graph, at(thread))[-2].config
    forked = four.update_state(graph, old, {"items": ["fork"]}, as_node="work")
    four.invoke(graph, None, forked)
    state, deep = (four.get_state(graph, at(thread), subgraphs=s) for s in (False, True))
    latest = four.list(at(thread), limit=1)
    namespaces = {t.config["configurable"]["checkpoint_ns"] for t in four.list({"configurable": {"thread_id": thread}})}
    four.call("prune", [thread])
    assert [four.get_state(graph, at(thread), subgraphs=s) for s in (False, True)] == [state, deep]
    assert four.list(at(thread)) == latest
    left = [t.config["configurable"]["checkpoint_ns"] for t in four.list({"configurable": {"thread_id": thread}})]
    assert "" in left
    assert len(left) == len(set(left))
    assert set(left) <= namespaces
    assert latest[0].pending_writes
    sound(four, backend, thread)
    once = contents(backend)
    four.call("prune", [thread, str(uuid4())], strategy="keep_latest")
    assert contents(backend) == once
    assert four.invoke(graph, Command(resume="so be it"), at(thread))["items"][-2:] == ["so be it", "again"]
    four.call("prune", [thread], strategy="delete")
    assert set(rows(backend, thread).values()) == {0}


def test_only_the_threads_named_are_pruned(four: Flavoured, thread: str) -> None:
    other = str(uuid4())
    for name in (thread, other):
        save(four, at(name), "1", {"a": BULKY})
        save(four, at(name, "1"), "2", {"a": BULKY})
    four.call("prune", [thread])
    assert [t.checkpoint["id"] for t in four.list(at(thread))] == ["2"]
    assert len(four.list(at(other))) == 2
    four.call("prune", [])


@pytest.mark.parametrize("turns", [1, 2, 5])
def test_delta_channels_keep_what_they_are_rebuilt_from(
    four: Flavoured, backend: Backend, thread: str, turns: int
) -> None:
    graph = graph_on(four.saver, work, more, state=Delta)
    everywhere = {"configurable": {"thread_id": thread}}
    for turn in range(turns):
        four.invoke(graph, {"items": [f"turn {turn}"]}, at(thread))
    before, count = four.get_state(graph, at(thread)), len(four.list(everywhere))
    four.call("prune", [thread])
    assert four.get_state(graph, at(thread)) == before
    assert (len(before.values["items"]), len(before.values["other"])) == (2 * turns, turns)
    assert len(four.list(everywhere)) <= count
    for _ in range(2):
        four.invoke(graph, {"items": ["later"]}, at(thread))
        after = four.get_state(graph, at(thread)).values
        assert after["items"][: 2 * turns] == before.values["items"]
        assert after["other"][:turns] == before.values["other"]
        four.call("prune", [thread])
        assert four.get_state(graph, at(thread)).values == after


def test_delta_channels_of_forks_and_updates(four: Flavoured, thread: str) -> None:
    graph = graph_on(four.saver, work, more, state=Delta)
    steps: list[Callable[[], Any]] = [
        lambda: four.update_state(graph, at(thread), {"items": ["by hand"]}, as_node="work"),
        lambda: four.invoke(graph, {"items": ["in"]}, at(thread)),
        lambda: four.update_state(graph, at(thread), {"other": ["updated"]}, as_node="more"),
        lambda: four.update_state(graph, four.get_state_history(graph, at(thread))[1].config, None, as_node="__copy__"),
        lambda: four.invoke(graph, None, four.get_state_history(graph, at(thread))[-1].config),
        lambda: four.invoke(graph, {"items": ["more"]}, at(thread), durability="exit"),
    ]
    for step in steps:
        step()
        before = four.get_state(graph, at(thread))
        four.call("copy_thread", thread, target := str(uuid4()))
        four.call("prune", [target])
        assert four.get_state(graph, at(target)).values == before.values


@pytest.mark.parametrize("source", ["update", "fork", "input"])
def test_delta_channels_that_are_not_in_the_metadata(
    four: Flavoured, open_four: Callable[..., Flavoured], thread: str, source: str
) -> None:
    """LangGraph before 1.2.13 does not count them where a checkpoint is made by `update_state`, or as a copy."""
    graph = graph_on(four.saver, work, more, state=Delta)
    for turn in range(2):
        four.invoke(graph, {"items": [f"turn {turn}"]}, at(thread))
    before = four.get_state(graph, at(thread)).values
    assert len(before["other"]) == 2
    for saver in (four, open_four()):  # the other one does not know what the parent holds
        latest = four.get_tuple(at(thread))
        assert "other" not in latest.checkpoint["channel_values"]
        copy = latest.checkpoint | {"id": str(uuid6())}
        saver.put(latest.config, copy, {"source": source, "step": 9, "parents": {}}, {})
        four.call("prune", [thread])
        assert four.get_state(graph, at(thread)).values == before


def test_a_deleted_thread_is_made_again_with_the_same_ids(four: Flavoured) -> None:
    """What this saver had stored of it is not taken to be there."""
    value = {"long": ["word " * 500]}
    for _ in range(2):
        four.get_tuple(at("again"))
        place = save(four, at("again"), "1", {"n": 1})
        four.put_writes(place, [("long", value["long"])], "task")
        place = save(four, place, "2", value)
        assert four.get_tuple(at("again")).checkpoint["channel_values"] == value
        four.call("delete_thread", "again")
