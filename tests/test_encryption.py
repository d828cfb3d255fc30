"""An encrypted ledger: nothing readable in the database, chunks still shared, rows bound to their places."""

import json
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
from typer.testing import CliRunner

from langgraph_ledger import LedgerSaver, StateConflict
from langgraph_ledger.cli.app import app
from langgraph_ledger.errors import ValueNotRestorable
from tests.direct import at, query
from tests.four_ways import Backend, Flavoured
from tests.recovery.stage import agent, call, made, same
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


def lgledger(backend: Backend, *arguments: str, key: bytes | str | None = None) -> Any:
    environment = {"LANGGRAPH_AES_KEY": None if key is None else key if isinstance(key, str) else key.decode()}
    return CliRunner().invoke(app, [*arguments, "--url", backend.url], env=environment)


def test_the_command_line_with_the_key(open_four: Callable[..., Flavoured], backend: Backend) -> None:
    """LangGraph's own variable has it. What it stores itself is encrypted too."""
    four = open_four(serde=cipher())
    run(four, "t")
    four.on(
        agent(four.saver, [made(four, same)], [call(SECRET, "c1")]), "invoke", {"messages": [SECRET]}, at("crashed")
    )
    four.close()
    shown = lgledger(backend, "show", "t", key=KEY)
    assert (shown.exit_code, shown.output.count(SECRET) > 3) == (0, True)
    whole = lgledger(backend, "verify", key=KEY)
    assert (whole.exit_code, "threads: 2, damaged rows: 0" in whole.output) == (0, True)
    query(backend, "DELETE FROM checkpoint_log WHERE checkpoint_type = 'tool_call_completed'")
    (unknown,) = json.loads(lgledger(backend, "recover", "--json", key=KEY).output)
    (asked,) = unknown["unknown"]
    answer = ("resolve", "crashed", asked["call_id"], "--happened", "--result", SECRET)
    assert lgledger(backend, *answer, key=KEY).exit_code == 0
    assert SECRET not in everything(backend)
    (found,) = open_four(serde=cipher()).call("find_calls", "crashed", asked["call_id"])
    assert (found.result, found.resolved) == (SECRET, "resolve_call")


def test_the_command_line_without_the_key(open_four: Callable[..., Flavoured], backend: Backend) -> None:
    """It says that a key is missing, and does not call rows damaged that it cannot read."""
    run(open_four(serde=cipher()), "t")
    refused = lgledger(backend, "show", "t")
    assert (refused.exit_code, "LANGGRAPH_AES_KEY" in refused.output) == (1, True)
    assert "encrypted" in lgledger(backend, "history", "t").output
    unread = lgledger(backend, "verify")
    assert (unread.exit_code, "damaged rows: 0" in unread.output, "LANGGRAPH_AES_KEY" in unread.output) == (
        1,
        True,
        True,
    )
    found = open_four().call("verify", "t")
    assert found
    assert all(finding.unread and not finding.harmless for finding in found)
    query(backend, "UPDATE agent_state_ledger SET checkpoint_id = 'x' WHERE session_id = 't'")
    assert lgledger(backend, "verify").exit_code == 3  # what can be seen without a key is looked at


@pytest.mark.parametrize("key", [None, OTHER_KEY])
def test_nothing_is_found_out_without_the_key(
    open_four: Callable[..., Flavoured], backend: Backend, key: bytes | None
) -> None:
    """Though there are no arguments that could not be read: what it returned would be there for all to see, and for no
    run to go on with."""
    four = open_four(serde=cipher(), log_limit=0)
    four.invoke(agent(four.saver, [made(four, same)], [call("this", "c1")]), {"messages": ["go"]}, at("t"))
    query(backend, "DELETE FROM checkpoint_log WHERE checkpoint_type = 'tool_call_completed'")
    for answer in (["--happened", "--result", SECRET], ["--not-happened"]):
        assert lgledger(backend, "resolve", "t", "c1", *answer, key=key).exit_code == 1
    with pytest.raises(ValueNotRestorable):
        open_four().call("resolve_call", "t", "c1", happened=True, result=SECRET)
    assert SECRET not in everything(backend)
    assert [found.status for found in four.call("find_calls", "t", "c1")] == ["unknown"]
    four.call("resolve_call", "t", "c1", happened=True, result=SECRET)
    assert [found.result for found in four.call("find_calls", "t", "c1")] == [SECRET]


def test_another_key_on_the_command_line(open_four: Callable[..., Flavoured], backend: Backend) -> None:
    run(open_four(serde=cipher()), "t")
    secrets = query(backend, "SELECT * FROM ledger_secrets")
    for command in (["show", "t"], ["verify"], ["prune", "--yes"]):
        refused = lgledger(backend, *command, key=OTHER_KEY)
        assert (refused.exit_code, "another key" in refused.output) == (1, True)
        refused = lgledger(backend, *command, key="too short")
        assert (refused.exit_code, "LANGGRAPH_AES_KEY" in refused.output) == (1, True)
    assert query(backend, "SELECT * FROM ledger_secrets") == secrets


def test_a_key_for_a_ledger_that_is_not_encrypted(open_four: Callable[..., Flavoured], backend: Backend) -> None:
    run(open_four(), "t")
    for command in (["show", "t"], ["verify"], ["prune", "--yes"]):
        assert lgledger(backend, *command, key=KEY).exit_code == 0
    assert query(backend, "SELECT * FROM ledger_secrets") == []


def test_whether_it_is_encrypted(open_four: Callable[..., Flavoured]) -> None:
    plain, keyed, other = open_four(), open_four(serde=cipher()), open_four(serde=cipher(OTHER_KEY))
    run(plain, "t")
    assert [four.call("is_encrypted") for four in (plain, keyed, other)] == [False, False, False]
    run(keyed, "u")
    assert [four.call("is_encrypted") for four in (plain, keyed)] == [True, True]
    with pytest.raises(ValueNotRestorable, match="another key"):
        other.call("is_encrypted")


def test_a_reader_that_came_before_the_first_writer(open_four: Callable[..., Flavoured]) -> None:
    writer = open_four(serde=cipher())
    writer.call("setup")
    reader = open_four(serde=cipher(), read_only=True)
    assert reader.get_tuple(at("t")) is None
    run(writer, "t")
    assert reader.get_tuple(at("t")).checkpoint == writer.get_tuple(at("t")).checkpoint
    assert reader.call("verify", "t") == []


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
