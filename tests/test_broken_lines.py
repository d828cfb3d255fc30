"""Lines to Postgres that break while nobody looks on: what was committed and not answered, what was sent in part.

The saver sends its statements together here, as it does at work; where each statement is on its own, with a trace, is
in `test_lost_connections.py`.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.waiting import WAIT_R
from psycopg_pool.base import AttemptWithBackoff

from langgraph_ledger import LedgerSaver
from langgraph_ledger.drivers import connections, postgres
from langgraph_ledger.errors import DatabaseUnavailable
from tests.crash_scenarios import SCENARIOS, Actor, Scenario, put, read
from tests.direct import at
from tests.four_ways import Flavoured
from tests.ledger_rows import comparable, half_written, read_rows
from tests.proxy import Proxy
from tests.recovery.stage import agent, call, config_of, kinds, made


@pytest.fixture
def proxy(fresh_postgres_url: Callable[[], str]) -> Iterator[Proxy]:
    found = Proxy(fresh_postgres_url())
    yield found
    found.close()


@pytest.fixture
def four(proxy: Proxy, flavour: str) -> Iterator[Flavoured]:
    runner = asyncio.Runner() if flavour == "async" else None
    found = Flavoured(LedgerSaver(proxy.url, max_size=1), runner)
    yield found
    found.close()
    if runner is not None:
        runner.close()


@pytest.fixture
def rows(proxy: Proxy) -> Iterator[Callable[[str], Any]]:
    """What a thread (and a copy of it) has left."""
    with psycopg.connect(**proxy.info, autocommit=True) as observer:

        def read(thread: str) -> Any:
            found = read_rows(observer, {thread: "thread", f"{thread}-copy": "copy"})
            assert half_written(found) == []
            return comparable(found, thread)

        yield read


def prepared(four: Flavoured, scenario: Scenario) -> Actor:
    actor = Actor(four, uuid4().hex)
    for make in scenario.ready:
        make(actor)
    return actor


def without_versions(rows: Any) -> Any:
    """A version may be raised twice: nobody has read the one in between."""
    return [(table, {k: v for k, v in row.items() if k != "version"}) for table, row in rows]


MORE = {"set_ttl": Scenario(SCENARIOS["put_writes"].ready, [lambda a: a.on.call("set_ttl", a.thread, None)])}
ALL = {name: scenario for name, scenario in {**SCENARIOS, **MORE}.items() if name != "many"}


def each_answer_lost(proxy: Proxy, act: Callable[[], None]) -> int:
    """Does something again and again: the answer of its first commit is lost, that of its second one, and so on."""
    for commits in itertools.count():
        proxy.lose_commit, lost = commits, proxy.lost
        act()
        if proxy.lost == lost:
            proxy.lose_commit = None
            return commits
    raise AssertionError("unreachable")


@pytest.mark.parametrize("name", ALL)
def test_a_commit_whose_answer_is_lost(four: Flavoured, proxy: Proxy, rows: Callable[[str], Any], name: str) -> None:
    """It is neither made twice nor taken for one that failed: all is as if nothing had happened."""

    def act() -> Any:
        actor = prepared(four, ALL[name])
        for step in ALL[name].calls:
            step(actor)
        return without_versions(rows(actor.thread))

    def compare() -> None:
        assert act() == expected

    expected = act()
    assert each_answer_lost(proxy, compare) >= sum(step is not read for step in ALL[name].calls)


def test_lost_answers_of_a_graph_with_tools(four: Flavoured, proxy: Proxy) -> None:
    effects: list[str] = []

    def act() -> None:
        effects.clear()
        graph = agent(four.saver, [made(four, lambda what: effects.append(what) or what)], [call("x" * 2000, "c1")])
        config = config_of()
        found = four.invoke(graph, {"messages": ["go"]}, config, durability="sync")
        four.update_state(graph, config, {"messages": ["more"]})
        assert len(found["messages"]) == 3
        assert effects == ["x" * 2000]
        assert kinds(four, config) == [("tool_call_started", "c1"), ("tool_call_completed", "c1")]
        assert len(four.get_state(graph, config).values["messages"]) == 4
        assert four.call("rejected_writes") == []

    assert each_answer_lost(proxy, act) >= 7


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9])
def test_a_line_that_breaks_while_a_save_is_sent(
    four: Flavoured, proxy: Proxy, rows: Callable[[str], Any], share: float
) -> None:
    """A part of what was sent has arrived; it is sent anew, and stored once."""
    four.call("setup")
    size = proxy.count_bytes(lambda: put(1)(Actor(four, "measured")))
    actor = Actor(four, "cut")
    cuts = proxy.cuts
    proxy.cut_after(int(size * share))
    put(1)(actor)
    assert proxy.cuts == cuts + 1
    assert rows("cut") == rows("measured")


# --- lines on which nothing comes any more


@pytest.fixture
def silent(proxy: Proxy, flavour: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Flavoured]:
    """A saver that soon gives up on a server which does not answer, with three connections at hand."""
    monkeypatch.setattr(connections, "CANCEL_SECONDS", 0.1)
    yield from three_at_hand(proxy, flavour, answer_timeout=0.5, timeout=2)


@pytest.fixture
def patient(proxy: Proxy, flavour: str) -> Iterator[Flavoured]:
    """The same, and on a busy machine no answer comes too late."""
    yield from three_at_hand(proxy, flavour)


def three_at_hand(proxy: Proxy, flavour: str, **options: Any) -> Iterator[Flavoured]:
    runner = asyncio.Runner() if flavour == "async" else None
    found = Flavoured(LedgerSaver(proxy.url, min_size=3, **options), runner)
    found.call("setup")
    while pool_of(found).get_stats()["pool_available"] < 3:
        found.get_tuple(at("thread"))
    yield found
    proxy.flow()
    found.close()
    if runner is not None:
        runner.close()


def pool_of(four: Flavoured) -> Any:
    driver = four.saver._driver
    return next(iter(driver._loops.values())).pool if four.is_async else driver._pool


def test_a_line_that_falls_silent_is_given_up(silent: Flavoured, proxy: Proxy, rows: Callable[[str], Any]) -> None:
    """So are the others that are as old; what was asked is asked once more."""
    for number in (1, 2):
        proxy.stall()
        put(number)(Actor(silent, "silent"))
        assert len(silent.list(at("silent"))) == number
    for number in (1, 2):
        put(number)(Actor(silent, "heard"))
    assert without_versions(rows("silent")) == without_versions(rows("heard"))


def test_who_answers_slowly_is_listened_to() -> None:
    """However long it takes in all: what counts is how long nothing has been heard."""
    began = time.monotonic()

    def answer() -> Generator[Any, Any, str]:
        while time.monotonic() < began + 0.3:
            yield WAIT_R
            time.sleep(0.05)
        yield WAIT_R
        return "answered"

    def ready_at_once(waiting: Generator[Any, Any, str]) -> str:
        try:
            wanted = next(waiting)
            while True:
                wanted = waiting.send(wanted)
        except StopIteration as stop:
            return str(stop.value)

    assert ready_at_once(connections._listening(answer(), 0.1)) == "answered"


def test_a_server_that_stays_silent(silent: Flavoured, proxy: Proxy) -> None:
    """Nobody waits for ever, and when it speaks again all is well."""
    proxy.stall(all_new=True)
    for ask in (lambda: put(1)(Actor(silent, "thread")), lambda: silent.get_tuple(at("thread"))):
        with pytest.raises(DatabaseUnavailable, match=r"has not answered|is the server reachable"):
            ask()
    proxy.flow()
    patiently(lambda: silent.get_tuple(at("thread")))
    put(1)(Actor(silent, "thread"))
    assert len(silent.list(at("thread"))) == 1


def patiently(act: Callable[[], Any]) -> Any:
    """A pool that could not connect takes its time before it tries again."""
    for _ in range(100):
        with contextlib.suppress(DatabaseUnavailable):
            return act()
    raise AssertionError("it does not come back")


def test_a_thread_that_waits_for_a_connection_holds_up_no_event_loop(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    retries: list[int] = []
    monkeypatch.setattr(postgres, "pause_before_retry", lambda attempt: retries.append(attempt) or 0.0)
    proxy.stall(all_new=True)

    async def both() -> None:
        async with LedgerSaver(proxy.url, connection_kwargs={"connect_timeout": 2}) as saver:
            thread = asyncio.create_task(asyncio.to_thread(saver.get_tuple, at("thread")))
            while not proxy.lines:
                await asyncio.sleep(0.001)
            task = asyncio.create_task(saver.aget_tuple(at("thread")))
            while len(proxy.lines) < 2:
                await asyncio.sleep(0.001)
            proxy.flow()
            assert await asyncio.gather(thread, task) == [None, None]
            assert retries == [], "the loop stood still until the thread had given up"

    asyncio.run(both())


def test_a_pool_whose_connections_have_all_died(
    patient: Flavoured, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is found dead is enough to renew them all: the pool would rest after the second one."""
    rests: list[float] = []

    def rest(attempt: AttemptWithBackoff, now: float) -> None:
        if attempt.timeout < pool_of(patient).reconnect_timeout:  # of a call; that of one that connects may rest
            rests.append(now)

    monkeypatch.setattr(AttemptWithBackoff, "update_delay", rest)

    def refilled() -> bool:  # one that is still being made when lines are cut would come in dead
        stats = pool_of(patient).get_stats()
        return bool(stats["pool_available"] >= max(3, stats["pool_size"]))

    for number in (1, 2):
        proxy.cut()
        put(number)(Actor(patient, "thread"))
        while not refilled():
            patient.get_tuple(at("thread"))
    assert len(patient.list(at("thread"))) == 2
    assert rests == []


# --- connections that are not to be had


def test_a_pool_that_is_exhausted(proxy: Proxy, flavour: str) -> None:
    runner = asyncio.Runner() if flavour == "async" else None
    four = Flavoured(LedgerSaver(proxy.url, max_size=1, timeout=0.05), runner)
    call = (lambda f, *a: f(*a)) if runner is None else (lambda f, *a: runner.run(f(*a)))
    patiently(lambda: four.call("setup"))  # to connect may take longer than that
    taken = call(pool_of(four).getconn)
    with pytest.raises(DatabaseUnavailable, match=r"get_tuple.*all connections of max_size=1 were in use"):
        four.get_tuple(at("thread"))
    call(pool_of(four).putconn, taken)
    assert four.get_tuple(at("thread")) is None
    four.close()
    if runner is not None:
        runner.close()
