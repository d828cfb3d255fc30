"""An encrypted ledger: nothing readable in the database, chunks still shared, rows bound to their places."""

import operator
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from langgraph_ledger import LedgerSaver, StateConflict
from langgraph_ledger.errors import ValueNotRestorable
from tests.direct import at, query
from tests.four_ways import Backend, Flavoured
from tests.test_memory import text

SECRET = "Wintergreen-7431"
KEY, OTHER_KEY = b"0123456789abcdef", b"fedcba9876543210"


def cipher(key: bytes = KEY) -> EncryptedSerializer:
    return EncryptedSerializer.from_pycryptodome_aes(key=key)


class State(TypedDict):
    items: Annotated[list, operator.add]
    note: str
    facts: dict


def graph_on(saver: Any) -> Any:
    def work(state: State) -> dict[str, Any]:
        size = len(state["items"])
        return {"items": [SECRET + text(size, 2000)], "note": SECRET, "facts": {SECRET: SECRET, "n": size}}

    def ask(state: State) -> dict[str, Any]:
        return {"items": [interrupt(f"is it {SECRET}?")]}

    builder = StateGraph(State)
    builder.add_node("work", work)
    builder.add_node("ask", ask)
    builder.add_edge(START, "work")
    builder.add_edge("work", "ask")
    return builder.compile(checkpointer=saver)


def run(four: Flavoured, thread: str, turns: int = 3) -> Any:
    graph = graph_on(four.saver)
    config = {**at(thread), "metadata": {"customer": SECRET}}
    for turn in range(turns):
        four.invoke(graph, {"items": [f"{SECRET} {turn}"]}, config)
        four.invoke(graph, Command(resume=f"yes, {SECRET}"), config)
    return four.get_state(graph, at(thread)).values


def everything(backend: Backend) -> str:
    """Every value of every row, as text and as bytes."""
    tables = ("sessions", "agent_state_ledger", "checkpoint_log", "agent_memory", "pending_writes", "ledger_secrets")
    return repr([query(backend, f"SELECT * FROM {table}") for table in tables])


def test_the_secret_is_nowhere(open_four: Callable[..., Flavoured], backend: Backend) -> None:
    """State, task writes, interrupts, answers, metadata, and the log of a refused write."""
    four = open_four(serde=cipher())
    run(four, "t")
    graph = graph_on(four.saver)
    late = four.get_tuple(at("t"))
    four.update_state(graph, at("t"), {"note": SECRET}, as_node="work")
    with pytest.raises(StateConflict):
        four.put_writes(late.config, [("note", SECRET)], "late")
    assert four.call("rejected_writes", "t")
    four.close()
    assert SECRET not in everything(backend)
    if backend.kind == "sqlite":
        with closing(sqlite3.connect(backend.url)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        assert SECRET.encode() not in Path(backend.url).read_bytes()
    ((state,),) = query(backend, "SELECT state FROM agent_state_ledger WHERE session_id = 't'")
    assert "$length" in str(state)


def test_the_same_run_unencrypted_shows_that_the_search_finds(
    open_four: Callable[..., Flavoured], backend: Backend
) -> None:
    run(open_four(), "t")
    assert SECRET in everything(backend)


def test_states_chunks_and_copies(open_four: Callable[..., Flavoured]) -> None:
    first = open_four(serde=cipher())
    state = run(first, "t", turns=6)
    fresh = open_four(serde=cipher())
    graph = graph_on(fresh.saver)
    assert fresh.get_state(graph, at("t")).values == state
    statistics = fresh.call("stats", "t")
    assert statistics.dedupe_ratio > 3
    assert statistics.chunks < 40
    fresh.call("copy_thread", "t", "copy")
    assert fresh.get_state(graph, at("copy")).values == state
    fresh.call("prune", ["copy"])
    assert fresh.get_state(graph, at("copy")).values == state
    fresh.call("copy_thread", "copy", "copy of the copy", last=1)
    fresh.call("delete_thread", "copy")
    assert fresh.get_state(graph, at("copy of the copy")).values == state


def test_other_keys_and_plain_savers_read_nothing(open_four: Callable[..., Flavoured]) -> None:
    run(open_four(serde=cipher()), "t")
    with pytest.raises(ValueNotRestorable, match=r"'t'.*encrypted"):
        open_four().get_tuple(at("t"))
    with pytest.raises(ValueNotRestorable, match=r"'t'.*decrypted"):
        open_four(serde=cipher(OTHER_KEY)).get_tuple(at("t"))


def test_an_encrypted_saver_refuses_plain_rows(open_four: Callable[..., Flavoured]) -> None:
    run(open_four(), "t")
    with pytest.raises(ValueNotRestorable, match=r"'t'.*not encrypted"):
        open_four(serde=cipher()).get_tuple(at("t"))


def test_swapped_rows_are_refused(open_four: Callable[..., Flavoured], backend: Backend) -> None:
    """The content of two chunks, exchanged; and the content of one chunk, moved to another session."""
    four = open_four(serde=cipher())
    for thread in ("t", "u"):
        run(four, thread)
    (one, first), (two, second) = query(
        backend, "SELECT memory_id, content FROM agent_memory WHERE session_id = 't' AND children IS NULL LIMIT 2"
    )
    statement = "UPDATE agent_memory SET content = ? WHERE session_id = ? AND memory_id = ?"
    query(backend, statement, second, "t", one)
    query(backend, statement, first, "t", two)
    with pytest.raises(ValueNotRestorable, match="another place"):
        open_four(serde=cipher()).list(at("t"))
    shared = query(
        backend,
        "SELECT a.memory_id, b.content FROM agent_memory a JOIN agent_memory b ON a.memory_id = b.memory_id"
        " WHERE a.session_id = 'u' AND b.session_id = 't' AND a.children IS NULL AND a.memory_id <> ?"
        " AND a.memory_id <> ?",
        one,
        two,
    )
    assert shared, "two sessions that said the same have no chunk id in common"
    for memory_id, content in shared:
        query(backend, statement, content, "u", memory_id)
    with pytest.raises(ValueNotRestorable, match="another place"):
        open_four(serde=cipher()).list(at("u"))


def test_savers_that_begin_at_once_agree_on_a_secret(sqlite_path: str) -> None:
    savers = [LedgerSaver(sqlite_path, serde=cipher()) for _ in range(3)]
    vaults = [saver._run(saver._ledger.vault(saver.serde)) for saver in savers]
    assert len({vault.digest("part", b"x", b"") for vault in vaults}) == 1
    for saver in savers:
        saver.close()
