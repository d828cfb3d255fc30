"""The way of deletions, prunes and copies: check the arguments, then one operation a thread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import uuid4

from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_ledger import ids, working
from langgraph_ledger.errors import InvalidInput
from langgraph_ledger.flow import Flow
from langgraph_ledger.ledger import Ledger
from langgraph_ledger.operations.retention import (
    PAGE,
    Measure,
    Policy,
    Rehearsed,
    Summary,
    choose_sessions,
    copy_session,
    delete_runs,
    delete_session,
    find_expired,
    find_runs,
    find_sessions,
    prune_session,
    purge_tombstones,
)
from langgraph_ledger.operations.retention import set_ttl as set_ttl_of
from langgraph_ledger.places import body_label, memory_label, unpack_body
from langgraph_ledger.records import now
from langgraph_ledger.statements import Operation
from langgraph_ledger.vault import Vault

STRATEGIES = ("keep_latest", "delete")
STATUSES = ("active", "paused", "completed", "failed")


@dataclass(slots=True)
class Freed:
    """What a prune or a sweep freed, or with `dry_run` would free: threads touched, rows, and bytes of content.

    The file or table itself gets smaller with `compact()`; until then the room is reused.
    """

    threads: int = 0
    checkpoints: int = 0
    pending_writes: int = 0
    chunks: int = 0
    bytes: int = 0
    dry_run: bool = False

    def add(self, freed: Measure) -> None:
        self.threads += any(freed)
        self.checkpoints += freed[0]
        self.pending_writes += freed[1]
        self.chunks += freed[2]
        self.bytes += freed[3]


@dataclass(slots=True, eq=False, repr=False)
class Selection:
    """Which threads a prune is for, and what of them stays."""

    thread_ids: Sequence[str] | None
    strategy: str
    keep_last: int
    older_than: timedelta | None
    status: str | None
    dry_run: bool

    def check(self) -> None:
        """Raises `InvalidInput` unless all of it makes sense."""
        if self.strategy not in STRATEGIES:
            raise InvalidInput(f"strategy={self.strategy!r}: expected one of {', '.join(STRATEGIES)}")
        if isinstance(self.keep_last, bool) or not isinstance(self.keep_last, int) or self.keep_last < 1:
            raise InvalidInput(f"keep_last={self.keep_last!r}: expected a number of checkpoints, at least 1")
        if self.strategy == "delete" and self.keep_last != 1:
            raise InvalidInput("keep_last= has no meaning for strategy='delete'")
        if self.older_than is not None and (
            not isinstance(self.older_than, timedelta) or self.older_than < timedelta(0)
        ):
            raise InvalidInput(f"older_than={self.older_than!r}: expected a timedelta, zero or more")
        check_status(self.status)

    @property
    def since(self) -> datetime | None:
        """What is at least as young as this stays."""
        return None if self.older_than is None else datetime.now(UTC) - self.older_than


def check_status(status: str | None) -> None:
    """Raises `InvalidInput` unless `status` is one that sessions have, or None."""
    if status is not None and status not in STATUSES:
        raise InvalidInput(f"status={status!r}: expected one of {', '.join(STATUSES)}")


def delete_thread(ledger: Ledger, thread_id: str) -> Flow[None]:
    """Deletes a thread, leaving a tombstone."""
    session_id = ids.clean(thread_id, "thread_id")
    yield from ledger.ready()
    yield delete_session(session_id, uuid4().hex, now())
    ledger.forget(session_id)
    yield from working.forget(ledger, session_id)
    yield purge_tombstones(now())


def delete_for_runs(ledger: Ledger, serde: SerializerProtocol, run_ids: Sequence[str]) -> Flow[None]:
    """Deletes the checkpoints of these runs, thread by thread."""
    wanted = [str(ids.clean(run_id, "run_id")) for run_id in _sequence(run_ids, "run_ids")]
    vault = yield from ledger.vault(serde)
    if wanted:
        for session_id in (yield find_runs(wanted)):
            yield delete_runs(session_id, frozenset(wanted), uuid4().hex, vault.stamp, now())
            ledger.forget(session_id)


def copy_thread(
    ledger: Ledger,
    serde: SerializerProtocol,
    source_thread_id: str,
    target_thread_id: str,
    last: int | None = None,
    checkpoint_id: str | None = None,
) -> Flow[None]:
    """Copies a thread, or a part of it, to an empty one."""
    source, target = ids.clean(source_thread_id, "thread_id"), ids.clean(target_thread_id, "thread_id")
    if source == target:
        raise InvalidInput(f"cannot copy thread {source!r} to itself")
    if last is not None and (isinstance(last, bool) or not isinstance(last, int) or last < 1):
        raise InvalidInput(f"last={last!r}: expected a number of checkpoints, at least 1")
    wanted = None if checkpoint_id is None else str(ids.clean(checkpoint_id, "checkpoint_id"))
    vault = yield from ledger.vault(serde)

    def rebind(memory_id: bytes, content: bytes) -> bytes:
        plain = vault.unseal(content, memory_label(source, memory_id))
        return vault.seal(plain, memory_label(target, memory_id))

    yield copy_session(
        source,
        target,
        uuid4().hex,
        now(),
        partial(_summarise, vault, source),
        last=last,
        checkpoint_id=wanted,
        rebind=None if vault.is_open else rebind,
        stamp=ledger.stamp,
    )


def prune(ledger: Ledger, serde: SerializerProtocol, selection: Selection) -> Flow[Freed]:
    """Prunes threads one by one, each in a transaction of its own."""
    selection.check()
    chosen = selection.thread_ids
    named = None if chosen is None else [ids.clean(t, "thread_id") for t in _sequence(chosen, "thread_ids")]
    vault = yield from ledger.vault(serde)
    freed = Freed(dry_run=selection.dry_run)
    since = selection.since
    idle_since = since.isoformat() if since is not None and selection.strategy == "delete" else None
    policy = Policy(selection.keep_last, since)
    after = ""
    while True:
        if named is None:
            page = yield find_sessions(after, selection.status, idle_since)
        elif selection.status is None and idle_since is None:
            page = named  # whatever their status is, and whether they have one
        else:
            page = yield choose_sessions(named, selection.status, idle_since)
        for session_id in page:
            if selection.strategy == "delete":
                step = delete_session(session_id, uuid4().hex, now(), dry_run=selection.dry_run)
            else:
                summarise = partial(_summarise, vault, session_id)
                step = prune_session(session_id, policy, summarise, vault.stamp, now(), dry_run=selection.dry_run)
            freed.add((yield from _measured(step)))
            if selection.strategy == "delete" and not selection.dry_run:
                ledger.forget(session_id)
                yield from working.forget(ledger, session_id)
        if named is not None or len(page) < PAGE:
            return freed
        after = page[-1]


def sweep(ledger: Ledger, dry_run: bool) -> Flow[Freed]:
    """Deletes the sessions that have outlived their time to live."""
    yield from ledger.ready()
    freed, after = Freed(dry_run=dry_run), ""
    while True:
        page = yield find_expired(after, now())
        for session_id in page:
            freed.add((yield from _measured(delete_session(session_id, uuid4().hex, now(), dry_run=dry_run))))
            if not dry_run:
                ledger.forget(session_id)
                yield from working.forget(ledger, session_id)
        if len(page) < PAGE:
            return freed
        after = page[-1]


def set_ttl(ledger: Ledger, thread_id: str, ttl: timedelta | None) -> Flow[None]:
    """Sets how long a thread may be idle before `sweep` deletes it."""
    session_id = ids.clean(thread_id, "thread_id")
    seconds = ttl_seconds(ttl)
    yield from ledger.ready()
    if not (yield set_ttl_of(session_id, seconds)):
        raise InvalidInput(f"there is no thread {session_id!r} whose time to live could be set")


def ttl_seconds(ttl: timedelta | None) -> float | None:
    """A time to live in seconds, checked."""
    if ttl is not None and (not isinstance(ttl, timedelta) or ttl <= timedelta(0)):
        raise InvalidInput(f"ttl={ttl!r}: expected a timedelta above zero, or None")
    return None if ttl is None else ttl.total_seconds()


def _measured(step: Operation[Measure]) -> Flow[Measure]:
    try:
        freed: Measure = yield step
    except Rehearsed as rehearsed:
        return rehearsed.freed
    return freed


def _sequence(given: Sequence[str], what: str) -> Sequence[str]:
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise InvalidInput(f"{what} must be a sequence of ids, not one string or something else: {given!r:.80}")
    return list(given)


def _summarise(vault: Vault, session_id: str, agent_id: str, checkpoint_id: str, data: bytes) -> Summary:
    def where() -> str:
        return f"thread {session_id!r}, namespace {agent_id!r}, checkpoint {checkpoint_id!r}"

    body = unpack_body(vault, data, body_label(agent_id, checkpoint_id), where)
    return Summary(frozenset(body.deltas), frozenset(body.places))
