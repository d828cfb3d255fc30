"""The way of a write: find its run, encode it, hold it back or send it, and say what a refusal means."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_ledger import ids
from langgraph_ledger.conflicts import StateConflict
from langgraph_ledger.encoding import Encoder, status_after
from langgraph_ledger.errors import (
    CheckpointExists,
    Duplicate,
    InvalidInput,
    ReuseRefused,
    UnknownCheckpoint,
)
from langgraph_ledger.flow import Flow, Pause
from langgraph_ledger.flushing import Change, submit
from langgraph_ledger.ledger import Ledger
from langgraph_ledger.memory import Chunker, encode_writes
from langgraph_ledger.operations.checkpoints import (
    HELD,
    Head,
    NewCheckpoint,
    PlacedWrite,
    Stored,
    Writer,
    checkpoint_exists,
    put_checkpoint,
    put_pending_writes,
    read_checkpoint,
    read_root,
)
from langgraph_ledger.operations.working import WorkingRow
from langgraph_ledger.places import MemoryRow, body_label, unpack_body
from langgraph_ledger.policies import Batched, Transition, chosen
from langgraph_ledger.reading import decode
from langgraph_ledger.records import now
from langgraph_ledger.refusals import refuse, refuse_if_busy
from langgraph_ledger.runs import Marked, Run, Waiting
from langgraph_ledger.shelf import load
from langgraph_ledger.statements import Operation
from langgraph_ledger.vault import Vault
from langgraph_ledger.working import Kept, keep

NO_WRITES = "__no_writes__"
"""LangGraph's channel for a task that has run and written nothing."""

TOUCH_SECONDS = 1.0
"""How much `sessions.last_active_at` may lag behind while nothing else changes."""

LINGER = 0.001
"""Seconds that writes of a run wait for others, or for the next put, to share a commit. Nobody is told that they are
stored before they are, and LangGraph only asks when it has nothing else to do."""


def put(
    ledger: Ledger,
    serde: SerializerProtocol,
    config: Mapping[str, Any],
    checkpoint: Mapping[str, Any],
    metadata: Mapping[str, Any],
    new_versions: Mapping[str, Any],
) -> Flow[RunnableConfig]:
    """Stores a checkpoint under the version check."""
    conf = ids.configurable(config)
    session_id, agent_id, parent_id = ids.thread_of(conf), ids.namespace_of(conf), ids.checkpoint_of(conf)
    checkpoint_id = str(ids.clean(checkpoint.get("id"), "checkpoint_id"))
    vault = yield from ledger.vault(serde, adding=True)
    run = ledger.runs.writing(conf, session_id, checkpoint) or Run(ledger.runs, session_id, None)
    run.check()
    policy = policy_of(ledger, conf, run)
    encoder = Encoder(ledger, vault, config, session_id, agent_id, checkpoint, metadata, new_versions)
    if encoder.missing and parent_id and not ledger.known(session_id, agent_id, parent_id).channels:
        yield from ledger.ready()
        _, stored = yield read_checkpoint(session_id, agent_id, str(parent_id))
        if stored is not None:
            decode(ledger, vault, stored, None)  # and remember what it holds
    new = encoder.encode()
    yield from _store_overtaken(ledger, run, agent_id, parent_id, policy)
    at_once = bool(run.waiting)  # somebody waits for these writes, which go along
    # announced before it is remembered: whoever finds it made must find the put that makes it
    ended, company = run.begin_put((agent_id, checkpoint_id))
    ledger.runs.remember(run, agent_id, checkpoint_id)
    save = _Save(ledger, run, vault, encoder, new, company, parent_id if agent_id == "" else None)
    try:
        if policy is None and not ledger.queue.entries:
            yield from save.alone()
            yield from save.after()
        else:
            yield from refuse_if_busy(ledger, run, "put", agent_id, checkpoint_id)
            yield from submit(ledger.queue, save.change(), policy, at_once=at_once or save.at_once(policy))
    except BaseException as error:
        _settle(company, error)
        raise
    finally:
        save.encoder = None
        ended.set_result(None)
    ledger.remember(session_id, agent_id, checkpoint_id, encoder.known)
    _stored(ledger, run, company)
    return {"configurable": {"thread_id": session_id, "checkpoint_ns": agent_id, "checkpoint_id": checkpoint_id}}


def put_writes(
    ledger: Ledger,
    serde: SerializerProtocol,
    config: Mapping[str, Any],
    writes: Sequence[tuple[str, Any]],
    task_id: str,
    task_path: str,
) -> Flow[None]:
    """Stores a task's writes under the version check, or keeps them until their checkpoint is stored."""
    conf = ids.configurable(config)
    session_id, agent_id, checkpoint_id = ids.thread_of(conf), ids.namespace_of(conf), ids.checkpoint_of(conf)
    if checkpoint_id is None:
        raise InvalidInput("put_writes needs the checkpoint_id that the writes belong to")
    task_id, task_path = ids.clean(task_id, "task_id"), ids.clean(task_path, "task_path")
    for channel, _ in writes:
        ids.clean(channel, "channel")
    vault = yield from ledger.vault(serde, adding=True)
    place = (agent_id, str(checkpoint_id))
    writes, kept = _apart(ledger, vault, place, writes, task_id, task_path)
    run = ledger.runs.writing(conf, session_id, None)
    blind = run is None
    run = run or Run(ledger.runs, session_id, None)
    run.check()
    chunker = Chunker(vault, session_id, ledger.known(session_id, *place).ids, ledger.compression)
    rows = encode_writes(
        chunker,
        writes,
        place,
        task_id,
        task_path,
        lambda: f"thread {session_id!r}, namespace {agent_id!r}, task {task_id}",
    )
    if not rows:
        return
    entry = Waiting(place, rows, list(chunker.rows.values()), chunker.used, kept)
    put = run.put_of(place)
    if put is None and not (blind or isinstance(checkpoint_id, Marked) or ledger.runs.made(session_id, *place)):
        put = run.hold(entry)
        if put is None:
            return  # stored by the put of their checkpoint: without it they would mean nothing
    if put is not None and not put.done():
        yield put
    if blind:
        yield from ledger.ready()
        if not (yield checkpoint_exists(session_id, *place)):
            raise UnknownCheckpoint(
                f"thread {session_id!r}, namespace {agent_id!r} holds no checkpoint {place[1]!r} to which these writes"
                " could belong: put the checkpoint first"
            )
        yield from _store_writes(ledger, run, [entry])
        _stored(ledger, run, [entry])
        yield from _keep(ledger, run, [entry])
        return
    policy = policy_of(ledger, conf, run)
    if policy is not None or ledger.queue.entries:
        yield from _queue_writes(ledger, run, [entry], policy)
        return
    role = run.join(entry)
    if role is not None:
        in_a_graph = "__pregel_runtime" in conf  # elsewhere nobody else is about to come
        yield from _store_company(ledger, run, entry, LINGER if in_a_graph and role is False else 0.0)
    if not entry.stored.done() or entry.stored.exception() is not None:
        yield entry.stored
    yield from _keep(ledger, run, [entry])


def _apart(
    ledger: Ledger,
    vault: Vault,
    place: tuple[str, str],
    writes: Sequence[tuple[str, Any]],
    task_id: str,
    task_path: str,
) -> tuple[Sequence[tuple[str, Any]], Sequence[WorkingRow]]:
    """A task's durable writes, and those to working channels. That the task has written is durable in any case."""
    if not ledger.working_channels or ledger.working_channels.isdisjoint(channel for channel, _ in writes):
        return writes, ()
    kept = Kept(vault, place[0], ledger.compression)
    for idx, (channel, value) in enumerate(writes):
        if channel in ledger.working_channels:
            kept.add(channel, place[1], value, partial(_working, channel), task_id, idx, task_path)
    durable = [(channel, value) for channel, value in writes if channel not in ledger.working_channels]
    return durable or [(NO_WRITES, None)], kept.rows


def _working(channel: str) -> str:
    return f"working channel {channel!r}"


def _keep(ledger: Ledger, run: Run, entries: Sequence[Waiting]) -> Flow[None]:
    for entry in entries:
        if entry.working:
            yield from keep(ledger, run.session_id, entry.place[0], None, entry.working)


def _store_company(ledger: Ledger, run: Run, entry: Waiting, linger: float) -> Flow[None]:
    """Waits a moment, then stores what has come together, unless a put has taken it along."""
    interrupted: BaseException | None = None
    try:
        if linger and (yield Pause(entry.stored, linger)):
            return
    except GeneratorExit:
        raise
    except BaseException as error:
        interrupted = error  # others wait for this commit too: it is seen through first
    entries = run.take()
    if entries:
        try:
            yield from _store_writes(ledger, run, entries)
        except BaseException as error:
            _settle(entries, error)
        else:
            _stored(ledger, run, entries)
    if interrupted is not None:
        raise interrupted


def _settle(entries: Sequence[Waiting], error: BaseException) -> None:
    for entry in entries:
        entry.settle(error.again() if isinstance(error, StateConflict) else error)


def _stored(ledger: Ledger, run: Run, entries: Sequence[Waiting]) -> None:
    for entry in entries:
        ledger.remember_written(run.session_id, *entry.place, entry.used)
        entry.settle()


def _placed(entries: Sequence[Waiting]) -> list[PlacedWrite]:
    return [(*entry.place, row) for entry in entries for row in entry.rows]


# --- queued


def policy_of(ledger: Ledger, conf: Mapping[str, Any], run: Run) -> Batched | None:
    """When the writes of a run are committed. Only those of a run whose end will be told may wait for it."""
    return chosen(conf, ledger.flush) if run.watched else None


@dataclass(slots=True, eq=False, repr=False)
class _Save:
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
        new.writes, new.memory = _placed(self.company), list(memory.values())

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
            yield from _store_writes(self.ledger, self.run, self.company)

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


def _queue_writes(ledger: Ledger, run: Run, entries: Sequence[Waiting], policy: Batched | None) -> Flow[None]:
    """Adds writes to what waits; they belong to a checkpoint that is stored, or waits itself."""
    yield from refuse_if_busy(ledger, run, "put_writes", *entries[0].place)
    moment = now()
    sent = _Sent(run, entries)

    def operation(claimed: bool) -> Operation[Any]:
        if sent.status is not None:
            run.touched = (sent.status, 0.0)
        writer = writer_of(ledger, run, sent.parent_id, claimed)
        return put_pending_writes(writer, sent.writes, sent.memory, sent.status, moment)

    def stored(version: Any) -> bool:
        run.claimed = run.claimed or version is not None
        return version is not None

    weight = sum(len(row.place) for _, _, row in sent.writes)
    weight += sum(len(row.content) for rows in sent.memory.values() for row in rows)
    after = partial(_keep, ledger, run, entries) if any(entry.working for entry in entries) else None
    change = Change(run, weight, False, operation, stored, lambda: _store_writes(ledger, run, entries), after)
    yield from submit(ledger.queue, change, policy, at_once=_writes_at_once(run, entries, sent.status, policy))
    _stored(ledger, run, entries)


def _writes_at_once(run: Run, entries: Sequence[Waiting], status: str | None, policy: Batched | None) -> bool:
    if policy is None:
        return True
    agent_id, checkpoint_id = entries[0].place
    rows = [row for entry in entries for row in entry.rows]
    channels = tuple(dict.fromkeys(row.channel for row in rows))
    place = (run.session_id, agent_id, checkpoint_id)
    transition = Transition("writes", *place, channels, ends=status is not None, task_id=rows[0].task_id)
    return policy.at_once(transition)


# --- storing


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


class _Sent:
    """Writes as they are sent."""

    def __init__(self, run: Run, entries: Sequence[Waiting]) -> None:
        agent_id, checkpoint_id = entries[0].place
        self.parent_id = checkpoint_id if agent_id == "" else None
        self.writes = _placed(entries)
        self.memory: dict[tuple[str, str], list[MemoryRow]] = {}
        for entry in entries:
            self.memory.setdefault(entry.place, []).extend(entry.memory)
        self.status = status_after([row for _, _, row in self.writes])


def _store_writes(ledger: Ledger, run: Run, entries: Sequence[Waiting]) -> Flow[None]:
    if not entries:
        return
    agent_id, checkpoint_id = entries[0].place
    sent = _Sent(run, entries)
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


def _store_overtaken(
    ledger: Ledger, run: Run, agent_id: str, parent_id: str | None, policy: Batched | None
) -> Flow[None]:
    """Stores writes held for a checkpoint that is in the ledger although this process did not put it."""
    if not parent_id or run.put_of((agent_id, str(parent_id))) is not None:
        return
    with run.lock:
        entries = run.held.pop((agent_id, str(parent_id)), None)
    if entries and (policy is not None or ledger.queue.entries):
        yield from _queue_writes(ledger, run, entries, policy)
    elif entries:
        yield from _store_writes(ledger, run, entries)
        yield from _keep(ledger, run, entries)


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
