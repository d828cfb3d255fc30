"""All rows of one session, as they are, for whoever checks them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from langgraph_ledger.operations.checkpoints import as_memory
from langgraph_ledger.places import Fetched, WriteRow
from langgraph_ledger.statements import Access, Operation, Row, Statement, Steps, batch


@dataclass(slots=True, eq=False, repr=False)
class Everything:
    """What a session's tables hold, in one snapshot.

    `heads`: namespace and the latest checkpoint's id. `entries`: namespace, type, checkpoint id, parent id, call id,
    attempt id, body and memory ids of each log entry. `writes`: namespace, checkpoint id and row.
    """

    heads: Sequence[Row]
    entries: Sequence[Row]
    writes: Sequence[tuple[str, str, WriteRow]]
    memory: Fetched


def check_database() -> Operation[list[str]]:
    """What the database itself finds wrong with its structure. SQLite reads all of the file; Postgres is not asked."""

    def steps() -> Steps[list[str]]:
        (rows,) = yield batch(Statement("check_database"), last=True)
        return [said for (said,) in rows if said != "ok"]

    return Operation("verify", Access.READ, steps)


def read_everything(session_id: str) -> Operation[Everything]:
    """All that is stored for a session."""
    place = {"session_id": session_id}

    def steps() -> Steps[Everything]:
        heads, entries, writes, memory, _ = yield batch(
            Statement("read_session_heads", place),
            Statement("read_session_entries", place),
            Statement("read_session_writes", place),
            Statement("read_session_chunks", place),
            Statement("read_session", place),  # nothing to compare it with, but it has to be readable
            last=True,
        )
        rows = [(a, c, WriteRow(task, idx, path, ch, p, ids)) for a, c, path, task, idx, ch, p, ids in writes]
        return Everything(heads, entries, rows, as_memory(memory))

    return Operation("verify", Access.READ, steps)
