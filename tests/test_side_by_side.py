"""Calls that a node makes side by side: their order, their questions, and what an error of one does to the rest."""

import asyncio
import threading
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt

from langgraph_ledger import LedgerSaver, ReplayGuard, aonce, once
from langgraph_ledger.lines import Ticket
from langgraph_ledger.runs import Run
from tests.direct import shared_backend
from tests.four_ways import Backend, Flavoured
from tests.recovery.stage import agent, call, config_of, made
from tests.test_recovery import thread_of

backend = shared_backend
LONG = 0.1
"""Seconds: longer than LangGraph takes to end a run with an error."""


class Moments:
    """What has happened, for code in threads and on an event loop alike."""

    def __init__(self) -> None:
        self.seen = threading.Event()

    async def wait(self) -> None:
        while not self.seen.is_set():
            await asyncio.sleep(0.001)


def tools_of(four: Flavoured, slow: Callable[[str], Any], quick: Callable[[str], Any], begun: Moments) -> ToolNode:
    """`slow` is done a while after `quick` has been: then the run would be over if it did not wait."""

    def act(what: str) -> Any:
        if what == "quick":
            begun.seen.set()
            return quick(what)
        assert begun.seen.wait(30)
        threading.Event().wait(LONG)
        return slow(what)

    async def aact(what: str) -> Any:
        if what == "quick":
            begun.seen.set()
            return quick(what)
        await begun.wait()
        await asyncio.sleep(LONG)
        return slow(what)

    given: Any = {"coroutine": aact} if four.is_async else {"func": act}
    tool = StructuredTool.from_function(**given, name="act", description="acts")
    return ToolNode([tool], handle_tool_errors=False, **ReplayGuard("fail").wrappers)


def results(found: Any) -> list[Any]:
    return [m.content for m in found["messages"] if isinstance(m, ToolMessage)]


# --- an error, or a question, of one


def test_a_question_waits_for_the_calls_beside_it(four: Flavoured) -> None:
    config, done = config_of(), list[str]()
    tools = tools_of(four, lambda what: done.append(what) or "done", lambda _: interrupt("sure?"), Moments())
    graph = agent(four.saver, [], [call("slow", "c1"), call("quick", "c2")], node=tools)
    four.invoke(graph, {"messages": ["go"]}, config)
    assert done == ["slow"]
    report = four.call("recover", thread_of(config))
    assert ([c.call_id for c in report.unapplied], report.unknown) == (["c1"], ())
    assert results(four.invoke(graph, Command(resume="yes"), config)) == ["done", "yes"]
    assert done == ["slow"]


def test_an_error_waits_for_the_calls_beside_it(four: Flavoured) -> None:
    config, done, right = config_of(), list[str](), list[bool]()

    def quick(what: str) -> str:
        if not right:
            raise OSError("no line")
        return "sent"

    tools = tools_of(four, lambda what: done.append(what) or "done", quick, Moments())
    graph = agent(four.saver, [], [call("slow", "c1"), call("quick", "c2")], node=tools)
    with pytest.raises(OSError, match="no line"):
        four.invoke(graph, {"messages": ["go"]}, config)
    assert done == ["slow"]
    right.append(True)
    assert results(four.invoke(graph, None, config)) == ["done", "sent"]
    assert done == ["slow"]


# --- their order


def delayed(four: Flavoured, number: int) -> None:
    """Lets the start of one call, by its number, take longer than those that come after it."""
    starts = count(1)

    def trace(when: str, name: str) -> float | None:
        return LONG if (when, name) == ("before", "insert_call") and next(starts) == number else None

    four.saver._driver.trace = trace


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("slow", [1, 2])
def test_calls_begin_in_the_order_in_which_they_came(four: Flavoured, guarded: bool, slow: int) -> None:
    config, order = config_of(), list[str]()
    tools = [made(four, lambda what: order.append(what) or what)]
    names = ["c1", "c2", "c3"]
    node = ToolNode(tools, **ReplayGuard("fail").wrappers if guarded else {})
    graph = agent(four.saver, [], [call(name, name) for name in names], node=node)
    delayed(four, slow)
    assert results(four.invoke(graph, {"messages": ["go"]}, config)) == names
    assert order == names


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("by_id", [False, True])
def test_each_question_gets_its_own_answer(four: Flavoured, guarded: bool, by_id: bool) -> None:
    config, names = config_of(), ["c1", "c2", "c3"]
    tools = [made(four, lambda what: f"{what} {interrupt(f'{what}?')}")]
    node = ToolNode(tools, **ReplayGuard("fail").wrappers if guarded else {})
    graph = agent(four.saver, [], [call(name, name) for name in names], node=node)
    given: Any = {"messages": ["go"]}
    for number, name in enumerate(names, 1):
        delayed(four, number)
        (asked,) = four.invoke(graph, given, config)["__interrupt__"]
        assert asked.value == f"{name}?"
        given = Command(resume={asked.id: f"yes, {name}"} if by_id else f"yes, {name}")
    assert results(four.invoke(graph, given, config)) == [f"{name} yes, {name}" for name in names]


def test_who_gives_up_lets_those_behind_wait_for_those_before(open_four: Callable[..., Flavoured]) -> None:
    run = Run(open_four().saver._ledger.runs, "t", None)
    first, second, third = (Ticket(run, "line") for _ in range(3))
    second.give_up()
    (pause,) = third.come()
    assert not pause.until.done()  # type: ignore[union-attr]
    giving_up = threading.Thread(target=first.give_up, daemon=True)
    giving_up.start()
    giving_up.join(30)
    assert pause.until.done()  # type: ignore[union-attr]
    third.give_up()
    third.give_up()
    assert run.lines == {}


# --- questions of what is not made again


def node_of(four: Flavoured, *effects: tuple[str, Callable[[], Any]]) -> Any:
    """A node that does these effects once, and then asks."""

    def act(state: MessagesState) -> Any:
        found = [once(key, effect) for key, effect in effects]
        return {"messages": [f"{found} {interrupt('and?')}"]}

    async def aact(state: MessagesState) -> Any:
        async def awaited(effect: Callable[[], Any]) -> Any:
            return effect()

        found = [await aonce(key, lambda effect=effect: awaited(effect)) for key, effect in effects]
        return {"messages": [f"{found} {interrupt('and?')}"]}

    builder = StateGraph(MessagesState).add_node("act", aact if four.is_async else act).add_edge(START, "act")
    return builder.compile(checkpointer=four.saver)


def answered(four: Flavoured, graph: Any, config: Any, answers: dict[str, str]) -> str:
    """What the node says in the end, when each question has had its answer."""
    found = four.invoke(graph, {"messages": ["go"]}, config)
    while "__interrupt__" in found:
        (asked,) = found["__interrupt__"]
        found = four.invoke(graph, Command(resume=answers[asked.value]), config)
    return str(found["messages"][-1].content)


def test_what_is_done_once_keeps_its_answers(four: Flavoured) -> None:
    done: list[str] = []

    def two() -> str:
        said = f"{interrupt('first?')} {interrupt('second?')}"
        done.append(said)
        return said

    graph = node_of(four, ("plain", lambda: "plain"), ("two", two), ("one", lambda: interrupt("third?")))
    answers = {"first?": "1", "second?": "2", "third?": "3", "and?": "4"}
    assert answered(four, graph, config_of(), answers) == "['plain', '1 2', '3'] 4"
    assert done == ["1 2"]


def test_an_answer_that_a_crash_took_along(four: Flavoured) -> None:
    """The call is on record with what it was told, and the answer is not: the next question is not answered by it."""

    class Killed(BaseException):
        pass

    config, kills = config_of(), [True]

    def dies() -> str:
        if kills:
            raise Killed
        return "alive"

    def graph_of() -> Any:
        return node_of(four, ("asks", lambda: interrupt("first?")), ("dies", dies))

    four.invoke(graph_of(), {"messages": ["go"]}, config, durability="exit")
    with pytest.raises(Killed):
        four.invoke(graph_of(), Command(resume="1"), config, durability="exit")
    kills.clear()
    thread = thread_of(config)
    (unknown,) = four.call("find_calls", thread, "once:dies")
    four.call("resolve_call", thread, "once:dies", task_id=unknown.task_id, happened=False)
    (asked,) = four.invoke(graph_of(), None, config)["__interrupt__"]
    assert asked.value == "and?"
    found = four.invoke(graph_of(), Command(resume={asked.id: "4"}), config)
    print(found, four.get_state(graph_of(), config))
    assert found["messages"][-1].content == "['1', 'alive'] 4"


def test_questions_leave_in_their_order(four: Flavoured) -> None:
    """LangGraph gives the first answer to the question that a node asks first."""
    config = config_of()
    tools = tools_of(four, lambda _: interrupt("last?"), lambda _: interrupt("first?"), Moments())
    graph = agent(four.saver, [], [call("quick", "c1"), call("slow", "c2")], node=tools)
    for given, question in (({"messages": ["go"]}, "first?"), (Command(resume="one"), "last?")):
        (asked,) = four.invoke(graph, given, config)["__interrupt__"]
        assert asked.value == question
    assert results(four.invoke(graph, Command(resume="two"), config)) == ["one", "two"]


def test_calls_within_a_call_are_not_beside_it(four: Flavoured) -> None:
    """A guarded tool whose graph has guarded tools of its own, one of which fails."""
    config, done = config_of(), list[str]()

    def fail(what: str) -> str:
        raise OSError("no line")

    inner = tools_of(four, lambda what: done.append(what) or "done", fail, Moments())
    builder = StateGraph(MessagesState).add_node("inside", inner).add_edge(START, "inside")
    within = builder.compile()
    given = {"messages": [AIMessage("", tool_calls=[call("slow", "i1"), call("quick", "i2")])]}

    def act(what: str) -> str:
        return str(within.invoke(given))

    async def aact(what: str) -> str:
        return str(await within.ainvoke(given))

    tool = StructuredTool.from_function(
        **({"coroutine": aact} if four.is_async else {"func": act}),  # type: ignore[arg-type]
        name="act",
        description="acts",
    )
    tools = ToolNode([tool], handle_tool_errors=False, **ReplayGuard("fail").wrappers)
    graph = agent(four.saver, [], [call("outer", "c1")], node=tools)
    with pytest.raises(OSError, match="no line"):
        four.invoke(graph, {"messages": ["go"]}, config)
    assert done == ["slow"]


def test_a_cancelled_run_waits_for_nothing(backend: Backend) -> None:
    config, asked = config_of(), asyncio.Event()

    async def act(what: str) -> str:
        if what == "c2":
            asked.set()
            raise OSError("no line")
        await asyncio.Event().wait()
        return "never"

    async def main() -> None:
        tool = StructuredTool.from_function(coroutine=act, name="act", description="acts")
        tools = ToolNode([tool], handle_tool_errors=False, **ReplayGuard("fail").wrappers)
        async with LedgerSaver(backend.url) as saver:
            graph = agent(saver, [], [call("c1", "c1"), call("c2", "c2")], node=tools)
            running = asyncio.create_task(graph.ainvoke({"messages": ["go"]}, config))
            await asked.wait()
            await asyncio.sleep(LONG)
            assert not running.done()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            report = await saver.arecover(thread_of(config))
            assert ([c.call_id for c in report.cancelled], [c.call_id for c in report.failed]) == (["c1"], ["c2"])

    asyncio.run(main())
