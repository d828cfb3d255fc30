"""What a process holds at one moment: memory, descriptors, threads, tasks, objects, and what savers remember."""

import asyncio
import gc
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from langgraph_ledger import LedgerSaver, flushing, images, invocations, ledger, runs, tool_log
from langgraph_ledger.drivers import sqlite

DESCRIPTORS = Path("/proc/self/fd")
POOLS = ("ledger-sqlite", "asyncio_")
"""How the names of threads begin that a saver's pool has, or an event loop's."""
CONNECTIONS = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND application_name = 'langgraph_ledger' AND pid <> pg_backend_pid()"
)


@dataclass(frozen=True)
class Sample:
    """What was there, after so many seconds and so many activities."""

    seconds: float
    activities: int
    memory: int
    """Resident bytes."""
    descriptors: int
    """Without those of connections."""
    threads: int
    """Without those of pools."""
    tasks: int
    pooled: int
    """Threads of pools, which grow as far as their limit when more is at once under way than ever before."""
    connections: int
    """Of the savers' pools, as the Postgres server counts them; with SQLite none."""
    objects: int
    """All that the garbage collector knows."""
    ledger_objects: int
    """Those of this package's classes."""
    remembered: int
    """Checkpoints, runs and calls that savers and modules remember."""
    stored: int
    """Bytes of the database."""


def take(
    seconds: float, activities: int, savers: Sequence[LedgerSaver], loops: Iterable[Any], stored: int, url: str
) -> Sample:
    """A sample. Nobody may be at work."""
    gc.collect()
    gc.collect()  # what a finalizer let go of
    objects = gc.get_objects()
    connected = connections(url) if url.startswith("postgres") else 0
    pooled = sum(thread.name.startswith(POOLS) for thread in threading.enumerate())
    return Sample(
        seconds=round(seconds, 1),
        activities=activities,
        memory=resident(),
        descriptors=descriptors() - connected,
        threads=threading.active_count() - pooled,
        tasks=sum(len(asyncio.all_tasks(loop)) for loop in loops),
        pooled=pooled,
        connections=connected,
        objects=len(objects),
        ledger_objects=sum(is_ours(type(one)) for one in objects),
        remembered=sum(remembered(savers).values()),
        stored=stored,
    )


def is_ours(kind: type) -> bool:
    """Whether a class belongs to the package."""
    return str(kind.__module__).partition(".")[0] == "langgraph_ledger"


def ledger_objects() -> Counter[str]:
    """How many objects of each of the package's classes there are."""
    gc.collect()
    gc.collect()
    return Counter(type(one).__qualname__ for one in gc.get_objects() if is_ours(type(one)))


def resident() -> int:
    """Bytes of memory that the process occupies, as Linux says."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors() -> int:
    """How many file descriptors are open."""
    return len(list(DESCRIPTORS.iterdir())) - 1  # less the one that looks


def connections(url: str) -> int:
    """How many connections the server has of this package's savers."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(CONNECTIONS).fetchone()
        return row[0] if row else 0


def remembered(savers: Iterable[LedgerSaver]) -> Counter[str]:
    """How much is remembered: by each of these savers, and by modules for all savers of the process."""
    found = Counter[str]()
    for saver in savers:
        own: Any = saver._ledger
        found += Counter(
            checkpoints=len(own._known),
            makers=len(own.runs._makers),
            invocations=len(own.runs._live),
            open_runs=len(own._open),
            late=len(own.late),
            waiting=len(own.queue.entries),
        )
    found += Counter(
        under_way=sum(len(calls) for calls in invocations._under_way.values()),
        tool_calls=len(tool_log._calls._found),
        queues=len(flushing._queues),
        waiting_queues=len(flushing._waiting),
        flushes=len(flushing._tasks),
        files=len(sqlite._drivers),
        carried=len(sqlite._never_closed),
    )
    return found


def remember_less(number: int) -> None:
    """Lowers the bounds of what savers remember, for all that are made from now on, so that they are soon reached."""
    for module in (runs, ledger, invocations, tool_log):
        module.REMEMBERED = number  # type: ignore[attr-defined]
    ledger.REMEMBERED_IDS = 50 * number
    images.IMAGE_BYTES = 4800 * number


def is_supported() -> bool:
    """Whether this system says what a process holds."""
    return sys.platform == "linux"
