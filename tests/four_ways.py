"""One way to call a saver and its graphs, sync or async, so that one test body covers both APIs."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, closing
from dataclasses import dataclass
from itertools import islice
from typing import Any


@dataclass(frozen=True)
class Backend:
    """An empty database: what to open, and which of the two it is ("sqlite" or "postgres")."""

    kind: str
    url: str


class Flavoured:
    """A saver whose methods, and those of graphs compiled with it, are called in one flavour.

    Without a runner a call is the plain one; with a runner it is the async twin (`a` + name), run in the runner's loop.
    What a call yields comes back as a list. Nothing else is changed: what is raised is raised.
    """

    def __init__(self, saver: Any, runner: asyncio.Runner | None) -> None:
        self.saver = saver
        self.runner = runner

    @property
    def is_async(self) -> bool:
        return self.runner is not None

    def on(self, target: Any, method: str, /, *args: Any, take: int | None = None, **kwargs: Any) -> Any:
        """Call a method of a saver or a graph; with `take`, close what it yields after so many items."""
        if self.runner is None:
            result = getattr(target, method)(*args, **kwargs)
            return _items(result, take) if isinstance(result, Iterator) else result
        return self.runner.run(_settled(getattr(target, f"a{method}"), take, args, kwargs))

    # the saver

    def call(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        return self.on(self.saver, method, *args, **kwargs)

    def put(self, *args: Any, **kwargs: Any) -> Any:
        return self.call("put", *args, **kwargs)

    def put_writes(self, *args: Any, **kwargs: Any) -> None:
        self.call("put_writes", *args, **kwargs)

    def get_tuple(self, *args: Any, **kwargs: Any) -> Any:
        return self.call("get_tuple", *args, **kwargs)

    def list(self, *args: Any, **kwargs: Any) -> Any:
        return self.call("list", *args, **kwargs)

    def close(self) -> None:
        self.call("close")

    # a graph compiled with the saver

    def invoke(self, graph: Any, *args: Any, **kwargs: Any) -> Any:
        return self.on(graph, "invoke", *args, **kwargs)

    def stream(self, graph: Any, *args: Any, take: int | None = None, **kwargs: Any) -> Any:
        return self.on(graph, "stream", *args, take=take, **kwargs)

    def get_state(self, graph: Any, *args: Any, **kwargs: Any) -> Any:
        return self.on(graph, "get_state", *args, **kwargs)

    def get_state_history(self, graph: Any, *args: Any, **kwargs: Any) -> Any:
        return self.on(graph, "get_state_history", *args, **kwargs)

    def update_state(self, graph: Any, *args: Any, **kwargs: Any) -> Any:
        return self.on(graph, "update_state", *args, **kwargs)


def _items(iterator: Any, take: int | None) -> Any:
    if take is None:
        return list(iterator)
    with closing(iterator):
        return list(islice(iterator, take))


async def _settled(method: Callable[..., Any], take: int | None, args: Any, kwargs: Any) -> Any:
    result = method(*args, **kwargs)
    if not isinstance(result, AsyncIterator):
        return await result
    items: list[Any] = []
    async with aclosing(result):
        while take is None or len(items) < take:
            try:
                items.append(await anext(result))
            except StopAsyncIteration:
                break
    return items
