"""SIGKILL before and after every statement about working context, on both databases.

Working values are kept in a transaction of their own, after the save that they belong to. So a kill may cost what the
call that it hit had to keep, and nothing that was acknowledged before: for that it takes a power cut.
"""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from langgraph_ledger import LedgerSaver
from tests.crash_worker import Crashes
from tests.direct import query
from tests.four_ways import Backend
from tests.ledger_rows import half_written
from tests.test_crash import KILLED, Remains, comparable, crashes, events, goes_on, left, states_after_each_call

__all__ = ["crashes"]

Shown = tuple[Any, list[Any]]
"""The value of the working channel, and what tasks have written to it."""

NAME = "working context"
KEPT: list[Shown] = [
    (None, []),
    (None, []),
    ("thought 1", []),
    ("thought 1", ["what was written"]),
    ("thought 2", []),
    (None, []),
]
"""After no call, after one, and so on."""
LOST: dict[int, Shown] = {2: (None, []), 3: ("thought 1", []), 4: (None, [])}
"""The same where the call's save is there, and what it had to keep is not."""


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def remains(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remains]:
    yield from left(request, tmp_path_factory, working_channels={"thought"})


def durable(state: Any) -> Any:
    return [row for row in state if row[0] != "working_context"]


def shown(saver: LedgerSaver, thread: str) -> Shown:
    found = saver.get_tuple({"configurable": {"thread_id": thread}})
    if found is None:
        return None, []
    written = [value for _, channel, value in found.pending_writes or () if channel == "thought"]
    return found.checkpoint["channel_values"].get("thought"), written


def about_working(crashes: Crashes, remains: Remains) -> list[int]:
    """Which events to be killed at: those of all transactions with a statement about it. The others are killed in
    `test_crash.py`."""
    _, said = crashes.run(scenario=NAME, url=remains.url, thread=uuid4().hex)
    found: list[int] = []
    transaction: list[int] = []
    for at, event in enumerate(points := events(said)):
        transaction = [at] if event == "before begin_write" else [*transaction, at]
        if event == "after commit" and any("_working" in points[number] for number in transaction):
            found += transaction
    assert len(found) > 20
    return found


def test_killed_at_every_statement(remains: Remains, crashes: Crashes) -> None:
    states = [durable(state) for state in states_after_each_call(remains, crashes, NAME)]
    seen = set()
    for at in about_working(crashes, remains):
        thread = uuid4().hex
        code, said = crashes.run(scenario=NAME, url=remains.url, thread=thread, kill_at=at)
        assert code == KILLED
        acknowledged = said.count("ack")
        rows = remains.rows(thread)
        assert half_written(rows) == [], said
        now = durable(comparable(rows, thread))
        here = max(n for n in (acknowledged, acknowledged + 1) if now == states[n])
        with remains.reopened() as saver:
            found = shown(saver, thread)
            assert found == KEPT[here] or (here > acknowledged and found == LOST.get(here)), said
            assert saver.recover(thread).lost_context == (("thought",) if 2 <= here <= 4 and not found[0] else ())
            seen.add((here, found == KEPT[here]))
            if here == 5:
                saver.delete_thread(thread)  # again, as whoever was not told that it is done would
                assert left_of(remains, thread) == 0
        if found != KEPT[here]:
            goes_on(remains, thread)
    assert {(n, kept) for n in LOST for kept in (True, False)} <= seen


def left_of(remains: Remains, thread: str) -> int:
    place = Backend("postgres", remains.url) if remains.on_postgres else Backend("sqlite", f"{remains.url}-working")
    return int(query(place, "SELECT COUNT(*) FROM working_context WHERE session_id = ?", thread)[0][0])
