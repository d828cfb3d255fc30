"""Writing and reading checkpoints and their pending writes, under the version check.

Every write begins with the claim (or, for a run that holds the thread already, with a look at the claim), and every
statement behind it asks again whether the claim holds. So a refused write stores nothing wherever it is stopped, and
a write whose answer was lost can simply be sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langgraph_ledger.memory import MemoryRow, WriteRow
from langgraph_ledger.records import to_json
from langgraph_ledger.statements import Access, Operation, Rows, Statement, Steps, batch

HELD = -1
"""`read_version` of a run that has claimed already: no version matches it, only its token does."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes, and on what terms: the fence token, the version read (None: never read), the parent to find."""

    session_id: str
    token: str
    read_version: int | None
    parent_id: str | None
    owner: str | None

    @property
    def holds(self) -> bool:
        return self.read_version == HELD


@dataclass(frozen=True, slots=True)
class NewCheckpoint:
    """A checkpoint, encoded and ready to be stored, with all that is stored along with it."""

    agent_id: str
    checkpoint_id: str
    parent_id: str | None
    root_id: str | None
    run_id: str | None
    payload: str
    body: bytes
    state: str
    reused_from: str | None
    memory: Sequence[MemoryRow]
    writes: Sequence[WriteRow]
    status: str | None
    metadata: str | None


def _claim(writer: Writer, now: str, checkpoint_id: str | None = None, state: str | None = None) -> Statement:
    return Statement(
        "claim",
        {
            "session_id": writer.session_id,
            "writer": writer.token,
            "read_version": writer.read_version,
            "parent_id": writer.parent_id,
            "owner": writer.owner,
            "checkpoint_id": checkpoint_id,
            "state": state,
            "now": now,
        },
    )


def _claim_or_keep(writer: Writer, now: str) -> Statement:
    """Takes the thread, or, for its owner, only makes sure that nobody else has: without a row update."""
    if writer.holds:
        return Statement("keep", {"session_id": writer.session_id, "writer": writer.token})
    return _claim(writer, now)


def _touch(writer: Writer, status: str | None, metadata: str | None, now: str) -> Statement:
    params = {"session_id": writer.session_id, "writer": writer.token, "status": status, "metadata": metadata}
    return Statement("touch_session", {**params, "now": now})


def _write_rows(
    writer: Writer, agent_id: str, checkpoint_id: str, rows: Sequence[WriteRow]
) -> tuple[Statement, Statement]:
    place = {
        "session_id": writer.session_id,
        "writer": writer.token,
        "agent_id": agent_id,
        "checkpoint_id": checkpoint_id,
    }

    def params(row: WriteRow) -> dict[str, Any]:
        return {
            **place,
            "task_id": row.task_id,
            "idx": row.idx,
            "task_path": row.task_path,
            "channel": row.channel,
            "encoding": row.encoding,
            "content": row.content,
        }

    return (
        Statement("insert_write", many=[params(r) for r in rows if r.idx >= 0]),
        Statement("replace_write", many=[params(r) for r in rows if r.idx < 0]),
    )


def put_checkpoint(writer: Writer, new: NewCheckpoint, now: str) -> Operation[int | None]:
    """Stores a checkpoint; returns the version of the root row, or None if the run's version was not current."""
    place = {"session_id": writer.session_id, "writer": writer.token, "agent_id": new.agent_id, "now": now}
    place["checkpoint_id"] = new.checkpoint_id

    def steps() -> Steps[int | None]:
        root = new.agent_id == ""
        advance = None if root else Statement("advance_namespace", {**place, "state": new.state})
        memory = [
            {
                "session_id": writer.session_id,
                "writer": writer.token,
                "memory_id": row.memory_id,
                "encoding": row.encoding,
                "content": row.content,
            }
            for row in new.memory
        ]
        checkpoint = {
            **place,
            "parent_id": new.parent_id,
            "root_id": new.root_id,
            "run_id": new.run_id,
            "payload": new.payload,
            "body": new.body,
            "reused_from": new.reused_from,
        }
        answers = yield batch(
            _claim(writer, now, new.checkpoint_id, new.state) if root else _claim_or_keep(writer, now),
            advance,
            _touch(writer, new.status, new.metadata, now) if root or not writer.holds else None,
            Statement("insert_memory", many=memory),
            Statement("insert_checkpoint", checkpoint),
            *_write_rows(writer, new.agent_id, new.checkpoint_id, new.writes),
            last=True,
        )
        return _first(answers[0])

    return Operation("put", Access.WRITE, steps)


def put_pending_writes(
    writer: Writer, agent_id: str, checkpoint_id: str, rows: Sequence[WriteRow], status: str | None, now: str
) -> Operation[tuple[int | None, bool]]:
    """Stores a task's writes; returns the version of the root row or None, and whether the checkpoint exists."""
    place = {"session_id": writer.session_id, "agent_id": agent_id, "checkpoint_id": checkpoint_id}

    def steps() -> Steps[tuple[int | None, bool]]:
        touch = status is not None or not writer.holds
        answers = yield batch(
            _claim_or_keep(writer, now),
            Statement("find_sequence", place),
            *_write_rows(writer, agent_id, checkpoint_id, rows),
            _touch(writer, status, None, now) if touch else None,
            last=True,
        )
        return _first(answers[0]), any(agent == agent_id for agent, _ in answers[1])

    return Operation("put_writes", Access.WRITE, steps)


def _first(rows: Rows) -> int | None:
    return int(rows[0][0]) if rows else None


@dataclass(frozen=True, slots=True)
class Head:
    """A root or namespace row of the ledger."""

    version: int
    checkpoint_id: str | None
    writer: str
    owner: str | None
    updated_at: Any
    deleted_at: Any
    status: str | None


@dataclass(frozen=True, slots=True)
class Stored:
    """A checkpoint as its rows: the body still packed, the writes in LangGraph's order."""

    session_id: str
    agent_id: str
    checkpoint_id: str
    parent_id: str | None
    body: bytes
    seq: int
    writes: Sequence[WriteRow] = ()
    memory: Mapping[str, tuple[str, bytes]] = field(default_factory=dict)


def read_checkpoint(
    session_id: str, agent_id: str, checkpoint_id: str | None, memory_ids: Callable[[bytes], Sequence[str]]
) -> Operation[tuple[Head | None, Stored | None]]:
    """The root's head, and the checkpoint named (or else the latest) with its writes and memory: one snapshot."""
    place = {"session_id": session_id, "agent_id": agent_id, "checkpoint_id": checkpoint_id}

    def steps() -> Steps[tuple[Head | None, Stored | None]]:
        head, found, writes = yield batch(
            Statement("read_head", {"session_id": session_id, "agent_id": ""}),
            Statement("read_checkpoint", place),
            Statement("read_writes", place),
        )
        stored = None
        if found:
            found_id, parent_id, body, seq = found[0]
            memory: dict[str, tuple[str, bytes]] = {}
            if wanted := memory_ids(body):
                query = {"session_id": session_id, "memory_ids": to_json(sorted(set(wanted)))}
                (rows,) = yield batch(Statement("read_memory", query), last=True)
                memory = {memory_id: (encoding, content) for memory_id, encoding, content in rows}
            stored = Stored(session_id, agent_id, found_id, parent_id, body, seq, as_writes(writes), memory)
        return Head(*head[0]) if head else None, stored

    return Operation("get_tuple", Access.READ, steps)


def as_writes(rows: Rows) -> list[WriteRow]:
    """Rows of (task_path, task_id, idx, ...) in `writes_sort_key` order."""
    made = [WriteRow(task, idx, path, channel, enc, content) for path, task, idx, channel, enc, content in rows]
    return sorted(made, key=lambda w: (w.task_path, w.task_id, w.idx))


def read_root(session_id: str) -> Operation[Head | None]:
    """What the root row says now, for the error of a refused write."""

    def steps() -> Steps[Head | None]:
        (rows,) = yield batch(Statement("read_head", {"session_id": session_id, "agent_id": ""}), last=True)
        return Head(*rows[0]) if rows else None

    return Operation("read_root", Access.READ, steps)


def log_entry(session_id: str, agent_id: str, kind: str, now: str, **facts: str | None) -> Operation[None]:
    """Appends one entry to the log, in a transaction of its own."""
    optional = {key: facts.get(key) for key in ("checkpoint_id", "parent_id", "run_id", "task_id")}
    entry = {"session_id": session_id, "agent_id": agent_id, "checkpoint_type": kind, "now": now, **optional}

    def steps() -> Steps[None]:
        yield batch(Statement("insert_log", {**entry, "payload": facts.get("payload") or "{}"}), last=True)

    return Operation(f"log {kind}", Access.WRITE, steps)
