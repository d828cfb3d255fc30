"""A worker process of the demo: `python -m langgraph_ledger.demo.worker`, started by `processes`.

It reads what to do as one line of JSON from standard input (never from its arguments: a database URL may hold a
password, and arguments are visible to everybody), and reports each event as a line of JSON.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata, CheckpointTuple
from langgraph.config import get_config

from langgraph_ledger import LedgerSaver, StateConflict
from langgraph_ledger.demo.journal import Journal
from langgraph_ledger.demo.tickets import build_graph

# Long enough that the progress display can be followed, short enough that nobody waits for it.
PACE = 0.05


@dataclass(frozen=True)
class Orders:
    """What a worker is told: each thread with the message to answer, and where to stand still.

    `hold` names a (thread, tool) at which the worker waits to be killed; with `rival` it waits, once it has read the
    thread, until it hears that the other one has too.
    """

    worker: str
    url: str
    journal: str
    threads: list[tuple[str, str]]
    hold: tuple[str, str] | None = None
    rival: bool = False

    def line(self) -> str:
        """The orders as one line of JSON."""
        return json.dumps(asdict(self)) + "\n"


class Reporter:
    """Tells the journal first and then the parent, and hears from the parent."""

    def __init__(self, orders: Orders, heard: queue.Queue[str]) -> None:
        self.hold = tuple(orders.hold) if orders.hold else None
        self._journal = Journal(Path(orders.journal), orders.worker)
        self._heard = heard
        # Events own the real standard output; whatever else is printed in this process goes to standard error.
        self._parent = os.dup(1)
        sys.stdout = sys.stderr

    def tell(self, what: str, **facts: Any) -> None:
        """Report one event."""
        os.write(self._parent, self._journal.write(what, **facts).line().encode())

    def wait(self) -> None:
        """Stand still until the parent says something."""
        self._heard.get()

    def step(self, name: str) -> None:
        """Record that the current LangGraph task is running, and stand still if this is the place."""
        here = _place()
        self.tell("began", name=name, **here)
        if self.hold == (here["thread"], name):
            self.tell("waiting", name=name, **here)
            self.wait()
        time.sleep(PACE)

    def effect(self, name: str, call_id: str) -> None:
        """Record that the world outside has changed."""
        self.tell("effect", name=name, detail={"call": call_id}, **_place())


class WatchedSaver(LedgerSaver):
    """The saver, and a note of each acknowledgement in the moment in which LangGraph gets it."""

    def __init__(self, url: str, reporter: Reporter, after_read: Callable[[CheckpointTuple | None], None]) -> None:
        super().__init__(url)
        self._reporter = reporter
        self._after_read = after_read

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        found = super().get_tuple(config)
        self._after_read(found)
        return found

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        saved = super().put(config, checkpoint, metadata, new_versions)
        self._reporter.tell(
            "checkpoint", thread=_thread(config), step=metadata["step"], detail={"checkpoint": str(checkpoint["id"])}
        )
        return saved

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        super().put_writes(config, writes, task_id, task_path)
        self._reporter.tell("saved", thread=_thread(config), task=task_id)


def work(orders: Orders, reporter: Reporter) -> None:
    """Answer each ticket: begin it, or go on where the last acknowledged write left it, or leave it if it is done."""
    opened = time.perf_counter()
    with WatchedSaver(orders.url, reporter, lambda found: None) as saver:
        graph = build_graph(reporter, saver, signature="the support desk")
        for thread, text in orders.threads:
            config: RunnableConfig = {"configurable": {"thread_id": thread}}
            started = time.perf_counter()
            found = saver.get_tuple(config)
            now = time.perf_counter()
            times = {"ms": (now - started) * 1000, "since_opening": (now - opened) * 1000}
            checkpoint = str(found.checkpoint["id"]) if found else ""
            reporter.tell("loaded", thread=thread, detail={**times, "checkpoint": checkpoint})
            state = graph.get_state(config)
            if found is None:
                reporter.tell("started", thread=thread)
                graph.invoke({"messages": [HumanMessage(text)]}, config, durability="sync")
            elif state.tasks:  # not `next`: it leaves out tasks that have written
                reporter.tell("resumed", thread=thread, detail={"next": list(state.next)})
                graph.invoke(None, config, durability="sync")
            else:
                reporter.tell("skipped", thread=thread)


def answer(orders: Orders, reporter: Reporter) -> None:
    """Answer one message on a thread that another worker answers at the same time."""
    [(thread, text)] = orders.threads

    def meet(found: CheckpointTuple | None) -> None:
        reporter.tell("read", thread=thread, detail={"checkpoint": str(found.checkpoint["id"]) if found else ""})
        reporter.wait()

    with WatchedSaver(orders.url, reporter, meet) as saver:
        graph = build_graph(reporter, saver, signature=orders.worker)
        try:
            end = graph.invoke(
                {"messages": [HumanMessage(text)]}, {"configurable": {"thread_id": thread}}, durability="sync"
            )
        except StateConflict as conflict:
            reporter.tell("refused", thread=thread, detail={"conflict": _facts(conflict), "message": str(conflict)})
        else:
            reporter.tell("answered", thread=thread, detail={"answer": end["messages"][-1].content})


def main() -> None:
    """Read the orders, carry them out, report the end."""
    heard: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(heard,), daemon=True).start()
    orders = Orders(**json.loads(heard.get()))
    reporter = Reporter(orders, heard)
    (answer if orders.rival else work)(orders, reporter)
    reporter.tell("finished")


def _listen(heard: queue.Queue[str]) -> None:
    """Pass on the parent's lines; when the parent is gone, however it went, go too."""
    buffer = b""
    # os.read and not sys.stdin: a thread that waits inside a buffered reader aborts the interpreter at its exit.
    while part := os.read(0, 65536):
        *lines, buffer = (buffer + part).split(b"\n")
        for line in lines:
            heard.put(line.decode())
    os._exit(3)


def _place() -> dict[str, Any]:
    """Where in LangGraph the caller runs: thread, task id (the same one when a task runs again) and step."""
    config = get_config()
    namespace = str(config["metadata"]["langgraph_checkpoint_ns"])
    return {
        "thread": _thread(config),
        "task": namespace.rpartition(":")[2],
        "step": int(config["metadata"]["langgraph_step"]),
    }


def _thread(config: RunnableConfig) -> str:
    return str(config["configurable"]["thread_id"])


def _facts(conflict: StateConflict) -> dict[str, Any]:
    names = ("version_read", "version_found", "checkpoint_read", "checkpoint_found", "winner", "committed")
    facts = {name: getattr(conflict, name) for name in names}
    return {name: fact if isinstance(fact, bool | int | None) else str(fact) for name, fact in facts.items()}


if __name__ == "__main__":
    main()
