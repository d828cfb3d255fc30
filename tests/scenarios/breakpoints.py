"""Static breakpoints before and after nodes, given to compile and to a run, and a run that is asked to drain."""

import operator
from typing import Annotated, Any, TypedDict

from langgraph.errors import GraphDrained
from langgraph.graph import START
from langgraph.runtime import RunControl
from langgraph.types import Command

from . import scenario
from .api import Api


class Steps(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


async def first(state: Steps) -> dict[str, Any]:
    return {"log": ["first"]}


async def second(state: Steps) -> dict[str, Any]:
    return {"log": ["second"]}


async def third(state: Steps) -> dict[str, Any]:
    return {"log": ["third"]}


@scenario("interrupt_before")
async def interrupt_before(api: Api) -> Any:
    graph = api.compile(api.chain(Steps, first, second, third), interrupt_before=["second", "third"])
    config = api.thread()
    answers, seen = [], []
    for value in ({"log": ["in"]}, None, None, {"log": ["again"]}, {"log": ["instead"]}, None):
        answers.append(await api.invoke(graph, value, config))
        seen.append(await api.look(graph, config))
    return answers, seen


@scenario("interrupt_after")
async def interrupt_after(api: Api) -> Any:
    graph = api.compile(api.chain(Steps, first, second, third), interrupt_after="*")
    config = api.thread()
    answers = [await api.invoke(graph, {"log": ["in"]}, config)]
    while (await api.get_state(graph, config)).next:
        answers.append(await api.invoke(graph, None, config))
    return answers, await api.look(graph, config)


@scenario("breakpoint_of_a_run")
async def breakpoint_of_a_run(api: Api) -> Any:
    """The breakpoint comes with the call; the state is edited there, and a Command jumps away from it."""
    graph = api.compile(api.chain(Steps, first, second, third))
    config = api.thread()
    answers = [await api.invoke(graph, {"log": ["in"]}, config, interrupt_before=["second"])]
    await api.update_state(graph, config, {"log": ["edited"]})
    edited = await api.look(graph, config)
    answers.append(await api.invoke(graph, None, config, interrupt_after=["second"]))
    answers.append(await api.invoke(graph, Command(goto="first", update={"log": ["jump"]}), config))
    return answers, edited, await api.look(graph, config)


@scenario("breakpoint_in_subgraph")
async def breakpoint_in_subgraph(api: Api) -> Any:
    inner = api.chain(Steps, second, third).compile(interrupt_before=["third"])
    builder = api.nodes(Steps, first)
    builder.add_node("inner", inner)
    builder.add_edge(START, "first")
    builder.add_edge("first", "inner")
    graph = api.compile(builder)
    config = api.thread()
    answers, seen = [], []
    for value in ({"log": ["in"]}, None, {"log": ["again"]}, None):
        answers.append(await api.invoke(graph, value, config))
        seen.append(await api.look(graph, config))
    return answers, seen


@scenario("drained")
async def drained(api: Api) -> Any:
    """A run asked to stop between two steps stops there; the next run goes on."""
    control = RunControl()

    async def stopping(state: Steps) -> dict[str, Any]:
        control.request_drain("a deploy")
        return {"log": ["stopping"]}

    graph = api.compile(api.chain(Steps, first, stopping, second))
    config = api.thread()
    stopped = await api.attempt(api.invoke(graph, {"log": ["in"]}, config, control=control), GraphDrained)
    seen = await api.look(graph, config)
    return stopped, seen, await api.invoke(graph, None, config), await api.look(graph, config)


@scenario("control_reused")
async def control_reused(api: Api) -> Any:
    """One RunControl for several runs, one after another and on two threads, with runs without it between them."""
    control = RunControl()
    graph = api.compile(api.chain(Steps, first, second), interrupt_before=["second"])
    configs = [api.thread(), api.thread()]
    answers = []
    for value in ({"log": ["in"]}, None, {"log": ["again"]}, {"log": ["instead"]}, None):
        for config in configs:
            answers.append(await api.invoke(graph, value, config, control=control))
        answers.append(await api.invoke(graph, {"log": ["between"]}, configs[0]))
    return answers, [await api.look(graph, config) for config in configs]
