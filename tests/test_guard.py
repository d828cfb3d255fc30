"""No call twice: what a replayed node gets from the log, and what is done about a call that may have happened."""

import asyncio
import operator
import re
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, RetryPolicy, Send, interrupt

from langgraph_ledger import CallRecord, LedgerError, LedgerSaver, ReplayGuard, UnknownCall, aonce, hold, once
from langgraph_ledger.calls import Call, Spot, record_end
from langgraph_ledger.flow import adrive, drive
from langgraph_ledger.operations.calls import COMPLETED, RESOLVED
from tests.direct import shared_backend
from tests.four_ways import Backend, Flavoured
from tests.recovery.stage import agent, call, config_of, entries, kinds, made, same
from tests.test_crash import crashes
from tests.test_recovery import crash, thread_of
from tests.test_tool_log import in_another_thread

__all__ = ["crash", "crashes"]

backend = shared_backend
policies = pytest.mark.parametrize("policy", ["ask", "retry", "fail"])


def guarded(four: Flavoured, act: Callable[[str], Any], policy: str, ids: Any = ("c1",), **tools: Any) -> Any:
    node = ToolNode([made(four, act, "pay")], **ReplayGuard(policy, tools=tools).wrappers)  # type: ignore[arg-type]
    return agent(four.saver, [], [call(i, i, "pay") for i in ids], node=node)


def results(found: Any) -> list[Any]:
    return [m.content for m in found["messages"] if isinstance(m, ToolMessage)]


# --- tool calls


@policies
def test_a_completed_call_is_not_made_again(four: Flavoured, policy: str) -> None:
    made_calls: list[str] = []

    def pay(what: str) -> str:
        made_calls.append(what)
        return f"{what} {interrupt('sure?')}" if what == "c2" else f"{what} paid"

    config = config_of()
    graph = guarded(four, pay, policy, ["c1", "c2"])
    four.invoke(graph, {"messages": ["go"]}, config)
    assert results(four.invoke(graph, Command(resume="yes"), config)) == ["c1 paid", "c2 yes"]
    assert sorted(made_calls) == ["c1", "c2", "c2"]


def test_the_same_id_in_another_step_is_another_call(four: Flavoured) -> None:
    made_calls: list[str] = []
    config = config_of()
    graph = guarded(four, lambda what: made_calls.append(what) or what, "ask")
    for _ in range(2):
        four.invoke(graph, {"messages": ["go"]}, config)
    assert made_calls == ["c1", "c1"]


def test_fail(four: Flavoured, crash: Callable[..., Any]) -> None:
    config, made_calls = crash(), []
    graph = guarded(four, lambda what: made_calls.append(what) or what, "fail")
    with pytest.raises(UnknownCall, match=r"saver\.resolve_call\(.*happened=True, result=") as unknown:
        four.invoke(graph, None, config)
    assert made_calls == []
    (given,) = re.findall(r"saver\.resolve_call\((.*), happened=True", str(unknown.value))
    thread, call_id, task_id = re.fullmatch(r"'(.*)', call_id='(.*)', task_id='(.*)'", given).groups()  # type: ignore[union-attr]
    four.call("resolve_call", thread, call_id=call_id, task_id=task_id, happened=False)
    assert results(four.invoke(graph, None, config)) == ["c1"]
    assert made_calls == ["c1"]


def test_retry(four: Flavoured, crash: Callable[..., Any]) -> None:
    config = crash()
    graph = guarded(four, same, "fail", pay="retry")
    assert results(four.invoke(graph, None, config)) == ["c1"]
    (found,) = four.call("find_calls", thread_of(config), "c1")
    assert (found.status, found.attempts) == ("completed", 2)
    assert four.call("recover", thread_of(config)).unknown == ()


@pytest.mark.parametrize("happened", [True, False])
def test_ask(four: Flavoured, crash: Callable[..., Any], happened: bool) -> None:
    """The tool asks something itself, whose answer must not be mixed up with the guard's."""
    config, made_calls = crash(), []

    def pay(what: str) -> str:
        made_calls.append(what)
        return f"{what} {interrupt('how?')}"

    graph = guarded(four, pay, "ask")
    four.invoke(graph, None, config)
    (question,) = four.call("recover", thread_of(config)).interrupts
    assert question.value["name"] == "pay"
    assert question.value["arguments"] == {"what": "c1"}
    assert made_calls == []
    found = four.invoke(graph, Command(resume={"happened": happened, "result": "paid before"}), config)
    if happened:
        assert results(found) == ["paid before"]
        assert made_calls == []
        return
    assert made_calls == ["c1"]
    assert results(four.invoke(graph, Command(resume="in cash"), config)) == ["c1 in cash"]
    assert made_calls == ["c1", "c1"]
    (call_record,) = four.call("find_calls", thread_of(config), "c1")
    assert (call_record.status, call_record.attempts) == ("completed", 3)


@pytest.mark.parametrize("happened", [True, False])
def test_ask_twice(four: Flavoured, crash: Callable[..., Any], happened: bool) -> None:
    """What was answered about the first attempt says nothing about the second."""

    class Killed(BaseException):
        pass

    def pay(what: str) -> str:
        raise Killed

    config = crash()
    graph = guarded(four, pay, "ask")
    four.invoke(graph, None, config)
    with pytest.raises(Killed):
        four.invoke(graph, Command(resume={"happened": False}), config)
    graph = guarded(four, lambda what: f"{what} {interrupt('how?')}", "ask")
    assert results(four.invoke(graph, None, config)) == []
    assert len(four.call("recover", thread_of(config)).interrupts) == 1
    if happened:
        assert results(four.invoke(graph, Command(resume={"happened": True, "result": "paid"}), config)) == ["paid"]
        return
    (own,) = four.invoke(graph, Command(resume={"happened": False}), config)["__interrupt__"]
    assert own.value == "how?"
    assert results(four.invoke(graph, Command(resume="in cash"), config)) == ["c1 in cash"]


def test_an_end_that_comes_after_the_answer(four: Flavoured, crash: Callable[..., Any]) -> None:
    """A process that was taken for dead tells what came of its attempt, while the other attempt has a question."""
    config = crash()
    graph = guarded(four, lambda what: f"{what} {interrupt('how?')}", "ask")
    four.invoke(graph, None, config)
    (first,) = four.call("find_calls", thread_of(config), "c1")
    (own,) = four.invoke(graph, Command(resume={"happened": False}), config)["__interrupt__"]
    assert own.value == "how?"
    late(four, config, first, COMPLETED, {"result": "paid by the first one"})
    assert results(four.invoke(graph, Command(resume="in cash"), config)) == ["c1 in cash"]


def test_an_end_outranks_what_was_found_out(four: Flavoured) -> None:
    """Somebody looks, and finds nothing yet; the call ends; and then it is noted that it has not happened."""
    config = config_of()
    four.invoke(guarded(four, same, "ask"), {"messages": ["go"]}, config)
    (found,) = four.call("find_calls", thread_of(config), "c1")
    late(four, config, found, RESOLVED, {}, happened=False, source="resolve_call")
    assert len(entries(four, config)) == 3
    assert four.call("find_calls", thread_of(config), "c1") == [found]


def late(four: Flavoured, config: Any, record: CallRecord, kind: str, values: Any, **facts: Any) -> None:
    """Stores an end of an attempt, when others are there."""
    spot = Spot(thread_of(config), record.agent_id, record.task_id, None, None)
    call = Call(spot, record.call_id, {}, attempt_id=record.attempt_id)
    flow, driver = record_end(four.saver._ledger, four.saver.serde, call, kind, values, **facts), four.saver._driver
    if four.runner is None:
        drive(flow, driver)
    else:
        four.runner.run(adrive(flow, driver))


@pytest.mark.parametrize("by_id", [False, True])
def test_an_answer_that_is_none(four: Flavoured, crash: Callable[..., Any], by_id: bool) -> None:
    """It is asked for again, and is not taken for the answer to a question of the tool's own."""
    config = crash()
    graph = guarded(four, lambda what: f"{what} {interrupt('how?')}", "ask")

    def answered(question: Any, answer: Any) -> Any:
        return four.invoke(graph, Command(resume={question.id: answer} if by_id else answer), config)

    (question,) = four.invoke(graph, None, config)["__interrupt__"]
    asked = question
    for answer in ("perhaps", True, {"happened": "true"}):
        (asked,) = answered(asked, answer)["__interrupt__"]
        problem = asked.value["problem"]
        assert asked.value == {**question.value, "problem": problem}
        assert repr(answer) in problem
        assert "Command(resume={'happened': True" in problem.replace('"', "'")
    (own,) = answered(asked, {"happened": False})["__interrupt__"]
    assert own.value == "how?"
    assert results(answered(own, "in cash")) == ["c1 in cash"]


def test_a_result_that_was_not_kept(open_four: Callable[..., Flavoured]) -> None:
    """It is known that the call happened, and not what came of it."""
    four, config = open_four(log_limit=10), config_of()

    def pay(what: str) -> str:
        return f"{what} {interrupt('sure?')}" if what == "c2" else f"{what} paid"

    graph = guarded(four, pay, "fail", ["c1", "c2"])
    four.invoke(graph, {"messages": ["go"]}, config)
    with pytest.raises(UnknownCall, match="was not kept"):
        four.invoke(graph, Command(resume="yes"), config)


@pytest.mark.parametrize("kind", ["command", "list", "text"])
def test_what_a_call_gave_is_given_again(four: Flavoured, kind: str) -> None:
    """A command, several of them, or what LangChain makes a message of."""
    config, made_calls = config_of(), list[str]()

    def act(what: str) -> Any:
        made_calls.append(what)
        if what == "c2":
            return interrupt("sure?")
        message = ToolMessage(f"{what} {len(made_calls)}", tool_call_id=what)
        done = Command(update={"messages": [message]})
        return {"command": done, "list": [done], "text": message}[kind]

    graph = guarded(four, act, "fail", ["c1", "c2"])
    four.invoke(graph, {"messages": ["go"]}, config)
    assert results(four.invoke(graph, Command(resume="yes"), config)) in (["c1 1", "yes"], ["c1 2", "yes"])
    assert made_calls.count("c1") == 1


def test_a_call_that_told_its_graph_how_to_go_on(four: Flavoured, nothing_saved: Callable[..., None]) -> None:
    """A graph within the tool ends with a command to its parent, which passes through the tool as an error does."""

    def hand_over(state: MessagesState) -> Any:
        made_calls.append("c1")
        message = ToolMessage("handed over", tool_call_id="c1")
        return Command(graph=Command.PARENT, update={"messages": [message]})

    def act(what: str) -> Any:
        return inner.invoke({"messages": []})

    async def aact(what: str) -> Any:
        return await inner.ainvoke({"messages": []})

    config, made_calls = config_of(), list[str]()
    inner = StateGraph(MessagesState).add_node(hand_over).add_edge(START, "hand_over").compile()
    tool = StructuredTool.from_function(
        act if not four.is_async else None, aact if four.is_async else None, "pay", description="pays"
    )
    node = ToolNode([tool], **ReplayGuard("fail").wrappers)
    graph = agent(four.saver, [], [call("c1", "c1", "pay")], node=node)
    nothing_saved(graph, {"messages": ["go"]}, config)
    assert [kind for kind, _ in kinds(four, config)] == ["tool_call_started", "tool_call_completed"]
    assert begin(four, graph, config) == ["handed over"]
    assert made_calls == ["c1"]


@pytest.mark.parametrize(("result", "content"), [(None, ""), (5, "5"), ("paid", "paid")])
def test_what_was_found_out_becomes_a_message(four: Flavoured, result: Any, content: str) -> None:
    class Killed(BaseException):
        pass

    def pay(what: str) -> str:
        raise Killed

    config = config_of()
    graph = guarded(four, pay, "fail")
    with pytest.raises(Killed):
        four.invoke(graph, {"messages": ["go"]}, config)
    four.call("resolve_call", thread_of(config), "c1", happened=True, result=result)
    message = four.invoke(graph, None, config)["messages"][-1]
    assert (message.content, message.name, message.tool_call_id) == (content, "pay", "c1")


def test_an_id_that_is_a_number(four: Flavoured) -> None:
    """ToolNode takes calls by themselves too, and there it takes any id."""
    config, made_calls, problems = config_of(), list[str](), [OSError("no line")]
    tools = ToolNode([made(four, lambda what: made_calls.append(what) or what)], **ReplayGuard("fail").wrappers)

    def act(state: MessagesState) -> Any:
        return ended(tools.invoke([{**call("a", "c1"), "id": 5}]))

    async def aact(state: MessagesState) -> Any:
        return ended(await tools.ainvoke([{**call("a", "c1"), "id": 5}]))

    def ended(found: Any) -> Any:
        if problems:
            raise problems.pop()
        return found

    builder = StateGraph(MessagesState).add_node("act", aact if four.is_async else act).add_edge(START, "act")
    graph = builder.compile(checkpointer=four.saver)
    with pytest.raises(OSError, match="no line"):
        four.invoke(graph, {"messages": ["go"]}, config)
    assert results(four.invoke(graph, None, config)) == ["a"]
    assert made_calls == ["a"]
    assert [found.status for found in four.call("find_calls", thread_of(config), 5)] == ["completed"]


@pytest.mark.parametrize("number", ["", "it"])
def test_an_id_of_two_calls_of_one_step_is_refused(four: Flavoured, number: str) -> None:
    """None of them is made: after a crash nobody could say which one that was, and whose result there is."""
    config, made_calls = config_of(), list[str]()
    node = ToolNode([made(four, lambda what: made_calls.append(what) or what)], **ReplayGuard("fail").wrappers)
    graph = agent(four.saver, [], [call("a", number), call("b", number)], node=node)
    for given in ({"messages": ["go"]}, None):
        with pytest.raises(LedgerError, match="several calls of one step"):
            four.invoke(graph, given, config)
    assert made_calls == []


def test_calls_that_share_an_id_are_refused_as_one_asks_for_them(four: Flavoured) -> None:
    """A node that calls a guarded tool by itself, by the same id, with something else: no message has both."""
    config, made_calls = config_of(), list[str]()
    node = ToolNode([made(four, lambda what: made_calls.append(what) or what)], **ReplayGuard("fail").wrappers)

    def act(state: MessagesState) -> Any:
        return {"messages": [node.invoke([AIMessage("", tool_calls=[call(what, "it")])])[0] for what in "ab"]}

    async def aact(state: MessagesState) -> Any:
        asked = [[AIMessage("", tool_calls=[call(what, "it")])] for what in "ab"]
        return {"messages": [(await node.ainvoke(messages))[0] for messages in asked]}

    builder = StateGraph(MessagesState).add_node("act", aact if four.is_async else act).add_edge(START, "act")
    with pytest.raises(LedgerError, match="several calls of one step"):
        four.invoke(builder.compile(checkpointer=four.saver), {"messages": ["go"]}, config)
    assert made_calls == ["a"]


def test_a_call_that_failed_is_made_with_other_arguments(four: Flavoured) -> None:
    """By what stands before the guard and sets right what the model got wrong."""
    config, guard, made_calls = config_of(), ReplayGuard("fail"), list[str]()

    def act(what: str) -> str:
        made_calls.append(what)
        if what == "wrong":
            raise OSError("no line")
        return what

    def wrap(request: Any, execute: Any) -> Any:
        try:
            return guard.wrap_tool_call(request, execute)
        except OSError:
            return guard.wrap_tool_call(request.override(tool_call=call("right", "c1")), execute)

    async def awrap(request: Any, execute: Any) -> Any:
        try:
            return await guard.awrap_tool_call(request, execute)
        except OSError:
            return await guard.awrap_tool_call(request.override(tool_call=call("right", "c1")), execute)

    node = ToolNode([made(four, act)], handle_tool_errors=False, wrap_tool_call=wrap, awrap_tool_call=awrap)
    graph = agent(four.saver, [], [call("wrong", "c1")], node=node)
    assert results(four.invoke(graph, {"messages": ["go"]}, config)) == ["right"]
    assert made_calls == ["wrong", "right"]


def test_an_agent_of_langchain(four: Flavoured) -> None:
    class Model(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **options: Any) -> Any:
            return self

    made_calls: list[str] = []

    def pay(what: str) -> str:
        made_calls.append(what)
        return f"{what} {interrupt('sure?')}" if len(made_calls) == 1 else f"{what} paid"

    messages = [AIMessage("", tool_calls=[call("c1", "c1", "pay")]), AIMessage("done")]
    graph = create_agent(
        Model(messages=iter(messages)),
        [made(four, pay, "pay")],
        middleware=[ReplayGuard().middleware()],
        checkpointer=four.saver,
    )
    config = config_of()
    four.invoke(graph, {"messages": [("user", "go")]}, config)
    assert results(four.invoke(graph, Command(resume="yes"), config)) == ["c1 paid"]
    assert made_calls == ["c1", "c1"]


def test_a_guard_says_what_it_needs(four: Flavoured, open_four: Callable[..., Flavoured]) -> None:
    graph = guarded(Flavoured(InMemorySaver(), four.runner), same, "ask")
    with pytest.raises(LedgerError, match="LedgerSaver"):
        four.invoke(graph, {"messages": ["go"]}, config_of())
    quiet = open_four(log_tools=False)
    with pytest.raises(LedgerError, match="log_tools"):
        four.invoke(guarded(quiet, same, "ask"), {"messages": ["go"]}, config_of())
    with pytest.raises(LedgerError, match="on_unknown"):
        ReplayGuard("perhaps")  # type: ignore[arg-type]
    with pytest.raises(LedgerError, match=r"tools=\{'pay': 'sometimes'\}"):
        ReplayGuard(tools={"pay": "sometimes"})  # type: ignore[dict-item]


# --- a run that begins again with other tasks


@pytest.fixture
def nothing_saved(four: Flavoured, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a graph under durability "exit", and lets its one save fail."""

    def put(*args: Any) -> Any:
        raise OSError("no disk")

    async def aput(*args: Any) -> Any:
        put()

    def run(graph: Any, given: Any, config: Any, error: type[BaseException] = OSError) -> None:
        before = four.get_state(graph, config).values
        with monkeypatch.context() as patched:
            patched.setattr(four.saver, "put", put)
            patched.setattr(four.saver, "aput", aput)
            with pytest.raises(error):
                four.invoke(graph, given, config, durability="exit")
        assert four.get_state(graph, config).values == before

    return run


def test_a_logged_call_answers_one_call(four: Flavoured, nothing_saved: Callable[..., None]) -> None:
    """The model calls by the same id, with the same arguments, in every turn."""
    config, made_calls, turns = config_of(), [], [1]

    def count(what: str) -> str:
        made_calls.append(what)
        return str(len(made_calls))

    def model(state: MessagesState) -> Any:
        if len(results(state)) == turns[0]:
            return {"messages": [AIMessage("done")]}
        return {"messages": [AIMessage("", tool_calls=[call("it", "call_0")])]}

    builder = StateGraph(MessagesState).add_node("model", model).add_edge(START, "model").add_edge("tools", "model")
    builder.add_node("tools", ToolNode([made(four, count)], **ReplayGuard("fail").wrappers))
    builder.add_conditional_edges("model", tools_condition)
    graph = builder.compile(checkpointer=four.saver)
    for turns[0] in (1, 2):
        nothing_saved(graph, {"messages": ["go"]}, config)
        assert len(made_calls) == turns[0]
    turns[0] = 3
    found = four.invoke(graph, {"messages": ["go"]}, config, durability="exit")
    assert results(found) == ["1", "2", "3"]
    assert len(made_calls) == 3


def test_a_question_of_another_task_is_asked(four: Flavoured, nothing_saved: Callable[..., None]) -> None:
    """What a run that stored nothing left unknown stays so for the next one, until there is an answer."""

    class Killed(BaseException):
        pass

    config, made_calls = config_of(), list[str]()

    def pay(what: str) -> str:
        made_calls.append(what)
        raise Killed

    graph = guarded(four, pay, "ask")
    nothing_saved(graph, {"messages": ["go"]}, config, Killed)
    four.invoke(graph, {"messages": ["go"]}, config, durability="exit")
    found = four.invoke(graph, Command(resume={"happened": True, "result": "paid"}), config, durability="exit")
    assert results(found) == ["paid"]
    assert made_calls == ["c1"]


def calling(four: Flavoured, act: Callable[[str], Any], calls: Any, policy: Any = "fail", name: str = "tools") -> Any:
    """A graph that makes these guarded calls, and makes them again if one raises OSError twice."""
    node = ToolNode([made(four, act)], handle_tool_errors=False, **ReplayGuard(policy).wrappers)
    builder = StateGraph(MessagesState).add_node("model", lambda state: {"messages": [AIMessage("", tool_calls=calls)]})
    builder.add_node(name, node, retry_policy=RetryPolicy(initial_interval=0.01, max_attempts=2, retry_on=OSError))
    return builder.add_edge(START, "model").add_edge("model", name)


def begin(four: Flavoured, graph: Any, config: Any, durability: str = "exit") -> list[Any]:
    """What the calls of a run that begins with new input give."""
    return results(four.invoke(graph, {"messages": ["go"]}, config, durability=durability))


def within(builder: Any, four: Flavoured, name: str) -> Any:
    """The graph as a node of another one."""
    outer = StateGraph(MessagesState).add_node(name, builder.compile()).add_edge(START, name)
    return outer.compile(checkpointer=four.saver)


@pytest.mark.parametrize("other", ["arguments", "node", "graph around"])
def test_a_call_that_differs_is_another_one(four: Flavoured, nothing_saved: Callable[..., None], other: str) -> None:
    """Its id is the same."""
    config, made_calls = config_of(), list[str]()

    def graph_of(what: str = "a", name: str = "tools", around: str = "around") -> Any:
        builder = calling(four, lambda what: made_calls.append(what) or what, [call(what, "c1")], name=name)
        return within(builder, four, around)

    differs = {"arguments": {"what": "b"}, "node": {"name": "others"}, "graph around": {"around": "elsewhere"}}
    nothing_saved(graph_of(), {"messages": ["go"]}, config)
    assert begin(four, graph_of(**differs[other]), config) == ["b" if other == "arguments" else "a"]
    assert len(made_calls) == 2


def test_a_call_in_a_subgraph_is_answered(four: Flavoured, nothing_saved: Callable[..., None]) -> None:
    config, made_calls = config_of(), list[str]()
    builder = calling(four, lambda what: made_calls.append(what) or f"paid {len(made_calls)}", [call("a", "c1")])
    graph = within(builder, four, "around")
    nothing_saved(graph, {"messages": ["go"]}, config)
    assert begin(four, graph, config) == ["paid 1"]
    assert made_calls == ["a"]


@pytest.mark.parametrize("what", ["tool", "once"])
@pytest.mark.parametrize("beside", [False, True])
def test_a_graph_within_that_keeps_nothing_begins_again(four: Flavoured, what: str, beside: bool) -> None:
    """All of its tasks have other ids then: what counts is the task around them. `beside`: behind a graph that keeps
    checkpoints."""
    config, done, problems = config_of(), list[str](), [OSError("no line")]

    def effect(what: str = "a") -> str:
        done.append(what)
        return "done"

    def stop(state: MessagesState) -> None:
        if problems:
            raise problems.pop()

    def pay(state: MessagesState) -> Any:
        return {"messages": [once("pay", effect)]}

    async def apay(state: MessagesState) -> Any:
        async def aeffect() -> str:
            return effect()

        return {"messages": [await aonce("pay", aeffect)]}

    if what == "tool":
        builder, last = calling(four, effect, [call("a", "c1")]), "tools"
    else:
        builder = StateGraph(MessagesState).add_node("pay", apay if four.is_async else pay).add_edge(START, "pay")
        last = "pay"
    inner = builder.add_node(stop).add_edge(last, "stop").compile(checkpointer=False)
    kept = StateGraph(MessagesState).add_node("first", lambda state: None).add_edge(START, "first").compile()

    def around(state: MessagesState) -> Any:
        if beside:
            kept.invoke(state)
        return inner.invoke(state)

    async def aaround(state: MessagesState) -> Any:
        if beside:
            await kept.ainvoke(state)
        return await inner.ainvoke(state)

    outer = StateGraph(MessagesState).add_node("around", aaround if four.is_async else around)
    graph = outer.add_edge(START, "around").compile(checkpointer=four.saver)
    with pytest.raises(OSError, match="no line"):
        four.invoke(graph, {"messages": ["go"]}, config)
    assert four.invoke(graph, None, config)["messages"][-1].content == "done"
    assert done == ["a"]


def test_what_an_earlier_run_was_told_is_not_asked_again(four: Flavoured, nothing_saved: Callable[..., None]) -> None:
    """The answer came with that run, and nothing of the run was stored: this one has another task."""

    class Killed(BaseException):
        pass

    config, stops = config_of(), ["pay", "after"]

    def stop(where: str) -> None:
        if where in stops[:1]:
            raise Killed(stops.pop(0))

    builder = calling(four, lambda what: stop("pay"), [call("a", "c1")], "ask")
    builder.add_node("after", lambda state: stop("after")).add_edge("tools", "after")
    graph = within(builder, four, "around")
    four.invoke(graph, {"messages": ["go"]}, config, interrupt_before=["around"])
    nothing_saved(graph, None, config, Killed)
    nothing_saved(graph, Command(resume={"happened": True, "result": "paid"}), config, Killed)
    assert stops == []
    assert results(four.invoke(graph, None, config, durability="exit")) == ["paid"]


def test_what_failed_or_is_unknown_does_not_hide_what_is_known(
    four: Flavoured, nothing_saved: Callable[..., None]
) -> None:
    """Three runs that store nothing: in the first one the call fails, in the second one it is cut off, and it happens
    in the third one."""

    class Killed(BaseException):
        pass

    config, problems, made_calls = config_of(), [OSError("no line"), OSError("no line"), Killed()], list[str]()

    def pay(what: str) -> str:
        if problems:
            raise problems.pop(0)
        made_calls.append(what)
        return "paid"

    graph = calling(four, pay, [call("a", "c1")], "retry").compile(checkpointer=four.saver)
    for error in (OSError, Killed, OSError):
        nothing_saved(graph, {"messages": ["go"]}, config, error)
    assert begin(four, calling(four, pay, [call("a", "c1")]).compile(checkpointer=four.saver), config) == ["paid"]
    assert made_calls == ["a"]


def test_a_step_that_is_tried_again_is_answered_again(four: Flavoured, nothing_saved: Callable[..., None]) -> None:
    config, made_calls, problems = config_of(), list[str](), [OSError("no line")] * 3

    def act(what: str) -> str:
        if what == "b" and problems:
            raise problems.pop()
        made_calls.append(what)
        return what

    graph = calling(four, act, [call("a", "c1"), call("b", "c2")]).compile(checkpointer=four.saver)
    nothing_saved(graph, {"messages": ["go"]}, config)
    assert begin(four, graph, config) == ["a", "b"]
    assert problems == []
    assert sorted(made_calls) == ["a", "b"]


@pytest.mark.parametrize("inside", [False, True])
def test_a_step_that_is_stored_has_its_calls_to_itself(four: Flavoured, inside: bool) -> None:
    """Whoever begins anew, instead of going on with that step, makes other calls."""
    config, made_calls, problems = config_of(), list[str](), [OSError("no line")] * 2

    def act(what: str) -> str:
        if what == "b" and problems:
            raise problems.pop()
        made_calls.append(what)
        return what

    builder = calling(four, act, [call("a", "c1"), call("b", "c2")])
    graph = within(builder, four, "around") if inside else builder.compile(checkpointer=four.saver)
    with pytest.raises(OSError, match="no line"):
        begin(four, graph, config, "sync")
    assert made_calls == ["a"]
    assert begin(four, graph, config) == ["a", "b"]
    assert sorted(made_calls) == ["a", "a", "b"]


def test_what_came_before_another_checkpoint_is_over(four: Flavoured, nothing_saved: Callable[..., None]) -> None:
    config, made_calls = config_of(), list[str]()
    graph = guarded(four, lambda what: made_calls.append(what) or what, "fail")
    nothing_saved(graph, {"messages": ["go"]}, config)
    four.invoke(agent(four.saver, [], []), {"messages": ["never mind"]}, config)
    begin(four, graph, config)
    assert made_calls == ["c1", "c1"]


def test_a_run_is_not_answered_by_itself(four: Flavoured) -> None:
    """The steps of a run under durability "exit", of which none is stored, make the same call."""
    config, made_calls = config_of(), list[str]()
    builder = calling(four, lambda what: made_calls.append(what) or f"paid {len(made_calls)}", [call("a", "c1")])
    builder.add_conditional_edges("tools", lambda state: END if len(results(state)) == 2 else "model")
    assert begin(four, builder.compile(checkpointer=four.saver), config) == ["paid 1", "paid 2"]


def test_tasks_may_use_the_same_id(four: Flavoured) -> None:
    """As those of an agent do, which has a task for each call; and so may the steps of a run."""
    config, made_calls = config_of(), list[str]()
    node = ToolNode([made(four, lambda what: made_calls.append(what) or what)], **ReplayGuard("fail").wrappers)

    def split(state: MessagesState) -> Any:
        done = len(results(state))
        return [Send("tools", [call(what, "it")]) for what in "abcd"[done : done + 2]]

    builder = StateGraph(MessagesState).add_node("tools", node)
    builder.add_conditional_edges(START, split, ["tools"]).add_node("next", lambda state: None)
    builder.add_edge("tools", "next").add_conditional_edges("next", split, ["tools"])
    found = four.invoke(builder.compile(checkpointer=four.saver), {"messages": ["go"]}, config)
    assert results(found) == ["a", "b", "c", "d"]
    assert sorted(made_calls) == ["a", "b", "c", "d"]


class Many(TypedDict):
    receipts: Annotated[list[str], operator.add]
    who: str


def payments(
    four: Flavoured,
    pay: Callable[[str], str],
    then: Callable[[str], Any] = str,
    policy: Any = "fail",
    who: Any = "AB",
    **options: Any,
) -> Any:
    """A graph with a node that runs for A and for B at once, and pays once in each."""

    def act(state: Many) -> Any:
        who = state["who"]
        receipt = once("pay", lambda: pay(who), on_unknown=policy)
        then(who)
        return {"receipts": [f"{who}: {receipt}"]}

    async def aact(state: Many) -> Any:
        who = state["who"]

        async def apay() -> str:
            return pay(who)

        receipt = await aonce("pay", apay, on_unknown=policy)
        then(who)
        return {"receipts": [f"{who}: {receipt}"]}

    def split(state: Many) -> Any:
        return [Send("act", {"receipts": [], "who": one}) for one in who]

    builder = StateGraph(Many).add_node("act", aact if four.is_async else act, **options)
    return builder.add_conditional_edges(START, split, ["act"]).compile(checkpointer=four.saver)


def test_one_task_is_not_answered_with_what_another_did(four: Flavoured) -> None:
    config, paid, down = config_of(), [], [True]

    def pay(who: str) -> str:
        if who == "B" and down[0]:
            raise OSError("no line")
        paid.append(who)
        return f"receipt {who}"

    def then(who: str) -> None:
        if down[0]:
            raise OSError("no line")

    graph = payments(four, pay, then)
    with pytest.raises(OSError, match="no line"):
        four.invoke(graph, {"receipts": [], "who": ""}, config)
    down[0] = False
    assert four.invoke(graph, None, config)["receipts"] == ["A: receipt A", "B: receipt B"]
    assert sorted(paid) == ["A", "B"]


@pytest.mark.parametrize("policy", ["fail", "ask"])
def test_what_once_cannot_tell_apart_is_not_known(
    four: Flavoured, nothing_saved: Callable[..., None], policy: str
) -> None:
    """What A did is on record, and B stands where it was: it is not answered by guess."""
    config, paid, given = config_of(), list[str](), {"receipts": [], "who": ""}

    def pay(who: str) -> str:
        paid.append(who)
        return f"receipt {who}"

    nothing_saved(payments(four, pay, who="A"), given, config)
    graph = payments(four, pay, policy=policy, who="B")
    if policy == "ask":
        four.invoke(graph, given, config, durability="exit")
        assert paid == ["A"]
        found = four.invoke(graph, Command(resume={"happened": False}), config, durability="exit")
    else:
        with pytest.raises(UnknownCall, match="once:pay, task"):
            four.invoke(graph, given, config, durability="exit")
        assert paid == ["A"]
        four.call("resolve_call", thread_of(config), "once:pay", happened=False)
        found = four.invoke(graph, None, config, durability="exit")
    assert found["receipts"] == ["B: receipt B"]
    assert paid == ["A", "B"]


def test_what_is_done_after_the_answer_is_unknown_until_it_ends(
    four: Flavoured, backend: Backend, nothing_saved: Callable[..., None]
) -> None:
    """The answer comes with the run that is to ask, and is about what an earlier one did."""

    class Killed(BaseException):
        pass

    config, problems, seen = config_of(), [Killed()], list[str]()

    def look() -> None:
        with LedgerSaver(backend.url) as other:
            seen.extend(found.status for found in other.find_calls(thread_of(config), "once:pay"))

    def effect() -> str:
        if problems:
            raise problems.pop()
        in_another_thread(look)
        return "paid"

    def pay(state: MessagesState) -> Any:
        return {"messages": [once("pay", effect, on_unknown="ask")]}

    async def apay(state: MessagesState) -> Any:
        async def aeffect() -> str:
            return effect()

        return {"messages": [await aonce("pay", aeffect, on_unknown="ask")]}

    builder = StateGraph(MessagesState).add_node("first", lambda state: None).add_edge(START, "first")
    builder.add_node("pay", apay if four.is_async else pay).add_edge("first", "pay")
    graph = within(builder, four, "around")
    four.invoke(graph, {"messages": ["go"]}, config, interrupt_before=["around"])
    nothing_saved(graph, None, config, Killed)
    four.invoke(graph, Command(resume={"happened": False}), config, durability="exit")
    assert seen == ["cancelled", "unknown"]


def test_none_of_several_tasks_is_guessed_about(four: Flavoured, nothing_saved: Callable[..., None]) -> None:
    config, paid, given = config_of(), list[str](), {"receipts": [], "who": ""}
    nothing_saved(payments(four, lambda who: paid.append(who) or who, who="A"), given, config)
    graph = payments(four, lambda who: paid.append(who) or who, policy="ask", who="BC")
    four.invoke(graph, given, config, durability="exit")
    assert paid == ["A"]
    assert len(four.call("recover", thread_of(config)).interrupts) == 2


def test_once_after_a_run_in_which_it_failed(four: Flavoured, nothing_saved: Callable[..., None]) -> None:
    config, paid, given = config_of(), list[str](), {"receipts": [], "who": ""}

    def pay(who: str) -> str:
        raise OSError("no line")

    nothing_saved(payments(four, pay, who="A"), given, config)
    graph = payments(four, lambda who: paid.append(who) or who, who="A")
    assert four.invoke(graph, given, config, durability="exit")["receipts"] == ["A: A"]
    assert paid == ["A"]


def test_a_node_that_is_tried_again_does_it_once(four: Flavoured, nothing_saved: Callable[..., None]) -> None:
    """It was unknown whether an earlier run had done it. What this one has done is known."""

    class Killed(BaseException):
        pass

    config, paid, given, problems = config_of(), list[str](), {"receipts": [], "who": ""}, [OSError("no line")]

    def killed(who: str) -> str:
        raise Killed

    def then(who: str) -> None:
        if problems:
            raise problems.pop()

    nothing_saved(payments(four, killed, who="A"), given, config, Killed)
    again = RetryPolicy(initial_interval=0.01, max_attempts=2, retry_on=OSError)
    graph = payments(four, lambda who: paid.append(who) or who, then, "retry", "A", retry_policy=again)
    assert four.invoke(graph, given, config, durability="exit")["receipts"] == ["A: A"]
    assert (paid, problems) == (["A"], [])


# --- once


def node_of(four: Flavoured, key: str, effect: Callable[[], Any], then: Callable[[], Any], **options: Any) -> Any:
    """A node that does something once, and then something that may stop it."""

    def act(state: MessagesState) -> Any:
        value = once(key, effect, **options)
        return {"messages": [f"{value} {then()}"]}

    async def aeffect() -> Any:
        return effect()

    async def aact(state: MessagesState) -> Any:
        value = await aonce(key, aeffect, **options)
        return {"messages": [f"{value} {then()}"]}

    builder = StateGraph(MessagesState).add_node("act", aact if four.is_async else act).add_edge(START, "act")
    return builder.compile(checkpointer=four.saver)


@policies
def test_once(four: Flavoured, policy: Any) -> None:
    config, done = config_of(), []
    graph = node_of(four, "pay", lambda: done.append(1) or len(done), lambda: interrupt("sure?"), on_unknown=policy)
    four.invoke(graph, {"messages": ["go"]}, config)
    assert four.invoke(graph, Command(resume="yes"), config)["messages"][-1].content == "1 yes"
    assert done == [1]
    four.invoke(graph, {"messages": ["go"]}, config)
    assert four.invoke(graph, Command(resume="yes"), config)["messages"][-1].content == "2 yes", "another step"


def test_what_gives_nothing_is_done_once(four: Flavoured) -> None:
    config, done = config_of(), list[int]()
    graph = node_of(four, "pay", lambda: done.append(1), lambda: interrupt("sure?"))
    four.invoke(graph, {"messages": ["go"]}, config)
    assert four.invoke(graph, Command(resume="yes"), config)["messages"][-1].content == "None yes"
    assert done == [1]


def test_what_raised_is_done_again(four: Flavoured) -> None:
    config, tries = config_of(), []

    def effect() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("no line")
        return "done"

    graph = node_of(four, "pay", effect, lambda: "")
    with pytest.raises(OSError, match="no line"):
        four.invoke(graph, {"messages": ["go"]}, config)
    assert [kind for kind, _ in kinds(four, config)] == ["tool_call_started", "tool_call_failed"]
    (failed,) = four.call("find_calls", thread_of(config), "once:pay")
    assert (failed.error, failed.kept, failed.result) == ("OSError: no line", False, None)
    assert four.invoke(graph, None, config)["messages"][-1].content == "done "


def test_what_asks_first_is_done_with_the_answer(four: Flavoured) -> None:
    config = config_of()
    graph = node_of(four, "pay", lambda: f"paid {interrupt('how?')}", lambda: "")
    four.invoke(graph, {"messages": ["go"]}, config)
    assert [kind for kind, _ in kinds(four, config)] == ["tool_call_started", "tool_call_interrupted"]
    assert four.invoke(graph, Command(resume="in cash"), config)["messages"][-1].content == "paid in cash "


def test_what_was_broken_off_is_not_known(four: Flavoured) -> None:
    class Killed(BaseException):
        pass

    config, tries = config_of(), []

    def effect() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise Killed
        return "done"

    graph = node_of(four, "pay", effect, lambda: "")
    with pytest.raises(Killed):
        four.invoke(graph, {"messages": ["go"]}, config)
    with pytest.raises(UnknownCall, match=r"once:pay.*was cancelled while it ran"):
        four.invoke(graph, None, config)
    (broken,) = four.call("find_calls", thread_of(config), "once:pay")
    assert (broken.status, broken.kept, broken.result) == ("cancelled", False, None)
    assert broken.error.endswith("Killed")
    four.call("resolve_call", thread_of(config), "once:pay", happened=True, result="found paid")
    assert four.invoke(graph, None, config)["messages"][-1].content == "found paid "
    assert tries == [1]


@pytest.mark.parametrize("what", ["tool", "once", "hold"])
def test_what_is_cancelled_while_it_is_put_on_record_was_not_made(backend: Backend, what: str) -> None:
    config, done = config_of(), []

    async def effect(what: str = "") -> str:
        done.append(1)
        return "done"

    async def act(state: MessagesState) -> Any:
        if what == "once":
            return {"messages": [await aonce("pay", effect)]}
        async with hold("file:x"):
            return {"messages": [await effect()]}

    def graph_of(saver: LedgerSaver) -> Any:
        if what == "tool":
            tool = StructuredTool.from_function(coroutine=effect, name="pay", description="pays")
            return agent(saver, [], [call("c1", "c1", "pay")], node=ToolNode([tool], **ReplayGuard("fail").wrappers))
        return StateGraph(MessagesState).add_node(act).add_edge(START, "act").compile(checkpointer=saver)

    async def main() -> None:
        loop, began = asyncio.get_running_loop(), asyncio.Event()

        def trace(when: str, name: str) -> float | None:
            if (when, name) != ("before", "insert_call"):
                return None
            loop.call_soon_threadsafe(began.set)
            return 0.2

        async with LedgerSaver(backend.url) as saver:
            graph = graph_of(saver)
            saver._driver.trace = trace
            running = asyncio.create_task(graph.ainvoke({"messages": ["go"]}, config))
            await began.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            saver._driver.trace = None
            report = await saver.arecover(thread_of(config))
            assert (done, report.unknown, report.cancelled, report.held) == ([], (), (), ())
            assert (await graph.ainvoke(None, config))["messages"][-1].content == "done"
            assert done == [1]

    asyncio.run(main())


def test_a_large_result_is_kept_whole(open_four: Callable[..., Flavoured]) -> None:
    four, config = open_four(log_limit=10, redact=lambda *_: "***"), config_of()
    graph = node_of(four, "pay", lambda: "x" * 5000, lambda: interrupt("sure?"))
    four.invoke(graph, {"messages": ["go"]}, config)
    assert four.invoke(graph, Command(resume="yes"), config)["messages"][-1].content == "x" * 5000 + " yes"


def test_once_says_what_it_needs(four: Flavoured) -> None:
    with pytest.raises(LedgerError, match="inside of a node"):
        once("pay", lambda: 1)
    for key in ("", "nul\0", 5.0, "k" * 600):
        with pytest.raises(LedgerError, match="key"):
            four.invoke(node_of(four, key, lambda: 1, lambda: ""), {"messages": ["go"]}, config_of())  # type: ignore[arg-type]
    with pytest.raises(LedgerError, match="on_unknown"):
        four.invoke(node_of(four, "k", lambda: 1, lambda: "", on_unknown="no"), {"messages": ["go"]}, config_of())
