"""Kills workers until every ticket is answered, and compares what a saver knows with what was done."""

import multiprocessing
import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from langchain_core.messages import ToolMessage

from benchmarks.harness import thread
from benchmarks.restart.agent import answer, result
from benchmarks.restart.desk import LOOK_UPS, Called, Desk
from benchmarks.restart.ways import Store, Way
from benchmarks.restart.worker import Job, work

SILENCE = 60
"""Seconds without a word from a worker after which something is wrong."""
BETWEEN = (9, 28)
"""How many tickets a worker is given before it is killed, so that no 30 go by without a kill."""


@dataclass(frozen=True)
class Kill:
    """When a worker is killed: so many seconds after it has taken its so-manieth ticket; or, with `in_tool`, in the
    first tool after that one which has had its effect and has not returned."""

    after: int
    delay: float = 0.0
    in_tool: bool = False

    def comes(self, what: str, *facts: Any) -> bool:
        """Whether it follows on what a worker has said."""
        return what == "still" if self.in_tool else (what, *facts) == ("taken", self.after)


def at_random(seed: int, ticket_seconds: float) -> Iterator[Kill]:
    """Kills at random moments: somewhere within a ticket."""
    chance = random.Random(seed)
    while True:
        yield Kill(chance.randint(*BETWEEN), chance.uniform(0, ticket_seconds))


@dataclass
class Outcome:
    """What became of the tickets. `unknown` and the rest are summed over all kills."""

    kills: int = 0
    most_between_kills: int = 0
    tickets_lost: int = 0
    tickets_repeated: int = 0
    effects_twice: int = 0
    effects_missing: int = 0
    calls_lost: int = 0
    in_flight: int = 0
    in_flight_reported: int = 0
    unknown: int = 0
    seconds: float = 0.0
    resumed: list[float] = field(default_factory=list)
    """Seconds from the start of each process that had something to go on with until it did."""
    reports: list[float] = field(default_factory=list)
    """Seconds to open a saver and to report on all that a kill has left."""


def survive(
    store: Store, folder: Path, tickets: int, kills: Iterable[Kill], *, pause: float, durability: str
) -> Outcome:
    """Has the tickets worked on, by one process after another. Each is killed as long as there are kills left."""
    path = folder / f"desk-{store.way.key}-{time.monotonic_ns()}.db"
    desk, outcome, plan = Desk(path), Outcome(), iter(kills)
    desk.open(tickets)
    start, number, done = time.monotonic(), 0, False
    try:
        while not done:
            number += 1
            before = desk.answered()
            kill = next(plan, None)
            still = kill.after if kill is not None and kill.in_tool else None
            job = Job(store.way.key, store.address, str(path), number, pause, durability, still)
            done = _run(job, kill, outcome)
            outcome.most_between_kills = max(outcome.most_between_kills, desk.answered() - before)
            if not done:
                store.settle()
                _look_into(store, desk, number, outcome)
        outcome.seconds = time.monotonic() - start
        outcome.tickets_lost = tickets - _answered(store, tickets)
        outcome.tickets_repeated = desk.begun_again()
        outcome.effects_twice, outcome.effects_missing = desk.effects_twice(), desk.effects_missing()
    finally:
        desk.close()
        for file in folder.glob(f"{path.name}*"):
            file.unlink()
    return outcome


def _run(job: Job, kill: Kill | None, outcome: Outcome) -> bool:
    """One process, from its start to its end. Whether it has ended by itself, with no ticket left."""
    context = multiprocessing.get_context("forkserver")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(job, theirs), daemon=True)
    start = time.monotonic()
    process.start()
    theirs.close()
    try:
        for what, *facts in _heard(mine):
            if what == "done":
                process.join(SILENCE)
                return True
            if what == "resumed":
                outcome.resumed.append(facts[0] - start)
            if kill is not None and kill.comes(what, *facts):
                time.sleep(kill.delay)
                outcome.kills += 1
                return False
        raise RuntimeError(f"worker {job.number} of {job.way} has ended by itself: its error is above")
    finally:
        process.kill()
        process.join()
        mine.close()


def _heard(pipe: Connection) -> Iterator[Any]:
    while True:
        if not pipe.poll(SILENCE):
            raise RuntimeError(f"a worker has said nothing for {SILENCE} seconds")
        try:
            yield pipe.recv()
        except EOFError:
            return


# --- after a kill


def _look_into(store: Store, desk: Desk, worker: int, outcome: Outcome) -> None:
    """Compares what the saver knows of a killed process's calls with what that process did, and where a guard is going
    to ask, finds out about unknown calls, as a person would who can see the desk's database."""
    made, in_flight = desk.made(worker), desk.in_flight(worker)
    outcome.in_flight += len(in_flight)
    start = time.monotonic()
    with store.way.open(store.address) as saver:
        unknown, known = _reported(saver) if store.way.is_ledger else (set[Called](), set[Called]())
        if store.way.is_ledger:
            outcome.reports.append(time.monotonic() - start)
        outcome.unknown += len(unknown)
        outcome.in_flight_reported += len(in_flight & unknown)
        outcome.calls_lost += len(made - unknown - known - _in_state(saver, {ticket for ticket, _ in made}))
        for ticket, call_id in unknown if store.way.guarded else ():
            _resolve(saver, desk, ticket, call_id)


def _reported(saver: Any) -> tuple[set[Called], set[Called]]:
    """The calls that the reports on everything a crash has left name as unknown, and the others that they name."""
    reports = [saver.recover(session.session_id) for session in saver.recoverable()]
    unknown = {(int(report.thread_id), call.call_id) for report in reports for call in report.unknown}
    known = {
        (int(report.thread_id), call.call_id)
        for report in reports
        for calls in (report.unapplied, report.failed, report.cancelled, report.interrupted)
        for call in calls
    }
    return unknown, known


def _in_state(saver: Any, tickets: Iterable[int]) -> set[Called]:
    """The calls whose results are in the state of their tickets, or have been written by their task."""
    found: set[Called] = set()
    for ticket in tickets:
        stored = saver.get_tuple(thread(str(ticket)))
        if stored is not None:
            written = [value for _, channel, value in stored.pending_writes or () if channel == "messages"]
            messages = [*stored.checkpoint["channel_values"].get("messages", []), *(m for ms in written for m in ms)]
            found |= {(ticket, m.tool_call_id) for m in messages if isinstance(m, ToolMessage)}
    return found


def _resolve(saver: Any, desk: Desk, ticket: int, call_id: str) -> None:
    name = call_id.rpartition("-")[0]
    if name not in LOOK_UPS:  # the guard makes those again
        happened = desk.happened(ticket, call_id)
        saver.resolve_call(str(ticket), call_id, happened=happened, result=result(ticket, name) if happened else None)


def _answered(store: Store, tickets: int) -> int:
    """The tickets whose answer a process that has just started finds."""
    with store.way.open(store.address) as saver:
        found = 0
        for ticket in range(1, tickets + 1):
            stored = saver.get_tuple(thread(str(ticket)))
            messages = stored.checkpoint["channel_values"]["messages"] if stored is not None else [None]
            found += getattr(messages[-1], "content", None) == answer(ticket)
        return found


def preload(ways: Iterable[Way]) -> None:
    """Has the server that workers are forked from load everything first. Works before the first worker starts."""
    modules = {module for way in ways for module in way.contender.modules}
    multiprocessing.set_forkserver_preload(["benchmarks.restart.worker", *sorted(modules)])
