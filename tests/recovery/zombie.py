"""A process that makes tool calls, one in each step, and waits in the first one until it is told to go on."""

import asyncio
from multiprocessing.connection import Connection
from typing import Any

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from langgraph_ledger import LedgerSaver, StateConflict
from tests.four_ways import Flavoured
from tests.recovery.stage import call, made

STEPS = ("first", "second", "third")


def graph_of(four: Flavoured, act: Any) -> Any:
    """Calls one tool in each of three steps; what a tool raises becomes a message."""
    tool = made(four, act)
    builder = StateGraph(MessagesState)
    before = START
    for step in STEPS:
        asked = AIMessage("", tool_calls=[call(step, step)])
        builder.add_node(f"ask {step}", lambda state, asked=asked: {"messages": [asked]})
        builder.add_node(step, ToolNode([tool], handle_tool_errors=True))
        builder.add_edge(before, f"ask {step}").add_edge(f"ask {step}", step)
        before = step
    return builder.compile(checkpointer=four.saver)


def work(pipe: Connection, url: str, thread: str, flavour: str, durability: str) -> None:
    """Runs the graph; says which tools ran, and how it ended."""
    runner = asyncio.Runner() if flavour == "async" else None
    four = Flavoured(LedgerSaver(url), runner)
    ran: list[str] = []

    def act(what: str) -> str:
        ran.append(what)
        if what == "first":
            pipe.send("at")
            pipe.recv()
        return what

    try:
        config = {"configurable": {"thread_id": thread}}
        four.invoke(graph_of(four, act), {"messages": ["zombie"]}, config, durability=durability)
        ended = "completed"
    except StateConflict:
        ended = "refused"
    pipe.send((ended, ran))
