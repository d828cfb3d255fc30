"""What a session says beyond what its writes say: who began, and how a run ended that wrote nothing at its end."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.errors import GraphRecursionError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt

from langgraph_ledger import LedgerSaver, Session, storing
from langgraph_ledger.ledger import process_start
from tests.direct import query, shared_backend
from tests.four_ways import Backend, Flavoured
from tests.recovery.stage import call, config_of, made

backend = shared_backend
durabilities = pytest.mark.parametrize("durability", ["sync", "async", "exit"])


def session(four: Flavoured, config: Any) -> Session | None:
    thread = config["configurable"]["thread_id"]
    return next((s for s in four.call("sessions", limit=10**6) if s.session_id == thread), None)


def facts(four: Flavoured, config: Any) -> tuple[str, Any]:
    found = session(four, config)
    assert found is not None
    return found.status, dict(found.outcome)


def chain(saver: Any, *nodes: Callable[[MessagesState], Any], **options: Any) -> Any:
    builder = StateGraph(MessagesState).add_sequence(nodes).add_edge(START, nodes[0].__name__)
    return builder.compile(checkpointer=saver, **options)


def one(state: MessagesState) -> Any:
    return {"messages": ["one"]}


def two(state: MessagesState) -> Any:
    return {"messages": ["two"]}


@durabilities
def test_a_breakpoint_pauses(open_four: Callable[..., Flavoured], durability: str) -> None:
    four, other, config, seen = open_four(), open_four(), config_of(), []

    def look(state: MessagesState) -> Any:
        seen.extend(s for s in other.saver.sessions(limit=10**6) if s.session_id == config["configurable"]["thread_id"])

    graph = chain(four.saver, one, look, interrupt_before=["look"])
    four.invoke(graph, {"messages": ["go"]}, config, durability=durability)
    assert facts(four, config) == ("paused", {"ended": "breakpoint"})
    before = session(four, config)
    four.invoke(graph, None, config, durability=durability)
    assert [(s.status, dict(s.outcome)) for s in seen] == [("active", {})]
    assert before is not None
    assert seen[0].run_id != before.run_id
    assert seen[0].run_started_at > before.run_started_at
    assert seen[0].started_at == before.started_at
    assert facts(four, config) == ("completed", {})


@durabilities
def test_an_answer_makes_it_active(open_four: Callable[..., Flavoured], durability: str) -> None:
    four, other, config, seen = open_four(), open_four(), config_of(), []

    def ask(state: MessagesState) -> Any:
        answer = interrupt("well?")
        thread = config["configurable"]["thread_id"]
        seen.extend(s.status for s in other.saver.sessions(limit=10**6) if s.session_id == thread)
        return {"messages": [answer]}

    graph = chain(four.saver, ask)
    four.invoke(graph, {"messages": ["go"]}, config, durability=durability)
    assert facts(four, config) == ("paused", {})
    four.invoke(graph, Command(resume="yes"), config, durability=durability)
    assert seen == ["active"]
    assert facts(four, config) == ("completed", {})


def test_an_error_of_the_run_itself(four: Flavoured) -> None:
    config = config_of()
    builder = StateGraph(MessagesState).add_node(one).add_edge(START, "one").add_edge("one", "one")
    with pytest.raises(GraphRecursionError):
        four.invoke(builder.compile(checkpointer=four.saver), {"messages": ["go"]}, {**config, "recursion_limit": 3})
    status, outcome = facts(four, config)
    assert (status, outcome["ended"]) == ("failed", "failed")
    assert outcome["error_type"] == "langgraph.errors.GraphRecursionError"
    assert "Recursion limit" in str(outcome["error"]) or outcome["error"]["$length"] > 0


def test_an_error_of_the_run_itself_where_values_are_encrypted(open_four: Callable[..., Flavoured]) -> None:
    pytest.importorskip("Crypto")
    four, config = open_four(serde=EncryptedSerializer.from_pycryptodome_aes(key=b"0" * 16)), config_of()
    builder = StateGraph(MessagesState).add_node(one).add_edge(START, "one").add_edge("one", "one")
    with pytest.raises(GraphRecursionError) as raised:
        four.invoke(builder.compile(checkpointer=four.saver), {"messages": ["go"]}, {**config, "recursion_limit": 3})
    assert facts(four, config)[1]["error"] == {"$type": "str", "$length": len(str(raised.value))}


def test_an_error_of_a_node(four: Flavoured) -> None:
    def broken(state: MessagesState) -> Any:
        raise OSError("no disk")

    config = config_of()
    with pytest.raises(OSError, match="no disk"):
        four.invoke(chain(four.saver, broken), {"messages": ["go"]}, config)
    assert facts(four, config) == ("failed", {"ended": "failed", "error_type": "OSError", "error": "no disk"})


def test_a_stream_that_was_left(four: Flavoured) -> None:
    config = config_of()
    graph = chain(four.saver, one, two)
    four.stream(graph, {"messages": ["go"]}, config, durability="sync", stream_mode="updates", take=1)
    assert facts(four, config) == ("paused", {"ended": "cancelled"})
    four.invoke(graph, None, config)
    assert facts(four, config) == ("completed", {})


@pytest.mark.parametrize("how", ["closed", "an error"])
def test_a_stream_that_is_left_when_all_is_done(backend: Backend, how: str) -> None:
    config = config_of()
    with LedgerSaver(backend.url) as saver:
        stream = chain(saver, one).stream({"messages": ["go"]}, config, durability="sync", stream_mode="values")
        next(stream)
        while facts(Flavoured(saver, None), config)[0] != "completed":
            next(stream)
        if how == "closed":
            stream.close()
        else:
            with pytest.raises(ValueError, match="of the caller's"):
                stream.throw(ValueError("of the caller's"))
        saver.recover(config["configurable"]["thread_id"])
        assert facts(Flavoured(saver, None), config) == ("completed", {})


@pytest.mark.parametrize("by", ["recover", "another run", "close"])
def test_nothing_is_stored_where_a_stream_is_let_go(backend: Backend, by: str) -> None:
    """It may be a garbage collection, in the middle of anything: the saver's next call does it."""
    config = config_of()
    with LedgerSaver(backend.url) as saver, LedgerSaver(backend.url) as other:
        stream = chain(saver, one, two).stream({"messages": ["go"]}, config, durability="sync", stream_mode="updates")
        next(stream)
        stream.close()
        assert facts(Flavoured(other, None), config) == ("active", {})
        if by == "recover":
            saver.recover("of another thread")
        elif by == "close":
            saver.close()
        else:
            chain(saver, one).invoke({"messages": ["go"]}, config_of())
        assert facts(Flavoured(other, None), config) == ("paused", {"ended": "cancelled"})


def test_tool_calls_are_signs_of_life(open_four: Callable[..., Flavoured], monkeypatch: pytest.MonkeyPatch) -> None:
    """Under durability "exit" there are no others."""
    monkeypatch.setattr(storing, "TOUCH_SECONDS", 0.0)
    four, other, config, seen = open_four(), open_four(), config_of(), []

    def act(what: str) -> str:
        thread = config["configurable"]["thread_id"]
        seen.extend(s.last_active_at for s in other.saver.sessions(limit=10**6) if s.session_id == thread)
        return what

    builder = StateGraph(MessagesState).add_node("one", lambda state: {"messages": [asked("c1")]})
    builder.add_node("two", lambda state: {"messages": [asked("c2")]})
    builder.add_node("tools one", ToolNode([made(four, act)])).add_node("tools two", ToolNode([made(four, act)]))
    builder.add_edge(START, "one").add_edge("one", "tools one").add_edge("tools one", "two")
    graph = builder.add_edge("two", "tools two").compile(checkpointer=four.saver)
    four.invoke(graph, {"messages": ["go"]}, config, durability="exit")
    before, after = seen
    assert before < after


def asked(call_id: str) -> AIMessage:
    return AIMessage("", tool_calls=[call(call_id, call_id)])


def test_a_run_that_went_on_and_wrote_nothing(four: Flavoured) -> None:
    class Killed(BaseException):
        pass

    def killed(state: MessagesState) -> Any:
        raise Killed

    config = config_of()
    graph = chain(four.saver, one, killed, interrupt_before=["killed"])
    four.invoke(graph, {"messages": ["go"]}, config)
    assert facts(four, config) == ("paused", {"ended": "breakpoint"})
    with pytest.raises(Killed):
        four.invoke(graph, None, config, durability="sync")
    assert facts(four, config) == ("paused", {"ended": "cancelled"})
    assert four.saver._ledger.open_runs() == [], "what has ended is let go"


def test_nothing_to_go_on_with(four: Flavoured) -> None:
    config = config_of()
    graph = chain(four.saver, one)
    four.invoke(graph, {"messages": ["go"]}, config)
    before = session(four, config)
    four.invoke(graph, None, config)
    assert session(four, config) == before
    assert facts(four, config) == ("completed", {})


@pytest.mark.parametrize("owner", ["this process", "another one", "one that is gone", "gone, began nobody knows when"])
def test_a_run_that_goes_on_is_noted_unless_somebody_is_at_work(
    open_four: Callable[..., Flavoured], backend: Backend, owner: str
) -> None:
    four, other, config, seen = open_four(), LedgerSaver(backend.url), config_of(), []
    thread = config["configurable"]["thread_id"]

    def look(state: MessagesState) -> None:
        seen.extend(s.run_id for s in other.sessions(limit=10**6) if s.session_id == thread)

    with other:
        under_way = chain(other, one, look).stream({"messages": ["go"]}, config, durability="sync")
        next(under_way)
        before = session(four, config)
        assert before is not None
        if owner != "this process":
            pid = os.getppid()
            started: int | None = process_start(pid) if owner == "another one" else 0
            if owner == "gone, began nobody knows when":
                child = subprocess.Popen([sys.executable, "-c", ""])
                pid, started = child.pid, None
                child.wait()
            told = json.dumps({"host": socket.gethostname(), "pid": pid, "started": started})
            query(backend, "UPDATE agent_state_ledger SET owner = ? WHERE session_id = ?", told, thread)
        four.invoke(chain(four.saver, one, look), None, config, durability="exit")
        assert (seen == [before.run_id]) is (owner == "another one")
        under_way.close()


def test_a_run_does_not_fail_because_its_end_is_not_noted(four: Flavoured, backend: Backend) -> None:
    config = config_of()
    thread = config["configurable"]["thread_id"]
    graph = chain(four.saver, one, two, interrupt_before=["two"])
    four.call("setup")
    ends = f"NEW.session_id = '{thread}' AND NEW.outcome IS NOT NULL"
    if backend.kind == "sqlite":
        made = f"CREATE TRIGGER no_end BEFORE UPDATE ON sessions WHEN {ends} BEGIN SELECT RAISE(ABORT, 'no'); END"
        query(backend, made)
    else:
        body = "$$BEGIN RAISE EXCEPTION 'no'; END$$"
        query(backend, f"CREATE FUNCTION no_end() RETURNS trigger LANGUAGE plpgsql AS {body}")
        made = f"BEFORE UPDATE ON sessions FOR EACH ROW WHEN ({ends}) EXECUTE FUNCTION no_end()"
        query(backend, f"CREATE TRIGGER no_end {made}")
    try:
        found = four.invoke(graph, {"messages": ["go"]}, config)
    finally:
        query(backend, "DROP TRIGGER no_end" + (" ON sessions" if backend.kind == "postgres" else ""))
        query(backend, "SELECT 1" if backend.kind == "sqlite" else "DROP FUNCTION no_end")
    assert [m.content for m in found["messages"]] == ["go", "one"]
    assert facts(four, config) == ("active", {})


def test_a_graph_within_a_chain(four: Flavoured) -> None:
    config = config_of()
    graph = chain(four.saver, one, two, interrupt_before=["two"])
    four.on(RunnableLambda(lambda text: {"messages": [text]}) | graph, "invoke", "go", config)
    assert facts(four, config) == ("paused", {"ended": "breakpoint"})


def test_a_graph_within_a_graph_does_not_end_it(open_four: Callable[..., Flavoured]) -> None:
    four, other, config, seen = open_four(), open_four(), config_of(), []

    def look(state: MessagesState) -> Any:
        thread = config["configurable"]["thread_id"]
        seen.extend(s.status for s in other.saver.sessions(limit=10**6) if s.session_id == thread)

    inner = chain(None, one, two)
    builder = StateGraph(MessagesState).add_node("inner", inner).add_node(look)
    builder.add_edge(START, "inner").add_edge("inner", "look")
    four.invoke(builder.compile(checkpointer=four.saver), {"messages": ["go"]}, config, durability="sync")
    assert seen == ["active"]
    assert facts(four, config) == ("completed", {})


def test_a_run_that_never_began_leaves_no_trace(four: Flavoured) -> None:
    config = config_of()
    with pytest.raises(Exception, match=r"[Ii]nput|update"):
        four.invoke(chain(four.saver, one), None, config)
    assert session(four, config) is None


def test_a_cancelled_task(backend: Backend) -> None:
    config, entered = config_of(), asyncio.Event()

    async def wait(state: MessagesState) -> Any:
        entered.set()
        await asyncio.sleep(60)

    async def main() -> Any:
        async with LedgerSaver(backend.url) as saver:
            running = asyncio.create_task(chain(saver, wait).ainvoke({"messages": ["go"]}, config))
            await entered.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            return await saver.asessions(limit=10**6)

    (found,) = [s for s in asyncio.run(main()) if s.session_id == config["configurable"]["thread_id"]]
    assert (found.status, dict(found.outcome)) == ("paused", {"ended": "cancelled"})


def test_a_clean_shutdown_marks_what_it_leaves(open_four: Callable[..., Flavoured], backend: Backend) -> None:
    four, config = open_four(), config_of()
    closing = Flavoured(LedgerSaver(backend.url), four.runner)

    def leave() -> Any:
        stream = chain(closing.saver, one, two).stream({"messages": ["go"]}, config, durability="sync")
        next(stream)
        return stream

    stream = leave()
    assert facts(four, config) == ("active", {})
    closing.close()
    assert facts(four, config) == ("paused", {"ended": "shutdown"})
    with pytest.raises(Exception, match="closed"):
        list(stream)
