"""What a refused write leaves behind: an entry in the log, a fenced run, and an error that says who won."""

from __future__ import annotations

from typing import Any

from langgraph_ledger.conflicts import StateConflict
from langgraph_ledger.errors import LedgerError
from langgraph_ledger.flow import Flow
from langgraph_ledger.ledger import Ledger
from langgraph_ledger.operations.checkpoints import Head, log_rejection
from langgraph_ledger.records import describe, now, to_json
from langgraph_ledger.runs import Run


def refuse_if_busy(ledger: Ledger, run: Run, operation: str, agent_id: str, checkpoint_id: str | None) -> Flow[None]:
    """Puts on record, and raises, that a new run met one that is alive and at work (`on_busy="refuse"`)."""
    if run.busy is not None and not run.claimed:
        yield from _log(ledger, run, run.busy, agent_id, checkpoint_id, accepted=False, operation=operation)
        raise run.busy.again()


def refuse(
    ledger: Ledger, run: Run, operation: str, agent_id: str, checkpoint_id: str, head: Head | None
) -> Flow[None]:
    """Puts a refused write on record; raises `StateConflict` unless conflicts are only to be reported."""
    conflict = _conflict(run, operation, agent_id, head)
    accepted = ledger.on_conflict == "report"
    if not accepted:
        run.fence(conflict)
    yield from _log(ledger, run, conflict, agent_id, checkpoint_id, accepted=accepted, operation=operation)
    if not accepted:
        raise conflict


def _log(
    ledger: Ledger,
    run: Run,
    conflict: StateConflict,
    agent_id: str,
    checkpoint_id: str | None,
    *,
    accepted: bool,
    operation: str,
) -> Flow[None]:
    facts = {k: describe(v) for k, v in conflict._facts.items() if k not in ("session_id", "agent_id")}
    payload = {**facts, "operation": operation, "accepted": accepted, "message": describe(str(conflict))}
    try:
        told = to_json({**payload, "kind": type(conflict).__name__})
        yield log_rejection(
            run.session_id, agent_id, checkpoint_id, conflict.checkpoint_read, told, ledger.stamp, now()
        )
    except LedgerError as error:
        conflict.add_note(f"The rejection could not be logged: {error}")


def _conflict(run: Run, operation: str, agent_id: str, head: Head | None) -> StateConflict:
    facts: dict[str, Any] = {
        "session_id": run.session_id,
        "agent_id": agent_id,
        "operation": operation,
        "version_read": run.read_version,
        "version_found": head.version if head else None,
        "checkpoint_read": run.checkpoint_read,
        "checkpoint_found": head.checkpoint_id if head else None,
        "writer": run.token,
        "winner": head.writer if head else None,
        "committed": run.committed,
        "last_committed": run.last_committed,
    }
    if head is not None and head.deleted_at is not None:
        what = "the thread has been deleted"
    elif run.committed:
        what = f"another run has taken the thread over (it is at version {facts['version_found']})"
    elif run.read_version is None:
        what = f"its writer has not read the thread, which is at version {facts['version_found']} and elsewhere"
    else:
        what = (
            f"the thread has moved on from version {facts['version_read']}, which this run read, to version"
            f" {facts['version_found']}"
        )
    message = f"{operation} refused on thread {run.session_id!r}: {what}. Read the state again and decide anew."
    return StateConflict(message, **facts)
