"""The second act: the same message reaches two workers at once, and one thread takes one answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langgraph_ledger.demo.journal import Event, began, read_journal
from langgraph_ledger.demo.stage import Stage, names
from langgraph_ledger.demo.tickets import FOLLOW_UP, TICKETS, transcript

RIVALS = ("worker A", "worker B")


def rivals_act(stage: Stage) -> None:
    """Run the act, print what happened and note the checks."""
    thread = stage.thread(TICKETS[0])
    stage.screen.title("2. Two workers answer on one thread at once")
    before, head = transcript(stage.messages(thread)), str(stage.head(thread).checkpoint["id"])
    with stage.screen.working("both workers read, then both write"):
        ends = _race(stage, thread)
    won = [event for event in ends if event.what == "answered"]
    lost = [event for event in ends if event.what == "refused"]
    found = f"{len(won)} answered, {len(lost)} refused"
    stage.checks.that(len(won) == len(lost) == 1, "one worker won and the other got StateConflict", found)
    events = [event for event in read_journal(stage.journal) if event.worker in RIVALS]
    _check_state(stage, thread, before, won, events)
    if won and lost:
        _tell(stage, thread, won[0], lost[0], events)
        _check_refusal(stage, thread, head, lost[0], events)


def _race(stage: Stage, thread: str) -> list[Event]:
    """Let both workers read before either may write, and hand back how the two runs ended."""
    workers = [stage.start(name, [(thread, FOLLOW_UP)], rival=True) for name in RIVALS]
    reads: list[Event] = []
    ends: list[Event] = []
    finished = 0
    for event in stage.crew.events():
        if event.what == "read":
            stage.screen.say(f"{event.worker} has read checkpoint {event.detail['checkpoint']} and waits")
            reads.append(event)
            if len(reads) == len(workers):
                stage.screen.say("both have read the same state; now both write")
                for worker in workers:
                    worker.say("go")
        elif event.what in ("answered", "refused"):
            ends.append(event)
        finished += event.what == "finished"
        if finished == len(workers):
            break
    seen = {event.detail["checkpoint"] for event in reads}
    stage.checks.that(len(reads) == 2 and len(seen) == 1, "both workers had read the same checkpoint", seen)
    return ends


def _check_state(stage: Stage, thread: str, before: list[Any], won: Sequence[Event], events: list[Event]) -> None:
    answers = [str(event.detail["answer"]) for event in won]
    expected = [("human", FOLLOW_UP, []), ("ai", "", ["send_voucher"]), ("tool",), *(("ai", a, []) for a in answers)]
    added = transcript(stage.messages(thread))
    old, new = added[: len(before)], added[len(before) :]
    # The tool's own words are not the point here, its place in the conversation is.
    new_shape = [message if message[0] != "tool" else ("tool",) for message in new]
    stage.checks.same(old, before, "what was said on the thread before is still there")
    stage.checks.same(new_shape, expected, "the thread holds the winner's answer, and nothing of the other's")
    vouchers = [event.worker for event in events if event.what == "effect"]
    stage.checks.same(vouchers, [event.worker for event in won], "one voucher was sent, by the winner")
    saved = {e.detail["checkpoint"] for e in events if e.what == "checkpoint" and e.worker in {w.worker for w in won}}
    missing = saved - set(stage.checkpoint_ids(thread))
    stage.checks.that(bool(saved) and not missing, "each checkpoint the winner had acknowledged is there", missing)


def _check_refusal(stage: Stage, thread: str, head: str, lost: Event, events: list[Event]) -> None:
    conflict = lost.detail["conflict"]
    check = stage.checks
    check.same(conflict["checkpoint_read"], head, "StateConflict names the checkpoint that both had read")
    claim = f"StateConflict: version {conflict['version_read']} was read, {conflict['version_found']} found"
    check.that(conflict["version_found"] > conflict["version_read"], claim, conflict)
    check.same(conflict["committed"], False, "StateConflict says that the refused run had saved nothing")
    kept = stage.stored_tasks(thread) & {e.task for e in began(events) if e.worker == lost.worker}
    kept |= {e.detail["checkpoint"] for e in events if e.worker == lost.worker and e.what == "checkpoint"}
    check.that(not kept, "nothing of the refused run is in the database", kept)
    versions = conflict["version_read"], conflict["version_found"]
    rejected = stage.saver.rejected_writes(thread)
    same = [e for e in rejected if (e.payload.get("version_read"), e.payload.get("version_found")) == versions]
    check.that(bool(same), "the log has the refused write, with the versions of StateConflict", rejected)
    for entry in same[:1]:
        facts = [(name, getattr(entry, name)) for name in ("seq", "created_at", "checkpoint_type", "session_id")]
        rows = facts + sorted(entry.payload.items())
        stage.screen.table("The rejected write, from the log", ("Field", "Value"), rows)
        stage.screen.say(f"Entries of this kind on the thread: {len(rejected)}")


def _tell(stage: Stage, thread: str, won: Event, lost: Event, events: list[Event]) -> None:
    mine = [event for event in events if event.worker == lost.worker]
    saved = stage.stored_tasks(thread) & {event.task for event in began(mine)}
    sent = [event for event in mine if event.what == "effect"]
    stage.screen.say(f"{won.worker} answers: {won.detail['answer']}")
    stage.screen.say(f"{lost.worker} gets StateConflict: {lost.detail['message']}")
    stage.screen.say(
        f"{lost.worker} ran: {names(began(mine))}; of this saved: {len(saved)}; vouchers sent: {len(sent)}"
    )
