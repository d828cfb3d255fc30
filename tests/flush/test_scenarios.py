"""Whatever the policy, no legitimate use of LangGraph is refused, and a user sees what InMemorySaver shows."""

import asyncio

import pytest

from langgraph_ledger import Batched, LedgerSaver
from tests.four_ways import Backend
from tests.scenarios import CASES, DURABILITIES, FLAVOURS, SCENARIOS, Case, arun, run
from tests.test_no_false_conflicts import DATABASES, compared, database, differences, oracle, pauses

__all__ = ["database"]

POLICIES = {"batched": Batched(3, 0.01), "important": "important"}


def picked(case: Case, kind: str, policy: str) -> bool:
    """One of the nine combinations of durability and flavour, for half of the scenarios, on one database."""
    number = 3 * DURABILITIES.index(case.durability) + FLAVOURS.index(case.flavour)
    row, column = list(SCENARIOS).index(case.scenario.name), list(POLICIES).index(policy)
    return (row + column) % 4 == DATABASES.index(kind) and number == (2 * row + 5 * column) % 9


SELECTED = [(k, p, case) for k in DATABASES for p in POLICIES for case in CASES if picked(case, k, p)]


@pytest.mark.parametrize(("database", "policy", "case"), SELECTED, indirect=["database"], ids=str)
def test_seen_as_with_memory(database: Backend, policy: str, case: Case) -> None:
    oracle(case)  # in no event loop
    flush = POLICIES[policy]

    async def check() -> None:
        async with LedgerSaver(database.url, flush=flush) as saver, LedgerSaver(database.url, flush=flush) as second:
            rejected = len(await saver.arejected_writes())
            saver._driver.trace = pauses(f"{case} {policy}")
            async with asyncio.timeout(120):
                assert not differences(oracle(case), await arun(case, saver, second))
            assert len(await saver.arejected_writes()) == rejected

    if case.asynchronous:
        asyncio.run(check())
        return
    with LedgerSaver(database.url, flush=flush) as saver, LedgerSaver(database.url, flush=flush) as second:
        rejected = len(saver.rejected_writes())
        saver._driver.trace = pauses(f"{case} {policy}")
        assert not compared(case, lambda: run(case, saver, second))
        assert len(saver.rejected_writes()) == rejected
