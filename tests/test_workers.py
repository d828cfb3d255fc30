"""The benchmark of many workers in short: what it counts is there, and what its counts are worth."""

import json
from typing import Any

import pytest

from benchmarks import page
from benchmarks.workers import report
from benchmarks.workers.contest import Verdict, judge, own_threads, preload, shared_threads
from benchmarks.workers.large import COPIED, compare
from benchmarks.workers.shift import STEPS

SECONDS = 0.5


@pytest.fixture(autouse=True)
def loaded() -> None:
    preload()


def test_workers_on_threads_of_their_own(postgres_url: str) -> None:
    found = own_threads(postgres_url, "ledger-partitions", 2, SECONDS)
    assert found["turns"] >= 2, "each of them has done one"
    assert found["checkpoints"] == pytest.approx(found["turns"] * (STEPS + 2))
    assert len(found["turn ms"]) == found["turns"]
    assert len(found["put ms"]) == found["turns"] * (STEPS + 2)
    assert found["hot"]["agent_state_ledger"][1] > 0


def test_nothing_is_lost_on_shared_threads(postgres_url: str) -> None:
    found = shared_threads(postgres_url, "ledger", 2, SECONDS, 1, retry=True)
    assert found["acknowledged"] == found["turns"] > 0
    assert (found["lost"], found["twice"], found["unasked"]) == (0, 0, 0)
    assert found["runs"] == found["turns"] + found["refused"]
    assert found["on record"] >= found["refused"]


def test_what_is_lost_or_there_twice_is_counted() -> None:
    assert judge(["a", "b", "c"], ["a", "c", "c", "d"]) == Verdict(acknowledged=3, lost=1, twice=1, unasked=1)


def test_large_tables_and_the_page(postgres_url: str) -> None:
    found: dict[str, Any] = {"environment": {}, "large tables": compare(postgres_url, 4 * COPIED, 2, 3, warm=1)}
    assert found["large tables"]["checkpoints"] == 4 * COPIED
    text = report.parts(found)["large tables"]
    assert all(
        f"| {name} ms" in text for name in ("get_tuple", "put", "put_writes", "list(10)", "prune", "delete_thread")
    )


def test_the_page_shows_the_figures_that_are_kept() -> None:
    text = report.PAGE.read_text("utf-8")
    for part, content in report.parts(json.loads(report.RESULTS.read_text("utf-8"))).items():
        assert page.fill(text, part, content) == text, part
