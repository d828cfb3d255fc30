"""One process at work, for a while, and what it says of it.

Started from a server that has this module loaded, so that a start costs no imports. All begin at once.
"""

import operator
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph

from benchmarks.graphs import loop
from benchmarks.harness import thread
from langgraph_ledger import LedgerSaver, StateConflict, retry_on_conflict

STEPS = 4
OWN = 20
"""Threads that a worker has for itself."""
PATIENCE = 10_000
"""Attempts of a turn that is to get through."""


@dataclass(frozen=True)
class Job:
    """What a worker is told: with which saver, where, whether on threads of its own or on so many shared ones, and
    whether a turn that was refused is made again."""

    saver: str
    url: str
    number: int
    seconds: float
    shared: int = 0
    retry: bool = False


@dataclass
class Done:
    """What a worker has done. `won` are the entries of turns that were acknowledged, on shared threads."""

    turns: int = 0
    attempts: int = 0
    refused: int = 0
    began: float = 0.0
    ended: float = 0.0
    connections: int = 0
    won: list[str] = field(default_factory=list)
    turn_ms: list[float] = field(default_factory=list)
    put_ms: list[float] = field(default_factory=list)


class Shared(TypedDict):
    entries: Annotated[list[str], operator.add]


def opened(saver: str, url: str) -> AbstractContextManager[Any]:
    """A saver with a small pool, as one of many processes should have it."""
    if saver == "postgres":
        return _official(url)
    partitions = 16 if saver == "ledger-partitions" else None
    return LedgerSaver(url, max_size=4, partitions=partitions)


class _official(AbstractContextManager[Any]):
    def __init__(self, url: str) -> None:
        from psycopg.rows import dict_row
        from psycopg_pool import ConnectionPool

        settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        self.pool = ConnectionPool(url, min_size=1, max_size=4, kwargs=settings, open=True)

    def __enter__(self) -> Any:
        from langgraph.checkpoint.postgres import PostgresSaver

        return PostgresSaver(self.pool)  # type: ignore[arg-type]

    def __exit__(self, *_: object) -> None:
        self.pool.close()


def shared_graph(saver: Any) -> Any:
    """One node, which adds what the turn is called to the thread."""
    builder = StateGraph(Shared).add_node("note", lambda state: {"entries": []}).add_edge(START, "note")
    return builder.compile(checkpointer=saver)


def work(job: Job, start: Any, pipe: Connection) -> None:
    """Works until time is up, and sends what it has done."""
    done = Done()
    with opened(job.saver, job.url) as saver:
        _time_puts(saver, done)
        turn = _on_shared(job, saver, done) if job.shared else _on_own(job, saver)
        saver.get_tuple(thread("nobody's"))
        if not job.shared:
            turn(-1)  # loads what is loaded late
        done.put_ms.clear()
        start.wait()
        done.began = time.monotonic()
        while time.monotonic() < done.began + job.seconds:
            before = time.perf_counter()
            turn(done.turns)
            done.turns += 1
            done.turn_ms.append((time.perf_counter() - before) * 1e3)
        done.ended = time.monotonic()
        pool = saver.conn if job.saver == "postgres" else saver._driver._pool
        done.connections = pool.get_stats()["pool_size"]
    pipe.send(asdict(done))
    pipe.close()


def _time_puts(saver: Any, done: Done) -> None:
    put = saver.put

    def timed(*args: Any, **kwargs: Any) -> Any:
        before = time.perf_counter()
        try:
            return put(*args, **kwargs)
        finally:
            done.put_ms.append((time.perf_counter() - before) * 1e3)

    saver.put = timed


def _on_own(job: Job, saver: Any) -> Callable[[int], None]:
    graph = loop(saver, False)

    def turn(number: int) -> None:
        start = {"n": 0, "until": STEPS, "facts": {}}
        graph.invoke(start, thread(f"{job.number} {number % OWN}"), durability="sync")

    return turn


def _on_shared(job: Job, saver: Any, done: Done) -> Callable[[int], None]:
    graph = Counted(shared_graph(saver), done)

    def turn(number: int) -> None:
        entry = f"{job.number} {number}"
        config = thread(f"shared {number % job.shared}")
        try:
            if job.retry:
                retry_on_conflict(graph, {"entries": [entry]}, config, attempts=PATIENCE)
            else:
                graph.invoke({"entries": [entry]}, config)
        except StateConflict:
            return
        done.won.append(entry)

    return turn


class Counted:
    """A graph whose runs are counted, and those of them that were refused."""

    def __init__(self, graph: Any, done: Done) -> None:
        self.graph, self.done, self.checkpointer = graph, done, graph.checkpointer

    def invoke(self, value: Any, config: Any) -> Any:
        self.done.attempts += 1
        try:
            return self.graph.invoke(value, config, durability="sync")
        except StateConflict:
            self.done.refused += 1
            raise
