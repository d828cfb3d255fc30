"""No legitimate use of LangGraph is refused, and what a user sees is what InMemorySaver shows.

Every scenario of `tests/scenarios` runs with InMemorySaver, which is the oracle, and with a LedgerSaver on each
database, in all durability modes, sync and async. Nothing may raise StateConflict, nothing may be in the log of
rejected writes, and the observations must be equal. One database serves all of them, as it would in production. The
drivers pause for a few milliseconds at random statements.

Usually each scenario is run three times on each database: in each durability and in each flavour, but not in each
combination of the two. With `LEDGER_REPEATS` it is run in all nine combinations, as often as that says, the first time
at full speed; so this is the whole sweep, with twenty delayed runs:

    LEDGER_REPEATS=21 python -m pytest tests/test_no_false_conflicts.py -n 4
"""

import asyncio
import os
import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from langgraph_ledger import LedgerSaver
from tests.four_ways import Backend
from tests.postgres_server import create_database, drop_database
from tests.scenarios import CASES, DURABILITIES, FLAVOURS, SCENARIOS, Case, arun, run
from tests.scenarios.normalise import differences

REPEATS = int(os.environ.get("LEDGER_REPEATS", "0"))
DEADLINE = 120.0
"""Seconds after which one run of an async case has hung."""
DATABASES = ("sqlite", "postgres")


def chosen(case: Case, kind: str) -> bool:
    """Whether a case belongs to the usual selection: a Latin square of the durabilities and flavours, another for each
    database and for neighbouring scenarios."""
    row, column = DURABILITIES.index(case.durability), FLAVOURS.index(case.flavour)
    return (row + column + list(SCENARIOS).index(case.scenario.name) + DATABASES.index(kind)) % 3 == 0


SELECTED = [(kind, case) for kind in DATABASES for case in CASES if REPEATS or chosen(case, kind)]


@cache
def oracle(case: Case) -> Any:
    return run(case, InMemorySaver())


@pytest.fixture(scope="module")
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    """One database of a kind for the whole module. In the end its digests, chains and references hold."""
    if request.param == "sqlite":
        url = str(tmp_path_factory.mktemp("ledger") / "shared.db")
        yield Backend("sqlite", url)
        all_is_as_it_was_stored(url)
    else:
        server = request.getfixturevalue("postgres_url")
        url = create_database(server)
        yield Backend("postgres", url)
        all_is_as_it_was_stored(url)
        drop_database(server, url)


def all_is_as_it_was_stored(url: str) -> None:
    with LedgerSaver(url) as saver:
        found = saver.verify(None)
    assert [one for one in found if not one.harmless] == []
    assert found.unchained == 0


def pauses(seed: str) -> Callable[[str, str], float | None]:
    """Pauses of up to four milliseconds before or after about every sixth statement, the same for the same seed."""
    chance = random.Random(seed)
    return lambda event, statement: chance.uniform(0, 0.004) if chance.random() < 0.08 else None


def delay(saver: LedgerSaver, case: Case, repeat: int) -> None:
    saver._driver.trace = None if REPEATS and repeat == 0 else pauses(f"{case} {repeat}")


def races(case: Case) -> bool:
    """Whether LangGraph itself may lose a write: its sync loop collects the writes of parallel tasks in one list, from
    several threads and without a lock, and that list is what durability "exit" saves. Such a case may be run again."""
    return case.durability == "exit" and case.flavour == "sync"


def compared(case: Case, one_run: Callable[[], Any]) -> list[str]:
    """Where a run differs from the oracle (expected / found)."""
    found = differences(oracle(case), one_run())
    attempts = 2 if races(case) else 0
    while found and attempts:
        attempts -= 1
        found = differences(run(case, InMemorySaver()), one_run())
    return found


def run_repeatedly(case: Case, url: str) -> None:
    with LedgerSaver(url) as saver, LedgerSaver(url) as second:
        rejected = len(saver.rejected_writes())
        for repeat in range(REPEATS or 1):
            delay(saver, case, repeat)
            assert not compared(case, lambda: run(case, saver, second)), f"run {repeat}"
        assert len(saver.rejected_writes()) == rejected


async def arun_repeatedly(case: Case, url: str) -> None:
    async with LedgerSaver(url) as saver, LedgerSaver(url) as second:
        rejected = len(await saver.arejected_writes())
        for repeat in range(REPEATS or 1):
            delay(saver, case, repeat)
            async with asyncio.timeout(DEADLINE):
                found = await arun(case, saver, second)
            assert not differences(oracle(case), found), f"run {repeat}"
        assert len(await saver.arejected_writes()) == rejected


@pytest.mark.parametrize(("database", "case"), SELECTED, indirect=["database"], ids=str)
def test_seen_as_with_memory(database: Backend, case: Case) -> None:
    oracle(case)  # in no event loop
    if case.asynchronous:
        asyncio.run(arun_repeatedly(case, database.url))
    else:
        run_repeatedly(case, database.url)


@pytest.mark.parametrize(
    "case", [c for c in CASES if REPEATS or (chosen(c, "sqlite") and c.durability == "sync")], ids=str
)
def test_scenarios_are_deterministic(case: Case) -> None:
    """The same saver gives the same observations twice, so that a difference above is the saver's."""
    assert not compared(case, lambda: run(case, InMemorySaver()))


class Forgetful(InMemorySaver):
    """Loses what it says it loses."""

    def __init__(self, loses: str) -> None:
        super().__init__()
        self.loses = loses

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        if self.loses == "the last write":
            writes = writes[:-1]
        super().put_writes(config, writes, task_id, "" if self.loses == "the task path" else task_path)

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        if self.loses == "the parent":
            config = {"configurable": {**config["configurable"], "checkpoint_id": None}}
        if self.loses == "the source":
            metadata = {**metadata, "source": "loop"}
        return super().put(config, checkpoint, metadata, new_versions)


@pytest.mark.parametrize("loses", ["the last write", "the task path", "the parent", "the source"])
def test_a_loss_would_be_seen(loses: str) -> None:
    cases = [c for c in CASES if str(c) in ("fanout_of_100-sync-sync", "interrupt_resume-sync-sync")]
    found = []
    for case in cases:
        try:
            found += differences(oracle(case), run(case, Forgetful(loses)))
        except Exception as error:
            found.append(f"{case}: {error}")
    assert found
