"""Many tasks in one superstep."""

import operator
from typing import Annotated, Any, TypedDict

from langgraph.graph import START
from langgraph.types import Command, Send, interrupt

from . import scenario
from .api import Api


class Work(TypedDict, total=False):
    size: int
    item: int
    done: Annotated[list[int], operator.add]
    late: Annotated[list[str], operator.add]


class Done(TypedDict):
    done: Annotated[list[int], operator.add]
    late: Annotated[list[str], operator.add]


async def split(state: Work) -> Any:
    return Command(goto=[Send("work", {"item": n}) for n in range(state["size"])])


async def work(state: Work) -> dict[str, Any]:
    return {"done": [state["item"] ** 2]}


async def total(state: Work) -> dict[str, Any]:
    return {"late": [f"total {sum(state['done'])}"]}


@scenario("fanout_of_100")
async def fanout_of_100(api: Api) -> Any:
    builder = api.nodes(Work, split, work, total)
    builder.add_edge(START, "split")
    builder.add_edge("work", "total")
    graph = api.compile(builder)
    config = api.thread()
    answers = [await api.invoke(graph, {"size": size}, config) for size in (100, 3)]
    return answers, await api.look(graph, config)


@scenario("fanout_limited")
async def fanout_limited(api: Api) -> Any:
    """Forty tasks, three at a time, from a conditional edge."""

    async def route(state: Work) -> list[Send]:
        return [Send("work", {"item": n}) for n in range(40)]

    async def begin(state: Work) -> dict[str, Any]:
        return {"size": 40}

    builder = api.nodes(Work, begin, work, total)
    builder.add_edge(START, "begin")
    builder.add_conditional_edges("begin", api.node(route), ["work"])
    builder.add_edge("work", "total")
    graph = api.compile(builder)
    config = api.thread()
    answer = await api.invoke(graph, {"size": 0}, {**config, "max_concurrency": 3})
    return answer, await api.look(graph, config)


@scenario("fanout_to_subgraphs")
async def fanout_to_subgraphs(api: Api) -> Any:
    """Twelve Sends to a subgraph, each with a namespace of its own; every third asks."""

    async def ask(state: Work) -> dict[str, Any]:
        answer = interrupt(state["item"]) if state["item"] % 3 == 0 else "no question"
        return {"late": [f"{state['item']} {answer}"]}

    builder = api.nodes(Work, split, total)
    builder.add_node("work", api.chain(Work, work, ask, output=Done).compile())
    builder.add_edge(START, "split")
    builder.add_edge("work", "total")
    graph = api.compile(builder)
    config = api.thread()
    asked = await api.invoke(graph, {"size": 12}, config)
    ids = {i.value: i.id for i in asked["__interrupt__"]}
    paused = await api.look(graph, config)
    some = await api.invoke(graph, Command(resume={ids[0]: "zero", ids[6]: "six"}), config)
    done = await api.invoke(graph, Command(resume={ids[3]: "three", ids[9]: "nine"}), config)
    return sorted(ids), sorted(i.value for i in some["__interrupt__"]), paused, done, await api.look(graph, config)
