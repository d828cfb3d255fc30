"""The way of a write: find its run, encode it, hold it back, queue it or send it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_ledger import ids
from langgraph_ledger.encoding import Encoder
from langgraph_ledger.errors import (
    InvalidInput,
    UnknownCheckpoint,
)
from langgraph_ledger.flow import Flow, Pause
from langgraph_ledger.flushing import submit
from langgraph_ledger.ledger import NOTHING_KNOWN, Ledger
from langgraph_ledger.memory import Chunker, encode_writes
from langgraph_ledger.operations.checkpoints import (
    checkpoint_exists,
    read_checkpoint,
)
from langgraph_ledger.operations.working import WorkingRow
from langgraph_ledger.policies import Batched, chosen
from langgraph_ledger.reading import decode
from langgraph_ledger.refusals import refuse_if_busy
from langgraph_ledger.runs import Marked, Run, Waiting
from langgraph_ledger.storing import Save, keep_working, note_stored, queue_writes, settle_all, store_writes
from langgraph_ledger.vault import Vault
from langgraph_ledger.working import Kept

NO_WRITES = "__no_writes__"
"""LangGraph's channel for a task that has run and written nothing."""

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
    if parent_id == checkpoint_id:
        raise InvalidInput(f"checkpoint {checkpoint_id!r} names itself as its parent")
    vault = yield from ledger.vault(serde, adding=True)
    run = ledger.runs.writing(conf, session_id, checkpoint) or Run(ledger.runs, session_id, None)
    run.check()
    policy = policy_of(ledger, conf, run)
    encoder = Encoder(ledger, vault, config, session_id, agent_id, checkpoint, metadata, new_versions)
    if encoder.needs_parent and ledger.known(session_id, agent_id, parent_id) is NOTHING_KNOWN:
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
    save = Save(ledger, run, vault, encoder, new, company, parent_id if agent_id == "" else None)
    try:
        if policy is None and not ledger.queue.entries:
            yield from save.alone()
            yield from save.after()
        else:
            yield from refuse_if_busy(ledger, run, "put", agent_id, checkpoint_id)
            yield from submit(ledger.queue, save.change(), policy, at_once=at_once or save.at_once(policy))
    except BaseException as error:
        settle_all(company, error)
        raise
    finally:
        save.encoder = None
        run.end_put((agent_id, checkpoint_id), ended)
    ledger.remember(session_id, agent_id, checkpoint_id, encoder.known)
    note_stored(ledger, run, company)
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
        ledger.stamp,
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
        yield from store_writes(ledger, run, [entry])
        note_stored(ledger, run, [entry])
        yield from keep_working(ledger, run, [entry])
        return
    policy = policy_of(ledger, conf, run)
    if policy is not None or ledger.queue.entries:
        yield from queue_writes(ledger, run, [entry], policy)
        return
    role = run.join(entry)
    if role is not None:
        in_a_graph = "__pregel_runtime" in conf  # elsewhere nobody else is about to come
        yield from _store_company(ledger, run, entry, LINGER if in_a_graph and role is False else 0.0)
    if not entry.stored.done() or entry.stored.exception() is not None:
        yield entry.stored
    yield from keep_working(ledger, run, [entry])


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
            yield from store_writes(ledger, run, entries)
        except BaseException as error:
            settle_all(entries, error)
        else:
            note_stored(ledger, run, entries)
    if interrupted is not None:
        raise interrupted


def policy_of(ledger: Ledger, conf: Mapping[str, Any], run: Run) -> Batched | None:
    """When the writes of a run are committed. Only those of a run whose end will be told may wait for it."""
    return chosen(conf, ledger.flush) if run.watched else None


def _store_overtaken(
    ledger: Ledger, run: Run, agent_id: str, parent_id: str | None, policy: Batched | None
) -> Flow[None]:
    """Stores writes held for a checkpoint that is in the ledger although this process did not put it."""
    if not parent_id or run.put_of((agent_id, str(parent_id))) is not None:
        return
    with run.lock:
        entries = run.held.pop((agent_id, str(parent_id)), None)
    if entries and (policy is not None or ledger.queue.entries):
        yield from queue_writes(ledger, run, entries, policy)
    elif entries:
        yield from store_writes(ledger, run, entries)
        yield from keep_working(ledger, run, entries)
