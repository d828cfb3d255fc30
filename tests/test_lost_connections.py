"""Postgres connections that die: between calls, during one, again and again."""

import asyncio
from collections.abc import Callable, Iterator

import psycopg
import pytest

from langgraph_ledger import LedgerSaver
from tests.direct import at, save
from tests.four_ways import Flavoured


class Cut:
    """Ends the backends of a saver's connections, as an administrator or a failing network would."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.count = 0

    def now(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            rows = connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name = 'langgraph_ledger'"
            ).fetchall()
        assert all(row == (True,) for row in rows)
        self.count += len(rows)

    def at(self, event: str, statement: str, times: int = 1) -> Callable[[str, str], None]:
        def trace(*found: str) -> None:
            nonlocal times
            if found == (event, statement) and times:
                times -= 1
                self.now()

        return trace


@pytest.fixture
def cut(fresh_postgres_url: Callable[[], str]) -> Cut:
    return Cut(fresh_postgres_url())


@pytest.fixture
def on_postgres(cut: Cut, flavour: str) -> Iterator[Flavoured]:
    runner = asyncio.Runner() if flavour == "async" else None
    found = Flavoured(LedgerSaver(cut.url), runner)
    yield found
    found.close()
    if runner is not None:
        runner.close()


def test_a_connection_that_died_between_calls(cut: Cut, on_postgres: Flavoured) -> None:
    place = save(on_postgres, at("thread"), "1")
    for number in range(2, 5):
        cut.now()
        place = save(on_postgres, place, str(number))
        cut.now()
        assert on_postgres.get_tuple(at("thread")).checkpoint["id"] == str(number)
    assert cut.count >= 6


@pytest.mark.parametrize("event", ["before", "after"])
@pytest.mark.parametrize("statement", ["begin_write", "claim", "insert_checkpoint", "commit"])
def test_a_connection_that_dies_during_a_call(cut: Cut, on_postgres: Flavoured, event: str, statement: str) -> None:
    """The call is made once more. Also when the commit had gone through, and only its answer was lost."""
    save(on_postgres, at("thread"), "1")
    on_postgres.saver._driver.trace = cut.at(event, statement)
    on_postgres.get_tuple(at("thread"))
    save(on_postgres, at("other"), "2", {"value": "v" * 1000})
    assert cut.count >= 1
    on_postgres.saver._driver.trace = None
    assert [item.checkpoint["id"] for item in on_postgres.list(at("other"))] == ["2"]
    assert on_postgres.call("rejected_writes") == []


def test_a_connection_that_dies_again_and_again(cut: Cut, on_postgres: Flavoured) -> None:
    """It is not tried for ever; what was asked for is not there, and everything works again afterwards."""
    save(on_postgres, at("thread"), "1")
    on_postgres.saver._driver.trace = cut.at("before", "insert_checkpoint", times=99)
    with pytest.raises(ConnectionError, match="put"):
        save(on_postgres, at("other"), "2")
    on_postgres.saver._driver.trace = None
    assert on_postgres.list(at("other")) == []
    save(on_postgres, at("other"), "2")
