"""What is compared: savers, LedgerSaver with and without its guard, each on a store of its own."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.restart.desk import LOOK_UPS
from benchmarks.savers import CONTENDERS, Contender


@dataclass(frozen=True)
class Way:
    """A saver, and whether a guard stands before the tools."""

    key: str
    saver: str
    guarded: bool = False

    @property
    def contender(self) -> Contender:
        return CONTENDERS[self.saver]

    @property
    def title(self) -> str:
        return self.contender.title + ", ReplayGuard" * self.guarded

    @property
    def is_ledger(self) -> bool:
        return self.saver.startswith("ledger")

    def open(self, address: str) -> AbstractContextManager[Any]:
        return self.contender.open(address)  # type: ignore[no-any-return]

    def guard(self) -> Any:
        """What looks something up may run again; about everything else nothing is assumed."""
        if not self.guarded:
            return None
        from langgraph_ledger import ReplayGuard

        return ReplayGuard("fail", tools=dict.fromkeys(LOOK_UPS, "retry"))


WAYS = {
    way.key: way
    for way in (
        Way("memory", "memory"),
        Way("sqlite", "sqlite"),
        Way("postgres", "postgres"),
        Way("ledger-sqlite", "ledger-sqlite"),
        Way("ledger-postgres", "ledger-postgres"),
        Way("ledger-sqlite-guard", "ledger-sqlite", guarded=True),
        Way("ledger-postgres-guard", "ledger-postgres", guarded=True),
    )
}


@dataclass(frozen=True)
class Store:
    """Where a saver keeps its data: a path or URL."""

    way: Way
    address: str

    def settle(self) -> None:
        """Waits until the server has seen that the killed client is gone: until then its last statement may be under
        way, and what is true may still change."""
        if self.way.contender.store != "postgres":
            return
        import psycopg

        others = b"""
            SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"""
        with psycopg.connect(self.address, autocommit=True) as connection:
            for _ in range(1000):
                if connection.execute(others).fetchone() == (0,):
                    return
                time.sleep(0.01)
        raise RuntimeError("the connections of a process that was killed are still there")


@contextmanager
def stored(way: Way, folder: Path, server: str) -> Iterator[Store]:
    """An empty store with its tables, which is gone afterwards."""
    kind = way.contender.store
    address = ""
    if kind == "sqlite":
        address = str(folder / f"{way.key}-{time.monotonic_ns()}.db")
    elif kind == "postgres":
        from tests.postgres_server import create_database

        address = create_database(server)
    try:
        if kind != "memory":
            with way.open(address) as saver:
                saver.setup()
        yield Store(way, address)
    finally:
        if kind == "sqlite":
            for path in folder.glob(f"{Path(address).name}*"):
                path.unlink()
        elif kind == "postgres":
            from tests.postgres_server import drop_database

            drop_database(server, address)
