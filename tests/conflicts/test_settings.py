"""`on_conflict="report"`, `on_busy="refuse"`, and what a deleted thread leaves behind."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.types import Command

from langgraph_ledger import LedgerSaver, SessionBusy, StateConflict
from tests.conflicts.stage import STEPS, Stage, lines, says
from tests.conflicts.tables import assert_no_orphans
from tests.conflicts.verdict import log_of
from tests.conflicts.worker import Worker
from tests.four_ways import Backend

Play = Callable[..., tuple[Stage, Any]]
from_the_first_write = pytest.mark.parametrize("durability", ["sync", "async"])
"""Under durability exit a run owns nothing until it ends."""
once = pytest.mark.parametrize("durability", ["sync"])


def test_report_accepts_both(play: Play, database: Backend, observer: LedgerSaver, existing: bool) -> None:
    async def scene(stage: Stage) -> Any:
        if existing:
            await stage.attempt("base")
        stage.hold("A", "first", stage.event("passed"), once=stage.input_saved("A"))

        async def rival() -> Any:
            await stage.at("A", "first")
            return await stage.attempt("B")

        return await stage.overtaken(lambda: stage.attempt("A"), rival)

    stage, outcomes = play(scene, on_conflict="report")
    for who, outcome in zip("AB", outcomes, strict=True):
        assert not isinstance(outcome, Exception)
        assert outcome["log"][-5:] == lines(who)
        assert stage.steps_of(who) == list(STEPS)
    rows = observer.rejected_writes(stage.thread)
    assert rows
    assert {row.payload["accepted"] for row in rows} == {True}
    assert len({row.payload["writer"] for row in rows}) == 1
    stored = [found.checkpoint["channel_values"].get("log", []) for found in observer.list(stage.config("A"))]
    for outcome in outcomes:
        assert outcome["log"] in stored, "both are in the history"
    assert log_of(observer, stage) == outcomes[0]["log"], "the last write is the state, as without a check"
    assert_no_orphans(database, stage.thread)


async def meet(stage: Stage) -> tuple[Any, Any]:
    """What "A" gets, who is at work, and "B", who comes meanwhile."""
    stage.hold("A", "first", stage.event("passed"), once=stage.input_saved("A"))

    async def rival() -> Any:
        await stage.at("A", "first")
        return await stage.attempt("B")

    first, second = await stage.overtaken(lambda: stage.attempt("A"), rival)
    return first, second


@from_the_first_write
def test_refuse_lets_no_run_take_over(play: Play, database: Backend, observer: LedgerSaver, existing: bool) -> None:
    """The one at work keeps the thread, and when it has ended the next may begin."""

    async def scene(stage: Stage) -> Any:
        if existing:
            await stage.attempt("base")
        return await meet(stage), await stage.attempt("C")

    stage, ((first, second), after) = play(scene, on_busy="refuse")
    base = lines("base") if existing else []
    assert first["log"] == [*base, *lines("A")]
    assert type(second) is SessionBusy
    assert after["log"] == log_of(observer, stage) == [*base, *lines("A"), *lines("C")]
    assert_no_orphans(database, stage.thread)


def test_a_busy_thread_is_refused_before_a_node_runs(play: Play, durability: str) -> None:
    """Whatever the durability of the run that is refused: it has read that the thread is busy."""

    async def scene(stage: Stage) -> Any:
        owner = stage.durability
        stage.api.durability = "sync"
        stage.hold("A", "first", stage.event("passed"), once=stage.event("input saved", "A"))

        async def rival() -> Any:
            await stage.at("A", "first")
            stage.api.durability = owner
            return await stage.attempt("B")

        return await stage.overtaken(lambda: stage.attempt("A"), rival)

    stage, (_, second) = play(scene, on_busy="refuse")
    assert type(second) is SessionBusy
    assert stage.steps_of("B") == []


@once
def test_refuse_allows_reading(play: Play) -> None:
    async def scene(stage: Stage) -> Any:
        stage.hold("A", "first", stage.event("passed"), once=stage.input_saved("A"))

        async def look() -> Any:
            await stage.at("A", "first")
            return await stage.api.get_state(stage.graph, stage.config("B"))

        return await stage.overtaken(lambda: stage.attempt("A"), look)

    _, (first, state) = play(scene, on_busy="refuse")
    assert state.values["log"] == says("A")["log"]
    assert first["log"] == lines("A")


def test_refuse_allows_what_follows_a_pause(play: Play, observer: LedgerSaver) -> None:
    """An answer to an interrupt, and, in its place, a new input."""

    async def scene(stage: Stage) -> None:
        graph = stage.api.compile(stage.asking())
        for who, given in (("B", Command(resume="yes")), ("C", says("C"))):
            assert "__interrupt__" in await stage.attempt("A", graph=graph)
            assert not isinstance(await stage.attempt(who, given, graph), Exception)

    stage, _ = play(scene, on_busy="refuse")
    said = Counter(log_of(observer, stage))
    assert said[says("A")["log"][0]] == 2
    assert said["yes B"] == said[says("C")["log"][0]] == 1


@from_the_first_write
def test_refuse_knows_other_processes(play: Play, database: Backend, observer: LedgerSaver) -> None:
    """A run of another process keeps the thread as long as that process lives, stopped or not, and no longer."""
    worker = Worker()

    async def scene(stage: Stage) -> Any:
        options = {"on_busy": "refuse"}
        worker.begin(stage, "A", database.url, holds=["first"], settled=True, options=options)
        assert worker.expect("at") == "first"
        outcomes = [await stage.attempt("B")]
        worker.stop()
        outcomes.append(await stage.attempt("C"))
        worker.kill()
        outcomes.append(await stage.attempt("D"))
        return outcomes

    try:
        stage, outcomes = play(scene, on_busy="refuse")
    finally:
        worker.kill()
    assert [type(outcome) for outcome in outcomes[:2]] == [SessionBusy, SessionBusy]
    assert str(worker.pid) in str(outcomes[0])
    assert outcomes[2]["log"] == log_of(observer, stage) == [*says("A")["log"], *lines("D")]
    assert_no_orphans(database, stage.thread)


@once
def test_a_deleted_thread_takes_no_blind_write(play: Play, database: Backend, observer: LedgerSaver) -> None:
    """Who never read it cannot bring it back; who reads it finds nothing and may begin anew."""

    async def scene(stage: Stage) -> Any:
        await stage.attempt("base")
        old = await stage.api.get_tuple(stage.config("base"))
        assert old is not None
        await stage.api.delete_thread(stage.config("base"))
        for parent in ({}, {"checkpoint_id": str(old.checkpoint["id"])}):
            by_hand = {"configurable": {"thread_id": stage.thread, "checkpoint_ns": "", **parent}}
            arguments = by_hand, empty_checkpoint(), {"source": "input", "step": -1, "parents": {}}, {}
            unread = LedgerSaver(database.url)
            with pytest.raises(StateConflict, match="deleted"):
                await stage.api._call(unread.put, unread.aput, *arguments)
            await stage.api._call(unread.close, unread.aclose)
        assert observer.get_tuple(stage.config("base")) is None
        return await stage.attempt("A")

    stage, after = play(scene)
    assert after["log"] == log_of(observer, stage) == lines("A")
    assert_no_orphans(database, stage.thread)
