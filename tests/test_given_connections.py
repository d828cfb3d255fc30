"""Connections and pools that the caller already has: accepted whatever their settings, or refused with the reason."""

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any

import aiosqlite
import psycopg
import pytest
from psycopg.rows import dict_row, tuple_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from langgraph_ledger import LedgerError, LedgerSaver
from tests.crash_scenarios import graph_of
from tests.direct import at

SETTINGS = [
    pytest.param({"autocommit": autocommit, "row_factory": factory}, id=f"autocommit={autocommit}, {factory.__name__}")
    for autocommit in (True, False)
    for factory in (tuple_row, dict_row)
]
settings = pytest.mark.parametrize("settings", SETTINGS)


def work(saver: LedgerSaver) -> None:
    """What a program does: runs, a look at the state, at the history, and at the log."""
    graph = graph_of(saver, lambda name: None)
    assert graph.invoke({"items": ["1"]}, at("thread"))["items"] == ["1", "a", "b"]
    assert graph.invoke({"items": ["2"]}, at("thread"))["items"] == ["1", "a", "b", "2", "a", "b"]
    assert len(list(graph.get_state_history(at("thread")))) == 8
    assert len(saver.history("thread")) == 8
    assert {session.status for session in saver.sessions()} == {"completed"}


async def awork(saver: LedgerSaver) -> None:
    graph = graph_of(saver, lambda name: None)
    assert (await graph.ainvoke({"items": ["1"]}, at("athread")))["items"] == ["1", "a", "b"]
    assert (await graph.ainvoke({"items": ["2"]}, at("athread")))["items"] == ["1", "a", "b", "2", "a", "b"]
    assert len([state async for state in graph.aget_state_history(at("athread"))]) == 8


@pytest.fixture
def url(fresh_postgres_url: Callable[[], str]) -> str:
    return fresh_postgres_url()


def stored(place: str) -> set[str]:
    """The threads that another connection sees."""
    with LedgerSaver(place) as saver:
        return {session.session_id for session in saver.sessions()}


# sqlite3

LEVELS: list[dict[str, Any]] = [
    {"isolation_level": level} for level in (None, "", "DEFERRED", "IMMEDIATE", "EXCLUSIVE")
]
if sys.version_info >= (3, 12):
    LEVELS.append({"autocommit": True})


@pytest.mark.parametrize("level", LEVELS, ids=str)
@pytest.mark.parametrize("factory", [None, sqlite3.Row], ids=["tuples", "Row"])
def test_sqlite3(sqlite_path: str, level: dict[str, Any], factory: Any) -> None:
    with closing(sqlite3.connect(sqlite_path, check_same_thread=False, **level)) as connection:
        connection.row_factory = factory
        with LedgerSaver(connection) as saver:
            work(saver)
            asyncio.run(awork(saver))
        assert not connection.in_transaction
        assert connection.row_factory is factory
        assert len(connection.execute("SELECT * FROM sessions").fetchall()) == 2  # it is still the caller's to close
    assert stored(sqlite_path) == {"thread", "athread"}


def test_sqlite3_in_memory() -> None:
    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as connection:
        saver = LedgerSaver(connection)
        work(saver)
        asyncio.run(awork(saver))


def refused(*words: str) -> Any:
    return pytest.raises(LedgerError, match=".*".join(words))


def test_sqlite3_refusals(sqlite_path: str) -> None:
    with closing(sqlite3.connect(sqlite_path)) as connection, refused("thread", "check_same_thread=False"):
        LedgerSaver(connection)
    with closing(sqlite3.connect(sqlite_path, check_same_thread=False)) as connection:
        connection.text_factory = bytes
        with refused("text_factory"):
            LedgerSaver(connection)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has no autocommit= yet")
def test_sqlite3_that_is_always_in_a_transaction(sqlite_path: str) -> None:
    options: dict[str, Any] = {"check_same_thread": False, "autocommit": False}
    with (
        closing(sqlite3.connect(sqlite_path, **options)) as connection,
        refused("autocommit=False", "isolation_level=None"),
    ):
        LedgerSaver(connection)


def test_sqlite3_inside_a_transaction(sqlite_path: str) -> None:
    """What the caller has begun is neither committed nor lost."""
    with closing(sqlite3.connect(sqlite_path, check_same_thread=False)) as connection:
        saver = LedgerSaver(connection)
        work(saver)
        connection.execute("CREATE TABLE mine (n)")
        connection.execute("INSERT INTO mine VALUES (1)")
        with refused("transaction", "Commit or roll"):
            saver.sessions()
        with refused("transaction", "Commit or roll"):
            saver.delete_thread("thread")
        assert connection.in_transaction
        connection.commit()
        assert connection.execute("SELECT n FROM mine").fetchall() == [(1,)]
        assert len(saver.sessions()) == 1


def test_sqlite3_that_was_closed(sqlite_path: str) -> None:
    connection = sqlite3.connect(sqlite_path, check_same_thread=False)
    saver = LedgerSaver(connection)
    connection.close()
    with refused("closed"):
        saver.sessions()


# aiosqlite


@pytest.mark.parametrize("level", [None, "", "IMMEDIATE"])
@pytest.mark.parametrize("factory", [None, sqlite3.Row], ids=["tuples", "Row"])
def test_aiosqlite(sqlite_path: str, level: Any, factory: Any) -> None:
    async def run() -> None:
        async with aiosqlite.connect(sqlite_path, isolation_level=level) as connection:
            connection.row_factory = factory
            async with LedgerSaver(connection) as saver:
                await awork(saver)
                work(saver)  # synchronous, on the running loop
                await asyncio.to_thread(saver.sessions)
            async with connection.execute("SELECT * FROM sessions") as cursor:
                assert len(list(await cursor.fetchall())) == 2

    asyncio.run(run())
    assert stored(sqlite_path) == {"thread", "athread"}


def test_aiosqlite_refusals(sqlite_path: str) -> None:
    async def run() -> None:
        not_open = aiosqlite.connect(sqlite_path)
        saver = LedgerSaver(not_open)
        with refused("not open"):
            await saver.asessions()
        async with not_open as connection:
            await awork(saver)
            await connection.execute("INSERT INTO ledger_secrets VALUES (1, x'')")
            with refused("transaction"):
                await saver.asessions()
            await connection.rollback()
            assert len(await saver.asessions()) == 1
        with refused("not open"):
            await saver.asessions()

    asyncio.run(run())


# psycopg


@settings
def test_psycopg(url: str, settings: dict[str, Any]) -> None:
    with psycopg.connect(url, **settings) as connection:
        with LedgerSaver(connection) as saver:
            work(saver)
            asyncio.run(awork(saver))
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        assert (connection.autocommit, connection.row_factory) == tuple(settings.values())
        assert stored(url) == {"thread", "athread"}


@settings
def test_psycopg_pool(url: str, settings: dict[str, Any]) -> None:
    with ConnectionPool(url, kwargs=settings, min_size=1, max_size=3) as pool:
        with LedgerSaver(pool) as saver:
            work(saver)
            asyncio.run(awork(saver))
        with pool.connection() as connection:
            assert connection.execute("SELECT 1").fetchone() in ((1,), {"?column?": 1})
    assert stored(url) == {"thread", "athread"}


@asynccontextmanager
async def async_connection(url: str, settings: dict[str, Any]) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url, **settings) as connection:
        yield connection


@asynccontextmanager
async def async_pool(url: str, settings: dict[str, Any]) -> AsyncIterator[Any]:
    async with AsyncConnectionPool(url, kwargs=settings, min_size=1, max_size=3, open=False) as pool:
        yield pool


@settings
@pytest.mark.parametrize("opened", [async_connection, async_pool])
def test_psycopg_async(url: str, settings: dict[str, Any], opened: Any) -> None:
    async def run() -> None:
        async with opened(url, settings) as given:
            async with LedgerSaver(given) as saver:
                await awork(saver)
                with refused("async methods", "URL"):
                    saver.sessions()
                with refused("async methods", "URL"):
                    await asyncio.to_thread(saver.get_tuple, at("athread"))
            assert not given.closed

    asyncio.run(run())
    assert stored(url) == {"athread"}


@contextmanager
def a_connection(url: str) -> Iterator[tuple[Any, Any]]:
    with psycopg.connect(url) as connection:
        yield connection, connection


@contextmanager
def a_pool(url: str) -> Iterator[tuple[Any, Any]]:
    with ConnectionPool(url, min_size=1, max_size=1) as pool:
        with pool.connection() as connection:
            pass
        yield pool, connection


@pytest.mark.parametrize("given", [a_connection, a_pool])
def test_psycopg_inside_a_transaction(url: str, given: Any) -> None:
    with given(url) as (target, connection):
        saver = LedgerSaver(target)
        work(saver)
        connection.execute("CREATE TABLE mine (n int)")
        with refused("transaction", "Commit or roll"):
            saver.sessions()
        if target is connection:  # a pool rolls back what comes back to it like this
            connection.commit()
            assert connection.execute("SELECT count(*) FROM mine").fetchone() == (0,)
            connection.commit()
        assert len(saver.sessions()) == 1


def test_psycopg_that_was_closed(url: str) -> None:
    with psycopg.connect(url) as connection:
        saver = LedgerSaver(connection)
    with refused("closed"):
        saver.sessions()
    with ConnectionPool(url, min_size=1) as pool:
        saver = LedgerSaver(pool)
    with refused("closed"):
        saver.sessions()


@pytest.mark.parametrize("target", [object(), 7, None, b"path"])
def test_what_is_no_database(target: Any) -> None:
    with refused("LangGraph|SQLite path|Postgres URL"):
        LedgerSaver(target)
