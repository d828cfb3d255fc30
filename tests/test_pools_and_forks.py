"""One saver object in the hands of many: threads, event loops, forked children, a pool that others use too."""

import asyncio
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from langgraph_ledger import LedgerSaver
from langgraph_ledger.drivers import sqlite as sqlite_driver
from tests.crash_scenarios import graph_of
from tests.direct import at, checkpoint, save
from tests.four_ways import Backend, Flavoured
from tests.proxy import Proxy
from tests.strict_python import PYTHON

ROOT = Path(__file__).parent.parent
METADATA: Any = {"source": "loop", "step": 0, "parents": {}}


def ids(found: Any) -> list[str]:
    return [item.checkpoint["id"] for item in found]


def test_saving_while_listing(four: Flavoured) -> None:
    """More checkpoints than fit on a page, each of which makes the caller save another one."""
    place = at("listed")
    for number in range(60):
        place = save(four, place, f"{number:04}", {"n": number})

    def copied(item: Any) -> Any:
        return at("copy"), checkpoint(f"copy {item.checkpoint['id']}"), METADATA, {}

    async def walk() -> None:
        async for item in four.saver.alist(at("listed")):
            await four.saver.aput(*copied(item))

    if four.runner is not None:
        four.runner.run(walk())
    else:
        for item in four.saver.list(at("listed")):
            four.saver.put(*copied(item))
    assert ids(four.list(at("copy"))) == [f"copy {number:04}" for number in range(60)]


@pytest.mark.parametrize("flavour", ["sync", "async"])
def test_the_first_call_connects_once(fresh_postgres_url: Callable[[], str], flavour: str) -> None:
    """The connection that is tried before there is a pool is the pool's first one."""
    proxy = Proxy(fresh_postgres_url())
    runner = asyncio.Runner() if flavour == "async" else None
    four = Flavoured(LedgerSaver(proxy.url), runner)
    try:
        save(four, at("t"), "1")
        assert ids(four.list(at("t"))) == ["1"]
        assert len(proxy.lines) == 1
        proxy.cut()
        assert ids(four.list(at("t"))) == ["1"], "and the next one is made anew"
    finally:
        four.close()
        if runner is not None:
            runner.close()
        proxy.close()


def test_a_loop_ends_while_its_pool_connects(
    fresh_postgres_url: Callable[[], str], caplog: pytest.LogCaptureFixture
) -> None:
    proxy = Proxy(fresh_postgres_url())
    saver = LedgerSaver(proxy.url)

    async def use() -> None:
        await saver.aget_tuple(at("t"))
        proxy.stall_new()
        await asyncio.gather(*(saver.aget_tuple(at("t")) for _ in range(5)))

    program = threading.Thread(target=lambda: asyncio.run(use()), daemon=True)
    program.start()
    program.join(60)
    assert len(proxy.lines) > 1, "one of its connections was on its way"
    assert not program.is_alive()
    assert caplog.records == [], "and nothing has failed"
    saver.close()
    proxy.close()


def test_a_pool_is_used_and_not_exceeded(fresh_postgres_url: Callable[[], str]) -> None:
    """The backends that did it are noted by the database itself."""
    url = fresh_postgres_url()
    with LedgerSaver(url) as saver:
        saver.setup()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE noted (pid int)")
        connection.execute(
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN INSERT INTO noted VALUES (pg_backend_pid()); RETURN NEW; END $$"
        )
        connection.execute("CREATE TRIGGER t AFTER INSERT ON checkpoint_log FOR EACH ROW EXECUTE FUNCTION note()")

        async def many() -> None:
            async with LedgerSaver(url, max_size=10) as saver:
                await asyncio.gather(*(saver.aput(at(f"thread {n}"), checkpoint("1"), METADATA, {}) for n in range(50)))

        asyncio.run(many())
        rows = connection.execute("SELECT pid, count(*) FROM noted GROUP BY pid").fetchall()
    assert sum(count for _, count in rows) == 50
    assert 1 < len(rows) <= 10


def saves(saver: LedgerSaver, name: str, count: int) -> list[str]:
    for number in range(count):
        saver.put(at(f"thread of {name}"), checkpoint(f"{number:03}", {"n": "n" * 500}), METADATA, {"n": "1"})
    return ids(saver.list(at(f"thread of {name}")))


def test_several_threads(backend: Backend) -> None:
    with LedgerSaver(backend.url) as saver, ThreadPoolExecutor(6) as pool:
        for found in pool.map(lambda name: saves(saver, name, 15), "abcdef"):
            assert found == [f"{number:03}" for number in reversed(range(15))]


class LastFirst:
    """A lock that is given to who came last. Locks promise nothing about the order."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.waiting: list[object] = []
        self.held = False

    def __enter__(self) -> None:
        with self.changed:
            me = object()
            self.waiting.append(me)
            self.changed.wait_for(lambda: not self.held and self.waiting[-1] is me)
            self.waiting.pop()
            self.held = True

    def __exit__(self, *_: object) -> None:
        with self.changed:
            self.held = False
            self.changed.notify_all()


def test_more_threads_than_share_one_commit(sqlite_path: str) -> None:
    """Whoever gets to write takes along what waits, but only so much; nobody may be left waiting for it."""
    with LedgerSaver(sqlite_path) as saver:
        saver.setup()
        lock = saver._driver._write_lock = LastFirst()
        threads = [
            threading.Thread(target=saves, args=[saver, f"{n}", 1], daemon=True)
            for n in range(sqlite_driver.MAX_GROUP + 1)
        ]
        with lock:
            for number, thread in enumerate(threads):
                thread.start()
                while len(lock.waiting) <= number:
                    pass
        for thread in threads:
            thread.join(5)
        stuck = sum(thread.is_alive() for thread in threads)
        if stuck:
            saves(saver, "who helps them", 1)
        assert not stuck


def test_one_loop_after_another(backend: Backend) -> None:
    saver = LedgerSaver(backend.url)
    graph = graph_of(saver, lambda name: None)

    async def use(items: list[str]) -> Any:
        found = await graph.ainvoke({"items": items}, at("loops"))
        return found["items"]

    assert asyncio.run(use(["1"])) == ["1", "a", "b"]
    assert asyncio.run(use(["2"])) == ["1", "a", "b", "2", "a", "b"]
    saver.close()


def test_sync_and_async_on_one_object(backend: Backend) -> None:
    """Sync, async, sync from within a running loop, and async from the loop of another thread."""
    saver = LedgerSaver(backend.url)
    graph = graph_of(saver, lambda name: None)

    async def both() -> None:
        await graph.ainvoke({"items": ["async"]}, at("mixed"))
        graph.invoke({"items": ["sync in a loop"]}, at("mixed"))
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(lambda: asyncio.run(graph.ainvoke({"items": ["other loop"]}, at("mixed"))))
            await asyncio.wrap_future(other)
        await asyncio.gather(
            asyncio.to_thread(graph.invoke, {"items": ["thread"]}, at("second")),
            graph.ainvoke({"items": ["beside it"]}, at("third")),
        )

    graph.invoke({"items": ["sync"]}, at("mixed"))
    asyncio.run(both())
    found = graph.get_state(at("mixed")).values["items"]
    assert [item for item in found if item not in "ab"] == ["sync", "async", "sync in a loop", "other loop"]
    assert graph.get_state(at("second")).values["items"] == ["thread", "a", "b"]
    assert graph.get_state(at("third")).values["items"] == ["beside it", "a", "b"]
    saver.close()


FORK = """
import asyncio, os, sys
from langgraph_ledger import LedgerSaver
from tests.crash_scenarios import graph_of
from tests.direct import at

saver = LedgerSaver(sys.argv[1])
graph = graph_of(saver, lambda name: None)
used = sys.argv[2] == "used"
if used:
    graph.invoke({"items": ["before"]}, at("shared"))
pid = os.fork()
me = "parent" if pid else "child"
if pid and sys.argv[2] == "turns":
    os.waitpid(pid, 0)
for number in range(5):
    graph.invoke({"items": [str(number)]}, at(me))
    asyncio.run(graph.ainvoke({"items": [f"async {number}"]}, at(me)))
assert len(graph.get_state(at(me)).values["items"]) == 30
if pid == 0:
    saver.close()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
if used:
    assert graph.invoke({"items": ["after"]}, at("shared"))["items"] == ["before", "a", "b", "after", "a", "b"]
assert len(graph.get_state(at("child")).values["items"]) == 30
saver.close()
"""


def script(text: str, *arguments: str, timeout: float = 60) -> None:
    """Runs a program that must end by itself, without complaint. It is killed after a time, which fails."""
    found = subprocess.run(
        [*PYTHON, "-X", "faulthandler", "-c", text, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.parametrize("before", ["used", "unused"])
def test_a_saver_on_both_sides_of_a_fork(backend: Backend, before: str) -> None:
    script(FORK, backend.url, before)


NEVER_CLOSED = """
import asyncio, sys
from langgraph_ledger import LedgerSaver
from tests.crash_scenarios import graph_of
from tests.direct import at

saver = LedgerSaver(sys.argv[1])
graph = graph_of(saver, lambda name: None)
if sys.argv[2] in ("sync", "both"):
    assert graph.invoke({"items": []}, at("thread"))
if sys.argv[2] in ("async", "both"):
    assert asyncio.run(graph.ainvoke({"items": []}, at("thread")))
print("done")
"""


@pytest.mark.parametrize("flavour", ["sync", "async", "both"])
def test_a_program_that_never_closes_its_saver_ends(backend: Backend, flavour: str) -> None:
    script(NEVER_CLOSED, backend.url, flavour)


@pytest.mark.parametrize("statement", ["begin_write", "insert_checkpoint", "commit"])
def test_a_save_that_is_cancelled(backend: Backend, statement: str) -> None:
    """Whoever awaits the cancelled save finds it done or not begun, and the saver as good as before."""

    async def run() -> None:
        async with LedgerSaver(backend.url, **({"max_size": 1} if backend.kind == "postgres" else {})) as saver:
            await saver.asetup()
            loop, reached = asyncio.get_running_loop(), asyncio.Event()

            def trace(event: str, name: str) -> float | None:
                if (event, name) == ("before", statement):
                    loop.call_soon_threadsafe(reached.set)
                    return 0.01
                return None

            saver._driver.trace = trace
            for number in range(5):
                thread, made = f"cancelled {number}", checkpoint("1", {"value": "v" * 1000})
                task = asyncio.create_task(saver.aput(at(thread), made, METADATA, {"value": "1"}))
                await reached.wait()
                reached.clear()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                seen = [ids([item async for item in saver.alist(at(thread))]) for _ in range(2)]
                assert seen[0] == seen[1]
                assert seen[0] in ([], ["1"])
                await saver.aput(at(thread), checkpoint("2"), METADATA, {})
                assert ids([item async for item in saver.alist(at(thread))]) == ["2", *seen[0]]

    asyncio.run(run())
