"""Counting what a saver asks of its database: statements, transactions that wrote, round trips.

Nothing of the savers is touched: SQLite says what each connection runs (`set_trace_callback`), libpq what goes over the
wire (`PQtrace`), and the Postgres server how many transaction ids it has given out.
"""

import ctypes
import os
import re
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.harness import Bench, Subject, ask

_WRITE = re.compile(
    r"\s*(?:INSERT|UPDATE|DELETE|REPLACE)\b|\s*WITH\b.*\b(?:INSERT|UPDATE|DELETE)\b", re.IGNORECASE | re.DOTALL
)
_NO_STATEMENT = re.compile(r"\s*(?:BEGIN|COMMIT|END|ROLLBACK|SAVEPOINT|RELEASE|PRAGMA|--)", re.IGNORECASE)
_BEGIN = re.compile(r"\s*BEGIN", re.IGNORECASE)
_COMMIT = re.compile(r"\s*(?:COMMIT|END)", re.IGNORECASE)
_ROLLBACK = re.compile(r"\s*ROLLBACK(?!\s+TO)", re.IGNORECASE)
_MESSAGE = re.compile(r"^([FB])\t\d+\t(\w+)(?:\t \"(\w+))?", re.MULTILINE)
_NO_TAGS = {"BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "SET"}


@dataclass
class Count:
    """What was asked while it was counted. `round_trips` is None where there is no wire."""

    statements: int = 0
    writes: int = 0
    """Transactions that wrote."""
    round_trips: int | None = None


class Counter:
    """Listens to the connections that are opened while it is active, with `counting`."""

    def __init__(self) -> None:
        self.logs: list[list[str]] = []
        self.wires: list[Path] = []

    @contextmanager
    def count(self, subject: Subject) -> Iterator[Count]:
        """Counts what happens inside, once that is over. Nothing else may be at work meanwhile."""
        count = Count()
        if subject.store == "sqlite":
            for log in self.logs:
                log.clear()
            yield count
            for log in self.logs:
                statements, writes = _in_log(log)
                count.statements += statements
                count.writes += writes
        elif subject.store == "postgres":
            ctypes.CDLL(None).fflush(None)  # what libpq has written to its streams
            starts, before = {path: path.stat().st_size for path in self.wires}, _transaction_ids(subject)
            yield count
            ctypes.CDLL(None).fflush(None)
            count.writes, count.round_trips = _transaction_ids(subject) - before, 0
            for path in self.wires:
                statements, trips = _on_wire(path.read_bytes()[starts.get(path, 0) :].decode("utf-8", "replace"))
                count.statements += statements
                count.round_trips += trips
        else:
            yield count


@contextmanager
def counting(bench: Bench) -> Iterator[Counter]:
    """A counter that hears of every connection opened inside."""
    with ExitStack() as stack:
        counter = Counter()
        connect = sqlite3.connect

        def connected(*args: Any, **kwargs: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = connect(*args, **kwargs)
            counter.logs.append([])
            connection.set_trace_callback(counter.logs[-1].append)
            return connection

        if bench.server:
            _listen_to_postgres(bench, counter, stack)
        stack.enter_context(patch.object(sqlite3, "connect", connected))
        yield counter


def _listen_to_postgres(bench: Bench, counter: Counter, stack: ExitStack) -> None:
    import psycopg
    from psycopg.pq import Trace

    def listen(connection: Any) -> Any:
        descriptor, path = tempfile.mkstemp(dir=bench.folder, prefix="wire-")
        stack.callback(os.close, descriptor)
        counter.wires.append(Path(path))
        connection.pgconn.trace(descriptor)
        connection.pgconn.set_trace_flags(Trace.SUPPRESS_TIMESTAMPS)
        return connection

    plain: Any = psycopg.Connection.__dict__["connect"].__func__
    awaited: Any = psycopg.AsyncConnection.__dict__["connect"].__func__

    def connected(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return listen(plain(cls, *args, **kwargs))

    async def aconnected(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return listen(await awaited(cls, *args, **kwargs))

    stack.enter_context(patch.object(psycopg.Connection, "connect", classmethod(connected)))
    stack.enter_context(patch.object(psycopg.AsyncConnection, "connect", classmethod(aconnected)))


def _transaction_ids(subject: Subject) -> int:
    """How many the Postgres server has given out; a transaction that only reads takes none."""
    return int(ask(subject.bench.admin, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"))


def _in_log(log: list[str]) -> tuple[int, int]:
    """Statements, and transactions that wrote, of one SQLite connection."""
    statements = writes = 0
    inside = wrote = False
    for text in log:
        if not _NO_STATEMENT.match(text):
            statements += 1
            if _WRITE.match(text):
                wrote = inside
                writes += not inside
        elif _BEGIN.match(text):
            inside = True
        elif _COMMIT.match(text) or _ROLLBACK.match(text):
            writes += wrote and bool(_COMMIT.match(text))
            inside = wrote = False
    return statements, writes


def _on_wire(text: str) -> tuple[int, int]:
    """Statements that were completed on one connection, and how often its client waited for the server."""
    statements = trips = 0
    asked = False
    for side, message, tag in _MESSAGE.findall(text):
        if side == "F":
            asked = asked or message in ("Sync", "Flush", "Query")
            continue
        trips += asked
        asked = False
        statements += message == "CommandComplete" and tag not in _NO_TAGS
    return statements, trips
