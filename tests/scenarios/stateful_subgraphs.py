"""Subgraphs compiled with `checkpointer=True`, which keep their state over the turns of a thread."""

import operator
from typing import Annotated, Any, TypedDict

from langgraph.graph import START
from langgraph.types import Command, Send, interrupt

from . import scenario
from .api import Api


class Parent(TypedDict, total=False):
    say: str
    replies: Annotated[list[str], operator.add]


class Memory(TypedDict, total=False):
    say: str
    heard: Annotated[list[str], operator.add]


class Heard(TypedDict):
    heard: Annotated[list[str], operator.add]


async def hear(state: Memory) -> dict[str, Any]:
    return {"heard": [state["say"]]}


async def again(state: Memory) -> dict[str, Any]:
    return {"heard": ["again"]}


async def doubt(state: Memory) -> dict[str, Any]:
    return {"heard": [f"{interrupt('really?')}"]}


@scenario("stateful_called_over_turns")
async def stateful_called_over_turns(api: Api) -> Any:
    memory = api.chain(Memory, hear, again).compile(checkpointer=True)

    async def talk(state: Parent) -> dict[str, Any]:
        found = await api.inner.invoke(memory, {"say": state["say"]})
        return {"replies": ["/".join(found["heard"])]}

    graph = api.compile(api.chain(Parent, talk))
    config = api.thread()
    answers = [await api.invoke(graph, {"say": f"turn {n}"}, config) for n in range(4)]
    return answers, await api.look(graph, config)


@scenario("stateful_as_node")
async def stateful_as_node(api: Api) -> Any:
    async def close(state: Parent) -> dict[str, Any]:
        return {"replies": ["closed"]}

    memory = api.chain(Memory, hear, again)
    builder = api.nodes(Parent, close)
    builder.add_node("memory", memory.compile(checkpointer=True))
    builder.add_edge(START, "memory")
    builder.add_edge("memory", "close")
    graph = api.compile(builder)
    config = api.thread()
    answers = [await api.invoke(graph, {"say": f"turn {n}"}, config) for n in range(3)]
    below = {"configurable": {**config["configurable"], "checkpoint_ns": "memory"}}
    kept = [await api.get_state(graph, below), await api.history(graph, below)]
    return answers, kept, await api.look(graph, config)


@scenario("stateful_interrupted")
async def stateful_interrupted(api: Api) -> Any:
    """Each turn asks inside the stateful subgraph; one question is left unanswered."""
    memory = api.chain(Memory, hear, doubt).compile(checkpointer=True)

    async def talk(state: Parent) -> dict[str, Any]:
        found = await api.inner.invoke(memory, {"say": state["say"]})
        return {"replies": ["/".join(found["heard"])]}

    graph = api.compile(api.chain(Parent, talk))
    config = api.thread()
    inputs: list[Any] = [{"say": "a"}, Command(resume="yes"), {"say": "b"}, {"say": "c"}, None, Command(resume="no")]
    answers, seen = [], []
    for value in inputs:
        answers.append(await api.invoke(graph, value, config))
        seen.append(await api.look(graph, config))
    return answers, seen


@scenario("two_stateful_in_one_superstep")
async def two_stateful_in_one_superstep(api: Api) -> Any:
    """Two nodes side by side, each with a stateful subgraph of its own; one of them asks."""
    quiet = api.chain(Memory, hear, again).compile(checkpointer=True)
    asking = api.chain(Memory, hear, doubt).compile(checkpointer=True)

    async def left(state: Parent) -> dict[str, Any]:
        found = await api.inner.invoke(quiet, {"say": state["say"]})
        return {"replies": ["left " + "/".join(found["heard"])]}

    async def right(state: Parent) -> dict[str, Any]:
        found = await api.inner.invoke(asking, {"say": state["say"]})
        return {"replies": ["right " + "/".join(found["heard"])]}

    builder = api.nodes(Parent, left, right)
    builder.add_edge(START, "left")
    builder.add_edge(START, "right")
    graph = api.compile(builder)
    config = api.thread()
    answers = []
    for n in range(2):
        answers.append(await api.invoke(graph, {"say": f"turn {n}"}, config))
        answers.append(await api.invoke(graph, Command(resume=f"ok {n}"), config))
    return answers, await api.look(graph, config)


@scenario("stateful_called_twice_in_a_node")
async def stateful_called_twice_in_a_node(api: Api) -> Any:
    memory = api.chain(Memory, hear).compile(checkpointer=True)

    async def talk(state: Parent) -> dict[str, Any]:
        first = await api.inner.invoke(memory, {"say": state["say"] + " one"})
        second = await api.inner.invoke(memory, {"say": state["say"] + " two"})
        return {"replies": ["/".join(first["heard"]), "/".join(second["heard"])]}

    graph = api.compile(api.chain(Parent, talk))
    config = api.thread()
    answers = [await api.invoke(graph, {"say": f"turn {n}"}, config) for n in range(3)]
    return answers, await api.look(graph, config)


@scenario("stateful_in_a_loop")
async def stateful_in_a_loop(api: Api) -> Any:
    """The node that calls the stateful subgraph runs several times in one run."""
    memory = api.chain(Memory, hear).compile(checkpointer=True)

    async def talk(state: Parent) -> Any:
        found = await api.inner.invoke(memory, {"say": state["say"]})
        more = len(found["heard"]) % 3 != 0
        return Command(update={"replies": ["/".join(found["heard"])]}, goto="talk" if more else "__end__")

    builder = api.nodes(Parent, talk)
    builder.add_edge(START, "talk")
    graph = api.compile(builder)
    config = api.thread()
    answers = [await api.invoke(graph, {"say": f"turn {n}"}, config) for n in range(2)]
    return answers, await api.look(graph, config)


@scenario("send_to_stateful")
async def send_to_stateful(api: Api) -> Any:
    """One Send a superstep, three in a row, to one stateful subgraph that is a node."""

    async def plan(state: Parent) -> Any:
        return Command(goto=Send("memory", {"say": f"sent {len(state.get('replies', []))}"}))

    async def next_one(state: Parent) -> Any:
        done = len(state["replies"]) % 3 == 2
        return Command(update={"replies": ["sent"]}, goto="__end__" if done else "plan")

    builder = api.nodes(Parent, plan, next_one)
    builder.add_node("memory", api.chain(Memory, hear, again, output=Heard).compile(checkpointer=True))
    builder.add_edge(START, "plan")
    builder.add_edge("memory", "next_one")
    graph = api.compile(builder)
    config = api.thread()
    answers = [await api.invoke(graph, {"say": f"turn {n}", "replies": []}, config) for n in range(2)]
    return answers, await api.look(graph, config)


@scenario("sends_to_one_stateful_at_once")
async def sends_to_one_stateful_at_once(api: Api) -> Any:
    """Six Sends in one superstep to one stateful subgraph. All of them share its namespace, so which of them its state
    follows is not LangGraph's promise: compared are the parent's state and how many checkpoints the subgraph made."""

    async def plan(state: Parent) -> Any:
        return Command(goto=[Send("memory", {"say": f"sent {n}"}) for n in range(6)])

    async def close(state: Parent) -> dict[str, Any]:
        return {"replies": ["closed"]}

    builder = api.nodes(Parent, plan, close)
    builder.add_node("memory", api.chain(Memory, hear, again, output=Heard).compile(checkpointer=True))
    builder.add_edge(START, "plan")
    builder.add_edge("memory", "close")
    graph = api.compile(builder)
    config = api.thread()
    answers = [await api.invoke(graph, {"say": f"turn {n}"}, config) for n in range(2)]
    made = await api.list({"configurable": {**config["configurable"], "checkpoint_ns": "memory"}})
    return answers, await api.get_state(graph, config), await api.history(graph, config), len(made)
