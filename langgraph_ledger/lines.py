"""Who came first goes first: calls that a task makes side by side begin, and fail, in the order in which they came.

LangGraph gives a task's answers to its questions in the order in which its code asks them, takes that to be the same
whenever the task runs, and shows the question that comes out first. What is read or put on record before and after a
call takes a time that differs: without a line to stand in, calls would get each other's answers.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from concurrent.futures import Future
from typing import TypeVar

from langgraph_ledger.flow import Flow, Pause, holds_up_loop
from langgraph_ledger.runs import Run

T = TypeVar("T")

PATIENCE = 5.0
"""Seconds that one waits for those before it: what keeps them may be code of the application that waits for this."""


class _Leaving(threading.local):
    """The tickets that this thread is giving up: one after the other, since a long line is deeper than the stack."""

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []


_leaving = _Leaving()


class Ticket:
    """A place in a line: of the run's, the one that `key` names. It has to be given up."""

    def __init__(self, run: Run, key: Hashable) -> None:
        self._run, self._key = run, key
        self._gone: Future[None] = Future()
        self._given_up = False
        with run.lock:
            self._before = run.lines.get(key)
            run.lines[key] = self._gone

    def come(self) -> Flow[None]:
        """Waits until all who came before are gone. Code that holds up an event loop, which they may need, goes on."""
        if self._before is not None and not holds_up_loop.get():
            yield Pause(self._before, PATIENCE)

    def give_up(self) -> None:
        """Whoever comes behind has nobody else to wait for than those before this one. Twice is as good as once."""
        if self._before is None or self._before.done():
            self._go()
        else:
            self._before.add_done_callback(lambda _: self._go())

    def _go(self) -> None:
        tickets = _leaving.tickets
        tickets.append(self)
        if len(tickets) == 1:
            while tickets:
                tickets[0]._leave()
                del tickets[0]

    def _leave(self) -> None:
        with self._run.lock:
            if self._run.lines.get(self._key) is self._gone:
                del self._run.lines[self._key]
            gone, self._given_up = self._given_up, True
        if not gone:  # outside of the lock, which those behind need when they hear of it
            self._gone.set_result(None)


def in_line(ticket: Ticket, flow: Flow[T]) -> Flow[T]:
    """Carries out a flow at once, and is done with it when its turn comes."""
    try:
        found = yield from flow
        yield from ticket.come()
        return found
    finally:
        ticket.give_up()
