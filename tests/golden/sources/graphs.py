"""The graphs whose threads are in the golden databases. Written for every LangGraph from 0.2.16 on.

They are run by an old LangGraph when a database is made, and by today's when a test goes on with what was moved.
"""

import operator
import uuid
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

try:
    from langgraph.types import interrupt
except ImportError:  # before 0.2.57 a node could only stop

    def interrupt(value: Any) -> Any:
        from langgraph.errors import NodeInterrupt

        raise NodeInterrupt(value)


try:
    from langgraph.types import Send
except ImportError:
    from langgraph.constants import Send

TAGS = {"a", "b"}
NUMBER = uuid.UUID(int=7)


class State(TypedDict):
    messages: Annotated[list, add_messages]
    tags: set
    number: uuid.UUID
    done: Annotated[list, operator.add]


def think(state: State) -> Any:
    return {"messages": [AIMessage("thinking", id="thought")], "tags": set(TAGS), "number": NUMBER}


def ask(state: State) -> Any:
    return {"messages": [AIMessage(str(interrupt("what?")), id="answer")]}


def asking(saver: Any) -> Any:
    """Stops in its second node and waits for an answer."""
    builder = StateGraph(State)
    builder.add_node("think", think)
    builder.add_node("ask", ask)
    builder.add_edge(START, "think")
    builder.add_edge("think", "ask")
    builder.add_edge("ask", END)
    return builder.compile(checkpointer=saver)


def nested(saver: Any) -> Any:
    """The same, inside of a graph of its own, which has a namespace for this call."""
    builder = StateGraph(State)
    builder.add_node("think", think)
    builder.add_node("inner", asking(None))
    builder.add_edge(START, "think")
    builder.add_edge("think", "inner")
    builder.add_edge("inner", END)
    return builder.compile(checkpointer=saver)


def spreading(saver: Any) -> Any:
    """Stops after it has said what is to be worked on side by side, and before that is done."""

    def work(state: Any) -> Any:
        return {"done": [f"{state['part']} of {len(state['messages'])}"]}

    def parts(state: State) -> Any:
        return [Send("work", {"part": part, "messages": state["messages"]}) for part in ("x", "y", "z")]

    builder = StateGraph(State)
    builder.add_node("think", think)
    builder.add_node("work", work)
    builder.add_edge(START, "think")
    builder.add_conditional_edges("think", parts, ["work"])
    builder.add_edge("work", END)
    return builder.compile(checkpointer=saver, interrupt_before=["work"])


GRAPHS = {"asking": asking, "nested": nested, "spreading": spreading, "forked": asking}
"""What each thread was made with."""
