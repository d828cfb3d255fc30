"""Deleting, pruning and copying: what keeps a database from growing for ever.

Each takes the session's root row first, as every write does, so none of it can interleave with a save.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from langgraph_ledger.errors import InvalidInput
from langgraph_ledger.records import to_json
from langgraph_ledger.statements import Access, Operation, Rows, Statement, Steps, batch

TOMBSTONE_AGE = timedelta(days=7)
"""How long a deleted thread refuses the late writes of runs that had read it."""

_TABLES = ("working", "writes", "memory", "log")


@dataclass(frozen=True, slots=True)
class Summary:
    """What retention has to know of a checkpoint's body: delta channels without a value, and channels with one."""

    open_deltas: frozenset[str]
    valued: frozenset[str]


Summarise = Callable[[bytes], Summary]


def delete_session(session_id: str, token: str, now: str) -> Operation[None]:
    """Deletes all of a session's rows; leaves a tombstone that refuses whoever had read it before."""
    place = {"session_id": session_id}
    expired = (datetime.fromisoformat(now).astimezone(UTC) - TOMBSTONE_AGE).isoformat()

    def steps() -> Steps[None]:
        yield batch(
            Statement("bury_session", {**place, "writer": token, "now": now}),
            Statement("delete_namespaces", place),
            Statement("delete_session", place),
            *(Statement(f"delete_session_{table}", place) for table in _TABLES),
            Statement("purge_tombstones", {"expired": expired}),
            last=True,
        )

    return Operation("delete_thread", Access.WRITE, steps)


def find_runs(run_ids: Sequence[str]) -> Operation[list[str]]:
    """The sessions in which these runs have left checkpoints."""

    def steps() -> Steps[list[str]]:
        (rows,) = yield batch(Statement("find_runs", {"run_ids": to_json(list(run_ids))}), last=True)
        return [row[0] for row in rows]

    return Operation("delete_for_runs", Access.READ, steps)


@dataclass(frozen=True, slots=True)
class _Row:
    agent_id: str
    checkpoint_id: str
    parent_id: str | None
    run_id: str | None
    body: bytes
    seq: int


def delete_runs(session_id: str, run_ids: frozenset[str], token: str, now: str) -> Operation[None]:
    """Deletes the checkpoints of these runs in one session; the latest that is left becomes the head."""

    def steps() -> Steps[None]:
        yield batch(Statement("fence_session", {"session_id": session_id, "writer": token, "now": now}))
        rows, heads = yield from _load(session_id)
        kept = [row for row in rows if row.run_id not in run_ids]
        latest = {row.agent_id: row for row in kept}
        moves = []
        for agent_id, head in heads.items():
            row = latest.get(agent_id)
            if head is not None and (row is None or row.checkpoint_id != head):
                new_id = row.checkpoint_id if row else None
                place = {"session_id": session_id, "agent_id": agent_id, "checkpoint_id": new_id}
                moves.append(Statement("move_head", {**place, "now": now}))
        yield _deletions(session_id, rows, kept, tuple(moves))

    return Operation("delete_for_runs", Access.WRITE, steps)


def prune_session(session_id: str, summarise: Summarise) -> Operation[None]:
    """Keeps each namespace's latest checkpoint and the ancestors that its delta channels are rebuilt from."""

    def steps() -> Steps[None]:
        yield batch(Statement("lock_session", {"session_id": session_id}))
        rows, heads = yield from _load(session_id)
        keep = _needed(rows, heads, summarise)
        kept = [row for row in rows if (row.agent_id, row.checkpoint_id) in keep]
        if len(kept) < len(rows):
            yield _deletions(session_id, rows, kept)

    return Operation("prune", Access.WRITE, steps)


def _load(session_id: str) -> Steps[tuple[list[_Row], dict[str, str | None]]]:
    rows, heads = yield batch(
        Statement("read_session_checkpoints", {"session_id": session_id}),
        Statement("read_session_heads", {"session_id": session_id}),
    )
    return [_Row(*row) for row in rows], dict(heads)


def _needed(rows: Sequence[_Row], heads: dict[str, str | None], summarise: Summarise) -> set[tuple[str, str]]:
    by_place = {(row.agent_id, row.checkpoint_id): row for row in rows}
    needed = {(agent_id, head) for agent_id, head in heads.items() if head is not None}
    for place in list(needed):
        row = by_place.get(place)
        open_deltas = set(summarise(row.body).open_deltas) if row else set()
        while row is not None and open_deltas and row.parent_id is not None:
            row = by_place.get((row.agent_id, row.parent_id))
            if row is not None:
                needed.add((row.agent_id, row.checkpoint_id))
                open_deltas -= summarise(row.body).valued
    return needed


def _deletions(session_id: str, rows: Sequence[_Row], kept: Sequence[_Row], more: tuple[Statement, ...] = ()) -> Any:
    staying = {(row.agent_id, row.checkpoint_id) for row in kept}
    gone = [
        {"session_id": session_id, "agent_id": row.agent_id, "checkpoint_id": row.checkpoint_id}
        for row in rows
        if (row.agent_id, row.checkpoint_id) not in staying
    ]
    return batch(
        *more,
        Statement("delete_checkpoint_writes", many=gone),
        Statement("delete_checkpoint", many=gone),
        Statement("delete_unused_memory", {"session_id": session_id}),
        last=True,
    )


def copy_session(session_id: str, target_id: str, token: str, now: str) -> Operation[bool]:
    """Copies a thread's checkpoints, values and writes to a thread that holds none; False if there is no source."""
    both = {"session_id": session_id, "target_id": target_id}

    def steps() -> Steps[bool]:
        source, target = yield batch(
            Statement("lock_session", {"session_id": session_id}),
            Statement("read_session_heads", {"session_id": target_id}),
        )
        if not source:
            return False
        if _holds_anything(target):
            raise InvalidInput(f"thread {target_id!r} holds checkpoints already: copy to a new thread, or delete it")
        (claimed,) = yield batch(Statement("copy_ledger", {**both, "writer": token, "now": now}))
        if ("",) not in claimed:
            raise InvalidInput(f"thread {target_id!r} was written to meanwhile: copy to a new thread")
        yield batch(
            Statement("copy_session", {**both, "now": now}),
            Statement("copy_log", both),
            Statement("copy_memory", both),
            Statement("copy_writes", both),
            last=True,
        )
        return True

    return Operation("copy_thread", Access.WRITE, steps)


def _holds_anything(heads: Rows) -> bool:
    return any(checkpoint_id is not None for _, checkpoint_id in heads)
