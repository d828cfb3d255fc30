"""Fixtures: databases, and a saver over each database in each flavour."""

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.four_ways import Backend, Flavoured
from tests.postgres_server import create_database, drop_database, own_server


def pytest_xdist_auto_num_workers() -> int:
    """More than there are processors: half of the time tests wait, for disks and for processes that they start."""
    return 2 * (os.cpu_count() or 1)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A running server: the one whose URL is in the environment, or one of this test process's own."""
    given = os.environ.get("LANGGRAPH_LEDGER_TEST_POSTGRES")
    if given:
        yield given
    else:
        with own_server(in_memory=True) as url:
            yield url


@pytest.fixture
def fresh_postgres_url(postgres_url: str) -> Iterator[Callable[[], str]]:
    """Each call creates an empty database and returns its URL."""
    created: list[str] = []

    def create() -> str:
        created.append(create_database(postgres_url))
        return created[-1]

    yield create
    for url in created:
        drop_database(postgres_url, url)


@pytest.fixture
def sqlite_path(tmp_path: Path) -> str:
    return str(tmp_path / "ledger.db")


@pytest.fixture(params=["sqlite", "postgres"])
def backend(request: pytest.FixtureRequest) -> Backend:
    # By name, so that a test of SQLite alone starts no server.
    if request.param == "sqlite":
        return Backend("sqlite", request.getfixturevalue("sqlite_path"))
    return Backend("postgres", request.getfixturevalue("fresh_postgres_url")())


@pytest.fixture(params=["sync", "async"])
def flavour(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def open_four(backend: Backend, flavour: str) -> Iterator[Callable[..., Flavoured]]:
    """Each call opens another saver, with the options given, on the test's database. One event loop serves them all."""
    from langgraph_ledger import LedgerSaver

    opened: list[Flavoured] = []
    runner = asyncio.Runner() if flavour == "async" else None

    def open_one(**options: Any) -> Flavoured:
        opened.append(Flavoured(LedgerSaver(backend.url, **options), runner))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()
    if runner:
        runner.close()


@pytest.fixture
def four(open_four: Callable[..., Flavoured]) -> Flavoured:
    """A saver on an empty database, four ways: SQLite and Postgres, sync and async."""
    return open_four()
