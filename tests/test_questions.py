"""Questions of guarded calls in the same step: whoever asks when, each has its own answer, and is asked once."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import StructuredTool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt

from langgraph_ledger import ReplayGuard
from tests.direct import shared_backend
from tests.four_ways import Flavoured
from tests.recovery.stage import agent, call, config_of
from tests.test_recovery import thread_of
from tests.test_side_by_side import results

backend = shared_backend
LATER = 0.05
"""Seconds: what is to happen later than something else waits so long, if nothing tells when that has happened."""


def ordered(four: Flavoured, act: Callable[[str], Any], late: Callable[[str], bool], **options: Any) -> ToolNode:
    """Guarded tools of which some act later than others."""

    def acts(what: str) -> Any:
        if late(what):
            threading.Event().wait(LATER)
        return act(what)

    async def aacts(what: str) -> Any:
        if late(what):
            await asyncio.sleep(LATER)
        return act(what)

    given: Any = {"coroutine": aacts} if four.is_async else {"func": acts}
    tool = StructuredTool.from_function(**given, name="act", description="acts")
    return ToolNode([tool], **options, **ReplayGuard("ask").wrappers)


def asking_after(four: Flavoured, tools: ToolNode, *names: str) -> Any:
    """A graph whose node has these calls made, and then asks something itself."""

    def node(state: MessagesState) -> Any:
        return {"messages": [*tools.invoke(state)["messages"], interrupt("and?")]}

    async def anode(state: MessagesState) -> Any:
        return {"messages": [*(await tools.ainvoke(state))["messages"], interrupt("and?")]}

    def model(state: MessagesState) -> Any:
        return {"messages": [AIMessage("", tool_calls=[call(name, name) for name in names])]}

    builder = StateGraph(MessagesState).add_node("model", model).add_node("tools", anode if four.is_async else node)
    return builder.add_edge(START, "model").add_edge("model", "tools").compile(checkpointer=four.saver)


def answered(
    four: Flavoured, graph: Any, config: Any, by_id: Callable[[str], bool] = lambda question: False, **given: Any
) -> tuple[list[str], Any]:
    """The questions that were asked, and what the graph made of an answer to each."""
    found, seen = four.invoke(graph, given or {"messages": ["go"]}, config), list[str]()
    while "__interrupt__" in found and len(seen) < 10:
        (asked,) = found["__interrupt__"]
        seen.append(asked.value)
        answer = f"yes, {asked.value}"
        found = four.invoke(graph, Command(resume={asked.id: answer} if by_id(asked.value) else answer), config)
    return seen, found


@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("by_id", [False, True])
def test_calls_one_after_the_other(four: Flavoured, by_id: bool) -> None:
    """The first call asks once more while the second one, which has asked before, has not begun."""
    config, questions = config_of(max_concurrency=1), {"c1": 2, "c2": 1}

    def act(what: str) -> str:
        return f"{what} {[interrupt(f'{what} {n}?') for n in range(questions[what])]}"

    tools = ordered(four, act, lambda what: False)
    seen, found = answered(
        four, agent(four.saver, [], [call("c1", "c1"), call("c2", "c2")], node=tools), config, lambda question: by_id
    )
    assert seen == ["c1 0?", "c1 1?", "c2 0?"]
    assert results(found) == ["c1 ['yes, c1 0?', 'yes, c1 1?']", "c2 ['yes, c2 0?']"]


@pytest.mark.parametrize("by_id", [False, True])
def test_a_call_that_does_not_ask_again(four: Flavoured, by_id: bool) -> None:
    """Nobody gets its answer, and the others get theirs."""
    config, runs = config_of(), list[str]()

    def act(what: str) -> Any:
        runs.append(what)
        return "quiet" if what == "c1" and runs.count("c1") > 1 else interrupt(f"{what}?")

    tools = ordered(four, act, lambda what: what == "c2")
    graph = agent(four.saver, [], [call("c1", "c1"), call("c2", "c2")], node=tools)
    seen, found = answered(four, graph, config, lambda question: by_id)
    assert seen == ["c1?", "c2?"]
    assert results(found) == ["quiet", "yes, c2?"]


def test_a_question_has_the_name_that_its_answer_needs(four: Flavoured) -> None:
    """It was asked before the answer to another one was taken, which counts for the name."""
    config, runs = config_of(), list[str]()

    def late(what: str) -> bool:
        runs.append(what)
        return what == ("c3" if runs.count(what) == 1 else "c2")

    tools = ordered(four, lambda what: interrupt(f"{what}?"), late)
    graph = agent(four.saver, [], [call(name, name) for name in ("c1", "c2", "c3")], node=tools)
    seen, found = answered(four, graph, config, lambda question: len(runs) > 6)
    assert sorted(seen) == ["c1?", "c2?", "c3?"]
    assert results(found) == [f"yes, {name}?" for name in ("c1", "c2", "c3")]


def test_all_answers_are_kept_for_a_question_of_the_node(four: Flavoured) -> None:
    """The last one to take its answer is one that had it before: LangGraph would keep the answers up to that one."""
    config, runs = config_of(), list[str]()

    def late(what: str) -> bool:
        runs.append(what)
        return what == ("c2" if runs.count(what) == 1 else "c1")

    def act(what: str) -> Any:
        found = interrupt(f"{what}?")
        if what == "c1" and runs.count("c1") == 2:
            raise OSError("no line")
        return found

    tools = ordered(four, act, late, handle_tool_errors=True)
    seen, found = answered(four, asking_after(four, tools, "c1", "c2"), config)
    assert seen == ["c1?", "c2?", "and?"]
    assert [m.content for m in found["messages"][-3:]] == ["yes, c1?", "yes, c2?", "yes, and?"]


@pytest.mark.parametrize("names", [["c1"], ["c1", "c2"]])
def test_a_call_that_asks_more_after_the_node_has_asked(four: Flavoured, names: list[str]) -> None:
    """It failed, and is made again: the answer to the node is none of its own."""
    config, runs = config_of(), list[str]()

    def act(what: str) -> Any:
        runs.append(what)
        if what == "c2":
            return "done"
        found = [interrupt("first?")]
        if runs.count("c1") == 2:
            raise OSError("no line")
        return str([*found, interrupt("second?")])

    tools = ordered(four, act, lambda what: False, handle_tool_errors=True)
    seen, found = answered(four, asking_after(four, tools, *names), config)
    assert seen == ["first?", "and?", "second?"]
    assert found["messages"][-1].content == "yes, and?"
    assert found["messages"][-1 - len(names)].content == "['yes, first?', 'yes, second?']"


class Killed(BaseException):
    pass


@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("first", ["c1", "c2"])
def test_the_guards_questions_about_two_calls(four: Flavoured, first: str) -> None:
    """Which of them it asks first is another one in each run."""
    config, runs, together = config_of(), list[str](), threading.Barrier(2)
    turns = [first]

    def act(what: str) -> Any:
        runs.append(what)
        together.wait(30)
        raise Killed

    tools = ordered(four, act, lambda what: False)
    guarded: Any = tools._wrap_tool_call

    def in_turn(request: Any, execute: Any) -> Any:
        if turns[-1] != request.tool_call["id"]:
            threading.Event().wait(LATER)
        return guarded(request, execute)

    tools._wrap_tool_call = in_turn
    graph = agent(four.saver, [], [call("c1", "c1"), call("c2", "c2")], node=tools)
    with pytest.raises(Killed):
        four.invoke(graph, {"messages": ["go"]}, config)
    found, seen = four.invoke(graph, None, config), list[str]()
    while "__interrupt__" in found:
        (asked,) = found["__interrupt__"]
        seen.append(asked.value["call_id"])
        turns.append("c2" if seen[-1] == "c1" else "c1")
        found = four.invoke(graph, Command(resume={"happened": True, "result": f"{seen[-1]} was paid"}), config)
    assert sorted(seen) == ["c1", "c2"]
    assert results(found) == ["c1 was paid", "c2 was paid"]
    records = [four.call("find_calls", thread_of(config), name)[0] for name in ("c1", "c2")]
    assert [(record.status, record.attempts) for record in records] == [("completed", 1)] * 2


@pytest.mark.parametrize("names", [["c1"], ["c1", "c2"]])
def test_the_guards_question_about_a_call_that_was_answered(four: Flavoured, names: list[str]) -> None:
    """It does not take the answer of the call, which is made again and has it then."""
    config, kills, runs = config_of(), [True], list[str]()

    def late(what: str) -> bool:
        runs.append(what)
        return what == ("c2" if runs.count(what) == 1 else "c1")  # by then the other one has an end on record

    def act(what: str) -> Any:
        found = interrupt(f"{what}?")
        if what == "c1" and kills:
            kills.clear()
            raise Killed
        return found

    tools = ordered(four, act, late)
    graph = agent(four.saver, [], [call(name, name) for name in names], node=tools)
    (asked,) = four.invoke(graph, {"messages": ["go"]}, config)["__interrupt__"]
    with pytest.raises(Killed):
        four.invoke(graph, Command(resume=f"yes, {asked.value}"), config)
    found, seen = four.invoke(graph, None, config), [asked.value]
    while "__interrupt__" in found:
        (asked,) = found["__interrupt__"]
        assert "problem" not in asked.value
        seen.append(asked.value if isinstance(asked.value, str) else asked.value["name"])
        answer = {"happened": False} if seen[-1] == "act" else f"yes, {seen[-1]}"
        found = four.invoke(graph, Command(resume=answer), config)
    assert sorted(seen) == sorted(["act", *(f"{name}?" for name in names)])
    assert results(found) == [f"yes, {name}?" for name in names]


def test_a_question_of_a_graph_within_comes_after_those_of_the_task(four: Flavoured) -> None:
    """One answer is for one question, wherever it is asked."""
    config, runs = config_of(), list[str]()
    within = StateGraph(MessagesState).add_node("ask", lambda state: {"messages": [interrupt("within?")]})
    graph_within = within.add_edge(START, "ask").compile()

    def late(what: str) -> bool:
        runs.append(what)
        return what == ("direct" if runs.count(what) == 1 else "nested")

    def act(what: str) -> Any:
        return interrupt("direct?")

    def acts(what: str) -> Any:
        if late(what):
            threading.Event().wait(LATER)
        return act(what) if what == "direct" else graph_within.invoke({"messages": []})["messages"][-1].content

    async def aacts(what: str) -> Any:
        if late(what):
            await asyncio.sleep(LATER)
        return act(what) if what == "direct" else (await graph_within.ainvoke({"messages": []}))["messages"][-1].content

    given: Any = {"coroutine": aacts} if four.is_async else {"func": acts}
    tool = StructuredTool.from_function(**given, name="act", description="acts")
    tools = ToolNode([tool], **ReplayGuard("ask").wrappers)
    graph = agent(four.saver, [], [call("nested", "c1"), call("direct", "c2")], node=tools)
    seen, found = answered(four, graph, config)
    assert seen == ["direct?", "within?"]
    assert results(found) == ["yes, within?", "yes, direct?"]
