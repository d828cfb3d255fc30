"""Savers that reach Postgres through a pgbouncer in transaction mode: it gives each transaction another connection."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from langgraph_ledger import LedgerSaver, StateConflict, retry_on_conflict
from langgraph_ledger.errors import DatabaseUnavailable
from tests.direct import at, save
from tests.four_ways import Flavoured
from tests.pgbouncer import PROGRAM, PgBouncer, pgbouncer
from tests.postgres_server import create_database, drop_database

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="there is no pgbouncer here: Debian's package has it")

WORKERS, TURNS = 6, 4


@pytest.fixture(scope="module")
def bouncer(postgres_url: str) -> Iterator[PgBouncer]:
    with pgbouncer(postgres_url) as started:
        yield started


@pytest.fixture(scope="module")
def url(postgres_url: str, bouncer: PgBouncer) -> Iterator[str]:
    """A database, by way of the pooler."""
    direct = create_database(postgres_url)
    yield bouncer.url(direct)
    drop_database(postgres_url, direct)


@pytest.fixture
def four(url: str, flavour: str) -> Iterator[Flavoured]:
    with asyncio.Runner() as runner:
        four = Flavoured(LedgerSaver(url), runner if flavour == "async" else None)
        yield four
        four.close()


def graph_on(saver: Any) -> Any:
    def ask(state: MessagesState) -> Any:
        return {"messages": [str(interrupt("well?"))]}

    builder = StateGraph(MessagesState).add_node(ask).add_node("say", lambda state: {"messages": ["said"]})
    return builder.add_edge(START, "say").add_edge("say", "ask").compile(checkpointer=saver)


def texts(values: Any) -> list[str]:
    return [message.content for message in values["messages"]]


def test_turns_and_questions(four: Flavoured) -> None:
    graph, config = graph_on(four.saver), at(uuid4().hex)
    expected: list[str] = []
    for turn in range(8):  # psycopg prepares what is executed a sixth time, where it may
        four.invoke(graph, {"messages": [f"input {turn}"]}, config)
        values = four.invoke(graph, Command(resume=f"answer {turn}"), config)
        expected += [f"input {turn}", "said", f"answer {turn}"]
        assert texts(values) == expected
    assert texts(four.get_state(graph, config).values) == expected
    assert four.call("verify", config["configurable"]["thread_id"]) == []


def test_of_two_writers_one_wins(four: Flavoured) -> None:
    thread = uuid4().hex
    save(four, at(thread), "1")
    first, second = four.get_tuple(at(thread)), four.get_tuple(at(thread))
    save(four, first.config, "2")
    with pytest.raises(StateConflict):
        save(four, second.config, "3")
    assert [entry.checkpoint_id for entry in four.call("rejected_writes", thread)] == ["3"]
    assert four.get_tuple(at(thread)).checkpoint["id"] == "2"


def test_more_writers_than_connections(url: str) -> None:
    """Each has a saver of its own, all are at one thread: nothing that a turn was told is stored is lost."""
    config, together = at(uuid4().hex), threading.Barrier(WORKERS, timeout=300)

    def work(number: int) -> list[str]:
        with LedgerSaver(url, max_size=2) as saver:
            builder = StateGraph(MessagesState).add_node("say", lambda state: {"messages": ["said"]})
            graph = builder.add_edge(START, "say").compile(checkpointer=saver)
            together.wait()
            told = [f"input {number} {turn}" for turn in range(TURNS)]
            for text in told:
                retry_on_conflict(graph, {"messages": [text]}, config, attempts=50)
            return told

    with ThreadPoolExecutor(WORKERS) as pool:
        told = [text for texts in pool.map(work, range(WORKERS)) for text in texts]
    with LedgerSaver(url) as saver:
        found = texts(graph_on(saver).get_state(config).values)
        assert sorted(text for text in found if text != "said") == sorted(told)
        assert found.count("said") == len(told)
        assert saver.verify(config["configurable"]["thread_id"]) == []


def test_a_pooler_that_crashes(four: Flavoured, bouncer: PgBouncer) -> None:
    """The saver connects anew, and what was stored is there."""
    thread = uuid4().hex
    place = save(four, at(thread), "1")
    for number in range(2, 5):
        bouncer.stop()
        bouncer.start()
        place = save(four, place, str(number))
    assert [item.checkpoint["id"] for item in four.list(at(thread))] == ["4", "3", "2", "1"]


def test_statement_mode_is_refused(postgres_url: str, fresh_postgres_url: Callable[[], str]) -> None:
    """A save is a transaction, which that mode does not have: pgbouncer ends the connection, and nothing is stored."""
    direct = fresh_postgres_url()
    with pgbouncer(postgres_url, mode="statement") as bouncer, LedgerSaver(bouncer.url(direct)) as saver:
        with pytest.raises(DatabaseUnavailable, match="server closed the connection"):
            save(Flavoured(saver, None), at("t"), "1")
        log = (bouncer.directory / "log").read_text()
    assert "transaction blocks not allowed in statement pooling mode" in log
    with psycopg.connect(direct) as connection:
        tables = connection.execute("SELECT count(*) FROM pg_tables WHERE tablename = 'checkpoint_log'").fetchone()
    assert tables == (0,)
