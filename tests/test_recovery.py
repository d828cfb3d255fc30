"""The report on what was in flight, the list of what a crash left, and what is said about it afterwards."""

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg_pool
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt

from langgraph_ledger import LedgerError, LedgerSaver, aonce, arepair, hold, repair
from tests.crash_worker import Crashes
from tests.direct import query, shared_backend
from tests.four_ways import Backend, Flavoured
from tests.recovery.stage import agent, call, config_of, entries, kinds, made, same
from tests.test_crash import KILLED, crashes

__all__ = ["crashes"]

backend = shared_backend


def thread_of(config: Any) -> str:
    return str(config["configurable"]["thread_id"])


@pytest.fixture
def crash(crashes: Crashes, backend: Backend, flavour: str) -> Callable[..., Any]:
    """Lets a process begin on a thread and kills it in its tool; returns the thread's config."""

    def killed(moment: str = "after", calls: Any = ("c1",), durability: str = "sync") -> Any:
        config = config_of()
        job = {"url": backend.url, "flavour": flavour, "durability": durability, "calls": list(calls)}
        code, _ = crashes.run(scenario="tools", thread=thread_of(config), kill_in_tool=moment, **job)
        assert code == KILLED
        return config

    return killed


def chain(saver: Any, *nodes: Any, **options: Any) -> Any:
    builder = StateGraph(MessagesState).add_sequence(nodes).add_edge(START, nodes[0].__name__)
    return builder.compile(checkpointer=saver, **options)


# --- the report


def test_a_crash_in_a_tool(four: Flavoured, crash: Callable[..., Any]) -> None:
    config = crash()
    report = four.call("recover", thread_of(config))
    assert (report.status, report.crashed, report.accepted) == ("active", True, False)
    assert report.next == ("tools",)
    assert report.checkpoints == 3
    assert report.last_completed == "step 1 (loop)"
    (found,) = report.unknown
    assert (found.name, found.call_id, found.arguments, found.node) == ("pay", "c1", {"what": "c1"}, "tools")
    assert (found.status, found.ended_at, found.attempts) == ("unknown", None, 1)
    assert report.run_id == found.run_id
    assert report.started_at <= report.run_started_at <= found.started_at
    text = str(report)
    assert "active (its process is gone)" in text
    assert "pay(what='c1'), id c1" in text
    assert thread_of(config) in {s.session_id for s in four.call("recoverable")}


def test_a_crash_under_exit_shows_the_accepted_input(four: Flavoured, crash: Callable[..., Any]) -> None:
    report = four.call("recover", thread_of(crash(durability="exit")))
    assert (report.status, report.crashed, report.accepted, report.checkpoints) == ("active", True, True, 0)
    assert [c.call_id for c in report.unknown] == ["c1"]
    assert "no checkpoint has come of it" in str(report)


def test_an_unknown_thread(four: Flavoured) -> None:
    report = four.call("recover", "nobody")
    assert (report.status, report.crashed, report.accepted, report.checkpoints) == ("unknown", False, False, 0)
    assert "unknown" in str(report)
    with pytest.raises(LedgerError):
        four.call("recover", None)


def test_questions_that_wait(four: Flavoured) -> None:
    def ask(state: MessagesState) -> Any:
        return {"messages": [str(interrupt({"q": "<b>well?</b>"}))]}

    config = config_of()
    inner = chain(None, ask)
    builder = StateGraph(MessagesState).add_node("inner", inner).add_node(ask)
    builder.add_edge(START, "inner").add_edge(START, "ask")
    graph = builder.compile(checkpointer=four.saver)
    four.invoke(graph, {"messages": ["go"]}, config)
    report = four.call("recover", thread_of(config))
    assert report.status == "paused"
    assert report.next == ("ask", "inner")
    assert {i.value["q"] for i in report.interrupts} == {"<b>well?</b>"}
    expected = {i.id for task in four.get_state(graph, config).tasks for i in task.interrupts}
    assert {i.id for i in report.interrupts} == expected
    assert len(expected) == 2
    html = report._repr_html_()
    assert "<b>" not in html
    assert "&lt;b&gt;well?" in html
    assert json.loads(json.dumps(report.to_dict()))["status"] == "paused"
    four.invoke(graph, Command(resume=dict.fromkeys(expected, "yes")), config)
    report = four.call("recover", thread_of(config))
    assert (report.status, report.next, report.interrupts) == ("completed", (), ())


def test_an_answer_by_id_is_for_its_own_question(four: Flavoured) -> None:
    """Also when somebody runs a thread that waits for the next answer with None."""

    def ask(state: MessagesState) -> Any:
        return {"messages": [f"{interrupt('first?')} {interrupt('second?')}"]}

    graph, config = chain(four.saver, ask), config_of()
    (asked,) = four.invoke(graph, {"messages": ["go"]}, config)["__interrupt__"]
    (asked,) = four.invoke(graph, Command(resume={asked.id: "1"}), config)["__interrupt__"]
    (again,) = four.invoke(graph, None, config)["__interrupt__"]
    assert asked.value == again.value == "second?"
    assert four.invoke(graph, Command(resume={again.id: "2"}), config)["messages"][-1].content == "1 2"


def test_how_the_calls_of_an_open_step_ended(four: Flavoured) -> None:
    def act(what: str) -> str:
        if what == "bad":
            raise ValueError("not <this>")
        return what if what == "good" else str(interrupt("may I?"))

    config = config_of()
    calls = [call("good", "c1"), call("bad", "c2"), call("ask", "c3")]
    graph = agent(four.saver, [made(four, act)], calls, handle_tool_errors=True)
    four.invoke(graph, {"messages": ["go"]}, config)
    report = four.call("recover", thread_of(config))
    assert [c.call_id for c in report.unapplied] == ["c1"]
    assert isinstance(report.unapplied[0].result, ToolMessage)
    assert [(c.call_id, c.error) for c in report.failed] == [("c2", "ValueError: not <this>")]
    assert [c.call_id for c in report.interrupted] == ["c3"]
    assert report.unknown == ()
    assert "call act (id c1)" in (report.last_completed or "")
    assert "<this>" not in report._repr_html_()
    four.invoke(graph, Command(resume="yes"), config)
    report = four.call("recover", thread_of(config))
    assert report.unapplied == report.failed == report.interrupted == report.unknown == report.held == ()


def test_a_call_beside_a_task_that_has_written(four: Flavoured) -> None:
    config = config_of()
    tools = ToolNode([made(four, lambda what: what if what == "a" else str(interrupt("may I?")))])
    asked = AIMessage("", tool_calls=[call("a", "c1"), call("b", "c2")])
    builder = StateGraph(MessagesState).add_node("tools", tools).add_edge(START, "tools")
    builder.add_node("beside", lambda state: {"messages": ["done"]}).add_edge(START, "beside")
    four.invoke(builder.compile(checkpointer=four.saver), {"messages": [asked]}, config)
    report = four.call("recover", thread_of(config))
    assert [c.call_id for c in report.unapplied] == ["c1"]
    assert [c.call_id for c in report.interrupted] == ["c2"]


def test_a_call_of_a_subgraph_whose_task_has_written(four: Flavoured) -> None:
    """The subgraph's state knows of it, though the root's does not yet. While the root is where it was, it stays on
    record."""

    def model(state: MessagesState) -> Any:
        return {"messages": [AIMessage("", tool_calls=[call("a", "c1")])]}

    def ask(state: MessagesState) -> None:
        interrupt("well?")

    config = config_of()
    builder = StateGraph(MessagesState).add_node(model).add_node(ask).add_node("tools", ToolNode([made(four, same)]))
    builder.add_edge(START, "model").add_edge("model", "ask").add_edge("model", "tools")
    outer = StateGraph(MessagesState).add_node("inner", builder.compile()).add_edge(START, "inner")
    four.invoke(outer.compile(checkpointer=four.saver), {"messages": ["go"]}, config)
    report = four.call("recover", thread_of(config))
    assert (report.unapplied, report.unknown, len(report.interrupts)) == ((), (), 1)
    four.call("prune", [thread_of(config)])
    assert kinds(four, config) == [("tool_call_started", "c1"), ("tool_call_completed", "c1")]


def test_an_error_is_in_the_report(four: Flavoured) -> None:
    def broken(state: MessagesState) -> Any:
        raise OSError("no disk")

    config = config_of()
    with pytest.raises(OSError, match="no disk"):
        four.invoke(chain(four.saver, broken), {"messages": ["go"]}, config)
    report = four.call("recover", thread_of(config))
    assert report.status == "failed"
    assert "no disk" in str(report)


def test_an_encrypted_report(open_four: Callable[..., Flavoured]) -> None:
    pytest.importorskip("Crypto")
    four, config = open_four(serde=EncryptedSerializer.from_pycryptodome_aes(key=b"0" * 16)), config_of()
    graph = agent(four.saver, [made(four, lambda what: str(interrupt(what)))], [call("s" * 400, "c1")])
    four.invoke(graph, {"messages": ["go"]}, config)
    report = four.call("recover", thread_of(config))
    assert [c.arguments for c in report.interrupted] == [{"what": "s" * 400}]


@pytest.mark.parametrize("later", ["c1", "c2"])
def test_what_is_unknown_stays_so_until_somebody_finds_out(
    four: Flavoured, crash: Callable[..., Any], later: str
) -> None:
    """A thread that goes on, and is pruned, still tells of a call that may have happened. A later one has perhaps the
    same id."""
    config = crash()
    thread = thread_of(config)
    graph = agent(four.saver, [made(four, same)], [call("a", later)])
    four.invoke(graph, {"messages": ["never mind"]}, config)
    assert [c.attempts for c in four.call("recover", thread).unknown] == [1]
    four.call("prune", [thread])
    report = four.call("recover", thread)
    assert report.status == "completed"
    assert [c.call_id for c in report.unknown] == ["c1"]
    assert {e.call_id for e in entries(four, config)} == {"c1"}
    four.call("resolve_call", thread, "c1", happened=False)
    report = four.call("recover", thread)
    assert (report.unknown, report.unapplied) == ((), ())


# --- what a crash left behind


def test_live_work_is_not_recoverable(open_four: Callable[..., Flavoured]) -> None:
    four, other, config, seen = open_four(), open_four(), config_of(), []

    def look(state: MessagesState) -> None:
        seen.append(thread_of(config) in {s.session_id for s in other.saver.recoverable()})
        seen.append(other.saver.recover(thread_of(config)).crashed)

    four.invoke(chain(four.saver, look), {"messages": ["go"]}, config, durability="sync")
    assert seen == [False, False]


def test_owners_elsewhere_count_by_their_last_sign(
    four: Flavoured, crash: Callable[..., Any], backend: Backend
) -> None:
    config = crash()
    thread = thread_of(config)
    query(
        backend,
        "UPDATE agent_state_ledger SET owner = ? WHERE session_id = ?",
        '{"host": "elsewhere", "pid": 1}',
        thread,
    )

    def listed(**options: Any) -> bool:
        return thread in {s.session_id for s in four.call("recoverable", **options)}

    assert not listed()
    assert not listed(idle=timedelta(hours=1))
    assert listed(idle=timedelta(0))
    with pytest.raises(LedgerError, match="idle"):
        four.call("recoverable", idle=5)


# --- what is found out


def test_resolving(four: Flavoured, crash: Callable[..., Any]) -> None:
    config = crash()
    thread = thread_of(config)
    with pytest.raises(LedgerError, match="none of that name; open are 'c1'"):
        four.call("resolve_call", thread, "c9", happened=False)
    with pytest.raises(LedgerError, match="'c1' happened: say what it returned, result=None if"):
        four.call("resolve_call", thread, "c1", happened=True)
    with pytest.raises(LedgerError, match="'c1' did not happen, and result='paid' was given"):
        four.call("resolve_call", thread, "c1", happened=False, result="paid")
    assert thread in {report.thread_id for report in four.call("unresolved")}
    four.call("resolve_call", thread, "c1", happened=True, result="paid")
    report = four.call("recover", thread)
    assert report.unknown == ()
    assert [(c.call_id, c.result, c.resolved) for c in report.unapplied] == [("c1", "paid", "resolve_call")]
    with pytest.raises(LedgerError, match="completed"):
        four.call("resolve_call", thread, "c1", happened=False)
    with pytest.raises(LedgerError, match="none of that name; open are none"):
        four.call("resolve_call", thread, "c9", happened=False)
    with pytest.raises(LedgerError, match="happened"):
        four.call("resolve_call", thread, "c1", happened="yes")
    (found,) = four.call("find_calls", thread, "c1")
    assert found.status == "completed"


@pytest.mark.parametrize("result", [2**64, {"id": object()}])
def test_a_result_that_cannot_be_stored_is_refused(four: Flavoured, crash: Callable[..., Any], result: Any) -> None:
    config = crash()
    with pytest.raises(LedgerError, match="cannot be stored"):
        four.call("resolve_call", thread_of(config), "c1", happened=True, result=result)
    assert [c.status for c in four.call("find_calls", thread_of(config), "c1")] == ["unknown"]


def test_a_result_that_was_found_out_is_kept_whatever_its_size(
    open_four: Callable[..., Flavoured], crash: Callable[..., Any]
) -> None:
    four, config = open_four(log_limit=10), crash()
    four.call("resolve_call", thread_of(config), "c1", happened=True, result="x" * 5000)
    (found,) = four.call("find_calls", thread_of(config), "c1")
    assert (found.kept, found.result) == (True, "x" * 5000)


# --- resources


def test_holding_a_resource(open_four: Callable[..., Flavoured]) -> None:
    four, other, config, seen = open_four(), open_four(), config_of(), []

    def note() -> None:
        seen.append([h.resource for h in other.saver.recover(thread_of(config)).held])

    def use(state: MessagesState) -> None:
        with hold("file:report.csv"):
            note()

    async def ause(state: MessagesState) -> None:
        async with hold("file:report.csv"):
            note()

    builder = StateGraph(MessagesState).add_node("use", ause if four.is_async else use).add_edge(START, "use")
    four.invoke(builder.compile(checkpointer=four.saver), {"messages": ["go"]}, config)
    assert seen == [["file:report.csv"]]
    assert four.call("recover", thread_of(config)).held == ()


def test_what_was_left_held_is_released_by_a_cleaner(four: Flavoured) -> None:
    config = config_of()

    def leave(state: MessagesState) -> None:
        hold("a").__enter__()
        hold("b").__enter__()

    four.invoke(chain(four.saver, leave), {"messages": ["go"]}, config)
    thread = thread_of(config)
    report = four.call("recover", thread)
    assert [h.resource for h in report.held] == ["a", "b"]
    assert "held:" in str(report)
    four.call("prune", [thread])
    assert four.call("release_hold", thread, "a", hold_id="another") == 0
    assert four.call("release_hold", thread, "a") == 1
    assert four.call("release_hold", thread, "a") == 0
    assert [h.resource for h in four.call("recover", thread).held] == ["b"]


def test_a_hold_needs_a_graph() -> None:
    with pytest.raises(LedgerError, match="inside of a node"), hold("a"):
        pass
    with pytest.raises(LedgerError, match="empty"):
        hold("")


# --- dangling tool calls


@pytest.mark.parametrize("at_the_end", [True, False])
def test_repair(four: Flavoured, crash: Callable[..., Any], at_the_end: bool) -> None:
    config = crash("before", calls=["c1", "c2"])
    graph = agent(four.saver, [made(four, same, "pay")], [])
    paid = four.call("recover", thread_of(config)).unknown[0].call_id  # whichever of the two came first
    four.call("resolve_call", thread_of(config), paid, happened=True, result="paid")
    if not at_the_end:
        four.update_state(graph, config, {"messages": [HumanMessage("hello?")]}, as_node="model")
    added = _repaired(four, graph, config)
    assert [m.tool_call_id for m in added] == ["c1", "c2"]
    messages = four.get_state(graph, config).values["messages"]
    at = next(n for n, m in enumerate(messages) if isinstance(m, AIMessage))
    assert [m.tool_call_id for m in messages[at + 1 : at + 3]] == ["c1", "c2"]
    found = {m.tool_call_id: (m.status, m.content) for m in messages[at + 1 : at + 3]}
    assert found.pop(paid) == ("success", "paid")
    ((status, _),) = found.values()
    assert status == "error"
    assert isinstance(messages[-1], ToolMessage if at_the_end else HumanMessage)
    assert _repaired(four, graph, config) == []


@pytest.mark.parametrize("city", ["Oslo", "Rome"])
@pytest.mark.parametrize("made_already", [True, False])
def test_repair_where_ids_are_used_again(four: Flavoured, city: str, made_already: bool) -> None:
    """Every turn of this model calls its tool by the same id."""
    config, turn = config_of(), ["Oslo"]

    def act(what: str) -> str:
        if len(turn) == 1:
            return f"sunny in {what}"
        return interrupt("stop") if what == "stop" else f"rain in {what}"

    def model(state: MessagesState) -> Any:
        calls = [call(turn[-1], "call_0")] + [call("stop", "call_1")] * (len(turn) > 1)
        return {"messages": [AIMessage("", tool_calls=calls)]}

    builder = StateGraph(MessagesState).add_sequence([("model", model), ("tools", ToolNode([made(four, act)]))])
    graph = builder.add_edge(START, "model").compile(checkpointer=four.saver)
    four.invoke(graph, {"messages": ["go"]}, config)
    turn.append(city)
    stop: Any = {} if made_already else {"interrupt_before": ["tools"]}
    four.invoke(graph, {"messages": ["go"]}, config, **stop)
    added = [m.content for m in _repaired(four, graph, config)]
    assert added[0] == (f"rain in {city}" if made_already else "This call was not made.")
    assert len(added) == 2
    assert _repaired(four, graph, config) == []


def _repaired(four: Flavoured, graph: Any, config: Any) -> Any:
    if four.runner is not None:
        return four.runner.run(arepair(graph, config, as_node="tools"))
    return repair(graph, config, as_node="tools")


# --- a connection that belongs to an event loop


def test_a_synchronous_tool_on_an_asynchronous_pool(fresh_postgres_url: Callable[[], str]) -> None:
    url, config = fresh_postgres_url(), config_of()
    tool = StructuredTool.from_function(func=same, name="act", description="acts")

    async def twice(state: MessagesState) -> Any:
        async def effect() -> str:
            return "done"

        return {"messages": [await aonce("e", effect), await aonce("e", effect)]}

    async def main() -> list[str]:
        async with psycopg_pool.AsyncConnectionPool(url, kwargs={"autocommit": True}) as pool:
            saver = LedgerSaver(pool)
            graph = agent(saver, [tool], [call(str(n), f"c{n}") for n in range(4)])
            found = await graph.ainvoke({"messages": ["go"]}, config)
            assert [m.content for m in found["messages"][-4:]] == ["0", "1", "2", "3"]
            await chain(saver, twice).ainvoke({"messages": ["go"]}, config_of("other"))
            return [e.checkpoint_type for e in await saver.ahistory(thread_of(config)) if e.call_id]

    kinds = asyncio.run(main())
    assert sorted(kinds) == ["tool_call_completed"] * 4 + ["tool_call_started"] * 4
