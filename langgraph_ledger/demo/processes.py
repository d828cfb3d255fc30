"""The parent's side of the workers: start them, hear them, kill them, and leave none behind. Standard library only."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from langgraph_ledger.demo.journal import Event

PATIENCE = 60.0
"""Seconds without a word from any worker after which the demo gives up."""


class WorkerFailed(RuntimeError):
    """A worker ended, or fell silent, when it should not have."""


@dataclass
class Worker:
    """One running process."""

    name: str
    process: subprocess.Popen[bytes]
    errors: Path
    done: bool = False

    def say(self, line: str) -> None:
        """Send one line to the worker."""
        # A worker that died meanwhile is reported by its end, with its own words: a better message than a broken pipe.
        with contextlib.suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.write(line.rstrip("\n").encode() + b"\n")
            self.process.stdin.flush()


class Crew:
    """All workers of one demo, as a context manager: leaving it, in whatever way, kills what still runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._events: queue.Queue[Event] = queue.Queue()
        self._workers: dict[str, Worker] = {}

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Kill every worker that still runs, and wait until it is gone."""
        for worker in self._workers.values():
            worker.done = True
            _end(worker.process)

    def start(self, name: str, orders: str) -> Worker:
        """Start a worker and give it its orders."""
        errors = self._folder / f"{name.replace(' ', '-')}.stderr"
        with errors.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "langgraph_ledger.demo.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=_environment(),
            )
        worker = self._workers[name] = Worker(name, process, errors)
        assert process.stdout is not None
        threading.Thread(target=self._hear, args=(name, process.stdout), daemon=True).start()
        worker.say(orders)
        return worker

    def events(self) -> Iterator[Event]:
        """What the workers report, as it comes; raises WorkerFailed if one of them ends without having finished."""
        while True:
            try:
                event = self._events.get(timeout=PATIENCE)
            except queue.Empty:
                raise WorkerFailed(f"no worker reported anything for {PATIENCE:.0f} seconds") from None
            worker = self._workers[event.worker]
            worker.done = worker.done or event.what == "finished"
            if event.what == "gone" and not worker.done:
                raise WorkerFailed(_last_words(worker))
            if event.what != "gone":
                yield event

    def kill(self, worker: Worker) -> int:
        """Kill a worker with SIGKILL (on Windows, with its equal) and hand back how the process ended."""
        worker.done = True
        worker.process.kill()
        return worker.process.wait()

    def _hear(self, name: str, stdout: IO[bytes]) -> None:
        for line in stdout:
            # A line that the kill cut short has no end.
            if line.endswith(b"\n"):
                self._events.put(Event.parse(line.decode()))
        self._events.put(Event("gone", name))


def _environment() -> dict[str, str]:
    """The worker's environment: the demo promises to use no network, so tracing is off whatever the user has set."""
    return {**os.environ, "LANGSMITH_TRACING": "false", "LANGCHAIN_TRACING_V2": "false"}


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        # Closing the pipe flushes it, and the reader is gone.
        with contextlib.suppress(OSError):
            if pipe is not None and not pipe.closed:
                pipe.close()


def _last_words(worker: Worker) -> str:
    words = worker.errors.read_text(errors="replace").strip().splitlines()
    code = worker.process.wait()
    return f"{worker.name} ended with code {code}: {words[-1] if words else 'it left no message'}"
