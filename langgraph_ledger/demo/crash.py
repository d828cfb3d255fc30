"""The first act: workers are killed in the middle of tickets, and the next one goes on exactly there."""

from __future__ import annotations

import os
import signal
from collections import Counter
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langsmith import tracing_context

from langgraph_ledger.demo.journal import (
    Event,
    acknowledged_and_run_again,
    began,
    in_flight,
    read_journal,
    run_again,
)
from langgraph_ledger.demo.processes import Worker
from langgraph_ledger.demo.stage import Stage, names
from langgraph_ledger.demo.tickets import TICKETS, build_graph, transcript

# Where the workers die: once beside a tool of the same step that has already been saved, once at the tool that pays.
KILLS = ((2, "check_order"), (3, "issue_refund"))
TOGETHER = {"check_order": 2}
"""How many tools a step has in which more than one runs."""


class Undisturbed:
    """The same agent, run once in this process without a crash: what the outcome should be."""

    def __init__(self) -> None:
        self.steps: Counter[str] = Counter()
        self.effects: list[str] = []
        self.transcripts: dict[str, list[Any]] = {}

    def step(self, name: str) -> None:
        """Count a step of the current ticket."""
        self.steps[str(get_config()["configurable"]["thread_id"])] += 1

    def effect(self, name: str, call_id: str) -> None:
        """Note what was paid."""
        self.effects.append(call_id)

    def run(self, stage: Stage) -> Undisturbed:
        """Answer every ticket."""
        graph = build_graph(self, InMemorySaver(), signature="the support desk")
        for ticket in TICKETS:
            thread = stage.thread(ticket)
            with tracing_context(enabled=False):
                end = graph.invoke({"messages": [HumanMessage(ticket.text)]}, {"configurable": {"thread_id": thread}})
            self.transcripts[thread] = transcript(end["messages"])
        return self


@dataclass
class Kill:
    """One killed worker, and what the journal and the database said at that moment."""

    victim: str
    code: int
    thread: str
    flying: list[Event]
    done: list[Event]
    acknowledged: list[Event]
    checkpoint: str
    stored_checkpoints: list[str]
    stored_tasks: set[str]
    acknowledged_checkpoints: list[str]


def crash_act(stage: Stage) -> None:
    """Run the act, print what happened and note the checks."""
    stage.screen.title("1. Workers are killed in the middle of a ticket")
    with stage.screen.working("answering every ticket once without a crash, to compare with"):
        expected = Undisturbed().run(stage)
    kills: list[Kill] = []
    with stage.screen.working("worker 1 starts", sum(expected.steps.values())):
        for number in range(len(KILLS) + 1):
            hold = _hold(stage, number)
            worker = stage.start(f"worker {number + 1}", [(stage.thread(t), t.text) for t in TICKETS], hold=hold)
            stage.screen.say(f"{worker.name} (process {worker.process.pid}) starts")
            if _follow(stage, worker):
                kills.append(_kill(stage, worker))
    events = read_journal(stage.journal)
    _check_kills(stage, kills, events)
    _check_outcome(stage, expected, kills, events)
    _show(stage, kills, events)


def _hold(stage: Stage, number: int) -> tuple[str, str] | None:
    """At which thread and tool the worker with this number is to be killed; the last one is not."""
    if number == len(KILLS):
        return None
    ticket, tool = KILLS[number]
    return stage.thread(TICKETS[ticket - 1]), tool


def _follow(stage: Stage, worker: Worker) -> bool:
    """Show what a worker does until it has finished (False), or stands alone at the place of its end (True)."""
    for event in stage.crew.events():
        if event.what == "finished":
            return False
        _narrate(stage, event)
        events = read_journal(stage.journal)
        holding = {e.task for e in events if e.what == "waiting" and e.worker == worker.name}
        flying = in_flight(events)
        # Its neighbours in the same step get the time to be saved, so that what is in flight is known, not guessed.
        if holding and {e.task for e in flying} == holding and _neighbours_began(events, flying[0]):
            return True
    return False


def _neighbours_began(events: list[Event], held: Event) -> bool:
    """Whether every tool that is asked for together with the one at which the worker is held has begun."""
    there = {e.task for e in began(events) if (e.thread, e.step) == (held.thread, held.step)}
    return len(there) >= TOGETHER.get(held.name, 1)


def _narrate(stage: Stage, event: Event) -> None:
    ticket = f"ticket {stage.ticket(event.thread).number}"
    if event.what == "began":
        done = {e.task for e in read_journal(stage.journal) if e.what == "began"}
        stage.screen.progress(f"{event.worker}, {ticket}: {event.name}", completed=len(done) - 1)
    elif event.what in ("started", "skipped"):
        doing = "begins" if event.what == "started" else "finds done"
        stage.screen.say(f"{event.worker} {doing} {ticket}: {stage.ticket(event.thread).subject}")
    elif event.what == "resumed":
        stage.screen.say(f"{event.worker} resumes {ticket} at: {', '.join(event.detail['next'])}")


def _kill(stage: Stage, worker: Worker) -> Kill:
    """Kill a worker, then ask the journal what it had been told, and the database what it holds."""
    code = stage.crew.kill(worker)
    events = read_journal(stage.journal)
    flying = in_flight(events)
    thread, step = flying[0].thread, flying[0].step
    mine = [event for event in events if event.thread == thread]
    checkpoints = [event.detail["checkpoint"] for event in mine if event.what == "checkpoint"]
    done = [event for event in began(mine) if event.task not in {f.task for f in flying}]
    acknowledged = [event for event in done if event.step == step]
    head = stage.head(thread)
    stage.screen.say(
        f"{worker.name} is killed in ticket {stage.ticket(thread).number} while {names(flying)} runs"
        f" (step {step}; already saved in this step: {names(acknowledged)})"
    )
    return Kill(
        victim=worker.name,
        code=code,
        thread=thread,
        flying=flying,
        done=done,
        acknowledged=acknowledged,
        checkpoint=checkpoints[-1],
        stored_checkpoints=stage.checkpoint_ids(thread),
        stored_tasks={task for task, _, _ in head.pending_writes or []},
        acknowledged_checkpoints=checkpoints,
    )


def _check_kills(stage: Stage, kills: list[Kill], events: list[Event]) -> None:
    check = stage.checks
    check.same(len(kills), len(KILLS), f"{len(KILLS)} workers were killed in the middle of a ticket")
    for kill in kills:
        where = f"ticket {stage.ticket(kill.thread).number}"
        expected = -signal.SIGKILL if os.name == "posix" else 1
        check.same(kill.code, expected, f"{kill.victim} died of the kill, it did not end by itself")
        lost = set(kill.acknowledged_checkpoints) - set(kill.stored_checkpoints)
        check.that(not lost, f"{where}: each checkpoint acknowledged before the kill is in the database", lost)
        lost = {event.task for event in kill.acknowledged} - kill.stored_tasks
        check.that(not lost, f"{where}: so is each result acknowledged in the step that was cut short", lost)
        after = [e for e in events if e.thread == kill.thread and e.worker == _next(kill)]
        loaded = [e.detail["checkpoint"] for e in after if e.what == "loaded"]
        check.same(loaded, [kill.checkpoint], f"{where}: {_next(kill)} loaded the last acknowledged checkpoint")
        flying, before = [e.task for e in kill.flying], {e.task for e in (*kill.flying, *kill.done)}
        # a neighbour that had not begun when the kill came begins now, perhaps first
        first = [e.task for e in began(after) if e.step == kill.flying[0].step and e.task in before]
        at_once = began(after)[:1] and began(after)[0].step == kill.flying[0].step
        claim = f"{where}: {_next(kill)} resumed with exactly the step in flight ({names(kill.flying)})"
        check.same(sorted(first) if at_once else [], sorted(flying), claim)


def _check_outcome(stage: Stage, expected: Undisturbed, kills: list[Kill], events: list[Event]) -> None:
    check = stage.checks
    wrong = acknowledged_and_run_again(events)
    check.that(not wrong, "no step whose result had been acknowledged ran again", names(wrong))
    again, flying = run_again(events), [event for kill in kills for event in kill.flying]
    claim = f"what ran again is exactly what was in flight: {names(flying)}"
    check.that(sorted(e.task for e in again) == sorted(e.task for e in flying), claim, names(again))
    ran, planned = len(began(events)), sum(expected.steps.values())
    claim = f"{planned + len(flying)} steps ran: the {planned} of an undisturbed run, and {len(flying)} again"
    check.that(ran == planned + len(flying), claim, ran)
    paid = sorted(e.detail["call"] for e in events if e.what == "effect")
    claim = f"{len(expected.effects)} refunds were paid, each once"
    check.that(paid == sorted(expected.effects), claim, ", ".join(paid))
    differ = [t for t in stage.threads() if transcript(stage.messages(t)) != expected.transcripts[t]]
    claim = "each conversation is, message by message, that of an undisturbed run"
    check.that(not differ, claim, f"another one in {', '.join(differ)}")


def _show(stage: Stage, kills: list[Kill], events: list[Event]) -> None:
    rows = []
    for kill in kills:
        loads = [e for e in events if e.what == "loaded" and e.worker == _next(kill)]
        this = next(e for e in loads if e.thread == kill.thread)
        again = [event for event in run_again(events) if event.thread == kill.thread]
        kept = [e.name for e in kill.done if e.task not in {event.task for event in again}]
        ticket = f"{kill.victim}, ticket {stage.ticket(kill.thread).number}, step {kill.flying[0].step}"
        times = f"{this.detail['ms']:.1f}", f"{loads[0].detail['since_opening']:.1f}"
        rows.append((ticket, names(kill.flying), names(again), ", ".join(kept), *times))
    columns = ("Killed", "In flight", "Ran again", "Saved before, not run again", "Load (ms)", "First read (ms)")
    stage.screen.table("Kills", columns, rows)
    stage.screen.say("Load: get_tuple of that thread in the next process.")
    stage.screen.say(
        "First read: from LedgerSaver(url) to that process's first checkpoint, the driver's import included."
    )
    stage.screen.say(
        "What was in flight runs again. A tool that pays should send its call's id along as idempotency key, or run"
        " under a ReplayGuard, which takes what is on record as completed from the log and asks about what is not."
    )
    _show_tickets(stage, events)


def _show_tickets(stage: Stage, events: list[Event]) -> None:
    rows = []
    for thread in stage.threads():
        mine = [e for e in events if e.thread == thread]
        workers = sorted({e.worker for e in began(mine)})
        refunds = sum(e.what == "effect" for e in mine)
        again = names(run_again(mine))
        rows.append((stage.ticket(thread).number, ", ".join(workers), len(began(mine)), again, refunds))
    stage.screen.table("Tickets", ("Ticket", "Answered by", "Steps run", "Of these again", "Refunds paid"), rows)


def _next(kill: Kill) -> str:
    """The worker that came after the killed one."""
    return f"worker {int(kill.victim.split()[1]) + 1}"
