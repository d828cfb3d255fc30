"""What a process does while it is killed: calls of a saver one after another, and a graph."""

import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.serde.types import ERROR, INTERRUPT
from langgraph.graph import END, START, StateGraph

from langgraph_ledger import StateConflict
from tests.four_ways import Flavoured
from tests.recovery.stage import agent, call, made


class State(TypedDict):
    items: Annotated[list[str], operator.add]


def graph_of(saver: Any, ran: Callable[[str], None]) -> Any:
    """Two nodes, a then b; each says that it ran and adds its name."""

    def node(name: str) -> Callable[[State], State]:
        def act(state: State) -> State:
            ran(name)
            return {"items": [name]}

        return act

    builder = StateGraph(State)
    builder.add_node("a", node("a"))
    builder.add_node("b", node("b"))
    builder.add_edge(START, "a")
    builder.add_edge("a", "b")
    builder.add_edge("b", END)
    return builder.compile(checkpointer=saver)


@dataclass
class Actor:
    """A saver at work on one thread, and what it has read of it."""

    on: Flavoured
    thread: str
    read: Any = None

    def config(self, checkpoint: str | None = None, namespace: str = "") -> dict[str, Any]:
        conf = {"thread_id": self.thread, "checkpoint_ns": namespace}
        return {"configurable": conf if checkpoint is None else {**conf, "checkpoint_id": checkpoint}}


Call = Callable[[Actor], Any]


def identifier(number: int) -> str:
    return f"{number:08x}-0000-6000-8000-000000000000"


def checkpoint(number: int) -> dict[str, Any]:
    """The same in every process, and one that a graph can go on from. Two of its values have rows of their own."""
    version = f"{number:010}.000000"
    values = {"items": [f"item {number}"], "large": f"{number}" * 300, "larger": f"{number}" * 3000}
    return {
        "v": 4,
        "id": identifier(number),
        "ts": "2030-01-01T00:00:00+00:00",
        "channel_values": values,
        "channel_versions": dict.fromkeys(values, version),
        "versions_seen": {},
        "updated_channels": None,
    }


def read(actor: Actor) -> None:
    actor.read = actor.on.get_tuple(actor.config())


def put(number: int, **metadata: Any) -> Call:
    def call(actor: Actor) -> None:
        parent = actor.read.config if actor.read else actor.config()
        if number > 1 and not actor.read:
            parent = actor.config(identifier(number - 1))
        new = checkpoint(number)
        actor.on.put(parent, new, {"source": "loop", "step": number, **metadata}, new["channel_versions"])

    return call


def put_next(number: int) -> Call:
    """The put of a run that has put the checkpoint before."""

    def call(actor: Actor) -> None:
        new = checkpoint(number)
        parent = actor.config(identifier(number - 1))
        actor.on.put(parent, new, {"source": "loop", "step": number}, new["channel_versions"])

    return call


def put_thinking(number: int) -> Call:
    """The same, with a value of a working channel."""

    def call(actor: Actor) -> None:
        new = checkpoint(number)
        new["channel_values"]["thought"] = f"thought {number}"
        new["channel_versions"]["thought"] = new["channel_versions"]["items"]
        parent = actor.config(identifier(number - 1) if number > 1 else None)
        actor.on.put(parent, new, {"source": "loop", "step": number}, new["channel_versions"])

    return call


def put_nested(number: int, namespace: str = "sub:1") -> Call:
    def call(actor: Actor) -> None:
        root = actor.read.config["configurable"]["checkpoint_id"]
        config = actor.config(identifier(number - 1) if number > 11 else None, namespace)
        config["configurable"] |= {"__pregel_task_id": "task", "checkpoint_map": {"": root}}
        new = checkpoint(number)
        actor.on.put(config, new, {"source": "loop", "step": number}, new["channel_versions"])

    return call


def put_writes(number: int, task: str, *writes: tuple[str, Any]) -> Call:
    def call(actor: Actor) -> None:
        known = actor.read.config["configurable"]["checkpoint_id"] if actor.read else None
        config = actor.config(known if known == identifier(number) else identifier(number))
        actor.on.put_writes(config, writes or [("items", [task]), ("large", "w" * 3000)], task)

    return call


def overtake(actor: Actor) -> None:
    """Another run reads and writes; `actor.read` is old then."""
    other = Actor(actor.on, actor.thread)
    read(other)
    put(2)(other)


def refused(actor: Actor) -> None:
    try:
        put(3)(actor)
    except StateConflict:
        return
    raise AssertionError("not refused")


@dataclass(frozen=True)
class Scenario:
    """Calls to make ready, calls to be killed in, and the saver's options."""

    ready: Sequence[Call]
    calls: Sequence[Call]
    options: Mapping[str, Any] = field(default_factory=dict)


FIRST = [put(1, run_id="run-1"), put_writes(1, "one")]
THREE = [*FIRST, put(2, run_id="run-2"), put_writes(2, "two"), put(3, run_id="run-1")]

SCENARIOS = {
    "new thread": Scenario([], [read, put(1), put_writes(1, "one")]),
    "existing thread": Scenario(
        FIRST, [read, put(2), put_writes(2, "two"), put_writes(2, "two", (INTERRUPT, "?")), put_next(3)]
    ),
    "put_writes": Scenario(FIRST, [read, put_writes(1, "two"), put_writes(1, "three", (ERROR, "!"), ("items", []))]),
    "nested": Scenario(FIRST, [read, put_nested(11), put_nested(12)]),
    "delete_thread": Scenario(THREE, [lambda a: a.on.call("delete_thread", a.thread)]),
    "delete_for_runs": Scenario(
        [*FIRST, lambda a: put(2, run_id=a.thread)(a)], [lambda a: a.on.call("delete_for_runs", [a.thread])]
    ),
    "prune, keep_latest": Scenario(THREE, [lambda a: a.on.call("prune", [a.thread], strategy="keep_latest")]),
    "prune, delete": Scenario(THREE, [lambda a: a.on.call("prune", [a.thread], strategy="delete")]),
    "copy_thread": Scenario(THREE, [lambda a: a.on.call("copy_thread", a.thread, f"{a.thread}-copy")]),
    "refused": Scenario([*FIRST, read, overtake], [refused]),
    "working context": Scenario(
        [],
        [
            read,
            put_thinking(1),
            put_writes(1, "one", ("thought", "what was written")),
            put_thinking(2),
            lambda a: a.on.call("delete_thread", a.thread),
        ],
        {"working_channels": {"thought"}},
    ),
    "many": Scenario([put(1)], [read, put(2), *(put_next(n) for n in range(3, 40))]),
}


def run_graph(actor: Actor, durability: str, ran: Callable[[str], None]) -> Any:
    graph = graph_of(actor.on.saver, ran)
    config = {"configurable": {"thread_id": actor.thread}}
    return actor.on.invoke(graph, {"items": ["in"]}, config, durability=durability)


def paying(
    four: Flavoured, ids: Sequence[str], say: Callable[[str], None], trace: Callable[[str, str], None], **options: Any
) -> Any:
    """A graph whose tool does something outside of the state, once for each of its calls, and says so."""

    def pay(what: str) -> str:
        trace("before", "tool")
        say(f"effect {what}")
        trace("after", "tool")
        return f"{what} is paid"

    graph = agent(four.saver, [made(four, pay, "pay")], [call(i, i, "pay") for i in ids], **options)
    return graph


def run_tools(actor: Actor, job: Any, say: Callable[[str], None], trace: Callable[[str, str], None]) -> None:
    graph = paying(actor.on, job["calls"], say, trace)
    config = {"configurable": {"thread_id": actor.thread}}
    actor.on.invoke(graph, {"messages": ["go"]}, config, durability=job["durability"])


GROUP = 3


def put_together(actor: Actor) -> None:
    """Three threads of execution save, each its own thread, and what they save waits for one commit."""
    driver = actor.on.saver._driver
    saves = [
        threading.Thread(target=put(1), args=[Actor(actor.on, f"{actor.thread}-{number}")]) for number in range(GROUP)
    ]
    with driver._write_lock:
        for save in saves:
            save.start()
        while len(driver._queue) < GROUP:
            pass
    for save in saves:
        save.join()
