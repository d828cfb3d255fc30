"""One interface over LangGraph's sync and async ones, so that a scenario is written once.

Scenario bodies, nodes and tasks are `async def`. In the sync flavour nothing in them ever suspends, so `run_now` takes
them to their end in one step and LangGraph is given ordinary functions.
"""

import asyncio
import contextvars
import functools
import itertools
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.graph import END, START, StateGraph

from .normalise import namespaces

PATIENCE = 30.0
"""Seconds before an event that never comes fails the scenario."""


def run_now(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    raise RuntimeError("a scenario suspended in the sync flavour")


def _as_function(function: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return run_now(function(*args, **kwargs))

    return wrapper


class Stream:
    """A stream that is stepped with `async for` or `anext` in both flavours and can be closed half-way."""

    def __init__(self, chunks: Iterator[Any] | AsyncIterator[Any]) -> None:
        self._chunks: Any = chunks

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> Any:
        if hasattr(self._chunks, "__anext__"):
            return await self._chunks.__anext__()
        try:
            return next(self._chunks)
        except StopIteration:
            pass
        raise StopAsyncIteration

    async def aclose(self) -> None:
        if hasattr(self._chunks, "aclose"):
            await self._chunks.aclose()
        else:
            self._chunks.close()


class Api:
    """What a scenario may do. `inner` is the same for use inside nodes, where the mixed flavour is sync."""

    def __init__(
        self, saver: BaseCheckpointSaver[Any], second: BaseCheckpointSaver[Any], flavour: str, durability: str | None
    ) -> None:
        self.saver, self.second = saver, second
        self.flavour = flavour
        self.durability = durability
        self.asynchronous = flavour != "sync"
        self.inner = self if durability is None else Api(saver, second, "async" if flavour == "async" else "sync", None)

    # building graphs

    def node(self, function: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
        """A node, task or condition for this flavour."""
        return function if self.inner.asynchronous else _as_function(function)

    def chain(
        self, state: Any, *nodes: Callable[..., Coroutine[Any, Any, Any]], output: Any = None
    ) -> StateGraph[Any, Any, Any, Any]:
        """A builder with the nodes, named as the functions are, one after the other."""
        builder = self.nodes(state, *nodes, output=output)
        names = [START, *(node.__name__ for node in nodes), END]
        for before, after in itertools.pairwise(names):
            builder.add_edge(before, after)
        return builder

    def nodes(
        self, state: Any, *nodes: Callable[..., Coroutine[Any, Any, Any]], output: Any = None
    ) -> StateGraph[Any, Any, Any, Any]:
        """A builder with the nodes, named as the functions are, and no edges."""
        builder: StateGraph[Any, Any, Any, Any] = StateGraph(state, output_schema=output)
        for node in nodes:
            builder.add_node(node.__name__, self.node(node))
        return builder

    def compile(self, builder: StateGraph[Any, Any, Any, Any], **options: Any) -> Any:
        return builder.compile(checkpointer=self.saver, **options)

    def thread(self, **configurable: Any) -> RunnableConfig:
        """A config with a thread of its own."""
        return {"configurable": {"thread_id": f"thread {uuid4()}", **configurable}}

    # running graphs

    async def _call(self, sync: Callable[..., Any], asynchronous: Callable[..., Awaitable[Any]], *args: Any, **kw: Any):
        return await asynchronous(*args, **kw) if self.asynchronous else sync(*args, **kw)

    async def invoke(self, graph: Any, input: Any, config: RunnableConfig | None = None, **options: Any) -> Any:
        options.setdefault("durability", self.durability)
        return await self._call(graph.invoke, graph.ainvoke, input, config, **options)

    async def call(self, runnable: Any, input: Any, config: RunnableConfig) -> Any:
        """What is not a graph itself."""
        return await self._call(runnable.invoke, runnable.ainvoke, input, config)

    def stream(self, graph: Any, input: Any, config: RunnableConfig, **options: Any) -> Stream:
        options.setdefault("durability", self.durability)
        return Stream((graph.astream if self.asynchronous else graph.stream)(input, config, **options))

    async def chunks(self, graph: Any, input: Any, config: RunnableConfig, **options: Any) -> list[Any]:
        return [chunk async for chunk in self.stream(graph, input, config, **options)]

    async def attempt(self, work: Awaitable[Any], expected: type[BaseException]) -> Any:
        """What `work` raised, which must be `expected`."""
        try:
            result = await work
        except expected as error:
            return error
        raise AssertionError(f"no {expected.__name__}, but {result!r}")

    async def batch(self, graph: Any, inputs: list[Any], configs: list[RunnableConfig]) -> list[Any]:
        return await self._call(graph.batch, graph.abatch, inputs, configs, durability=self.durability)

    async def gather(self, *work: Callable[[], Coroutine[Any, Any, Any]]) -> list[Any]:
        """All results; each piece of work runs in a thread, or in an asyncio task, of its own."""
        if self.asynchronous:
            return list(await asyncio.gather(*(each() for each in work)))
        with ThreadPoolExecutor(len(work)) as pool:
            return [future.result() for future in [pool.submit(lambda w=each: run_now(w())) for each in work]]

    async def in_fresh_context(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """The result of `work`, run in an empty context: nothing that this run set in one can be seen."""
        context = contextvars.Context()
        if self.asynchronous:
            return await asyncio.get_running_loop().create_task(work(), context=context)
        return context.run(lambda: run_now(work()))

    async def wait(self, event: threading.Event) -> None:
        """Wait for something that happens elsewhere in the scenario."""
        if not self.asynchronous:
            assert event.wait(PATIENCE), "the event never came"
            return
        async with asyncio.timeout(PATIENCE):
            while not event.is_set():
                await asyncio.sleep(0.001)

    async def pause(self) -> None:
        """Let others go on for a moment."""
        await asyncio.sleep(0.001) if self.asynchronous else time.sleep(0.001)

    # reading and changing state

    async def get_state(self, graph: Any, config: RunnableConfig, **options: Any) -> Any:
        return await self._call(graph.get_state, graph.aget_state, config, **options)

    async def history(self, graph: Any, config: RunnableConfig, **options: Any) -> list[Any]:
        if self.asynchronous:
            return [state async for state in graph.aget_state_history(config, **options)]
        return list(graph.get_state_history(config, **options))

    async def update_state(self, graph: Any, config: RunnableConfig, values: Any, **options: Any) -> RunnableConfig:
        return await self._call(graph.update_state, graph.aupdate_state, config, values, **options)

    async def bulk_update_state(self, graph: Any, config: RunnableConfig, supersteps: Any) -> RunnableConfig:
        return await self._call(graph.bulk_update_state, graph.abulk_update_state, config, supersteps)

    async def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await self._call(self.saver.get_tuple, self.saver.aget_tuple, config)

    async def list(self, config: RunnableConfig, **options: Any) -> list[CheckpointTuple]:
        if self.asynchronous:
            return [found async for found in self.saver.alist(config, **options)]
        return list(self.saver.list(config, **options))

    async def delete_thread(self, config: RunnableConfig) -> None:
        thread_id = config["configurable"]["thread_id"]
        await self._call(self.saver.delete_thread, self.saver.adelete_thread, thread_id)

    async def look(self, graph: Any, config: RunnableConfig) -> dict[str, Any]:
        """All that can be seen of a thread: its state, its subgraphs', its history, and what the saver holds."""
        state = await self.get_state(graph, config)
        deep = await self.get_state(graph, config, subgraphs=True)
        history = await self.history(graph, config)
        return {"1 state": state, "2 deep": deep, "3 history": history, "4 saver": await self.stored(config)}

    async def stored(self, config: RunnableConfig) -> Any:
        """Every checkpoint of a thread with its pending writes, newest first, by namespace."""
        thread: RunnableConfig = {"configurable": {"thread_id": str(config["configurable"]["thread_id"])}}
        found_in: dict[str, list[CheckpointTuple]] = {}
        for found in await self.list(thread):
            found_in.setdefault(found.config["configurable"]["checkpoint_ns"], []).append(found)
        for name, tuples in found_in.items():
            where: RunnableConfig = {"configurable": {**thread["configurable"], "checkpoint_ns": name}}
            assert await self.list(where) == tuples, "a namespace lists otherwise than its thread"
            assert await self.get_tuple(where) == tuples[0], "the latest checkpoint is not the first listed"
        return namespaces(found_in)
