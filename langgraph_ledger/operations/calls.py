"""The log of calls: what is about to happen outside of the state, and what came of it.

A start is a write of its run like any other, under the version check: a run that has been overtaken finds it out here,
before the call. An end is evidence: it is stored whoever holds the thread by then, as long as its start is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langgraph_ledger.memory import MemoryRow
from langgraph_ledger.operations.checkpoints import Writer, claim_or_keep, first, memory_params, touch
from langgraph_ledger.statements import Access, Operation, Statement, Steps, batch

STARTED, COMPLETED, FAILED = "tool_call_started", "tool_call_completed", "tool_call_failed"
INTERRUPTED, CANCELLED = "tool_call_interrupted", "tool_call_cancelled"


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
            "now": now,
            **more,
        }


def put_call_start(writer: Writer, entry: CallEntry, status: str | None, now: str) -> Operation[int | None]:
    """Stores a start; returns the version of the root row, or None if the run's version was not current."""

    def steps() -> Steps[int | None]:
        memory = memory_params(writer.session_id, entry.memory, writer=writer.token)
        answers = yield batch(
            claim_or_keep(writer, now),
            Statement("insert_memory", many=memory),
            Statement("insert_call", entry.params(now, writer=writer.token)),
            touch(writer, status, None, now) if status is not None or not writer.holds else None,
            last=True,
        )
        return first(answers[0])

    return Operation(entry.kind, Access.WRITE, steps)


def put_call_end(entry: CallEntry, started: str, now: str) -> Operation[None]:
    """Stores an end, if its start (an entry of type `started`) is still there.

    The root row is shared first, so that a deletion or a prune comes before the entry or after it.
    """
    place = {"call_id": entry.call_id, "attempt_id": entry.attempt_id, "started": started}

    def steps() -> Steps[None]:
        yield batch(
            Statement("share_root", {"session_id": entry.session_id}),
            Statement("insert_call_memory", many=memory_params(entry.session_id, entry.memory, **place)),
            Statement("insert_call_end", entry.params(now, started=started)),
            last=True,
        )

    return Operation(entry.kind, Access.WRITE, steps)
