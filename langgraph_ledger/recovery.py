"""What was in flight: the report on a thread that stopped, the list of those that a crash left, what was found out.

Reading changes nothing; `resolve` appends to the log what a person or a probe has found out about an unknown call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT

from langgraph_ledger import ids, legible, markup, working
from langgraph_ledger.call_records import CallRecord, call_records, find_calls
from langgraph_ledger.calls import Call, Spot, call_id_of, record_end
from langgraph_ledger.encoding import what_is_next
from langgraph_ledger.errors import InvalidInput
from langgraph_ledger.flow import Flow
from langgraph_ledger.ledger import Ledger
from langgraph_ledger.lifecycle import as_owner, owner_alive, settle
from langgraph_ledger.listings import Sessions
from langgraph_ledger.operations.calls import (
    HELD_RESOURCE,
    RELEASED,
    RESOLVED,
    Found,
    find_active,
    find_unclear,
    read_held,
    read_in_flight,
)
from langgraph_ledger.operations.checkpoints import read_checkpoint
from langgraph_ledger.operations.sessions import as_session
from langgraph_ledger.places import Fetched, WriteRow, body_label, unpack_body, unpack_write
from langgraph_ledger.reading import decode, lost
from langgraph_ledger.records import Session, as_time, describe
from langgraph_ledger.shelf import Shelf
from langgraph_ledger.vault import Vault

PAGE = 500
NOT_GIVEN = object()
"""In place of a result: nothing was said of it. None is one that a call may have."""
NO_ID = "placeholder-id"
"""What LangGraph calls a question that has none."""


@dataclass(frozen=True, slots=True)
class PendingInterrupt:
    """A question that waits for an answer: what `interrupt()` was given, and where."""

    id: str
    value: Any
    agent_id: str
    task_id: str


@dataclass(frozen=True, slots=True)
class HeldResource:
    """A resource that was held and never released."""

    resource: str
    hold_id: str
    agent_id: str
    task_id: str | None
    held_at: datetime


@dataclass(frozen=True, slots=True)
class Recovery:
    """What is known of a thread: where it stands, what was in flight, what has to be looked at. Times are UTC.

    `status` is the session's, "unknown" if the ledger holds no such thread. `crashed` says that it is active while
    the process that worked on it is gone. `accepted` says that a run began and no checkpoint has come of it.
    `last_completed` is the last thing known to have been completed; `next` names the nodes that run next.
    `lost_context`: working channels that had a value which is gone.
    `unknown`: calls that were started and have no end on record. `unapplied`: completed calls of which the state does
    not know yet. `failed`, `cancelled` and `interrupted`: how the other calls of the open step ended.
    """

    thread_id: str
    status: str
    crashed: bool
    accepted: bool
    outcome: Mapping[str, Any]
    run_id: str | None
    run_started_at: datetime | None
    started_at: datetime | None
    last_active_at: datetime | None
    last_completed: str | None
    next: tuple[str, ...]
    interrupts: tuple[PendingInterrupt, ...]
    errors: tuple[str, ...]
    unknown: tuple[CallRecord, ...]
    unapplied: tuple[CallRecord, ...]
    failed: tuple[CallRecord, ...]
    cancelled: tuple[CallRecord, ...]
    interrupted: tuple[CallRecord, ...]
    held: tuple[HeldResource, ...]
    checkpoints: int
    first_checkpoint_at: datetime | None
    last_checkpoint_at: datetime | None
    lost_context: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON can hold it: times as text, values described where JSON has no word for them."""
        return {name: _plain(getattr(self, name)) for name in self.__slots__}

    def __str__(self) -> str:
        return legible.facts(self.lines())

    _repr_pretty_ = legible.as_text

    def _repr_html_(self) -> str:
        (_, thread), (_, status), *lines = self.lines()
        look = markup.Marked(status, markup.BAD) if self.crashed else markup.status(status)
        pairs: list[tuple[str, markup.Cell]] = [("status", look)]
        pairs += [(name, markup.Marked(text, _MARKS[name]) if name in _MARKS else text) for name, text in lines]
        return markup.page(legible.short(thread), markup.facts(pairs))

    def lines(self) -> list[tuple[str, str]]:
        """What it says, as pairs of a name and a text in one line."""
        return [(name, legible.line(text)) for name, text in self._lines()]

    def _lines(self) -> list[tuple[str, str]]:
        lines = [("thread", self.thread_id), ("status", self.status + (" (its process is gone)" * self.crashed))]
        if self.outcome:
            lines.append(("run ended", " ".join(str(v) for v in self.outcome.values())))
        if self.accepted:
            lines.append(("input", "accepted, and no checkpoint has come of it yet"))
        if self.last_completed:
            lines.append(("last completed", self.last_completed))
        if self.next:
            lines.append(("next", ", ".join(self.next)))
        lines += [("waits for answer", f"{_short(i.value)} (id {i.id})") for i in self.interrupts]
        lines += [("error", text) for text in self.errors]
        for what in ("unknown", "unapplied", "failed", "cancelled", "interrupted"):
            lines += [(f"{what} call", _call_line(call)) for call in getattr(self, what)]
        lines += [("held", f"{held.resource}, since {_time(held.held_at)}") for held in self.held]
        if self.lost_context:
            lines.append(("lost context", ", ".join(self.lost_context)))
        if self.checkpoints:
            lines.append(("checkpoints", f"{self.checkpoints}, the last one at {_time(self.last_checkpoint_at)}"))
        return lines


_MARKS = {"error": markup.BAD, "unknown call": markup.BAD, "failed call": markup.BAD, "unapplied call": markup.WARN}
_MARKS |= dict.fromkeys(("waits for answer", "cancelled call", "held", "lost context"), markup.WARN)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:199]}…"


def _time(moment: datetime | None) -> str:
    return moment.isoformat(sep=" ", timespec="milliseconds") if moment else "?"


def _call_line(call: CallRecord) -> str:
    arguments = call.arguments if isinstance(call.arguments, Mapping) else {}
    shown = ", ".join(f"{k}={_short(v)}" for k, v in arguments.items()) or _short(call.arguments)
    about = [f"id {call.call_id}", f"started {_time(call.started_at)}"]
    if call.attempts > 1:
        about.append(f"attempt {call.attempts}")
    if call.error:
        about.append(call.error)
    return f"{call.name}({shown}), {', '.join(about)}"


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, (CallRecord, PendingInterrupt, HeldResource)):
        return {name: _plain(getattr(value, name)) for name in type(value).__slots__}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return describe(value)


def recover(ledger: Ledger, serde: SerializerProtocol, thread_id: str) -> Flow[Recovery]:
    """The report on one thread; changes nothing."""
    session_id = ids.clean(thread_id, "thread_id")
    vault = yield from ledger.vault(serde)
    if not ledger.driver.read_only:
        yield from settle(ledger)
    found: Found = yield read_in_flight(session_id)
    if found.stored is not None:
        found.stored.working = yield from working.fetch(ledger, session_id)
    return _report(ledger, vault, session_id, found)


def _report(ledger: Ledger, vault: Vault, session_id: str, found: Found) -> Recovery:
    session = as_session(found.session) if found.session else None
    head = decode(ledger, vault, found.stored, None) if found.stored else None
    calls = call_records(vault, session_id, found.calls, found.memory)
    done = {row.task_id for row in found.stored.writes if row.idx >= 0} if found.stored else set()
    unapplied = [c for c in calls if c.status == "completed" and not (c.settled or _within(c, done))]
    open_calls = [c for c in calls if c.status not in ("unknown", "completed") and not (c.settled or _within(c, done))]
    number, earliest, latest = found.counted

    def of(status: str) -> tuple[CallRecord, ...]:
        return tuple(call for call in open_calls if call.status == status)

    return Recovery(
        thread_id=session_id,
        status=session.status if session else "unknown",
        crashed=_crashed(ledger, session, found.head.owner if found.head else None),
        accepted=session is not None and head is None,
        outcome=session.outcome if session else {},
        run_id=session.run_id if session else None,
        run_started_at=session.run_started_at if session else None,
        started_at=session.started_at if session else None,
        last_active_at=session.last_active_at if session else None,
        last_completed=_last_completed(head, unapplied),
        next=what_is_next(head.checkpoint) if head else (),
        interrupts=tuple(_interrupts(vault, session_id, found)),
        errors=tuple(str(value) for _, channel, value in (head.pending_writes or ()) if channel == ERROR)
        if head
        else (),
        unknown=tuple(call for call in calls if call.status == "unknown"),
        unapplied=tuple(unapplied),
        failed=of("failed"),
        cancelled=of("cancelled"),
        interrupted=of("interrupted"),
        held=tuple(HeldResource(row[3], row[4], row[1], row[2], as_time(row[6])) for row in found.held),
        checkpoints=int(number),
        first_checkpoint_at=as_time(earliest) if earliest else None,
        last_checkpoint_at=as_time(latest) if latest else None,
        lost_context=lost(ledger, vault, found.stored) if found.stored else (),
    )


def _within(call: CallRecord, done: set[str]) -> bool:
    """Whether a task around the call has written already: that of a node whose graph the call was made in."""
    around = [step.rpartition(":")[2] for step in call.agent_id.split("|")]
    return not done.isdisjoint((*around, call.task_id or ""))


def _last_completed(head: Any, unapplied: Sequence[CallRecord]) -> str | None:
    if unapplied:
        last = max(unapplied, key=lambda call: call.ended_at or call.started_at)
        return f"call {last.name} (id {last.call_id}), whose result the state does not have yet"
    if head is None:
        return None
    written = len({task for task, channel, _ in head.pending_writes or () if not channel.startswith("__")})
    step = f"step {head.metadata.get('step')} ({head.metadata.get('source')})"
    return f"{step}, and {written} of the tasks after it" if written else step


def _interrupts(vault: Vault, session_id: str, found: Found) -> list[PendingInterrupt]:
    """The questions of the open step: each once, where it was asked."""
    place = ("", found.stored.checkpoint_id if found.stored else "")
    rows: list[tuple[WriteRow, tuple[str, str], Fetched]] = []
    answered = set()
    if found.stored is not None:
        answered = {row.task_id for row in found.stored.writes if row.idx >= 0}
        rows += [(row, place, found.stored.memory) for row in found.stored.writes if row.channel == INTERRUPT]
    waiting = {row.task_id for row, *_ in rows} - answered
    nested = [(row, (agent, checkpoint), found.nested_memory) for row, agent, checkpoint in found.nested]
    rows += [n for n in nested if {step.rpartition(":")[2] for step in n[1][0].split("|")} & waiting]
    questions: dict[str, PendingInterrupt] = {}
    for row, where, memory in rows:
        if row.task_id in answered:
            continue
        shelf = Shelf(vault, session_id, memory)
        told = f"thread {session_id!r}, an interrupt of task {row.task_id}"
        found_here = shelf.value(unpack_write(vault, row, where, lambda told=told: told), lambda told=told: told)  # type: ignore[misc]
        for asked in found_here if isinstance(found_here, (list, tuple)) else [found_here]:  # one: LangGraph before 0.3
            number, value = (_part(asked, name) for name in ("id", "value"))
            questions[_question(number, row, where[0])] = PendingInterrupt(number, value, where[0], row.task_id)
    return list(questions.values())


def _question(number: str | None, row: WriteRow, namespace: str) -> str:
    """What tells a question from others: its id, or, of one asked before LangGraph 0.2.57 had ids, the root's task."""
    if number is not None and number != NO_ID:
        return number
    return namespace.split("|")[0].rpartition(":")[2] or row.task_id


def _part(asked: Any, name: str) -> Any:
    """Of an interrupt, or of the data that a reader without its class has in its place."""
    return asked.get(name) if isinstance(asked, Mapping) else getattr(asked, name)


def _crashed(ledger: Ledger, session: Session | None, owner: str | None, timeout: float | None = None) -> bool:
    if session is None or session.status != "active":
        return False
    limit = ledger.owner_timeout if timeout is None else timeout
    return not owner or not owner_alive(as_owner(owner), session.last_active_at, limit)


def recoverable(ledger: Ledger, idle: timedelta | None) -> Flow[Sessions]:
    """The sessions that a crash left behind: active, while whoever worked on them is gone."""
    if idle is not None and (not isinstance(idle, timedelta) or idle < timedelta(0)):
        raise InvalidInput(f"idle={idle!r}: expected a timedelta, zero or more, or None")
    yield from ledger.ready()
    if not ledger.driver.read_only:
        yield from settle(ledger)
    left = Sessions()
    after = ""
    while True:
        rows = yield find_active(after, PAGE)
        for *row, owner in rows:
            session = as_session(tuple(row))
            if _crashed(ledger, session, owner, None if idle is None else idle.total_seconds()):
                left.append(session)
        if len(rows) < PAGE:
            return left
        after = rows[-1][0]


def unresolved(ledger: Ledger, serde: SerializerProtocol, idle: timedelta | None) -> Flow[list[Recovery]]:
    """The reports on the sessions that a crash left behind, and on others with an unknown call or something held."""
    left = yield from recoverable(ledger, idle)
    crashed = dict.fromkeys(session.session_id for session in left)
    unclear = yield find_unclear()
    reports = []
    for name in crashed | dict.fromkeys(row[0] for row in unclear):
        report = yield from recover(ledger, serde, name)
        if name in crashed or report.unknown or report.held:
            reports.append(report)
    return reports


def is_open(call: CallRecord) -> bool:
    """Whether it is not known if a call happened, or with what result."""
    return call.status in ("unknown", "cancelled") or (call.status == "completed" and not call.kept)


def resolve_call(
    ledger: Ledger,
    serde: SerializerProtocol,
    thread_id: str,
    call_id: str,
    happened: bool,
    result: Any,
    task_id: str | None,
) -> Flow[None]:
    """`resolve` for a person or a program, who must not forget the result."""
    if happened is True and result is NOT_GIVEN:
        raise InvalidInput(f"call {call_id!r} happened: say what it returned, result=None if that was nothing")
    if happened is False and result is not NOT_GIVEN and result is not None:
        raise InvalidInput(f"call {call_id!r} did not happen, and result={result!r:.80} was given: it cannot have one")
    session_id = ids.clean(thread_id, "thread_id")
    vault = yield from ledger.vault(serde)
    _, stored = yield read_checkpoint(session_id, "", None, values=False)
    if stored is not None:  # who has not its key would store the result in plain, and its runs could not read that
        label = body_label("", stored.checkpoint_id)
        unpack_body(vault, stored.body, label, lambda: f"thread {session_id!r}, checkpoint {stored.checkpoint_id!r}")
    yield from resolve(ledger, serde, thread_id, call_id, happened, result, task_id)


def resolve(
    ledger: Ledger,
    serde: SerializerProtocol,
    thread_id: str,
    call_id: str,
    happened: bool,
    result: Any,
    task_id: str | None,
    source: str = "resolve_call",
    asked_by: str | None = None,
    **facts: Any,
) -> Flow[None]:
    """Puts on record what was found out about a call."""
    session_id = ids.clean(thread_id, "thread_id")
    if not isinstance(happened, bool):
        raise InvalidInput(f"happened={happened!r}: expected True or False")
    calls = yield from find_calls(ledger, serde, session_id, call_id_of(call_id))
    named = [call for call in calls if task_id is None or call.task_id == task_id]
    unsure = [call for call in named if is_open(call)]
    if not unsure:
        if named:
            what = f"it is on record as {named[-1].status}"
        else:
            what = f"there is none of that name; open are {yield from _open_ids(ledger, serde, session_id)}"
        raise InvalidInput(f"thread {session_id!r} has no call {call_id!r} about which anything is open: {what}")
    if len({call.task_id for call in unsure}) > 1:
        tasks = ", ".join(str(call.task_id) for call in unsure)
        raise InvalidInput(
            f"several tasks have a call {call_id!r} about which something is open: name task_id, of {tasks}"
        )
    call = unsure[-1]
    spot = Spot(session_id, call.agent_id, call.task_id, None, None)
    values = {"result": result} if happened else {}
    entry = Call(spot, call.call_id, {"tool": call.name}, attempt_id=call.attempt_id)
    facts |= {"happened": happened, "source": source, "asked_by": asked_by}
    yield from record_end(ledger, serde, entry, RESOLVED, values, **facts)


def _open_ids(ledger: Ledger, serde: SerializerProtocol, session_id: str) -> Flow[str]:
    report = yield from recover(ledger, serde, session_id)
    calls = (*report.unknown, *report.cancelled, *report.unapplied)
    return ", ".join(repr(call.call_id) for call in calls if is_open(call)) or "none"


def release(ledger: Ledger, serde: SerializerProtocol, thread_id: str, resource: str, hold_id: str | None) -> Flow[int]:
    """Puts on record that a resource which was left held has been dealt with; returns of how many holds."""
    session_id, name = ids.clean(thread_id, "thread_id"), ids.key(resource, "resource")
    yield from ledger.ready()
    rows = yield read_held(session_id)
    left = [row for row in rows if row[3] == name and hold_id in (None, row[4])]
    for _, agent_id, task_id, _, attempt_id, *_ in left:
        entry = Call(Spot(session_id, agent_id, task_id, None, None), name, {}, attempt_id=attempt_id)
        yield from record_end(ledger, serde, entry, RELEASED, {}, started=HELD_RESOURCE, by="release_hold")
    return len(left)
