"""The saver's own connections to Postgres: whether one is alive, who answers on it, how long it is listened to."""

from __future__ import annotations

import asyncio
import contextlib
import select
import time
from collections.abc import Generator
from typing import Any, TypeVar, cast

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool

T = TypeVar("T")

CANCEL_SECONDS = 2.0
"""How long a server that has been silent may take to hear that it need not answer any more."""
PREPARE_AFTER = 3
"""How often a connection runs a statement before the server is asked to keep its plan."""


def _looks_dead(connection: Any) -> bool:
    """An idle connection has nothing to say; one that the server ended has. Costs no round trip."""
    poll = getattr(select, "poll", None)
    if poll is None:
        return bool(select.select([connection.fileno()], [], [], 0)[0])
    poller = poll()
    poller.register(connection.fileno(), select.POLLIN)
    return bool(poller.poll(0))


def check_alive(connection: psycopg.Connection[Any], pool: ConnectionPool[Any]) -> None:
    """Raises if it is not; then the rest of the pool is renewed too. It would find out of one after the other, and rest
    in between for ever longer: with six of them for half a minute."""
    if _looks_dead(connection):
        try:
            ConnectionPool.check_connection(connection)
        except psycopg.Error:
            pool.drain()
            raise


async def acheck_alive(connection: psycopg.AsyncConnection[Any], pool: AsyncConnectionPool[Any]) -> None:
    if _looks_dead(connection):
        try:
            await AsyncConnectionPool.check_connection(connection)
        except psycopg.Error:
            await pool.drain()
            raise


class Silence(psycopg.OperationalError):
    """Nothing was heard of the server for too long. Its connection is closed: what was asked may yet be answered."""


def _listening(gen: Generator[Any, Any, T], patience: float) -> Generator[Any, Any, T]:
    """What psycopg waits with, ended when the server gives no sign of life. psycopg looks ten times a second."""
    heard = time.monotonic()
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if ready:
                heard = time.monotonic()
            elif time.monotonic() - heard > patience:
                raise Silence(f"the server has not answered for answer_timeout={patience:g} seconds")
            wanted = gen.send(ready)
    except StopIteration as stop:
        return cast("T", stop.value)


class OwnConnection(psycopg.Connection[Any]):
    is_direct = False
    """Whether the server itself is at the other end, with Postgres's own default isolation."""
    patience = 60.0
    """Seconds that the server may be silent while something is asked of it."""

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        try:
            return super().wait(_listening(gen, self.patience), *args, **kwargs)
        except Silence:
            if psycopg.capabilities.has_cancel_safe():
                with contextlib.suppress(psycopg.Error):
                    self.cancel_safe(timeout=CANCEL_SECONDS)
            self.pgconn.finish()
            raise


class OwnAsyncConnection(psycopg.AsyncConnection[Any]):
    is_direct = False
    patience = 60.0

    async def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        try:
            return await super().wait(_listening(gen, self.patience), *args, **kwargs)
        except Silence:
            if psycopg.capabilities.has_cancel_safe():
                with contextlib.suppress(psycopg.Error):
                    await self.cancel_safe(timeout=CANCEL_SECONDS)
            self.pgconn.finish()
            raise


def beginning_with(first: OwnConnection) -> type[OwnConnection]:
    """What a pool makes its connections with, of which the first is there already: connecting costs round trips."""
    waiting = [first]

    class Beginning(OwnConnection):
        @classmethod
        def connect(cls, *args: Any, **kwargs: Any) -> OwnConnection:  # type: ignore[override]
            try:
                return waiting.pop()
            except IndexError:
                return OwnConnection.connect(*args, **kwargs)

    return Beginning


def abeginning_with(first: OwnAsyncConnection) -> type[OwnAsyncConnection]:
    waiting = [first]

    class Beginning(OwnAsyncConnection):
        @classmethod
        async def connect(cls, *args: Any, **kwargs: Any) -> OwnAsyncConnection:  # type: ignore[override]
            try:
                return waiting.pop() if waiting else await OwnAsyncConnection.connect(*args, **kwargs)
            except asyncio.CancelledError:
                raise _Cancelled from None

    return Beginning


class OwnAsyncPool(AsyncConnectionPool[Any]):
    """Its workers end when they are cancelled, as `asyncio.run()` does in the end. psycopg_pool's go on if they were
    just connecting, and wait for the next thing to do: the program would never end."""

    @classmethod
    async def worker(cls, q: Any) -> None:
        try:
            await super().worker(_UntilCancelled(q))  # type: ignore[arg-type]
        except _Cancelled:
            raise asyncio.CancelledError from None


class _Cancelled(BaseException):
    """A cancellation that psycopg_pool does not take for a failure, and say so in its log."""


class _UntilCancelled:
    def __init__(self, queue: asyncio.Queue[Any]) -> None:
        self._queue = queue

    async def get(self) -> Any:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError
        return await self._queue.get()


_WHO = "SELECT pg_backend_pid(), current_setting('transaction_isolation'), current_setting('transaction_read_only')"


def _get_acquainted(connection: Any, row: Any) -> None:
    """A pooler tells its clients another backend than the one that answers, and may answer with many."""
    if row == (connection.info.backend_pid, "read committed", "off") and connection.autocommit:
        connection.is_direct = True
        connection.prepare_threshold = PREPARE_AFTER


def configure(connection: psycopg.Connection[Any]) -> None:
    _get_acquainted(connection, connection.execute(_WHO).fetchone())
    connection.commit()


async def aconfigure(connection: psycopg.AsyncConnection[Any]) -> None:
    try:
        _get_acquainted(connection, await (await connection.execute(_WHO)).fetchone())
        await connection.commit()
    except asyncio.CancelledError:
        connection.pgconn.finish()
        raise _Cancelled from None
