"""All rows of one session, as they are, and the ids of all that have any, for whoever checks them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from langgraph_ledger.operations.checkpoints import as_memory
from langgraph_ledger.operations.retention import PAGE
from langgraph_ledger.places import Fetched, WriteRow
from langgraph_ledger.statements import Access, Operation, Row, Statement, Steps, batch


@dataclass(slots=True, eq=False, repr=False)
class Everything:
    """What a session's tables hold, in one snapshot.

    `session`: its row, if there is one. `heads`: namespace and the latest checkpoint's id. `entries`: each entry of the
    log as `as_entry` takes it, its body and its memory ids. `writes`: namespace, checkpoint id and row.
    """

    session: Row | None
    heads: Sequence[Row]
    entries: Sequence[tuple[Row, bytes | None, bytes | None]]
    writes: Sequence[tuple[str, str, WriteRow]]
    memory: Fetched


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
            Statement("read_session_heads", place),
            Statement("read_session_entries", place),
            Statement("read_session_writes", place),
            Statement("read_session_chunks", place),
            Statement("read_session", place),
            last=True,
        )
        rows = [(a, c, WriteRow(task, idx, path, ch, p, ids)) for a, c, path, task, idx, ch, p, ids in writes]
        entries = [(row[:-2], *row[-2:]) for row in log]
        return Everything(session[0] if session else None, heads, entries, rows, as_memory(memory))

    return Operation("verify", Access.READ, steps)
