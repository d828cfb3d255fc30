"""One cell with what no saver writes there, of another type or beyond what Python can read, is a finding about its row:
it keeps neither `verify` nor `log_heads` from the other threads."""

from collections.abc import Callable
from typing import Any

import pytest

from langgraph_ledger import LedgerSaver
from tests.direct import at, query, save
from tests.four_ways import Backend, Flavoured

SQLITE = [
    ("checkpoint_log", "digest", "'text'", "entry 1 of its log"),
    ("checkpoint_log", "digest", "5", "entry 1 of its log"),
    ("checkpoint_log", "chain", "'text'", "entry 1 of its log"),
    ("checkpoint_log", "chain", "7", "entry 1 of its log"),
    ("checkpoint_log", "agent_id", "x'00'", "entry 1 of its log, namespace"),
    ("checkpoint_log", "payload", "x'00'", "entry 1 of its log"),
    ("checkpoint_log", "state_bytes", "'x'", "entry 1 of its log"),
    ("checkpoint_log", "created_at", "x'00'", "entry 1 of its log"),
    ("checkpoint_log", "created_at", "'0001-01-01T00:00:00+10:00'", "entry 1 of its log"),
    ("agent_state_ledger", "version", "'x'", "namespace ''"),
    ("agent_state_ledger", "digest", "'x'", "namespace ''"),
    ("agent_state_ledger", "state", "x'00'", "namespace ''"),
    ("agent_state_ledger", "deleted_through", "'x'", "namespace ''"),
    ("agent_state_ledger", "agent_id", "x'00'", "namespace "),
    ("pending_writes", "digest", "'x'", "namespace '', checkpoint 3, write 0 of task task"),
    ("pending_writes", "together", "'x'", "namespace '', checkpoint 3, write 0 of task task"),
    ("pending_writes", "together", "3000000000", "namespace '', checkpoint 3, task task"),
    ("pending_writes", "place", "'x'", "namespace '', checkpoint 3, write 0 of task task"),
    ("agent_memory", "memory_id", "'x'", "memory "),
    ("agent_memory", "memory_id", "x''", "memory "),
    ("agent_memory", "content", "'x'", "memory "),
    ("agent_memory", "plain_bytes", "'x'", "memory "),
    ("sessions", "started_at", "x'00'", "its row in sessions"),
    ("checkpoint_log", "session_id", "x'00'", "all of it"),
]  # fmt: skip
POSTGRES = [
    ("checkpoint_log", "created_at", "'infinity'", "entry 1 of its log"),
    ("checkpoint_log", "created_at", "'20000-01-01'", "entry 1 of its log"),
    ("checkpoint_log", "created_at", "'0044-03-15 BC'", "entry 1 of its log"),
    ("checkpoint_log", "payload", "'{\"x\": 1e5000}'", "entry 1 of its log"),
    ("agent_state_ledger", "state", "'[1e5000]'", "namespace ''"),
    ("agent_state_ledger", "deleted_at", "'infinity'", "namespace ''"),
    ("sessions", "last_active_at", "'-infinity'", "its row in sessions"),
]  # fmt: skip


def filled(url: str) -> LedgerSaver:
    saver = LedgerSaver(url)
    for thread in ("a", "b"):
        where: Any = at(thread)
        for number in (1, 2, 3):
            where = save(Flavoured(saver, None), where, str(number), {"long": "many words " * 1000, "n": number})
        saver.put_writes(where, [("n", 1)], "task")
    return saver


def look(backend: Backend, saver: LedgerSaver, cell: tuple[str, str, str, str]) -> None:
    table, column, value, named = cell
    heads = saver.log_heads()
    row = "ctid = (SELECT MIN(ctid)" if backend.kind == "postgres" else "rowid = (SELECT MIN(rowid)"
    if table in ("agent_state_ledger", "pending_writes", "sessions"):
        row = "session_id = (SELECT MIN(session_id)"
    query(backend, f"UPDATE {table} SET {column} = {value} WHERE session_id = 'a' AND {row} FROM {table})")
    found = [f for f in saver.verify(None, against=heads) if not f.harmless]
    assert any(f.where.startswith(named) for f in found), found
    assert "b" not in {f.thread_id for f in found}
    assert [head for head in saver.log_heads() if head["thread_id"] == "b"] == heads[1:]
    assert saver.verify("b", against=heads[1:]) == []


@pytest.mark.parametrize("cell", SQLITE, ids=lambda cell: " ".join(cell[:3]))
def test_a_cell_of_another_type(sqlite_path: str, cell: tuple[str, str, str, str]) -> None:
    with filled(sqlite_path) as saver:
        look(Backend("sqlite", sqlite_path), saver, cell)


def test_a_time_or_a_number_beyond_what_can_be_read(fresh_postgres_url: Callable[[], str]) -> None:
    for cell in POSTGRES:
        url = fresh_postgres_url()
        with filled(url) as saver:
            look(Backend("postgres", url), saver, cell)


def test_a_head_without_a_chain_that_can_be_read_matches_none(sqlite_path: str) -> None:
    with filled(sqlite_path) as saver:
        backend = Backend("sqlite", sqlite_path)
        ((chain,),) = query(backend, "SELECT chain FROM checkpoint_log WHERE seq = 3")
        query(backend, "UPDATE checkpoint_log SET chain = 'x' WHERE seq = 3")
        head = saver.log_heads("a")
        query(backend, "UPDATE checkpoint_log SET chain = ? WHERE seq = 3", chain)
        assert saver.verify("a") == []
        (wrong,) = saver.verify("a", against=head)
        assert (wrong.where, wrong.harmless) == ("entry 3 of its log", False)
        assert "could not be read when the head was exported" in wrong.what
