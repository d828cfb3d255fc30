"""What a database holds, read without the package, and what must never be seen in it."""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import psycopg

from langgraph_ledger.places import split_ids

TABLES = (
    "sessions",
    "agent_state_ledger",
    "checkpoint_log",
    "agent_memory",
    "pending_writes",
    "working_context",
)
TIMES = ("created_at", "updated_at", "started_at", "last_active_at", "run_started_at")
UNLIKE = ("writer", "owner", "payload", "body", "digest")
BYTES = {"digest", "chain", "body", "content", "memory_ids", "memory_id", "children", "place"}
Rows = dict[str, list[dict[str, Any]]]


def read_rows(connection: Any, sessions: Mapping[str, str] | None = None) -> Rows:
    """Every row, or those of some sessions, by table: sequence numbers left out, their order kept in the log.

    `sessions` maps session ids to the names that stand for them in what is returned.
    """
    read = _read_sqlite if isinstance(connection, sqlite3.Connection) else _read_postgres
    found: Rows = {table: [] for table in TABLES}
    for table, row in read(connection, None if sessions is None else list(sessions)):
        row.pop("seq", None)
        _unnumber(row)
        if sessions is not None:
            row["session_id"] = sessions[row["session_id"]]
        found[table].append(row)
    for table, rows in found.items():
        if table != "checkpoint_log":
            rows.sort(key=repr)
        else:  # one for each namespace, in no order among others
            rows.sort(key=lambda row: (_is_mark(row), row["agent_id"] if _is_mark(row) else ""))
    return found


def _unnumber(row: dict[str, Any]) -> None:
    """Leaves out where sequence numbers are told, and the digests of that."""
    row.pop("deleted_through", None)
    row.pop("chain", None)
    if _is_mark(row):
        told = row["payload"]
        facts = json.loads(told) if isinstance(told, str) else told
        row["payload"] = {name: fact for name, fact in facts.items() if name == "removed"}
        row.pop("digest")


def _is_mark(row: Mapping[str, Any]) -> bool:
    """Whether it says that a prune or a copy has been there."""
    return str(row.get("checkpoint_type")).startswith("history_")


def _read_sqlite(connection: sqlite3.Connection, sessions: list[str] | None) -> Iterable[tuple[str, dict[str, Any]]]:
    which = "1" if sessions is None else f"session_id IN ({', '.join('?' * len(sessions))})"
    for table in TABLES:
        order = " ORDER BY seq" if table == "checkpoint_log" else ""
        cursor = connection.execute(f"SELECT * FROM {table} WHERE {which}{order}", sessions or ())
        names = [column[0] for column in cursor.description]
        for row in cursor.fetchall():
            yield table, dict(zip(names, row, strict=True))


def _read_postgres(connection: psycopg.Connection, sessions: list[str] | None) -> Iterable[tuple[str, dict[str, Any]]]:
    which = "true" if sessions is None else "session_id = ANY(%(sessions)s)"
    parts = [f"SELECT '{t}' AS name, row_to_json(t)::jsonb AS found FROM {t} t WHERE {which}" for t in TABLES]
    query = f"SELECT name, found::text FROM ({' UNION ALL '.join(parts)}) u ORDER BY (found ->> 'seq')::bigint"
    for table, text in connection.execute(query, {"sessions": sessions}).fetchall():
        row = json.loads(text)
        for column in BYTES & row.keys():
            if row.get(column) is not None:
                row[column] = bytes.fromhex(row[column].removeprefix("\\x"))
        yield table, row


def comparable(rows: Rows, thread: str) -> Any:
    """Rows without what differs from one process to the next: times, tokens, owners, ids of runs, and their digests."""
    found = []
    for table, members in rows.items():
        for row in members:
            kept = {k: v for k, v in row.items() if k not in (*TIMES, *UNLIKE)}
            if kept.get("deleted_at") is not None:
                kept["deleted_at"] = "then"
            if kept.get("attempt_id") is not None:
                kept["attempt_id"] = "token"
            if kept.get("run_id") == thread:
                kept["run_id"] = "thread"
            elif table == "sessions":
                kept["run_id"] = "token"
            found.append((table, kept))
    return found


def half_written(rows: Rows) -> list[str]:
    """What is there without what it belongs to; a consistent database gives an empty list."""
    checkpoints = {_place(row) for row in rows["checkpoint_log"] if row["checkpoint_type"] == "checkpoint"}
    roots = {row["session_id"]: row for row in rows["agent_state_ledger"] if row["agent_id"] == ""}
    live = {name for name, row in roots.items() if row["deleted_at"] is None}
    sessions = {row["session_id"] for row in rows["sessions"]}
    found = [f"session {name} without a root row" for name in sorted(sessions - live)]
    found += [f"live session {name} without its row" for name in sorted(live - sessions)]
    for row in rows["agent_state_ledger"]:
        if row["session_id"] not in live and row["agent_id"] != "":
            found.append(f"namespace {row['agent_id']!r} of {row['session_id']} without a root row")
        if row["checkpoint_id"] is not None and _place(row) not in checkpoints:
            found.append(f"head {_place(row)} without its checkpoint")
    found += [f"checkpoint {place} of a session without a root row" for place in checkpoints if place[0] not in live]
    found += [
        f"write of task {row['task_id']} without its checkpoint {_place(row)}"
        for row in rows["pending_writes"]
        if _place(row) not in checkpoints
    ]
    return found + _memory(rows)


def _memory(rows: Rows) -> list[str]:
    """Chunks that are missing, and chunks that nothing refers to."""
    stored = {(row["session_id"], row["memory_id"]): row["children"] for row in rows["agent_memory"]}
    waiting = [
        (row["session_id"], memory_id)
        for row in (*rows["checkpoint_log"], *rows["pending_writes"])
        for memory_id in split_ids(row["memory_ids"] or b"")
    ]
    needed = set()
    while waiting:
        key = waiting.pop()
        if key not in needed:
            needed.add(key)
            waiting += [(key[0], memory_id) for memory_id in split_ids(stored.get(key) or b"")]
    found = [f"memory {key[1].hex()} is missing in {key[0]}" for key in sorted(needed - stored.keys())]
    return found + [
        f"memory {key[1].hex()} in {key[0]} that nothing refers to" for key in sorted(stored.keys() - needed)
    ]


def _place(row: Mapping[str, Any]) -> Sequence[str]:
    return row["session_id"], row["agent_id"], row["checkpoint_id"]
