"""A checkpoint on its way into rows: what of it is new, what is shown of it, and what it says of the session."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from langgraph.checkpoint.base import EXCLUDED_METADATA_KEYS
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, TASKS

from langgraph_ledger import ids
from langgraph_ledger.ledger import Known, Ledger, Placed
from langgraph_ledger.memory import Chunker, dump
from langgraph_ledger.operations.checkpoints import NewCheckpoint
from langgraph_ledger.operations.working import WorkingRow
from langgraph_ledger.places import Body, WriteRow, body_label, pack_body
from langgraph_ledger.policies import FLUSH_KEY
from langgraph_ledger.records import describe, described, text_for_json, to_json
from langgraph_ledger.vault import Vault
from langgraph_ledger.working import WORKING_KEY, Kept, refuse_unfit

SECRET = re.compile(
    r"secret|token|pass(w|phrase)|pwd|credential|authori[sz]ation|bearer|jwt|cookie|dsn|connection_?str"
    r"|(api|access|private|signing|encryption)_?key",
    re.IGNORECASE,
)
"""Keys of `configurable` that are not copied to metadata."""

ERROR_SOURCE_NODE = "__error_source_node__"
START = "__start__"
COUNTERS = "counters_since_delta_snapshot"
"""The part of the metadata that names the delta channels of a checkpoint."""


class Encoder:
    """One put: the checkpoint's rows, and what to remember of it once they are stored."""

    def __init__(
        self,
        ledger: Ledger,
        vault: Vault,
        config: Mapping[str, Any],
        session_id: str,
        agent_id: str,
        checkpoint: Mapping[str, Any],
        metadata: Mapping[str, Any],
        new_versions: Mapping[str, Any],
    ) -> None:
        self.ledger, self.vault = ledger, vault
        self.session_id, self.agent_id = session_id, agent_id
        self.conf = ids.configurable(config)
        self.parent_id = ids.checkpoint_of(self.conf)
        self.checkpoint, self.new_versions = checkpoint, new_versions
        self.metadata = merged_metadata(config, metadata)
        self.added = {k: v for k, v in self.metadata.items() if k not in (metadata or {})}
        self.channels: dict[str, Placed] = {}
        self.deltas: frozenset[str] = frozenset()
        self.working: list[WorkingRow] = []
        self.apart: list[str] = []
        refuse_unfit(ledger.working_channels, checkpoint, self.metadata)

    @property
    def known(self) -> Known:
        return Known(self.channels, deltas=self.deltas)

    def _where(self, channel: str | None = None) -> str:
        place = f"thread {self.session_id!r}, namespace {self.agent_id!r}, checkpoint {self.checkpoint.get('id')}"
        return place if channel is None else f"{place}, channel {channel!r}"

    def encode(self, *, reuse: bool = True) -> NewCheckpoint:
        """The checkpoint's rows; with `reuse`, less what is stored with its parent."""
        stored = self.ledger.known(self.session_id, self.agent_id, self.parent_id)
        parent = stored if reuse else Known({})
        chunker = Chunker(self.vault, self.session_id, parent.ids, self.ledger.compression)
        values = self._durable()
        for channel in values:
            ids.clean(channel, "channel")
        self.channels = {channel: self._placed(channel, value, parent, chunker) for channel, value in values.items()}
        self._carry_over(parent)
        self.deltas = self._deltas(stored)
        body = self._body()
        label = body_label(self.agent_id, str(self.checkpoint["id"]))
        return NewCheckpoint(
            agent_id=self.agent_id,
            checkpoint_id=str(self.checkpoint["id"]),
            parent_id=_text(self.parent_id),
            root_id=_text((self.conf.get("checkpoint_map") or {}).get("")) if self.agent_id else None,
            run_id=self._run_id(),
            payload=self._shown(self.metadata),
            body=pack_body(self.vault, body, label, self.ledger.compression),
            memory_ids=body.memory_ids,
            state_bytes=sum(placed.size for placed in self.channels.values()),
            state=self._shown({c: v for c, v in values.items() if not c.startswith(("__", "branch:", "join:"))}),
            reused_from=_text(self.parent_id) if self._leans_on_parent(chunker) else None,
            memory=list(chunker.rows.values()),
            writes=(),
            status=None,
            metadata=self._shown(self.added) if self.added else None,
            stamp=self.ledger.stamp,
        )

    def _durable(self) -> Mapping[str, Any]:
        """The values but for the working ones, which are encoded for a place of their own."""
        values: Mapping[str, Any] = self.checkpoint.get("channel_values") or {}
        apart = self.ledger.working_channels.intersection(values)
        if not apart:
            return values
        kept = Kept(self.vault, self.agent_id, self.ledger.compression)
        versions = self.checkpoint.get("channel_versions") or {}
        for channel in sorted(apart):
            if channel in self.new_versions:
                kept.add(channel, str(versions.get(channel)), values[channel], partial(self._where, channel))
        self.working, self.apart = kept.rows, sorted(apart)
        return {channel: value for channel, value in values.items() if channel not in apart}

    def _placed(self, channel: str, value: Any, parent: Known, chunker: Chunker) -> Placed:
        version = (self.checkpoint.get("channel_versions") or {}).get(channel)
        before = parent.channels.get(channel)
        unchanged = channel not in self.new_versions and version is not None
        if before is not None and unchanged and before.version == version:
            return before
        chunker.used, chunker.size = set(), 0
        place = chunker.place(value, lambda: self._where(channel))
        return Placed(version, place, frozenset(chunker.used), chunker.size)

    @property
    def missing(self) -> list[str]:
        """Channels that keep their version and come without a value: those of another graph on the same thread."""
        values = self.checkpoint.get("channel_values") or {}
        versions = self.checkpoint.get("channel_versions") or {}
        return [c for c in versions if c not in values and c not in self.new_versions]

    def _carry_over(self, parent: Known) -> None:
        """Keeps their values, which LangGraph's savers find again by their versions."""
        versions = self.checkpoint.get("channel_versions") or {}
        for channel in self.missing:
            before = parent.channels.get(channel)
            if before is not None and before.version == versions[channel]:
                self.channels[ids.clean(channel, "channel")] = before

    @property
    def needs_parent(self) -> bool:
        """Whether what its parent holds has to be known."""
        return bool(self.parent_id and (self.missing or self._is_uncounted()))

    def _is_uncounted(self) -> bool:
        """Whether delta channels may be left out of its metadata: LangGraph before 1.2.13 does so where it is no run
        that makes the checkpoint. "input" may be an update in its name."""
        return self.metadata.get("source") in ("update", "fork", "input") and COUNTERS not in self.metadata

    def _deltas(self, parent: Known) -> frozenset[str]:
        """Delta channels without a value."""
        found = set(self.metadata.get(COUNTERS) or ())
        if self._is_uncounted():
            whole = {channel for channel, placed in parent.channels.items() if placed.place.delta}
            found |= (parent.deltas | whole) & (self.checkpoint.get("channel_versions") or {}).keys()
        return frozenset(found - self.channels.keys())

    def _leans_on_parent(self, chunker: Chunker) -> bool:
        """Whether chunks are referred to that are not among the rows to be stored."""
        return any(not placed.used <= chunker.rows.keys() for placed in self.channels.values())

    def _body(self) -> Body:
        rest = {key: value for key, value in self.checkpoint.items() if key != "channel_values"}
        if self.apart:
            rest[WORKING_KEY] = self.apart
        return Body(
            dump(self.vault.serde, rest, self._where, self.vault.limit),
            dump(self.vault.serde, self.metadata, lambda: f"{self._where()}, metadata", self.vault.limit),
            {channel: placed.place for channel, placed in self.channels.items()},
            sorted(self.deltas),
        )

    def _run_id(self) -> str | None:
        run_id = self.metadata.get("run_id")
        return None if run_id is None else str(ids.clean(run_id, "run_id"))

    def _shown(self, values: Mapping[str, Any]) -> str:
        """JSON of small plain values and descriptions of the others; of all, if values are to stay secret."""
        show = describe if self.vault.is_open else described
        return to_json({text_for_json(str(k)): show(v) for k, v in values.items()})

    def status(self, writes: Sequence[WriteRow]) -> str | None:
        """What the checkpoint and the writes stored with it say of the session."""
        if self.agent_id:
            return None
        return status_after(writes) or ("active" if _something_is_next(self.checkpoint) else "completed")


def _text(value: Any) -> str | None:
    return str(value) if value else None


def merged_metadata(config: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The checkpoint's metadata and, as every LangGraph saver adds them, the config's plain keys; no secrets."""
    merged = dict(metadata or {})
    conf = config.get("configurable") or {}
    for source in (config.get("metadata"), conf):
        for key, value in (source or {}).items():
            if key in merged or key in EXCLUDED_METADATA_KEYS or key.startswith("__") or key == FLUSH_KEY:
                continue
            # in the metadata too if LangChain has put it there, as it once did with all that is configurable
            secret = SECRET.search(key) and (source is conf or str(conf.get(key)) == str(value))
            if isinstance(value, (str, int, float)) and not secret:
                merged[key] = value
    return merged


def _something_is_next(checkpoint: Mapping[str, Any]) -> bool:
    """Whether a root checkpoint leaves something to run, as far as its values tell."""
    return any(_triggers(channel, value) for channel, value in (checkpoint.get("channel_values") or {}).items())


def what_is_next(checkpoint: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the nodes that run after a root checkpoint, as far as its values tell."""
    found: list[str] = []
    for channel, value in (checkpoint.get("channel_values") or {}).items():
        if not _triggers(channel, value):
            continue
        if channel == TASKS:
            found += [_node(send) for send in value]
        elif channel.startswith("branch:to:"):
            found.append(channel.removeprefix("branch:to:"))
        else:
            found.append(channel.rsplit(":", 1)[1] if channel.startswith("join:") else channel)
    return tuple(sorted(found))


def _node(send: Any) -> str:
    if not isinstance(send, Mapping):
        return str(send.node)
    parts = _content(send)
    return str(parts["node"] if isinstance(parts, Mapping) else parts[0])


def _content(value: Any) -> Any:
    """What an object was made of, for a reader who has data in its place (see `data.py`)."""
    return value["value"] if isinstance(value, Mapping) and "$type" in value and "value" in value else value


def _triggers(channel: str, value: Any) -> bool:
    value = _content(value)
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
