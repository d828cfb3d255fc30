"""Nodes that fail: retried, handled, resumed with None, or left behind by a new input."""

import operator
import threading
from typing import Annotated, Any, TypedDict

from langgraph.errors import NodeError, NodeTimeoutError
from langgraph.graph import START, StateGraph
from langgraph.types import Command, RetryPolicy, Send

from . import scenario
from .api import Api

QUICK = RetryPolicy(initial_interval=0.001, jitter=False, max_attempts=3)


class Log(TypedDict, total=False):
    item: int
    log: Annotated[list[str], operator.add]


class Fails:
    """Fails as many times as it is told to."""

    def __init__(self, times: int, error: type[Exception] = OSError) -> None:
        self.left = times
        self.error = error

    def once(self, message: str = "failed") -> None:
        if self.left:
            self.left -= 1
            raise self.error(message)


async def begin(state: Log) -> dict[str, Any]:
    return {"log": ["begin"]}


async def end(state: Log) -> dict[str, Any]:
    return {"log": ["end"]}


@scenario("retried")
async def retried(api: Api) -> Any:
    """A node that fails twice and is retried, beside one that never fails; then one that fails too often."""
    fails = Fails(2, ConnectionError)

    async def flaky(state: Log) -> dict[str, Any]:
        fails.once("flaky")
        return {"log": ["flaky done"]}

    builder = api.nodes(Log, begin, end)
    builder.add_node("flaky", api.node(flaky), retry_policy=QUICK)
    builder.add_edge(START, "flaky")
    builder.add_edge(START, "begin")
    builder.add_edge(["flaky", "begin"], "end")
    graph = api.compile(builder)
    config = api.thread()
    answer = await api.invoke(graph, {"log": ["in"]}, config)
    alone = api.chain(Log, begin)
    alone.add_node("flaky", api.node(flaky), retry_policy=QUICK)
    alone.add_edge("begin", "flaky")
    second = api.compile(alone)
    first = await api.look(graph, config)
    fails.left, config = 3, api.thread()
    failed = await api.attempt(api.invoke(second, {"log": ["more"]}, config), ConnectionError)
    seen = await api.look(second, config)
    return answer, first, failed, seen, await api.invoke(second, None, config), await api.look(second, config)


@scenario("fails_then_none")
async def fails_then_none(api: Api) -> Any:
    fails = Fails(2)

    async def fragile(state: Log) -> dict[str, Any]:
        fails.once()
        return {"log": ["fragile done"]}

    graph = api.compile(api.chain(Log, begin, fragile, end))
    config = api.thread()
    errors = [await api.attempt(api.invoke(graph, {"log": ["in"]}, config), OSError)]
    seen = [await api.look(graph, config)]
    errors.append(await api.attempt(api.invoke(graph, None, config), OSError))
    seen.append(await api.look(graph, config))
    return errors, seen, await api.invoke(graph, None, config), await api.look(graph, config)


@scenario("fails_then_new_input")
async def fails_then_new_input(api: Api) -> Any:
    fails = Fails(1, ValueError)

    async def fragile(state: Log) -> dict[str, Any]:
        fails.once()
        return {"log": ["fragile done"]}

    graph = api.compile(api.chain(Log, fragile, end))
    config = api.thread()
    failed = await api.attempt(api.invoke(graph, {"log": ["in"]}, config), ValueError)
    answers = [await api.invoke(graph, {"log": [f"new {n}"]}, config) for n in range(2)]
    return failed, answers, await api.look(graph, config)


@scenario("sibling_survives")
async def sibling_survives(api: Api) -> Any:
    """One of two parallel nodes fails after the other has finished; only the failed one runs again."""
    fails, finished, runs = Fails(1), threading.Event(), []

    async def steady(state: Log) -> dict[str, Any]:
        runs.append("steady")
        return {"log": ["steady done"]}

    async def fragile(state: Log) -> dict[str, Any]:
        await api.inner.wait(finished)
        runs.append("fragile")
        fails.once()
        return {"log": ["fragile done"]}

    builder = api.nodes(Log, steady, fragile, end)
    builder.add_edge(START, "steady")
    builder.add_edge(START, "fragile")
    builder.add_edge(["steady", "fragile"], "end")
    graph = api.compile(builder)
    config = api.thread()

    async def watched() -> None:
        # With "custom" among the modes LangGraph hands on what a node wrote before the others have finished.
        async for _, chunk in api.stream(graph, {"log": ["in"]}, config, stream_mode=["updates", "custom"]):
            if "steady" in chunk:
                finished.set()

    failed = await api.attempt(watched(), OSError)
    seen = await api.look(graph, config)
    return failed, seen, await api.invoke(graph, None, config), runs, await api.look(graph, config)


@scenario("error_handler")
async def error_handler(api: Api) -> Any:
    """A node's own handler, after the retries, and the graph's default handler; one handler sends the run elsewhere."""

    async def broken(state: Log) -> dict[str, Any]:
        raise ConnectionError("broken")

    async def handled(state: Log, error: NodeError) -> Any:
        return Command(update={"log": [f"{error.node}: {error.error}"]}, goto="end")

    async def other(state: Log) -> dict[str, Any]:
        raise ValueError("other")

    async def fallback(state: Log, error: NodeError) -> dict[str, Any]:
        return {"log": [f"fallback for {error.node}"]}

    builder = StateGraph(Log).set_node_defaults(error_handler=api.node(fallback))
    builder.add_node("broken", api.node(broken), retry_policy=QUICK, error_handler=api.node(handled))
    builder.add_node("other", api.node(other))
    builder.add_node("end", api.node(end))
    builder.add_edge(START, "broken")
    builder.add_edge(START, "other")
    builder.add_edge("end", "other")
    graph = api.compile(builder)
    config = api.thread()
    answers = [await api.invoke(graph, {"log": [f"turn {n}"]}, config) for n in range(2)]
    return answers, await api.look(graph, config)


@scenario("error_handler_fails")
async def error_handler_fails(api: Api) -> Any:
    """The handler itself fails; on the next run the handler runs again and the node does not."""
    fails, runs = Fails(1, KeyError), []

    async def broken(state: Log) -> dict[str, Any]:
        runs.append("broken")
        raise OSError("broken")

    async def handler(state: Log) -> dict[str, Any]:
        runs.append("handler")
        fails.once("handler")
        return {"log": ["handled"]}

    builder = api.nodes(Log, begin, end)
    builder.add_node("broken", api.node(broken), error_handler=api.node(handler))
    builder.add_edge(START, "begin")
    builder.add_edge("begin", "broken")
    builder.add_edge("broken", "end")
    graph = api.compile(builder)
    config = api.thread()
    failed = await api.attempt(api.invoke(graph, {"log": ["in"]}, config), KeyError)
    seen = await api.look(graph, config)
    return failed, seen, await api.invoke(graph, None, config), runs, await api.look(graph, config)


@scenario("fanout_fails")
async def fanout_fails(api: Api) -> Any:
    """Ten Sends, each retried or handled: none of them stops the others."""
    fails = {n: Fails(2, ConnectionError) for n in range(0, 10, 3)}

    async def split(state: Log) -> Any:
        return Command(goto=[Send("work", {"item": n}) for n in range(10)])

    async def work(state: Log) -> dict[str, Any]:
        if state["item"] in fails:
            fails[state["item"]].once()
        if state["item"] == 5:
            raise ValueError("five")
        return {"log": [f"{state['item']}"]}

    async def handler(state: Log) -> dict[str, Any]:
        return {"log": ["handled"]}

    builder = api.nodes(Log, split, end)
    builder.add_node("work", api.node(work), retry_policy=QUICK, error_handler=api.node(handler))
    builder.add_edge(START, "split")
    builder.add_edge("work", "end")
    graph = api.compile(builder)
    config = api.thread()
    return await api.invoke(graph, {"log": ["in"]}, config), await api.look(graph, config)


@scenario("times_out", flavours=["async"])
async def times_out(api: Api) -> Any:
    """A node that never ends is timed out, twice retried, and then resumed."""
    never, runs = threading.Event(), []

    async def slow(state: Log) -> dict[str, Any]:
        runs.append("slow")
        if len(runs) < 4:
            await api.inner.wait(never)
        return {"log": ["slow done"]}

    builder = api.nodes(Log, begin)
    builder.add_node("slow", api.node(slow), retry_policy=QUICK, timeout=0.02)
    builder.add_edge(START, "begin")
    builder.add_edge("begin", "slow")
    graph = api.compile(builder)
    config = api.thread()
    await api.attempt(api.invoke(graph, {"log": ["in"]}, config), NodeTimeoutError)
    seen = [(s.values, s.next, s.metadata) for s in await api.history(graph, config)]
    return seen, await api.invoke(graph, None, config), runs
