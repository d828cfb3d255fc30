"""Two runs on one thread at once: threads or tasks, streams of one caller, a run and an update or a deletion."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from threading import Event
from typing import Any

import pytest

from langgraph_ledger import LedgerSaver, StateConflict
from tests.conflicts.stage import STEPS, Stage, lines, says
from tests.conflicts.verdict import judge, log_of, nothing_lost, on_record
from tests.four_ways import Backend
from tests.scenarios.api import Stream, run_now

SET = Event()
SET.set()
Play = Callable[..., tuple[Stage, Any]]


async def begin(stage: Stage, existing: bool) -> None:
    if existing:
        assert (await stage.attempt("base"))["log"] == lines("base")


def base(existing: bool) -> list[str]:
    return lines("base") if existing else []


def hold_overtaken(stage: Stage) -> None:
    """Holds "A" in its first node until it has been passed. Under durability async a run learns in its next node that
    it was refused: that one then lasts until it has been."""
    stage.hold("A", "first", stage.event("passed"), once=stage.input_saved("A"))
    if stage.durability == "async":
        stage.hold("A", "second", stage.event("refused", "A"))


def kept_of_the_loser(stage: Stage) -> list[str]:
    """What is left of a run that was overtaken in its first node: its input, if that was saved before."""
    return [] if stage.durability == "exit" else says("A")["log"]


def test_two_threads_or_tasks_meet(play: Play, database: Backend, observer: LedgerSaver, existing: bool) -> None:
    """Both are in their first node before either goes on (unless one has been refused by then)."""

    async def scene(stage: Stage) -> Any:
        await begin(stage, existing)
        for who, other in (("A", "B"), ("B", "A")):
            stage.hold(who, "first", stage.event("at", other, "first"))
            if stage.durability == "async":
                stage.hold(who, "second", stage.event("refused"))
        return await stage.api.gather(lambda: stage.attempt("A"), lambda: stage.attempt("B"))

    stage, outcomes = play(scene)
    winner, _ = judge(database, observer, stage, dict(zip("AB", outcomes, strict=True)))
    loser = "AB".replace(winner, "")
    found = log_of(observer, stage)
    assert found == outcomes["AB".index(winner)]["log"]
    assert found in (base(existing) + lines(winner), base(existing) + says(loser)["log"] + lines(winner))
    assert stage.steps_of(winner) == list(STEPS)


def test_one_is_overtaken(play: Play, database: Backend, observer: LedgerSaver, existing: bool) -> None:
    """One run waits in its first node while another comes and goes."""

    async def scene(stage: Stage) -> Any:
        await begin(stage, existing)
        hold_overtaken(stage)

        async def rival() -> Any:
            await stage.at("A", "first")
            return await stage.attempt("B")

        return await stage.overtaken(lambda: stage.attempt("A"), rival)

    stage, outcomes = play(scene)
    _, conflict = judge(database, observer, stage, dict(zip("AB", outcomes, strict=True)), winner="B")
    assert log_of(observer, stage) == base(existing) + kept_of_the_loser(stage) + lines("B")
    assert conflict.committed is (stage.durability != "exit")
    assert stage.steps_of("B") == list(STEPS)


Stepping = Callable[[Stage, Stream], Awaitable[Any]]


async def in_one_context(stage: Stage, stream: Stream) -> Any:
    return await anext(stream, None)


async def in_a_copied_context(stage: Stage, stream: Stream) -> Any:
    context = contextvars.copy_context()
    if stage.api.asynchronous:
        return await asyncio.get_running_loop().create_task(in_one_context(stage, stream), context=context)
    return context.run(lambda: run_now(in_one_context(stage, stream)))


async def in_an_empty_context(stage: Stage, stream: Stream) -> Any:
    return await stage.api.in_fresh_context(lambda: in_one_context(stage, stream))


async def alternately(stage: Stage, stepping: Stepping, streams: dict[str, Stream]) -> dict[str, Any]:
    """The chunks of each stream, stepped in turn, or what it raised."""
    outcomes: dict[str, Any] = {who: [] for who in streams}
    left = dict(streams)
    while left:
        for who, stream in list(left.items()):
            try:
                chunk = await stepping(stage, stream)
            except StateConflict as error:
                chunk, outcomes[who] = None, error
            if chunk is None:
                del left[who]
            else:
                outcomes[who].append(chunk)
    return outcomes


@pytest.mark.parametrize(
    ("stepping", "existing"),
    [(in_one_context, False), (in_one_context, True), (in_a_copied_context, True), (in_an_empty_context, False)],
)
def test_two_streams_in_turn(
    play: Play, database: Backend, observer: LedgerSaver, existing: bool, stepping: Stepping
) -> None:
    """Both streams have been stepped once before either is stepped again. A stream reads when it is stepped first, so
    the second one has read what the first one had saved, and wins; under durability exit both have read the same, and
    the first to end wins."""

    async def scene(stage: Stage) -> Any:
        await begin(stage, existing)
        streams = {}
        for who in "AB":
            stage.hold(who, "first", SET, once=stage.input_saved(who))
            streams[who] = stage.api.stream(stage.graph, says(who), stage.config(who), stream_mode="updates")
        if stage.durability == "async":
            stage.hold("A", "put 3", stage.event("at", "B", "first"))
            stage.hold("A", "second", stage.event("refused", "A"))
        return await alternately(stage, stepping, streams)

    stage, outcomes = play(scene)
    winner = "A" if stage.durability == "exit" else "B"
    _, conflict = judge(database, observer, stage, outcomes, winner, at=2)
    # whether the first step's result is saved when a stream's first chunk comes is LangGraph's affair
    found = log_of(observer, stage)
    kept = [] if stage.durability == "exit" else lines("A", "first")
    assert found in (base(existing) + kept + lines(winner), base(existing) + kept[:1] + lines(winner))
    assert conflict.committed is (stage.durability != "exit")


def test_an_update_overtakes_a_run(play: Play, database: Backend, observer: LedgerSaver, existing: bool) -> None:
    async def scene(stage: Stage) -> Any:
        await begin(stage, existing)
        hold_overtaken(stage)

        async def update() -> Any:
            await stage.at("A", "first")
            return await stage.api.update_state(stage.graph, stage.config("B"), {"log": ["update"]}, as_node="fourth")

        return await stage.overtaken(lambda: stage.attempt("A"), update)

    stage, outcomes = play(scene)
    _, conflict = judge(database, observer, stage, dict(zip("AB", outcomes, strict=True)), winner="B")
    assert log_of(observer, stage) == base(existing) + kept_of_the_loser(stage) + ["update"]
    assert conflict.checkpoint_found == outcomes[1]["configurable"]["checkpoint_id"]


def test_a_deletion_overtakes_a_run(
    play: Play,
    database: Backend,
    observer: LedgerSaver,
    existing: bool,
    durability: str,
) -> None:
    """The run is refused, nothing of the thread comes back, and a run that begins afterwards begins anew."""

    async def scene(stage: Stage) -> Any:
        await begin(stage, existing)
        hold_overtaken(stage)

        async def delete() -> Any:
            await stage.at("A", "first")
            await stage.api.delete_thread(stage.config("B"))

        outcome, _ = await stage.overtaken(lambda: stage.attempt("A"), delete)
        left = [found async for found in _listed(stage)]
        on_record(observer, stage, outcome)
        return outcome, left, await stage.attempt("C")

    stage, (conflict, left, after) = play(scene)
    assert type(conflict) is StateConflict
    assert "deleted" in str(conflict)
    assert left == []
    assert after["log"] == log_of(observer, stage) == lines("C")
    assert len(stage.steps_of("A")) <= {"sync": 1, "async": 2, "exit": 4}[stage.durability]
    nothing_lost(database, observer, stage, None)


async def _listed(stage: Stage) -> Any:
    for found in await stage.api.list(stage.config("B")):
        yield found
