"""Postgres: a psycopg pool of our own, or the caller's pool or connection, synchronous or asynchronous.

One pooled connection carries one operation. A single-batch operation goes out as one pipeline, its begin and
commit included. An operation whose connection broke runs again on a fresh one: every operation is idempotent, and
looks for its own earlier commit (see `operations/checkpoints.py`). No session state, and statements are prepared only
where the server itself is at the other end, so that a transaction-mode pgbouncer may stand in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import psycopg
from psycopg import errors as pg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from langgraph_ledger import sql
from langgraph_ledger.drivers.connections import (
    OwnAsyncConnection,
    OwnAsyncPool,
    OwnConnection,
    Silence,
    abeginning_with,
    acheck_alive,
    aconfigure,
    beginning_with,
    check_alive,
    configure,
)
from langgraph_ledger.drivers.shield import shielded
from langgraph_ledger.drivers.transact import ATTEMPTS, BEGIN, Trace, pause, pause_before_retry, transact
from langgraph_ledger.errors import (
    DatabaseError,
    DatabaseUnavailable,
    Duplicate,
    InvalidInput,
    LedgerError,
    NotALedger,
    ReadOnlyLedger,
    ReuseRefused,
    SaverClosed,
    SchemaMissing,
    ThreadLocked,
    WrongFlavour,
)
from langgraph_ledger.statements import Access, Migration, Operation, Rows, Statement

T = TypeVar("T")

CONNECTION_DEFAULTS = {
    "autocommit": True,
    "prepare_threshold": None,
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
    "application_name": "langgraph_ledger",
}
_BEGINS = frozenset(s.name for s in BEGIN.values())
_WITHIN = {  # for connections without autocommit, where psycopg itself has sent BEGIN
    "begin_read": "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY",
    "begin_write": "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
}

Given = Any
"""A psycopg Connection, AsyncConnection, ConnectionPool or AsyncConnectionPool of the caller's."""


class PostgresDriver:
    """Runs operations on a Postgres database reached by URL, or through what the caller already has."""

    def __init__(
        self,
        url: str | None = None,
        *,
        given: Given = None,
        schema: str | None = None,
        partitions: int | None = None,
        read_only: bool = False,
        min_size: int = 1,
        max_size: int = 10,
        timeout: float = 30.0,
        answer_timeout: float = 60.0,
        max_idle: float = 600.0,
        max_lifetime: float = 3600.0,
        connection_kwargs: dict[str, Any] | None = None,
    ) -> None:
        if schema is not None and (not schema or any(c in schema for c in "\0{}") or len(schema.encode()) > 63):
            raise InvalidInput(f"schema={schema!r}: expected a Postgres identifier of 1 to 63 bytes")
        if min_size < 0 or max_size < 1 or min_size > max_size:
            raise InvalidInput(
                f"min_size={min_size}, max_size={max_size}: expected 0 <= min_size <= max_size, max >= 1"
            )
        if not answer_timeout > 0:
            raise InvalidInput(
                f"answer_timeout={answer_timeout!r}: expected seconds, more than zero (math.inf: no limit)"
            )
        self.trace: Trace | None = None
        self.read_only = read_only
        self._patience = answer_timeout
        self._url, self._given = url, given
        self.partitions = sql.checked_partitions(partitions)
        self._dialect = sql.load("postgres", schema, partitions)
        self._pool_options: dict[str, Any] = {
            "min_size": min_size,
            "max_size": max_size,
            "timeout": timeout,
            # It tries ever less often: any longer, and it might rest for all the time that somebody waits for it.
            "reconnect_timeout": timeout,
            "max_idle": max_idle,
            "max_lifetime": max_lifetime,
            "kwargs": {**CONNECTION_DEFAULTS, **(connection_kwargs or {})},
            "open": False,
        }
        self._may_prepare = "prepare_threshold" not in (connection_kwargs or {})
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        """Starts without connections: at first, and in the child after a fork (it must not touch its parent's)."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._connecting = threading.Lock()  # another one, for the event loops that take the first for a moment
        self._turn = threading.Lock()  # a given single connection carries one operation at a time
        self._pool: ConnectionPool[Any] | None = None
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopState] = weakref.WeakKeyDictionary()

    @property
    def migrations(self) -> tuple[Migration, ...]:
        return self._dialect.migrations

    @property
    def needs_loop(self) -> bool:
        return isinstance(self._given, (AsyncConnectionPool, psycopg.AsyncConnection))

    # --- running

    def run(self, operation: Operation[T]) -> T:
        self._check(operation)
        if self.needs_loop:
            raise WrongFlavour(
                f"{operation.name}: this saver was built on your {type(self._given).__name__}, which only works in its"
                " event loop. Use the async methods (ainvoke, aget_state, ...), or give the saver a URL"
            )
        for attempt in range(ATTEMPTS):
            try:
                with self._connection() as connection:
                    return self._run_on(connection, operation)
            except Exception as error:
                self._raise_unless_worth_retrying(error, operation, attempt)
            time.sleep(pause_before_retry(attempt))
        raise AssertionError("unreachable")

    async def arun(self, operation: Operation[T]) -> T:
        self._check(operation)
        if isinstance(self._given, (ConnectionPool, psycopg.Connection)):
            loop = asyncio.get_running_loop()
            return await shielded(loop.run_in_executor(None, self.run, operation))
        return await shielded(asyncio.ensure_future(self._arun(operation)))

    async def _arun(self, operation: Operation[T]) -> T:
        state = self._loop_state()
        state.in_flight += 1
        try:
            for attempt in range(ATTEMPTS):
                try:
                    async with self._aconnection() as connection:
                        return await self._arun_on(connection, operation)
                except Exception as error:
                    self._raise_unless_worth_retrying(error, operation, attempt)
                await asyncio.sleep(pause_before_retry(attempt))
            raise AssertionError("unreachable")
        finally:
            state.in_flight -= 1

    def _holds_up_a_save(self) -> bool:
        """Whether this call holds up an event loop with a transaction under way on it: that might have locked what is
        needed here, and cannot end meanwhile."""
        loop = asyncio._get_running_loop()
        with self._lock:
            state = self._loops.get(loop) if loop is not None else None
        return state is not None and state.in_flight > 0

    def _check(self, operation: Operation[Any]) -> None:
        if self._closed:
            raise SaverClosed("the saver was closed; make a new LedgerSaver to go on")
        if operation.access is not Access.READ and self.read_only:
            raise ReadOnlyLedger(f"{operation.name}: the saver was made with read_only=True")
        if self._pid != os.getpid():
            if self._given is not None:
                raise DatabaseUnavailable(
                    "this process was forked after your connection was made, and a connection cannot be shared by"
                    " two processes: give the saver a URL, or make pool and saver in the child"
                )
            self._reset()

    def _raise_unless_worth_retrying(self, error: Exception, operation: Operation[Any], attempt: int) -> None:
        lost = isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError, pg.IdleInTransactionSessionTimeout))
        clash = isinstance(error, (pg.SerializationFailure, pg.DeadlockDetected))
        in_vain = isinstance(error, (PoolTimeout, TooManyRequests, pg.LockNotAvailable, pg.QueryCanceled))
        allowed = ATTEMPTS if clash else 2  # a fresh connection is tried once
        given_one = isinstance(self._given, (psycopg.Connection, psycopg.AsyncConnection))
        if in_vain or not lost or (given_one and not clash):
            allowed = 0
        if attempt + 1 < allowed:
            return
        if isinstance(error, PoolTimeout):
            raise self._no_connection(error, operation.name) from error
        if isinstance(error, psycopg.Error):
            raise translate(error, operation.name) from error
        raise error

    def _no_connection(self, error: PoolTimeout, doing: str) -> DatabaseUnavailable:
        """A pool tells nothing of why it has no connection: because all are in use, or because it gets none."""
        size = "your pool" if self._given is not None else f"max_size={self._pool_options['max_size']}"
        return DatabaseUnavailable(
            f"{doing}: {error}. Either all connections of {size} were in use, and there should be more of them, or the"
            " server gives no more: is the server reachable, and below its max_connections?"
        )

    # --- sync

    @contextlib.contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Any]]:
        if isinstance(self._given, psycopg.Connection):
            with self._turn:
                _check_idle(self._given)
                yield self._given
            return
        pool = self._given if self._given is not None else self._own_pool()
        try:
            connection = pool.getconn()
        except PoolClosed as error:
            raise SaverClosed("the connection pool was closed") from error
        try:
            if self._given is not None:
                _check_idle(connection)
            yield connection
        except Silence:  # the others may have met with the same, and nobody would know before they are used
            pool.drain()
            raise
        finally:
            pool.putconn(connection)

    def _own_pool(self) -> ConnectionPool[Any]:
        with self._connecting:
            if self._pool is None:
                # once without the pool, which would hide the reason of a failure behind its timeout
                first = OwnConnection.connect(self._url or "", **self._pool_options["kwargs"])
                pool: ConnectionPool[Any] = ConnectionPool(
                    self._url or "",
                    check=lambda connection: check_alive(connection, pool),
                    connection_class=beginning_with(first),
                    configure=configure if self._may_prepare else None,
                    name="langgraph_ledger",
                    **self._pool_options,
                )
                pool.open(**self._opening())
                # at exit the pool's threads are stopped, or the interpreter would wait for them
                weakref.finalize(self, ConnectionPool.close, pool, timeout=1.0)
                self._pool = pool
            return self._pool

    def _opening(self) -> dict[str, Any]:
        """Who asks a pool that has no connection yet makes it connect once more: its only one is waited for."""
        return {"wait": self._pool_options["min_size"] == 1, "timeout": self._pool_options["timeout"]}

    def _run_on(self, connection: psycopg.Connection[Any], operation: Operation[T]) -> T:
        groups = transact(operation)
        self._set_patience(connection, operation)
        hurried = self._holds_up_a_save()
        try:
            group = next(groups)
            while True:
                group = groups.send(self._hurry(connection, group) if hurried else self._send(connection, group))
        except StopIteration as stop:
            return cast("T", stop.value)
        except BaseException as error:
            groups.close()
            _roll_back(connection, error)
            if hurried and isinstance(error, pg.LockNotAvailable):
                raise ThreadLocked(
                    f"{operation.name}: {str(error).strip()}. A save on the event loop that this call holds up has"
                    " the thread: use the async methods"
                ) from error
            raise

    def _set_patience(self, connection: Any, operation: Operation[Any]) -> None:
        if isinstance(connection, (OwnConnection, OwnAsyncConnection)):
            connection.patience = math.inf if operation.access is Access.MAINTENANCE else self._patience

    def _hurry(self, connection: psycopg.Connection[Any], group: Sequence[Statement]) -> list[Rows]:
        """Sends a group; one that begins a transaction waits for locks but briefly in it."""
        if group[0].name not in _BEGINS:
            return self._send(connection, group)
        begun = self._send(connection, (group[0], Statement("wait_briefly")))
        return [begun[0], *self._send(connection, group[1:])]

    def _send(self, connection: psycopg.Connection[Any], group: Sequence[Statement]) -> list[Rows]:
        if self.trace is None and len(group) > 1 and psycopg.Pipeline.is_supported():
            cursors = []
            sent = _unwrapped(connection, group)
            with connection.pipeline():
                for statement in sent:
                    cursor = psycopg.Cursor(connection, row_factory=tuple_row)
                    self._execute(cursor, statement, connection.autocommit)
                    cursors.append(cursor)
            return _wrapped([_rows(c, s) for c, s in zip(cursors, sent, strict=True)], len(group))
        answers = []
        for statement in group:
            pause(self.trace, "before", statement.name)
            cursor = psycopg.Cursor(connection, row_factory=tuple_row)
            self._execute(cursor, statement, connection.autocommit)
            answers.append(_rows(cursor, statement))
            pause(self.trace, "after", statement.name)
        return answers

    def _execute(self, cursor: Any, statement: Statement, autocommit: bool) -> Any:
        """Starts a statement; what comes back is to be awaited if the cursor is asynchronous."""
        text = self._dialect.texts[statement.name]
        if not autocommit and statement.name in _BEGINS:
            text = _WITHIN[statement.name]
        if statement.many is not None:
            if self._dialect.arrays[statement.name]:
                return cursor.execute(text, self._columns(statement))
            return cursor.executemany(text, statement.many)
        return cursor.execute(text, statement.params, binary=True)

    def _columns(self, statement: Statement) -> dict[str, Any]:
        """Many rows as one set of parameters: lists where the query takes arrays, else what the first row has.

        An array that holds nothing but NULL would have no type: the queries take empty bytes for it.
        """
        rows = statement.many or ()
        arrays = self._dialect.arrays[statement.name]
        return {name: [_present(row[name]) for row in rows] if name in arrays else rows[0][name] for name in rows[0]}

    # --- async: the same steps, awaited

    @contextlib.asynccontextmanager
    async def _aconnection(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        state = self._loop_state()
        if isinstance(self._given, psycopg.AsyncConnection):
            async with state.turn:
                _check_idle(self._given)
                yield self._given
            return
        pool = self._given if self._given is not None else await self._own_async_pool(state)
        try:
            connection = await pool.getconn()
        except PoolClosed as error:
            raise SaverClosed("the connection pool was closed") from error
        try:
            if self._given is not None:
                _check_idle(connection)
            yield connection
        except Silence:  # the others may have met with the same, and nobody would know before they are used
            await pool.drain()
            raise
        finally:
            await pool.putconn(connection)

    def _loop_state(self) -> _LoopState:
        loop = asyncio.get_running_loop()
        with self._lock:
            state = self._loops.get(loop)
            if state is None:
                state = self._loops[loop] = _LoopState()
            return state

    async def _own_async_pool(self, state: _LoopState) -> AsyncConnectionPool[Any]:
        async with state.turn:
            if state.pool is None:
                if "Proactor" in type(asyncio.get_running_loop()).__name__:
                    raise WrongFlavour(
                        "psycopg cannot use the ProactorEventLoop, the default on Windows: run the program with"
                        " asyncio.SelectorEventLoop"
                    )
                first = await OwnAsyncConnection.connect(self._url or "", **self._pool_options["kwargs"])
                pool: AsyncConnectionPool[Any] = OwnAsyncPool(
                    self._url or "",
                    check=lambda connection: acheck_alive(connection, pool),
                    connection_class=abeginning_with(first),
                    configure=aconfigure if self._may_prepare else None,
                    name="langgraph_ledger",
                    **self._pool_options,
                )
                await pool.open(**self._opening())
                # asyncio.run() finalises async generators before it closes the loop: a program that never calls
                # aclose() still ends with its connections closed
                state.keeper = _close_with_loop(pool)
                await anext(state.keeper)
                state.pool = pool
            return state.pool

    async def _arun_on(self, connection: psycopg.AsyncConnection[Any], operation: Operation[T]) -> T:
        groups = transact(operation)
        self._set_patience(connection, operation)
        try:
            group = next(groups)
            while True:
                group = groups.send(await self._asend(connection, group))
        except StopIteration as stop:
            return cast("T", stop.value)
        except BaseException as error:
            groups.close()
            await _aroll_back(connection, error)
            raise

    async def _asend(self, connection: psycopg.AsyncConnection[Any], group: Sequence[Statement]) -> list[Rows]:
        if self.trace is None and len(group) > 1 and psycopg.Pipeline.is_supported():
            cursors = []
            sent = _unwrapped(connection, group)
            async with connection.pipeline():
                for statement in sent:
                    cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
                    await self._execute(cursor, statement, connection.autocommit)
                    cursors.append(cursor)
            return _wrapped([await _arows(c, s) for c, s in zip(cursors, sent, strict=True)], len(group))
        answers = []
        for statement in group:
            await _apause(self.trace, "before", statement.name)
            cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
            await self._execute(cursor, statement, connection.autocommit)
            answers.append(await _arows(cursor, statement))
            await _apause(self.trace, "after", statement.name)
        return answers

    # --- the end

    def close(self) -> None:
        """Closes the connections that this driver opened; those of other event loops when their loop ends."""
        self._closed = True
        if self._pid == os.getpid() and self._pool is not None:
            self._pool.close()
        self._pool = None

    async def aclose(self) -> None:
        self._closed = True
        if self._pid == os.getpid():
            state = self._loops.pop(asyncio.get_running_loop(), None)
            if state is not None and state.keeper is not None:
                await state.keeper.aclose()
        self.close()


class _LoopState:
    """What belongs to one event loop: its pool, who closes it, and a lock."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.pool: AsyncConnectionPool[Any] | None = None
        self.keeper: Any = None
        self.in_flight = 0


async def _close_with_loop(pool: AsyncConnectionPool[Any]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await pool.close()


def _present(value: Any) -> Any:
    return b"" if value is None else value


def _rows(cursor: psycopg.Cursor[Any], statement: Statement) -> Rows:
    return cursor.fetchall() if statement.many is None and cursor.description else []


async def _arows(cursor: psycopg.AsyncCursor[Any], statement: Statement) -> Rows:
    return await cursor.fetchall() if statement.many is None and cursor.description else []


async def _apause(trace: Trace | None, event: str, name: str) -> None:
    if trace is not None and (seconds := trace(event, name)):
        await asyncio.sleep(seconds)


def _roll_back(connection: psycopg.Connection[Any], error: BaseException) -> None:
    """Leaves the connection idle, with nothing half prepared on it; or closed if that cannot be had."""
    try:
        if _may_be_half_prepared(connection, error):
            connection.execute("BEGIN")
        connection.rollback()
    except BaseException:
        connection.close()


async def _aroll_back(connection: psycopg.AsyncConnection[Any], error: BaseException) -> None:
    try:
        if _may_be_half_prepared(connection, error):
            await connection.execute("BEGIN")
        await connection.rollback()
    except BaseException:
        await connection.close()


def _may_be_half_prepared(connection: Any, error: BaseException) -> bool:
    """Whether psycopg may take statements for prepared which the server has skipped, behind one that failed in a
    pipeline that was a transaction of its own: each of them would fail from now on. psycopg forgets what it has
    prepared when it rolls back, for which there has to be a transaction."""
    ended = connection.info.transaction_status is TransactionStatus.IDLE
    return ended and connection.prepare_threshold is not None and not isinstance(error, LedgerError)


def _check_idle(connection: Any) -> None:
    if connection.closed:
        raise DatabaseUnavailable("your Postgres connection is closed")
    if connection.info.transaction_status is not TransactionStatus.IDLE:
        raise DatabaseError(
            "your Postgres connection is inside a transaction of its own. Commit or roll it back first, or give the"
            " saver a URL or a pool"
        )


def _unwrapped(connection: Any, group: Sequence[Statement]) -> Sequence[Statement]:
    """The statements of a whole write without begin and commit: a pipeline is a transaction of its own."""
    whole = group[0].name == "begin_write" and group[-1].name == "commit"
    return group[1:-1] if whole and getattr(connection, "is_direct", False) else group


def _wrapped(answers: list[Rows], expected: int) -> list[Rows]:
    return answers if len(answers) == expected else [[], *answers, []]


_KINDS: tuple[tuple[type[psycopg.Error], Callable[[str], LedgerError]], ...] = (
    (pg.UniqueViolation, Duplicate),
    (pg.CheckViolation, ReuseRefused),
    (pg.UndefinedTable, lambda s: SchemaMissing(f"{s}. The ledger's tables are not there; setup() creates them")),
    (
        pg.ReadOnlySqlTransaction,
        lambda s: ReadOnlyLedger(
            f"{s}. The server accepts no writes: it is a standby, or default_transaction_read_only"
            " is on. Name the primary, or make the saver with read_only=True"
        ),
    ),
    (
        pg.InsufficientPrivilege,
        lambda s: ReadOnlyLedger(
            f"{s}. If the tables are there, GRANT the role USAGE on their schema, and SELECT, INSERT, UPDATE, DELETE on"
            " all of them. If not, let a role that may create them run setup() once"
        ),
    ),
    (pg.QueryCanceled, lambda s: DatabaseUnavailable(f"{s}. A statement_timeout of the server's is too short for it")),
    (
        pg.LockNotAvailable,
        lambda s: DatabaseUnavailable(f"{s}. Somebody had it locked for longer than the server's lock_timeout"),
    ),
    (
        pg.UndefinedColumn,
        lambda s: NotALedger(f"{s}. A table of the ledger's name is not the ledger's: give a schema="),
    ),
    (pg.DuplicateTable, lambda s: NotALedger(f"{s}. Give the saver a schema= of its own")),
    (pg.DuplicateObject, lambda s: NotALedger(f"{s}. Give the saver a schema= of its own")),
    (pg.IdleInTransactionSessionTimeout, DatabaseUnavailable),
    (psycopg.OperationalError, DatabaseUnavailable),
    (psycopg.InterfaceError, DatabaseUnavailable),
)


def translate(error: psycopg.Error, doing: str) -> LedgerError:
    """psycopg's error in the ledger's words."""
    said = str(error).partition("\nLINE ")[0]  # and not where in the query it was
    text = f"{doing}: {said.strip() or type(error).__name__}"
    for kind, make in _KINDS:
        if isinstance(error, kind):
            return make(text)
    return DatabaseError(text)
