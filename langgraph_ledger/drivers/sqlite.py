"""SQLite: one writer connection and a few readers per file, WAL, and the caller's own connection if one is given.

Everything SQLite does is synchronous, so an async call runs the very same transaction in a worker thread: one
hop an operation, where a statement-wise async wrapper pays one for each statement. A caller's own
`aiosqlite.Connection` is used through its own thread for the same reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from langgraph_ledger import sql
from langgraph_ledger.chains import continued_in_sqlite
from langgraph_ledger.drivers.file_systems import warn_if_networked
from langgraph_ledger.drivers.shield import shielded
from langgraph_ledger.drivers.transact import BEGIN, COMMIT, ROLLBACK, Trace, pause, transact
from langgraph_ledger.errors import (
    DatabaseError,
    DatabaseUnavailable,
    Duplicate,
    InvalidInput,
    NotALedger,
    ReadOnlyLedger,
    ReuseRefused,
    SaverClosed,
)
from langgraph_ledger.statements import Access, Migration, Operation, Rows, Statement

if TYPE_CHECKING:
    import aiosqlite

T = TypeVar("T")

SYNCHRONOUS = ("OFF", "NORMAL", "FULL", "EXTRA")
MAX_IDLE_READERS = 8
MAX_THREADS = 32
"""Threads for asynchronous callers. What waits in them shares commits, so they are more than there are cores."""
FORK_SECONDS = 10.0
"""How long a fork waits for saves that are under way."""
MAX_GROUP = 64
"""Operations that share a commit."""
OLDEST = (3, 35, 0)
"""RETURNING, and MATERIALIZED."""


class SqliteDriver:
    """Runs operations on one database file, or on `:memory:`."""

    needs_loop = False
    partitions: int | None = None

    def __init__(
        self,
        path: str,
        *,
        synchronous: str = "FULL",
        busy_timeout: float = 30.0,
        read_only: bool = False,
        may_be_lost: bool = False,
    ) -> None:
        if sqlite3.sqlite_version_info < OLDEST:
            needed = ".".join(map(str, OLDEST))
            raise NotALedger(f"Python's sqlite3 uses SQLite {sqlite3.sqlite_version}; {needed} or newer is needed")
        if synchronous.upper() not in SYNCHRONOUS:
            raise InvalidInput(f"synchronous={synchronous!r}: expected one of {', '.join(SYNCHRONOUS)}")
        if busy_timeout < 0:
            raise InvalidInput(f"busy_timeout={busy_timeout!r}: expected seconds, zero or more")
        self._in_memory = path == ":memory:"
        # absolute: a program may change its folder, and opens connections at any time
        self.path, self.read_only = path if self._in_memory else os.path.abspath(path), read_only
        self.trace: Trace | None = None
        self._synchronous, self._busy_timeout = synchronous.upper(), busy_timeout
        self._dialect = sql.load("sqlite")
        self._may_be_lost = may_be_lost
        self._file: tuple[int, int] | None = None
        self._closed = self._carried = False
        self._side: SqliteDriver | None = None
        self._reset()
        _drivers.add(self)

    def _reset(self) -> None:
        """Starts without connections: at first, and in the child after a fork."""
        self._pid = os.getpid()
        self._gate = threading.Condition()
        self._in_use = 0
        self._write_lock = threading.Lock()
        self._queue: deque[Ticket] = deque()
        self._writer: sqlite3.Connection | None = None
        self._readers: list[sqlite3.Connection] = []
        self._executor: ThreadPoolExecutor | None = None

    @property
    def migrations(self) -> tuple[Migration, ...]:
        return self._dialect.migrations

    def run(self, operation: Operation[T]) -> T:
        self._check_open()
        if operation.side and not self._in_memory:
            return self._run_aside(replace(operation, side=False))
        if operation.access is Access.WRITE:
            return self._write(operation)
        with self._connection(operation) as connection:
            return run_on(connection, operation, self._dialect, self.trace)

    @property
    def side_path(self) -> str | None:
        """Where what is safe to lose is kept: a file that is never synced."""
        return None if self._in_memory else f"{self.path}-working"

    def _run_aside(self, operation: Operation[T]) -> T:
        if self._side is None:
            self._side = SqliteDriver(
                f"{self.path}-working",
                synchronous="OFF",
                busy_timeout=self._busy_timeout,
                read_only=self.read_only,
                may_be_lost=True,
            )
        self._side.trace = self.trace
        try:
            return self._side.run(operation)
        except NotALedger:  # never synced, it may be anything after a power cut: it begins anew
            self._side.close()
            self._side = None
            if not self.read_only:
                for ending in ("", "-wal", "-shm"):
                    Path(f"{self.path}-working{ending}").unlink(missing_ok=True)
            raise

    def _write(self, operation: Operation[T]) -> T:
        """Group commit: whoever gets the connection carries out what waits for it too, in one transaction."""
        ticket: Ticket = (operation, Future())
        self._queue.append(ticket)
        try:
            with self._connection(operation) as connection:
                while not ticket[1].done():
                    group = [self._queue.popleft() for _ in range(min(len(self._queue), MAX_GROUP))]
                    run_group(connection, group, self._dialect, self.trace)
        except BaseException:
            with contextlib.suppress(ValueError):  # nobody is to carry out later what its caller has given up
                self._queue.remove(ticket)
            raise
        return ticket[1].result()  # type: ignore[no-any-return]

    async def arun(self, operation: Operation[T]) -> T:
        self._check_open()
        if self._executor is None:
            self._executor = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="ledger-sqlite")
        return await shielded(asyncio.wrap_future(self._executor.submit(self.run, operation)))

    def _check_open(self) -> None:
        if self._closed:
            raise SaverClosed(f"the saver on {self.path!r} was closed; make a new LedgerSaver to go on")
        if self._pid != os.getpid() and self._in_memory:
            raise DatabaseUnavailable("a ':memory:' ledger does not follow a fork: use a file")
        if self._carried:
            raise DatabaseUnavailable(
                f"this process was forked while the saver on {self.path!r} was at work, and SQLite connections must not"
                " be carried over a fork: make the saver in the child, or fork when it is idle"
            )
        if self.read_only and self._in_memory:
            raise InvalidInput("a ':memory:' ledger cannot be read_only: there would be nothing to read")

    @contextlib.contextmanager
    def _connection(self, operation: Operation[Any]) -> Iterator[sqlite3.Connection]:
        if operation.access is not Access.READ and self.read_only:
            raise ReadOnlyLedger(f"{operation.name}: the saver on {self.path!r} was opened with read_only=True")
        self._check_in_place(operation.name)
        with self._gate:
            self._in_use += 1
        try:
            if operation.access is not Access.READ or self._in_memory:
                with self._write_lock:
                    if self._writer is None:
                        self._writer = self._open()
                    yield self._writer
                return
            try:
                reader = self._readers.pop()
            except IndexError:
                reader = self._open()
            try:
                yield reader
            finally:
                if len(self._readers) < MAX_IDLE_READERS and not self._closed:
                    self._readers.append(reader)
                else:
                    reader.close()
        finally:
            with self._gate:
                self._in_use -= 1
                self._gate.notify_all()

    def _check_in_place(self, doing: str) -> None:
        """SQLite goes on in a file that was deleted or replaced: all would seem well, and be lost. Takes 2 us."""
        if self._file is None or self._file == _identity(self.path):
            return
        raise DatabaseUnavailable(
            f"{doing}: {self.path!r} was deleted, or replaced by another file, while this saver had it open. Nothing is"
            " stored there any more: put the file back, or close the saver and make a new one"
        )

    def _before_fork(self) -> None:
        """Closes the connections when nobody uses them, and keeps everybody from opening new ones.

        SQLite forbids to carry a connection over a fork: the child would believe that it holds locks which only its
        parent has, and the parent might remove the log that the child still writes to.
        """
        if self._in_memory or self._pid != os.getpid():
            return
        self._gate.acquire()
        if self._gate.wait_for(lambda: self._in_use == 0, FORK_SECONDS):
            self._close_connections()

    def _after_fork(self, *, child: bool) -> None:
        if self._in_memory or (self._pid != os.getpid() and not child):
            return
        if not child:
            self._gate.release()
        elif self._pid != os.getpid():
            self._carried = self._writer is not None or bool(self._readers) or self._in_use > 0
            keep = (self._writer, self._readers)
            self._reset()
            if self._carried:
                _never_closed.append(keep)

    def _close_connections(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        while self._readers:
            self._readers.pop().close()

    def _open(self) -> sqlite3.Connection:
        try:
            connection = self._connect()
            try:
                self._configure(connection)
            except BaseException:
                connection.close()
                raise
        except sqlite3.Error as error:
            raise translate(error, "opening", repr(self.path)) from error
        if self._file is None and not self._in_memory and not self._may_be_lost:
            self._file = _identity(self.path)
            warn_if_networked(self.path)
        return connection

    def _connect(self) -> sqlite3.Connection:
        if self._in_memory:
            return self._open_file(":memory:", uri=False)
        if not self.read_only:
            return self._open_file(self.path, uri=False)
        if not Path(self.path).exists():
            raise DatabaseUnavailable(f"{self.path!r} does not exist, and read_only=True may not create it")
        return self._open_file(f"file:{quote(self.path)}?mode=ro", uri=True)

    def _open_file(self, name: str, *, uri: bool) -> sqlite3.Connection:
        return sqlite3.connect(
            name,
            timeout=self._busy_timeout,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
            uri=uri,
        )

    def _configure(self, connection: sqlite3.Connection) -> None:
        teach(connection)
        connection.execute(f"PRAGMA synchronous={self._synchronous}")
        if self.read_only or self._in_memory:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return
        # Switching to WAL takes an exclusive lock for which SQLite does not always call its busy handler.
        deadline = time.monotonic() + self._busy_timeout
        while True:
            try:
                connection.execute("PRAGMA journal_mode=WAL").fetchone()
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.005)

    def close(self) -> None:
        self._closed = True
        if self._side is not None:
            self._side.close()
        if self._pid != os.getpid():
            return
        if self._executor is not None:
            self._executor.shutdown(wait=True)
        with self._write_lock:
            self._close_connections()

    async def aclose(self) -> None:
        await asyncio.to_thread(self.close)


def teach(connection: sqlite3.Connection) -> None:
    """Gives a connection the function that SQLite lacks: how a chain of digests goes on."""
    connection.create_function("ledger_chain", 3, continued_in_sqlite, deterministic=True)


def _identity(path: str) -> tuple[int, int] | None:
    """Which file is at a path."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


_drivers: weakref.WeakSet[SqliteDriver] = weakref.WeakSet()
_never_closed: list[Any] = []
"""Connections of a parent process: closing them here could release what they guard there."""


def _before_fork() -> None:
    for driver in list(_drivers):
        driver._before_fork()


def _after_fork(*, child: bool) -> None:
    for driver in list(_drivers):
        driver._after_fork(child=child)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=partial(_after_fork, child=False),
        after_in_child=partial(_after_fork, child=True),
    )


class GivenSqliteDriver:
    """Runs operations on a `sqlite3.Connection` that belongs to the caller, one at a time."""

    needs_loop = False
    partitions: int | None = None

    def __init__(self, connection: sqlite3.Connection, *, read_only: bool = False):
        self.trace: Trace | None = None
        self.read_only = read_only
        self._connection, self._lock = connection, threading.RLock()
        self._dialect = sql.load("sqlite")
        self._closed = False
        _check_given(connection)
        teach(connection)

    @property
    def migrations(self) -> tuple[Migration, ...]:
        return self._dialect.migrations

    def run(self, operation: Operation[T]) -> T:
        if self._closed:
            raise SaverClosed("the saver on your sqlite3.Connection was closed; make a new LedgerSaver to go on")
        if operation.access is not Access.READ and self.read_only:
            raise ReadOnlyLedger(f"{operation.name}: the saver was made with read_only=True")
        with self._lock:
            _check_usable(self._connection)
            if self._connection.in_transaction:
                raise DatabaseError(
                    f"{operation.name}: your sqlite3.Connection is inside a transaction of its own. Commit or roll it"
                    " back first, or give the saver a path instead of a connection"
                )
            return run_on(self._connection, operation, self._dialect, self.trace)

    async def arun(self, operation: Operation[T]) -> T:
        loop = asyncio.get_running_loop()
        return await shielded(loop.run_in_executor(None, self.run, operation))

    def close(self) -> None:
        self._closed = True  # the connection is the caller's to close

    async def aclose(self) -> None:
        self.close()


class AioSqliteDriver:
    """Runs operations on an `aiosqlite.Connection` that belongs to the caller, each whole in its own thread."""

    needs_loop = False
    partitions: int | None = None

    def __init__(self, connection: aiosqlite.Connection, *, read_only: bool = False):
        self.trace: Trace | None = None
        self.read_only = read_only
        self._connection = connection
        self._taught: sqlite3.Connection | None = None
        self._dialect = sql.load("sqlite")
        self._closed = False

    @property
    def migrations(self) -> tuple[Migration, ...]:
        return self._dialect.migrations

    def run(self, operation: Operation[T]) -> T:
        # The connection's thread answers through a loop; one of our own in one of our own threads serves
        # synchronous callers wherever they are, on a running loop too.
        with ThreadPoolExecutor(1, thread_name_prefix="ledger-aiosqlite") as helper:
            return helper.submit(lambda: asyncio.run(self.arun(operation))).result()

    async def arun(self, operation: Operation[T]) -> T:
        if self._closed:
            raise SaverClosed("the saver on your aiosqlite.Connection was closed; make a new LedgerSaver to go on")
        if operation.access is not Access.READ and self.read_only:
            raise ReadOnlyLedger(f"{operation.name}: the saver was made with read_only=True")
        if not self._connection._running or self._connection._connection is None:
            raise DatabaseUnavailable("your aiosqlite.Connection is not open: await it, or enter it, first")

        def whole() -> T:
            connection = self._connection._connection
            if connection is None:
                raise DatabaseUnavailable("your aiosqlite.Connection was closed")
            if connection.in_transaction:
                raise DatabaseError(f"{operation.name}: your aiosqlite.Connection is inside a transaction of its own")
            if connection is not self._taught:
                teach(connection)
                self._taught = connection
            return run_on(connection, operation, self._dialect, self.trace)

        return await shielded(asyncio.ensure_future(self._connection._execute(whole)))  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self._closed = True

    async def aclose(self) -> None:
        self._closed = True


def _check_usable(connection: sqlite3.Connection) -> None:
    try:
        connection.cursor().close()
    except sqlite3.ProgrammingError as error:
        raise DatabaseUnavailable(f"your sqlite3.Connection cannot be used: {error}") from error


def _check_given(connection: sqlite3.Connection) -> None:
    """Refuses, with the reason, a connection that cannot be used as it is."""
    if getattr(connection, "autocommit", None) is False:
        raise InvalidInput(
            "this sqlite3.Connection has autocommit=False, so it is always inside a transaction: open it with"
            " autocommit=True or isolation_level=None, or give the saver a path"
        )
    if connection.text_factory is not str:
        raise InvalidInput("this sqlite3.Connection has a text_factory other than str, which changes what is read")
    refused: list[BaseException] = []

    def probe() -> None:
        try:
            connection.cursor().close()
        except sqlite3.ProgrammingError as error:
            refused.append(error)

    thread = threading.Thread(target=probe, name="ledger-probe")
    thread.start()
    thread.join()
    if refused:
        raise InvalidInput(
            "this sqlite3.Connection only works in the thread that opened it, and LangGraph saves from others:"
            f" open it with check_same_thread=False ({refused[0]})"
        )


_SAVEPOINT = {"begin_write": "begin_part", "commit": "commit_part"}


def run_on(connection: sqlite3.Connection, operation: Operation[T], dialect: sql.Dialect, trace: Trace | None) -> T:
    """Carries out one operation, in a transaction, on a connection that nobody else uses meanwhile."""
    cursor = _cursor(connection)
    try:
        return _carry_out(cursor, operation, dialect, trace)
    finally:
        cursor.close()


def _cursor(connection: sqlite3.Connection) -> sqlite3.Cursor:
    cursor = connection.cursor()
    cursor.row_factory = None  # the caller's connection may have one
    return cursor


def _carry_out(
    cursor: sqlite3.Cursor,
    operation: Operation[T],
    dialect: sql.Dialect,
    trace: Trace | None,
    *,
    savepoint: bool = False,
) -> T:
    """Carries out one operation in a transaction, or within one as a savepoint."""
    groups = transact(operation)
    try:
        group = next(groups)
        while True:
            if savepoint:
                group = tuple(replace(s, name=_SAVEPOINT.get(s.name, s.name)) for s in group)
            group = groups.send([_execute(cursor, statement, dialect, trace) for statement in group])
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    except BaseException as error:
        if cursor.connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                _execute(cursor, Statement("rollback_part") if savepoint else ROLLBACK, dialect, trace)
        groups.close()
        if isinstance(error, sqlite3.Error):
            raise translate(error, operation.name, _file_of(cursor.connection)) from error
        raise


Ticket = tuple[Operation[Any], Future[Any]]
"""An operation that waits for its turn, and the future that tells whoever asked for it."""


def run_group(
    connection: sqlite3.Connection, group: Sequence[Ticket], dialect: sql.Dialect, trace: Trace | None
) -> None:
    """Carries out several operations in one transaction, each in its own savepoint; tells each after the commit."""
    if len(group) == 1:
        operation, ticket = group[0]
        _resolve(ticket, lambda: run_on(connection, operation, dialect, trace))
        return
    cursor = _cursor(connection)
    try:
        _execute(cursor, BEGIN[Access.WRITE], dialect, trace)
        outcomes = [_part(cursor, operation, dialect, trace) for operation, _ in group]
        _execute(cursor, COMMIT, dialect, trace)
    except BaseException as error:
        if connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                _execute(cursor, ROLLBACK, dialect, trace)
        for operation, ticket in group:
            ticket.set_exception(_shared(error, operation.name, connection))
        if not isinstance(error, Exception):
            raise
        return
    finally:
        cursor.close()
    for (_, ticket), outcome in zip(group, outcomes, strict=True):
        _resolve(ticket, outcome)


def _shared(error: BaseException, doing: str, connection: sqlite3.Connection) -> BaseException:
    """What took a whole group along, for one that was in it. An interrupt is meant for one thread alone."""
    if isinstance(error, sqlite3.Error):
        return translate(error, doing, _file_of(connection))
    if isinstance(error, Exception):
        return error
    return DatabaseUnavailable(f"{doing}: it shared a commit with an operation that was interrupted; nothing is stored")


def _part(
    cursor: sqlite3.Cursor, operation: Operation[Any], dialect: sql.Dialect, trace: Trace | None
) -> Callable[[], Any]:
    """Carries out one operation in a savepoint; what came of it is told when it is asked for."""
    try:
        result = _carry_out(cursor, operation, dialect, trace, savepoint=True)
    except Exception as error:
        if not cursor.connection.in_transaction:  # an error like a full disk takes everybody's work with it
            raise
        return partial(_raise, error)
    return lambda: result


def _raise(error: Exception) -> None:
    raise error


def _resolve(ticket: Future[Any], outcome: Callable[[], Any]) -> None:
    try:
        ticket.set_result(outcome())
    except BaseException as error:
        ticket.set_exception(error)
        if not isinstance(error, Exception):
            raise


def _execute(cursor: sqlite3.Cursor, statement: Statement, dialect: sql.Dialect, trace: Trace | None) -> Rows:
    if trace is not None:
        pause(trace, "before", statement.name)
    text = dialect.texts[statement.name]
    rows: Rows = []
    if statement.many is not None:
        cursor.executemany(text, statement.many)
    else:
        rows = cursor.execute(text, statement.params).fetchall()
    if trace is not None:
        pause(trace, "after", statement.name)
    return rows


def _file_of(connection: sqlite3.Connection) -> str:
    """The name of a connection's file, as messages show it."""
    with contextlib.suppress(sqlite3.Error):
        for _, name, path in _cursor(connection).execute("PRAGMA database_list").fetchall():
            if name == "main" and path:
                return repr(path)
    return "the database"


_BESIDE = "SQLite keeps two more files beside a ledger, even while it is only read"


def translate(error: sqlite3.Error, doing: str, file: str = "the database") -> DatabaseError:
    """SQLite's error in the ledger's words."""
    text, where = str(error), f"{doing}: {file}"
    if "CHECK constraint" in text:
        return ReuseRefused(f"{doing}: {text}")
    if isinstance(error, sqlite3.IntegrityError):
        return Duplicate(f"{doing}: {text}")
    if "is not a database" in text:
        return NotALedger(f"{where} is not a usable SQLite database ({text})")
    if "malformed" in text:
        return NotALedger(
            f"{where} is damaged ({text}). Restore it from a backup, or save what can be read with SQLite's .recover"
        )
    if "locked" in text or "busy" in text:
        return DatabaseUnavailable(
            f"{where} was kept locked by another connection for longer than busy_timeout ({text})"
        )
    if "unable to open" in text:
        return DatabaseUnavailable(
            f"{where} cannot be opened: does its directory exist, and may files be made in it? {_BESIDE}"
        )
    if "readonly" in text:
        return ReadOnlyLedger(f"{where} or its directory is read-only ({text}). {_BESIDE}")
    if "no such column" in text or "has no column" in text or "already exists" in text:
        return NotALedger(f"{where} has a table of the ledger's name that is not the ledger's ({text})")
    if "full" in text or "disk I/O" in text:
        return DatabaseError(
            f"{where} could not be written or read ({text}); nothing of this is stored. If its disk is full, make room"
            " and go on"
        )
    return DatabaseError(f"{doing}: {text}")
