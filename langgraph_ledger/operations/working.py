"""Working context: the latest values of channels that are safe to lose, and what tasks have just written to them.

On SQLite these operations go to a file beside the database that is never synced, on Postgres to an UNLOGGED table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from langgraph_ledger.statements import Access, Operation, Statement, Steps, batch


@dataclass(slots=True, eq=False, repr=False)
class WorkingRow:
    """One value. `version` is the channel's; of what a task wrote it is the checkpoint that the task followed."""

    agent_id: str
    channel: str
    version: str
    task_id: str
    idx: int
    task_path: str
    encoding: str
    content: bytes


def create_working() -> Operation[None]:
    """Creates the table where the migrations do not."""

    def steps() -> Steps[None]:
        yield batch(Statement("create_working"), last=True)

    return Operation("create_working", Access.WRITE, steps, side=True)


def read_working(session_id: str) -> Operation[list[WorkingRow]]:
    """All that is kept of a session."""

    def steps() -> Steps[list[WorkingRow]]:
        (rows,) = yield batch(Statement("read_working", {"session_id": session_id}), last=True)
        return [WorkingRow(*row) for row in rows]

    return Operation("read_working", Access.READ, steps, side=True)


def write_working(
    session_id: str, agent_id: str, checkpoint_id: str | None, rows: Sequence[WorkingRow], now: str
) -> Operation[None]:
    """Keeps these; `checkpoint_id`: and drops what belongs to other checkpoints than this new one."""
    place = {"session_id": session_id, "agent_id": agent_id}
    kept = [
        {
            **place,
            "channel": row.channel,
            "channel_version": row.version,
            "task_id": row.task_id,
            "idx": row.idx,
            "task_path": row.task_path,
            "encoding": row.encoding,
            "content": row.content,
            "now": now,
        }
        for row in rows
    ]
    older = [{**place, "channel": row.channel, "channel_number": row.version[:10]} for row in rows if not row.task_id]

    def steps() -> Steps[None]:
        new = {**place, "checkpoint_id": checkpoint_id}
        yield batch(
            Statement("drop_working_writes", new) if checkpoint_id is not None else None,
            *(Statement("drop_working", params) for params in older),
            *(Statement("write_working", params) for params in kept),
            last=True,
        )

    return Operation("write_working", Access.WRITE, steps, side=True)


def delete_working(session_id: str) -> Operation[None]:
    """Deletes all that is kept of a session."""

    def steps() -> Steps[None]:
        yield batch(Statement("delete_session_working", {"session_id": session_id}), last=True)

    return Operation("delete_working", Access.WRITE, steps, side=True)
