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
from tests.sessions_of_queries import TABLES, strays
from tests.test_commits import put

SQLITE, POSTGRES = load("sqlite"), load("postgres")
ACROSS = {
    "stats", "list_everything", "read_all_rejected", "read_sessions", "find_sessions", "find_expired", "find_runs",
    "find_threads", "find_tombstones", "choose_sessions", "find_active",
    "find_unclear",
}  # fmt: skip
"""Queries that are about several sessions."""


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


HIGHEST = "(SELECT MAX(x.seq) FROM checkpoint_log x)"
"""The highest number of all sessions, from which SQLite numbers on, by itself or as it is told."""


def strays_of(name: str) -> list[str]:
    """What a query reads or writes in either database without having it from its session."""
    return strays(SQLITE.texts[name].replace(HIGHEST, "0"), "sqlite") + strays(POSTGRES.texts[name], "postgres")


def test_every_query_stays_within_a_session() -> None:
    """So that the tables can be partitioned, or distributed, by session: each table that a query touches is bound to
    the session that it is given, by an equality with the parameter or with another row that is."""
    for name in own(SQLITE.texts):
        if name not in ACROSS:
            assert strays_of(name) == [], name


@pytest.mark.parametrize("name", sorted(ACROSS))
def test_what_is_exempt_has_to_be(name: str) -> None:
    assert strays_of(name), f"{name} keeps to a session, and needs no exemption"


BROKEN = {
    "no session": "DELETE FROM checkpoint_log WHERE agent_id = :agent_id",
    "or": "SELECT 1 FROM sessions s WHERE s.session_id = :session_id OR s.status = :status",
    "not equal": "SELECT 1 FROM sessions s WHERE s.session_id >= :session_id",
    "another parameter": "SELECT 1 FROM sessions s WHERE s.session_id = :agent_id",
    "another column": "SELECT 1 FROM checkpoint_log c WHERE c.checkpoint_id = :session_id",
    "a join by id": """
        SELECT 1 FROM agent_state_ledger l JOIN checkpoint_log c ON c.checkpoint_id = l.checkpoint_id
        WHERE l.session_id = :session_id""",
    "a subquery": """
        UPDATE sessions SET status = 'paused' WHERE session_id = :session_id
            AND NOT EXISTS (SELECT 1 FROM pending_writes p WHERE p.agent_id = '')""",
    "a scalar": "SELECT (SELECT count(*) FROM agent_memory) FROM sessions s WHERE s.session_id = :session_id",
    "a new row": "INSERT INTO sessions (status, session_id) VALUES (:session_id, :status)",
    "rows of all": "INSERT INTO sessions (session_id) SELECT c.session_id FROM checkpoint_log c",
    "rows from all": "INSERT INTO sessions (session_id) SELECT :target_id FROM checkpoint_log c",
    "a walk that leaves": """
        WITH RECURSIVE roots (session_id, id) AS (
            SELECT c.session_id, c.checkpoint_id FROM checkpoint_log c WHERE c.session_id = :session_id
            UNION SELECT m.session_id, m.memory_id FROM roots r JOIN agent_memory m ON m.memory_id = r.id)
        SELECT 1 FROM roots r JOIN agent_memory m ON m.session_id = r.session_id""",
    "half of a union": """
        SELECT 1 FROM (SELECT c.session_id FROM checkpoint_log c WHERE c.session_id = :session_id
            UNION ALL SELECT :agent_id) x (session_id) JOIN sessions s ON s.session_id = x.session_id""",
}


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
@pytest.mark.parametrize("what", BROKEN)
def test_a_query_that_leaves_its_session_is_found(what: str, dialect: str) -> None:
    assert strays(BROKEN[what], dialect), what


def test_every_query_would_be_found_without_its_session() -> None:
    """Each that touches a table of sessions, with parameters of other names."""
    found = 0
    for name in set(own(SQLITE.texts)) - ACROSS:
        for texts, dialect in ((SQLITE.texts, "sqlite"), (POSTGRES.texts, "postgres")):
            changed = re.sub(r"(session|target)_id(?=\)[sb])|(?<=:)(session|target)_id\b", "another", texts[name])
            if re.search(rf"\b({'|'.join(TABLES)})\b", re.sub(r"'[^']*'|--.*", "", changed)):
                assert strays(changed, dialect), f"{name}, {dialect}"
                found += 1
    assert found > 100


def test_what_a_database_distributed_by_session_asks_of_keys(fresh_postgres_url: Any) -> None:
    """Every table of sessions has a primary key; each unique index has the session in it; there are no foreign keys, no
    triggers, and of what is generated only a number of 64 bits."""
    url = fresh_postgres_url()
    with LedgerSaver(url) as saver:
        saver.setup()
    with psycopg.connect(url) as connection:
        keys = connection.execute("""
            SELECT i.indrelid::regclass::text, i.indisprimary, array_agg(a.attname::text)
            FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
            WHERE i.indisunique AND i.indrelid::regclass::text = ANY (%s) GROUP BY i.indexrelid, 1, 2""",
            [list(TABLES)],
        ).fetchall()  # fmt: skip
        assert {table for table, primary, _ in keys if primary} == TABLES
        assert [key for key in keys if "session_id" not in key[2]] == []
        of_others = connection.execute("SELECT count(*) FROM pg_constraint WHERE contype = 'f'").fetchone()
        triggers = connection.execute("SELECT count(*) FROM pg_trigger").fetchone()
        assert of_others == triggers == (0,)
        generated = connection.execute(
            "SELECT attrelid::regclass::text, attname, atttypid::regtype::text FROM pg_attribute"
            " WHERE attidentity <> '' OR atthasdef AND attgenerated <> ''"
        ).fetchall()
        assert sorted(generated) == [("checkpoint_log", "seq", "bigint"), ("ledger_secrets", "number", "bigint")]


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
            "filter": "{}", "keys": '[["t1","","c"]]', "checkpoint_ids": '["c"]', "call_ids": '["c"]',
            "channels": '["n"]', "version": 1,
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
    "delete_checkpoints", "delete_writes", "read_lineage",
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
