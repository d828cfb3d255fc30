"""The record that the demo's claims are checked against: what ran, what was acknowledged, what had an effect.

Standard library only, and independent of the saver: the journal is a file beside the database, so that it can
contradict it.
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Event:
    """One thing that happened in one worker; `what` is one of the words below.

    began: a step (one LangGraph task) started. waiting: it has reached the place where it is to be killed.
    effect: the outside world changed. saved: the saver acknowledged the step's result. checkpoint: the saver
    acknowledged a checkpoint, and with it every earlier step. loaded, resumed, started, skipped: a worker took up a
    ticket. read: a rival has read the thread. answered, refused: how its run ended. finished, gone: the process.
    """

    what: str
    worker: str
    thread: str = ""
    task: str = ""
    step: int | None = None
    name: str = ""
    detail: dict[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """The event as one line of JSON."""
        return json.dumps(asdict(self)) + "\n"

    @staticmethod
    def parse(line: str) -> Event:
        """The event that `line` wrote."""
        return Event(**json.loads(line))


class Journal:
    """Appends events to a file, from any thread; each is there before `write` returns."""

    def __init__(self, path: Path, worker: str) -> None:
        self.worker = worker
        self._lock = threading.Lock()
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, what: str, **facts: Any) -> Event:
        """Append one event and hand it back."""
        event = Event(what, self.worker, **facts)
        with self._lock:
            # One unbuffered write: a line is in the file whole or not at all, whenever the process is killed.
            os.write(self._file, event.line().encode())
        return event


def read_journal(path: Path) -> list[Event]:
    """Every event that all workers wrote, in order."""
    return [Event.parse(line) for line in path.read_text().splitlines()]


def began(events: Iterable[Event]) -> list[Event]:
    """The executions, one for each time that a step started."""
    return [event for event in events if event.what == "began"]


def in_flight(events: Sequence[Event]) -> list[Event]:
    """The executions that started and whose result was never acknowledged."""
    acknowledged = _acknowledgements(events)
    latest = {event.task: event for event in began(events)}
    return [event for task, event in latest.items() if task not in acknowledged]


def run_again(events: Iterable[Event]) -> list[Event]:
    """The steps that ran more than once: the later executions of each."""
    seen: Counter[str] = Counter()
    again = []
    for event in began(events):
        again += [event] if seen[event.task] else []
        seen[event.task] += 1
    return again


def acknowledged_and_run_again(events: Sequence[Event]) -> list[Event]:
    """The executions that should not have been: their result had been acknowledged before they started."""
    acknowledged = _acknowledgements(events)
    return [
        event
        for position, event in enumerate(events)
        if event.what == "began" and acknowledged.get(event.task, position) < position
    ]


def _acknowledgements(events: Sequence[Event]) -> dict[str, int]:
    """Where in the journal the result of each step was first acknowledged.

    Either its own writes were, or a checkpoint that was taken after it. LangGraph may commit the two in either order.
    """
    found: dict[str, int] = {}
    open_steps: dict[str, Event] = {}
    for position, event in enumerate(events):
        if event.what == "began":
            open_steps.setdefault(event.task, event)
        elif event.what == "saved":
            found.setdefault(event.task, position)
        elif event.what == "checkpoint":
            for task, step in open_steps.items():
                if step.thread == event.thread and (step.step or 0) <= (event.step or 0):
                    found.setdefault(task, position)
    return found
