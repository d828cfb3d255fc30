"""The savers that are compared, and how each is opened on an empty store.

Imports happen when a saver is opened, so that a cold start can tell them from the rest. Durability is the same for all:
on SQLite a write-ahead log with synchronous=FULL, on Postgres the server's fsync and synchronous_commit.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

POOL_SIZE = 8

Store = Literal["memory", "sqlite", "postgres"]


@dataclass(frozen=True)
class Contender:
    """A saver: what it is called, where it stores, and the saver of the same database that it is compared with."""

    key: str
    title: str
    store: Store
    is_async: bool
    modules: tuple[str, ...]
    """What has to be imported before it can be opened."""
    open: Callable[[str], Any]
    """Gives a context manager (an asynchronous one for asynchronous savers) of the saver on a path or URL."""
    peer: str | None = None


def _memory(_: str) -> Any:
    return import_module("langgraph.checkpoint.memory").InMemorySaver()


def _sqlite(path: str) -> Any:
    return import_module("langgraph.checkpoint.sqlite").SqliteSaver.from_conn_string(path)


def _aiosqlite(path: str) -> Any:
    return import_module("langgraph.checkpoint.sqlite.aio").AsyncSqliteSaver.from_conn_string(path)


def _pool_options() -> dict[str, Any]:
    """A pool as the official savers want it."""
    rows = import_module("psycopg.rows").dict_row
    settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": rows}
    return {"min_size": POOL_SIZE, "max_size": POOL_SIZE, "kwargs": settings}


@contextmanager
def _postgres(url: str) -> Iterator[Any]:
    with import_module("psycopg_pool").ConnectionPool(url, **_pool_options()) as pool:
        yield import_module("langgraph.checkpoint.postgres").PostgresSaver(pool)


@asynccontextmanager
async def _apostgres(url: str) -> AsyncIterator[Any]:
    async with import_module("psycopg_pool").AsyncConnectionPool(url, open=False, **_pool_options()) as pool:
        yield import_module("langgraph.checkpoint.postgres.aio").AsyncPostgresSaver(pool)


def _ledger_sqlite(path: str) -> Any:
    return import_module("langgraph_ledger").LedgerSaver(path, synchronous="FULL")


def _ledger_postgres(url: str) -> Any:
    return import_module("langgraph_ledger").LedgerSaver(url, min_size=POOL_SIZE, max_size=POOL_SIZE)


_LEDGER_SQLITE = ("langgraph_ledger", "langgraph_ledger.drivers.sqlite")
_LEDGER_POSTGRES = ("langgraph_ledger", "langgraph_ledger.drivers.postgres")

CONTENDERS = {
    contender.key: contender
    for contender in (
        Contender("memory", "InMemorySaver", "memory", False, ("langgraph.checkpoint.memory",), _memory),
        Contender("sqlite", "SqliteSaver", "sqlite", False, ("langgraph.checkpoint.sqlite",), _sqlite),
        Contender("aiosqlite", "AsyncSqliteSaver", "sqlite", True, ("langgraph.checkpoint.sqlite.aio",), _aiosqlite),
        Contender(
            "postgres", "PostgresSaver", "postgres", False, ("langgraph.checkpoint.postgres", "psycopg_pool"), _postgres
        ),
        Contender(
            "apostgres",
            "AsyncPostgresSaver",
            "postgres",
            True,
            ("langgraph.checkpoint.postgres.aio", "psycopg_pool"),
            _apostgres,
        ),
        Contender(
            "ledger-sqlite", "LedgerSaver, SQLite", "sqlite", False, _LEDGER_SQLITE, _ledger_sqlite, peer="sqlite"
        ),
        Contender(
            "ledger-aiosqlite",
            "LedgerSaver, SQLite, async",
            "sqlite",
            True,
            _LEDGER_SQLITE,
            _ledger_sqlite,
            peer="aiosqlite",
        ),
        Contender(
            "ledger-postgres",
            "LedgerSaver, Postgres",
            "postgres",
            False,
            _LEDGER_POSTGRES,
            _ledger_postgres,
            peer="postgres",
        ),
        Contender(
            "ledger-apostgres",
            "LedgerSaver, Postgres, async",
            "postgres",
            True,
            _LEDGER_POSTGRES,
            _ledger_postgres,
            peer="apostgres",
        ),
    )
}
