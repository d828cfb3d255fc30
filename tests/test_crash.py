"""SIGKILL before and after every statement of every write, on both databases: all or nothing, and nothing lost.

A process of its own makes the calls and kills itself at one event of the driver's trace; which events there are is
found out by a run that is left alone, so a statement that is added later is killed at too. Afterwards the rows are
those of before the call that was interrupted, or of after it, all that was acknowledged is there, and a graph goes on
from them.
"""

import itertools
import random
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from langgraph_ledger import LedgerSaver
from tests.crash_scenarios import GROUP, SCENARIOS, graph_of
from tests.crash_worker import APPLICATION, Crashes
from tests.four_ways import Backend
from tests.ledger_rows import Rows, comparable, half_written, read_rows
from tests.postgres_server import create_database, drop_database

KILLED = -9


class Remains:
    """A database whose clients are killed, and what they leave in it."""

    def __init__(self, backend: Backend, **options: Any) -> None:
        self.url, self.on_postgres, self.options = backend.url, backend.kind == "postgres", options
        self.observer = psycopg.connect(self.url, autocommit=True) if self.on_postgres else None
        self.saver = LedgerSaver(self.url, **options)
        self.saver.setup()

    def close(self) -> None:
        if self.observer is not None:
            self.observer.close()
        self.saver.close()

    @contextmanager
    def reopened(self) -> Iterator[LedgerSaver]:
        """A saver that knows nothing of the thread. On SQLite nobody else has the file open: this recovers it."""
        if self.on_postgres:
            yield self.saver
            return
        with LedgerSaver(self.url, **self.options) as saver:
            yield saver

    def settle(self) -> None:
        """Until the server has noticed that its clients are gone: it may still commit what they had sent."""
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s"
        while self.observer is not None and self.observer.execute(query, [APPLICATION]).fetchone() != (0,):
            pass

    def rows(self, thread: str) -> Rows:
        self.settle()
        names = {thread: "thread", f"{thread}-copy": "copy"}
        if self.observer is not None:
            return read_rows(self.observer, names)
        connection = sqlite3.connect(self.url)  # each time anew: this is where SQLite recovers
        try:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            return read_rows(connection, names)
        finally:
            connection.close()


def left(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, **options: Any) -> Iterator[Remains]:
    """What `remains` gives, with options for the saver that looks at it afterwards."""
    if request.param == "sqlite":
        found = Remains(Backend("sqlite", str(tmp_path_factory.mktemp("crash") / "ledger.db")), **options)
        found.close()  # what is killed must be the only one to have the file open
        yield found
        return
    server = request.getfixturevalue("postgres_url")
    url = create_database(server)
    found = Remains(Backend("postgres", url), **options)
    yield found
    found.close()
    drop_database(server, url)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def remains(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remains]:
    yield from left(request, tmp_path_factory)


@pytest.fixture(scope="module")
def crashes() -> Iterator[Crashes]:
    worker = Crashes()
    yield worker
    worker.close()


def events(said: list[str]) -> list[str]:
    return [line.removeprefix("event ") for line in said if line.startswith("event ")]


def killed_everywhere(crashes: Crashes, **job: Any) -> Iterator[tuple[str, list[str]]]:
    """Does a job over and over, killed at its first event, at its second and so on, until some come to their end.

    (More than one, because writes share commits by chance: one run may have fewer events than the next.) Gives the
    thread of each and what it said; the last event is the one that it did not outlive.
    """
    survivors = 0
    for at in itertools.count():
        thread = uuid4().hex
        code, said = crashes.run(thread=thread, kill_at=at, **job)
        if code == KILLED:
            assert at > 0 or events(said) == ["before begin_write"]
            yield thread, said
            continue
        assert at > 10
        survivors += 1
        if survivors == 3:
            return


def states_after_each_call(remains: Remains, crashes: Crashes, name: str) -> list[Any]:
    """The rows after no call, after one, and so on."""
    found = []
    for calls in range(len(SCENARIOS[name].calls) + 1):
        thread = uuid4().hex
        code, said = crashes.run(scenario=name, url=remains.url, thread=thread, calls=calls)
        assert (code, said.count("ack")) == (0, calls)
        rows = remains.rows(thread)
        assert half_written(rows) == []
        found.append(comparable(rows, thread))
    return found


def goes_on(remains: Remains, thread: str) -> None:
    """Digests and chains hold; a graph takes what is there and finishes."""
    with remains.reopened() as saver:
        assert [found for found in saver.verify(thread) if not found.harmless] == []
        config: Any = {"configurable": {"thread_id": thread}}
        found = saver.get_tuple(config)
        before = found.checkpoint["channel_values"]["items"] if found else []
        after = graph_of(saver, lambda name: None).invoke({"items": ["more"]}, config)
        assert after["items"] == [*before, "more", "a", "b"]


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in ("many", "working context")])
def test_killed_at_every_statement(remains: Remains, crashes: Crashes, name: str) -> None:
    states = states_after_each_call(remains, crashes, name)
    reached: set[int] = set()
    for thread, said in killed_everywhere(crashes, scenario=name, url=remains.url):
        acknowledged = said.count("ack")
        rows = remains.rows(thread)
        assert half_written(rows) == [], said
        here = {n for n, state in enumerate(states) if state == comparable(rows, thread)}
        assert here & {acknowledged, acknowledged + 1}, (said, here)
        reached |= here
        goes_on(remains, thread)
    assert reached == set(range(len(states)))


def test_killed_at_every_statement_while_the_tables_are_made(
    remains: Remains, crashes: Crashes, tmp_path: Path
) -> None:
    def place(name: str) -> dict[str, Any]:
        return (
            {"url": remains.url, "schema": name}
            if remains.on_postgres
            else {"url": str(tmp_path / name), "schema": None}
        )

    def tables(name: str) -> set[str]:
        if remains.observer is not None:
            remains.settle()
            query = "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(%s)"
            return {row[0] for row in remains.observer.execute(query, [name])}
        connection = sqlite3.connect(tmp_path / name)
        found = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
        connection.close()
        return found

    _, said = crashes.run(scenario="tables", thread="-", **place("complete"))
    complete, seen = tables("complete"), []
    assert complete
    for at, point in enumerate(events(said)):
        where = place(f"part_{at}")
        code, _ = crashes.run(scenario="tables", thread="-", kill_at=at, **where)
        assert code == KILLED
        seen.append(tables(f"part_{at}"))
        assert seen[-1] in (set(), complete), point
        with LedgerSaver(where["url"], schema=where["schema"]) as saver:
            assert graph_of(saver, lambda name: None).invoke({"items": []}, {"configurable": {"thread_id": "t"}})
    assert set() in seen
    assert seen[-1] == complete


@pytest.mark.parametrize(("flavour", "durability"), [("sync", "sync"), ("async", "async")])
def test_a_graph_killed_at_every_statement_resumes_where_it_was(
    remains: Remains, crashes: Crashes, flavour: str, durability: str
) -> None:
    job = {"scenario": "graph", "url": remains.url, "flavour": flavour, "durability": durability}
    for thread, said in killed_everywhere(crashes, **job):
        assert half_written(remains.rows(thread)) == [], said
        ran, done = resumed(remains, thread)
        assert ran == [name for name in ("a", "b") if name not in done], said
        if durability == "sync" and "ran b" in said:
            assert "a" in done, said


def resumed(remains: Remains, thread: str) -> tuple[list[str], list[str]]:
    """Lets a graph finish what was begun: which nodes ran now, and which had been done before."""
    config: Any = {"configurable": {"thread_id": thread}}
    ran: list[str] = []
    done: list[str] = []
    with remains.reopened() as saver:
        graph = graph_of(saver, ran.append)
        found = saver.get_tuple(config)
        if found is not None:
            done += found.checkpoint["channel_values"].get("items", [])
            done += [name for _, channel, names in found.pending_writes or () if channel == "items" for name in names]
        assert graph.invoke(None if found else {"items": ["in"]}, config)["items"] == ["in", "a", "b"]
    return ran, done


def test_killed_in_a_commit_that_several_share(remains: Remains, crashes: Crashes) -> None:
    if remains.on_postgres:
        pytest.skip("commits are shared where there is one writer")
    _, said = crashes.run(scenario="group", url=remains.url, thread=uuid4().hex)
    points = events(said)
    assert points.count("after commit") == 1
    stored = []
    for at, _ in enumerate(points):
        thread = uuid4().hex
        assert crashes.run(scenario="group", url=remains.url, thread=thread, kill_at=at)[0] == KILLED
        each = [remains.rows(f"{thread}-{number}") for number in range(GROUP)]
        assert all(half_written(rows) == [] for rows in each)
        stored.append({len(rows["checkpoint_log"]) for rows in each})
    assert stored == [{0}] * (len(points) - 1) + [{1}]


def test_killed_at_any_instant(remains: Remains, crashes: Crashes) -> None:
    """Without the trace, so that Postgres is sent whole transactions as one pipeline."""
    chance = random.Random(1)
    for _ in range(20):
        thread = uuid4().hex
        code, said = crashes.run(
            scenario="many",
            url=remains.url,
            thread=thread,
            traced=False,
            kill_after=(chance.randint(1, 20), chance.randint(0, 100_000)),
        )
        rows = remains.rows(thread)
        assert half_written(rows) == []
        stored = [row["checkpoint_id"] for row in rows["checkpoint_log"]]
        acknowledged = said.count("ack")  # of a read and then puts; the first checkpoint was there before
        assert len(stored) in (acknowledged, acknowledged + 1) or code == 0
        goes_on(remains, thread)
