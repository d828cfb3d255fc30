"""Reading many checkpoints: pages of a thread's history, ancestors for delta channels, lineage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from langgraph_ledger.operations.checkpoints import Head, Stored, as_memory, as_writes
from langgraph_ledger.places import Fetched, WriteRow
from langgraph_ledger.records import to_json
from langgraph_ledger.statements import Access, Operation, Rows, Statement, Steps, batch

END_OF_TIME = 2**62
"""A sequence number after every other."""


@dataclass(slots=True, eq=False, repr=False)
class Query:
    """What to list, newest first: everything, a thread, a namespace or one checkpoint, before a sequence number.

    `before_id` stands for a checkpoint that bounds the list from above. `filter` is JSON that the metadata's
    text values must contain; it may let too much through, never too little.
    """

    session_id: str | None = None
    agent_id: str | None = None
    checkpoint_id: str | None = None
    before: int = END_OF_TIME
    before_id: str | None = None
    filter: str = "{}"


@dataclass(slots=True, eq=False, repr=False)
class Page:
    """Some checkpoints with their writes and memory, the root's head if one thread was asked for, what is next."""

    head: Head | None
    checkpoints: Sequence[Stored]
    following: Query


def list_page(query: Query, page: int) -> Operation[Page]:
    """Up to `page` checkpoints as one snapshot, newest first."""

    def steps() -> Steps[Page]:
        resolved, statement = yield from _resolve(query, page)
        # what is compiled for a page takes longer to compile than to run
        rows, heads, _ = yield batch(
            statement,
            Statement("read_head", {"session_id": query.session_id or "", "agent_id": ""}),
            Statement("plan_simply"),
        )
        head = Head(*heads[0]) if heads else None
        if not rows:
            return Page(head, [], resolved)
        answers = yield batch(*_of_each_session(rows), last=True)
        writes, memory = ([row for rows in answers[i::2] for row in rows] for i in (0, 1))
        following = replace(resolved, before=min(row[5] for row in rows))
        return Page(head, _assemble(rows, writes, memory), following)

    return Operation("list", Access.READ, steps)


def _of_each_session(rows: Rows) -> Iterator[Statement]:
    """What reads the writes of a page's checkpoints, and their memory. Each is about one session, so that partitions or
    shards need not all be looked at; nearly always the page is too."""
    keys: dict[str, Rows] = {}
    for row in rows:
        keys.setdefault(row[0], []).append(row[:3])
    for session_id, of_session in keys.items():
        params = {"session_id": session_id, "keys": to_json(of_session)}
        yield Statement("read_page_writes", params)
        yield Statement("read_page_memory", params)


def _resolve(query: Query, page: int) -> Steps[tuple[Query, Statement]]:
    """The query with `before_id` turned into a sequence number where that is known, and its statement."""
    params = {"session_id": query.session_id, "agent_id": query.agent_id, "page": page, "filter": query.filter}
    if query.checkpoint_id is not None:
        return query, Statement("list_one", {**params, "checkpoint_id": query.checkpoint_id, "before": query.before})
    if query.before_id is None or query.session_id is None:
        return query, Statement(_name(query), {**params, "before": query.before, "before_id": query.before_id})
    place = {"session_id": query.session_id, "agent_id": query.agent_id or "", "checkpoint_id": query.before_id}
    (found,) = yield batch(Statement("find_sequence", place))
    known: dict[str, int] = dict(found)
    own = known.get(query.agent_id or "")
    if own is not None:
        resolved = replace(query, before=min(query.before, own), before_id=None)
        return resolved, Statement(_name(resolved), {**params, "before": resolved.before, "before_id": None})
    if query.agent_id and "" in known:
        # A subgraph is asked for what it had when its root was at a checkpoint: its saves may have overtaken the
        # root's, so the root checkpoints that they were made under are compared, not their own numbers.
        bounds = {"before": query.before, "before_id": query.before_id, "root_before": known[""]}
        return query, Statement("list_namespace_before_root", {**params, **bounds})
    return query, Statement(_name(query), {**params, "before": query.before, "before_id": query.before_id})


def _name(query: Query) -> str:
    if query.session_id is None:
        return "list_everything"
    return "list_session" if query.agent_id is None else "list_namespace"


def _assemble(rows: Rows, writes: Rows, memory: Rows) -> list[Stored]:
    by_checkpoint: dict[tuple[str, ...], Rows] = {}
    for row in writes:
        by_checkpoint.setdefault(tuple(row[:3]), []).append(row[3:])
    by_session: dict[str, Rows] = {}
    for row in memory:
        by_session.setdefault(row[0], []).append(row)
    shared = {session_id: as_memory(rows) for session_id, rows in by_session.items()}
    found = []
    for session_id, agent_id, checkpoint_id, parent_id, body, seq in rows:
        own = as_writes(by_checkpoint.get((session_id, agent_id, checkpoint_id), []))
        remembered = shared.get(session_id, {})
        found.append(Stored(session_id, agent_id, checkpoint_id, parent_id, body, seq, own, remembered))
    return found


@dataclass(slots=True, eq=False, repr=False)
class Ancestor:
    """One step of a parent chain, with the writes to the channels asked for."""

    checkpoint_id: str
    parent_id: str | None
    body: bytes
    writes: Sequence[WriteRow]


def ancestors_page(
    session_id: str,
    agent_id: str,
    checkpoint_id: str,
    channels: Sequence[str],
    page: int,
    choose: Callable[[Sequence[Ancestor]], bytes],
) -> Operation[tuple[Sequence[Ancestor], Fetched]]:
    """What is on the way up from `checkpoint_id` among the `page` checkpoints stored before it, nearest first, and the
    memory whose ids `choose` picks of them, as one snapshot."""
    place = {"session_id": session_id, "agent_id": agent_id}

    def steps() -> Steps[tuple[Sequence[Ancestor], Fetched]]:
        query = {**place, "checkpoint_id": checkpoint_id, "page": page}
        _, rows = yield batch(Statement("plan_simply"), Statement("read_ancestors", query))
        chain = _chain(rows, checkpoint_id)
        if not chain:
            return [], {}
        ids = to_json([row[0] for row in chain])
        (writes,) = yield batch(
            Statement("read_channel_writes", {**place, "checkpoint_ids": ids, "channels": to_json(list(channels))})
        )
        grouped: dict[str, Rows] = {}
        for row in writes:
            grouped.setdefault(row[0], []).append(row[1:])
        found = [Ancestor(cid, parent, body, as_writes(grouped.get(cid, []))) for cid, parent, body in chain]
        needed = {"session_id": session_id, "memory_ids": choose(found)}
        (memory,) = yield batch(Statement("read_memory_of", needed), last=True)
        return found, as_memory(memory)

    return Operation("get_delta_channel_history", Access.READ, steps)


def _chain(rows: Rows, checkpoint_id: str | None) -> Rows:
    """The rows that lead up from a checkpoint, of rows in the order of their making, latest first."""
    chain = []
    for row in rows:
        if row[0] == checkpoint_id:
            chain.append(row)
            checkpoint_id = row[1]
    return chain


def lineage(session_id: str, agent_id: str) -> Operation[Sequence[str]]:
    """The ids of the latest checkpoint and its ancestors, newest first."""

    def steps() -> Steps[Sequence[str]]:
        (rows,) = yield batch(Statement("read_lineage", {"session_id": session_id, "agent_id": agent_id}), last=True)
        return _line(rows)

    return Operation("ancestors", Access.READ, steps)


def _line(rows: Rows) -> list[str]:
    """Rows of (latest, checkpoint, its parent) as a line. Sequence numbers do not tell it: a thread that was moved in
    is stored in the order of its ids, and where clocks differ a child's may be before its parent's."""
    parents: dict[str, str | None] = {checkpoint_id: parent_id for _, checkpoint_id, parent_id in rows}
    found: list[str] = []
    following: str | None = rows[0][0] if rows else None
    while following is not None and following in parents:
        found.append(following)
        following = parents.pop(following)
    return found
