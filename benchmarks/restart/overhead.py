"""What a saver, its log and its guard cost where nothing is killed: the same tickets, and tools that take a while."""

import gc
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

from langgraph.types import Command

from benchmarks.harness import rounded, thread
from benchmarks.restart.agent import answer, build, question
from benchmarks.restart.desk import Desk
from benchmarks.restart.ways import Way, stored

WARM = 2
"""Tickets that are not measured: the first one loads and connects."""


def overhead(
    ways: Sequence[Way], folder: Path, server: str, tickets: int, pause: float, thinks: float, durability: str
) -> dict[str, dict[str, float]]:
    """Milliseconds for a ticket of each saver, and how much longer than InMemorySaver it takes: the median over the
    tickets, each compared with the same ticket there. The savers take turns, in a new order for each ticket."""
    shuffle = Random(3)
    seconds: dict[str, list[float]] = {way.key: [] for way in ways}
    with ExitStack() as stack:
        graphs = {way.key: _graph(stack, way, folder, server, pause, thinks) for way in ways}
        stack.callback(gc.unfreeze)
        gc.collect()
        gc.freeze()
        order = list(graphs)
        for ticket in range(1, tickets + WARM + 1):
            shuffle.shuffle(order)
            for key in order:
                took = _handle(graphs[key], ticket, durability)
                if ticket > WARM:
                    seconds[key].append(took)
    memory = seconds["memory"]
    return {
        key: {
            "ms": rounded(1e3 * statistics.median(samples)),
            "overhead": round(statistics.median(s / m for s, m in zip(samples, memory, strict=True)) - 1, 4),
        }
        for key, samples in seconds.items()
    }


def _graph(stack: ExitStack, way: Way, folder: Path, server: str, pause: float, thinks: float) -> Any:
    store = stack.enter_context(stored(way, folder, server))
    path = folder / f"desk-{way.key}-{time.monotonic_ns()}.db"
    desk = Desk(path, pause=pause)
    stack.callback(path.unlink)
    stack.callback(desk.close)
    desk.open(0)
    return build(stack.enter_context(way.open(store.address)), desk, way.guard(), thinks=thinks)


def _handle(graph: Any, ticket: int, durability: str) -> float:
    """One ticket, from the question to the answer. The person says yes at once."""
    config = thread(str(ticket))
    start = time.perf_counter()
    found = graph.invoke(question(ticket), config, durability=durability)
    if "__interrupt__" in found:
        found = graph.invoke(Command(resume=True), config, durability=durability)
    took = time.perf_counter() - start
    assert found["messages"][-1].content == answer(ticket)
    return took
