"""Databases that cannot be used, values that cannot be stored, stored bytes that were damaged: each a clear error."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.messages import HumanMessage

from langgraph_ledger import LedgerSaver, errors
from tests.direct import at, checkpoint, contents, query, save
from tests.four_ways import Backend, Flavoured

DEAD = "postgresql://postgres@127.0.0.1:1/nowhere"


@pytest.fixture
def thread() -> str:
    return str(uuid4())


def tables(backend: Backend) -> list[Any]:
    if backend.kind == "sqlite":
        return query(backend, "SELECT name, sql FROM sqlite_master ORDER BY name")
    return query(
        backend,
        "SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema = 'public' ORDER BY 2",
    )


def first_calls(four: Flavoured) -> list[Callable[[], Any]]:
    return [
        lambda: four.get_tuple(at("t")),
        lambda: four.list(None),
        lambda: save(four, at("t"), "1"),
        lambda: four.call("sessions"),
        lambda: four.call("prune", ["t"]),
        lambda: four.call("setup"),
    ]


def test_a_newer_schema(open_four: Callable[..., Flavoured], backend: Backend) -> None:
    open_four().call("setup")
    query(backend, "INSERT INTO ledger_migrations VALUES (999, 'future', '2030-01-01')")
    before = contents(backend)
    for options in ({}, {"read_only": True}):
        for call in first_calls(open_four(**options)):
            with pytest.raises(errors.SchemaTooNew, match=r"migration 999.*upgrade langgraph-checkpoint-ledger"):
                call()
    assert contents(backend) == before


@pytest.mark.parametrize("what", ["TABLE sessions (id INTEGER)", "VIEW agent_memory AS SELECT 1 AS one"])
def test_a_foreign_table_of_the_same_name(four: Flavoured, backend: Backend, what: str) -> None:
    query(backend, f"CREATE {what}")
    before = tables(backend)
    for call in first_calls(four):
        with pytest.raises(errors.NotALedger, match=rf"{what.split()[1]}.* already exists"):
            call()
    assert tables(backend) == before


def test_a_foreign_table_of_migrations(four: Flavoured, backend: Backend) -> None:
    query(backend, "CREATE TABLE ledger_migrations (id INTEGER)")
    before = tables(backend)
    for call in first_calls(four):
        with pytest.raises(errors.NotALedger):
            call()
    assert tables(backend) == before


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("text", ["short", "no database at all " * 500])
def test_a_file_that_is_no_database(tmp_path: Path, read_only: bool, text: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with LedgerSaver(path, read_only=read_only) as saver:
        with pytest.raises(errors.NotALedger, match=r"notes\.txt'.*not a usable SQLite database"):
            saver.get_tuple(at("t"))
        if not read_only:
            with pytest.raises(errors.NotALedger, match="not a usable SQLite database"):
                save(saver, at("t"), "1")
    assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


def test_a_path_where_no_file_can_be(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing" / "ledger.db"):
        with (
            LedgerSaver(path) as saver,
            pytest.raises(errors.DatabaseUnavailable, match="does its directory exist") as caught,
        ):
            saver.get_tuple(at("t"))
        assert str(path) in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_cannot_be_reached(flavour: str) -> None:
    import asyncio

    runner = asyncio.Runner() if flavour == "async" else None
    four = Flavoured(LedgerSaver(DEAD, timeout=0.2), runner)
    for call in (lambda: four.get_tuple(at("t")), lambda: save(four, at("t"), "1")):
        with pytest.raises(errors.DatabaseUnavailable, match=r"(?i)is the server"):
            call()
    four.close()
    if runner:
        runner.close()


# --- read only


def test_read_only_creates_nothing(open_four: Callable[..., Flavoured], backend: Backend) -> None:
    if backend.kind == "sqlite":
        for call in first_calls(open_four(read_only=True)):
            with pytest.raises(errors.LedgerError, match="read_only=True"):
                call()
        assert not Path(backend.url).exists()
        query(backend, "CREATE TABLE other (id INTEGER)")
    for call in first_calls(open_four(read_only=True)):
        with pytest.raises(errors.SchemaMissing, match=r"holds no ledger.*read_only=True may not create it"):
            call()
    assert [row[-1] for row in tables(backend)] in ([], ["CREATE TABLE other (id INTEGER)"])


def test_read_only_reads_and_never_writes(open_four: Callable[..., Flavoured], backend: Backend, thread: str) -> None:
    writer, reader = open_four(), open_four(read_only=True)
    save(writer, at(thread), "1", {"a": "x" * 1000})
    save(writer, at(thread, "1"), "2")
    writer.put_writes(at(thread, "2"), [("a", 1)], "task")
    before = contents(backend)
    reader.call("setup")
    assert reader.get_tuple(at(thread)) == writer.get_tuple(at(thread))
    assert reader.list(None) == writer.list(None)
    assert reader.call("sessions") == writer.call("sessions")
    assert reader.call("history", thread) == writer.call("history", thread)
    assert reader.call("ancestors", at(thread)) == ["2", "1"]
    asked = {"config": at(thread), "channels": ["a"]}
    assert reader.call("get_delta_channel_history", **asked) == {"a": {"seed": "x" * 1000, "writes": []}}
    latest = reader.get_tuple(at(thread)).config
    for call in (
        lambda: save(reader, latest, "3"),
        lambda: save(reader, at(f"new {thread}"), "1"),
        lambda: reader.put_writes(latest, [("a", 1)], "other"),
        lambda: reader.call("delete_thread", thread),
        lambda: reader.call("copy_thread", thread, "u"),
        lambda: reader.call("prune", [thread]),
        lambda: reader.call("prune", [thread], strategy="delete"),
    ):
        with pytest.raises(errors.ReadOnlyLedger, match="read_only=True"):
            call()
    assert contents(backend) == before


# --- values


class Engine:
    """Nothing that a serializer knows."""


def test_a_value_that_cannot_be_stored(four: Flavoured, backend: Backend, thread: str) -> None:
    """The error says where it is: thread, namespace, channel, the path inside the value, and its type."""
    ns = "sub:1"
    save(four, at(thread, ns=ns), "1")
    before = contents(backend)
    type_name = f"{Engine.__module__}.Engine"
    car = {"car": ["body", {"under the hood": Engine()}]}
    place = (thread, f"namespace '{ns}'", type_name, "value['car'][1]['under the hood']")

    def check(call: Callable[[], Any], *words: str) -> None:
        with pytest.raises(errors.ValueNotStorable) as caught:
            call()
        for word in words:
            assert word in str(caught.value)
        assert contents(backend) == before

    where = at(thread, "1", ns=ns)
    check(lambda: save(four, where, "2", {"fine": 1, "broken": car}), *place, "channel 'broken'", "checkpoint 2")
    check(lambda: save(four, where, "2", metadata=car), *place, "metadata", "checkpoint 2")
    check(
        lambda: four.put_writes(where, [("fine", 1), ("broken", car)], "task 7"), *place, "channel 'broken'", "task 7"
    )
    check(lambda: save(four, where, "2", {"broken": 2**64}), "channel 'broken'", "builtins.int", "64-bit")
    check(lambda: save(four, where, "2", {"broken": lambda: 1}), "channel 'broken'", "function")


def flip(data: bytes, position: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 0x01
    return bytes(changed)


def damaged(four: Flavoured, backend: Backend, thread: str, table: str, column: str, positions: int) -> list[str]:
    """What is found when single bits are changed, spread over the bytes of the first row: errors, or silence."""
    (data,) = query(backend, f"SELECT {column} FROM {table} LIMIT 1")[0]
    found, stored = [], bytes(data)
    for position in {len(data) * n // positions for n in range(positions)}:
        broken = flip(bytes(data), position)
        query(backend, f"UPDATE {table} SET {column} = ? WHERE {column} = ?", broken, stored)
        stored = broken
        try:
            four.list(at(thread, ns="sub"))
            found.append("nothing was raised")
        except errors.ValueNotRestorable as error:
            found.append(str(error))
        with pytest.raises(errors.ValueNotRestorable):
            four.get_tuple(at(thread, ns="sub"))
    return found


VALUES = {"big": [f"word {n}" for n in range(400)], "small": "a short text"}


def test_damaged_memory(four: Flavoured, backend: Backend, thread: str) -> None:
    save(four, at(thread, ns="sub"), "c1", VALUES)
    for message in damaged(four, backend, thread, "agent_memory", "content", 40):
        assert all(word in message for word in (thread, "'sub'", "'c1'", "channel 'big'", "damaged")), message


def test_memory_that_is_damaged_after_it_was_read(four: Flavoured, backend: Backend, thread: str) -> None:
    """What this process remembers of a chunk never stands in for what is stored."""
    save(four, at(thread, ns="sub"), "c1", {"messages": [HumanMessage("long " * 400, id="m")]})
    for _ in range(4):
        four.get_tuple(at(thread, ns="sub"))
    for message in damaged(four, backend, thread, "agent_memory", "content", 40):
        assert all(word in message for word in (thread, "'sub'", "'c1'", "channel 'messages'", "damaged")), message


def test_missing_memory(four: Flavoured, backend: Backend, thread: str) -> None:
    save(four, at(thread, ns="sub"), "c1", VALUES)
    query(backend, "DELETE FROM agent_memory")
    with pytest.raises(errors.ValueNotRestorable, match=r"'sub'.*'c1'.*channel 'big'.*is missing"):
        four.get_tuple(at(thread, ns="sub"))


def test_a_damaged_body(four: Flavoured, backend: Backend, thread: str) -> None:
    save(four, at(thread, ns="sub"), "c1", VALUES)
    for message in damaged(four, backend, thread, "checkpoint_log", "body", 40):
        assert all(word in message for word in (thread, "'sub'", "'c1'")), message


def test_a_damaged_write(four: Flavoured, backend: Backend, thread: str) -> None:
    save(four, at(thread, ns="sub"), "c1")
    four.put_writes(at(thread, "c1", ns="sub"), [("told", VALUES)], "task 7")
    for table, column in (("pending_writes", "place"), ("agent_memory", "content")):
        for message in damaged(four, backend, thread, table, column, 30):
            assert all(word in message for word in (thread, "'sub'", "'c1'", "task 7", "'told'")), message
        query(backend, "DELETE FROM pending_writes")
        four.put_writes(at(thread, "c1", ns="sub"), [("told", VALUES)], "task 7")


def test_a_damaged_seed(four: Flavoured, backend: Backend, thread: str) -> None:
    save(four, at(thread), "c1", VALUES)
    save(four, at(thread, "c1"), "c2")
    ((data,),) = query(backend, "SELECT content FROM agent_memory")
    query(backend, "UPDATE agent_memory SET content = ?", flip(bytes(data), 20))
    with pytest.raises(errors.ValueNotRestorable, match=r"'c1'.*channel 'big'"):
        four.call("get_delta_channel_history", config=at(thread), channels=["big"])


def test_a_locked_file(sqlite_path: str, thread: str) -> None:
    with LedgerSaver(sqlite_path, busy_timeout=0.05) as saver:
        save(saver, at(thread), "1")
        with closing(sqlite3.connect(sqlite_path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(errors.DatabaseUnavailable, match="longer than busy_timeout"):
                save(saver, at(thread, "1"), "2")
            other.execute("ROLLBACK")
        assert checkpoint("1")["id"] == saver.get_tuple(at(thread)).checkpoint["id"]
