"""The way of a write: find its run, encode it, hold it back or send it, and say what a refusal means."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import EXCLUDED_METADATA_KEYS
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, TASKS

from langgraph_ledger import ids
from langgraph_ledger.conflicts import StateConflict
from langgraph_ledger.errors import (
    CheckpointExists,
    Duplicate,
    InvalidInput,
    LedgerError,
    ReuseRefused,
    UnknownCheckpoint,
)
from langgraph_ledger.flow import Flow
from langgraph_ledger.ledger import Ledger
from langgraph_ledger.memory import (
    Body,
    Ref,
    WriteRow,
    dump,
    encode_values,
    encode_writes,
    load,
    pack_body,
    unpack_body,
)
from langgraph_ledger.operations.checkpoints import (
    HELD,
    Head,
    NewCheckpoint,
    Stored,
    Writer,
    log_entry,
    put_checkpoint,
    put_pending_writes,
    read_checkpoint,
    read_root,
)
from langgraph_ledger.records import describe, now, to_json
from langgraph_ledger.runs import Marked, Run

SECRET = re.compile(r"secret|token|passw|api_?key|credential|authorization|private_?key|cookie", re.IGNORECASE)
"""Keys of `configurable` that are not copied to metadata."""

ERROR_SOURCE_NODE = "__error_source_node__"
START = "__start__"


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
    yield from ledger.ready()
    run = ledger.runs.writing(conf, session_id, checkpoint) or Run(session_id, None)
    run.check()
    encoder = _Encoder(ledger, serde, config, session_id, agent_id, checkpoint, metadata, new_versions)
    new = encoder.encode(reuse=True)
    yield from _store_overtaken(ledger, run, agent_id, parent_id)
    ledger.runs.remember(run, agent_id, checkpoint_id)
    ended, held = run.begin_put((agent_id, checkpoint_id))
    try:
        try:
            yield from _store(ledger, run, encoder.with_writes(new, held), parent_id)
        except ReuseRefused:
            yield from _store(ledger, run, encoder.with_writes(encoder.encode(reuse=False), held), parent_id)
        except Duplicate:
            yield from _compare(ledger, serde, session_id, new)
    finally:
        ended.set_result(None)
    ledger.remember_places(session_id, agent_id, checkpoint_id, encoder.places)
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
    task_id = ids.clean(task_id, "task_id")
    yield from ledger.ready()
    run = ledger.runs.writing(conf, session_id, None)
    blind = run is None
    run = run or Run(session_id, None)
    run.check()
    rows = encode_writes(
        serde, writes, task_id, task_path, lambda: f"thread {session_id!r}, namespace {agent_id!r}, task {task_id}"
    )
    if not rows:
        return
    place = (agent_id, str(checkpoint_id))
    put = run.put_of(place)
    if put is None and not (blind or isinstance(checkpoint_id, Marked) or ledger.runs.made(session_id, *place)):
        put = run.hold(place, rows)
        if put is None:
            return  # stored by the put of their checkpoint: without it they would mean nothing
    if put is not None:
        yield put
    yield from _store_writes(ledger, run, agent_id, str(checkpoint_id), rows)


# --- encoding


class _Encoder:
    """A checkpoint on its way into rows."""

    def __init__(
        self,
        ledger: Ledger,
        serde: SerializerProtocol,
        config: Mapping[str, Any],
        session_id: str,
        agent_id: str,
        checkpoint: Mapping[str, Any],
        metadata: Mapping[str, Any],
        new_versions: Mapping[str, Any],
    ) -> None:
        self.ledger, self.serde = ledger, serde
        self.session_id, self.agent_id = session_id, agent_id
        self.conf = ids.configurable(config)
        self.parent_id = ids.checkpoint_of(self.conf)
        self.checkpoint, self.new_versions = checkpoint, new_versions
        self.metadata = merged_metadata(config, metadata)
        self.user_metadata = {k: v for k, v in self.metadata.items() if k not in metadata}
        self.open = not isinstance(serde, EncryptedSerializer)
        self.refs: Mapping[str, Ref] = {}

    @property
    def places(self) -> dict[str, tuple[Any, Ref]]:
        versions = self.checkpoint.get("channel_versions") or {}
        return {channel: (versions.get(channel), ref) for channel, ref in self.refs.items()}

    def _where(self, channel: str | None = None) -> str:
        place = f"thread {self.session_id!r}, namespace {self.agent_id!r}, checkpoint {self.checkpoint.get('id')}"
        return place if channel is None else f"{place}, channel {channel!r}"

    def _unchanged(self) -> dict[str, Ref]:
        """Where the values are that this checkpoint shares with its parent."""
        versions = self.checkpoint.get("channel_versions") or {}
        parent = self.ledger.placed(self.session_id, self.agent_id, self.parent_id) if self.parent_id else {}
        return {
            channel: ref
            for channel, (version, ref) in parent.items()
            if channel not in self.new_versions and version is not None and versions.get(channel) == version
        }

    def encode(self, *, reuse: bool) -> NewCheckpoint:
        values = self.checkpoint.get("channel_values") or {}
        reused = self._unchanged() if reuse else {}
        self.refs, memory = encode_values(self.serde, values, reused, self._where)
        rest = {key: value for key, value in self.checkpoint.items() if key != "channel_values"}
        body = Body(
            dump(self.serde, rest, self._where),
            dump(self.serde, self.metadata, lambda: f"{self._where()}, metadata"),
            self.refs,
            sorted((self.metadata.get("counters_since_delta_snapshot") or {}).keys() - self.refs.keys()),
        )
        taken_over = any(isinstance(reused.get(c), str) for c in self.refs)
        root_id = (self.conf.get("checkpoint_map") or {}).get("") if self.agent_id else None
        run_id = self.metadata.get("run_id")
        show = describe if self.open else (lambda value: {"$type": type(value).__qualname__})
        return NewCheckpoint(
            agent_id=self.agent_id,
            checkpoint_id=str(self.checkpoint["id"]),
            parent_id=str(self.parent_id) if self.parent_id else None,
            root_id=str(root_id) if root_id else None,
            run_id=str(ids.clean(run_id, "run_id")) if run_id is not None else None,
            payload=to_json({str(k): show(v) for k, v in self.metadata.items()} if self.open else {}),
            body=pack_body(body),
            state=to_json({c: show(v) for c, v in values.items() if not c.startswith(("__", "branch:", "join:"))}),
            reused_from=str(self.parent_id) if taken_over else None,
            memory=memory,
            writes=(),
            status=None,
            metadata=to_json({str(k): describe(v) for k, v in self.user_metadata.items()})
            if self.user_metadata and self.open
            else None,
        )

    def with_writes(self, new: NewCheckpoint, writes: Sequence[WriteRow]) -> NewCheckpoint:
        """The checkpoint with the writes that came before it, and what both say of the session."""
        status = status_after(writes) or ("active" if _something_is_next(self.checkpoint) else "completed")
        return replace(new, writes=tuple(writes), status=status if self.agent_id == "" else None)


def merged_metadata(config: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The checkpoint's metadata and, as every LangGraph saver adds them, the config's plain keys; no secrets."""
    merged = dict(metadata)
    for source, from_configurable in ((config.get("metadata"), False), (config.get("configurable"), True)):
        for key, value in (source or {}).items():
            if key in merged or key in EXCLUDED_METADATA_KEYS or key.startswith("__"):
                continue
            if isinstance(value, (str, int, float)) and not (from_configurable and SECRET.search(key)):
                merged[key] = value
    return merged


def _something_is_next(checkpoint: Mapping[str, Any]) -> bool:
    """Whether a root checkpoint leaves something to run, as far as its values tell."""
    return any(_triggers(channel, value) for channel, value in (checkpoint.get("channel_values") or {}).items())


def _triggers(channel: str, value: Any) -> bool:
    if channel.startswith("join:"):
        waits_for = set(channel.removeprefix("join:").rsplit(":", 1)[0].split("+"))
        return isinstance(value, (set, frozenset, list, tuple)) and waits_for <= set(value)
    return channel.startswith("branch:to:") or channel == START or (channel == TASKS and bool(value))


def status_after(rows: Sequence[WriteRow]) -> str | None:
    """What a task's writes say of the session: an interrupt pauses it, an error nobody handles fails it."""
    channels = {row.channel for row in rows}
    if INTERRUPT in channels:
        return "paused"
    return "failed" if ERROR in channels and ERROR_SOURCE_NODE not in channels else None


# --- storing


def _writer(ledger: Ledger, run: Run, parent_id: str | None) -> Writer:
    if not run.claimed and run.busy is not None:
        raise run.busy.again()
    version = None if run.blind else (HELD if run.claimed else run.read_version)
    return Writer(run.session_id, run.token, version, str(parent_id) if parent_id else None, ledger.owner())


def _regardless(ledger: Ledger, run: Run, head: Head | None) -> Writer:
    """The terms of a write that `on_conflict="report"` lets through: whatever is there now."""
    return Writer(run.session_id, run.token, head.version if head else 0, None, ledger.owner())


def _store(ledger: Ledger, run: Run, new: NewCheckpoint, parent_id: str | None) -> Flow[None]:
    root_parent = parent_id if new.agent_id == "" else None
    writer = _writer(ledger, run, root_parent)
    version = yield put_checkpoint(writer, new, now())
    while version is None:
        head = yield read_root(run.session_id)
        _, stored = yield read_checkpoint(run.session_id, new.agent_id, new.checkpoint_id, lambda body: ())
        if stored is not None and stored.body == new.body:
            break  # our own commit, whose answer was lost before another run took over
        yield from _refuse(ledger, run, "put", new.agent_id, new.checkpoint_id, head)
        version = yield put_checkpoint(_regardless(ledger, run, head), new, now())
    run.claimed = True
    if new.agent_id == "":
        run.last_committed = new.checkpoint_id


def _store_writes(ledger: Ledger, run: Run, agent_id: str, checkpoint_id: str, rows: Sequence[WriteRow]) -> Flow[None]:
    writer = _writer(ledger, run, checkpoint_id if agent_id == "" else None)
    status = status_after(rows)
    version, exists = yield put_pending_writes(writer, agent_id, checkpoint_id, rows, status, now())
    while version is None:
        head = yield read_root(run.session_id)
        yield from _refuse(ledger, run, "put_writes", agent_id, checkpoint_id, head)
        writer = _regardless(ledger, run, head)
        version, exists = yield put_pending_writes(writer, agent_id, checkpoint_id, rows, status, now())
    run.claimed = True
    if not exists:
        raise UnknownCheckpoint(
            f"thread {run.session_id!r}, namespace {agent_id!r} holds no checkpoint {checkpoint_id!r} to which these"
            " writes could belong: put the checkpoint first"
        )


def _store_overtaken(ledger: Ledger, run: Run, agent_id: str, parent_id: str | None) -> Flow[None]:
    """Stores writes held for a checkpoint that is in the ledger although this process did not put it."""
    if not parent_id or run.put_of((agent_id, str(parent_id))) is not None:
        return
    with run.lock:
        rows = run.held.pop((agent_id, str(parent_id)), None)
    if rows:
        yield from _store_writes(ledger, run, agent_id, str(parent_id), rows)


def _compare(ledger: Ledger, serde: SerializerProtocol, session_id: str, new: NewCheckpoint) -> Flow[None]:
    """The same checkpoint id came twice: fine if it is the same checkpoint, an error otherwise."""
    _, stored = yield read_checkpoint(session_id, new.agent_id, new.checkpoint_id, lambda body: ())
    if stored is None or stored.body == new.body or _same(serde, stored, new):
        return
    raise CheckpointExists(
        f"thread {session_id!r}, namespace {new.agent_id!r} holds another checkpoint {new.checkpoint_id!r} already;"
        " a checkpoint never changes, so the new one was not stored"
    )


def _same(serde: SerializerProtocol, stored: Stored, new: NewCheckpoint) -> bool:
    def parts(data: bytes) -> Iterator[Any]:
        body = unpack_body(data, lambda: "comparing checkpoints")
        yield load(serde, *body.checkpoint, lambda: "comparing checkpoints")
        yield load(serde, *body.metadata, lambda: "comparing checkpoints")
        yield body.values.keys()
        for ref in body.values.values():
            yield ref if isinstance(ref, str) else load(serde, *ref, lambda: "comparing checkpoints")

    return list(parts(stored.body)) == list(parts(new.body))


def _refuse(
    ledger: Ledger, run: Run, operation: str, agent_id: str, checkpoint_id: str, head: Head | None
) -> Flow[None]:
    """Puts a refused write on record; raises `StateConflict` unless conflicts are only to be reported."""
    conflict = _conflict(run, operation, agent_id, head)
    accepted = ledger.on_conflict == "report"
    if not accepted:
        run.fenced = conflict
    payload = {k: describe(v) for k, v in conflict._facts.items() if k not in ("session_id", "agent_id")}
    entry = log_entry(
        run.session_id,
        agent_id,
        "write_rejected",
        now(),
        checkpoint_id=checkpoint_id,
        parent_id=conflict.checkpoint_read,
        payload=to_json({**payload, "accepted": accepted, "message": describe(str(conflict))}),
    )
    try:
        yield entry
    except LedgerError as error:
        conflict.add_note(f"The rejection could not be logged: {error}")
    if not accepted:
        raise conflict


def _conflict(run: Run, operation: str, agent_id: str, head: Head | None) -> StateConflict:
    facts: dict[str, Any] = {
        "session_id": run.session_id,
        "agent_id": agent_id,
        "operation": operation,
        "version_read": run.read_version,
        "version_found": head.version if head else None,
        "checkpoint_read": run.checkpoint_read,
        "checkpoint_found": head.checkpoint_id if head else None,
        "writer": run.token,
        "winner": head.writer if head else None,
        "committed": run.committed,
        "last_committed": run.last_committed,
    }
    if head is not None and head.deleted_at is not None:
        what = "the thread has been deleted"
    elif run.committed:
        what = f"another run has taken the thread over (it is at version {facts['version_found']})"
    else:
        what = (
            f"the thread has moved on from version {facts['version_read']}, which this run read, to version"
            f" {facts['version_found']}"
        )
    message = f"{operation} refused on thread {run.session_id!r}: {what}. Read the state again and decide anew."
    return StateConflict(message, **facts)
