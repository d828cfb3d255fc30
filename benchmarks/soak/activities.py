"""What a lane can do: an activity is a function of the lane, the same for both flavours."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from itertools import islice
from typing import Any
from uuid import uuid4

from langgraph.types import Command

import langgraph_ledger
from benchmarks.soak.graphs import PLANS, agent, turn
from langgraph_ledger import Batched, LedgerSaver, StateConflict, expect
from tests.four_ways import Flavoured

Activity = Callable[[Any], None]
ACTIVITIES: list[Activity] = []
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"flush": Batched(5, 0.01)},
    {"flush": "important", "compression": "zstd"},
    {"working_channels": {"draft"}, "on_busy": "refuse"},
    {"on_conflict": "report", "log_tools": False},
)
"""Of savers that live for a moment."""


def activity(function: Activity) -> Activity:
    ACTIVITIES.append(function)
    return function


def at(thread: str, **more: Any) -> Any:
    return {"configurable": {"thread_id": thread, **more}}


def _durability(lane: Any) -> str:
    return lane.chance.choice(("sync", "async", "exit"))  # type: ignore[no-any-return]


@activity
def runs(lane: Any) -> None:
    for plan in ("answer", "tools", "below"):
        lane.invoke(lane.graph, turn(plan), at(lane.thread), durability=_durability(lane))


@activity
def fails(lane: Any) -> None:
    lane.invoke(lane.graph, turn("fail"), at(lane.thread), durability=_durability(lane))


@activity
def asks_and_resumes(lane: Any) -> None:
    config = at(lane.thread)
    lane.invoke(lane.graph, turn("ask"), config, durability=_durability(lane))
    lane.invoke(lane.graph, Command(resume="an answer"), config)


@activity
def forks(lane: Any) -> None:
    config = at(lane.thread)
    old = lane.get_state_history(lane.graph, config, take=6)
    if old:
        forked = lane.update_state(lane.graph, old[-1].config, turn("answer"), as_node="last")
        lane.invoke(lane.graph, turn("answer"), forked)


@activity
def leaves_a_stream(lane: Any) -> None:
    """Closed by whoever leaves it."""
    for plan in ("tools", "below"):
        lane.stream(lane.graph, turn(plan), at(lane.thread), take=1, subgraphs=True, durability=_durability(lane))


@activity
def drops_a_stream(lane: Any) -> None:
    """Left to the garbage collector, or to the event loop."""
    config = at(lane.thread)
    if lane.runner is None:
        next(lane.graph.stream(turn("answer"), config))
        return

    async def first() -> None:
        await anext(lane.graph.astream(turn("answer"), config))

    lane.runner.run(first())


@activity
def is_cancelled(lane: Any) -> None:
    if lane.runner is None:
        return

    async def cancelled() -> None:
        task = asyncio.create_task(lane.graph.ainvoke(turn("tools"), at(lane.thread)))
        await asyncio.sleep(lane.chance.uniform(0, 0.02))
        task.cancel()
        with suppress(asyncio.CancelledError, StateConflict):
            await task

    lane.runner.run(cancelled())


@activity
def several_at_once(lane: Any) -> None:
    if lane.runner is None:
        return

    async def together() -> None:
        threads = lane.chance.sample(lane.threads, min(4, len(lane.threads)))
        runs = [lane.graph.ainvoke(turn("answer"), at(thread)) for thread in threads]
        for found in await asyncio.gather(*runs, return_exceptions=True):
            if isinstance(found, BaseException) and not isinstance(found, StateConflict):
                raise found

    lane.runner.run(together())


@activity
def is_overtaken(lane: Any) -> None:
    """A conflict on purpose: two updates that count on one state."""
    config = at(lane.thread)
    snapshot = lane.get_state(lane.graph, config)
    for _ in range(2):
        lane.update_state(lane.graph, expect(snapshot), turn("answer"), as_node="last")


@activity
def tries_again(lane: Any) -> None:
    config = at(lane.thread)
    lane.on(langgraph_ledger, "modify", lane.graph, config, lambda snapshot: turn("answer"), as_node="last")
    lane.on(langgraph_ledger, "retry_on_conflict", lane.graph, turn("answer"), config)


@activity
def reads(lane: Any) -> None:
    thread = lane.thread
    lane.get_state(lane.graph, at(thread), subgraphs=True)
    for method in ("history", "rejected_writes", "recover", "stats", "verify"):
        lane.call(method, thread)
    lane.call("sessions", limit=50)
    lane.list(at(thread), limit=10)


@activity
def copies(lane: Any) -> None:
    target = f"copy {uuid4().hex}"
    if lane.get_tuple(at(thread := lane.thread)) is not None:
        lane.call("copy_thread", thread, target)
        lane.invoke(lane.graph, turn("answer"), at(target))
        lane.call("delete_thread", target)


@activity
def prunes(lane: Any) -> None:
    lane.call("prune", list(islice(lane.threads, 10)), keep_last=3)
    lane.call("prune", [lane.thread], dry_run=True)
    lane.call("set_ttl", lane.thread, timedelta(days=1))
    lane.call("sweep")


@activity
def deletes(lane: Any) -> None:
    lane.call("delete_thread", lane.thread)


@activity
def opens_a_saver(lane: Any) -> None:
    """Uses it, and closes it."""
    other = Flavoured(LedgerSaver(lane.url, **lane.chance.choice(OPTIONS)), lane.runner)
    try:
        other.invoke(agent(other.saver), turn(lane.chance.choice(PLANS[:2])), at(lane.thread))
    finally:
        other.close()
