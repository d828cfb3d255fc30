"""What both acts of the demo share: the database, the workers, the screen, and the list of checks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from langgraph_ledger import LedgerSaver
from langgraph_ledger.demo.journal import Event
from langgraph_ledger.demo.processes import Crew, Worker
from langgraph_ledger.demo.screen import Screen
from langgraph_ledger.demo.tickets import TICKETS, Ticket
from langgraph_ledger.demo.worker import Orders


@dataclass
class Checks:
    """Every claim that the demo makes, each with whether the facts bear it out."""

    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def that(self, holds: bool, claim: str, otherwise: object) -> None:
        """Note a claim; `otherwise` is what was found instead."""
        if holds:
            self.passed.append(claim)
        else:
            self.failed.append(f"Not true: {claim}. Found: {otherwise}")

    def same(self, found: object, expected: object, claim: str) -> None:
        """Note the claim that two things are equal."""
        self.that(found == expected, claim, f"{found!r} where {expected!r} was expected")


@dataclass
class Stage:
    """Where the demo takes place. `saver` is the parent's own: it reads what the workers wrote."""

    url: str
    journal: Path
    prefix: str
    saver: LedgerSaver
    crew: Crew
    screen: Screen
    checks: Checks = field(default_factory=Checks)

    def thread(self, ticket: Ticket) -> str:
        """The thread on which `ticket` is answered."""
        return f"{self.prefix}-ticket-{ticket.number}"

    def threads(self) -> list[str]:
        """Every thread that the demo uses."""
        return [self.thread(ticket) for ticket in TICKETS]

    def ticket(self, thread: str) -> Ticket:
        """The ticket that is answered on `thread`."""
        return next(ticket for ticket in TICKETS if self.thread(ticket) == thread)

    def start(self, name: str, threads: list[tuple[str, str]], **orders: Any) -> Worker:
        """Start a worker on `threads`, each with the message to answer."""
        what = Orders(name, self.url, str(self.journal), threads, **orders)
        return self.crew.start(name, what.line())

    def checkpoint_ids(self, thread: str) -> list[str]:
        """The checkpoints of a thread that are in the database now."""
        return [str(found.checkpoint["id"]) for found in self.saver.list(_config(thread))]

    def stored_tasks(self, thread: str) -> set[str]:
        """The LangGraph tasks of a thread whose writes are in the database now."""
        stored = self.saver.list(_config(thread))
        return {task for found in stored for task, _, _ in found.pending_writes or []}

    def head(self, thread: str) -> CheckpointTuple:
        """The latest checkpoint of a thread."""
        found = self.saver.get_tuple(_config(thread))
        if found is None:
            raise LookupError(f"thread {thread} has no checkpoint in the database")
        return found

    def messages(self, thread: str) -> list[BaseMessage]:
        """The conversation of a thread as it stands in the database."""
        return list(self.head(thread).checkpoint["channel_values"]["messages"])


def names(events: Iterable[Event]) -> str:
    """The names of some steps, for people."""
    return ", ".join(sorted({event.name for event in events})) or "nothing"


def _config(thread: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread}}
