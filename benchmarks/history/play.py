"""One round: workers that live, are stopped and killed and live again, connections that are cut, and all that was said.

Workers are forked, so that what is slow to import is imported once; whoever plays a round must have no other threads.
"""

import faulthandler
import gc
import json
import logging
import os
import random
import selectors
import signal
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NoReturn

import psycopg

import langgraph_ledger.drivers.postgres  # noqa: F401
from benchmarks.history.worker import Life, live

Event = dict[str, Any]

BACKENDS = (
    "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'langgraph_ledger'"
    " AND pid <> pg_backend_pid()"
)
BLOWS = {"kill": 5, "stop": 3, "none": 2}
"""How often what comes next for a worker."""
LINES = (15, 150)
"""After how many lines of a worker it comes,"""
WITHIN = 0.01
"""within how many seconds,"""
STOPPED = (0.02, 0.4)
"""and how many seconds it is stopped for: others come and go meanwhile."""
SILENCE = 120.0
"""Seconds without a word from any worker after which something is wrong."""
BETWEEN_CUTS = (100, 300)
"""Lines of all workers between one cut connection and the next."""


@dataclass(frozen=True)
class Round:
    """What is to be played. It ends when so many operations have begun, or after so many seconds.

    The seed decides what workers try and when they are killed; what comes of it is up to the machine.
    """

    url: str
    seed: int = 1
    processes: int = 3
    threads: int = 3
    operations: int = 150
    seconds: float = float("inf")
    lives: int = 12
    """How many operations a worker does in one life, if it is not killed, in each of its lanes."""
    checked: bool = True
    flush: str = "always"
    """Which of the workers' policies: when they commit."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of its threads."""
        return tuple(f"thread {number}" for number in range(self.threads))


@dataclass
class Played:
    """What came of it."""

    events: list[Event] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    """Tracebacks of workers that ended otherwise than by a kill."""


def play(plan: Round) -> Played:
    """Plays a round to its end. Nobody is connected to the database when it returns."""
    with selectors.DefaultSelector() as selector:
        return _Play(plan, selector).run()


@dataclass(eq=False)
class _Worker:
    """A life that is lived, seen from outside."""

    pid: int
    slot: int
    said: bytes = b""
    lines: int = 0
    blow: str = "none"
    at_line: int = 0
    due: float | None = None


class _Play:
    def __init__(self, plan: Round, selector: selectors.BaseSelector) -> None:
        self.plan, self.selector = plan, selector
        self.chance = random.Random(plan.seed)
        self.played = Played()
        self.lives = 0
        self.until = time.monotonic() + plan.seconds
        self.admin = psycopg.connect(plan.url, autocommit=True) if plan.url.startswith("postgres") else None
        self.next_cut = self.chance.randint(*BETWEEN_CUTS)

    def run(self) -> Played:
        gc.collect()
        gc.freeze()  # what a child does not touch, it does not copy
        try:
            for slot in range(self.plan.processes):
                self._start(slot)
            while workers := [key.data for key in self.selector.get_map().values()]:
                due = [worker.due for worker in workers if worker.due is not None]
                patience = max(0.0, min(due) - time.monotonic()) if due else SILENCE
                heard = self.selector.select(patience)
                assert heard or due, "the workers say nothing"
                for key, _ in heard:
                    self._hear(key)
                for worker in workers:
                    if worker.due is not None and time.monotonic() >= worker.due:
                        self._strike(worker)
                self._cut()
            self._settle()
        finally:
            for key in list(self.selector.get_map().values()):  # none, unless this ends otherwise
                os.kill(key.data.pid, signal.SIGKILL)
                self._bury(key, again=False)
            gc.unfreeze()
            if self.admin is not None:
                self.admin.close()
        return self.played

    def _start(self, slot: int) -> None:
        plan, chance = self.plan, self.chance
        self.lives += 1
        name = f"{plan.seed}/{slot}/{self.lives}"
        lanes, asynchronous = chance.choice((1, 2)), chance.choice((False, True))
        life = Life(name, plan.url, plan.names, plan.lives, lanes, asynchronous, plan.checked, plan.flush)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            _child(life, reader, writer)
        os.close(writer)
        worker = _Worker(pid, slot)
        self._choose_blow(worker)
        self.selector.register(reader, selectors.EVENT_READ, worker)

    def _choose_blow(self, worker: _Worker) -> None:
        (worker.blow,) = self.chance.choices(list(BLOWS), list(BLOWS.values()))
        worker.at_line, worker.due = worker.lines + self.chance.randint(*LINES), None

    def _hear(self, key: selectors.SelectorKey) -> None:
        worker: _Worker = key.data
        chunk = os.read(key.fd, 65536)
        if not chunk:
            self._bury(key)
            return
        *lines, worker.said = (worker.said + chunk).split(b"\n")
        worker.lines += len(lines)
        for line in lines:
            event = json.loads(line)
            if "traceback" in event:
                self.played.failures.append(event["traceback"])
                continue
            self.played.events.append(event)
            self.played.counts["lines"] += 1
            self.played.counts["operations"] += event.get("what") == "operation"
        if worker.blow != "none" and worker.due is None and worker.lines >= worker.at_line:
            worker.due = time.monotonic() + self.chance.uniform(0, WITHIN)

    def _strike(self, worker: _Worker) -> None:
        """A worker that is due. It has not been waited for yet, so its number is still its own."""
        if worker.blow == "kill":
            os.kill(worker.pid, signal.SIGKILL)
            worker.blow, worker.due = "none", None
        elif worker.blow == "stop":
            os.kill(worker.pid, signal.SIGSTOP)
            worker.blow, worker.due = "continue", time.monotonic() + self.chance.uniform(*STOPPED)
            self.played.counts["stops"] += 1
        else:
            os.kill(worker.pid, signal.SIGCONT)
            self._choose_blow(worker)

    def _bury(self, key: selectors.SelectorKey, again: bool = True) -> None:
        worker: _Worker = key.data
        self.selector.unregister(key.fd)
        os.close(key.fd)
        code = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        self.played.counts["kills"] += code == -signal.SIGKILL
        worker.due = None
        if code not in (0, -signal.SIGKILL) and not self.played.failures:
            self.played.failures.append(f"a worker ended with code {code}")
        over = self.played.counts["operations"] >= self.plan.operations or time.monotonic() > self.until
        if again and not over and not self.played.failures:
            self._start(worker.slot)

    def _cut(self) -> None:
        """Ends a connection, as an administrator or a failing network would."""
        if self.admin is None or self.played.counts["lines"] < self.next_cut:
            return
        self.next_cut = self.played.counts["lines"] + self.chance.randint(*BETWEEN_CUTS)
        pids = [pid for (pid,) in self.admin.execute(f"SELECT pid {BACKENDS} ORDER BY pid").fetchall()]
        if pids:
            self.admin.execute("SELECT pg_terminate_backend(%s)", [self.chance.choice(pids)])
            self.played.counts["cut connections"] += 1

    def _settle(self) -> None:
        """Until the server has noticed that its clients are gone: it may still commit what they had sent."""
        while self.admin is not None and self.admin.execute(f"SELECT count(*) {BACKENDS}").fetchone() != (0,):
            time.sleep(0.01)


def _child(life: Life, reader: int, writer: int) -> NoReturn:
    code = 0
    logging.disable(logging.WARNING)  # LangChain warns of each refused tool
    faulthandler.dump_traceback_later(SILENCE / 2)  # of a life that has come to a stop it is to be seen where
    try:
        os.close(reader)
        live(life, writer)
    except BaseException:
        os.write(writer, json.dumps({"traceback": traceback.format_exc()[-3000:]}).encode() + b"\n")
        code = 1
    os._exit(code)
