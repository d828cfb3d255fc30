"""Streams: every mode to its end, closed half-way, cancelled; each time the thread goes on afterwards."""

import asyncio
import operator
import threading
from typing import Annotated, Any, TypedDict

from langgraph.graph import START
from langgraph.types import Command, interrupt

from . import scenario
from .api import Api


class Line(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


async def a(state: Line) -> dict[str, Any]:
    return {"log": ["a"]}


async def b(state: Line) -> dict[str, Any]:
    return {"log": ["b"]}


async def c(state: Line) -> dict[str, Any]:
    return {"log": ["c"]}


async def ask(state: Line) -> dict[str, Any]:
    return {"log": [f"{interrupt('go on?')}"]}


@scenario("stream_modes")
async def stream_modes(api: Api) -> Any:
    graph = api.compile(api.chain(Line, a, ask, c))
    config = api.thread()
    seen: list[Any] = []
    for mode in ("values", "updates", "debug", "checkpoints", "tasks", ["updates", "values", "checkpoints"]):
        seen.append(await api.chunks(graph, {"log": [f"{mode}"]}, config, stream_mode=mode))
        seen.append(await api.chunks(graph, Command(resume=f"{mode}"), config, stream_mode=mode))
    return seen, await api.look(graph, config)


@scenario("stream_of_subgraphs")
async def stream_of_subgraphs(api: Api) -> Any:
    builder = api.nodes(Line, a)
    builder.add_node("inner", api.chain(Line, b, ask).compile())
    builder.add_edge(START, "a")
    builder.add_edge("a", "inner")
    graph = api.compile(builder)
    config = api.thread()
    options = {"stream_mode": ["updates", "checkpoints"], "subgraphs": True}
    seen = [await api.chunks(graph, value, config, **options) for value in ({"log": ["in"]}, Command(resume="y"))]
    return seen, await api.look(graph, config)


@scenario("stream_closed_half_way")
async def stream_closed_half_way(api: Api) -> Any:
    """Closed after each possible number of chunks; then None goes on, then a new input."""
    graph = api.compile(api.chain(Line, a, b, c))
    seen: list[Any] = []
    for chunks in range(1, 4):
        config = api.thread()
        stream = api.stream(graph, {"log": ["in"]}, config, stream_mode="updates")
        got = [await anext(stream) for _ in range(chunks)]
        await stream.aclose()
        closed = await api.look(graph, config)
        rest = await api.invoke(graph, None, config)
        seen.append([got, closed, rest, await api.invoke(graph, {"log": ["new"]}, config)])
        seen.append(await api.look(graph, config))
    return seen


@scenario("stream_closed_then_new_input")
async def stream_closed_then_new_input(api: Api) -> Any:
    """Four runs in a row, each closed after its first chunk, on one thread; values and updates."""
    graph = api.compile(api.chain(Line, a, b, c))
    config = api.thread()
    for turn in range(4):
        stream = api.stream(graph, {"log": [f"turn {turn}"]}, config, stream_mode=["values", "updates"])
        async for _, chunk in stream:
            if "a" in chunk:
                break
        await stream.aclose()
    return await api.invoke(graph, {"log": ["last"]}, config), await api.look(graph, config)


@scenario("stream_closed_in_subgraph")
async def stream_closed_in_subgraph(api: Api) -> Any:
    builder = api.nodes(Line, a)
    builder.add_node("inner", api.chain(Line, b, c).compile())
    builder.add_edge(START, "a")
    builder.add_edge("a", "inner")
    graph = api.compile(builder)
    config = api.thread()
    stream = api.stream(graph, {"log": ["in"]}, config, stream_mode="updates")
    await anext(stream)
    await stream.aclose()
    seen = await api.look(graph, config)
    return seen, await api.invoke(graph, None, config), await api.look(graph, config)


@scenario("stream_closed_at_an_interrupt")
async def stream_closed_at_an_interrupt(api: Api) -> Any:
    graph = api.compile(api.chain(Line, a, ask, c))
    config = api.thread()
    for value in ({"log": ["in"]}, {"log": ["again"]}):
        stream = api.stream(graph, value, config, stream_mode="updates")
        async for chunk in stream:
            if "__interrupt__" in chunk:
                break
        await stream.aclose()
    paused = await api.look(graph, config)
    stream = api.stream(graph, Command(resume="yes"), config, stream_mode="updates")
    await anext(stream)
    await stream.aclose()
    answered = await api.look(graph, config)
    return paused, answered, await api.invoke(graph, None, config), await api.look(graph, config)


async def _cancel_in(api: Api, graph: Any, value: Any, config: Any, entered: threading.Event) -> None:
    run = asyncio.create_task(api.invoke(graph, value, config))
    await api.wait(entered)
    run.cancel()
    try:
        await run
    except asyncio.CancelledError:
        return
    raise AssertionError("the run was not cancelled")


@scenario("cancelled_then_new_run", flavours=["async"])
async def cancelled_then_new_run(api: Api) -> Any:
    """A run cancelled inside its second node, and awaited; then a new input; cancelled again; then None."""
    entered, never = threading.Event(), threading.Event()

    async def stuck(state: Line) -> dict[str, Any]:
        if not never.is_set():
            entered.set()
            await api.wait(never)
        return {"log": ["not stuck"]}

    graph = api.compile(api.chain(Line, a, stuck, c))
    config = api.thread()
    await _cancel_in(api, graph, {"log": ["in"]}, config, entered)
    seen = [await api.look(graph, config)]
    never.set()
    answers = [await api.invoke(graph, {"log": ["new"]}, config)]
    never.clear()
    entered.clear()
    await _cancel_in(api, graph, {"log": ["third"]}, config, entered)
    seen.append(await api.look(graph, config))
    never.set()
    answers.append(await api.invoke(graph, None, config))
    return answers, seen, await api.look(graph, config)


@scenario("cancelled_in_subgraph", flavours=["async"])
async def cancelled_in_subgraph(api: Api) -> Any:
    entered, never = threading.Event(), threading.Event()

    async def stuck(state: Line) -> dict[str, Any]:
        if not never.is_set():
            entered.set()
            await api.wait(never)
        return {"log": ["not stuck"]}

    builder = api.nodes(Line, a)
    builder.add_node("inner", api.chain(Line, b, stuck).compile())
    builder.add_edge(START, "a")
    builder.add_edge("a", "inner")
    graph = api.compile(builder)
    config = api.thread()
    await _cancel_in(api, graph, {"log": ["in"]}, config, entered)
    seen = await api.look(graph, config)
    never.set()
    return seen, await api.invoke(graph, None, config), await api.look(graph, config)
