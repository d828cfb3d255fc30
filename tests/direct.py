"""Direct use of a saver, without a graph, and a look at the tables behind its back."""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base import Checkpoint
from langgraph.checkpoint.conformance.test_utils import generate_checkpoint

from tests.four_ways import Backend
from tests.postgres_server import create_database, drop_database

TABLES = (
    "sessions", "agent_state_ledger", "checkpoint_log", "agent_memory", "pending_writes", "working_context",
    "ledger_migrations",
)  # fmt: skip


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def shared_backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    """One database for a whole module, as `backend`; its tests work on threads of their own."""
    if request.param == "sqlite":
        yield Backend("sqlite", str(tmp_path_factory.mktemp("ledger") / "ledger.db"))
        return
    server = request.getfixturevalue("postgres_url")
    url = create_database(server)
    yield Backend("postgres", url)
    drop_database(server, url)


def at(thread: Any, checkpoint_id: Any = None, *, ns: Any = "", **more: Any) -> Any:
    """A config."""
    named = {} if checkpoint_id is None else {"checkpoint_id": checkpoint_id}
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, **named, **more}}


def checkpoint(
    checkpoint_id: str, values: Mapping[str, Any] | None = None, versions: Mapping[str, Any] | None = None
) -> Checkpoint:
    """A checkpoint; each value has version 1 unless versions are given."""
    found = dict.fromkeys(values or {}, "1") if versions is None else dict(versions)
    return generate_checkpoint(checkpoint_id=checkpoint_id, channel_values=dict(values or {}), channel_versions=found)


def save(
    four: Any, config: Any, checkpoint_id: str, values: Mapping[str, Any] | None = None, metadata: Any = None
) -> Any:
    """Puts a checkpoint, all of whose channels are new."""
    made = checkpoint(checkpoint_id, values)
    return four.put(config, made, metadata or {"source": "loop", "step": 0, "parents": {}}, made["channel_versions"])


def query(backend: Backend, statement: str, *params: Any) -> list[tuple[Any, ...]]:
    """Rows of the test's database, committed at once; `?` marks a parameter."""
    if backend.kind == "sqlite":
        with closing(sqlite3.connect(backend.url, isolation_level=None)) as connection:
            return connection.execute(statement, params).fetchall()
    with psycopg.connect(backend.url, autocommit=True) as pg:
        cursor = pg.execute(statement.replace("%", "%%").replace("?", "%s"), params or None)
        return cursor.fetchall() if cursor.description else []


def contents(backend: Backend) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table."""
    return {table: sorted(query(backend, f"SELECT * FROM {table}"), key=repr) for table in TABLES}
