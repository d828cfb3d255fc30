"""Calls that a node makes side by side: their order, their questions, and what an error of one does to the rest."""

import asyncio
import random
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, RetryPolicy, interrupt

from langgraph_ledger import LedgerSaver, ReplayGuard, aonce, once
from langgraph_ledger.errors import InvalidInput
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


def delayed(four: Flavoured, number: int, statement: str = "insert_call") -> None:
    """Lets the start of one call, by its number, take longer than those that come after it; or its end."""
    numbers = count(1)

    def trace(when: str, name: str) -> float | None:
        return LONG if (when, name) == ("before", statement) and next(numbers) == number else None

    four.saver._driver.trace = trace


@pytest.mark.parametrize("flavour", ["async"])
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


@pytest.mark.parametrize("flavour", ["async"])
@pytest.mark.parametrize("by_id", [False, True])
def test_questions_are_asked_in_the_order_in_which_calls_came(four: Flavoured, by_id: bool) -> None:
    config, names = config_of(), ["c1", "c2", "c3"]
    tools = [made(four, lambda what: f"{what} {interrupt(f'{what}?')}")]
    graph = agent(four.saver, [], [call(name, name) for name in names], node=ToolNode(tools))
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


def test_a_line_that_is_longer_than_the_stack_is_deep(open_four: Callable[..., Flavoured]) -> None:
    run = Run(open_four().saver._ledger.runs, "t", None)
    first, *others = (Ticket(run, "line") for _ in range(sys.getrecursionlimit()))
    for ticket in others:
        ticket.give_up()
    first.give_up()
    assert run.lines == {}


@pytest.mark.parametrize("flavour", ["async"])
@pytest.mark.parametrize("slow", [1, 2])
def test_what_ended_before_a_question_is_on_record_with_it(four: Flavoured, slow: int) -> None:
    def act(what: str) -> str:
        if what == "bad":
            raise OSError("no line")
        return what if what == "good" else str(interrupt("may I?"))

    config = config_of()
    graph = agent(four.saver, [made(four, act)], [call(w, w) for w in ("good", "bad", "ask")], handle_tool_errors=True)
    delayed(four, slow, "insert_call_end")
    four.invoke(graph, {"messages": ["go"]}, config)
    report = four.call("recover", thread_of(config))
    ended = (report.unapplied, report.failed, report.interrupted, report.unknown)
    assert [[c.call_id for c in calls] for calls in ended] == [["good"], ["bad"], ["ask"], []]


# --- their questions


def pausing(
    four: Flavoured,
    act: Callable[[str], Any],
    pause: Callable[[str], float],
    ready: Callable[[str], bool] = lambda what: True,
) -> BaseTool:
    """A tool that takes its time before it acts, and waits until it may."""

    def waits(what: str) -> Any:
        threading.Event().wait(pause(what))
        while not ready(what):
            threading.Event().wait(0.001)
        return act(what)

    async def awaits(what: str) -> Any:
        await asyncio.sleep(pause(what))
        while not ready(what):
            await asyncio.sleep(0.001)
        return act(what)

    given: Any = {"coroutine": awaits} if four.is_async else {"func": waits}
    return StructuredTool.from_function(**given, name="act", description="acts")


@pytest.mark.parametrize("by_id", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_each_question_gets_its_own_answer(four: Flavoured, seed: int, by_id: float) -> None:
    """Whatever the calls' timing, which is another one in each run, and however many questions each of them has."""
    config, chance = config_of(), random.Random(seed)
    questions = {name: chance.randint(0, 3) for name in ("c1", "c2", "c3", "c4")}

    def act(what: str) -> str:
        return f"{what}: {[interrupt(f'{what} {n}?') for n in range(questions[what])]}"

    tool = pausing(four, act, lambda what: chance.random() / 20)
    graph = agent(
        four.saver, [], [call(name, name) for name in questions], node=ToolNode([tool], **ReplayGuard("fail").wrappers)
    )
    found, seen = four.invoke(graph, {"messages": ["go"]}, config), list[str]()
    while "__interrupt__" in found:
        (asked,) = found["__interrupt__"]
        seen.append(asked.value)
        answer = f"yes, {asked.value}"
        found = four.invoke(graph, Command(resume={asked.id: answer} if chance.random() < by_id else answer), config)
    expected = {name: [f"{name} {n}?" for n in range(number)] for name, number in questions.items()}
    assert sorted(seen) == sorted(question for asked in expected.values() for question in asked)
    assert results(found) == [f"{name}: {[f'yes, {q}' for q in asked]}" for name, asked in expected.items()]


@pytest.mark.parametrize("order", [["ask", "pay"], ["pay", "ask"]])
@pytest.mark.parametrize("happened", [False, True])
def test_the_guards_own_question_gets_its_own_answer(four: Flavoured, order: list[str], happened: bool) -> None:
    """Of one call that was cut off the guard asks, and another one asks something itself."""

    class Killed(BaseException):
        pass

    config, made_calls, chance = config_of(), list[str](), random.Random(7)

    def act(what: str) -> str:
        made_calls.append(what)
        if len(made_calls) <= 2:
            raise Killed if what == "pay" else OSError("no line")
        return f"{what} {interrupt('may I?')}" if what == "ask" else "paid now"

    def pause(what: str) -> float:
        return chance.random() / 20

    tool = pausing(four, act, pause, lambda what: what == "ask" or "ask" in made_calls)
    node = ToolNode([tool], handle_tool_errors=False, **ReplayGuard("ask").wrappers)
    graph = agent(four.saver, [], [call(name, name) for name in order], node=node)
    with pytest.raises((Killed, OSError)):
        four.invoke(graph, {"messages": ["go"]}, config)
    answers = {"may I?": "yes", "pay": {"happened": happened, "result": "paid before" if happened else None}}
    found, seen = four.invoke(graph, None, config), list[str]()
    while "__interrupt__" in found:
        (asked,) = found["__interrupt__"]
        seen.append(asked.value if isinstance(asked.value, str) else asked.value["call_id"])
        found = four.invoke(graph, Command(resume=answers[seen[-1]]), config)
    assert sorted(seen) == ["may I?", "pay"]
    expected = {"ask": "ask yes", "pay": "paid before" if happened else "paid now"}
    assert results(found) == [expected[name] for name in order]
    assert made_calls.count("pay") == (1 if happened else 2)


def test_a_step_that_is_tried_again_has_its_answers_again(four: Flavoured) -> None:
    config, tries = config_of(), list[int]()

    def act(what: str) -> str:
        said = f"{what} {interrupt('may I?')}"
        tries.append(1)
        if len(tries) == 1:
            raise OSError("no line")
        return said

    node = ToolNode([made(four, act)], handle_tool_errors=False, **ReplayGuard("fail").wrappers)
    asks = AIMessage("", tool_calls=[call("this", "c1")])
    builder = StateGraph(MessagesState).add_node(
        "tools", node, retry_policy=RetryPolicy(retry_on=OSError, initial_interval=0.001)
    )
    graph = builder.add_edge(START, "tools").compile(checkpointer=four.saver)
    four.invoke(graph, {"messages": [asks]}, config)
    assert results(four.invoke(graph, Command(resume="yes"), config)) == ["this yes"]
    assert len(tries) == 2


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
    assert found["messages"][-1].content == "['1', 'alive'] 4"


def test_a_synchronous_call_does_not_wait_for_the_loop_that_it_holds_up(backend: Backend) -> None:
    """An asynchronous node has calls made in both ways at once, and a synchronous one fails."""
    config, begun, done = config_of(), asyncio.Event(), list[str]()

    def act(what: str) -> str:
        raise OSError("no line")

    async def aact(what: str) -> str:
        begun.set()
        await asyncio.sleep(LONG)
        done.append(what)
        return what

    tool = StructuredTool.from_function(func=act, coroutine=aact, name="act", description="acts")
    tools = ToolNode([tool], handle_tool_errors=False, **ReplayGuard("fail").wrappers)

    async def node(state: MessagesState) -> Any:
        slow = asyncio.create_task(tools.ainvoke({"messages": [AIMessage("", tool_calls=[call("slow", "c1")])]}))
        await begun.wait()
        with pytest.raises(OSError, match="no line"):
            tools.invoke({"messages": [AIMessage("", tool_calls=[call("quick", "c2")])]})
        return await slow

    async def main() -> None:
        async with LedgerSaver(backend.url) as saver:
            graph = StateGraph(MessagesState).add_node(node).add_edge(START, "node").compile(checkpointer=saver)
            assert results(await graph.ainvoke({"messages": ["go"]}, config)) == ["slow"]

    asyncio.run(main())
    assert done == ["slow"]


@pytest.mark.parametrize("flavour", ["async"])
def test_a_refusal_waits_for_the_calls_beside_it(four: Flavoured) -> None:
    config, done = config_of(), list[str]()
    tools = tools_of(four, lambda what: done.append(what) or "done", lambda what: what, Moments())
    calls = [call("quick", "c1"), call("other", "c1"), call("slow", "c2"), call("quick", "c3")]
    with pytest.raises(InvalidInput, match="several calls of one step"):
        four.invoke(agent(four.saver, [], calls, node=tools), {"messages": ["go"]}, config)
    assert done == ["slow"]
    assert four.call("recover", thread_of(config)).unknown == ()


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


@pytest.mark.parametrize("flavour", ["sync"])
def test_calls_in_threads_of_a_call_are_not_beside_it(four: Flavoured) -> None:
    """Neither the thread knows of the call around, nor does the graph in it keep checkpoints."""
    config, guards = config_of(), ReplayGuard("fail").wrappers

    def fail(what: str) -> str:
        raise OSError("no line")

    inner = StateGraph(MessagesState).add_node(
        "inside", ToolNode([made(four, fail)], handle_tool_errors=False, **guards)
    )
    within = inner.add_edge(START, "inside").compile(checkpointer=False)
    given = {"messages": [AIMessage("", tool_calls=[call("this", "i1")])]}

    def act(what: str, config: RunnableConfig) -> str:
        with ThreadPoolExecutor() as pool:
            return str(pool.submit(within.invoke, given, config).result())

    tool = StructuredTool.from_function(func=act, name="act", description="acts")
    graph = agent(four.saver, [], [call("outer", "c1")], node=ToolNode([tool], handle_tool_errors=False, **guards))
    with pytest.raises(OSError, match="no line"):
        four.invoke(graph, {"messages": ["go"]}, config)


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
            while [c.status for c in await saver.afind_calls(thread_of(config), "c2")] != ["failed"]:
                await asyncio.sleep(0.001)
            await asyncio.sleep(LONG)
            assert not running.done()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            report = await saver.arecover(thread_of(config))
            # which of the two it is goes by LangChain's version
            assert [c.call_id for c in (*report.cancelled, *report.unknown)] == ["c1"]
            assert [c.call_id for c in report.failed] == ["c2"]

    asyncio.run(main())
