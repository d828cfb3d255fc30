"""The agent that is under load: answers, tools, questions, errors, a subgraph, a channel that is safe to lose."""

import random
from typing import Annotated, Any, TypedDict
from uuid import uuid4

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from langgraph_ledger import LedgerSaver, hold, once

KEPT = 20
"""Messages that a conversation holds at most, so that its state does not grow for ever."""
PLANS = ("answer", "tools", "ask", "fail", "below")


class Failure(ValueError):
    """What the node that fails raises."""


class State(TypedDict, total=False):
    messages: Annotated[list[Any], lambda old, new: (old + new)[-KEPT:]]
    plan: str
    draft: str


class Below(TypedDict, total=False):
    messages: list[Any]


@tool
def effect(name: str) -> str:
    """Has an effect."""
    return name * 20


def said(size: int) -> str:
    """Text that is never the same twice."""
    return random.randbytes(size // 2).hex()


def agent(saver: LedgerSaver) -> Any:
    """The graph. What a turn does is up to its `plan`."""
    builder = StateGraph(State)
    nodes = {"answer": _answer, "tools": _tools, "ask": _ask, "fail": _fail, "below": _below()}
    for name, node in {**nodes, "last": _last}.items():
        builder.add_node(name, node)
    builder.add_conditional_edges(START, lambda state: state.get("plan", "answer"), list(nodes))
    for name in nodes:
        builder.add_edge(name, "last")
    return builder.add_edge("last", END).compile(checkpointer=saver)


def turn(plan: str) -> Any:
    """The input of a turn."""
    return {"messages": [HumanMessage(said(300))], "plan": plan}


def _answer(state: State) -> Any:
    return {"messages": [AIMessage(said(2000))], "draft": said(100)}


def _tools(state: State, config: RunnableConfig) -> Any:
    name = uuid4().hex
    with hold(f"file:{name}"):
        result = effect.invoke({"type": "tool_call", "id": name, "name": "effect", "args": {"name": name}}, config)
        paid = once("payment", lambda: said(40), on_unknown="retry")  # of a run that another one has cut off
    return {"messages": [result, AIMessage(paid)]}


def _ask(state: State) -> Any:
    return {"messages": [HumanMessage(interrupt("well?"))]}


def _fail(state: State) -> Any:
    raise Failure("as planned")


def _last(state: State) -> Any:
    return {"messages": [AIMessage(said(500))]}


def _below() -> Any:
    def deeper(state: Below) -> Any:
        return {"messages": [AIMessage(said(800))]}

    graph = StateGraph(Below).add_sequence([("one", deeper), ("two", deeper)]).add_edge(START, "one").compile()
    return lambda state, config: {"messages": graph.invoke({"messages": []}, config)["messages"]}
