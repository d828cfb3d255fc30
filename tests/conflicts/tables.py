"""What must hold of the rows in a ledger's tables, whatever runs have been refused."""

import sqlite3
from contextlib import closing
from typing import Any

import psycopg

from langgraph_ledger import LedgerSaver
from tests.four_ways import Backend
from tests.ledger_rows import Rows, half_written, read_rows


def tables_of(backend: Backend, thread: str | None = None) -> Rows:
    """The rows of one thread or of all, as a connection of our own sees them."""
    sessions = {thread: thread} if thread else None
    connection: Any = sqlite3.connect(backend.url) if backend.kind == "sqlite" else psycopg.connect(backend.url)
    with closing(connection):
        return read_rows(connection, sessions)


def assert_no_orphans(backend: Backend, thread: str | None = None, *, pruned: bool = False) -> None:
    """Every row refers to rows that are there, and every value is used (by one thread's rows, or by all).

    Checkpoints, writes, heads, sessions and values belong together; so do checkpoints and their parents, and each
    namespace and its head.
    """
    rows = tables_of(backend, thread)
    assert half_written(rows) == []
    if not any((row["body"] or b"").startswith(b"\1") for row in rows["checkpoint_log"]):  # none of it is encrypted
        with LedgerSaver(backend.url, read_only=True) as saver:
            assert [found for found in saver.verify(thread) if not found.harmless] == []
    log = [row for row in rows["checkpoint_log"] if row["checkpoint_type"] == "checkpoint"]
    checkpoints = {(row["session_id"], row["agent_id"], row["checkpoint_id"]) for row in log}
    parents = {(row["session_id"], row["agent_id"], row["parent_checkpoint_id"]) for row in log}
    missing = {place for place in parents - checkpoints if place[2] is not None}
    assert pruned or not missing, "a parent that is not there"
    heads = {
        (row["session_id"], row["agent_id"]) for row in rows["agent_state_ledger"] if row["checkpoint_id"] is not None
    }
    assert {place[:2] for place in checkpoints} == heads, "a namespace without a head, or a head without a checkpoint"
    sessions = [row["session_id"] for row in rows["sessions"]]
    assert len(sessions) == len(set(sessions)), "two rows for one session"
