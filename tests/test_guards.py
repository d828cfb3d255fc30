"""Each statement behind a claim asks by itself whether the claim holds: a run that has lost stores nothing at all.

The operations are sent as a run would send them that has been overtaken, and every row of every table is looked at.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from langgraph_ledger import LedgerSaver
from langgraph_ledger.operations.calls import STARTED, CallEntry, put_call_start
from langgraph_ledger.operations.checkpoints import (
    HELD,
    NewCheckpoint,
    PlacedWrite,
    Writer,
    put_checkpoint,
    put_pending_writes,
)
from langgraph_ledger.places import MemoryRow, WriteRow
from langgraph_ledger.sql import load
from langgraph_ledger.statements import Operation
from tests.direct import at, contents, save, shared_backend
from tests.four_ways import Backend, Flavoured

backend = shared_backend

GUARD = re.compile(r"EXISTS \(SELECT 1 FROM agent_state_ledger g WHERE .*? AND g\.writer = (:writer|%\(writer\)s)\)")
GUARDED = sorted(name for name, text in load("sqlite").texts.items() if GUARD.search(text))
NOW = "2030-01-01T00:00:00+00:00"
TOKEN = "the token of a run that was overtaken"
ROWS = [MemoryRow(b"\x80" + b"m" * 15, "part", 3, b"row", None)]


def writes(checkpoint_id: str) -> list[PlacedWrite]:
    """One that is kept if it is the first of its place, and one that replaces what is there."""
    return [("", checkpoint_id, WriteRow("task", idx, "", "channel", b"place", None)) for idx in (0, -1)]


def new(agent_id: str) -> NewCheckpoint:
    return NewCheckpoint(
        agent_id, "new", "first", None, None, "{}", b"body", None, 4, "{}", None, ROWS, writes("first"), "failed", "{}"
    )


def call() -> CallEntry:
    return CallEntry("thread", "", STARTED, "first", None, None, "task", "call", "try", "{}", None, None, ROWS)


OPERATIONS: dict[str, Callable[[Writer], Operation[Any]]] = {
    "put": lambda writer: put_checkpoint(writer, new(""), NOW),
    "put of a subgraph": lambda writer: put_checkpoint(writer, new("sub:1"), NOW),
    "put_writes": lambda writer: put_pending_writes(writer, writes("first"), {("", "first"): ROWS}, "failed", NOW),
    "call": lambda writer: put_call_start(writer, call(), "failed", NOW),
}
TERMS = {"that had claimed": HELD, "that had read": 0}


@pytest.fixture
def thread(backend: Backend) -> Backend:
    """A database with a thread of one checkpoint, which somebody holds."""
    with LedgerSaver(backend.url) as saver:
        saver.delete_thread("thread")
        saver.get_tuple(at("thread"))  # who has read that it is deleted may begin anew
        save(Flavoured(saver, None), at("thread"), "first", {"a": 1})
    return backend


def weakened(saver: LedgerSaver, statement: str) -> LedgerSaver:
    """The saver, one of whose statements asks nobody."""
    driver: Any = saver._driver
    text, count = GUARD.subn("1 = 1", driver._dialect.texts[statement])
    assert count == 1
    driver._dialect = replace(driver._dialect, texts={**driver._dialect.texts, statement: text})
    return saver


def writer(read_version: int) -> Writer:
    return Writer("thread", TOKEN, read_version, "first", "{}", None)


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_run_that_was_overtaken_stores_nothing(thread: Backend, name: str, terms: str) -> None:
    before = contents(thread)
    with LedgerSaver(thread.url) as saver:
        assert saver._driver.run(OPERATIONS[name](writer(TERMS[terms]))) is None
    assert contents(thread) == before


@pytest.mark.parametrize("statement", GUARDED)
def test_it_is_seen_when_a_guard_is_taken_away(thread: Backend, statement: str) -> None:
    """Of each statement that has one: so there is none that the test above does not send."""
    before = contents(thread)
    with weakened(LedgerSaver(thread.url), statement) as saver:
        for operation in OPERATIONS.values():
            assert saver._driver.run(operation(writer(HELD))) is None
    assert contents(thread) != before


def test_both_databases_guard_the_same_statements() -> None:
    assert sorted(name for name, text in load("postgres").texts.items() if GUARD.search(text)) == GUARDED
    assert {"insert_checkpoint", "insert_memory", "insert_write", "insert_call", "touch_session"} <= set(GUARDED)
