"""A Postgres server of the tests' own that is stopped and started under savers: as by a crash, full, as a standby."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import psycopg
import pytest

from langgraph_ledger import LedgerSaver
from langgraph_ledger.errors import DatabaseUnavailable, ReadOnlyLedger
from tests.direct import at, save
from tests.four_ways import Flavoured
from tests.postgres_server import OwnServer, create_database, restartable_server


@pytest.fixture(scope="module")
def server() -> Iterator[OwnServer]:
    with restartable_server() as found:
        yield found


@pytest.fixture
def both(server: OwnServer) -> Iterator[list[Flavoured]]:
    """Two savers, one in each flavour: a restart takes its time, and is for both."""
    with asyncio.Runner() as runner:
        savers = [Flavoured(LedgerSaver(create_database(server.url), timeout=1), found) for found in (None, runner)]
        yield savers
        for four in savers:
            four.close()


def ids(four: Flavoured) -> list[str]:
    return [found.checkpoint["id"] for found in four.list(at("thread"))]


def patiently(act: Callable[[], Any]) -> Any:
    """A pool that could not connect takes its time before it tries again."""
    for _ in range(100):
        with suppress(DatabaseUnavailable):
            return act()
    raise AssertionError("it does not come back")


@pytest.mark.parametrize("mode", ["immediate", "fast"])
def test_a_restart(both: list[Flavoured], server: OwnServer, mode: str) -> None:
    """What was acknowledged is there, and the savers find it by themselves."""
    for four in both:
        save(four, at("thread"), "1", {"value": "v" * 2000})
    server.stop(mode)
    for four in both:
        for ask in (lambda four=four: ids(four), lambda four=four: save(four, at("thread", "1"), "never")):
            with pytest.raises(DatabaseUnavailable):
                ask()
    server.start()
    for four in both:
        assert patiently(lambda four=four: ids(four)) == ["1"]
        save(four, at("thread", "1"), "2")
        assert ids(four) == ["2", "1"]
        assert four.call("verify", "thread") == []


def test_too_many_clients(server: OwnServer) -> None:
    """The reason is told; who has connections works on, and the other one does when there is room."""
    url = create_database(server.url)
    server.stop("fast")
    server.start("-c max_connections=6 -c superuser_reserved_connections=0")
    with LedgerSaver(url, max_size=1) as first, LedgerSaver(url, timeout=1) as second, ExitStack() as taken:
        place = save(Flavoured(first, None), at("thread"), "1")
        with suppress(psycopg.OperationalError):
            while True:
                taken.enter_context(psycopg.connect(url))
        with pytest.raises(DatabaseUnavailable, match="too many clients"):
            second.get_tuple(at("thread"))
        save(Flavoured(first, None), place, "2")
        taken.close()
        found = patiently(lambda: second.get_tuple(at("thread")))
        assert found.checkpoint["id"] == "2"
    server.stop("fast")
    server.start()


def test_a_standby(both: list[Flavoured], server: OwnServer) -> None:
    """It is read; whoever writes is told that it is one, until it is promoted."""
    for four in both:
        save(four, at("thread"), "1")
    server.stop("fast")
    server.stand_by()
    server.start()
    for four in both:
        assert patiently(lambda four=four: ids(four)) == ["1"]
        for ask in (
            lambda four=four: save(four, at("thread", "1"), "2"),
            lambda four=four: four.call("delete_thread", "thread"),
        ):
            with pytest.raises(ReadOnlyLedger, match="it is a standby"):
                ask()
    server.promote()
    for four in both:
        save(four, at("thread", "1"), "2")
        assert ids(four) == ["2", "1"]
