"""Which driver a saver gets: from a path, a URL, or a connection or pool that the caller already has."""

from __future__ import annotations

import os
import re
import sqlite3
from typing import Any

from langgraph_ledger.drivers.sqlite import AioSqliteDriver, GivenSqliteDriver, SqliteDriver
from langgraph_ledger.drivers.transact import Driver
from langgraph_ledger.errors import InvalidInput

_URL = re.compile(r"^([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_CONNINFO = re.compile(r"^\s*(host|hostaddr|port|dbname|user|password|service|passfile|sslmode)\s*=", re.IGNORECASE)
_SQLITE_ONLY = ("synchronous", "busy_timeout")
_POSTGRES_ONLY = (
    "schema", "partitions", "min_size", "max_size", "timeout", "answer_timeout", "max_idle", "max_lifetime",
    "connection_kwargs",
)  # fmt: skip


def open_driver(target: Any, *, read_only: bool, **options: Any) -> tuple[Driver, str]:
    """The driver for `target` and a name for messages (never with a password). Opens nothing yet."""
    given = {name: value for name, value in options.items() if value is not None}
    if isinstance(target, (str, os.PathLike)):
        text = os.fspath(target)
        if not isinstance(text, str) or not text or "\0" in text:
            raise InvalidInput(f"{target!r} is neither a SQLite path nor a Postgres URL")
        return _from_text(text, read_only, given)
    if isinstance(target, sqlite3.Connection):
        _refuse(given, (*_SQLITE_ONLY, *_POSTGRES_ONLY), "a sqlite3.Connection of yours")
        return GivenSqliteDriver(target, read_only=read_only), "your sqlite3.Connection"
    origins = {c.__module__.partition(".")[0] for c in type(target).__mro__}
    if "aiosqlite" in origins:
        _refuse(given, (*_SQLITE_ONLY, *_POSTGRES_ONLY), "an aiosqlite.Connection of yours")
        return AioSqliteDriver(target, read_only=read_only), "your aiosqlite.Connection"
    if origins & {"psycopg", "psycopg_pool"}:
        return _from_psycopg(target, read_only, given)
    raise InvalidInput(
        f"cannot keep a ledger in {type(target).__name__!r}: expected a SQLite path, a Postgres URL, a psycopg"
        " connection or pool, a sqlite3.Connection or an aiosqlite.Connection"
    )


def is_postgres(text: str) -> bool:
    """Whether it is a Postgres URL, or a connection string of libpq's, and not a SQLite file."""
    scheme = _URL.match(text)
    return bool((scheme and scheme[1].lower() in ("postgresql", "postgres")) or _CONNINFO.match(text))


def sqlite_path(text: str) -> str:
    """The file that a SQLite path or URL names."""
    scheme = _URL.match(text)
    if scheme is None:
        return text
    if scheme[1].lower() != "sqlite":
        raise InvalidInput(
            f"{scheme[1]}:// is no database that a ledger can be kept in: use a SQLite path or postgresql://"
        )
    return text[len("sqlite://") :].removeprefix("/") or ":memory:"


def _from_text(text: str, read_only: bool, given: dict[str, Any]) -> tuple[Driver, str]:
    if is_postgres(text):
        _refuse(given, _SQLITE_ONLY, "a Postgres URL")
        from langgraph_ledger.drivers.postgres import PostgresDriver

        return PostgresDriver(text, read_only=read_only, **given), _without_password(text)
    text = sqlite_path(text)
    _refuse(given, _POSTGRES_ONLY, "a SQLite path")
    return SqliteDriver(text, read_only=read_only, **given), repr(text)


def _from_psycopg(target: Any, read_only: bool, given: dict[str, Any]) -> tuple[Driver, str]:
    import psycopg
    from psycopg_pool import AsyncConnectionPool, ConnectionPool

    from langgraph_ledger.drivers.postgres import PostgresDriver

    if not isinstance(target, (psycopg.Connection, psycopg.AsyncConnection, ConnectionPool, AsyncConnectionPool)):
        raise InvalidInput(f"a psycopg {type(target).__name__} is neither a connection nor a pool")
    of_tables = {name: given.pop(name, None) for name in ("schema", "partitions")}
    _refuse(given, (*_SQLITE_ONLY, *_POSTGRES_ONLY), "a psycopg object of yours")
    return PostgresDriver(given=target, read_only=read_only, **of_tables), f"your {type(target).__name__}"


def _refuse(given: dict[str, Any], names: tuple[str, ...], target: str) -> None:
    for name in names:
        if name in given:
            raise InvalidInput(f"{name}= has no meaning for {target}")


def _without_password(text: str) -> str:
    hidden = re.sub(r"(://[^:/@]*):.*@", r"\1:***@", text)
    return repr(re.sub(r"(password\s*=\s*)('[^']*'|\S+)", r"\1***", hidden, flags=re.IGNORECASE))
