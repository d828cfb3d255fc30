"""Every tool call leaves a start before it is made and an end before LangGraph is told; nobody has to ask for it."""

import asyncio
import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import AsyncCallbackManager, CallbackManager
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.base import create_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.errors import GraphBubbleUp, GraphRecursionError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt
from psycopg_pool import AsyncConnectionPool

from langgraph_ledger import LedgerError, LedgerSaver, SessionBusy, StateConflict, calls, hold, once, tool_log
from langgraph_ledger.errors import ThreadLocked
from langgraph_ledger.flow import adrive, drive, holds_up_loop
from langgraph_ledger.listings import values
from langgraph_ledger.records import MAX_TEXT
from langgraph_ledger.runs import Run
from tests.direct import query, shared_backend
from tests.four_ways import Backend, Flavoured
from tests.installed import older_than
from tests.ledger_rows import half_written, read_rows
from tests.recovery.stage import agent, call, config_of, entries, kinds, made, same

backend = shared_backend
durabilities = pytest.mark.parametrize("durability", ["sync", "async", "exit"])


def seen_from_outside(backend: Backend, config: Any) -> list[str]:
    """What of the log is committed, on a connection of its own."""
    statement = "SELECT checkpoint_type FROM checkpoint_log WHERE session_id = ? AND call_id IS NOT NULL ORDER BY seq"
    return [kind for (kind,) in query(backend, statement, config["configurable"]["thread_id"])]


# --- what is recorded


@durabilities
def test_a_start_before_and_an_end_after(backend: Backend, four: Flavoured, durability: str) -> None:
    seen, config = [], config_of()
    tool = made(four, lambda what: seen.append(seen_from_outside(backend, config)) or f"{what} done")
    graph = agent(four.saver, [tool], [call("this", "c1")])
    four.invoke(graph, {"messages": ["go"]}, config, durability=durability)
    assert seen == [["tool_call_started"]]
    start, end = entries(four, config)
    assert (start.checkpoint_type, end.checkpoint_type) == ("tool_call_started", "tool_call_completed")
    assert start.call_id == end.call_id == "c1"
    assert start.attempt_id == end.attempt_id
    assert start.task_id == end.task_id is not None
    assert start.agent_id == ""
    assert start.payload == {
        "tool": "act", "tool_call_id": "c1", "node": "tools", "step": 2, "arguments": {"what": "this"},
    }  # fmt: skip
    if durability != "exit":
        stored = [e.checkpoint_id for e in four.call("history", config["configurable"]["thread_id"])]
        assert stored.index(start.checkpoint_id) < stored.index(
            start.checkpoint_id, stored.index(start.checkpoint_id) + 1
        )


def test_an_end_is_committed_before_the_next_step(backend: Backend, four: Flavoured) -> None:
    seen, config = [], config_of()

    def look(state: MessagesState) -> Any:
        tool.invoke({"what": "by hand"})
        seen.append(seen_from_outside(backend, config))

    tool = StructuredTool.from_function(func=lambda what: what, name="act", description="acts")
    graph = StateGraph(MessagesState).add_node(look).add_edge(START, "look").compile(checkpointer=four.saver)
    four.invoke(graph, {"messages": []}, config)
    assert seen == [["tool_call_started", "tool_call_completed"]]
    start, end = entries(four, config)
    assert start.call_id == end.call_id == start.attempt_id
    assert start.payload == {"tool": "act", "node": "look", "step": 1, "arguments": {"what": "by hand"}}
    assert end.payload["result"] == "by hand"


def test_parallel_calls(four: Flavoured) -> None:
    config, n = config_of(), 5
    together = threading.Barrier(n) if not four.is_async else None

    def act(what: str) -> str:
        if together is not None:
            together.wait(20)
        return what

    graph = agent(four.saver, [made(four, act)], [call(str(i), f"c{i}") for i in range(n)])
    four.invoke(graph, {"messages": ["go"]}, config)
    found = kinds(four, config)
    for i in range(n):
        assert found.index(("tool_call_started", f"c{i}")) < found.index(("tool_call_completed", f"c{i}"))
    assert len(found) == 2 * n


@pytest.mark.parametrize("checkpointer", [None, True, False])
def test_a_call_in_a_subgraph(four: Flavoured, checkpointer: bool | None) -> None:
    config = config_of()
    inner = agent(checkpointer, [made(four, same)], [call("in", "c1")])
    builder = StateGraph(MessagesState).add_node("inner", inner).add_edge(START, "inner")
    graph = builder.compile(checkpointer=four.saver)
    four.invoke(graph, {"messages": ["go"]}, config)
    start, end = entries(four, config)
    namespaces = {e.agent_id for e in four.call("history", config["configurable"]["thread_id"]) if e.call_id is None}
    assert start.agent_id == end.agent_id
    assert start.agent_id in namespaces
    assert (start.agent_id == "") is (checkpointer is False)
    assert start.task_id
    assert end.payload["result"]["$type"].endswith("ToolMessage")


def test_an_agent_of_langchain(four: Flavoured) -> None:
    config = config_of()

    class Model(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **options: Any) -> Any:
            return self

    model = Model(messages=iter([AIMessage("", tool_calls=[call("a", "c1"), call("b", "c2")]), AIMessage("done")]))
    graph = create_agent(model, [made(four, lambda what: f"{what}!")], checkpointer=four.saver)
    four.invoke(graph, {"messages": [("user", "go")]}, config)
    assert sorted(kinds(four, config)) == sorted(
        (kind, c) for kind in ("tool_call_started", "tool_call_completed") for c in ("c1", "c2")
    )
    assert {e.payload["node"] for e in entries(four, config)} == {"tools"}


@pytest.mark.parametrize("order", [1, -1])
def test_each_handler_knows_its_events(four: Flavoured, order: int) -> None:
    """LangChain calls them in any order: it merges handlers as sets, within subgraphs for one."""
    held: list[bool] = []

    def trace(when: str, name: str) -> None:
        if name.startswith("insert_call"):
            held.append(holds_up_loop.get())

    config = config_of()
    handlers: Any = list(tool_log._handlers)[::order]
    manager = (AsyncCallbackManager if four.is_async else CallbackManager)(handlers, inheritable_handlers=handlers)
    graph = agent(four.saver, [made(four, same)], [call("this", "c1")])
    four.saver._driver.trace = trace
    four.invoke(graph, {"messages": ["go"]}, {**config, "callbacks": manager})
    assert kinds(four, config) == [("tool_call_started", "c1"), ("tool_call_completed", "c1")]
    assert held
    assert not any(held)


def test_a_failure(four: Flavoured) -> None:
    def act(what: str) -> str:
        raise ValueError(f"not {what}")

    config = config_of()
    graph = agent(four.saver, [made(four, act)], [call("this", "c1")], handle_tool_errors=False)
    with pytest.raises(ValueError, match="not this"):
        four.invoke(graph, {"messages": ["go"]}, config)
    assert kinds(four, config) == [("tool_call_started", "c1"), ("tool_call_failed", "c1")]
    end = entries(four, config)[-1]
    assert (end.payload["error_type"], end.payload["error"]) == ("ValueError", "not this")


def test_an_interrupt_is_no_failure(four: Flavoured) -> None:
    config = config_of()
    graph = agent(four.saver, [made(four, lambda what: f"{what} {interrupt('may I?')}")], [call("this", "c1")])
    four.invoke(graph, {"messages": ["go"]}, config)
    assert [kind for kind, _ in kinds(four, config)] == ["tool_call_started", "tool_call_interrupted"]
    found = four.invoke(graph, Command(resume="yes"), config)
    assert found["messages"][-1].content == "this yes"
    assert [kind for kind, _ in kinds(four, config)][2:] == ["tool_call_started", "tool_call_completed"]
    first, _, second, _ = entries(four, config)
    assert (first.task_id, first.call_id) == (second.task_id, second.call_id)
    assert first.attempt_id != second.attempt_id


def test_what_ends_the_graph_is_no_failure(four: Flavoured) -> None:
    def act(what: str) -> str:
        raise GraphBubbleUp

    config = config_of()
    with contextlib.suppress(GraphBubbleUp):
        four.invoke(agent(four.saver, [made(four, act)], [call("this", "c1")]), {"messages": ["go"]}, config)
    assert [kind for kind, _ in kinds(four, config)] == ["tool_call_started", "tool_call_cancelled"]


def test_an_error_is_raised_though_it_cannot_be_logged(open_four: Callable[..., Flavoured], backend: Backend) -> None:
    """It is the tool's, and says that its end is not on record."""
    four, config, notes = open_four(), config_of(), list[str]()
    closing = Flavoured(LedgerSaver(backend.url), four.runner)

    def act(what: str) -> str:
        closing.saver.close()
        raise ValueError(f"not {what}")

    def note(request: Any, error: BaseException | None) -> Any:
        assert isinstance(error, ValueError)
        notes.extend(error.__notes__)
        raise error

    def wrap(request: Any, execute: Any) -> Any:
        try:
            return execute(request)
        except Exception as error:
            return note(request, error)

    async def awrap(request: Any, execute: Any) -> Any:
        try:
            return await execute(request)
        except Exception as error:
            return note(request, error)

    tool = made(four, act)
    node = ToolNode([tool], handle_tool_errors=False, wrap_tool_call=wrap, awrap_tool_call=awrap)
    with pytest.raises((ValueError, LedgerError)):
        closing.invoke(agent(closing.saver, [], [call("this", "c1")], node=node), {"messages": ["go"]}, config)
    assert [note for note in notes if "could not be logged" in note]
    assert [kind for kind, _ in kinds(four, config)] == ["tool_call_started"]


def test_calls_that_are_under_way_take_bounded_room(four: Flavoured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_log, "REMEMBERED", 2)
    config, left = config_of(), list[int]()

    def nested(what: str) -> str:
        left.append(len(tool_log._calls._found))
        return what if what == "xxxx" else tool.invoke({"what": f"{what}x"})

    async def anested(what: str) -> str:
        left.append(len(tool_log._calls._found))
        return what if what == "xxxx" else await tool.ainvoke({"what": f"{what}x"})

    tool: Any = StructuredTool.from_function(
        None if four.is_async else nested, anested if four.is_async else None, "act", description="acts"
    )
    four.invoke(agent(four.saver, [tool], [call("x", "c1")]), {"messages": ["go"]}, config)
    assert max(left) <= 2
    assert sorted(kind for kind, _ in kinds(four, config)) == ["tool_call_completed"] * 2 + ["tool_call_started"] * 4


def test_a_cancelled_call(backend: Backend) -> None:
    config, entered = config_of(), asyncio.Event()

    async def act(what: str) -> str:
        entered.set()
        await asyncio.sleep(60)
        return what

    async def scene(saver: LedgerSaver) -> Any:
        tool = StructuredTool.from_function(coroutine=act, name="act", description="acts")
        graph = agent(saver, [tool], [call("this", "c1")])
        running = asyncio.create_task(graph.ainvoke({"messages": ["go"]}, config))
        await entered.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return await saver.ahistory(config["configurable"]["thread_id"])

    async def main() -> Any:
        async with LedgerSaver(backend.url) as saver:
            return await scene(saver)

    found = [e.checkpoint_type for e in asyncio.run(main()) if e.call_id]
    told = not older_than("langchain-core", "1.7.5")  # before, LangChain does not tell its callbacks
    assert found == ["tool_call_started", *["tool_call_cancelled"] * told]


def test_a_synchronous_tool_where_a_loop_runs(backend: Backend) -> None:
    """As in a notebook: LangChain calls the handlers of both kinds then, and one of them records."""
    tool = StructuredTool.from_function(func=lambda what: what, name="act", description="acts")

    def by_hand(state: MessagesState) -> None:
        tool.invoke(call("this", "c1"))

    config = config_of()
    graph = StateGraph(MessagesState).add_node(by_hand).add_edge(START, "by_hand")

    async def main(saver: LedgerSaver) -> None:
        graph.compile(checkpointer=saver).invoke({"messages": []}, config)

    with LedgerSaver(backend.url) as saver:
        asyncio.run(main(saver))
        found = [e.checkpoint_type for e in saver.history(config["configurable"]["thread_id"]) if e.call_id]
    assert found == ["tool_call_started", "tool_call_completed"]


@pytest.mark.parametrize("way", ["tool", "once", "hold"])
@pytest.mark.parametrize("begun", [False, True], ids=["put not begun", "put under way"])
def test_what_is_synchronous_in_an_asynchronous_node_holds_up_nobody(backend: Backend, way: str, begun: bool) -> None:
    """It cannot wait for the checkpoint of its step, which may need the very loop that it holds up; and where a save is
    under way on that loop, a tool is called without a record, and the others say that they cannot."""
    tool = StructuredTool.from_function(func=lambda what: what, name="act", description="acts")
    beats: list[float] = []

    async def node(state: MessagesState) -> None:
        if begun:
            await asyncio.sleep(0)
        if way == "tool":
            tool.invoke(call("this", "c1"))
        elif way == "once":
            once("key", lambda: 1)
        else:
            with hold("resource"):
                pass

    async def main(saver: LedgerSaver) -> None:
        saver._driver.trace = lambda event, name: 0.05 if begun and name == "insert_checkpoint" else None
        builder = StateGraph(MessagesState).add_node("first", lambda state: None).add_node(node)
        graph = builder.add_edge(START, "first").add_edge("first", "node").compile(checkpointer=saver)
        may_be_refused = backend.kind == "postgres" and way != "tool"
        with contextlib.suppress(ThreadLocked) if may_be_refused else contextlib.nullcontext():
            async with asyncio.timeout(30):
                await graph.ainvoke({"messages": []}, config_of("t"))
        beats.append(1)

    with LedgerSaver(backend.url) as saver:
        asyncio.run(main(saver))
        recorded = any(entry.call_id for entry in saver.history("t"))
        assert recorded or backend.kind == "postgres"
    assert beats


def test_a_tool_is_called_though_its_call_cannot_be_put_on_record(fresh_postgres_url: Callable[[], str]) -> None:
    """A pool of a loop cannot be used by code that holds up this loop."""
    tool = StructuredTool.from_function(func=lambda what: what, name="act", description="acts")
    made: list[Any] = []

    async def node(state: MessagesState) -> None:
        made.append(tool.invoke({"what": "this"}))

    async def main() -> None:
        options: Any = {"autocommit": True}
        async with AsyncConnectionPool(fresh_postgres_url(), kwargs=options, open=False) as pool:
            saver = LedgerSaver(pool)
            graph = StateGraph(MessagesState).add_node(node).add_edge(START, "node").compile(checkpointer=saver)
            await graph.ainvoke({"messages": []}, config_of("t"))
            assert not any(entry.call_id for entry in await saver.ahistory("t"))

    asyncio.run(main())
    assert made == ["this"]


# --- what is kept of values


def test_what_messages_and_commands_say_is_shown(four: Flavoured) -> None:
    def act(what: str) -> Any:
        message = ToolMessage(f"{what} done", tool_call_id=what, status="error")
        return Command(update={"messages": [message]}, goto="tools") if what == "c2" else "é\0" * 200

    config = config_of()
    graph = agent(four.saver, [made(four, act)], [call("c1", "c1"), call("c2", "c2")])
    with contextlib.suppress(GraphRecursionError):
        four.invoke(graph, {"messages": ["go"]}, {**config, "recursion_limit": 2})
    found = {e.call_id: e.payload["result"] for e in entries(four, config) if "result" in e.payload}
    text, command = found["c1"], found["c2"]
    assert (text["status"], text["content"]) == ("success", ("é\u2400" * 200)[:255] + "…")
    (message,) = command["update"]["messages"]
    assert (message["content"], message["status"], command["goto"]) == ("c2 done", "error", "tools")
    last = [values(e)[-1] for e in entries(four, config) if e.call_id == "c2" and "result" in e.payload]
    assert "c2 done" in last[0]


def test_large_values_are_described(open_four: Callable[..., Flavoured], backend: Backend) -> None:
    four, config = open_four(log_limit=1000), config_of()
    graph = agent(four.saver, [made(four, lambda what: what * 10)], [call("x" * 500, "c1")])
    four.invoke(graph, {"messages": ["go"]}, config)
    start, end = entries(four, config)
    assert start.payload["arguments"] == {"$type": "dict", "$length": 1}
    assert "kept" not in start.payload
    assert end.payload["kept"] is False
    assert "content" not in end.payload["result"]
    statement = "SELECT body IS NULL FROM checkpoint_log WHERE session_id = ? AND call_id IS NOT NULL ORDER BY seq"
    assert [bool(n) for (n,) in query(backend, statement, config["configurable"]["thread_id"])] == [False, True]


def test_what_is_redacted_is_nowhere(open_four: Callable[..., Flavoured], backend: Backend) -> None:
    def redact(tool: str, kind: str, value: Any) -> Any:
        asked.append((tool, kind))
        return {"what": "***"} if kind == "arguments" else "***"

    asked: list[tuple[str, str]] = []
    four, config = open_four(redact=redact), config_of()
    tool = made(four, lambda what: f"the password is {what}")
    graph = agent(four.saver, [tool], [call("swordfish", "c1")])
    four.invoke(graph, {"messages": ["go"]}, config)
    start, end = entries(four, config)
    assert asked == [("act", "arguments"), ("act", "result")]
    assert (start.payload["arguments"], end.payload["result"]) == ({"what": "***"}, "***")
    assert start.payload["kept"] is end.payload["kept"] is False


def test_values_that_cannot_be_stored_are_described(four: Flavoured) -> None:
    config = config_of()

    def by_hand(state: MessagesState) -> None:
        tool.invoke({"what": "x"})

    tool = StructuredTool.from_function(func=lambda what: threading.Lock(), name="act", description="acts")
    graph = StateGraph(MessagesState).add_node(by_hand).add_edge(START, "by_hand").compile(checkpointer=four.saver)
    four.invoke(graph, {"messages": []}, config)
    assert entries(four, config)[-1].payload["kept"] is False
    assert entries(four, config)[-1].checkpoint_type == "tool_call_completed"


def test_an_encrypted_log_shows_no_values(open_four: Callable[..., Flavoured], backend: Backend) -> None:
    pytest.importorskip("Crypto")
    four, config = open_four(serde=EncryptedSerializer.from_pycryptodome_aes(key=b"0" * 16)), config_of()

    def act(what: str) -> str:
        raise ValueError(f"swordfish {what}")

    graph = agent(four.saver, [made(four, act)], [call("swordfish", "c1")], handle_tool_errors=True)
    four.invoke(graph, {"messages": ["go"]}, config)
    assert len(entries(four, config)) == 2
    rows = query(backend, "SELECT * FROM checkpoint_log WHERE session_id = ?", config["configurable"]["thread_id"])
    rows += query(backend, "SELECT * FROM agent_memory WHERE session_id = ?", config["configurable"]["thread_id"])
    assert "swordfish" not in json.dumps(rows, default=repr)


def test_ids_of_any_kind(four: Flavoured) -> None:
    """A model may name a call as it likes; its name must not get in the way."""
    config = config_of()
    calls = [call("a", "x" * 2000), call("b", "nul\0")]
    four.invoke(agent(four.saver, [made(four, same)], calls), {"messages": ["go"]}, config)
    assert len({e.call_id for e in entries(four, config)}) == 2
    assert len(entries(four, config)) == 4
    assert {e.payload["tool_call_id"] for e in entries(four, config)} == {"x" * MAX_TEXT, "nul\u2400"}


# --- who is not recorded


def test_it_can_be_turned_off(open_four: Callable[..., Flavoured]) -> None:
    four, config = open_four(log_tools=False), config_of()
    four.invoke(agent(four.saver, [made(four, same)], [call("a", "c1")]), {"messages": ["go"]}, config)
    assert entries(four, config) == []


def test_graphs_with_another_saver_are_left_alone(four: Flavoured, sqlite_path: str) -> None:
    graph = agent(InMemorySaver(), [made(four, same)], [call("a", "c1")])
    found = four.invoke(graph, {"messages": ["go"]}, config_of())
    assert isinstance(found["messages"][-1], ToolMessage)
    made(four, same).run("outside") if not four.is_async else None
    graph = agent(None, [made(four, same)], [call("a", "c1")])
    assert isinstance(four.invoke(graph, {"messages": ["go"]})["messages"][-1], ToolMessage)


def test_two_savers_in_one_process(open_four: Callable[..., Flavoured], tmp_path: Path) -> None:
    one, config = open_four(), config_of()
    with LedgerSaver(str(tmp_path / "other.db")) as other:
        two = Flavoured(other, one.runner)
        for four in (one, two):
            four.invoke(agent(four.saver, [made(four, same)], [call("a", "c1")]), {"messages": ["go"]}, config)
            assert [kind for kind, _ in kinds(four, config)] == ["tool_call_started", "tool_call_completed"]
    assert len(tool_log._registered) == 2, "the handlers of both flavours, once for the process"


# --- a run that has been overtaken


@durabilities
@pytest.mark.parametrize("handled", [True, False])
def test_a_tool_of_an_overtaken_run_does_not_run(
    open_four: Callable[..., Flavoured], durability: str, handled: bool
) -> None:
    """Another saver takes the thread over, so that only the database knows of it."""
    four, other, config, ran = open_four(), open_four(), config_of(), []

    def overtake(state: MessagesState) -> Any:
        in_another_thread(lambda: take_over(other.saver, config))
        return {"messages": [AIMessage("", tool_calls=[call("this", "c1")])]}

    tool = made(four, lambda what: ran.append(what) or what)
    builder = StateGraph(MessagesState).add_node(overtake)
    builder.add_node("tools", ToolNode([tool], handle_tool_errors=handled))
    builder.add_node("after", lambda state: ran.append("after"))
    builder.add_edge(START, "overtake").add_edge("overtake", "tools").add_edge("tools", "after")
    graph = builder.compile(checkpointer=four.saver)
    seed = {"messages": ["before"]}
    four.invoke(agent(four.saver, [tool], []), seed, config)
    before = len(tool_log._calls._found)
    with pytest.raises(StateConflict):
        four.invoke(graph, {"messages": ["go"]}, config, durability=durability)
    assert ran == []
    assert len(tool_log._calls._found) == before
    assert entries(four, config) == []


def test_a_tool_of_an_overtaken_run_runs_where_conflicts_are_reported(open_four: Callable[..., Flavoured]) -> None:
    four, other, config, ran = open_four(on_conflict="report"), open_four(), config_of(), []

    def overtake(state: MessagesState) -> Any:
        in_another_thread(lambda: take_over(other.saver, config))
        return {"messages": [AIMessage("", tool_calls=[call("this", "c1")])]}

    tool = made(four, lambda what: ran.append(what) or what)
    builder = StateGraph(MessagesState).add_node(overtake).add_node("tools", ToolNode([tool]))
    graph = builder.add_edge(START, "overtake").add_edge("overtake", "tools").compile(checkpointer=four.saver)
    four.invoke(agent(four.saver, [tool], []), {"messages": ["before"]}, config)
    four.invoke(graph, {"messages": ["go"]}, config, durability="exit")
    assert ran == ["this"]
    assert [kind for kind, _ in kinds(four, config)] == ["tool_call_started", "tool_call_completed"]
    (refused,) = four.call("rejected_writes", config["configurable"]["thread_id"])
    assert refused.payload["operation"] == "tool_call_started"


def test_a_start_of_a_writer_that_never_read(four: Flavoured) -> None:
    """As for any other write of it, the checkpoint that it stands on must be the thread's latest."""
    config = config_of()
    graph = agent(four.saver, [], [])
    for _ in range(2):
        four.invoke(graph, {"messages": ["go"]}, config)
    latest, *_, first = (e.checkpoint_id for e in reversed(four.call("history", config["configurable"]["thread_id"])))

    def start(checkpoint_id: str) -> None:
        ledger, thread = four.saver._ledger, config["configurable"]["thread_id"]
        spot = calls.Spot(thread, "", "task", checkpoint_id, checkpoint_id)
        flow = calls.record_start(
            ledger, four.saver.serde, calls.Call(spot, "c1", {}, run=Run(ledger.runs, thread, None))
        )
        if four.runner is None:
            drive(flow, ledger.driver)
        else:
            four.runner.run(adrive(flow, ledger.driver))

    with pytest.raises(StateConflict):
        start(first)
    assert entries(four, config) == []
    start(latest)
    assert [kind for kind, _ in kinds(four, config)] == ["tool_call_started"]


def test_no_tool_is_called_on_a_busy_thread(backend: Backend, four: Flavoured) -> None:
    """Where a run goes on with what is there, a tool call may be the first thing that it writes."""
    config, ran, refused = config_of(), list[str](), list[SessionBusy]()

    def rival() -> None:
        runner = asyncio.Runner() if four.is_async else None
        with LedgerSaver(backend.url, on_busy="refuse") as saver, runner or contextlib.nullcontext():
            other = Flavoured(saver, runner)
            with pytest.raises(SessionBusy) as busy:
                other.invoke(agent(saver, [made(other, ran.append)], [call("this", "c1")]), None, config)
            refused.append(busy.value)
            other.close()

    def act(what: str) -> str:
        in_another_thread(rival)
        return what

    four.invoke(agent(four.saver, [made(four, act)], [call("this", "c1")]), {"messages": ["go"]}, config)
    assert ran == []
    assert len(refused) == 1


class Slow(LedgerSaver):
    """The first put of a run is refused, when a tool of that run already waits for the checkpoint after it."""

    overtake: Callable[[], None] | None = None

    def put(self, *args: Any) -> Any:
        self._before()
        return super().put(*args)

    async def aput(self, *args: Any) -> Any:
        await asyncio.to_thread(self._before)
        return await super().aput(*args)

    def _before(self) -> None:
        overtake, self.overtake = self.overtake, None
        if overtake is None:
            return
        deadline = time.monotonic() + 60
        while not any(run.expected for run in self._ledger.open_runs()):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        overtake()


def test_a_tool_of_a_refused_run_waits_for_no_checkpoint(
    backend: Backend, flavour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LangGraph puts nothing behind a put that was refused. (As long as it waited here, the test would not end.)"""
    monkeypatch.setattr(calls, "PATIENCE", 3600.0)
    with Slow(backend.url) as saver, LedgerSaver(backend.url) as other:
        four = Flavoured(saver, asyncio.Runner() if flavour == "async" else None)
        config, ran = config_of(), list[str]()
        tool = made(four, lambda what: ran.append(what) or what)
        four.invoke(agent(saver, [tool], []), {"messages": ["before"]}, config)

        builder = StateGraph(MessagesState).add_node("tools", ToolNode([tool])).add_edge(START, "tools")
        graph = builder.compile(checkpointer=saver)
        saver.overtake = lambda: in_another_thread(lambda: take_over(other, config))
        asked = AIMessage("", tool_calls=[call("this", "c1")])
        with pytest.raises(StateConflict):
            four.invoke(graph, {"messages": [asked]}, config, durability="async")
        assert ran == []
        assert len(four.call("rejected_writes", config["configurable"]["thread_id"])) == 1
        if four.runner is not None:
            four.close()
            four.runner.close()


def in_another_thread(act: Callable[[], Any]) -> None:
    problems = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert problems == []


def take_over(saver: Any, config: Any) -> None:
    """Writes on what is there, again if a save of the run under way was faster."""
    while True:
        found = saver.get_tuple(config)
        new = create_checkpoint(found.checkpoint, None, 99)
        try:
            saver.put(found.config, new, {"source": "update", "step": 99, "parents": {}}, {})
        except StateConflict:
            continue
        return


# --- retention


def test_deleting_pruning_and_copying(four: Flavoured, backend: Backend) -> None:
    config = config_of()
    graph = agent(four.saver, [made(four, lambda what: what * 2000)], [call("y" * 300, "c1")])
    for _ in range(3):
        four.invoke(graph, {"messages": ["go"]}, config)
    thread = config["configurable"]["thread_id"]
    four.call("copy_thread", thread, f"{thread}-copy")
    assert len(entries(four, config_of(f"{thread}-copy"))) == 6
    assert four.call("stats", thread).bytes_stored > 0
    assert damaged(backend, thread) == []
    four.call("prune", [thread])
    assert entries(four, config) == []
    assert damaged(backend, thread) == []
    four.call("delete_thread", f"{thread}-copy")
    assert entries(four, config_of(f"{thread}-copy")) == []
    assert damaged(backend, thread) == []


def damaged(backend: Backend, thread: str) -> list[str]:
    connection = sqlite3.connect(backend.url) if backend.kind == "sqlite" else psycopg.connect(backend.url)
    try:
        return half_written(read_rows(connection, {thread: "thread", f"{thread}-copy": "copy"}))
    finally:
        connection.close()


def test_a_call_that_ends_after_its_thread_was_deleted(four: Flavoured, backend: Backend) -> None:
    config = config_of()
    thread = config["configurable"]["thread_id"]
    tool = made(four, lambda what: in_another_thread(lambda: four.saver.delete_thread(thread)) or what * 3000)
    with pytest.raises(StateConflict):
        four.invoke(agent(four.saver, [tool], [call("x", "c1")]), {"messages": ["go"]}, config)
    assert entries(four, config) == []
    assert damaged(backend, thread) == []
