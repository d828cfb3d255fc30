"""Ledgers as earlier versions have left them: what they hold is what it was, and goes on."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from langgraph_ledger import LedgerSaver, StateConflict
from langgraph_ledger.errors import SchemaTooNew
from tests.conflicts.tables import assert_no_orphans
from tests.crash_worker import Crashes
from tests.direct import at, query, save
from tests.four_ways import Backend, Flavoured
from tests.golden.ledgers import VERSIONS, expected, opened, restore, unpack
from tests.golden.migrating import of_the_next_version
from tests.golden.threads import LEDGERS, go_on, look
from tests.scenarios.normalise import differences

every_version = pytest.mark.parametrize("version", VERSIONS)


def place(backend: Backend, version: int, ledger: str) -> None:
    """Puts a copy of a golden ledger there."""
    if backend.kind == "sqlite":
        unpack(version, ledger, Path(backend.url))
    else:
        restore(version, ledger, backend.url)


def without_schemas(found: Any) -> Any:
    """Without a field that LangGraph's questions have since 1.2.12, and that none of these has a value in."""
    if isinstance(found, dict):
        return {k: without_schemas(v) for k, v in found.items() if (k, v) != ("response_schema", None)}
    return [without_schemas(v) for v in found] if isinstance(found, list) else found


@every_version
@pytest.mark.parametrize("ledger", LEDGERS)
def test_what_a_version_has_stored(backend: Backend, flavour: str, version: int, ledger: str) -> None:
    """Every checkpoint and write, the log, what was in flight; `verify` finds nothing; and each thread goes on."""
    place(backend, version, ledger)
    runner = asyncio.Runner() if flavour == "async" else None
    for name, was in expected(version)[backend.kind][ledger].items():
        thread = LEDGERS[ledger][name]
        four = Flavoured(opened(backend.url, ledger, thread), runner)
        found = {"seen": look(four, name), "goes on": go_on(four, name, thread)}
        assert differences(without_schemas(was), without_schemas(json.loads(json.dumps(found)))) == [], name
        assert four.call("verify", name) == []
        four.close()
    assert_no_orphans(backend)
    if runner:
        runner.close()


@every_version
def test_a_deleted_thread_stays_deleted(backend: Backend, version: int) -> None:
    place(backend, version, "plain")
    with opened(backend.url, "plain") as saver, pytest.raises(StateConflict, match="has been deleted"):
        save(saver, at("deleted"), "1")


def schema(backend: Backend) -> Any:
    """The tables and their indexes, comments left out."""
    if backend.kind == "sqlite":
        rows = query(backend, "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")
        return {name: " ".join(re.sub("--.*", "", text).split()) for name, text in rows}
    columns = (
        "SELECT table_name, column_name, data_type, is_nullable, column_default, collation_name, is_identity"
        " FROM information_schema.columns WHERE table_schema = 'public' ORDER BY 1, 2"
    )
    return query(backend, columns) + query(
        backend, "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1"
    )


@every_version
def test_its_tables_become_those_of_a_new_ledger(
    request: pytest.FixtureRequest, backend: Backend, version: int, tmp_path: Path
) -> None:
    """If this fails for the latest version, and it is not released yet: `python -m tests.golden.make`."""
    place(backend, version, "plain")
    new = str(tmp_path / "new.db") if backend.kind == "sqlite" else request.getfixturevalue("fresh_postgres_url")()
    for url in (backend.url, new):
        with LedgerSaver(url) as saver:
            saver.setup()
            assert saver.is_up_to_date()
    assert schema(backend) == schema(Backend(backend.kind, new))


# --- a migration


@pytest.fixture(scope="module")
def crashes() -> Iterator[Crashes]:
    worker = Crashes()
    yield worker
    worker.close()


def test_a_migration_that_is_killed_goes_on(backend: Backend, crashes: Crashes) -> None:
    """Killed at every statement it has happened or not; the next saver finishes it, and an older one says why not."""
    place(backend, VERSIONS[-1], "plain")
    before, at_event, killed = schema(backend), 0, -9
    while killed:
        killed, said = crashes.run(scenario="migration", url=backend.url, thread=uuid4().hex, kill_at=at_event)
        at_event += 1
        migrated = bool(query(backend, "SELECT 1 FROM ledger_migrations WHERE name = 'next'"))
        assert migrated == ("event after commit" in said), said
        assert (schema(backend) == before) is not migrated, said
        if migrated:
            break
    assert at_event > 8
    with LedgerSaver(backend.url) as older, pytest.raises(SchemaTooNew, match="upgrade"):
        older.get_tuple(at("messages"))
    with of_the_next_version(LedgerSaver(backend.url)) as saver:
        assert saver.is_up_to_date()
        assert query(backend, "SELECT DISTINCT colour FROM sessions") == [("green",)]
        thread = LEDGERS["plain"]["messages"]
        was = expected(VERSIONS[-1])[backend.kind]["plain"]["messages"]
        assert go_on(Flavoured(saver, None), "messages", thread) == was["goes on"]
