"""All rows of one session, as they are, and the ids of all that have any, for whoever checks them.

What a column holds may be of any type on SQLite. A value of a wrong one is put aside here, and named, so that nobody
who checks the rows has to expect it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langgraph_ledger.operations.checkpoints import as_memory
from langgraph_ledger.operations.retention import PAGE
from langgraph_ledger.places import Fetched, WriteRow
from langgraph_ledger.statements import Access, Operation, Row, Rows, Statement, Steps, batch


@dataclass(slots=True, eq=False, repr=False)
class Entry:
    """An entry of the log: `row` as `as_entry` takes it, and what that leaves out."""

    row: Row
    body: bytes | None
    memory_ids: bytes | None
    root_id: str | None
    digest: bytes | None
    chain: bytes | None

    @property
    def seq(self) -> int:
        return int(self.row[0])

    @property
    def agent_id(self) -> str:
        return str(self.row[2])

    @property
    def kind(self) -> str:
        return str(self.row[3])

    @property
    def checkpoint_id(self) -> Any:
        return self.row[4]


@dataclass(slots=True, eq=False, repr=False)
class LedgerRow:
    """The head of a namespace."""

    agent_id: str
    checkpoint_id: str | None
    version: int
    state: str | None
    digest: bytes | None
    deleted_at: Any
    deleted_through: int | None


@dataclass(slots=True, eq=False, repr=False)
class Everything:
    """What a session's tables hold, in one snapshot.

    `session`: its row, if there is one. `writes`: namespace, checkpoint id and row. `sizes`: what the rows of `memory`
    say that they take when unpacked. `mistyped`: where a column holds what it cannot hold, and what that is.
    """

    session: Row | None
    heads: list[LedgerRow]
    entries: list[Entry]
    writes: list[tuple[str, str, WriteRow]]
    memory: Fetched
    sizes: Mapping[bytes, int]
    mistyped: list[tuple[str, str]]

    def note(self, where: str, wrong: str | None) -> None:
        if wrong:
            self.mistyped.append((where, wrong))


# --- names of rows


def entry_place(seq: int, agent_id: str) -> str:
    """Names an entry of a log."""
    return f"entry {seq} of its log" + (f", namespace {agent_id!r}" if agent_id else "")


def write_place(agent_id: str, checkpoint_id: str, row: WriteRow) -> str:
    """Names a pending write."""
    return f"namespace {agent_id!r}, checkpoint {checkpoint_id}, write {row.idx} of task {row.task_id}"


# --- types

_OPTIONAL = "?"
_ENTRY = {
    "seq": int, "session_id": str, "agent_id": str, "checkpoint_type": str, "checkpoint_id?": str,
    "parent_checkpoint_id?": str, "run_id?": str, "task_id?": str, "payload": str, "created_at": object,
    "call_id?": str, "attempt_id?": str, "state_bytes?": int, "body?": bytes, "memory_ids?": bytes,
    "root_checkpoint_id?": str, "digest?": bytes, "chain?": bytes,
}  # fmt: skip
_HEAD = {
    "agent_id": str, "checkpoint_id?": str, "version": int, "state?": str, "digest?": bytes, "deleted_at?": object,
    "deleted_through?": int,
}  # fmt: skip
_WRITE = {
    "agent_id": str, "checkpoint_id": str, "task_path": str, "task_id": str, "idx": int, "channel": str,
    "place": bytes, "memory_ids?": bytes, "digest?": bytes, "together?": int,
}  # fmt: skip
_CHUNK = {
    "session_id": str, "memory_id": bytes, "encoding": str, "content": bytes, "children?": bytes, "plain_bytes": int,
}  # fmt: skip


def _typed(columns: Mapping[str, type], row: Row) -> tuple[Row, str | None]:
    """A row of these columns, where `?` marks those that may be NULL, with None, or nothing, or what is shown of it, in
    place of what is of another type; and which that was."""
    found, wrong = [], list[str]()
    for (column, kind), value in zip(columns.items(), row, strict=True):
        optional = column.endswith(_OPTIONAL)
        if isinstance(value, kind) or (value is None and optional):
            found.append(value)
            continue
        wrong.append(f"{column.removesuffix(_OPTIONAL)} is {value!r:.40}")
        found.append(None if optional else str(value) if kind is str else kind())
    return tuple(found), f"it was changed: {', '.join(wrong)}, which is no such value" if wrong else None


def check_database() -> Operation[list[str]]:
    """What the database itself finds wrong with its structure. SQLite reads all of the file; Postgres is not asked."""

    def steps() -> Steps[list[str]]:
        (rows,) = yield batch(Statement("check_database"), last=True)
        return [said for (said,) in rows if said != "ok"]

    return Operation("verify", Access.READ, steps)


def find_threads(after: str) -> Operation[list[str]]:
    """The next page of sessions that any table has rows of. On SQLite names that are bytes come last, as bytes."""

    def steps() -> Steps[list[str]]:
        (rows,) = yield batch(Statement("find_threads", {"after": after, "page": PAGE}), last=True)
        return [session_id for (session_id,) in rows]

    return Operation("verify", Access.READ, steps)


def read_everything(session_id: str) -> Operation[Everything]:
    """All that is stored for a session."""
    place = {"session_id": session_id}

    def steps() -> Steps[Everything]:
        heads, log, writes, memory, session = yield batch(
            Statement("read_session_ledger", place),
            Statement("read_session_entries", place),
            Statement("read_session_writes", place),
            Statement("read_session_chunks", place),
            Statement("read_session", place),
            last=True,
        )
        return _everything(heads, log, writes, memory, session)

    return Operation("verify", Access.READ, steps)


def _everything(heads: Rows, log: Rows, writes: Rows, memory: Rows, session: Rows) -> Everything:
    found = Everything(session[0] if session else None, [], [], [], {}, {}, [])
    for row, wrong in (_typed(_HEAD, row) for row in heads):
        head = LedgerRow(*row)
        found.heads.append(head)
        found.note(f"namespace {head.agent_id!r}", wrong)
    for row, wrong in (_typed(_ENTRY, row) for row in log):
        entry = Entry(row[:-5], *row[-5:])
        found.entries.append(entry)
        found.note(entry_place(entry.seq, entry.agent_id), wrong)
    for row, wrong in (_typed(_WRITE, row) for row in writes):
        agent_id, checkpoint_id, path, task, idx, *rest = row
        write = WriteRow(task, idx, path, *rest)
        found.writes.append((agent_id, checkpoint_id, write))
        found.note(write_place(agent_id, checkpoint_id, write), wrong)
    chunks = [_typed(_CHUNK, row) for row in memory]
    for row, wrong in chunks:
        found.note(f"memory {row[1].hex()}", wrong)
    found.memory = as_memory([row for row, _ in chunks])
    found.sizes = {row[1]: row[5] for row, _ in chunks}
    return found


def read_log_heads(session_id: str) -> Operation[Rows]:
    """The ends of a session's chains: (session_id, agent_id, seq, chain)."""

    def steps() -> Steps[Rows]:
        (rows,) = yield batch(Statement("read_log_heads", {"session_id": session_id}), last=True)
        return rows

    return Operation("log_heads", Access.READ, steps)
