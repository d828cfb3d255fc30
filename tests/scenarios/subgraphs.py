"""Subgraphs whose state lives for one call: as nodes, called in nodes, in parallel, three deep, failing."""

import operator
from typing import Annotated, Any, TypedDict

from langgraph.graph import START
from langgraph.types import Command, interrupt

from . import scenario
from .api import Api


class Path(TypedDict, total=False):
    at: str
    log: Annotated[list[str], operator.add]


class Walked(TypedDict):
    log: Annotated[list[str], operator.add]


async def enter(state: Path) -> dict[str, Any]:
    return {"log": [f"enter {state.get('at')}"]}


async def leave(state: Path) -> dict[str, Any]:
    return {"log": ["leave"]}


class Own(TypedDict, total=False):
    """A subgraph's state of its own, which shares nothing with its parent's."""

    word: str
    letters: Annotated[list[str], operator.add]


async def spell(state: Own) -> dict[str, Any]:
    return {"letters": list(state["word"])}


async def shout(state: Own) -> dict[str, Any]:
    return {"letters": ["!"]}


@scenario("subgraph_as_node")
async def subgraph_as_node(api: Api) -> Any:
    builder = api.nodes(Path, leave)
    builder.add_node("inner", api.chain(Path, enter, leave).compile())
    builder.add_edge(START, "inner")
    builder.add_edge("inner", "leave")
    graph = api.compile(builder)
    config = api.thread()
    answers = [await api.invoke(graph, {"at": f"turn {n}"}, config) for n in range(2)]
    return answers, await api.look(graph, config)


@scenario("parallel_subgraph_nodes")
async def parallel_subgraph_nodes(api: Api) -> Any:
    """Two subgraphs in one superstep, of different length, each with a question; answered one after the other."""

    async def ask(state: Path) -> dict[str, Any]:
        return {"log": [f"asked {interrupt(state['at'])}"]}

    async def other(state: Path) -> dict[str, Any]:
        return {"log": [f"other {interrupt('other')}"]}

    builder = api.nodes(Path, leave)
    builder.add_node("left", api.chain(Path, enter, ask, leave, output=Walked).compile())
    builder.add_node("right", api.chain(Path, other, output=Walked).compile())
    builder.add_node("plain", api.chain(Path, enter, leave, output=Walked).compile())
    for name in ("left", "right", "plain"):
        builder.add_edge(START, name)
    builder.add_edge(["left", "right", "plain"], "leave")
    graph = api.compile(builder)
    config = api.thread()
    answers = [await api.invoke(graph, {"at": "here"}, config)]
    seen = [await api.look(graph, config)]
    for value in ("here", "other"):
        ids = {i.value: i.id for i in answers[-1]["__interrupt__"]}
        answers.append(await api.invoke(graph, Command(resume={ids[value]: "yes"}), config))
        seen.append(await api.look(graph, config))
    answers[0] = sorted(i.value for i in answers[0]["__interrupt__"])
    return answers, seen


@scenario("subgraphs_called_in_one_node")
async def subgraphs_called_in_one_node(api: Api) -> Any:
    """One node calls two subgraphs, one of them twice."""
    speller = api.chain(Own, spell, shout).compile()
    walker = api.chain(Path, enter, leave).compile()

    async def caller(state: Path) -> dict[str, Any]:
        first = await api.inner.invoke(speller, {"word": state["at"]})
        walked = await api.inner.invoke(walker, {"at": "inside"})
        second = await api.inner.invoke(speller, {"word": "again"})
        return {"log": ["".join(first["letters"]), *walked["log"], "".join(second["letters"])]}

    graph = api.compile(api.chain(Path, enter, caller))
    config = api.thread()
    answers = [await api.invoke(graph, {"at": f"turn {n}"}, config) for n in range(2)]
    return answers, await api.look(graph, config)


@scenario("subgraph_called_by_interrupted_node")
async def subgraph_called_by_interrupted_node(api: Api) -> Any:
    """Each of two calls asks; the node runs again from its beginning for every answer."""

    async def ask(state: Own) -> dict[str, Any]:
        return {"letters": [interrupt(state["word"])]}

    speller = api.chain(Own, spell, ask).compile()

    async def caller(state: Path) -> dict[str, Any]:
        first = await api.inner.invoke(speller, {"word": "ab"})
        second = await api.inner.invoke(speller, {"word": "cd"})
        return {"log": ["".join(first["letters"] + second["letters"])]}

    graph = api.compile(api.chain(Path, caller, leave))
    config = api.thread()
    answers, seen = [], []
    for value in ({"at": "x"}, Command(resume="1"), Command(resume="2")):
        answers.append(await api.invoke(graph, value, config))
        seen.append(await api.look(graph, config))
    return answers, seen


def _three_deep(api: Api, asking: bool) -> Any:
    async def deepest(state: Path) -> dict[str, Any]:
        return {"log": [f"deepest {interrupt('down here') if asking else ''}"]}

    graph: Any = None
    for name in ("third", "second", "first"):
        builder = api.nodes(Path, *([enter, leave] if graph else [enter, deepest, leave]))
        builder.add_edge(START, "enter")
        if graph:
            builder.add_node(name, graph)
            builder.add_edge("enter", name)
            builder.add_edge(name, "leave")
        else:
            builder.add_edge("enter", "deepest")
            builder.add_edge("deepest", "leave")
        graph = builder.compile() if name != "first" else api.compile(builder)
    return graph


@scenario("three_deep")
async def three_deep(api: Api) -> Any:
    graph = _three_deep(api, asking=False)
    config = api.thread()
    answers = [await api.invoke(graph, {"at": f"turn {n}"}, config) for n in range(2)]
    streamed = await api.chunks(graph, {"at": "s"}, config, stream_mode=["values", "updates"], subgraphs=True)
    return answers, streamed, await api.look(graph, config)


@scenario("three_deep_interrupted")
async def three_deep_interrupted(api: Api) -> Any:
    graph = _three_deep(api, asking=True)
    config = api.thread()
    answers, seen = [], []
    for value in ({"at": "x"}, None, Command(resume="yes"), {"at": "y"}, Command(resume="no")):
        answers.append(await api.invoke(graph, value, config))
        seen.append(await api.look(graph, config))
        state = await api.get_state(graph, config, subgraphs=True)
        while state.tasks and state.tasks[0].state:
            state = state.tasks[0].state
            seen.append(await api.history(graph, state.config))
    return answers, seen


@scenario("command_to_parent")
async def command_to_parent(api: Api) -> Any:
    """A node of a subgraph sends the parent somewhere else and updates it."""

    async def escape(state: Path) -> Any:
        return Command(graph=Command.PARENT, goto="leave", update={"log": ["escaped"]})

    builder = api.nodes(Path, enter, leave)
    builder.add_node("inner", api.chain(Path, enter, escape).compile())
    builder.add_edge(START, "inner")
    builder.add_edge("inner", "enter")
    graph = api.compile(builder)
    config = api.thread()
    answers = [await api.invoke(graph, {"at": f"turn {n}"}, config) for n in range(2)]
    return answers, await api.look(graph, config)


@scenario("subgraph_fails")
async def subgraph_fails(api: Api) -> Any:
    """A node in a subgraph fails once; the next run goes on inside the subgraph, where it stopped."""
    failures = ["first time"]

    async def fragile(state: Path) -> dict[str, Any]:
        if failures:
            raise OSError(failures.pop())
        return {"log": ["survived"]}

    builder = api.nodes(Path, leave)
    builder.add_node("inner", api.chain(Path, enter, fragile).compile())
    builder.add_edge(START, "inner")
    builder.add_edge("inner", "leave")
    graph = api.compile(builder)
    config = api.thread()
    failed = await api.attempt(api.invoke(graph, {"at": "x"}, config), OSError)
    seen = await api.look(graph, config)
    return failed, seen, await api.invoke(graph, None, config), await api.look(graph, config)


@scenario("subgraph_without_checkpoints", durability=["async", "exit"])
async def subgraph_without_checkpoints(api: Api) -> Any:
    """`checkpointer=False` below: nothing of the subgraph is saved. (With durability "sync" LangGraph itself fails.)"""
    inner = api.chain(Path, enter, leave).compile(checkpointer=False)
    builder = api.nodes(Path, leave)
    builder.add_node("inner", inner)
    builder.add_edge(START, "inner")
    builder.add_edge("inner", "leave")
    graph = api.compile(builder)
    config = api.thread()
    answers = [await api.invoke(graph, {"at": f"turn {n}"}, config) for n in range(2)]
    return answers, await api.look(graph, config)


@scenario("another_thread_from_a_node")
async def another_thread_from_a_node(api: Api) -> Any:
    """A node runs a whole graph of the same saver on a thread of its own, several times during one run of the outer."""
    side = api.compile(api.chain(Path, enter, leave))
    beside = api.thread()

    async def caller(state: Path) -> dict[str, Any]:
        found = await api.inner.invoke(side, {"at": f"beside {state['at']}"}, beside)
        return {"log": [f"{len(found['log'])} beside"]}

    async def again(state: Path) -> dict[str, Any]:
        return await caller(state)

    graph = api.compile(api.chain(Path, caller, again))
    config = api.thread()
    answers = [await api.invoke(graph, {"at": f"turn {n}"}, config) for n in range(2)]
    return answers, await api.look(graph, config), await api.look(side, beside)


@scenario("another_thread_shared")
async def another_thread_shared(api: Api) -> Any:
    """As before, but between the two calls somebody else runs the graph on that other thread."""
    side = api.compile(api.chain(Path, enter, leave))
    beside = api.thread()

    async def caller(state: Path) -> dict[str, Any]:
        found = await api.inner.invoke(side, {"at": f"beside {state['at']}"}, beside)
        return {"log": [f"{len(found['log'])} beside"]}

    async def between(state: Path) -> dict[str, Any]:
        async def somebody_else() -> Any:
            return await api.inner.invoke(side, {"at": "somebody else"}, beside)

        found = await api.inner.in_fresh_context(somebody_else)
        return {"log": [f"{len(found['log'])} between"]}

    async def again(state: Path) -> dict[str, Any]:
        return await caller(state)

    graph = api.compile(api.chain(Path, caller, between, again))
    config = api.thread()
    answers = [await api.invoke(graph, {"at": f"turn {n}"}, config) for n in range(2)]
    return answers, await api.look(graph, config), await api.look(side, beside)
