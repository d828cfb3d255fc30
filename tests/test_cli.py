"""The command line as a person or a script uses it, on real ledgers of both databases."""

import json
import os
import pickle
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import ormsgpack
import psycopg
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Send, interrupt
from typer.testing import CliRunner

from langgraph_ledger import LedgerSaver, ReplayGuard, StateConflict
from langgraph_ledger.cli.app import app
from langgraph_ledger.data import DataSerializer
from langgraph_ledger.sql import script
from tests.direct import at, save
from tests.four_ways import Backend, Flavoured

ROOT = Path(__file__).parent.parent
NASTY = "[bold red]x[/] \x1b[31mred \x07 \u202egnp.exe <b>"
"""Markup, terminal escapes, a bell, writing that turns round."""


@tool
def look_up(query: str) -> str:
    """Look something up."""
    return f"found {query}"


def agent(saver: LedgerSaver) -> Any:
    def model(state: MessagesState) -> Any:
        if isinstance(state["messages"][-1], HumanMessage):
            call = {"name": "look_up", "args": {"query": NASTY}, "id": "call 1"}
            return {"messages": [AIMessage("", tool_calls=[call])]}
        interrupt(f"go on? {NASTY}")
        return {"messages": [AIMessage("done")]}

    builder = StateGraph(MessagesState).add_node("model", model).add_node("tools", ToolNode([look_up]))
    builder.add_edge(START, "model").add_edge("tools", "model")
    builder.add_conditional_edges("model", lambda s: "tools" if getattr(s["messages"][-1], "tool_calls", None) else END)
    return builder.compile(checkpointer=saver)


class Ledger:
    """A ledger with one thread that waits for an answer, and the command line beside it."""

    def __init__(self, backend: Backend) -> None:
        self.url = backend.url
        self.config: Any = {"configurable": {"thread_id": "t"}, "metadata": {"user": "ann"}}
        with LedgerSaver(self.url) as saver:
            agent(saver).invoke({"messages": [HumanMessage(NASTY, id="m1")]}, self.config)

    def run(self, *arguments: str, code: int = 0) -> str:
        found = CliRunner().invoke(app, [*arguments, "--url", self.url])
        assert found.exit_code == code, (arguments, found.exit_code, found.output, found.exception)
        assert not set(found.output) & {"\x1b", "\x07", "\u202e"}, "nothing stored reaches the terminal as it is"
        return found.output

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", code=code))


@pytest.fixture
def ledger(backend: Backend) -> Ledger:
    return Ledger(backend)


def test_sessions(ledger: Ledger) -> None:
    (found,) = ledger.json("sessions", "--status", "paused", "--where", "user=ann")
    assert (found["session_id"], found["status"]) == ("t", "paused")
    assert "paused" in ledger.run("sessions")
    assert ledger.json("sessions", "--status", "failed") == []
    assert ledger.json("sessions", "--idle", "1h") == []
    assert ledger.json("sessions", "--where", "user=bob") == []
    assert "no threads" in ledger.run("sessions", "--idle", "30d")
    assert "expected NAME=VALUE" in CliRunner().invoke(app, ["sessions", "-u", ledger.url, "--where", "x"]).output
    assert CliRunner().invoke(app, ["sessions", "-u", ledger.url, "--idle", "soon"]).exit_code == 2


def test_show(ledger: Ledger) -> None:
    found = ledger.json("show", "t")
    messages = found["values"]["messages"]
    assert [message["$type"].rpartition(".")[2] for message in messages] == ["HumanMessage", "AIMessage", "ToolMessage"]
    assert messages[0]["content"] == NASTY
    assert found["recovery"]["next"] == ["model"]
    text = ledger.run("show", "t")
    assert "[bold red]x[/] \\u001b[31mred" in text
    assert "go on?" in text
    earlier = [entry["checkpoint_id"] for entry in ledger.json("history", "t")]
    assert len(ledger.json("show", "t", "--at", earlier[1])["values"]["messages"]) == 1
    ledger.run("show", "nobody", code=1)


def test_history_with_a_fork_and_a_refused_write(ledger: Ledger) -> None:
    with LedgerSaver(ledger.url) as saver:
        graph = agent(saver)
        oldest = [*graph.get_state_history(ledger.config)][1]
        graph.update_state(oldest.config, {"messages": [HumanMessage("fork")]})
        first, second = (saver.get_tuple(at("t")) for _ in range(2))
        save(Flavoured(saver, None), first.config, "9")  # type: ignore[union-attr]
        with pytest.raises(StateConflict):
            save(Flavoured(saver, None), second.config, "10")  # type: ignore[union-attr]
    text = ledger.run("history", "t")
    assert text.count("head") == 1
    assert "refused: run" in text
    entries = ledger.json("history", "t")
    assert all(entry["checkpoint_id"] in text for entry in entries if entry["checkpoint_type"] == "checkpoint")
    assert any(entry["state_bytes"] for entry in entries)
    ledger.run("history", "nobody", code=1)
    assert "put" in ledger.run("conflicts", code=3)
    assert ledger.json("conflicts", "t", code=3)[0]["checkpoint_type"] == "write_rejected"


def test_no_conflicts(ledger: Ledger) -> None:
    assert "no write was ever refused" in ledger.run("conflicts")
    if ledger.url.startswith("/"):
        ledger.url = f"sqlite:///{ledger.url}"
        assert "copied" in ledger.run("copy", "t", "another")


def test_diff(ledger: Ledger) -> None:
    ids = [entry["checkpoint_id"] for entry in ledger.json("history", "t")]
    changes = ledger.json("diff", "t", ids[1], ids[2])
    assert list(changes) == ["messages"]
    assert any(line.startswith("+") and "AIMessage" in line for line in changes["messages"])
    assert not any(line.startswith("-") and "HumanMessage" in line for line in changes["messages"])
    assert "no difference" in ledger.run("diff", "t", ids[1], ids[1])
    assert ledger.json("diff", "t", ids[-2]) == ledger.json("diff", "t", ids[-2], ids[-1]) != {}
    assert "has no checkpoint 'nothing'" in ledger.run("diff", "t", ids[1], "nothing", code=1)


def test_log(ledger: Ledger) -> None:
    calls = [json.loads(line) for line in ledger.run("log", "t", "--calls", "--json").splitlines()]
    assert [call["checkpoint_type"] for call in calls] == ["tool_call_started", "tool_call_completed"]
    text = ledger.run("log", "t")
    assert "look_up" in text
    assert " s  " in text
    assert "checkpoint" in text


CRASH = """
import os, signal, sys
from langchain_core.tools import tool
from langgraph_ledger import LedgerSaver
from tests import test_cli

@tool
def look_up(query: str) -> str:
    "Ends the process in the middle."
    os.kill(os.getpid(), signal.SIGKILL)

test_cli.look_up = look_up
graph = test_cli.agent(LedgerSaver(sys.argv[1]))
graph.invoke({"messages": [test_cli.HumanMessage("go")]}, {"configurable": {"thread_id": "crashed"}})
"""


def test_a_crashed_thread_is_found_resolved_and_done_with(backend: Backend) -> None:
    killed = subprocess.run([sys.executable, "-c", CRASH, backend.url], cwd=ROOT, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    thread, call = "crashed", "call 1"
    run = lambda *a: CliRunner().invoke(app, [*a, "--url", backend.url])  # noqa: E731
    found = run("recover", "--json")
    assert found.exit_code == 3
    (report,) = json.loads(found.output)
    assert report["thread_id"] == thread
    assert [c["call_id"] for c in report["unknown"]] == [call]
    assert "unknown call" in run("recover", thread).output
    with LedgerSaver(backend.url) as saver:
        node = ToolNode([look_up], **ReplayGuard().wrappers)
        graph = StateGraph(MessagesState).add_node("model", len).add_node("tools", node).add_edge(START, "model")
        graph.compile(checkpointer=saver).invoke(None, {"configurable": {"thread_id": thread}})
        assert saver.recoverable() == []
    found = run("recover", "--json")
    assert (found.exit_code, json.loads(found.output)[0]["status"]) == (3, "paused"), "the guard has asked"
    assert run("resolve", thread, call).exit_code == 2, "whether it happened has to be said"
    for wrong in ("--happened",), ("--happened", "--no-result", "--result", "1"), ("--not-happened", "--no-result"):
        assert run("resolve", thread, call, *wrong).exit_code == 2, wrong
    assert repr(call) in run("resolve", thread, "no such call", "--not-happened").output
    assert run("resolve", thread, call, "--happened", "--result", '"sent"').exit_code == 0
    assert "unknown call" not in run("recover", thread).output
    assert json.loads(run("recover", "--json").output) == []
    with LedgerSaver(backend.url) as saver:
        (record,) = saver.find_calls(thread, call)
    assert (record.status, record.result) == ("completed", "sent")
    assert run("resolve", thread, "no such call", "--happened", "--no-result").exit_code == 1


def test_upkeep(ledger: Ledger) -> None:
    before = ledger.json("stats")
    assert before["checkpoints"] > 2
    would = ledger.json("prune")
    assert would["checkpoints"] > 0
    assert would["done"] is False
    assert ledger.json("stats")["checkpoints"] == before["checkpoints"]
    assert ledger.json("prune", "--yes")["checkpoints"] == would["checkpoints"]
    assert ledger.json("stats", "t")["checkpoints"] == before["checkpoints"] - would["checkpoints"]
    assert "given back" in ledger.run("compact")
    assert ", 0 chunks, 0 B; say --yes" in ledger.run("sweep")
    ledger.run("copy", "t", "other")
    assert {s["session_id"] for s in ledger.json("sessions")} == {"t", "other"}
    assert "say --yes" in ledger.run("delete", "other")
    assert len(ledger.json("sessions")) == 2
    assert "deleted" in ledger.run("delete", "other", "--yes")
    assert [s["session_id"] for s in ledger.json("sessions")] == ["t"]


def test_schema(backend: Backend) -> None:
    run = lambda *a: CliRunner().invoke(app, ["schema", *a, "--url", backend.url])  # noqa: E731
    if backend.kind == "postgres":
        assert run().exit_code == 3
    assert run("--migrate").exit_code == 0
    assert run().exit_code == 0


def test_the_statements_that_are_printed_make_the_tables(backend: Backend) -> None:
    """Carried out by hand they are all that is needed."""
    printed = CliRunner().invoke(app, ["schema", "--ddl", "--url", backend.url]).output
    if backend.kind == "sqlite":
        with closing(sqlite3.connect(backend.url)) as connection:
            connection.executescript(printed)
    else:
        with psycopg.connect(backend.url, autocommit=True) as server:
            server.execute(printed.encode())
    with LedgerSaver(backend.url, read_only=True) as saver:
        assert saver.is_up_to_date()


def test_a_role_that_may_not_make_tables(fresh_postgres_url: Any) -> None:
    """With the grants of docs/operating.md it does all, but `compact` does nothing."""
    url = fresh_postgres_url()
    role = f"lesser_{uuid4().hex}"
    page = (ROOT / "docs" / "operating.md").read_text("utf-8")
    (grants,) = re.findall(r"```text\n(GRANT .*?)```", page, re.DOTALL)
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(f"CREATE ROLE {role}".encode())
        server.execute(script("postgres", "agents").encode())
        server.execute(grants.replace("agent_worker", role).encode())
        try:
            with LedgerSaver(url, schema="agents", connection_kwargs={"options": f"-c role={role}"}) as saver:
                config: Any = {"configurable": {"thread_id": "t"}}
                agent(saver).invoke({"messages": [HumanMessage("hello", id="m1")]}, config)
                assert agent(saver).invoke(Command(resume="yes"), config)["messages"][-1].content == "done"
                saver.copy_thread("t", "other")
                saver.prune(None)
                saver.delete_thread("other")
                assert [session.status for session in saver.sessions()] == ["completed"]
                assert saver.compact() == 0
        finally:
            server.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_sends_and_joins_are_shown_without_their_types(backend: Backend) -> None:
    def plan(state: MessagesState) -> list[Send]:
        return [Send("work", {"messages": []}), Send("work", {"messages": []})]

    builder = StateGraph(MessagesState).add_node("work", lambda state: None).add_conditional_edges(START, plan)
    joined = StateGraph(MessagesState)
    for name in ("a", "b", "both"):
        joined.add_node(name, lambda state: None)
    joined.add_edge(START, "a").add_edge(START, "b").add_edge(["a", "b"], "both")
    with LedgerSaver(backend.url) as saver:
        for thread, graph, node in (("sends", builder, "work"), ("join", joined, "both")):
            made = graph.compile(checkpointer=saver, interrupt_before=[node])
            made.invoke({"messages": []}, at(thread))
    for thread, following in (("sends", ["work", "work"]), ("join", ["both"])):
        shown = json.loads(CliRunner().invoke(app, ["show", thread, "--url", backend.url, "--json"]).output)
        assert shown["recovery"]["next"] == following


def test_stored_text_cannot_look_like_a_line_of_ours(backend: Backend) -> None:
    forged = "t\nunknown call: pay(9)"
    with LedgerSaver(backend.url) as saver:
        save(Flavoured(saver, None), at(forged), "1")
    for command in (["show", forged], ["history", forged], ["recover", forged], ["show", f"{forged}\x1b]0;x\x07"]):
        found = CliRunner().invoke(app, [*command, "--url", backend.url])
        assert not any(line.startswith("unknown call") for line in found.output.splitlines())
        assert not set(found.output) & {"\x1b", "\x07"}


def test_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = f"""
from langgraph.checkpoint.memory import InMemorySaver
from langgraph_ledger import LedgerSaver
from tests.test_cli import agent
kept = agent(LedgerSaver({str(tmp_path / "l.db")!r}))
def lost():
    return agent(InMemorySaver())
"""
    (tmp_path / "audited_app.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    lost = CliRunner().invoke(app, ["audit", "audited_app:lost"])
    assert lost.exit_code == 3
    assert "lost" in lost.output
    kept = CliRunner().invoke(app, ["audit", "audited_app:kept", "--json", "--durability", "sync"])
    assert {row["verdict"] for row in json.loads(kept.output)["rows"] if row["kind"] == "channel"} == {"durable"}
    for wrong, code in (("audited_app", 2), ("audited_app:nothing", 1), ("no_such_module:graph", 1)):
        assert CliRunner().invoke(app, ["audit", wrong]).exit_code == code
    assert not (tmp_path / "l.db").exists()


def test_a_thread_that_is_not_there_is_no_clean_result(backend: Backend) -> None:
    """A mistyped name fails; a thread of which there are only refused writes is there."""
    with LedgerSaver(backend.url) as saver:
        save(Flavoured(saver, None), at("t"), "1")
        first = saver.get_tuple(at("t"))
        saver.delete_thread("t")
        with pytest.raises(StateConflict):
            save(Flavoured(saver, None), first.config, "2")  # type: ignore[union-attr]
        save(Flavoured(saver, None), at("u"), "1")
    run = lambda *a: CliRunner().invoke(app, [*a, "--url", backend.url])  # noqa: E731
    names = ("recover", "verify", "stats", "log", "show", "history", "conflicts", "diff", "release", "copy", "prune")
    for name in names:
        found = run(name, "nope", *(["x"] if name in ("diff", "release", "copy") else []))
        assert (found.exit_code, found.output.strip()) == (1, "there is no thread 'nope'"), name
    assert run("verify", "u", "nope").exit_code == 1
    assert [run(name, "t").exit_code for name in ("stats", "verify", "log", "conflicts")] == [0, 0, 0, 3]
    assert "nobody holds 'file:x' on thread 'u'" in (gone := run("release", "u", "file:x")).output
    assert gone.exit_code == 1


def test_what_is_not_there_is_said_and_not_made(tmp_path: Path) -> None:
    url = str(tmp_path / "none.db")
    found = CliRunner().invoke(app, ["sessions", "--url", url])
    assert (found.exit_code, os.path.exists(url)) == (1, False)
    for command in (["copy", "a", "b"], ["delete", "a", "--yes"], ["prune"], ["sweep"], ["compact"], ["stats"]):
        assert CliRunner().invoke(app, [*command, "--url", url]).exit_code == 1
        assert not os.path.exists(url)
    assert CliRunner().invoke(app, ["schema", "--migrate", "--url", url]).exit_code == 0
    for command in (["copy", "a", "b"], ["delete", "a", "--yes"]):
        assert CliRunner().invoke(app, [*command, "--url", url]).exit_code == 1
    assert "does not exist" in found.output
    assert CliRunner().invoke(app, ["sessions"], env={"LANGGRAPH_LEDGER_URL": ""}).exit_code != 0


def test_errors_say_what_to_type(backend: Backend, tmp_path: Path) -> None:
    """In one line, and of nothing that is said in Python only."""
    none = str(tmp_path / "none.db")
    empty = backend.url
    if backend.kind == "sqlite":
        sqlite3.connect(empty).execute("PRAGMA user_version = 1").connection.close()
    for command in (["stats"], ["prune"], ["export", "--to", str(tmp_path / "out.db")]):
        run = lambda *a, of=command: CliRunner().invoke(app, [*of, "--url", *a])  # noqa: E731
        for url in (none, f"sqlite:///{none}"):
            assert run(url).output == f"DatabaseUnavailable: {none!r} does not exist\n"
        where = "the default schema" if backend.kind == "postgres" else repr(empty)
        found = run(empty)
        assert found.exit_code == 1
        assert found.output.startswith(f"SchemaMissing: no ledger in {where}, or an older one; ")
        assert ("say --schema NAME" in found.output) == (backend.kind == "postgres")
    if backend.kind == "postgres":
        assert "no ledger in the schema 'typo'" in run(empty, "--schema", "typo").output
        with psycopg.connect(empty) as server:
            assert server.execute("SELECT FROM pg_class WHERE relname = 'sessions'").rowcount == 0
    refused = CliRunner().invoke(app, ["stats", "--url", "postgresql://nobody@127.0.0.1:1/none"]).output
    assert "\\n" not in refused
    assert len(refused.splitlines()) == 1


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_the_package_to_install_is_named(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, f"langgraph.checkpoint.{kind}", None)
    source = str(tmp_path / "old.db") if kind == "sqlite" else "postgresql://nobody@127.0.0.1:1/none"
    found = CliRunner().invoke(app, ["import", "--from", source, "--url", str(tmp_path / "new.db")])
    assert found.exit_code == 1
    assert found.output.endswith(f"pip install langgraph-checkpoint-{kind}\n")


class Bomb:
    """Leaves a mark when it is made from what is stored."""

    made: list[Any] = []  # noqa: RUF012

    def __reduce__(self) -> Any:
        return (Bomb.made.append, ("boom",))


def test_showing_a_value_makes_nothing_of_it() -> None:
    data = DataSerializer()
    shown = data.loads_typed(("pickle", pickle.dumps(Bomb())))
    assert (shown["$type"], shown["$length"]) == ("pickle", len(pickle.dumps(Bomb())))
    assert not Bomb.made
    forged = ormsgpack.packb(ormsgpack.Ext(0, ormsgpack.packb(["os", "system", "exit 1"])))
    assert data.loads_typed(("msgpack", forged)) == {"$type": "os.system", "value": "exit 1"}
