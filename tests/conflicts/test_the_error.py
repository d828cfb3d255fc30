"""What StateConflict says, and that a run which was refused once is refused for good."""

import gc
import itertools
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any, TypedDict

import pytest
from langgraph.checkpoint.base import CheckpointTuple, create_checkpoint
from langgraph.errors import GraphBubbleUp
from langgraph.graph import END, START, StateGraph
from langgraph.types import RetryPolicy, default_retry_on

from langgraph_ledger import LedgerError, LedgerSaver, SessionBusy, StateConflict, expect
from langgraph_ledger.runs import Run, Runs
from tests.conflicts.stage import Stage, lines
from tests.conflicts.verdict import log_of

Play = Callable[..., tuple[Stage, Any]]


@pytest.fixture
def durability() -> str:
    return "sync"


def following(found: CheckpointTuple, step: int) -> tuple[Any, ...]:
    """The arguments of the put of a checkpoint after `found`."""
    checkpoint = create_checkpoint(found.checkpoint, None, step)
    checkpoint["channel_values"] = found.checkpoint["channel_values"]
    return found.config, checkpoint, {"source": "loop", "step": step, "parents": {}}, {}


async def refused(stage: Stage, what: str, *args: Any) -> StateConflict:
    with pytest.raises(StateConflict) as caught:
        await stage.api._call(getattr(stage.saver, what), getattr(stage.saver, f"a{what}"), *args)
    return caught.value


async def refuse(stage: Stage) -> tuple[CheckpointTuple, CheckpointTuple, StateConflict]:
    """Two readers of a thread, the second of which writes first; what the first one gets."""
    await stage.attempt("base")
    before, winner = [await stage.api.get_tuple(stage.config(who)) for who in "AB"]
    assert before is not None
    assert winner is not None
    await stage.api._call(stage.saver.put, stage.saver.aput, *following(winner, 8))
    return before, winner, await refused(stage, "put", *following(before, 9))


def test_it_is_sticky(play: Play, observer: LedgerSaver) -> None:
    async def scene(stage: Stage) -> None:
        before, _, conflict = await refuse(stage)
        logged = observer.rejected_writes(stage.thread)
        again = [
            await refused(stage, "put", *following(before, 10)),
            await refused(stage, "put_writes", before.config, [("log", ["late"])], "task"),
            await refused(stage, "put_writes", before.config, [("log", ["late"])], "task", "path"),
        ]
        for each in again:
            assert each is not conflict
            assert vars(each) == vars(conflict)
        for version in before.checkpoint["channel_versions"].values():
            with pytest.raises(StateConflict):
                stage.saver.get_next_version(version, None)
        assert observer.rejected_writes(stage.thread) == logged, "only the first refusal is news"

    stage, _ = play(scene)
    assert log_of(observer, stage) == lines("base")


def test_who_reads_again_may_write(play: Play, observer: LedgerSaver) -> None:
    async def scene(stage: Stage) -> None:
        await refuse(stage)
        assert (await stage.attempt("A"))["log"] == [*lines("base"), *lines("A")]

    play(scene)


def test_its_facts(play: Play, observer: LedgerSaver) -> None:
    """What was read, what was found, and by whom."""

    async def scene(stage: Stage) -> Any:
        return await refuse(stage)

    stage, (before, _, conflict) = play(scene)
    (row,) = observer.rejected_writes(stage.thread)
    head = observer.get_tuple({"configurable": {"thread_id": stage.thread}})
    assert head is not None
    assert (conflict.session_id, conflict.agent_id, conflict.operation) == (stage.thread, "", "put")
    assert conflict.version_read is not None
    assert conflict.version_found == conflict.version_read + 1
    assert conflict.checkpoint_read == before.checkpoint["id"]
    assert conflict.checkpoint_found == head.checkpoint["id"]
    assert conflict.writer
    assert conflict.winner
    assert conflict.writer != conflict.winner
    assert conflict.committed is False
    assert conflict.last_committed is None
    assert f"version {conflict.version_read}" in str(conflict)
    assert row.payload["message"] == str(conflict)
    assert row.payload["version_read"] == conflict.version_read
    assert row.parent_checkpoint_id == conflict.checkpoint_read


@pytest.mark.parametrize("kind", [StateConflict, SessionBusy])
def test_its_facts_survive_pickling(play: Play, kind: type[StateConflict]) -> None:
    async def scene(stage: Stage) -> Any:
        return await refuse(stage)

    _, (*_, conflict) = play(scene)
    there = kind(str(conflict), **conflict._facts)
    back = pickle.loads(pickle.dumps(there))
    assert type(back) is kind
    assert str(back) == str(there)
    assert vars(back) == vars(there)


def test_a_run_that_had_committed_says_so(play: Play, observer: LedgerSaver) -> None:
    async def scene(stage: Stage) -> Any:
        stage.hold("A", "second", stage.event("passed"), once=stage.event("saved", "A", "put", 3))

        async def rival() -> Any:
            await stage.at("A", "second")
            head = await stage.api.get_tuple(stage.config("B"))
            return head, await stage.attempt("B")

        return await stage.overtaken(lambda: stage.attempt("A"), rival)

    _, (conflict, (head, _)) = play(scene)
    assert type(conflict) is StateConflict
    assert conflict.committed is True
    assert conflict.last_committed == head.checkpoint["id"]
    assert (conflict.version_read, conflict.checkpoint_read) == (0, None)
    assert "another run has taken the thread over" in str(conflict)


class Count(TypedDict, total=False):
    tries: int


def test_a_node_is_not_retried(play: Play) -> None:
    """LangGraph's default RetryPolicy would start the node again, from a state that is stale."""

    async def scene(stage: Stage) -> tuple[Any, int]:
        tries = []
        await stage.attempt("base")
        stale = await stage.api.get_state(stage.graph, stage.config("A"))
        await stage.attempt("B")

        async def update(state: Count) -> None:
            tries.append(1)
            await stage.api.update_state(stage.graph, expect(stale), {"log": ["late"]})

        builder = StateGraph(Count)
        builder.add_node(
            "update", stage.api.node(update), retry_policy=RetryPolicy(initial_interval=0.01, jitter=False)
        )
        builder.add_edge(START, "update")
        builder.add_edge("update", END)
        elsewhere: Any = {"configurable": {"thread_id": f"{stage.thread} elsewhere"}}
        with pytest.raises(StateConflict) as caught:
            await stage.api.invoke(stage.api.compile(builder), {}, elsewhere)
        return caught.value, len(tries)

    _, (conflict, tries) = play(scene)
    assert tries == 1
    assert default_retry_on(conflict) is False


@pytest.mark.parametrize("durability", ["async"])
def test_a_refusal_is_only_raised(play: Play) -> None:
    """Nothing is left behind of which asyncio says in the log that its exception was never retrieved."""

    async def scene(stage: Stage) -> Any:
        stage.hold("A", "first", stage.event("passed"), once=stage.event("saved", "A", "put", 3))

        async def rival() -> Any:
            await stage.at("A", "first")
            return await stage.attempt("B")

        graph = stage.api.compile(stage.asking_below())
        return [type(outcome) for outcome in await stage.overtaken(lambda: stage.attempt("A", graph=graph), rival)]

    stage, kinds = play(scene)
    assert kinds == [StateConflict, dict]
    noise = stage.noise
    del stage
    gc.collect()  # a future says so when it is collected
    assert noise == []


def test_saves_of_one_run_do_not_trip_over_each_other() -> None:
    """LangGraph saves a checkpoint in one thread and a task's writes in another."""
    run, ended = Run(Runs(), "thread", 0), threading.Event()

    def puts() -> None:
        for n in itertools.count():
            if ended.is_set():
                return
            run.end_put(("", str(n)), run.begin_put(("", str(n)))[0])

    thread = threading.Thread(target=puts)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        for _ in range(50_000):
            run.put_of(("", "another"))
    finally:
        sys.setswitchinterval(interval)
        ended.set()
        thread.join()


def test_a_run_keeps_no_future_of_a_put_that_has_ended() -> None:
    """A saver remembers thousands of runs, and a future with its lock takes two kilobytes."""
    run = Run(Runs(), "thread", 0)
    futures = [run.begin_put(("", str(n)))[0] for n in range(3)]
    assert [run.put_of(("", str(n))) for n in range(3)] == futures
    for n in (2, 0):
        run.end_put(("", str(n)), futures[n])
    known = [run.put_of(("", str(n))) for n in range(3)]
    assert [put is not None and put.done() for put in known] == [True, False, True]
    assert known[0] is known[2] is not futures[0]
    assert futures[0].done()
    assert known[1] is futures[1]


def test_a_put_that_ends_while_the_same_checkpoint_is_put_again() -> None:
    """Whoever waits for the checkpoint waits for the later one."""
    run, place = Run(Runs(), "thread", 0), ("", "1")
    first, second = (run.begin_put(place)[0] for _ in range(2))
    run.end_put(place, first)
    assert run.put_of(place) is second
    run.end_put(place, second)
    assert second.done()


@pytest.mark.parametrize("when", ["before it waits", "while it waits"])
def test_nobody_waits_for_a_checkpoint_of_a_refused_run(when: str) -> None:
    run, expected = Run(Runs(), "thread", 0), None
    if when == "while it waits":
        expected = run.expect_put(("", "1"))
        assert not expected.done()
    run.fence(StateConflict("overtaken"))
    assert (expected or run.expect_put(("", "1"))).done()


def test_what_it_is() -> None:
    assert issubclass(StateConflict, RuntimeError)
    assert issubclass(StateConflict, LedgerError)
    assert not issubclass(StateConflict, GraphBubbleUp)
    assert issubclass(SessionBusy, StateConflict)
