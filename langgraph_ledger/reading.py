"""The way of a read: fetch rows as one snapshot, decode them, and mark what is handed out with the run that read it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, CheckpointTuple, DeltaChannelHistory, PendingWrite
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_ledger import ids, working
from langgraph_ledger.conflicts import EXPECT_KEY, SessionBusy, StateConflict
from langgraph_ledger.errors import InvalidInput, LedgerError, ValueNotRestorable
from langgraph_ledger.flow import Flow
from langgraph_ledger.ledger import NOTHING_KNOWN, Known, Ledger, Placed
from langgraph_ledger.lifecycle import as_owner, owner_alive, run_begins
from langgraph_ledger.operations.checkpoints import Head, Stored, read_checkpoint
from langgraph_ledger.operations.listing import Ancestor, Page, Query, ancestors_page, list_page
from langgraph_ledger.places import Fetched, Place, WriteRow, body_label, unpack_body, unpack_write
from langgraph_ledger.records import MAX_TEXT, as_time, text_for_json, to_json
from langgraph_ledger.refusals import refuse_if_busy
from langgraph_ledger.restoring import load
from langgraph_ledger.runs import Marked, Run, announce
from langgraph_ledger.shelf import Shelf
from langgraph_ledger.vault import Vault

PAGE = 50
"""Checkpoints fetched at a time by `list`, and at first by walks along the parent chain."""
LARGEST_PAGE = 1600
"""Checkpoints fetched at a time by long walks."""

UNMATCHED = -2
"""A `read_version` that no thread ever has."""


def get_tuple(
    ledger: Ledger, serde: SerializerProtocol, config: Mapping[str, Any], *, asynchronous: bool = False
) -> Flow[CheckpointTuple | None]:
    """The checkpoint that a config names, or the latest; begins a run, or goes on with the one that is reading."""
    conf = ids.configurable(config)
    session_id, agent_id, checkpoint_id = ids.thread_of(conf), ids.namespace_of(conf), ids.checkpoint_of(conf)
    vault = yield from ledger.vault(serde)
    wanted = str(checkpoint_id) if checkpoint_id else None
    head, stored = yield read_checkpoint(session_id, agent_id, wanted)
    if stored is not None:
        stored.working = yield from working.fetch(ledger, session_id)
    run = _run_of(ledger, conf, session_id, agent_id, head)
    if agent_id:
        run.namespaces.add(agent_id)
    if "__pregel_runtime" in conf:  # a run begins; a mere look at a busy thread is welcome
        yield from refuse_if_busy(ledger, run, "get_tuple", agent_id, wanted)
        if not agent_id:
            yield from run_begins(ledger, serde, conf, run, head, asynchronous)
    if stored is None:
        announce(run)
        return None
    found = decode(ledger, vault, stored, run)
    if not found.checkpoint["channel_versions"]:
        announce(run)
    return found


def _run_of(ledger: Ledger, conf: Mapping[str, Any], session_id: str, agent_id: str, head: Head | None) -> Run:
    run = ledger.runs.reading(conf, session_id)
    if run is not None:
        return run
    run = Run(ledger.runs, session_id, head.version if head else 0, head.checkpoint_id if head else None)
    if (expected := conf.get(EXPECT_KEY)) is not None:
        _expect(run, expected, agent_id)
    if ledger.on_busy == "refuse":
        run.busy = _busy(ledger, run, head)
    return ledger.runs.begin(conf, run)


def _expect(run: Run, expected: Mapping[str, Any], agent_id: str) -> None:
    """Makes the run's version the one that the caller of `expect()` had read."""
    if "version" in expected:
        run.read_version = expected["version"]
    elif agent_id:
        raise InvalidInput("expect(): this snapshot of a subgraph has lost its version (was it stored as JSON?)")
    elif (expected.get("checkpoint_id") or None) != run.checkpoint_read:
        run.read_version = UNMATCHED


def _busy(ledger: Ledger, run: Run, head: Head | None) -> StateConflict | None:
    """The refusal that waits for a new run if the thread's owner is alive and at work."""
    if head is None or head.status != "active" or not head.owner:
        return None
    owner = as_owner(head.owner)
    age = (datetime.now(UTC) - as_time(head.updated_at)).total_seconds()
    pid = owner.get("pid")
    mine = pid == os.getpid() and owner.get("host") == socket.gethostname()
    # this process is there, of course: whether it is still at it, only its last sign tells
    alive = age < ledger.owner_timeout if mine else owner_alive(owner, head.updated_at, ledger.owner_timeout)
    if not alive:
        return None
    return SessionBusy(
        f"thread {run.session_id!r} is being worked on by process {pid} on {owner.get('host')} (last write"
        f" {age:.1f} s ago), and on_busy='refuse' lets no new run take over",
        session_id=run.session_id,
        version_read=run.read_version,
        version_found=head.version,
        checkpoint_read=run.checkpoint_read,
        checkpoint_found=head.checkpoint_id,
        writer=run.token,
        winner=head.writer,
    )


# --- decoding


def decode(
    ledger: Ledger, vault: Vault, stored: Stored, run: Run | None, shelf: Shelf | None = None
) -> CheckpointTuple:
    """A checkpoint's rows as LangGraph's tuple, its strings marked with `run`. Pages share a shelf."""

    def where(detail: str = "") -> str:
        return (
            f"thread {stored.session_id!r}, namespace {stored.agent_id!r}, checkpoint {stored.checkpoint_id!r}{detail}"
        )

    try:
        return _decode(ledger, vault, stored, run, shelf, where)
    except LedgerError:
        raise
    except Exception as error:  # whole by its digest, and yet no checkpoint: not a saver has written this
        raise ValueNotRestorable(f"{where()}: the stored checkpoint is damaged: {error!r}") from error


def _decode(
    ledger: Ledger, vault: Vault, stored: Stored, run: Run | None, shelf: Shelf | None, where: Callable[..., str]
) -> CheckpointTuple:
    body = unpack_body(vault, stored.body, body_label(stored.agent_id, stored.checkpoint_id), where)
    checkpoint = load(vault.serde, *body.checkpoint, where)
    metadata = load(vault.serde, *body.metadata, lambda: where(", metadata"))
    if not isinstance(checkpoint, dict) or not isinstance(metadata, dict):
        raise TypeError("its parts are no mappings")
    versions = checkpoint.get("channel_versions") or {}
    names = checkpoint.pop(working.WORKING_KEY, ())
    shelf = shelf or Shelf(vault, stored.session_id, stored.memory)
    values: dict[str, Any] = {}
    channels: dict[str, Placed] = {}
    for channel, place in body.places.items():
        there = partial(where, f", channel {channel!r}")
        values[channel], used, size = shelf.read(place, there)
        channels[channel] = Placed(versions.get(channel), place, frozenset(used), size)
    written = set().union(*(shelf.reachable(row.memory_ids) for row in stored.writes if row.memory_ids))
    known = Known(channels, written, frozenset(body.deltas))
    ledger.remember(stored.session_id, stored.agent_id, stored.checkpoint_id, known)
    if names and stored.working:
        values |= working.values_of(vault, stored.agent_id, names, versions, stored.working, where)
    checkpoint = {**checkpoint, "channel_values": values}
    if run is not None:
        checkpoint["id"] = Marked(checkpoint["id"], run)
        checkpoint["channel_versions"] = {
            channel: Marked(version, run) if isinstance(version, str) else version
            for channel, version in versions.items()
        }
    return CheckpointTuple(
        config=_config(stored, stored.checkpoint_id, run),
        checkpoint=cast("Checkpoint", checkpoint),
        metadata=cast("CheckpointMetadata", metadata),
        parent_config=_config(stored, stored.parent_id, run) if stored.parent_id else None,
        pending_writes=[
            *(_write(shelf, row, (stored.agent_id, stored.checkpoint_id), where) for row in stored.writes),
            *working.writes_of(vault, stored.agent_id, stored.checkpoint_id, stored.working, where),
        ],
    )


def lost(ledger: Ledger, vault: Vault, stored: Stored) -> tuple[str, ...]:
    """The working channels that had a value at a checkpoint, which is not there any more."""

    def where(detail: str = "") -> str:
        return f"thread {stored.session_id!r}, checkpoint {stored.checkpoint_id!r}{detail}"

    body = unpack_body(vault, stored.body, body_label(stored.agent_id, stored.checkpoint_id), where)
    checkpoint = load(vault.serde, *body.checkpoint, where)
    names = checkpoint.get(working.WORKING_KEY, ())
    if not ledger.working_channels or not names:
        return ()
    versions = checkpoint.get("channel_versions") or {}
    there = working.values_of(vault, stored.agent_id, names, versions, stored.working, where)
    return tuple(sorted(set(names) - there.keys()))


def _config(stored: Stored, checkpoint_id: str, run: Run | None) -> Any:
    marked = checkpoint_id if run is None else Marked(checkpoint_id, run)
    place = {"thread_id": stored.session_id, "checkpoint_ns": stored.agent_id, "checkpoint_id": marked}
    return {"configurable": place}


def _write(shelf: Shelf, row: WriteRow, place: tuple[str, str], where: Any) -> PendingWrite:
    there = partial(where, f", write of task {row.task_id} to {row.channel!r}")
    return (row.task_id, row.channel, shelf.value(unpack_write(shelf.vault, row, place, there), there))


# --- listing


def list_query(
    config: Mapping[str, Any] | None, filter: Mapping[str, Any] | None, before: Mapping[str, Any] | None, text: bool
) -> Query:
    """What `list`'s arguments ask for. `text` says whether the ledger keeps metadata to look through."""
    query = Query(filter=_prefilter(filter) if text else "{}")
    values: dict[str, Any] = {"filter": query.filter}
    if config is not None:
        conf = ids.configurable(config)
        values["session_id"] = ids.thread_of(conf)
        if conf.get("checkpoint_ns") is not None:
            values["agent_id"] = ids.namespace_of(conf)
        if (checkpoint_id := ids.checkpoint_of(conf)) is not None:
            values["checkpoint_id"] = str(checkpoint_id)
    if before is not None and (bound := ids.checkpoint_of(ids.configurable(before))) is not None:
        values["before_id"] = str(bound)
    return Query(**values)


def _prefilter(filter: Mapping[str, Any] | None) -> str:
    """The part of a filter that both databases compare as Python does: short text. The rest is compared here."""
    texts = {k: v for k, v in (filter or {}).items() if type(v) is str and len(v) <= MAX_TEXT and isinstance(k, str)}
    return to_json({text_for_json(k): text_for_json(v) for k, v in texts.items()})


def matching(found: CheckpointTuple, filter: Mapping[str, Any] | None) -> bool:
    """Whether a checkpoint's metadata has all that the filter asks for, compared as Python values."""
    metadata: Mapping[str, Any] = found.metadata
    return all(_equal(key, metadata.get(key), value) for key, value in (filter or {}).items())


def _equal(key: Any, stored: Any, value: Any) -> bool:
    try:
        return bool(stored == value)
    except Exception as error:
        raise InvalidInput(f"filter[{key!r}]: {type(value).__name__} cannot be compared: {error}") from error


def read_page(
    ledger: Ledger, config: Mapping[str, Any] | None, query: Query, size: int
) -> Flow[tuple[Page, Run | None]]:
    """One page of a list and the run that its checkpoints are marked with."""
    yield from ledger.ready()
    page: Page = yield list_page(query, size)
    if config is None or query.session_id is None:
        return page, None
    return page, _run_of(ledger, ids.configurable(config), query.session_id, query.agent_id or "", page.head)


# --- delta channels


def delta_history(
    ledger: Ledger, serde: SerializerProtocol, config: Mapping[str, Any], channels: Sequence[str]
) -> Flow[dict[str, DeltaChannelHistory]]:
    """Each channel's writes along the parent chain, oldest first, and the value that the chain starts from."""
    conf = ids.configurable(config)
    session_id, agent_id, checkpoint_id = ids.thread_of(conf), ids.namespace_of(conf), ids.checkpoint_of(conf)
    walk = _DeltaWalk(ledger, (yield from ledger.vault(serde)), session_id, agent_id, channels)
    if checkpoint_id is None:
        _, stored = yield read_checkpoint(session_id, agent_id, None, values=False)
        checkpoint_id = stored.checkpoint_id if stored is not None else None
    following, size = checkpoint_id, PAGE
    seen: set[str] = set()
    while following and walk.remaining:
        if str(following) in seen:
            raise ValueNotRestorable(f"thread {session_id!r}: the ancestors of {checkpoint_id!r} go in a circle")
        seen.add(str(following))
        page, memory = yield ancestors_page(
            session_id, agent_id, str(following), sorted(walk.remaining), size, walk.choose
        )
        walk.add(page, memory)
        following, size = page[-1].parent_id if page else None, min(size * 2, LARGEST_PAGE)
    return walk.result()


_Step = tuple[Ancestor, str, WriteRow | None, Place | None]
"""A write to a channel, or the seed that the channel's writes begin from."""


class _DeltaWalk:
    """Collects writes and seeds while going up the parent chain; each channel stops at its own seed.

    The chain begins with the checkpoint that is asked about: its own writes are still to come.
    """

    def __init__(self, ledger: Ledger, vault: Vault, session_id: str, agent_id: str, channels: Sequence[str]) -> None:
        self.ledger, self.vault, self.session_id, self.agent_id = ledger, vault, session_id, agent_id
        self.writes: dict[str, list[PendingWrite]] = {channel: [] for channel in channels}
        self.seeds: dict[str, Any] = {}
        self.remaining = set(channels)
        self._target: str | None = None
        self._steps: list[_Step] = []

    def choose(self, page: Sequence[Ancestor]) -> bytes:
        """The ids of the memory that a page needs. Changes nothing that asking again would change differently."""
        remaining = set(self.remaining)
        self._steps = []
        for ancestor in page if self._target is not None else page[1:]:
            if not remaining:
                break
            self._steps += [(ancestor, r.channel, r, None) for r in reversed(ancestor.writes) if r.channel in remaining]
            seeds = self._seeds(ancestor, remaining)
            self._steps += [(ancestor, channel, None, place) for channel, place in seeds.items()]
            remaining -= seeds.keys()
        needed = {row.memory_ids or b"" for _, _, row, _ in self._steps if row is not None}
        return b"".join(needed | {place.ids for _, _, _, place in self._steps if place is not None})

    def add(self, page: Sequence[Ancestor], memory: Fetched) -> None:
        """Takes what was chosen of a page."""
        shelf = Shelf(self.vault, self.session_id, memory)
        for ancestor, channel, row, place in self._steps:
            where = partial(self._where, ancestor)
            if row is not None:
                self.writes[channel].append(_write(shelf, row, (self.agent_id, ancestor.checkpoint_id), where))
            elif place is not None:
                self.seeds[channel] = shelf.value(place, partial(where, f", channel {channel!r}"))
                self.remaining.discard(channel)
        if page and self._target is None:
            self._target = page[0].checkpoint_id

    def _seeds(self, ancestor: Ancestor, remaining: set[str]) -> dict[str, Place]:
        known = self.ledger.known(self.session_id, self.agent_id, ancestor.checkpoint_id)
        if known is not NOTHING_KNOWN and remaining.isdisjoint(known.channels):
            return {}  # what a checkpoint holds never changes
        label = body_label(self.agent_id, ancestor.checkpoint_id)
        places = unpack_body(self.vault, ancestor.body, label, partial(self._where, ancestor)).places
        return {channel: places[channel] for channel in remaining & places.keys()}

    def _where(self, ancestor: Ancestor, detail: str = "") -> str:
        return f"thread {self.session_id!r}, namespace {self.agent_id!r}, checkpoint {ancestor.checkpoint_id!r}{detail}"

    def result(self) -> dict[str, DeltaChannelHistory]:
        found: dict[str, DeltaChannelHistory] = {}
        for channel, writes in self.writes.items():
            found[channel] = {"writes": writes[::-1]}
            if channel in self.seeds:
                found[channel]["seed"] = self.seeds[channel]
        return found
