"""Deleting, pruning and copying: what keeps a database from growing for ever.

Each takes the session's root row first, as every write does, so none of it can interleave with a save.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from langgraph_ledger.chains import COPIED, PRUNED, Stamp, genesis, of_entry
from langgraph_ledger.errors import InvalidInput
from langgraph_ledger.operations.checkpoints import Head
from langgraph_ledger.records import as_time, to_json
from langgraph_ledger.statements import Access, Operation, Row, Statement, Steps, batch

TOMBSTONE_AGE = timedelta(days=7)
"""How long a deleted thread refuses the late writes of runs that had read it."""

PAGE = 200
"""How many sessions are looked up at a time."""

_TABLES = ("working", "writes", "memory", "log")


@dataclass(slots=True, eq=False, repr=False)
class Summary:
    """What retention has to know of a checkpoint's body: delta channels without a value, and channels with one."""

    open_deltas: frozenset[str]
    valued: frozenset[str]


Summarise = Callable[[str, str, bytes], Summary]

Rebind = Callable[[bytes, bytes], bytes]
"""A chunk's content as it has to be in the copy of a session: (chunk id, content) to content."""

Measure = tuple[int, int, int, int]
"""Checkpoints, pending writes, chunks, and bytes of all three."""


@dataclass(slots=True, eq=False, repr=False)
class Policy:
    """Which checkpoints stay: the latest of each namespace, the last `keep_last`, and those since `keep_since`."""

    keep_last: int = 1
    keep_since: datetime | None = None


class Rehearsed(Exception):
    """Ends a dry run: the transaction is rolled back, and what it would have freed is told."""

    def __init__(self, freed: Measure) -> None:
        super().__init__(freed)
        self.freed = freed


# --- deleting


def delete_session(session_id: str, token: str, now: str, *, dry_run: bool = False) -> Operation[Measure]:
    """Deletes all of a session's rows; leaves a tombstone that refuses whoever had read it before."""
    place = {"session_id": session_id}

    def steps() -> Steps[Measure]:
        _, measured = yield batch(
            Statement("bury_session", {**place, "writer": token, "now": now}), Statement("measure_session", place)
        )
        freed = _measure(measured[0])
        if dry_run:
            raise Rehearsed(freed)
        yield batch(
            Statement("note_deletion", place),
            Statement("delete_namespaces", place),
            Statement("delete_session", place),
            *(Statement(f"delete_session_{table}", place) for table in _TABLES),
            last=True,
        )
        return freed

    return Operation("delete_thread", Access.WRITE, steps)


def purge_tombstones(now: str) -> Operation[int]:
    """Removes what is left of sessions that were deleted long ago; returns of how many. Waits for nobody."""
    expired = (datetime.fromisoformat(now).astimezone(UTC) - TOMBSTONE_AGE).isoformat()

    def steps() -> Steps[int]:
        (rows,) = yield batch(Statement("find_tombstones", {"expired": expired, "page": PAGE}))
        places = [{"session_id": session_id} for (session_id,) in rows]
        if places:
            yield batch(Statement("delete_session_log", many=places), Statement("delete_tombstone", many=places))
        return len(places)

    return Operation("purge_tombstones", Access.WRITE, steps)


def find_runs(run_ids: Sequence[str]) -> Operation[list[str]]:
    """The sessions in which these runs have left checkpoints."""
    return _sessions(Statement("find_runs", {"run_ids": to_json(list(run_ids))}))


def find_sessions(after: str, status: str | None, idle_since: str | None) -> Operation[list[str]]:
    """The next page of sessions with this status that were last active before a time."""
    return _sessions(
        Statement("find_sessions", {"after": after, "status": status, "idle_since": idle_since, "page": PAGE})
    )


def choose_sessions(session_ids: Sequence[str], status: str | None, idle_since: str | None) -> Operation[list[str]]:
    """Those of these sessions with this status that were last active before a time."""
    ids = to_json(list(session_ids))
    return _sessions(Statement("choose_sessions", {"session_ids": ids, "status": status, "idle_since": idle_since}))


def find_expired(after: str, now: str) -> Operation[list[str]]:
    """The next page of sessions that have outlived their time to live."""
    return _sessions(Statement("find_expired", {"after": after, "now": now, "page": PAGE}))


def _sessions(statement: Statement) -> Operation[list[str]]:
    def steps() -> Steps[list[str]]:
        (rows,) = yield batch(statement, last=True)
        return [row[0] for row in rows]

    return Operation(statement.name, Access.READ, steps)


def set_ttl(session_id: str, seconds: float | None) -> Operation[bool]:
    """Sets a session's time to live; whether there is such a session."""

    def steps() -> Steps[bool]:
        (rows,) = yield batch(Statement("set_ttl", {"session_id": session_id, "ttl_seconds": seconds}), last=True)
        return bool(rows)

    return Operation("set_ttl", Access.WRITE, steps)


# --- pruning


@dataclass(slots=True, eq=False, repr=False)
class _Row:
    agent_id: str
    checkpoint_id: str
    parent_id: str | None
    root_id: str | None
    run_id: str | None
    body: bytes
    seq: int
    created_at: datetime

    @property
    def place(self) -> tuple[str, str]:
        return self.agent_id, self.checkpoint_id


def delete_runs(session_id: str, run_ids: frozenset[str], token: str, stamp: Stamp, now: str) -> Operation[None]:
    """Deletes the checkpoints of these runs in one session; the latest that is left becomes the head."""

    def steps() -> Steps[None]:
        fence = {"session_id": session_id, "writer": token, "now": now}
        (fenced,) = yield batch(Statement("fence_session", fence))
        if not fenced:
            return  # there is nothing, and nothing that would keep others from beginning meanwhile
        rows, heads = yield from _load(session_id)
        before = yield from _log_ends(session_id)
        kept = [row for row in rows if row.run_id not in run_ids]
        latest = {row.agent_id: row for row in kept}
        moves = [
            _move_head(session_id, agent_id, latest.get(agent_id), now)
            for agent_id, head in heads.items()
            if head is not None and (agent_id not in latest or latest[agent_id].checkpoint_id != head)
        ]
        yield batch(*moves, *_deletions(session_id, rows, {row.place for row in kept}))
        yield from _begin_anew(session_id, before, stamp, now)

    return Operation("delete_for_runs", Access.WRITE, steps)


def _move_head(session_id: str, agent_id: str, row: _Row | None, now: str) -> Statement:
    place = {"session_id": session_id, "agent_id": agent_id}
    return Statement("move_head", {**place, "checkpoint_id": row.checkpoint_id if row else None, "now": now})


def prune_session(
    session_id: str, policy: Policy, summarise: Summarise, stamp: Stamp, now: str, *, dry_run: bool = False
) -> Operation[Measure]:
    """Drops the checkpoints that the policy does not keep, and what only they needed."""

    def steps() -> Steps[Measure]:
        locked, _, before = yield batch(
            Statement("lock_session", {"session_id": session_id}),
            Statement("plan_simply"),
            Statement("measure_session", {"session_id": session_id}),
        )
        if not locked:
            return (0, 0, 0, 0)
        rows, heads = yield from _load(session_id)
        keep = _Keeping(rows, heads, summarise).chosen(policy)
        if len(keep) == len(rows):
            return (0, 0, 0, 0)
        ends = yield from _log_ends(session_id)
        *_, after = yield batch(
            *_deletions(session_id, rows, keep), Statement("measure_session", {"session_id": session_id})
        )
        freed = _measure(before[0], after[0])
        if dry_run:
            raise Rehearsed(freed)
        yield from _begin_anew(session_id, ends, stamp, now)
        return freed

    return Operation("prune", Access.WRITE, steps)


def _measure(before: Row, after: Row = (0, 0, 0, 0)) -> Measure:
    checkpoints, writes, chunks, size = (int(b) - int(a) for b, a in zip(before, after, strict=True))
    return checkpoints, writes, chunks, size


def _load(session_id: str) -> Steps[tuple[list[_Row], dict[str, str | None]]]:
    rows, heads = yield batch(
        Statement("read_session_checkpoints", {"session_id": session_id}),
        Statement("read_session_heads", {"session_id": session_id}),
    )
    found = [_Row(a, c, p, r, run, body, seq, as_time(made)) for a, c, p, r, run, body, seq, made in rows]
    return found, dict(heads)


@dataclass(slots=True, eq=False, repr=False)
class _Keeping:
    """Decides which of a session's checkpoints stay."""

    rows: Sequence[_Row]
    heads: Mapping[str, str | None]
    summarise: Summarise
    by_place: dict[tuple[str, str], _Row] = field(init=False)

    def __post_init__(self) -> None:
        self.by_place = {row.place: row for row in self.rows}

    def chosen(self, policy: Policy) -> set[tuple[str, str]]:
        namespaces: dict[str, list[_Row]] = {}
        for row in self.rows:
            namespaces.setdefault(row.agent_id, []).append(row)
        keep = self._chosen_of("", namespaces.get("", []), policy)
        roots = {checkpoint_id for _, checkpoint_id in keep}
        for agent_id, rows in namespaces.items():
            if agent_id == "" or self._left_behind(agent_id, rows, roots):
                continue
            keep |= self._chosen_of(agent_id, rows, policy)
        return keep | self._delta_ancestors(keep)

    def _chosen_of(self, agent_id: str, rows: Sequence[_Row], policy: Policy) -> set[tuple[str, str]]:
        keep = {row.place for row in rows[-policy.keep_last :]}
        if (head := self.heads.get(agent_id)) is not None:
            keep.add((agent_id, head))
        if policy.keep_since is not None:
            keep |= {row.place for row in rows if row.created_at >= policy.keep_since}
        return keep

    @staticmethod
    def _left_behind(agent_id: str, rows: Sequence[_Row], roots: set[str]) -> bool:
        """Whether a namespace is that of one call of a subgraph, made under a root checkpoint that goes."""
        root_id = rows[-1].root_id
        return ":" in agent_id and root_id is not None and root_id not in roots

    def _delta_ancestors(self, keep: set[tuple[str, str]]) -> set[tuple[str, str]]:
        """What the kept checkpoints' delta channels are rebuilt from."""
        needed: set[tuple[str, str]] = set()
        for place in keep:
            row = self.by_place.get(place)
            missing = set(self.summarise(*row.place, row.body).open_deltas) if row else set()
            seen: set[tuple[str, str]] = set()  # parents that somebody has made a circle of end somewhere too
            while row is not None and missing and row.parent_id is not None and row.place not in seen:
                seen.add(row.place)
                row = self.by_place.get((row.agent_id, row.parent_id))
                if row is not None:
                    needed.add(row.place)
                    missing -= self.summarise(*row.place, row.body).valued
        return needed


def _deletions(session_id: str, rows: Sequence[_Row], keep: set[tuple[str, str]]) -> tuple[Statement, ...]:
    gone = {"session_id": session_id, "keys": to_json([row.place for row in rows if row.place not in keep])}
    roots = [row.seq for row in rows if row.agent_id == ""]
    emptied = {row.agent_id for row in rows} - {agent_id for agent_id, _ in keep} - {""}
    return (
        Statement("delete_writes", gone),
        Statement("delete_checkpoints", gone),
        Statement("delete_namespace", many=[{"session_id": session_id, "agent_id": a} for a in sorted(emptied)]),
        Statement("delete_settled_calls", {"session_id": session_id, "before": max(roots, default=0)}),
        Statement("delete_unused_memory", {"session_id": session_id}),
    )


# --- chains: what is removed on purpose leaves a mark, with which the chain of what is left begins anew


@dataclass(slots=True, eq=False, repr=False)
class _LogEnd:
    """How many entries a namespace's log has, the number of the last one, and the chain as far as there is one."""

    entries: int
    latest: int
    chain: bytes | None


def _log_ends(session_id: str) -> Steps[dict[str, _LogEnd]]:
    (rows,) = yield batch(Statement("read_log_ends", {"session_id": session_id}))
    return {agent_id: _LogEnd(entries, latest, chain) for agent_id, entries, latest, chain in rows}


def _begin_anew(session_id: str, before: Mapping[str, _LogEnd], stamp: Stamp, now: str) -> Steps[None]:
    """Marks what has been removed, in each namespace that has lost entries and keeps others, and in the root's, which
    speaks for those of which nothing is left.

    Marks of earlier prunes go: the new one speaks for them too.
    """
    after = yield from _log_ends(session_id)
    lost = {a for a, end in before.items() if a not in after or after[a].entries < end.entries}
    if not any(before[agent_id].chain for agent_id in lost):
        return
    through = max(end.latest for end in before.values())
    marked = sorted({a for a in lost if a in after and before[a].chain} | {""})
    places = [{"session_id": session_id, "agent_id": agent_id} for agent_id in marked]
    yield batch(Statement("delete_mark", many=[{**place, "checkpoint_type": PRUNED} for place in places]))
    marks = []
    nothing = _LogEnd(0, 0, None)
    for agent_id in marked:
        end = before.get(agent_id, nothing)
        facts = {"removed": end.entries - after.get(agent_id, nothing).entries, "through": through}
        marks.append(_mark(session_id, agent_id, PRUNED, {**facts, "chain": (end.chain or b"").hex()}, stamp, now))
    yield batch(*marks)


def _mark(session_id: str, agent_id: str, kind: str, facts: Mapping[str, Any], stamp: Stamp, now: str) -> Statement:
    payload = to_json(facts)
    digest = of_entry(stamp, agent_id, kind, None, None, None, None, None, None, None, payload, None, None, now)
    place = {"session_id": session_id, "agent_id": agent_id, "checkpoint_type": kind, "payload": payload, "now": now}
    return Statement("insert_mark", {**place, "digest": digest, "genesis": genesis(session_id, agent_id)})


# --- copying


def copy_session(
    session_id: str,
    target_id: str,
    token: str,
    now: str,
    summarise: Summarise,
    *,
    last: int | None = None,
    checkpoint_id: str | None = None,
    rebind: Rebind | None = None,
    stamp: Stamp | None = None,
) -> Operation[bool]:
    """Copies a thread to one that holds none; False if there is no source.

    `last` leaves all but so many checkpoints of each namespace behind, `checkpoint_id` all that came after it.
    `stamp`: for the entries with which the chains of the copy begin; None: it has none.
    """
    both = {"session_id": session_id, "target_id": target_id}

    def steps() -> Steps[bool]:
        source, target, root = yield batch(
            Statement("lock_session", {"session_id": session_id}),
            Statement("read_session_heads", {"session_id": target_id}),
            Statement("read_head", {"session_id": target_id, "agent_id": ""}),
        )
        if root and Head(*root[0]).writer == token:
            return True  # our own commit, whose answer was lost
        if not source:
            return False
        if any(head is not None for _, head in target):
            raise InvalidInput(f"thread {target_id!r} holds checkpoints already: copy to a new thread, or delete it")
        (claimed,) = yield batch(Statement("copy_ledger", {**both, "writer": token, "now": now}))
        if ("",) not in claimed:
            if not (yield from _load(session_id))[0]:
                return False
            raise InvalidInput(f"thread {target_id!r} is in use already: copy to a new thread, or delete it first")
        yield batch(
            Statement("copy_session", {**both, "now": now}),
            Statement("copy_log", both),
            Statement("copy_memory", both),
            Statement("copy_writes", both),
        )
        if rebind is not None:
            yield from _rebound(target_id, rebind)
        if last is not None or checkpoint_id is not None:
            yield from _cut(target_id, last, checkpoint_id, summarise, now)
        if stamp is not None:
            facts = {"thread": session_id}
            copied = sorted((yield from _log_ends(target_id)))
            yield batch(*(_mark(target_id, agent_id, COPIED, facts, stamp, now) for agent_id in copied))
        return True

    return Operation("copy_thread", Access.WRITE, steps)


def _rebound(session_id: str, rebind: Rebind) -> Steps[None]:
    """Puts the content of a copy's chunks into the form that belongs to its place."""
    after = b""
    while True:
        query = {"session_id": session_id, "after": after, "page": PAGE}
        (rows,) = yield batch(Statement("read_session_memory", query))
        changed = [
            {"session_id": session_id, "memory_id": memory_id, "content": rebind(memory_id, content)}
            for memory_id, content in rows
        ]
        if changed:
            yield batch(Statement("replace_memory", many=changed))
        if len(rows) < PAGE:
            return
        after = rows[-1][0]


def _cut(session_id: str, last: int | None, checkpoint_id: str | None, summarise: Summarise, now: str) -> Steps[None]:
    """Drops from a copy what was not asked for."""
    rows, heads = yield from _load(session_id)
    moves: list[Statement] = []
    there = list(rows)
    if checkpoint_id is not None:
        past = _past(rows, checkpoint_id)
        there = [row for row in rows if (row.root_id if row.agent_id else row.checkpoint_id) in past]
        latest = {row.agent_id: row for row in there}
        latest[""] = next(row for row in there if row.place == ("", checkpoint_id))
        heads = {agent_id: row.checkpoint_id for agent_id, row in latest.items()}
        moves = [_move_head(session_id, agent_id, row, now) for agent_id, row in latest.items()]
    keep = _Keeping(there, heads, summarise).chosen(Policy(last or len(rows)))
    yield batch(*moves, *_deletions(session_id, rows, keep))


def _past(rows: Sequence[_Row], checkpoint_id: str) -> set[str]:
    """A root checkpoint and its ancestors."""
    by_id = {row.checkpoint_id: row for row in rows if row.agent_id == ""}
    if checkpoint_id not in by_id:
        raise InvalidInput(f"the thread has no checkpoint {checkpoint_id!r}")
    past: set[str] = set()
    cursor: _Row | None = by_id[checkpoint_id]
    while cursor is not None and cursor.checkpoint_id not in past:
        past.add(cursor.checkpoint_id)
        cursor = by_id.get(cursor.parent_id) if cursor.parent_id else None
    return past
