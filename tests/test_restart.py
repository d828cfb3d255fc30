"""The restart benchmark in short: workers are killed again and again, and no ticket and no side effect suffers for it.

What its counts are worth is shown by savers and stores in which something does.
"""

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.restart.crashes import Kill, Outcome, at_random, preload, survive
from benchmarks.restart.desk import EFFECTS, Desk
from benchmarks.restart.ways import WAYS, Way, stored

IN_A_TOOL = Kill(1, in_tool=True)
"""A kill that is bound to come between an effect and the end of its call."""


@pytest.fixture
def killed(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Outcome]:
    """Has a few tickets worked on, with these kills."""
    preload(WAYS.values())

    def work(way: Way, tickets: int, kills: list[Kill]) -> Outcome:
        server = request.getfixturevalue("postgres_url") if way.contender.store == "postgres" else ""
        with stored(way, tmp_path, server) as store:
            return survive(store, tmp_path, tickets, kills, pause=0.01, durability="async")

    return work


@pytest.mark.parametrize("key", ["ledger-sqlite-guard", "ledger-postgres-guard"])
def test_nothing_is_lost_and_nothing_happens_twice(killed: Callable[..., Outcome], key: str) -> None:
    by_chance = [Kill(4 + kill.after % 3, kill.delay) for kill in islice(at_random(4, 0.1), 2)]
    kills = [IN_A_TOOL, by_chance[0], IN_A_TOOL, by_chance[1]]
    outcome = killed(WAYS[key], 20, kills)
    assert outcome.kills == len(kills)
    assert (outcome.tickets_lost, outcome.tickets_repeated) == (0, 0)
    assert (outcome.effects_twice, outcome.effects_missing) == (0, 0)
    assert outcome.calls_lost == 0
    assert outcome.in_flight >= 2, "two kills came in a tool"
    assert outcome.in_flight_reported == outcome.in_flight


def test_without_a_guard_an_effect_happens_twice_and_is_on_record(killed: Callable[..., Outcome]) -> None:
    outcome = killed(WAYS["ledger-sqlite"], 4, [IN_A_TOOL])
    assert (outcome.tickets_lost, outcome.effects_twice, outcome.calls_lost) == (0, 1, 0)
    assert (outcome.in_flight, outcome.in_flight_reported, outcome.unknown) == (1, 1, 1)


def test_a_saver_without_a_log_loses_the_call(killed: Callable[..., Outcome]) -> None:
    outcome = killed(WAYS["sqlite"], 4, [IN_A_TOOL])
    assert (outcome.tickets_lost, outcome.effects_twice) == (0, 1)
    assert outcome.calls_lost >= 1, "calls of steps that were still to be saved may be lost with it"
    assert (outcome.in_flight, outcome.in_flight_reported) == (1, 0)


def test_a_saver_in_memory_loses_the_tickets(killed: Callable[..., Outcome]) -> None:
    outcome = killed(WAYS["memory"], 4, [IN_A_TOOL])
    assert (outcome.tickets_lost, outcome.tickets_repeated, outcome.effects_twice) == (4, 1, 1)
    assert outcome.calls_lost > 1


def test_an_effect_that_is_missing_is_seen(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "desk.db")
    desk.open(2)
    desk.execute(1, EFFECTS[0], "a call")
    for ticket in (1, 2):
        desk.mark(ticket, "answered")
    assert (desk.effects_twice(), desk.effects_missing()) == (0, 3)
    desk.close()
