"""The SQL itself: both dialects alike, every query valid, hot queries on their index, sessions kept apart."""

import re
import sqlite3
from contextlib import closing
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from langgraph_ledger import LedgerSaver
from langgraph_ledger.drivers.sqlite import teach
from langgraph_ledger.sql import load
from tests.direct import at
from tests.four_ways import Backend
from tests.test_commits import put

SQLITE, POSTGRES = load("sqlite"), load("postgres")
ACROSS = {
    "stats", "list_everything", "read_all_rejected", "read_sessions", "find_sessions", "find_expired", "find_runs",
    "find_threads", "find_tombstones", "size_on_disk", "read_secrets", "add_secret", "read_page_writes",
    "read_page_memory", "choose_sessions", "find_active", "find_unclear", "check_database",
}  # fmt: skip
"""Queries that are about several sessions, or about none."""


def own(names: Any) -> list[str]:
    """The names of queries, without migrations and what begins and ends transactions."""
    control = (
        "begin_",
        "commit",
        "rollback",
        "migration_",
        "compact_",
        "lock_schema",
        "create_",
        "plan_simply",
        "wait_",
    )
    return sorted(n for n in names if not n.startswith(control) and "migrations" not in n and "_migration" not in n)


def test_both_dialects_have_the_same_queries_with_the_same_parameters() -> None:
    def without_migrations(parameters: dict[str, Any]) -> dict[str, Any]:
        return {name: found for name, found in parameters.items() if not name.startswith("migration_")}

    assert without_migrations(SQLITE.parameters) == without_migrations(POSTGRES.parameters)
    assert [(m.number, m.name) for m in SQLITE.migrations] == [(m.number, m.name) for m in POSTGRES.migrations]


def columns(url: str) -> dict[str, list[str]]:
    with LedgerSaver(url) as saver:
        saver.setup()
    if "://" not in url:
        with closing(sqlite3.connect(url)) as connection:
            names = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
            return {
                n: sorted(row[1] for row in connection.execute(f"PRAGMA table_info({n})").fetchall()) for (n,) in names
            }
    with psycopg.connect(url) as connection:
        found: dict[str, list[str]] = {}
        query = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
        for table, column in connection.execute(query).fetchall():
            found.setdefault(table, []).append(column)
        return {table: sorted(names) for table, names in found.items()}


def test_both_databases_have_the_same_tables_and_columns(sqlite_path: str, fresh_postgres_url: Any) -> None:
    assert columns(sqlite_path) == columns(fresh_postgres_url())


def test_every_query_stays_within_a_session() -> None:
    """So that the tables can be partitioned, or distributed, by session."""
    for name in own(SQLITE.texts):
        if name in ACROSS:
            continue
        for text in (SQLITE.texts[name], POSTGRES.texts[name]):
            assert re.search(r"session_id|target_id", text), name
            assert re.search(r":(session|target)_id|%\((session|target)_id\)s", text), name


class Plans:
    """Explains queries on a database with many checkpoints of many threads."""

    def __init__(self, backend: Backend) -> None:
        self.kind = backend.kind
        with LedgerSaver(backend.url) as saver:
            for thread in range(3):
                config = at(f"t{thread}")
                for number in range(40):
                    config = put(saver, config, number)
                    saver.put_writes(config, [("n", number)], str(uuid4()))
        self.connection: Any = (
            sqlite3.connect(backend.url) if self.kind == "sqlite" else psycopg.connect(backend.url, autocommit=True)
        )
        if self.kind == "postgres":
            self.connection.execute("SET enable_seqscan = off")  # few rows: what counts is that an index serves
            self.connection.execute("ANALYZE")
        else:
            teach(self.connection)

    def explain(self, name: str) -> str:
        dialect = SQLITE if self.kind == "sqlite" else POSTGRES
        values: dict[str, Any] = {
            "session_id": "t1", "agent_id": "", "checkpoint_id": "c", "writer": "w", "before": 2**62, "page": 10,
            "filter": "{}", "keys": '[["t1","","c"]]', "checkpoint_ids": '["c"]', "channels": '["n"]', "version": 1,
            "read_version": 1, "now": "2030-01-01T00:00:00+00:00", "root_before": 1, "plain_bytes": 1, "idx": 1,
            "state_bytes": 1, "ttl_seconds": 1.0, "run_ids": '["r"]', "session_ids": '["t1"]', "owner": "{}",
            "state": "{}", "payload": "{}", "metadata": "{}", "status": "active", "body": b"", "content": b"",
            "memory_id": b"m", "memory_ids": b"", "children": b"", "place": b"", "secret": b"", "after": "",
            "outcome": "{}", "digest": b"", "head_digest": b"", "genesis": b"", "together": 1, "locked": 1,
            "idle_since": "2030-01-01T00:00:00+00:00", "expired": "2030-01-01T00:00:00+00:00", "number": 99,
        }  # fmt: skip
        params = {p: values.get(p, "x") for p in dialect.parameters[name]}
        if name == "read_session_memory":
            params["after"] = b""
        params = {p: [v] if p in dialect.arrays[name] else v for p, v in params.items()}
        prefix = "EXPLAIN QUERY PLAN " if self.kind == "sqlite" else "EXPLAIN "
        rows = self.connection.execute(prefix + dialect.texts[name], params).fetchall()
        return "\n".join(str(row[-1]) for row in rows)


@pytest.fixture
def plans(backend: Backend) -> Any:
    made = Plans(backend)
    yield made
    made.connection.close()


HOT = [
    "claim", "advance_root", "keep", "advance_namespace", "insert_memory", "insert_write_memory",
    "insert_checkpoint", "insert_write",
    "replace_write", "touch_session", "read_head", "read_checkpoint", "read_writes", "read_memory", "read_page_writes",
    "read_page_memory", "find_sequence", "list_namespace", "list_namespace_before_root", "list_session", "list_one",
    "read_ancestors", "read_channel_writes", "read_memory_of", "read_log", "read_rejected", "find_checkpoint",
    "delete_checkpoint", "delete_checkpoint_writes", "read_lineage",
    "insert_call", "insert_call_memory", "insert_call_end", "share_root",
    "announce_owner", "begin_session", "end_session", "delete_settled_calls",
]  # fmt: skip


IN_ORDER = {"list_namespace", "list_namespace_before_root", "list_session", "read_ancestors", "read_log"}
"""Queries that are about many checkpoints of a thread. All others find theirs by its id."""
CHAINED = {"insert_checkpoint"}
"""Queries that look at the latest entries of a log."""


def test_hot_queries_use_an_index(plans: Plans) -> None:
    """No query on the path of a save or a read looks at all rows of a table."""
    tables = "agent_state_ledger|checkpoint_log|agent_memory|pending_writes|sessions"
    aliases = r"[cpmlngersb]"
    for name in HOT:
        plan = plans.explain(name)
        if plans.kind == "postgres":
            assert not re.search(rf"Seq Scan on ({tables})", plan), f"{name}\n{plan}"
            assert name in IN_ORDER | CHAINED or "checkpoint_log_pkey" not in plan, f"{name} reads a history\n{plan}"
            by_id = r"checkpoint_log_checkpoint on checkpoint_log.*\n +Index Cond: (?!.*checkpoint_id = )"
            assert not re.search(by_id, plan), f"{name} looks for an id among all of a thread\n{plan}"
        else:
            scans = re.findall(rf"^SCAN (?:{tables}|{aliases})\b(?!.*(?:INDEX|VIRTUAL|PRIMARY))", plan, re.MULTILINE)
            constant = {s for s in scans if s.split()[1] in ("n", "r")}  # common tables of the query itself
            assert set(scans) <= constant, f"{name}\n{plan}"


def test_every_query_is_valid(plans: Plans) -> None:
    for name in own(SQLITE.texts):
        plans.explain(name)
