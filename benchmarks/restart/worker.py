"""The process that is killed: it takes one ticket after another, and first those that its predecessor has left.

Started by `crashes` from a server that has this module loaded, so that a start costs no imports.
"""

import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from langgraph.types import Command

from benchmarks.harness import thread
from benchmarks.restart.agent import build, question
from benchmarks.restart.desk import Desk
from benchmarks.restart.ways import WAYS


@dataclass(frozen=True)
class Job:
    """What a worker is told. `still_after`: so many tickets later it stands still in a tool that has had its effect."""

    way: str
    address: str
    desk: str
    number: int
    pause: float
    durability: str
    still_after: int | None = None


def work(job: Job, pipe: Connection) -> None:
    """Works until no ticket is left, and says how it goes on."""
    way = WAYS[job.way]
    with way.open(job.address) as saver:
        Worker(job, pipe, saver, way.guard()).work()
    pipe.send(("done",))


class Worker:
    """A process at work. It says ("taken", its number of tickets), ("resumed", when), and ("still",)."""

    def __init__(self, job: Job, pipe: Connection, saver: Any, guard: Any) -> None:
        self.job, self.pipe = job, pipe
        self.desk = Desk(job.desk, job.number, job.pause, after_effect=self.after_effect)
        self.graph = build(saver, self.desk, guard, self.at_work)
        self.taken = 0
        self.resuming = False

    def work(self) -> None:
        while (ticket := self.desk.next()) is not None:
            self.taken += 1
            self.pipe.send(("taken", self.taken))
            self.handle(*ticket)

    def handle(self, ticket: int, status: str) -> None:
        """Begins a ticket, or goes on where it stands, and marks what has become of it."""
        config = thread(str(ticket))
        state = self.graph.get_state(config)
        if state.interrupts and status == "taken":  # a person has to be asked, or has to be asked again
            self.desk.mark(ticket, "waiting")
            return
        # Not `state.next`: it leaves out tasks that have written, and is empty too where a kill came between the writes
        # of a step and the checkpoint that is made of them.
        if state.values and not state.tasks:
            self.desk.mark(ticket, "answered")
            return
        given: Any = Command(resume=True) if state.interrupts else None
        if not state.values and not state.tasks:
            self.desk.begin(ticket)
            given = question(ticket)
        elif self.taken == 1:
            self.resuming = True
        self.desk.mark(ticket, "taken")
        found = self.graph.invoke(given, config, durability=self.job.durability)
        self.desk.mark(ticket, "waiting" if "__interrupt__" in found else "answered")

    def at_work(self) -> None:
        if self.resuming:
            self.resuming = False
            self.pipe.send(("resumed", time.monotonic()))

    def after_effect(self) -> None:
        if self.job.still_after is not None and self.taken > self.job.still_after:
            self.pipe.send(("still",))
            threading.Event().wait()
