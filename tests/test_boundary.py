"""What conflict detection promises and what it does not: each line of docs/boundary.md, shown."""

import asyncio
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import aclosing, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import StateUpdate

from langgraph_ledger import (
    LedgerSaver,
    SessionBusy,
    StateConflict,
    amodify,
    aretry_on_conflict,
    expect,
    modify,
    retry_on_conflict,
)
from langgraph_ledger.errors import DatabaseUnavailable
from tests.conflicts.databases import shared_database
from tests.conflicts.stage import STEPS, Line, Stage, lines, perform, says
from tests.conflicts.tables import assert_no_orphans
from tests.four_ways import Backend

Play = Callable[..., tuple[Stage, Any]]
PAGE = Path(__file__).parent.parent / "docs" / "boundary.md"


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    yield from shared_database(request, tmp_path_factory)


@pytest.fixture
def durability() -> str:
    return "async"


late = pytest.mark.parametrize("durability", ["async", "exit"])
every_durability = pytest.mark.parametrize("durability", ["sync", "async", "exit"])


@pytest.fixture
def play(database: Backend, flavour: str, durability: str) -> Callable[..., tuple[Stage, Any]]:
    def run(scene: Any, **options: Any) -> tuple[Stage, Any]:
        stage, result = perform(database.url, flavour, durability, scene, **options)
        assert_no_orphans(database, stage.thread)
        return stage, result

    return run


async def overtake(
    stage: Stage, rival: Callable[[], Any] | None = None, graph: Any = None, once: Any = None
) -> tuple[Any, Any]:
    """What "A" gets, which is held in its first node once its input is saved, and the rival who passes it there."""
    stage.hold("A", "first", stage.event("passed"), once=once or stage.input_saved("A"))

    async def passing() -> Any:
        await stage.at("A", "first")
        return await (rival or partial(stage.attempt, "B"))()

    return tuple(await stage.overtaken(lambda: stage.attempt("A", graph=graph), passing))


async def log_of(stage: Stage, graph: Any = None) -> list[str]:
    return (await stage.api.get_state(graph or stage.graph, stage.config("A"))).values.get("log", [])


async def rejected(stage: Stage) -> Any:
    return await stage.api._call(stage.saver.rejected_writes, stage.saver.arejected_writes, stage.thread)


async def retried(stage: Stage, who: str) -> Any:
    return await stage.api._call(
        retry_on_conflict, aretry_on_conflict, stage.graph, says(who), stage.config(who), durability=stage.durability
    )


def test_the_page_and_these_tests_are_the_same() -> None:
    linked = set(re.findall(r"test_boundary\.py::(\w+)", PAGE.read_text("utf-8")))
    here = {name for name in globals() if name.startswith("test_")}
    assert linked == here - {test_the_page_and_these_tests_are_the_same.__name__}


@every_durability
def test_one_of_two_runs_is_refused(play: Play) -> None:
    async def scene(stage: Stage) -> Any:
        return await overtake(stage), await rejected(stage), await log_of(stage)

    _, ((first, second), rows, log) = play(scene)
    assert type(first) is StateConflict
    assert second["log"] == log
    assert log[-5:] == lines("B")
    assert rows


@late
def test_the_error_comes_when_the_run_ends(play: Play) -> None:
    """What a stream of the refused run yields until then looks like success."""

    async def scene(stage: Stage) -> Any:
        stage.hold("A", "first", stage.event("passed"), once=stage.input_saved("A"))
        chunks: list[Any] = []

        async def stream() -> None:
            async for chunk in stage.api.stream(stage.graph, says("A"), stage.config("A"), stream_mode="updates"):
                chunks.append(chunk)

        async def refused() -> None:
            with pytest.raises(StateConflict):
                await stream()

        async def passing() -> None:
            await stage.at("A", "first")
            await stage.attempt("B")

        await stage.overtaken(refused, passing)
        return chunks, await log_of(stage)

    _, (chunks, log) = play(scene)
    assert chunks[0] == {"first": {"log": ["first A"]}}
    assert "first A" not in log


def test_a_refused_run_stops_at_its_next_step(play: Play) -> None:
    """Under durability async, as soon as one of its saves has been refused: it does not go through all of its nodes."""

    async def scene(stage: Stage) -> Any:
        stage.hold("A", "second", stage.event("refused", "A"))
        return await overtake(stage)

    stage, (first, _) = play(scene)
    assert type(first) is StateConflict
    assert stage.steps_of("A") in (["first"], ["first", "second"])


@pytest.mark.parametrize("durability", ["exit"])
def test_under_exit_every_node_runs_before_the_refusal(play: Play) -> None:
    stage, (first, _) = play(overtake)
    assert type(first) is StateConflict
    assert first.committed is False
    assert stage.steps_of("A") == list(STEPS)


def test_an_interrupt_in_a_subgraph_may_hide_the_refusal(play: Play) -> None:
    """LangGraph then returns the interrupt; the refusal is in the log, and what the run had written is not."""

    async def scene(stage: Stage) -> Any:
        graph = stage.api.compile(stage.asking_below())
        first, second = await overtake(stage, graph=graph, once=stage.event("saved", "A", "put", 3))
        return first, second, await rejected(stage), await log_of(stage)

    _, (first, second, rows, log) = play(scene)
    assert type(first) is StateConflict or "__interrupt__" in first
    assert rows
    assert log == second["log"]


def test_an_abandoned_stream_is_still_running(play: Play) -> None:
    """A run that begins beside one may be refused, or else the abandoned one is; a retry succeeds."""

    async def scene(stage: Stage) -> Any:
        stream = stage.api.stream(stage.graph, says("A"), stage.config("A"), stream_mode="updates")
        async for _ in stream:
            break
        outcome = await retried(stage, "B")
        await stream.aclose()
        return outcome, await log_of(stage)

    _, (outcome, log) = play(scene)
    assert outcome["log"] == log
    assert log.count(says("B")["log"][0]) == 1


@pytest.mark.parametrize("flavour", ["async"])
def test_a_task_cancelled_but_not_awaited_is_still_running(play: Play) -> None:
    async def scene(stage: Stage) -> Any:
        stage.hold("A", "first", stage.event("never"))
        task = asyncio.create_task(stage.api.invoke(stage.graph, says("A"), stage.config("A")))
        await stage.at("A", "first")
        task.cancel()
        outcome = await retried(stage, "B")
        with suppress(asyncio.CancelledError, StateConflict):
            await task
        return outcome, await log_of(stage)

    _, (outcome, log) = play(scene)
    assert outcome["log"] == log
    assert log.count(says("B")["log"][0]) == 1


@every_durability
def test_a_closed_stream_is_never_in_the_way(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        for taken in range(1, len(STEPS)):
            stream = stage.api.stream(stage.graph, says("A"), stage.config("A"), stream_mode="updates")
            async with aclosing(stream):
                for _ in range(taken):
                    await anext(stream)
            outcome = await stage.attempt("B")
            assert not isinstance(outcome, Exception), outcome
        assert not await rejected(stage)

    play(scene)


@every_durability
@pytest.mark.parametrize("flavour", ["async"])
def test_a_task_cancelled_and_awaited_is_never_in_the_way(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        for step in STEPS:
            stage.hold("A", step, stage.event("never"))
            task = asyncio.create_task(stage.api.invoke(stage.graph, says("A"), stage.config("A")))
            await stage.at("A", step)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            stage.hold("A", step, stage.event("at", "A", step))
            outcome = await stage.attempt("B")
            assert not isinstance(outcome, Exception), outcome
        assert not await rejected(stage)

    play(scene)


def test_update_state_counts_on_its_own_read(play: Play) -> None:
    """get_state, think, update_state is two reads: what was written while its caller thought is not noticed."""

    async def scene(stage: Stage) -> Any:
        seen = await stage.api.get_state(stage.graph, stage.config("A"))
        await stage.attempt("B")
        thought = {"log": [f"A saw {len(seen.values)} channels"]}
        await stage.api.update_state(stage.graph, stage.config("A"), thought, as_node="fourth")
        return await log_of(stage), await rejected(stage)

    _, (log, rows) = play(scene)
    assert log == [*lines("B"), "A saw 0 channels"]
    assert not rows


def test_expect_makes_the_first_read_count(play: Play) -> None:
    async def scene(stage: Stage) -> Any:
        seen = await stage.api.get_state(stage.graph, stage.config("A"))
        await stage.attempt("B")
        with pytest.raises(StateConflict):
            await stage.api.update_state(stage.graph, expect(seen), {"log": ["A"]}, as_node="fourth")
        return await log_of(stage)

    _, log = play(scene)
    assert log == lines("B")


def test_modify_reads_and_thinks_again(play: Play) -> None:
    async def scene(stage: Stage) -> Any:
        thoughts: list[int] = []
        stage.hold("A", "put 1", stage.event("passed"))

        def think(snapshot: Any) -> Any:
            thoughts.append(len(snapshot.values.get("log", [])))
            return {"log": [f"A saw {thoughts[-1]} lines"]}

        async def change() -> Any:
            await stage.api._call(modify, amodify, stage.graph, stage.config("A"), think, as_node="fourth")

        async def rival() -> Any:
            await stage.at("A", "put 1")
            await stage.attempt("B")

        await stage.overtaken(change, rival)
        return thoughts, await log_of(stage)

    _, (thoughts, log) = play(scene)
    assert thoughts == [0, len(lines("B"))]
    assert log == [*lines("B"), f"A saw {thoughts[1]} lines"]


def test_bulk_update_state_reads_again_between_its_supersteps(play: Play) -> None:
    """A run that comes between two of them is not noticed. The second one goes on from the first, as LangGraph says it
    should: the run's work is in the history, on a branch that the thread's state does not descend from."""

    async def scene(stage: Stage) -> Any:
        supersteps = [[StateUpdate({"log": [f"superstep {n}"]}, "fourth")] for n in (1, 2)]
        stage.hold("A", "after put 1", stage.event("passed"))

        async def rival() -> Any:
            await stage.at("A", "after put 1")
            return await stage.attempt("B")

        _, outcome = await stage.overtaken(
            lambda: stage.api.bulk_update_state(stage.graph, stage.config("A"), supersteps), rival
        )
        history = await stage.api.history(stage.graph, stage.config("A"))
        return outcome, [state.values.get("log", []) for state in history], await rejected(stage)

    _, (outcome, logs, rows) = play(scene)
    assert outcome["log"] == ["superstep 1", *lines("B")]
    assert logs[0] == ["superstep 1", "superstep 2"]
    assert outcome["log"] in logs
    assert not rows


@pytest.mark.parametrize("durability", ["sync"])
def test_the_first_to_commit_wins_and_the_others_work_is_thrown_away(play: Play) -> None:
    """What its nodes did outside of the state is not undone."""

    async def scene(stage: Stage) -> Any:
        return await overtake(stage), await log_of(stage)

    stage, ((first, _), log) = play(scene)
    assert type(first) is StateConflict
    assert stage.steps_of("A") == ["first"]
    assert "first A" not in log


@pytest.mark.parametrize("durability", ["sync"])
def test_refuse_lets_the_one_at_work_finish(play: Play) -> None:
    async def scene(stage: Stage) -> Any:
        return await overtake(stage), await log_of(stage)

    _, ((first, second), log) = play(scene, on_busy="refuse")
    assert first["log"] == log == lines("A")
    assert type(second) is SessionBusy


@pytest.mark.parametrize("durability", ["exit"])
def test_refuse_does_not_see_a_run_that_has_saved_nothing(play: Play) -> None:
    """Under durability exit nothing says that a run is at work before it ends: the version decides then."""

    async def scene(stage: Stage) -> Any:
        return await overtake(stage)

    _, (first, second) = play(scene, on_busy="refuse")
    assert type(first) is StateConflict
    assert second["log"] == lines("B")


@every_durability
def test_report_accepts_and_records(play: Play) -> None:
    async def scene(stage: Stage) -> Any:
        return await overtake(stage), await rejected(stage), await log_of(stage)

    _, ((first, second), rows, log) = play(scene, on_conflict="report")
    assert first["log"] == log, "the last write is what counts, and the other's answer is lost"
    assert second["log"][-5:] == lines("B")
    assert rows
    assert all(row.payload["accepted"] for row in rows)


def test_a_deleted_thread_refuses_who_had_read_it(play: Play) -> None:
    async def scene(stage: Stage) -> Any:
        await stage.attempt("base")
        first, _ = await overtake(stage, lambda: stage.api.delete_thread(stage.config("B")))
        gone = await log_of(stage)
        return first, gone, await stage.attempt("C")

    _, (first, gone, after) = play(scene)
    assert type(first) is StateConflict
    assert gone == []
    assert after["log"] == lines("C")


def test_a_lock_that_somebody_keeps_is_no_conflict(sqlite_path: str) -> None:
    """SQLite has one writer: a process that was stopped in the middle of a commit makes all others wait."""

    async def scene(stage: Stage) -> Any:
        await stage.attempt("base")
        with closing(sqlite3.connect(sqlite_path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            outcome = await stage.attempt("A")
        return outcome, await stage.attempt("B")

    _, (outcome, after) = perform(sqlite_path, "sync", "sync", scene, busy_timeout=0.01)
    assert isinstance(outcome, DatabaseUnavailable)
    assert not isinstance(outcome, StateConflict)
    assert after["log"] == [*lines("base"), *lines("B")]


@pytest.mark.parametrize("durability", ["sync"])
def test_savers_check_each_other(database: Backend, flavour: str, durability: str) -> None:
    async def scene(stage: Stage) -> Any:
        with LedgerSaver(database.url) as other:
            graph = StateGraph(Line)
            graph.add_node("fourth", lambda state: {"log": ["other"]})
            graph.add_edge(START, "fourth")
            compiled = graph.compile(checkpointer=other)

            async def rival() -> Any:
                return compiled.invoke(says("B"), stage.config("B"), durability="sync")

            return await overtake(stage, rival)

    _, (first, second) = perform(database.url, flavour, durability, scene)
    assert type(first) is StateConflict
    assert second["log"][-2:] == [*says("B")["log"], "other"]
