"""Whatever is changed, moved, added or removed in the tables is found, and what is whole is found whole."""

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from typer.testing import CliRunner

from langgraph_ledger import LedgerSaver, StateConflict, operations, verification
from langgraph_ledger.cli.app import app
from tests.direct import at, query, save
from tests.four_ways import Backend, Flavoured
from tests.recovery.stage import agent, call, made, same


class Xor(CipherProtocol):
    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "xor", bytes(b ^ 0x5A for b in plaintext)[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return bytes(b ^ 0x5A for b in ciphertext[::-1])


@pytest.fixture(params=["plain", "encrypted"])
def four(request: pytest.FixtureRequest, open_four: Callable[..., Flavoured]) -> Flavoured:
    """A ledger with a thread in which there is a bit of everything, and another thread."""
    four = open_four(**({"serde": EncryptedSerializer(Xor())} if request.param == "encrypted" else {}))
    graph = agent(four.saver, [made(four, same)], [call("x" * 2000, "c1")])
    four.on(graph, "invoke", {"messages": [HumanMessage("y" * 3000)]}, at("t"))
    place = save(four, at("other", ns="sub"), "1", {"long": [f"{n} long words " * 100 for n in range(60)]})
    place = save(four, place, "2", {"long": [f"{n} long words " * 100 for n in range(61)], "m": [AIMessage("a")]})
    four.put_writes(place, [("long", ["z" * 4000])], "task")
    return four


PLAIN = pytest.mark.parametrize("four", ["plain"], indirect=True)


def findings(four: Flavoured) -> list[tuple[str, str]]:
    return [(f.where, f.what) for name in ("t", "other") for f in four.call("verify", name) if not f.harmless]


def test_what_is_whole_is_found_whole(four: Flavoured) -> None:
    assert findings(four) == []
    assert [f for name in ("t", "other", "nobody") for f in four.call("verify", name)] == []


def rows(backend: Backend, table: str, columns: str, where: str = "1 = 1") -> list[Any]:
    return query(backend, f"SELECT {columns} FROM {table} WHERE {where} ORDER BY 1, 2")


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("agent_memory", "content"),
        ("agent_memory", "children"),
        ("checkpoint_log", "body"),
        ("checkpoint_log", "memory_ids"),
        ("pending_writes", "place"),
        ("pending_writes", "memory_ids"),
    ],
)
def test_a_changed_byte(four: Flavoured, backend: Backend, table: str, column: str) -> None:
    """Each value of a column is changed in turn, found, and put back."""
    values = query(backend, f"SELECT DISTINCT {column} FROM {table} WHERE {column} IS NOT NULL")
    assert values
    for (value,) in values:
        whole = bytes(value)
        damaged = whole[:-1] + bytes([whole[-1] ^ 1])
        query(backend, f"UPDATE {table} SET {column} = ? WHERE {column} = ?", damaged, whole)
        assert findings(four), (table, column, whole[:20])
        query(backend, f"UPDATE {table} SET {column} = ? WHERE {column} = ?", whole, damaged)
    assert findings(four) == []


@PLAIN
@pytest.mark.parametrize(
    ("table", "column"), [("agent_memory", "content"), ("checkpoint_log", "body"), ("pending_writes", "place")]
)
def test_what_begins_as_encrypted_bytes_do(four: Flavoured, backend: Backend, table: str, column: str) -> None:
    """Where nothing was ever encrypted, it is damage, and no key is missing."""
    for (value,) in query(backend, f"SELECT DISTINCT {column} FROM {table} WHERE {column} IS NOT NULL"):
        whole, damaged = bytes(value), b"\1x\0" + bytes(value)[3:]
        query(backend, f"UPDATE {table} SET {column} = ? WHERE {column} = ?", damaged, whole)
        found = [f for name in ("t", "other") for f in four.call("verify", name)]
        assert found
        assert not any(f.unread for f in found)
        query(backend, f"UPDATE {table} SET {column} = ? WHERE {column} = ?", whole, damaged)


@pytest.mark.parametrize(
    ("table", "where", "said"),
    [
        ("agent_memory", "1 = 1", "is missing"),
        (
            "checkpoint_log",
            "session_id = 'other' AND checkpoint_type = 'checkpoint'",
            "its latest checkpoint, 2, is missing",
        ),
        ("checkpoint_log", "session_id = 'other' AND checkpoint_id = '2'", "its checkpoint is missing"),
    ],
)
def test_rows_that_are_gone(four: Flavoured, backend: Backend, table: str, where: str, said: str) -> None:
    query(backend, f"DELETE FROM {table} WHERE {where}")
    assert any(said in what for _, what in findings(four)), findings(four)


def test_rows_that_have_changed_places(four: Flavoured, backend: Backend) -> None:
    (first,), (second,) = query(backend, "SELECT body FROM checkpoint_log WHERE session_id = 'other'")
    for before, after in ((first, b"between"), (second, first), (b"between", second)):
        query(backend, "UPDATE checkpoint_log SET body = ? WHERE body = ?", bytes(after), bytes(before))
    assert len(findings(four)) >= 2


def test_a_chunk_that_nothing_refers_to_is_harmless(four: Flavoured, backend: Backend) -> None:
    query(
        backend,
        "INSERT INTO agent_memory (session_id, memory_id, encoding, plain_bytes, content)"
        " SELECT 't', memory_id, encoding, plain_bytes, content FROM agent_memory WHERE session_id = 'other'",
    )
    found = four.call("verify", "t")
    assert any(f.harmless for f in found)
    assert {f.what for f in found if f.harmless} == {"nothing refers to it"}


@PLAIN
def test_a_thread_without_its_row(four: Flavoured, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at whatever is left of it; of a thread that was deleted, nothing is missing."""
    for module in (verification, operations.verification):
        monkeypatch.setattr(module, "PAGE", 1)
    read = four.get_tuple(at("other", ns="sub")).config
    four.call("delete_thread", "other")
    with pytest.raises(StateConflict):
        four.put_writes(read, [("long", [1])], "late")
    found = four.call("verify", None)
    assert (found, found.threads) == ([], 1)
    for table in ("sessions", "agent_state_ledger", "checkpoint_log", "pending_writes"):
        query(backend, f"DELETE FROM {table} WHERE session_id = 't'")
        found = four.call("verify", None)
        assert [f.thread_id for f in found if f.where == "its row in sessions"] == ["t"], table
        assert found.threads == 1
    query(backend, "DELETE FROM agent_memory")
    assert (four.call("verify", None), four.call("verify", "t").threads) == ([], 0)


@PLAIN
def test_json_that_is_none(four: Flavoured, backend: Backend) -> None:
    """Each damage is found in its place, and keeps nobody from finding the others."""
    calls = query(backend, "SELECT CAST(payload AS TEXT), seq FROM checkpoint_log WHERE call_id IS NOT NULL")
    for text in ("[]", "{") if backend.kind == "sqlite" else ("[]",):
        for column in ("metadata", "outcome"):
            query(backend, f"UPDATE sessions SET {column} = ? WHERE session_id = 't'", text)
            (found,) = four.call("verify", None)
            assert (found.thread_id, found.where) == ("t", "its row in sessions")
            assert found.what.startswith("it is damaged: ")
            query(backend, f"UPDATE sessions SET {column} = '{{}}'")
        query(backend, "UPDATE sessions SET metadata = ?", text)
        query(backend, "UPDATE checkpoint_log SET payload = ? WHERE call_id IS NOT NULL", text)
        found = four.call("verify", None)
        assert sorted(f.where.partition(" ")[0] for f in found) == ["entry", "entry", "its", "its"]
        assert found.threads == 2
        query(backend, "UPDATE sessions SET metadata = '{}'")
        for payload in calls:
            query(backend, "UPDATE checkpoint_log SET payload = ? WHERE seq = ?", *payload)


def test_on_the_command_line(backend: Backend) -> None:
    with LedgerSaver(backend.url) as saver:
        for name in ("t", "other"):
            save(Flavoured(saver, None), at(name), "1", {"long": ["word " * 500]} if name == "t" else {})
    run = lambda: CliRunner().invoke(app, ["verify", "--url", backend.url])  # noqa: E731
    assert run().exit_code == 0
    assert "all is as it was stored" in run().output
    (content,) = query(backend, "SELECT content FROM agent_memory")[0]
    query(backend, "UPDATE agent_memory SET content = ?", bytes(content)[:-1])
    assert run().exit_code == 3
    assert "threads: 2, damaged rows: 1" in run().output
    query(backend, "UPDATE sessions SET metadata = '[]' WHERE session_id = 'other'")
    assert run().exit_code == 3
    assert "threads: 2, damaged rows: 2" in run().output
