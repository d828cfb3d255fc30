"""One database of each kind for all the tests, a thread for each, and the ways in which a run can save."""

import os
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from langgraph_ledger import LedgerSaver
from tests.conflicts.databases import shared_database
from tests.conflicts.stage import Stage, perform
from tests.four_ways import Backend

Scene = Callable[[Stage], Awaitable[Any]]


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    yield from shared_database(request, tmp_path_factory)


@pytest.fixture(scope="module")
def observer(database: Backend) -> Iterator[LedgerSaver]:
    """A saver that looks at the outcome and has part in nothing."""
    with LedgerSaver(database.url) as saver:
        yield saver


@pytest.fixture(params=["sync", "async", "exit"])
def durability(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["new", "existing"])
def existing(request: pytest.FixtureRequest) -> bool:
    return request.param == "existing"


@pytest.fixture(params=["half"] if os.environ.get("LEDGER_REPEATS", "1") == "1" else ["swift", "delayed"])
def pace(request: pytest.FixtureRequest, flavour: str) -> str:
    """At full speed, or with pauses of two milliseconds before and after statements chosen at random.

    By default half of the cases are delayed. With LEDGER_REPEATS above 1 each runs in both ways.
    """
    if request.param != "half":
        return request.param
    existing = "existing" in request.fixturenames and request.getfixturevalue("existing")
    return "delayed" if existing is (flavour == "async") else "swift"


def pauses(event: str, statement: str) -> float | None:
    return random.choice([None, 0.002])


@pytest.fixture
def play(database: Backend, flavour: str, durability: str, pace: str) -> Callable[..., tuple[Stage, Any]]:
    """Plays a scene on a stage of its own; returns the stage and what the scene returned."""

    def run(scene: Scene, **options: Any) -> tuple[Stage, Any]:
        trace = pauses if pace == "delayed" else None
        return perform(database.url, flavour, durability, scene, trace=trace, **options)

    return run
