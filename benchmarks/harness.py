"""What every workload needs: open savers, clocks, and the sizes of what they store."""

import asyncio
import gc
import math
import random
import sqlite3
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.savers import POOL_SIZE, Contender

T = TypeVar("T")

Figure = float | str | dict[str, float] | list[Any]
Row = dict[str, Figure]
"""The figures of one saver, by name. Those whose name begins with "_" are drawn or listed, and in no table."""
Results = dict[str, Row]

TOTAL_SIZE = """
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
WHERE relkind IN ('r', 'm') AND nspname NOT IN ('pg_catalog', 'information_schema')
"""


@dataclass(frozen=True)
class Sizes:
    """How much of everything; the defaults are a full run."""

    chat_turns: int = 150
    chat_megabytes: float = 1.7
    operations_seed: int = 85
    operations: int = 30
    reads: int = 20
    lists: int = 3
    loop_steps: int = 1000
    loop_rounds: int = 2
    threads: int = 500
    threads_in_turn: int = 25
    thread_reads: int = 200
    clients: int = 16
    tasks: int = 64
    client_turns: int = 10
    client_rounds: int = 2
    cold_starts: int = 5
    sends: int = 100
    fan_outs: int = 10
    random_kilobytes: int = 200
    random_steps: int = 40
    delta_turns: int = 60
    growth_messages: tuple[int, ...] = (100, 1_000, 10_000)
    growth_warm: int = 128
    growth_appends: int = 32
    growth_checkpoints: tuple[int, ...] = (1_000, 10_000, 100_000)
    growth_probes: int = 100
    counted: int = 5


QUICK = Sizes(
    chat_turns=10,
    chat_megabytes=0.12,
    operations_seed=6,
    operations=6,
    reads=5,
    lists=1,
    loop_steps=25,
    loop_rounds=1,
    threads=10,
    threads_in_turn=5,
    thread_reads=10,
    clients=4,
    tasks=8,
    client_turns=2,
    client_rounds=1,
    cold_starts=1,
    sends=10,
    fan_outs=2,
    random_steps=5,
    delta_turns=8,
    growth_messages=(100, 1_000),
    growth_warm=8,
    growth_appends=8,
    growth_checkpoints=(100, 1_000),
    growth_probes=10,
    counted=2,
)


@dataclass
class Bench:
    """One run of the benchmark: what is compared, how much, and where things are kept meanwhile."""

    contenders: list[Contender]
    sizes: Sizes
    folder: Path
    server: str
    """URL of a Postgres server in which databases may be created; empty if no saver needs one."""
    admin: Any
    """A connection to it that is not measured; None without a server."""
    runner: asyncio.Runner
    shuffle: random.Random = field(default_factory=lambda: random.Random(3))

    @contextmanager
    def opened(self, *, skip: Sequence[str] = (), only: str = "") -> Iterator[list["Subject"]]:
        """The savers, each on an empty store of its own, which is gone afterwards."""
        chosen = [c for c in self.contenders if c.store not in skip and c.key.startswith(only)]
        subjects: list[Subject] = []
        try:
            subjects.extend(Subject(self, contender) for contender in chosen)
            gc.collect()
            gc.freeze()  # what is loaded by now, so that a full collection costs every saver little
            yield subjects
        finally:
            gc.unfreeze()
            for subject in subjects:
                subject.close()

    def reads(self, subjects: list["Subject"]) -> Iterator[tuple[str, int, "Subject"]]:
        """Turns to read in, and a prefix for the name: "warm " until every connection of a pool has been used."""
        for i, subject in self.turns(subjects, POOL_SIZE + self.sizes.reads):
            yield "" if i >= POOL_SIZE else "warm ", i, subject

    def turns(self, subjects: list["Subject"], rounds: int) -> Iterator[tuple[int, "Subject"]]:
        """Each saver once a round, in a new order each time, so that the machine's moods fall on all of them."""
        order = list(subjects)
        for i in range(rounds):
            self.shuffle.shuffle(order)
            for subject in order:
                yield i, subject


class Subject:
    """An open saver on a store of its own, and the seconds that using it has taken, by name."""

    def __init__(self, bench: Bench, contender: Contender) -> None:
        self.bench, self.contender = bench, contender
        self.key, self.is_async, self.store = contender.key, contender.is_async, contender.store
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.notes: dict[str, Any] = {}
        """What a workload wants to remember of this saver between its turns."""
        self.address = ""
        if self.store == "sqlite":
            self.path = bench.folder / f"{self.key}-{time.monotonic_ns()}" / "store.db"
            self.path.parent.mkdir()
            self.address = str(self.path)
        elif self.store == "postgres":
            from tests.postgres_server import create_database

            self.address = create_database(bench.server)
        self.open()

    def open(self) -> None:
        self.stack = AsyncExitStack()
        manager = self.contender.open(self.address)
        if self.is_async:
            self.saver = self.wait(self.stack.enter_async_context(manager))
        else:
            self.saver = self.stack.enter_context(manager)
        if self.store != "memory":
            setup = self.saver.setup()
            if self.is_async:
                self.wait(setup)

    def close(self) -> None:
        self.wait(self.stack.aclose())
        if self.store == "sqlite":
            for path in self.path.parent.iterdir():
                path.unlink()
        elif self.store == "postgres":
            from tests.postgres_server import drop_database

            drop_database(self.bench.server, self.address)

    def wait(self, awaitable: Any) -> Any:
        async def settled() -> Any:
            return await awaitable

        return self.bench.runner.run(settled())

    def call(self, name: str, target: Any, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the saver or of a graph in the saver's flavour; the time it takes is kept under `name`."""

        async def awaited() -> tuple[float, Any]:
            start = time.perf_counter()
            result = getattr(target, f"a{method}")(*args, **kwargs)
            result = [item async for item in result] if hasattr(result, "__aiter__") else await result
            return time.perf_counter() - start, result

        if self.is_async:
            seconds, result = self.bench.runner.run(awaited())
        else:
            start = time.perf_counter()
            result = getattr(target, method)(*args, **kwargs)
            result = list(result) if method == "list" else result
            seconds = time.perf_counter() - start
        self.seconds[name].append(seconds)
        return result

    def written(self) -> int:
        """Bytes written so far: what went through write() for a file, write-ahead log for Postgres."""
        if self.store == "sqlite":
            return int(Path("/proc/self/io").read_text().split()[3])
        if self.store == "postgres":
            return int(ask(self.bench.admin, "SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint"))
        return 0

    def settle(self, *, checkpoint: bool = False) -> None:
        """What the database does by itself sooner or later: SQLite empties its log into the file, Postgres takes
        statistics of its tables, and if asked to writes all pages out."""
        if self.store == "sqlite":
            with closing(sqlite3.connect(self.address)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        elif self.store == "postgres":
            import psycopg

            with psycopg.connect(self.address, autocommit=True) as pg:
                pg.execute("ANALYZE")
                if checkpoint:
                    pg.execute("CHECKPOINT")

    def stored(self) -> int:
        """Bytes stored: the database file, or all tables with their indexes and what they keep out of line."""
        if self.store == "sqlite":
            self.settle()
            return sum(path.stat().st_size for path in self.path.parent.iterdir())
        if self.store == "postgres":
            import psycopg

            with psycopg.connect(self.address, autocommit=True) as connection:
                return int(ask(connection, TOTAL_SIZE))
        return 0

    def milliseconds(self, name: str) -> dict[str, float]:
        return summary([s * 1e3 for s in self.seconds[name]])


def ask(connection: Any, query: str) -> Any:
    """The one value that a query has on Postgres."""
    return connection.execute(query.encode()).fetchone()[0]


def summary(samples: Sequence[float]) -> dict[str, float]:
    """The median of samples, their number, and the 99th percentile if there are enough of them to speak of one."""
    ordered = sorted(samples)
    found = {"median": rounded(statistics.median(ordered)), "n": len(ordered)}
    if len(ordered) >= 5:
        found["p99"] = rounded(ordered[math.ceil(0.99 * len(ordered)) - 1])
    return found


def rounded(number: float) -> float:
    return float(f"{number:.4g}")


def thread(name: str, checkpoint_id: str | None = None, **config: Any) -> Any:
    """The config of a thread."""
    key = {"checkpoint_id": checkpoint_id} if checkpoint_id else {}
    return {"configurable": {"thread_id": name, "checkpoint_ns": "", **key}, **config}
