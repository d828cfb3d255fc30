"""Real graphs, each told once and run on any saver, in any durability, through the sync and the async interface.

A scenario is an `async def` that receives an `Api` and returns what a user of the graph can see. `run` drives it to its
end and brings the answer into the normal form of `normalise`, so that the same scenario on two savers gives two equal
values or the savers differ. `CASES` is every combination worth running.
"""

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from .api import Api, run_now
from .normalise import normal_form

DURABILITIES = ("sync", "async", "exit")
FLAVOURS = ("sync", "async", "mixed")
"""sync: sync nodes under `invoke`. async: async nodes under `ainvoke`. mixed: sync nodes in threads under `ainvoke`."""

Body = Callable[[Api], Awaitable[Any]]


@dataclass(frozen=True)
class Scenario:
    name: str
    body: Body
    durability: tuple[str, ...]
    flavours: tuple[str, ...]


@dataclass(frozen=True)
class Case:
    scenario: Scenario
    durability: str
    flavour: str

    def __str__(self) -> str:
        return f"{self.scenario.name}-{self.durability}-{self.flavour}"

    @property
    def asynchronous(self) -> bool:
        return self.flavour != "sync"


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    name: str, *, durability: Sequence[str] = DURABILITIES, flavours: Sequence[str] = FLAVOURS
) -> Callable[[Body], Body]:
    """Register a scenario for the given durability modes and flavours (all of them unless said otherwise)."""

    def register(body: Body) -> Body:
        assert name not in SCENARIOS, f"two scenarios are called {name}"
        SCENARIOS[name] = Scenario(name, body, tuple(durability), tuple(flavours))
        return body

    return register


Saver = BaseCheckpointSaver[Any]


async def arun(case: Case, saver: Saver, second: Saver | None = None) -> Any:
    """Run one case in the running event loop; the result is comparable JSON. `second` sees the same data as `saver`."""
    return normal_form(await case.scenario.body(Api(saver, second or saver, case.flavour, case.durability)))


def run(case: Case, saver: Saver, second: Saver | None = None) -> Any:
    """`arun`, in no event loop or in one of its own."""
    return (asyncio.run if case.asynchronous else run_now)(arun(case, saver, second))


for _topic in (
    "turns", "interrupts", "breakpoints", "subgraphs", "stateful_subgraphs", "fanout", "functional", "failures",
    "time_travel", "updates", "streams", "concurrent", "everyday", "delta",
):  # fmt: skip
    importlib.import_module(f".{_topic}", __name__)

CASES = [
    Case(each, durability, flavour)
    for each in SCENARIOS.values()
    for durability in each.durability
    for flavour in each.flavours
]
