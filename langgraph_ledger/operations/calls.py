"""The log of calls: what is about to happen outside of the state, and what came of it.

A start is a write of its run like any other, under the version check: a run that has been overtaken finds it out here,
before the call. An end is evidence: it is stored whoever holds the thread by then, as long as its start is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langgraph_ledger.chains import Stamp, of_entry
from langgraph_ledger.operations.checkpoints import (
    Head,
    Stored,
    Writer,
    as_memory,
    as_writes,
    claim_or_keep,
    first,
    memory_params,
    touch,
)
from langgraph_ledger.places import Fetched, MemoryRow, WriteRow
from langgraph_ledger.records import to_json
from langgraph_ledger.statements import Access, Operation, Row, Rows, Statement, Steps, batch

STARTED, COMPLETED, FAILED = "tool_call_started", "tool_call_completed", "tool_call_failed"
INTERRUPTED, CANCELLED = "tool_call_interrupted", "tool_call_cancelled"
RESOLVED = "tool_call_resolved"
HELD_RESOURCE, RELEASED = "resource_held", "resource_released"


@dataclass(slots=True, eq=False, repr=False)
class CallRow:
    """An entry about a call, as it is stored.

    `settled`: its task has written, or its graph has moved on since. `based`: the checkpoints that its step follows are
    stored, so a run that begins again has the same task.
    """

    seq: int
    agent_id: str
    kind: str
    run_id: str | None
    task_id: str | None
    call_id: str
    attempt_id: str
    payload: str
    body: bytes | None
    memory_ids: bytes | None
    created_at: Any
    settled: bool
    based: bool


@dataclass(slots=True, eq=False, repr=False)
class Found:
    """What a thread's tables say of what was in flight. `head` is the latest root checkpoint with its writes."""

    session: Row | None
    head: Head | None
    stored: Stored | None
    nested: Sequence[tuple[WriteRow, str, str]]
    nested_memory: Fetched
    calls: Sequence[CallRow]
    memory: Fetched
    held: Rows
    counted: Row


@dataclass(slots=True, eq=False, repr=False)
class CallEntry:
    """One entry of the log about a call, encoded. `call_id` names the call within its task, `attempt_id` this try."""

    session_id: str
    agent_id: str
    kind: str
    checkpoint_id: str | None
    root_id: str | None
    run_id: str | None
    task_id: str | None
    call_id: str
    attempt_id: str
    payload: str
    body: bytes | None
    memory_ids: bytes | None
    memory: Sequence[MemoryRow]
    stamp: Stamp | None = None

    def _digest(self, now: str) -> bytes | None:
        if self.stamp is None:
            return None
        place = (self.agent_id, self.kind, self.checkpoint_id, None, self.root_id, self.run_id)
        call = (self.task_id, self.call_id, self.attempt_id)
        return of_entry(self.stamp, *place, *call, self.payload, None, self.body, now)

    def params(self, now: str, **more: Any) -> dict[str, Any]:
        return {
            "session_id": self.session_id,
            "agent_id": self.agent_id,
            "checkpoint_type": self.kind,
            "checkpoint_id": self.checkpoint_id,
            "root_id": self.root_id,
            "run_id": self.run_id,
            "task_id": self.task_id,
            "call_id": self.call_id,
            "attempt_id": self.attempt_id,
            "payload": self.payload,
            "memory_ids": self.memory_ids,
            "body": self.body,
            "digest": self._digest(now),
            "now": now,
            **more,
        }


def put_call_start(writer: Writer, entry: CallEntry, status: str | None, now: str) -> Operation[int | None]:
    """Stores a start; returns the version of the root row, or None if the run's version was not current."""

    def steps() -> Steps[int | None]:
        memory = memory_params(writer.session_id, entry.memory, writer=writer.token)
        answers = yield batch(
            claim_or_keep(writer, now),
            _share_namespace(entry),
            # before the entry: of two calls side by side, the later one in the log is the later sign of life
            touch(writer, status, None, now) if status is not None or not writer.holds else None,
            Statement("insert_memory", many=memory),
            Statement("insert_call", entry.params(now, writer=writer.token)),
            last=True,
        )
        return first(answers[0])

    return Operation(entry.kind, Access.WRITE, steps)


def _share_namespace(entry: CallEntry) -> Statement | None:
    """Keeps checkpoints of a nested namespace away until the entry is in its log; the root's wait for its row."""
    if not entry.agent_id:
        return None
    return Statement("share_namespace", {"session_id": entry.session_id, "agent_id": entry.agent_id})


def put_call_end(entry: CallEntry, started: str, now: str) -> Operation[None]:
    """Stores an end, if its start (an entry of type `started`) is still there.

    The root row is shared first, so that a deletion or a prune comes before the entry or after it.
    """
    place = {"call_id": entry.call_id, "attempt_id": entry.attempt_id, "started": started}

    def steps() -> Steps[None]:
        yield batch(
            Statement("share_root", {"session_id": entry.session_id}),
            _share_namespace(entry),
            Statement("insert_call_memory", many=memory_params(entry.session_id, entry.memory, **place)),
            Statement("insert_call_end", entry.params(now, started=started)),
            last=True,
        )

    return Operation(entry.kind, Access.WRITE, steps)


# --- reading


def read_call(session_id: str, call_id: str) -> Operation[tuple[list[CallRow], Fetched]]:
    """The entries about calls of one name in a session, and their values."""
    place = {"session_id": session_id, "call_id": call_id}

    def steps() -> Steps[tuple[list[CallRow], Fetched]]:
        rows, memory = yield batch(Statement("read_call", place), Statement("read_call_memory", place), last=True)
        return [CallRow(*row) for row in rows], as_memory(memory)

    return Operation("read_call", Access.READ, steps)


def read_questions(session_id: str, agent_id: str, task_id: str, call_ids: Sequence[str]) -> Operation[Rows]:
    """What the log says of these calls of a task: their names and payloads, the oldest first."""
    place = {"session_id": session_id, "agent_id": agent_id, "task_id": task_id, "call_ids": to_json(list(call_ids))}

    def steps() -> Steps[Rows]:
        (rows,) = yield batch(Statement("read_questions", place), last=True)
        return rows

    return Operation("read_questions", Access.READ, steps)


def read_held(session_id: str) -> Operation[Rows]:
    """The holds of a session that have not been released."""

    def steps() -> Steps[Rows]:
        (rows,) = yield batch(Statement("read_held", {"session_id": session_id}), last=True)
        return rows

    return Operation("read_held", Access.READ, steps)


def read_in_flight(session_id: str) -> Operation[Found]:
    """What was in flight in a session, as one snapshot."""
    place = {"session_id": session_id}
    root = {**place, "agent_id": "", "checkpoint_id": None}

    def steps() -> Steps[Found]:
        session, head, checkpoint, writes, memory, calls, call_memory, held, counted, nested, _ = yield batch(
            Statement("read_session", place),
            Statement("read_head", {**place, "agent_id": ""}),
            Statement("read_checkpoint", root),
            Statement("read_writes", root),
            Statement("read_memory", root),
            Statement("read_open_calls", place),
            Statement("read_open_call_memory", place),
            Statement("read_held", place),
            Statement("count_checkpoints", place),
            Statement("read_nested_interrupts", place),
            Statement("plan_simply"),
        )
        stored = None
        if checkpoint:
            found_id, parent_id, body, seq = checkpoint[0]
            stored = Stored(session_id, "", found_id, parent_id, body, seq, as_writes(writes), as_memory(memory))
        keys = sorted({(session_id, row[6], row[7]) for row in nested})
        (more,) = yield batch(Statement("read_page_memory", {**place, "keys": to_json(keys)}), last=True)
        return Found(
            session[0] if session else None,
            Head(*head[0]) if head else None,
            stored,
            [(as_writes([row[:6]])[0], row[6], row[7]) for row in nested],
            as_memory(more),
            [CallRow(*row) for row in calls],
            as_memory(call_memory),
            held,
            counted[0],
        )

    return Operation("recover", Access.READ, steps)


def find_active(after: str, page: int) -> Operation[Rows]:
    """The next page of sessions that are active: their rows, and their owners."""

    def steps() -> Steps[Rows]:
        (rows,) = yield batch(Statement("find_active", {"after": after, "page": page}), last=True)
        return rows

    return Operation("recoverable", Access.READ, steps)


def find_unclear() -> Operation[Rows]:
    """The ids of sessions that are not active and have a call, or a hold, with a start and no end."""

    def steps() -> Steps[Rows]:
        (rows,) = yield batch(Statement("find_unclear"), last=True)
        return rows

    return Operation("recover", Access.READ, steps)
