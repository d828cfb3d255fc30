"""Reading sessions and the log."""

from __future__ import annotations

from langgraph_ledger.errors import ValueNotRestorable
from langgraph_ledger.listings import History, Rejected, Sessions
from langgraph_ledger.records import LogEntry, Session, as_time, from_json
from langgraph_ledger.statements import Access, Operation, Row, Statement, Steps, batch


def read_sessions(status: str | None, limit: int) -> Operation[Sessions]:
    """Sessions, the most recently active first."""

    def steps() -> Steps[Sessions]:
        (rows,) = yield batch(Statement("read_sessions", {"status": status, "page": limit}), last=True)
        return Sessions(map(as_session, rows))

    return Operation("sessions", Access.READ, steps)


def as_session(row: Row) -> Session:
    """A row of (session_id, status, metadata, started_at, last_active_at, run_id, run_started_at, outcome).

    Raises `ValueNotRestorable` if it is damaged.
    """
    session_id, state, metadata, started, active, run_id, run_started, outcome = row
    try:
        times = (as_time(started), as_time(active), run_id, as_time(run_started) if run_started else None)
        return Session(session_id, state, from_json(metadata), *times, from_json(outcome) if outcome else {})
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueNotRestorable(f"thread {session_id!r}, its row in sessions: it is damaged: {error}") from error


def begin_session(session_id: str, read_version: int, token: str, owner: str, now: str) -> Operation[bool]:
    """Notes that a run goes on with a session, if that is still at the version read. The fence is left as it is."""
    place = {"session_id": session_id, "read_version": read_version, "now": now}

    def steps() -> Steps[bool]:
        _, begun = yield batch(
            Statement("announce_owner", {**place, "owner": owner}),
            Statement("begin_session", {**place, "writer": token}),
            last=True,
        )
        return bool(begun)

    return Operation("begin_session", Access.WRITE, steps)


def end_session(session_id: str, token: str, status: str, outcome: str, now: str) -> Operation[None]:
    """Notes how a run ended, unless another one has gone on with the session since."""
    facts = {"session_id": session_id, "writer": token, "status": status, "outcome": outcome, "now": now}

    def steps() -> Steps[None]:
        yield batch(Statement("end_session", facts), last=True)

    return Operation("end_session", Access.WRITE, steps)


def read_log(session_id: str) -> Operation[History]:
    """Every entry of a session's log, oldest first."""

    def steps() -> Steps[History]:
        place = {"session_id": session_id}
        rows, head = yield batch(
            Statement("read_log", place), Statement("read_head", {**place, "agent_id": ""}), last=True
        )
        return History(map(as_entry, rows), session_id, head[0][1] if head else None)

    return Operation("history", Access.READ, steps)


def read_rejected(session_id: str | None) -> Operation[Rejected]:
    """The rejected writes of one session or of all, oldest first."""
    statement = Statement("read_all_rejected")
    if session_id is not None:
        statement = Statement("read_rejected", {"session_id": session_id})

    def steps() -> Steps[Rejected]:
        (rows,) = yield batch(statement, last=True)
        return Rejected(map(as_entry, rows))

    return Operation("rejected_writes", Access.READ, steps)


def as_entry(row: Row) -> LogEntry:
    """A row as `read_log` selects it. Raises `ValueNotRestorable` if it is damaged."""
    seq, session_id, agent_id, kind, checkpoint_id, parent_id, run_id, task_id, payload, created_at, *call = row
    facts = (checkpoint_id, parent_id, run_id, task_id)
    try:
        return LogEntry(seq, session_id, agent_id, kind, *facts, from_json(payload), as_time(created_at), *call)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueNotRestorable(f"thread {session_id!r}, entry {seq} of its log: it is damaged: {error}") from error
