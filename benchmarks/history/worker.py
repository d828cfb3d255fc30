"""What a worker does in one life: random operations of an agent on a few threads that others work on too."""

import asyncio
import operator
import random
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict
from uuid import uuid4

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.errors import EmptyInputError
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from benchmarks.history.records import DRAFT, OP, Journal, RecordedSaver, digest
from langgraph_ledger import Batched, StateConflict
from langgraph_ledger.errors import DatabaseUnavailable, InvalidInput
from langgraph_ledger.policies import Flush

KEPT = 30
"""How many entries of its log a thread's state holds, so that it does not grow for ever."""
LONGEST = 600
"""Characters of an entry. Short ones stand in a checkpoint's body, long ones in rows of their own."""
PLANS = ("plain", "tool", "tool", "ask", "below")
CLAIM = (r"l\.version = (:read_version|%\(read_version\)s::bigint)", "1 = 1")
"""The comparison that makes a claim a check, and what stands there without it."""


POLICIES: dict[str, Flush] = {"always": "always", "batched": Batched(10, 0.05), "important": "important"}


@dataclass(frozen=True)
class Life:
    """What a worker is told. `lanes`: how many operations it does at once; `checked`: with the version check."""

    name: str
    url: str
    threads: tuple[str, ...]
    operations: int
    lanes: int
    asynchronous: bool
    checked: bool = True
    flush: str = "always"


def live(life: Life, end: int) -> None:
    """One life, from opening the database to closing it, unless it is killed."""
    saver = RecordedSaver(life.url, flush=POLICIES[life.flush], working_channels={DRAFT})
    saver.journal = Journal(end, life.name)
    if not life.checked:
        take_the_check_away(saver)
    with saver, ThreadPoolExecutor(life.lanes) as lanes:
        for lane in [lanes.submit(Lane(life, number, saver).work) for number in range(life.lanes)]:
            lane.result()


def take_the_check_away(saver: RecordedSaver) -> None:
    """Lets every claim of this process succeed, whatever version it states."""
    texts = saver._driver._dialect.texts
    texts["claim"], count = re.subn(*CLAIM, texts["claim"])
    assert count == 1, "the claim reads otherwise now"


class Log(TypedDict, total=False):
    log: Annotated[list[str], lambda old, new: (old + new)[-KEPT:]]
    plan: str
    draft: str


class Below(TypedDict):
    log: Annotated[list[str], operator.add]


class Lane:
    """One operation after another. Its choices depend on the name of the life and on what it finds, on nothing else."""

    def __init__(self, life: Life, number: int, saver: RecordedSaver) -> None:
        self.life, self.number, self.saver, self.journal = life, number, saver, saver.journal
        self.chance = random.Random(f"{life.name}/{number}")
        self.graph = self._graph()

    def work(self) -> None:
        with asyncio.Runner() as runner:
            self.runner = runner
            for count in range(self.life.operations):
                try:
                    self._operate(f"{self.life.name}/{self.number}/{count}")
                except (StateConflict, DatabaseUnavailable, EmptyInputError, InvalidInput):
                    continue

    # --- operations

    def _operate(self, name: str) -> None:
        thread = self.chance.choice(self.life.threads)
        config: RunnableConfig = {"configurable": {"thread_id": thread, OP: name}}
        look: RunnableConfig = {"configurable": {"thread_id": thread, OP: "look"}}
        kind = self._choose(thread, bool(self.graph.get_state(look).interrupts))
        old = list(self.graph.get_state_history(look, limit=8)) if kind == "fork" else []
        with self.journal.call("operation", thread, kind=kind, **{OP: name}) as answer:
            if kind == "delete":
                self._on(self.saver, "delete_thread", thread)
            elif kind == "prune":
                self._on(self.saver, "prune", [thread], keep_last=self.chance.choice((1, 3)))
            elif kind == "copy":
                self._on(self.saver, "copy_thread", thread, copy_of(thread, name))
            elif kind in ("update", "fork"):
                if old:
                    found = self.chance.choice(old).config["configurable"]
                    config["configurable"] |= {"checkpoint_ns": "", "checkpoint_id": found["checkpoint_id"]}
                self._on(self.graph, "update_state", config, {"log": [self._entry(name)]}, as_node="last")
            else:
                durability = self.chance.choice(("sync", "async", "exit"))
                result = self._on(self.graph, "invoke", self._input(kind, name), config, durability=durability)
                if "__interrupt__" not in result:  # with one, LangGraph may add what other tasks have written
                    answer["log"] = digest(result.get("log", []))

    def _choose(self, thread: str, asked: bool) -> str:
        """Only the last thread is ever deleted or pruned: on the others nothing may be missing for that reason."""
        kinds = {"resume": 12 if asked else 0, "turn": 12, "update": 3, "fork": 3, "copy": 1}
        if thread == self.life.threads[-1]:
            kinds |= {"delete": 2, "prune": 3}
        return self.chance.choices(list(kinds), list(kinds.values()))[0]

    def _input(self, kind: str, name: str) -> Any:
        if kind == "resume":
            return Command(resume=self._entry(name))
        return {"log": [self._entry(name)], "plan": self.chance.choice(PLANS)}

    def _on(self, target: Any, method: str, *args: Any, **options: Any) -> Any:
        if self.life.asynchronous:
            return self.runner.run(getattr(target, f"a{method}")(*args, **options))
        return getattr(target, method)(*args, **options)

    def _entry(self, name: str) -> str:
        """Text that is never the same twice. (Nodes run side by side: what they do must not disturb the choices.)"""
        unique = uuid4()
        return f"{name} {unique.hex} " + "x" * (unique.int % LONGEST)

    # --- the graph

    def _graph(self) -> Any:
        """Two nodes side by side, one of which does what the turn's plan says, and a last one."""
        builder = StateGraph(Log)
        nodes = {"plain": self._says("plain"), "tool": self._tool(), "ask": _ask, "below": self._below()}
        for name, node in {**nodes, "beside": self._says("beside"), "last": self._says("last")}.items():
            builder.add_node(name, node)
        builder.add_conditional_edges(START, lambda state: [state.get("plan", "plain"), "beside"], [*nodes, "beside"])
        for name in [*nodes, "beside"]:
            builder.add_edge(name, "last")
        return builder.add_edge("last", END).compile(checkpointer=self.saver)

    def _says(self, node: str) -> Any:
        def says(state: Any, config: RunnableConfig) -> Any:
            entry = self._entry(f"{config['configurable'][OP]} {node}")
            return {"log": [entry], **({DRAFT: entry} if node == "last" else {})}

        return says

    def _tool(self) -> Callable[[Any, RunnableConfig], Any]:
        @tool
        def effect(name: str) -> str:
            """Has an effect, or fails."""
            self.journal.say(began=name)
            if name.endswith("3"):
                raise ValueError("no effect")
            return name * 10

        def node(state: Any, config: RunnableConfig) -> Any:
            conf = config["configurable"]
            name = uuid4().hex
            call = {"type": "tool_call", "id": name, "name": "effect", "args": {"name": name}}
            with self.journal.call("tool", conf["thread_id"], name=name, **{OP: conf[OP]}) as answer:
                try:
                    effect.invoke(call, config)
                except ValueError:
                    answer["failed"] = True
            return {"log": [name]}

        return node

    def _below(self) -> Callable[[Any, RunnableConfig], Any]:
        builder = StateGraph(Below).add_sequence([("one", self._says("one")), ("two", self._says("two"))])
        graph = builder.add_edge(START, "one").compile()
        return lambda state, config: {"log": graph.invoke({"log": []}, config)["log"]}


def copy_of(thread: str, operation: str) -> str:
    """The name of the copy of a thread that an operation makes."""
    return f"copy of {thread} by {operation}"


def _ask(state: Any) -> Any:
    return {"log": [interrupt("well?")]}
