"""Several LangGraph threads at once: in one context, in threads, in asyncio tasks."""

import operator
from typing import Annotated, Any, TypedDict

from langgraph.graph import START
from langgraph.types import Command, interrupt

from . import scenario
from .api import Api, Stream


class Line(TypedDict, total=False):
    who: str
    log: Annotated[list[str], operator.add]


async def a(state: Line) -> dict[str, Any]:
    return {"log": [f"a {state['who']}"]}


async def b(state: Line) -> dict[str, Any]:
    return {"log": [f"b {state['who']}"]}


async def ask(state: Line) -> dict[str, Any]:
    return {"log": [f"{interrupt(state['who'])}"]}


async def c(state: Line) -> dict[str, Any]:
    return {"log": [f"c {state['who']}"]}


async def _alternate(*streams: Stream) -> list[Any]:
    """All chunks of the streams, one chunk of each in turn."""
    got: list[Any] = []
    left = list(streams)
    while left:
        for stream in list(left):
            try:
                got.append(await anext(stream))
            except StopAsyncIteration:
                left.remove(stream)
    return got


def _graph(api: Api) -> Any:
    builder = api.nodes(Line, a, ask)
    builder.add_node("inner", api.chain(Line, b, c).compile())
    for edge in [(START, "a"), ("a", "inner"), ("inner", "ask")]:
        builder.add_edge(*edge)
    return api.compile(builder)


@scenario("two_streams_alternately")
async def two_streams_alternately(api: Api) -> Any:
    """Three turns on two threads; the streams of both are stepped in turn in one context."""
    graph = _graph(api)
    configs = {who: api.thread() for who in ("ada", "bob")}
    got = []
    for turn in range(2):
        for value in ({"log": [f"turn {turn}"]}, Command(resume=f"yes {turn}")):
            inputs = {who: value if isinstance(value, Command) else {**value, "who": who} for who in configs}
            streams = [api.stream(graph, inputs[who], config, stream_mode="updates") for who, config in configs.items()]
            got.append(await _alternate(*streams))
    return got, [await api.look(graph, config) for config in configs.values()]


@scenario("two_streams_and_reads")
async def two_streams_and_reads(api: Api) -> Any:
    """Between the chunks of two streams the state of both threads, and of a third, is read in the same context."""
    graph = _graph(api)
    configs = {who: api.thread() for who in ("ada", "bob", "cleo")}
    await api.invoke(graph, {"who": "cleo"}, configs["cleo"])
    streams = [api.stream(graph, {"who": who}, configs[who], stream_mode="values") for who in ("ada", "bob")]
    steps = []
    for _ in range(2):
        for stream in streams:
            steps.append(await anext(stream))
            for config in configs.values():
                await api.get_state(graph, config)
    rest = await _alternate(*streams)
    return steps, rest, [await api.look(graph, config) for config in configs.values()]


@scenario("stream_from_fresh_contexts")
async def stream_from_fresh_contexts(api: Api) -> Any:
    """Every chunk is fetched from a new, empty context, as some web servers do."""
    graph = _graph(api)
    config = api.thread()
    got: list[Any] = []
    for value in ({"who": "ada"}, Command(resume="yes")):
        stream = api.stream(graph, value, config, stream_mode="updates")

        async def step(stream: Stream = stream) -> Any:
            return await anext(stream, None)

        while (chunk := await api.in_fresh_context(step)) is not None:
            got.append(chunk)
    return got, await api.look(graph, config)


@scenario("four_threads_at_once")
async def four_threads_at_once(api: Api) -> Any:
    """Four runs at once, each on its own thread, three turns long, one saver."""
    graph = _graph(api)
    configs = [api.thread() for _ in range(4)]

    async def talk(number: int) -> list[Any]:
        answers = []
        for turn in range(2):
            who = f"{number} turn {turn}"
            answers.append((await api.invoke(graph, {"who": who}, configs[number]))["log"])
            answers.append(await api.invoke(graph, Command(resume=f"yes {turn}"), configs[number]))
        return answers

    answers = await api.gather(*(lambda n=n: talk(n) for n in range(4)))
    return answers, [await api.look(graph, config) for config in configs]


@scenario("one_thread_in_turns")
async def one_thread_in_turns(api: Api) -> Any:
    """One LangGraph thread, whose runs and answers come one after the other from different threads and tasks."""
    graph = _graph(api)
    config = api.thread()
    answers = []
    for value in ({"who": "ada"}, Command(resume="yes"), {"who": "bob"}, Command(resume="no")):

        async def turn(value: Any = value) -> Any:
            return await api.invoke(graph, value, config)

        answers += await api.gather(turn)
    return answers, await api.look(graph, config)
