"""How a write is stored: on what terms, by itself or with what else waits, and what it says of the session."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from langgraph_ledger.conflicts import StateConflict
from langgraph_ledger.encoding import Encoder, status_after
from langgraph_ledger.errors import (
    CheckpointExists,
    Duplicate,
    ReuseRefused,
)
from langgraph_ledger.flow import Flow
from langgraph_ledger.flushing import Change, submit
from langgraph_ledger.ledger import Ledger
from langgraph_ledger.operations.checkpoints import (
    HELD,
    Head,
    NewCheckpoint,
    PlacedWrite,
    Stored,
    Writer,
    put_checkpoint,
    put_pending_writes,
    read_checkpoint,
    read_root,
)
from langgraph_ledger.operations.working import WorkingRow
from langgraph_ledger.places import MemoryRow, body_label, unpack_body
from langgraph_ledger.policies import Batched, Transition
from langgraph_ledger.records import now
from langgraph_ledger.refusals import refuse, refuse_if_busy
from langgraph_ledger.restoring import load
from langgraph_ledger.runs import Run, Waiting
from langgraph_ledger.statements import Operation
from langgraph_ledger.vault import Vault
from langgraph_ledger.working import keep

TOUCH_SECONDS = 1.0
"""How much `sessions.last_active_at` may lag behind while nothing else changes."""


def keep_working(ledger: Ledger, run: Run, entries: Sequence[Waiting]) -> Flow[None]:
    for entry in entries:
        if entry.working:
            yield from keep(ledger, run.session_id, entry.place[0], None, entry.working)


def settle_all(entries: Sequence[Waiting], error: BaseException) -> None:
    for entry in entries:
        entry.settle(error.again() if isinstance(error, StateConflict) else error)


def note_stored(ledger: Ledger, run: Run, entries: Sequence[Waiting]) -> None:
    for entry in entries:
        ledger.remember_written(run.session_id, *entry.place, entry.used)
        entry.settle()


def placed(entries: Sequence[Waiting]) -> list[PlacedWrite]:
    return [(*entry.place, row) for entry in entries for row in entry.rows]


@dataclass(slots=True, eq=False, repr=False)
class Save:
    """A checkpoint on its way to the database, by itself or with what else waits."""

    ledger: Ledger
    run: Run
    vault: Vault
    encoder: Encoder | None
    """As long as the caller waits: afterwards values need not be what they were when it called."""
    new: NewCheckpoint
    company: Sequence[Waiting]
    parent_id: str | None
    moment: str = field(default_factory=now)
    status: str | None = None
    metadata: str | None = None
    working: Sequence[WorkingRow] = ()

    def __post_init__(self) -> None:
        assert self.encoder is not None
        new = self.new
        own = [row for entry in self.company if entry.place == (new.agent_id, new.checkpoint_id) for row in entry.rows]
        self.status, self.metadata = self.encoder.status(own), new.metadata
        self.working = self.encoder.working
        self._join(new)

    def _join(self, new: NewCheckpoint) -> None:
        """Lets writes go along with a checkpoint."""
        memory = {row.memory_id: row for rows in (*(e.memory for e in self.company), new.memory) for row in rows}
        new.writes, new.memory = placed(self.company), list(memory.values())

    def alone(self) -> Flow[None]:
        """By itself, under whatever may come up."""
        try:
            yield from self._store(self.new)
        except ReuseRefused:
            if self.encoder is None:
                raise
            new = self.encoder.encode(reuse=False)
            self._join(new)
            yield from self._store(new)
        except Duplicate:
            yield from _compare(self.ledger, self.vault, self.run.session_id, self.new)
            yield from store_writes(self.ledger, self.run, self.company)

    def _store(self, new: NewCheckpoint) -> Flow[None]:
        ledger, run = self.ledger, self.run
        yield from refuse_if_busy(ledger, run, "put", new.agent_id, new.checkpoint_id)
        version = yield self.operation(writer_of(ledger, run, self.parent_id), new)
        while version is None:
            head, stored = yield read_checkpoint(run.session_id, new.agent_id, new.checkpoint_id, values=False)
            if stored is not None and stored.body == new.body:
                break  # our own commit, whose answer was lost before another run took over
            yield from refuse(ledger, run, "put", new.agent_id, new.checkpoint_id, head)
            version = yield self.operation(regardless(ledger, run, head), new)
        self.done()

    def after(self) -> Flow[None]:
        """Keeps the working values, which are worth nothing without the checkpoint."""
        place = (self.run.session_id, self.new.agent_id)
        rows = [*self.working, *(row for entry in self.company for row in entry.working)]
        yield from keep(self.ledger, *place, self.new.checkpoint_id, rows)

    def operation(self, writer: Writer, new: NewCheckpoint) -> Operation[int | None]:
        """Sends it on these terms."""
        news = is_news(self.run, self.status, writer.holds)
        new.status, new.metadata = (self.status, self.metadata) if news else (None, None)
        return put_checkpoint(writer, new, self.moment)

    def done(self) -> None:
        """Notes that it is stored."""
        self.run.claimed = True
        if self.new.agent_id == "":
            self.run.last_committed = self.new.checkpoint_id

    def at_once(self, policy: Batched | None) -> bool:
        """Whether it may not wait: by the policy, or because what it takes over from its parent may go meanwhile."""
        run, new = self.run, self.new
        if policy is None:
            return True
        assert self.encoder is not None
        if new.reused_from and (new.agent_id or new.reused_from != run.checkpoint_read):
            maker = self.ledger.runs.maker(run.session_id, new.agent_id, new.reused_from)
            if maker is not run:
                return True
        metadata = self.encoder.metadata
        transition = Transition(
            "checkpoint",
            run.session_id,
            new.agent_id,
            new.checkpoint_id,
            tuple(self.encoder.new_versions),
            ends=self.status not in (None, "active"),
            step=metadata.get("step"),
            source=metadata.get("source"),
        )
        return policy.at_once(transition)

    def change(self) -> Change:
        """It as one of those that wait."""
        new, run = self.new, self.run

        def operation(claimed: bool) -> Operation[Any]:
            return self.operation(writer_of(self.ledger, run, self.parent_id, claimed), new)

        def stored(version: Any) -> bool:
            if version is not None:
                self.done()
            return version is not None

        weight = len(new.body) + len(new.state) + sum(len(row.content) for row in new.memory)
        return Change(run, weight, True, operation, stored, self.alone, self.after)


def queue_writes(ledger: Ledger, run: Run, entries: Sequence[Waiting], policy: Batched | None) -> Flow[None]:
    """Adds writes to what waits; they belong to a checkpoint that is stored, or waits itself."""
    yield from refuse_if_busy(ledger, run, "put_writes", *entries[0].place)
    moment = now()
    sent = Sent(run, entries)

    def operation(claimed: bool) -> Operation[Any]:
        if sent.status is not None:
            run.touched = (sent.status, 0.0)
        writer = writer_of(ledger, run, sent.parent_id, claimed)
        return put_pending_writes(writer, sent.writes, sent.memory, sent.status, moment, behind=claimed)

    def stored(version: Any) -> bool:
        run.claimed = run.claimed or version is not None
        return version is not None

    weight = sum(len(row.place) for _, _, row in sent.writes)
    weight += sum(len(row.content) for rows in sent.memory.values() for row in rows)
    after = partial(keep_working, ledger, run, entries) if any(entry.working for entry in entries) else None
    change = Change(run, weight, False, operation, stored, lambda: store_writes(ledger, run, entries), after)
    yield from submit(ledger.queue, change, policy, at_once=_writes_at_once(run, entries, sent.status, policy))
    note_stored(ledger, run, entries)


def _writes_at_once(run: Run, entries: Sequence[Waiting], status: str | None, policy: Batched | None) -> bool:
    if policy is None:
        return True
    agent_id, checkpoint_id = entries[0].place
    rows = [row for entry in entries for row in entry.rows]
    channels = tuple(dict.fromkeys(row.channel for row in rows))
    place = (run.session_id, agent_id, checkpoint_id)
    transition = Transition("writes", *place, channels, ends=status is not None, task_id=rows[0].task_id)
    return policy.at_once(transition)


def writer_of(ledger: Ledger, run: Run, parent_id: str | None, claimed: bool = False) -> Writer:
    """The terms on which a run writes now; `claimed`: behind a write of its own, in one transaction."""
    version = None if run.blind else (HELD if run.claimed or claimed else run.read_version)
    return Writer(
        run.session_id, run.token, version, str(parent_id) if parent_id else None, ledger.owner(), ledger.ttl_seconds
    )


def regardless(ledger: Ledger, run: Run, head: Head | None) -> Writer:
    """The terms of a write that `on_conflict="report"` lets through: whatever is there now."""
    return Writer(run.session_id, run.token, head.version if head else 0, None, ledger.owner(), ledger.ttl_seconds)


def is_news(run: Run, status: str | None, claimed: bool = False) -> bool:
    """Whether the session's row has to be written: not if it says the same already, and is less than a second old."""
    moment = time.monotonic()
    if (run.claimed or claimed) and run.touched[0] == status and moment - run.touched[1] < TOUCH_SECONDS:
        return False
    run.touched = (status, moment)
    return True


class Sent:
    """Writes as they are sent."""

    def __init__(self, run: Run, entries: Sequence[Waiting]) -> None:
        agent_id, checkpoint_id = entries[0].place
        self.parent_id = checkpoint_id if agent_id == "" else None
        self.writes = placed(entries)
        self.memory: dict[tuple[str, str], list[MemoryRow]] = {}
        for entry in entries:
            self.memory.setdefault(entry.place, []).extend(entry.memory)
        self.status = status_after([row for _, _, row in self.writes])


def store_writes(ledger: Ledger, run: Run, entries: Sequence[Waiting]) -> Flow[None]:
    if not entries:
        return
    agent_id, checkpoint_id = entries[0].place
    sent = Sent(run, entries)
    yield from refuse_if_busy(ledger, run, "put_writes", agent_id, checkpoint_id)
    writer = writer_of(ledger, run, sent.parent_id)
    if sent.status is not None:
        run.touched = (sent.status, 0.0)
    version = yield put_pending_writes(writer, sent.writes, sent.memory, sent.status, now())
    while version is None:
        head = yield read_root(run.session_id)
        yield from refuse(ledger, run, "put_writes", agent_id, checkpoint_id, head)
        writer = regardless(ledger, run, head)
        version = yield put_pending_writes(writer, sent.writes, sent.memory, sent.status, now())
    # A checkpoint that this run read or made, and that a prune has dropped since, takes its writes along.
    run.claimed = True


def _compare(ledger: Ledger, vault: Vault, session_id: str, new: NewCheckpoint) -> Flow[None]:
    """The same checkpoint id came twice: fine if it is the same checkpoint, an error otherwise."""
    _, stored = yield read_checkpoint(session_id, new.agent_id, new.checkpoint_id, values=False)
    if stored is None or (stored.parent_id == new.parent_id and _same(vault, stored, new)):
        return
    raise CheckpointExists(
        f"thread {session_id!r}, namespace {new.agent_id!r} holds another checkpoint {new.checkpoint_id!r} already;"
        " a checkpoint never changes, so the new one was not stored"
    )


def _same(vault: Vault, stored: Stored, new: NewCheckpoint) -> bool:
    def parts(data: bytes) -> Iterator[Any]:
        body = unpack_body(vault, data, body_label(new.agent_id, new.checkpoint_id), lambda: "comparing checkpoints")
        yield load(vault.serde, *body.checkpoint, lambda: "comparing checkpoints")
        yield load(vault.serde, *body.metadata, lambda: "comparing checkpoints")
        yield {channel: place.packed() for channel, place in body.places.items()}

    return stored.body == new.body or list(parts(stored.body)) == list(parts(new.body))
