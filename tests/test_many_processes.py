"""Many processes on one database: the first call of all of them at once, and saves side by side."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from langgraph_ledger import LedgerSaver
from tests.four_ways import Backend
from tests.many_processes import THREAD
from tests.strict_python import PYTHON

ROUNDS, PROCESSES = 10, 8
WRITERS, PUTS = (int(number) for number in os.environ.get("LEDGER_WRITERS", "4x40").split("x"))
"""Processes that save side by side, and how often each does: "8x500" is the long form."""


@pytest.fixture(scope="module")
def ask() -> Iterator[Callable[..., list[str]]]:
    """Gives the process that forks a job; what went wrong."""
    with subprocess.Popen(
        [*PYTHON, "-m", "tests.many_processes"],
        cwd=Path(__file__).parent.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def give(**job: Any) -> list[str]:
            process.stdin.write(json.dumps(job) + "\n")
            return json.loads(process.stdout.readline())  # type: ignore[no-any-return]

        yield give


def test_the_first_calls_of_many_processes_at_once(
    request: pytest.FixtureRequest, backend: Backend, ask: Callable[..., list[str]]
) -> None:
    for turn in range(ROUNDS):
        url = f"{backend.url}.{turn}" if backend.kind == "sqlite" else request.getfixturevalue("fresh_postgres_url")()
        assert ask(what="first call", processes=PROCESSES, url=url, how=turn) == []
        with LedgerSaver(url) as saver:
            assert {session.session_id for session in saver.sessions()} == {
                f"{THREAD} {number}" for number in range(PROCESSES)
            }


def test_the_first_calls_in_one_schema(fresh_postgres_url: Callable[[], str], ask: Callable[..., list[str]]) -> None:
    """The schema is made along with the tables, by whoever is first."""
    url = fresh_postgres_url()
    for turn in range(3):
        schema = f"made {turn}"
        assert ask(what="first call", processes=PROCESSES, url=url, how=turn, schema=schema) == []
        with LedgerSaver(url, schema=schema) as saver:
            assert len(saver.sessions()) == PROCESSES


def test_saves_side_by_side(backend: Backend, ask: Callable[..., list[str]]) -> None:
    assert ask(what="many puts", processes=WRITERS, url=backend.url, how=PUTS) == []
    with LedgerSaver(backend.url) as saver:
        for number in range(WRITERS):
            found = saver.list({"configurable": {"thread_id": f"{THREAD} {number}"}})
            assert [item.checkpoint["id"] for item in found] == [f"{number}-{n}" for n in reversed(range(PUTS))]
