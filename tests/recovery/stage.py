"""Graphs whose tools are on record, and what the record says."""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from tests.four_ways import Flavoured


def config_of(thread: str | None = None, **more: Any) -> Any:
    return {"configurable": {"thread_id": thread or str(uuid4())}, **more}


def made(four: Flavoured, act: Callable[[str], Any], name: str = "act") -> BaseTool:
    """A tool of the flavour under test. Its one argument is `what`."""
    if not four.is_async:
        return StructuredTool.from_function(func=act, name=name, description="acts")

    async def aact(what: str) -> Any:
        return act(what)

    aact.__name__ = name
    return StructuredTool.from_function(coroutine=aact, name=name, description="acts")


def same(what: str) -> str:
    return what


def call(what: str, call_id: str, name: str = "act") -> dict[str, Any]:
    return {"name": name, "args": {"what": what}, "id": call_id, "type": "tool_call"}


def agent(
    saver: Any, tools: Sequence[BaseTool], calls: Sequence[dict[str, Any]], *, node: Any = None, **options: Any
) -> Any:
    """A graph whose model asks for these calls once, and whose tools make them."""

    def model(state: MessagesState) -> Any:
        return {"messages": [AIMessage("", tool_calls=list(calls))]}

    builder = StateGraph(MessagesState).add_node("model", model)
    builder.add_node("tools", node or ToolNode(tools, **options))
    builder.add_edge(START, "model").add_edge("model", "tools")
    return builder.compile(checkpointer=saver)


def entries(four: Flavoured, config: Any) -> list[Any]:
    """The log's entries about calls."""
    return [e for e in four.call("history", config["configurable"]["thread_id"]) if e.call_id is not None]


def kinds(four: Flavoured, config: Any) -> list[tuple[str, str]]:
    return [(e.checkpoint_type, e.call_id) for e in entries(four, config)]
