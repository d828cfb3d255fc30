"""The soak in short. What it counts does not depend on time: after more rounds there is as much as after fewer.

A round is every activity once, in each of four lanes: two threads and two event loops, on two savers.
"""

import gc
import logging
import os
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import langgraph_ledger
from benchmarks.soak.lane import Lanes
from benchmarks.soak.samples import Sample, descriptors, is_supported, ledger_objects, remember_less, remembered
from benchmarks.soak.verdict import FEWEST, verdict
from langgraph_ledger import LedgerSaver, ids, images, invocations, ledger, runs, tool_log
from tests.four_ways import Backend

PACKAGE = os.path.join(os.path.dirname(langgraph_ledger.__file__), "*")
LITTLE = 40
"""Entries that savers remember here, so that there are soon no more."""

pytestmark = [
    pytest.mark.skipif(not is_supported(), reason="what a process holds is read from /proc, which only Linux has"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # LangGraph's, of dropped streams
]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """LangGraph says of streams that were left, LangChain of tools that were refused."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (runs, ledger, invocations, tool_log):
        monkeypatch.setattr(module, "REMEMBERED", module.REMEMBERED)
    monkeypatch.setattr(ledger, "REMEMBERED_IDS", ledger.REMEMBERED_IDS)
    monkeypatch.setattr(images, "IMAGE_BYTES", images.IMAGE_BYTES)
    remember_less(LITTLE)


def life(url: str) -> None:
    """Savers that are made, used for everything, and closed."""
    with Lanes(url, threads=8) as lanes:
        lanes.round()
        lanes.fork()
    assert sum(count for what, count in lanes.told.items() if what.endswith("done")) > len(lanes.told) / 2


def held() -> dict[str, Any]:
    """What is left when nobody uses a saver any more."""
    deadline = time.monotonic() + 60
    while any(thread.name == "ledger-flush" for thread in threading.enumerate()):  # goes when it has long been idle
        assert time.monotonic() < deadline
        time.sleep(0.05)
    objects = ledger_objects()
    found = remembered([])
    del found["tool_calls"]  # marks of refused calls, which go when there are many of them
    return {
        "descriptors": descriptors(),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "objects": objects,
        "remembered": found,
    }


def test_closed_savers_leave_nothing_behind(backend: Backend) -> None:
    life(backend.url)  # what is imported and kept for good is there then
    before = held()
    for _ in range(2):
        life(backend.url)
    assert held() == before


def test_a_saver_in_use_holds_no_more_after_more_rounds(backend: Backend, forgetful: None) -> None:
    def allocated() -> int:
        gc.collect()
        ids._is_clean.cache_clear()  # type: ignore[attr-defined]  # has 4,096 entries at most
        found = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, PACKAGE)])
        return sum(statistic.size for statistic in found.statistics("filename"))

    with Lanes(backend.url, threads=8) as lanes:
        lanes.round()
        threads = threading.active_count()
        tracemalloc.start()
        try:
            lanes.round()
            first = allocated()
            lanes.round()
            second = allocated()
        finally:
            tracemalloc.stop()
        assert second < first * 1.5 + 200_000
        assert threading.active_count() <= threads + sum(lanes.limits.values())
        known = remembered(lanes.savers)
        assert known["makers"] == known["invocations"] == LITTLE * len(lanes.savers), "all that may be, and no more"
        assert known["open_runs"] <= LITTLE * len(lanes.savers)
        assert known["tool_calls"] <= LITTLE
        assert (known["late"], known["waiting"], known["waiting_queues"]) == (0, 0, 0)


# --- the verdict


def samples(count: int = 3 * FEWEST, **each: Any) -> list[Sample]:
    """Of which nothing rises but what `each` says of their number."""
    flat = Sample(0.0, 0, 100, 20, 10, 4, 6, 8, 1000, 500, 300, 0)
    return [
        replace(flat, seconds=10.0 * number, **{name: rise(number) for name, rise in each.items()})
        for number in range(count)
    ]


def test_what_rises_is_seen() -> None:
    limits = {"pooled": 32, "connections": 40}
    assert all(found.flat for found in verdict(samples(), limits))
    for name in ("memory", "descriptors", "threads", "tasks", "objects", "ledger_objects", "remembered"):
        rising = verdict(samples(**{name: lambda number: 100 + 2 * number}), limits)
        assert [found.name for found in rising if not found.flat] == [name]
        assert next(found for found in rising if found.name == name).slope == pytest.approx(720)
        warming_up = verdict(samples(**{name: lambda number: 100 + min(number, FEWEST)}), limits)
        assert all(found.flat for found in warming_up)
    grown = verdict(samples(pooled=lambda number: 7 + number), limits)
    assert [found.name for found in grown if not found.flat] == ["pooled"]
    assert all(found.flat for found in verdict(samples(pooled=lambda number: 5 + number), limits))
    with pytest.raises(ValueError, match="too few"):
        verdict(samples(FEWEST - 1), limits)


def test_what_is_left_behind_is_seen(tmp_path: Path) -> None:
    """A saver that nobody closes, a descriptor, a thread, a run that is kept: each shows in what is counted."""
    before, kept = held(), list[Any]()
    url = str(tmp_path / "ledger.db")
    kept.append(LedgerSaver(url))
    kept[0].setup()
    kept.append(threading.Thread(target=threading.Event().wait, args=(60,), daemon=True, name="left"))
    kept[1].start()
    after = held()
    assert after["descriptors"] > before["descriptors"]
    assert after["threads"] == sorted([*before["threads"], "left"])
    assert after["objects"]["LedgerSaver"] == before["objects"]["LedgerSaver"] + 1
    assert after["remembered"] - before["remembered"] == Counter(files=1, queues=1)
    kept[0].close()
