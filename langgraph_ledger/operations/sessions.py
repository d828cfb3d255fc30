"""Reading sessions and the log."""

from __future__ import annotations

import json
from collections.abc import Sequence

from langgraph_ledger.records import LogEntry, Session, as_time
from langgraph_ledger.statements import Access, Operation, Row, Statement, Steps, batch


def read_sessions(status: str | None, limit: int) -> Operation[Sequence[Session]]:
    """Sessions, the most recently active first."""

    def steps() -> Steps[Sequence[Session]]:
        (rows,) = yield batch(Statement("read_sessions", {"status": status, "page": limit}), last=True)
        return [
            Session(session_id, state, json.loads(metadata), as_time(started), as_time(active))
            for session_id, state, metadata, started, active in rows
        ]

    return Operation("sessions", Access.READ, steps)


def read_log(session_id: str) -> Operation[Sequence[LogEntry]]:
    """Every entry of a session's log, oldest first."""
    return _entries("history", Statement("read_log", {"session_id": session_id}))


def read_rejected(session_id: str | None) -> Operation[Sequence[LogEntry]]:
    """The rejected writes of one session or of all, oldest first."""
    if session_id is None:
        return _entries("rejected_writes", Statement("read_all_rejected"))
    return _entries("rejected_writes", Statement("read_rejected", {"session_id": session_id}))


def _entries(name: str, statement: Statement) -> Operation[Sequence[LogEntry]]:
    def steps() -> Steps[Sequence[LogEntry]]:
        (rows,) = yield batch(statement, last=True)
        return [_entry(row) for row in rows]

    return Operation(name, Access.READ, steps)


def _entry(row: Row) -> LogEntry:
    seq, session_id, agent_id, kind, checkpoint_id, parent_id, run_id, task_id, payload, created_at, *call = row
    facts = (checkpoint_id, parent_id, run_id, task_id)
    return LogEntry(seq, session_id, agent_id, kind, *facts, json.loads(payload), as_time(created_at), *call)
