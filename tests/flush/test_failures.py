"""What goes wrong while changes wait: a database that is full, gone or slow, a fork, an exit, a cancelled task."""

import asyncio
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import aiosqlite
import psycopg
import pytest

from langgraph_ledger import Batched, LedgerError, LedgerSaver
from langgraph_ledger.errors import DatabaseError, DatabaseUnavailable
from tests.flush.counting import at, counting, prefix
from tests.four_ways import Backend, Flavoured
from tests.postgres_server import create_database, restartable_server
from tests.strict_python import PYTHON

ROOT = Path(__file__).parent.parent.parent
NEVER = Batched(100_000, None)
BEFORE_COMMIT = ("before", "commit")
START = {"number": 0, "seen": []}


def number_on(url: str, thread: str = "1") -> int:
    with LedgerSaver(url) as saver:
        return prefix(saver, thread)


# --- a disk that is full


@pytest.mark.parametrize("flush", [Batched(5, None), Batched(100_000, 0.05), "important"], ids=repr)
def test_a_full_disk(sqlite_path: str, flush: Any) -> None:
    """The error reaches the caller, nothing that was committed is lost, and once there is room nothing at all is."""
    with LedgerSaver(sqlite_path, flush=flush) as saver:
        saver.setup()
        ran: list[int] = []

        def limit(pages: int) -> None:
            limit_file(saver, pages)

        def each(number: int) -> None:
            ran.append(number)
            if number == 8:
                limit(0)
            if number > 8:
                time.sleep(0.02)

        graph = counting(saver, 200, each)
        with pytest.raises(DatabaseError, match="full"):
            graph.invoke(START, at("1"), durability="sync")
        before = number_on(sqlite_path)
        assert before >= (3 if isinstance(flush, Batched) and flush.max_changes == 5 else -1)
        with pytest.raises(DatabaseError, match="full"):
            graph.get_state(at("1"))
        limit(1_000_000)
        at_least = graph.get_state(at("1")).values.get("number", 0)
        assert at_least >= max(before, 0)
        assert graph.invoke(None, at("1"))["number"] == 200
        assert prefix(saver, "1") == 200
        assert saver.rejected_writes() == []


@pytest.mark.parametrize("end", ["breakpoint", "limit of steps"])
def test_a_full_disk_when_a_run_ends(sqlite_path: str, flavour: str, end: str) -> None:
    """Where only the end of a run commits what waits, there is no result as long as it cannot. An error of the run's
    own says so."""
    runner = asyncio.Runner() if flavour == "async" else None
    with LedgerSaver(sqlite_path, flush=NEVER) as saver, runner or nullcontext():
        four = Flavoured(saver, runner)
        saver.setup()
        limit_file(saver, 0)
        graph = counting(saver, 10, is_async=four.is_async, payload=1_000_000)
        if end == "breakpoint":
            with pytest.raises(DatabaseError, match="full"):
                four.invoke(graph, START, at("1"), interrupt_after=["step"])
        else:
            with pytest.raises(RecursionError) as raised:
                four.invoke(graph, START, {**at("1"), "recursion_limit": 2})
            assert "could not be stored yet" in raised.value.__notes__[-1]
        limit_file(saver, 1_000_000)
        four.close()


def limit_file(saver: Any, pages: int) -> None:
    """Lets the saver's file have so many pages and no more; 0: none but those that it has."""
    with saver._driver._connection(_write()) as connection:
        (used,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {used if pages == 0 else pages}")


def _write() -> Any:
    from langgraph_ledger.statements import Access, Operation

    return Operation("a test's look", Access.WRITE, lambda: iter(()))  # type: ignore[arg-type, return-value]


def waits_until(happened: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_after_a_failed_flush_time_brings_the_next(sqlite_path: str) -> None:
    """Nobody calls the saver again: once there is room, what waits is stored all the same."""
    with LedgerSaver(sqlite_path, flush=Batched(100_000, 0.5)) as saver:
        stream = counting(saver, 50, payload=100_000).stream(START, at("1"), durability="sync")
        next(stream)
        limit_file(saver, 0)
        next(stream)
        waits_until(lambda: saver._ledger.queue.failed)
        limit_file(saver, 1_000_000)
        waits_until(lambda: not saver._ledger.queue.entries)
        assert number_on(sqlite_path) >= 1
        assert len(list(stream)) == 48


FULL = """
CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'the disk is full' USING ERRCODE = '53100'; END $$;
CREATE TRIGGER full_disk BEFORE INSERT ON checkpoint_log FOR EACH ROW EXECUTE FUNCTION full_disk()
"""


def test_after_a_failed_flush_the_loops_timer_brings_the_next(fresh_postgres_url: Callable[[], str]) -> None:
    """The same on a connection that belongs to an event loop."""
    url = fresh_postgres_url()

    async def main() -> None:
        with psycopg.connect(url, autocommit=True) as admin:
            async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
                saver = LedgerSaver(connection, flush=Batched(100_000, 0.5))
                await saver.asetup()
                admin.execute(FULL)
                stream = counting(saver, 50, is_async=True).astream(START, at("1"), durability="sync")
                await anext(stream)
                async with asyncio.timeout(60):
                    while not saver._ledger.queue.failed:
                        await asyncio.sleep(0.01)
                    admin.execute("DROP TRIGGER full_disk ON checkpoint_log")
                    while saver._ledger.queue.entries:
                        await asyncio.sleep(0.01)
                assert len([chunk async for chunk in stream]) == 49
                await saver.aclose()

    asyncio.run(main())
    assert number_on(url) == 50


# --- a server that is gone


def patiently(call: Callable[[], Any]) -> Any:
    """A pool that could not connect takes its time before it tries again."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return call()
        except DatabaseUnavailable:
            assert time.monotonic() < deadline


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flavour", "flush"),
    [("sync", Batched(5, None)), ("async", Batched(5, None)), ("async", Batched(100_000, 0.1)), ("sync", "important")],
    ids=str,
)
def test_a_server_that_is_stopped_and_started_again(flavour: str, flush: Any) -> None:
    with restartable_server() as server:
        url = create_database(server.url)
        runner = asyncio.Runner() if flavour == "async" else None
        four = Flavoured(LedgerSaver(url, flush=flush, timeout=2.0), runner)

        stopped: list[int] = []

        def each(number: int) -> None:
            if number == 8 and not stopped:
                stopped.append(number)
                server.stop()
            if number > 8:
                time.sleep(0.02)

        graph = counting(four.saver, 60, each, is_async=four.is_async)
        with pytest.raises(LedgerError) as caught:
            four.invoke(graph, START, at("1"), durability="sync")
        assert isinstance(caught.value, DatabaseUnavailable)
        server.start()
        on_disk = number_on(url)
        assert on_disk >= (3 if isinstance(flush, Batched) and flush.max_changes == 5 else -1)
        reached = patiently(lambda: four.get_state(graph, at("1"))).values.get("number", 0)
        assert reached >= 7, "what waited has been committed by now"
        assert four.invoke(graph, None, at("1"))["number"] == 60
        assert number_on(url) == 60
        four.close()
        if runner is not None:
            runner.close()


# --- a database that is slow


def test_a_slow_database_pushes_back(open_four: Callable[..., Flavoured]) -> None:
    waiting: list[int] = []
    four = open_four(flush=Batched(5, 0.01))
    four.call("setup")
    four.saver._driver.trace = lambda event, statement: 0.05 if (event, statement) == ("before", "commit") else None
    graph = counting(
        four.saver,
        60,
        lambda number: waiting.append(len(four.saver._ledger.queue.entries)),
        is_async=four.is_async,
    )
    four.invoke(graph, START, at("1"), durability="sync")
    assert max(waiting) <= 5 * 2 + 2, "five checkpoints, and what the tasks before them wrote"


def test_bytes_are_limited_too(open_four: Callable[..., Flavoured]) -> None:
    from langgraph_ledger import flushing

    held: list[int] = []
    four = open_four(flush=NEVER)

    def big(number: int) -> None:
        held.append(four.saver._ledger.queue._bytes)

    graph = counting(four.saver, 30, big, is_async=four.is_async, payload=2**20)
    four.invoke(graph, START, at("1"), durability="sync")
    assert 2 * 2**20 < max(held) <= flushing.MAX_BYTES + 3 * 2**20


# --- processes

FORK = """
import os, sys
from langgraph_ledger import Batched, LedgerSaver
from langgraph_ledger.errors import DatabaseUnavailable
from tests.flush.counting import at, counting, prefix

saver = LedgerSaver(sys.argv[1], flush=Batched(1000, float(sys.argv[2]) if len(sys.argv) > 2 else None))
graph = counting(saver, 20)
stream = graph.stream({"number": 0, "seen": []}, at("1"), durability="sync")
for _ in range(8):
    next(stream)
assert saver._ledger.queue.entries
(run,) = saver._ledger.open_runs()
pid = os.fork()
if pid == 0:
    assert not saver._ledger.queue.entries
    saver.flush()
    try:
        run.check()
    except DatabaseUnavailable as error:
        assert "forked" in str(error)
    else:
        os._exit(3)
    assert counting(saver, 5).invoke({"number": 0, "seen": []}, at("child"))["number"] == 5
    saver.close()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
with LedgerSaver(sys.argv[1]) as other:
    assert prefix(other, "1") == -1, "the child has committed nothing of it"
    assert prefix(other, "child") == 5
for _ in stream:
    pass
with LedgerSaver(sys.argv[1]) as other:
    assert prefix(other, "1") == 20
saver.close()
"""

EXIT = """
import asyncio, sys
from langgraph_ledger import Batched, LedgerSaver
from tests.flush.counting import at, counting

saver = LedgerSaver(sys.argv[1], flush=Batched(1000, 60.0))
graph = counting(saver, 50)

async def main():
    stream = graph.astream({"number": 0, "seen": []}, at("1"), durability="sync")
    for _ in range(8):
        await anext(stream)
    await stream.aclose()

if sys.argv[2] == "async":
    asyncio.run(main())
else:
    stream = graph.stream({"number": 0, "seen": []}, at("1"), durability="sync")
    for _ in range(8):
        next(stream)
assert saver._ledger.queue.entries or sys.argv[2] == "async"
if sys.argv[2] == "dropped":
    del saver, graph, stream
"""


def script(text: str, *arguments: str) -> None:
    found = subprocess.run([*PYTHON, "-c", text, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stderr) == (0, "")


def test_a_child_drops_its_parents_queue(backend: Backend) -> None:
    script(FORK, backend.url)


@pytest.mark.parametrize("how", ["sync", "async", "dropped"])
def test_what_waits_at_exit_is_committed(backend: Backend, how: str) -> None:
    script(EXIT, backend.url, how)
    assert number_on(backend.url) >= 6


def test_a_cancelled_run(backend: Backend) -> None:
    """Once the cancelled task has been awaited, what it did is on disk, and nothing is in the way of the next run."""

    async def main() -> None:
        async with LedgerSaver(backend.url, flush=NEVER) as saver:
            reached = asyncio.Event()

            def each(number: int) -> None:
                if number == 12:
                    asyncio.get_running_loop().call_soon(reached.set)

            graph = counting(saver, 10_000, each, is_async=True)
            task = asyncio.create_task(graph.ainvoke(START, at("1"), durability="sync"))
            await reached.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with LedgerSaver(backend.url) as other:
                assert 10 <= prefix(other, "1") < 10_000
                assert other.sessions()[0].status == "paused"
            again = counting(saver, 30, is_async=True)
            assert (await again.ainvoke(None, at("1")))["number"] >= 30

    asyncio.run(main())


def test_closing_while_it_cannot_be_committed(fresh_postgres_url: Callable[[], str]) -> None:
    """Whoever closes is told what could not be stored."""
    url = fresh_postgres_url()
    saver = LedgerSaver(url, flush=NEVER, timeout=1.0)
    stream = counting(saver, 50).stream(START, at("1"), durability="sync")
    for _ in range(5):
        next(stream)
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute("ALTER TABLE checkpoint_log RENAME TO gone")
    with pytest.raises(LedgerError):
        saver.close()
    with pytest.raises(LedgerError):
        list(stream)


# --- connections of the caller's


@pytest.mark.parametrize("kind", ["sqlite3", "aiosqlite"])
def test_a_sqlite_connection_of_yours(sqlite_path: str, kind: str) -> None:
    """Time is watched from another thread, which uses the connection as the saver does."""

    async def main() -> None:
        if kind == "sqlite3":
            connection: Any = sqlite3.connect(sqlite_path, check_same_thread=False, isolation_level=None)
        else:
            connection = await aiosqlite.connect(sqlite_path)
        saver = LedgerSaver(connection, flush=Batched(1000, 0.05))
        graph = counting(saver, 50, is_async=True)
        stream = graph.astream(START, at("1"), durability="sync")
        for _ in range(8):
            await anext(stream)
        while saver._ledger.queue.entries:
            await asyncio.sleep(0.01)
        assert number_on(sqlite_path) >= 6
        await stream.aclose()  # type: ignore[attr-defined]
        assert (await graph.ainvoke(None, at("1")))["number"] == 50
        assert number_on(sqlite_path) == 50
        await saver.aclose()
        if kind == "sqlite3":
            connection.close()
        else:
            await connection.close()

    asyncio.run(main())


@pytest.mark.parametrize("how", ["max_delay", "max_changes", "close"])
def test_a_connection_of_one_event_loop(fresh_postgres_url: Callable[[], str], how: str) -> None:
    url = fresh_postgres_url()
    flush = {"max_delay": Batched(1000, 0.05), "max_changes": Batched(5, None), "close": NEVER}[how]

    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            saver = LedgerSaver(connection, flush=flush)
            graph = counting(saver, 50, is_async=True)
            stream = graph.astream(START, at("1"), durability="sync")
            for _ in range(8):
                await anext(stream)
            if how == "max_delay":
                while saver._ledger.queue.entries:
                    await asyncio.sleep(0.01)
            if how == "close":
                await saver.aclose()
            with LedgerSaver(url) as other:
                assert prefix(other, "1") >= 3
            if how != "close":
                await stream.aclose()  # type: ignore[attr-defined]
                await saver.aclose()
                with LedgerSaver(url) as other:
                    assert prefix(other, "1") >= 6

    asyncio.run(main())


def test_what_comes_while_the_loop_commits_has_its_time_too(fresh_postgres_url: Callable[[], str]) -> None:
    """On a connection of one event loop time is a timer's: what is added during a flush needs one of its own."""
    url = fresh_postgres_url()
    slow: list[float] = []

    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            saver = LedgerSaver(connection, flush=Batched(100_000, 0.05))
            await saver.asetup()
            saver._driver.trace = lambda event, name: slow.pop() if slow and (event, name) == BEFORE_COMMIT else None
            stream = counting(saver, 1000, is_async=True).astream({"number": 0, "seen": []}, at("1"), durability="sync")
            await anext(stream)
            slow.append(2.0)
            while slow:  # until a timer's flush is at its commit
                await anext(stream)
            for _ in range(3):
                await anext(stream)
            assert saver._ledger.queue.turn is not None, "they have come while it was committing"
            deadline = time.monotonic() + 20
            while saver._ledger.queue.entries:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)
            await stream.aclose()  # type: ignore[attr-defined]
            await saver.aclose()

    asyncio.run(main())
    with LedgerSaver(url) as saver:
        assert prefix(saver, "1") >= 3
