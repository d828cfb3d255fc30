"""Writing and reading checkpoints and their pending writes, under the version check.

Every write begins with the claim (or, for a run that holds the thread already, with a look at the claim), and every
statement behind it asks again whether the claim holds. So a refused write stores nothing wherever it is stopped, and
a write whose answer was lost can simply be sent again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from langgraph_ledger.chains import REJECTED, Stamp, genesis, of_entry, of_head
from langgraph_ledger.operations.working import WorkingRow
from langgraph_ledger.places import Fetched, MemoryRow, WriteRow
from langgraph_ledger.statements import Access, Operation, Rows, Statement, Steps, batch

CHECKPOINT = "checkpoint"

HELD = -1
"""`read_version` of a run that has claimed already: no version matches it, only its token does."""


BEHIND = -2
"""Instead of a version: what goes before in the same transaction says whether this is stored."""


@dataclass(slots=True, eq=False, repr=False)
class Writer:
    """Who writes, and on what terms: the fence token, the version read (None: never read), the parent to find."""

    session_id: str
    token: str
    read_version: int | None
    parent_id: str | None
    owner: str | None
    ttl_seconds: float | None = None

    @property
    def holds(self) -> bool:
        return self.read_version == HELD


PlacedWrite = tuple[str, str, WriteRow]
"""A row of pending writes with the namespace and the checkpoint it belongs to."""


@dataclass(slots=True, eq=False, repr=False)
class NewCheckpoint:
    """A checkpoint, encoded and ready to be stored, with all that is stored along with it."""

    agent_id: str
    checkpoint_id: str
    parent_id: str | None
    root_id: str | None
    run_id: str | None
    payload: str
    body: bytes
    memory_ids: bytes | None
    state_bytes: int
    state: str
    reused_from: str | None
    memory: Sequence[MemoryRow]
    writes: Sequence[PlacedWrite]
    status: str | None
    metadata: str | None
    stamp: Stamp | None = None
    """Makes the digests of its rows; None: they have none."""


def _claim(
    writer: Writer,
    now: str,
    checkpoint_id: str | None = None,
    state: str | None = None,
    digest: bytes | None = None,
) -> Statement:
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
            "head_digest": digest,
            "now": now,
        },
    )


def claim_or_keep(writer: Writer, now: str) -> Statement:
    """Takes the thread, or, for its owner, only makes sure that nobody else has: without a row update."""
    if writer.holds:
        return Statement("keep", {"session_id": writer.session_id, "writer": writer.token})
    return _claim(writer, now)


def _claim_or_advance(writer: Writer, new: NewCheckpoint, digest: bytes | None, now: str) -> Statement:
    """Takes the thread with a new head, or, for its owner, moves the head on."""
    if not writer.holds:
        return _claim(writer, now, new.checkpoint_id, new.state, digest)
    head = {"checkpoint_id": new.checkpoint_id, "state": new.state, "head_digest": digest, "now": now}
    return Statement("advance_root", {"session_id": writer.session_id, "writer": writer.token, **head})


def touch(writer: Writer, status: str | None, metadata: str | None, now: str) -> Statement:
    """Says in the session's row that it is alive, and what is known of it."""
    who = {"session_id": writer.session_id, "writer": writer.token, "ttl_seconds": writer.ttl_seconds}
    return Statement("touch_session", {**who, "status": status, "metadata": metadata, "now": now})


def _write_rows(writer: Writer, writes: Sequence[PlacedWrite]) -> tuple[Statement, Statement]:
    def params(agent_id: str, checkpoint_id: str, row: WriteRow) -> dict[str, Any]:
        return {
            "session_id": writer.session_id,
            "writer": writer.token,
            "agent_id": agent_id,
            "checkpoint_id": checkpoint_id,
            "task_id": row.task_id,
            "idx": row.idx,
            "task_path": row.task_path,
            "channel": row.channel,
            "place": row.place,
            "memory_ids": row.memory_ids,
            "digest": row.digest,
            "together": row.together or 0,
        }

    # of several writes to one place in one statement, the first is kept or the last one replaces
    kept = {(a, c, r.task_id, r.idx): params(a, c, r) for a, c, r in reversed(writes) if r.idx >= 0}
    replaced = {(a, c, r.task_id, r.idx): params(a, c, r) for a, c, r in writes if r.idx < 0}
    return (
        Statement("insert_write", many=[kept[key] for key in sorted(kept)]),
        Statement("replace_write", many=[replaced[key] for key in sorted(replaced)]),
    )


def _memory_rows(writer: Writer, rows: Sequence[MemoryRow], place: tuple[str, str] | None = None) -> Statement:
    """The rows of chunks; with `place`, only if that checkpoint is there to refer to them."""
    found = {} if place is None else {"agent_id": place[0], "checkpoint_id": place[1]}
    name = "insert_memory" if place is None else "insert_write_memory"
    return Statement(name, many=memory_params(writer.session_id, rows, writer=writer.token, **found))


def memory_params(session_id: str, rows: Sequence[MemoryRow], **condition: str) -> list[dict[str, Any]]:
    """Chunks as parameters, with those of the condition under which they are stored."""
    return [
        {
            **condition,
            "session_id": session_id,
            "memory_id": row.memory_id,
            "encoding": row.encoding,
            "plain_bytes": row.plain_bytes,
            "content": row.content,
            "children": row.children,
        }
        # in one order for everybody, or two saves of the same values would wait for each other
        for row in sorted(rows, key=lambda row: row.memory_id)
    ]


def _digests(new: NewCheckpoint, now: str) -> tuple[bytes | None, bytes | None]:
    """Of the entry that the checkpoint is, and of the head that it becomes."""
    if new.stamp is None:
        return None, None
    place = (new.agent_id, CHECKPOINT, new.checkpoint_id, new.parent_id, new.root_id, new.run_id)
    entry = of_entry(new.stamp, *place, None, None, None, new.payload, new.state_bytes, new.body, now)
    return entry, of_head(new.stamp, entry, new.state)


def put_checkpoint(writer: Writer, new: NewCheckpoint, now: str) -> Operation[int | None]:
    """Stores a checkpoint; returns the version of the root row, or None if the run's version was not current."""
    place = {"session_id": writer.session_id, "writer": writer.token, "agent_id": new.agent_id, "now": now}
    place["checkpoint_id"] = new.checkpoint_id

    def steps() -> Steps[int | None]:
        root = new.agent_id == ""
        digest, head_digest = _digests(new, now)
        head = {"state": new.state, "head_digest": head_digest}
        advance = None if root else Statement("advance_namespace", {**place, **head})
        checkpoint = {
            **place,
            "parent_id": new.parent_id,
            "root_id": new.root_id,
            "run_id": new.run_id,
            "payload": new.payload,
            "memory_ids": new.memory_ids,
            "state_bytes": new.state_bytes,
            "body": new.body,
            "reused_from": new.reused_from,
            "digest": digest,
            "genesis": genesis(writer.session_id, new.agent_id) if digest else None,
        }
        answers = yield batch(
            _claim_or_advance(writer, new, head_digest, now) if root else claim_or_keep(writer, now),
            advance,
            touch(writer, new.status, new.metadata, now) if new.status is not None or not writer.holds else None,
            _memory_rows(writer, new.memory),
            Statement("insert_checkpoint", checkpoint),
            *_write_rows(writer, new.writes),
            last=True,
        )
        return first(answers[0])

    return Operation("put", Access.WRITE, steps)


def put_pending_writes(
    writer: Writer,
    writes: Sequence[PlacedWrite],
    memory: Mapping[tuple[str, str], Sequence[MemoryRow]],
    status: str | None,
    now: str,
    *,
    behind: bool = False,
) -> Operation[int | None]:
    """Stores tasks' writes, those whose checkpoint is there; returns the version of the root row or None.

    `behind` a write of the same run in the same transaction the root row is not looked at once more: it is locked, and
    whether the thread is the run's is known. Then `BEHIND` is returned.
    """
    behind = behind and writer.holds

    def steps() -> Steps[int | None]:
        news = status is not None or not writer.holds
        answers = yield batch(
            None if behind else claim_or_keep(writer, now),
            *(_memory_rows(writer, memory[place], place) for place in sorted(memory)),
            *_write_rows(writer, writes),
            touch(writer, status, None, now) if news else None,
            last=True,
        )
        return BEHIND if behind else first(answers[0])

    return Operation("put_writes", Access.WRITE, steps)


def checkpoint_exists(session_id: str, agent_id: str, checkpoint_id: str) -> Operation[bool]:
    """Whether there is such a checkpoint."""
    place = {"session_id": session_id, "agent_id": agent_id, "checkpoint_id": checkpoint_id}

    def steps() -> Steps[bool]:
        (rows,) = yield batch(Statement("find_checkpoint", place), last=True)
        return bool(rows)

    return Operation("find_checkpoint", Access.READ, steps)


def first(rows: Rows) -> int | None:
    """The version that a claim or its like returned."""
    return int(rows[0][0]) if rows else None


@dataclass(slots=True, eq=False, repr=False)
class Head:
    """A root or namespace row of the ledger."""

    version: int
    checkpoint_id: str | None
    writer: str
    owner: str | None
    updated_at: Any
    deleted_at: Any
    status: str | None


@dataclass(slots=True, eq=False, repr=False)
class Stored:
    """A checkpoint as its rows: the body still packed, the writes in LangGraph's order."""

    session_id: str
    agent_id: str
    checkpoint_id: str
    parent_id: str | None
    body: bytes
    seq: int
    writes: Sequence[WriteRow] = ()
    memory: Fetched = field(default_factory=dict)
    working: Sequence[WorkingRow] = ()


def read_checkpoint(
    session_id: str, agent_id: str, checkpoint_id: str | None, *, values: bool = True
) -> Operation[tuple[Head | None, Stored | None]]:
    """The root's head, and the checkpoint named (or else the latest) with its writes and memory: one snapshot."""
    place = {"session_id": session_id, "agent_id": agent_id, "checkpoint_id": checkpoint_id}

    def steps() -> Steps[tuple[Head | None, Stored | None]]:
        head, found, *rest = yield batch(
            Statement("read_head", {"session_id": session_id, "agent_id": ""}),
            Statement("read_checkpoint", place),
            Statement("read_writes", place) if values else None,
            Statement("read_memory", place) if values else None,
            last=True,
        )
        stored = None
        if found:
            found_id, parent_id, body, seq = found[0]
            writes, memory = rest if values else ([], [])
            stored = Stored(session_id, agent_id, found_id, parent_id, body, seq, as_writes(writes), as_memory(memory))
        return Head(*head[0]) if head else None, stored

    return Operation("get_tuple", Access.READ, steps)


def as_memory(rows: Rows) -> Fetched:
    """Rows of (session_id, memory_id, encoding, content, children) of one session, by id."""
    return {row[1]: (row[2], row[3], row[4]) for row in rows}


def as_writes(rows: Rows) -> list[WriteRow]:
    """Rows of (task_path, task_id, idx, ...) in `writes_sort_key` order."""
    made = [WriteRow(task, idx, path, channel, place, ids) for path, task, idx, channel, place, ids in rows]
    return sorted(made, key=lambda w: (w.task_path, w.task_id, w.idx))


def read_root(session_id: str) -> Operation[Head | None]:
    """What the root row says now, for the error of a refused write."""

    def steps() -> Steps[Head | None]:
        (rows,) = yield batch(Statement("read_head", {"session_id": session_id, "agent_id": ""}), last=True)
        return Head(*rows[0]) if rows else None

    return Operation("read_root", Access.READ, steps)


def log_rejection(
    session_id: str,
    agent_id: str,
    checkpoint_id: str | None,
    parent_id: str | None,
    payload: str,
    stamp: Stamp | None,
    now: str,
) -> Operation[None]:
    """Appends a refused write to the log, in a transaction of its own, and once: `attempt_id` tells it from others.

    It continues the chain of its namespace by itself, for nothing may come behind it. That takes the root row; where
    the thread has none, the entry stands outside of the chain.
    """
    attempt_id = uuid4().hex
    entry = {"session_id": session_id, "agent_id": agent_id, "checkpoint_id": checkpoint_id, "parent_id": parent_id}
    entry |= {"attempt_id": attempt_id, "payload": payload, "now": now}
    names = (agent_id, REJECTED, checkpoint_id, parent_id, None, None, None, None, attempt_id)
    digest = of_entry(stamp, *names, payload, None, None, now) if stamp else None
    chain = {"digest": digest, "genesis": genesis(session_id, agent_id)}

    def steps() -> Steps[None]:
        (root,) = yield batch(Statement("lock_session", {"session_id": session_id}))
        locked = int(bool(root) and digest is not None)
        yield batch(Statement("insert_rejection", {**entry, **chain, "locked": locked}), last=True)

    return Operation("log write_rejected", Access.WRITE, steps)
