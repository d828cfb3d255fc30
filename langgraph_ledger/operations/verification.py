"""All rows of one session, as they are, and the ids of all that have any, for whoever checks them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    say that they take when unpacked.
    """

    session: Row | None
    heads: Sequence[LedgerRow]
    entries: Sequence[Entry]
    writes: Sequence[tuple[str, str, WriteRow]]
    memory: Fetched
    sizes: Mapping[bytes, int]


def check_database() -> Operation[list[str]]:
    """What the database itself finds wrong with its structure. SQLite reads all of the file; Postgres is not asked."""

    def steps() -> Steps[list[str]]:
        (rows,) = yield batch(Statement("check_database"), last=True)
        return [said for (said,) in rows if said != "ok"]

    return Operation("verify", Access.READ, steps)


def find_threads(after: str) -> Operation[list[str]]:
    """The next page of sessions that any table has rows of."""

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
        return Everything(
            session[0] if session else None,
            [LedgerRow(*row) for row in heads],
            [Entry(row[:-5], *row[-5:]) for row in log],
            [(a, c, WriteRow(task, idx, path, *rest)) for a, c, path, task, idx, *rest in writes],
            as_memory(memory),
            {row[1]: row[5] for row in memory},
        )

    return Operation("verify", Access.READ, steps)


def read_log_heads(session_id: str) -> Operation[Rows]:
    """The ends of a session's chains: (session_id, agent_id, seq, chain)."""

    def steps() -> Steps[Rows]:
        (rows,) = yield batch(Statement("read_log_heads", {"session_id": session_id}), last=True)
        return rows

    return Operation("log_heads", Access.READ, steps)
