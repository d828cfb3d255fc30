"""Calls as the log knows them: attempts put together from their entries, with their values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_ledger.calls import call_label
from langgraph_ledger.errors import ValueNotRestorable
from langgraph_ledger.flow import Flow
from langgraph_ledger.ledger import Ledger
from langgraph_ledger.operations.calls import (
    CANCELLED,
    COMPLETED,
    FAILED,
    INTERRUPTED,
    RESOLVED,
    STARTED,
    CallRow,
    read_call,
)
from langgraph_ledger.places import Fetched, unpack_sealed
from langgraph_ledger.records import as_time, from_json
from langgraph_ledger.shelf import Shelf
from langgraph_ledger.vault import Vault

QUESTIONS, INQUIRIES = "questions", "inquiries"
"""What entries call the slots of a call's questions, and of those about it."""
MAX_SLOT = 1_000_000
"""Questions that a task may ask."""

CallStatus = Literal["unknown", "completed", "failed", "interrupted", "cancelled", "not made"]

_STATUS: dict[str, CallStatus] = {
    STARTED: "unknown",
    COMPLETED: "completed",
    FAILED: "failed",
    INTERRUPTED: "interrupted",
    CANCELLED: "cancelled",
}


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call, as its last attempt left it.

    `status` is "unknown" if it was started and no end is on record: it may have happened or not. `arguments` and
    `result` are the values, None where they are not kept (`kept` says whether the result is). `settled` says that the
    state knows what came of it, `based` that the checkpoints which its step follows are stored. `resolved` names who
    has found out what an unknown call did, `asked_by` the tasks that have asked for it. `questions`: the
    slots of the questions that it asked, among the answers of its task, `inquiries` those of the questions about it;
    None if they are not on record.
    """

    name: str
    call_id: str
    status: CallStatus
    node: str | None
    agent_id: str
    run_id: str | None
    task_id: str | None
    attempt_id: str
    attempts: int
    arguments: Any
    result: Any
    kept: bool
    error: str | None
    settled: bool
    based: bool
    resolved: str | None
    asked_by: tuple[str, ...]
    questions: tuple[int, ...] | None
    inquiries: tuple[int, ...] | None
    started_at: datetime
    ended_at: datetime | None


def call_records(vault: Vault, session_id: str, rows: Iterable[CallRow], memory: Fetched) -> list[CallRecord]:
    """The calls that these entries tell of, each as its last attempt left it, in the order of their last starts."""
    shelf = Shelf(vault, session_id, memory)
    attempts: dict[str, list[CallRow]] = {}
    for row in rows:
        attempts.setdefault(row.attempt_id, []).append(row)
    found: dict[tuple[str, str | None, str], CallRecord] = {}
    for entries in attempts.values():
        if entries[0].kind == STARTED:
            record = _record(shelf, entries)
            key = (record.agent_id, record.task_id, record.call_id)
            before = found.pop(key, None)
            if before is not None:
                asked_by = before.asked_by + record.asked_by
                slots = before.questions if record.questions is None else record.questions
                inquiries = before.inquiries if record.inquiries is None else record.inquiries
                record = replace(record, asked_by=asked_by, questions=slots, inquiries=inquiries)
                if slots_in(_told(shelf, entries[0]), INQUIRIES) is None:
                    record = replace(record, attempts=before.attempts + 1)
                else:  # no attempt, but the note that somebody is being asked about the one before
                    record = replace(record, attempts=before.attempts, started_at=before.started_at)
            found[key] = record
    return list(found.values())


def _record(shelf: Shelf, entries: Sequence[CallRow]) -> CallRecord:
    told = [(entry, _told(shelf, entry)) for entry in entries]
    (start, payload), (last, end) = told[0], told[-1]
    for entry, said in told:  # outranks what somebody has found out at the same time
        if entry.kind == COMPLETED and said.get("kept", True) is True:
            last, end = entry, said
    status = _STATUS.get(last.kind)
    if status is None:
        status = "completed" if end["happened"] else "not made"
    elif end.get("ran") is False:  # cancelled between its start and the call itself
        status = "not made"
    ended = last is not start
    value = _value(shelf, last) if ended else None
    return CallRecord(
        name=payload.get("tool") or payload.get("once") or "",
        call_id=start.call_id,
        status=status,
        node=payload.get("node"),
        agent_id=start.agent_id,
        run_id=start.run_id,
        task_id=start.task_id,
        attempt_id=start.attempt_id,
        attempts=1,
        arguments=_value(shelf, start),
        result=value if status == "completed" else None,
        kept=status == "completed" and end.get("kept", True) is True,
        error=_error(end, value) if status in ("failed", "cancelled") else None,
        settled=start.settled,
        based=bool(start.based),
        resolved=end.get("source"),
        asked_by=tuple(said["asked_by"] for _, said in told if said.get("asked_by")),
        questions=_latest([said for _, said in told], QUESTIONS),
        inquiries=_latest([said for _, said in told], INQUIRIES),
        started_at=as_time(start.created_at),
        ended_at=as_time(last.created_at) if ended else None,
    )


def _told(shelf: Shelf, row: CallRow) -> dict[str, Any]:
    """What the log says of a call for reading, and, of an end that was found out, whether it happened."""
    try:
        found = from_json(row.payload)
        if row.kind == RESOLVED and type(found.get("happened")) is not bool:
            raise ValueError("it does not say whether the call happened")
    except ValueError as error:
        where = f"thread {shelf.session_id!r}, call {row.call_id!r}, {row.kind}"
        raise ValueNotRestorable(f"{where}: entry {row.seq} of the log is damaged: {error}") from error
    return found


def slots_in(said: Mapping[str, Any], which: str) -> tuple[int, ...] | None:
    """The slots of questions in an entry, if it has any that can be: it may come from anywhere."""
    found = said.get(which)
    if not isinstance(found, list) or any(type(slot) is not int or not 0 <= slot < MAX_SLOT for slot in found):
        return None
    return tuple(found)


def _latest(told: Sequence[Mapping[str, Any]], which: str) -> tuple[int, ...] | None:
    return next((found for said in reversed(told) if (found := slots_in(said, which)) is not None), None)


def latest_slots(rows: Iterable[tuple[str, str]]) -> dict[str, dict[str, tuple[int, ...]]]:
    """Of each call, by its name, the slots in the latest of these entries that has any: of its questions and of those
    about it. A question that was not answered may have left its slot to another one, whose entry is a later one."""
    latest: dict[tuple[str, str], tuple[int, ...]] = {}
    for call_id, payload in rows:
        with suppress(ValueError):  # one that is damaged is told of by the call whose it is
            said = from_json(payload)
            for which in (QUESTIONS, INQUIRIES):
                if (found := slots_in(said, which)) is not None:
                    latest.pop((call_id, which), None)
                    latest[call_id, which] = found
    owners = {slot: owner for owner, slots in latest.items() for slot in slots}
    kept: dict[str, dict[str, tuple[int, ...]]] = {}
    for (call_id, which), slots in latest.items():
        kept.setdefault(call_id, {})[which] = tuple(slot for slot in slots if owners[slot] == (call_id, which))
    return kept


def _error(end: Any, value: Any) -> str:
    text = value if isinstance(value, str) else None
    return f"{end.get('error_type')}: {text}" if text else str(end.get("error_type"))


def _value(shelf: Shelf, row: CallRow) -> Any:
    if row.body is None:
        return None

    def where() -> str:
        return f"thread {shelf.session_id!r}, call {row.call_id!r}"

    label = call_label(row.call_id, row.attempt_id, row.kind)
    return shelf.value(unpack_sealed(shelf.vault, row.body, label, "call", where), where)


def find_calls(ledger: Ledger, serde: SerializerProtocol, session_id: str, call_id: str) -> Flow[list[CallRecord]]:
    """The calls of this name in a session: one for each task that made one."""
    vault = yield from ledger.vault(serde)
    rows, memory = yield read_call(session_id, call_id)
    return call_records(vault, session_id, rows, memory)
