"""A graph of four steps on a real database, whose runs can be held at a step or at a save until something happens."""

import asyncio
import contextlib
import itertools
import operator
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Annotated, Any, TypedDict
from uuid import uuid4

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from langgraph_ledger import LedgerSaver, StateConflict
from tests.scenarios.api import Api, run_now

DEADLINE = 60.0
STEPS = ("first", "second", "third", "fourth")


class Line(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def says(who: str) -> dict[str, Any]:
    """What a run is started with. Long enough to be stored as a row of its own."""
    return {"log": [f"{who} says {'hello ' * 60}"]}


def lines(who: str, *steps: str) -> list[str]:
    """What a whole run of one caller adds to the log, its input first."""
    return [*says(who)["log"], *(f"{step} {who}" for step in steps or STEPS)]


class Watched(LedgerSaver):
    """A LedgerSaver that tells a stage when it saves, and lets it hold a save back."""

    stage: "Stage"

    def put(self, config: RunnableConfig, *rest: Any) -> RunnableConfig:
        save = run_now(self.stage.saving(config, "put"))
        with self.stage.saved(config, "put"):
            made = super().put(config, *rest)
        run_now(self.stage.arrive(who_of(config), f"after {save}"))
        return made

    async def aput(self, config: RunnableConfig, *rest: Any) -> RunnableConfig:
        save = await self.stage.saving(config, "put")
        with self.stage.saved(config, "put"):
            made = await super().aput(config, *rest)
        await self.stage.arrive(who_of(config), f"after {save}")
        return made

    def put_writes(self, config: RunnableConfig, *rest: Any) -> None:
        run_now(self.stage.saving(config, "put_writes"))
        with self.stage.saved(config, "put_writes"):
            super().put_writes(config, *rest)

    async def aput_writes(self, config: RunnableConfig, *rest: Any) -> None:
        await self.stage.saving(config, "put_writes")
        with self.stage.saved(config, "put_writes"):
            await super().aput_writes(config, *rest)


class Stage:
    """The callers "A", "B", ... of one thread: where they are, what they ran, and what holds them."""

    def __init__(self, saver: Watched, flavour: str, durability: str) -> None:
        self.saver, self.api, self.durability = saver, Api(saver, saver, flavour, durability), durability
        saver.stage = self
        self.thread = f"thread {uuid4()}"
        self.ran: list[tuple[str, str]] = []
        self.noise: list[str] = []
        self._events: dict[tuple[Any, ...], threading.Event] = {}
        self._gates: dict[tuple[str, str], list[threading.Event]] = {}
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._lock = threading.Lock()
        self.graph = self.api.compile(self.steps())

    # graphs

    def steps(self) -> StateGraph[Any, Any, Any, Any]:
        """Four nodes, one after the other."""
        return self._chain({name: self._step(name) for name in STEPS})

    def asking(self) -> StateGraph[Any, Any, Any, Any]:
        """Two nodes around one that waits for an answer."""

        async def ask(state: Line, config: RunnableConfig) -> dict[str, Any]:
            answer = interrupt("well?")
            await self.enter(who_of(config), "ask")
            return {"log": [f"{answer} {who_of(config)}"]}

        return self._chain({"first": self._step("first"), "ask": ask, "third": self._step("third")})

    def asking_below(self) -> StateGraph[Any, Any, Any, Any]:
        """A node, a subgraph that asks, and a node. The subgraph starts from an empty log of its own."""
        builder = self.api.nodes(Line)
        builder.add_node("before", self.api.node(self._step("before")))
        builder.add_node("below", self.asking().compile())
        builder.add_node("after", self.api.node(self._step("after")))
        for edge in [(START, "before"), ("before", "below"), ("below", "after"), ("after", END)]:
            builder.add_edge(*edge)
        return builder

    def _step(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def step(state: Line, config: RunnableConfig) -> dict[str, Any]:
            await self.enter(who_of(config), name)
            return {"log": [f"{name} {who_of(config)}"]}

        return step

    def _chain(self, nodes: dict[str, Callable[..., Coroutine[Any, Any, Any]]]) -> StateGraph[Any, Any, Any, Any]:
        builder = self.api.nodes(Line)
        for name, node in nodes.items():
            builder.add_node(name, self.api.node(node))
        names = [START, *nodes, END]
        for before, after in itertools.pairwise(names):
            builder.add_edge(before, after)
        return builder

    # what the graph and the saver report

    async def enter(self, who: str, step: str) -> None:
        self.ran.append((who, step))
        await self.arrive(who, step)

    async def saving(self, config: RunnableConfig, what: str) -> str:
        """Called before a save; its name. Saves of subgraphs are not counted."""
        if config["configurable"].get("checkpoint_ns"):
            return f"{what} below"
        save = f"{what} {self._count(who_of(config), 'begun', what)}"
        await self.arrive(who_of(config), save)
        return save

    @contextlib.contextmanager
    def saved(self, config: RunnableConfig, what: str) -> Iterator[None]:
        who = who_of(config)
        try:
            yield
        except StateConflict:
            self.event("refused", who).set()
            self.event("refused").set()
            raise
        if not config["configurable"].get("checkpoint_ns"):
            self.event("saved", who, what, self._count(who, "ended", what)).set()
            if self._counts[who, "ended", "put"] >= 2 and self._counts[who, "ended", "put_writes"] >= 1:
                self.event("input saved", who).set()

    def _count(self, who: str, state: str, what: str) -> int:
        with self._lock:
            self._counts[who, state, what] += 1
            return self._counts[who, state, what]

    async def arrive(self, who: str, place: str) -> None:
        gates = self._gates.get((who, place), [])
        before, after = gates[:1], gates[1:]
        for event in before:
            await self.api.inner.wait(event)
        self.event("at", who, place).set()
        for event in after:
            await self.api.inner.wait(event)

    # what a test does

    def input_saved(self, who: str) -> threading.Event | None:
        """When all that a run saves before its first node is saved: the input, and what it made of the state."""
        return None if self.durability == "exit" else self.event("input saved", who)

    def event(self, *key: Any) -> threading.Event:
        return self._events.setdefault(key, threading.Event())

    def hold(self, who: str, place: str, until: threading.Event, *, once: threading.Event | None = None) -> None:
        """Holds a caller at a step or at its n-th save ("put 2"); it counts as there `once` that has happened."""
        at_once = threading.Event()
        at_once.set()
        self._gates[who, place] = [once or at_once, until]

    def config(self, who: str) -> RunnableConfig:
        return {"configurable": {"thread_id": self.thread, "who": who}}

    async def at(self, who: str, place: str) -> None:
        """Waits until a caller is there."""
        await self.api.wait(self.event("at", who, place))

    async def attempt(self, who: str, input: Any = None, graph: Any = None) -> Any:
        """What a run of the graph returned or raised. Whoever waits for its caller's steps need not wait any longer."""
        given = says(who) if input is None else input
        try:
            return await self.api.invoke(graph or self.graph, given, self.config(who))
        except Exception as error:
            return error
        finally:
            for step in (*STEPS, "ask"):
                self.event("at", who, step).set()

    async def overtaken(self, work: Callable[[], Coroutine[Any, Any, Any]], rival: Callable[[], Any]) -> list[Any]:
        """What `work` of "A" and its rival return. "A", which is to be held until it is "passed", goes on after it."""

        async def passing() -> Any:
            try:
                return await rival()
            finally:
                self.event("passed").set()

        return await self.api.gather(work, passing)

    def steps_of(self, who: str) -> list[str]:
        return [step for name, step in self.ran if name == who]


def who_of(config: RunnableConfig) -> str:
    return str(config["configurable"].get("who", "nobody"))


def perform(
    url: str,
    flavour: str,
    durability: str,
    scene: Callable[[Stage], Awaitable[Any]],
    *,
    trace: Callable[[str, str], float | None] | None = None,
    **options: Any,
) -> tuple[Stage, Any]:
    """Plays a scene on a stage of its own, whose saver has these options; the stage, and what the scene returned."""
    saver = Watched(url, **options)
    saver._driver.trace = trace
    stage = Stage(saver, flavour, durability)

    async def to_the_end() -> Any:
        try:
            return await scene(stage)
        finally:
            await stage.api._call(saver.close, saver.aclose)

    async def timely() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: stage.noise.append(context["message"]))
        async with asyncio.timeout(DEADLINE):
            return await to_the_end()

    return stage, asyncio.run(timely()) if flavour == "async" else run_now(to_the_end())
