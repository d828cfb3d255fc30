"""The graphs that the workloads run."""

import operator
import random
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import _messages_delta_reducer
from langgraph.types import Send


class DeltaMessages(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]


class Loop(TypedDict):
    n: int
    until: int
    facts: dict[str, Any]


class Noise(TypedDict):
    n: int
    until: int
    blob: bytes
    items: list[bytes]


class Fan(TypedDict):
    results: Annotated[list[Any], operator.add]


def _node(function: Callable[[Any], Any], is_async: bool) -> Any:
    async def awaited(state: Any) -> Any:
        return function(state)

    return awaited if is_async else function


def chat(saver: Any, is_async: bool, replies: Sequence[AIMessage], *, delta: bool = False) -> Any:
    """One node that answers each message with the next reply."""

    def model(state: Any) -> Any:
        return {"messages": [replies[(len(state["messages"]) - 1) // 2]]}

    builder = StateGraph(DeltaMessages if delta else MessagesState).add_node("model", _node(model, is_async))
    return builder.add_edge(START, "model").add_edge("model", END).compile(checkpointer=saver)


def loop(saver: Any, is_async: bool) -> Any:
    """One node that runs until it has counted far enough, with a small state."""

    def step(state: Loop) -> Any:
        n = state["n"] + 1
        tags, done = ["a", "b"], n == state["until"]
        return {"n": n, "facts": {"last": n, "name": f"step {n}", "score": n / 7, "tags": tags, "done": done}}

    return _counting(Loop, step, saver, is_async)


def noise(saver: Any, is_async: bool, kilobytes: int) -> Any:
    """The same with a state of random bytes, half of them in a list, all of them new with each step."""
    rng = random.Random(5)

    def step(state: Noise) -> Any:
        blob, items = rng.randbytes(kilobytes * 500), [rng.randbytes(2000) for _ in range(kilobytes // 4)]
        return {"n": state["n"] + 1, "blob": blob, "items": items}

    return _counting(Noise, step, saver, is_async)


def _counting(state: Any, step: Callable[[Any], Any], saver: Any, is_async: bool) -> Any:
    builder = StateGraph(state).add_node("step", _node(step, is_async)).add_edge(START, "step")
    builder.add_conditional_edges("step", lambda s: END if s["n"] >= s["until"] else "step")
    return builder.compile(checkpointer=saver)


def fan(saver: Any, is_async: bool, sends: int) -> Any:
    """One node that hands a task each to so many others at once."""

    def work(state: Any) -> Any:
        return {"results": [{"item": state["item"], "answer": f"answer {state['item']}", "score": 0.5}]}

    builder = StateGraph(Fan).add_node("plan", _node(lambda state: {}, is_async))
    builder.add_node("work", _node(work, is_async)).add_edge(START, "plan")
    builder.add_conditional_edges("plan", lambda state: [Send("work", {"item": i}) for i in range(sends)], ["work"])
    return builder.add_edge("work", END).compile(checkpointer=saver)
