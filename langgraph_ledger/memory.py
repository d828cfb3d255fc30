"""Channel values to rows and back: serialising, digests, LZ4, and the body of a checkpoint.

A value is serialised by LangGraph's serde, and either stands in the checkpoint's body (when it is tiny) or becomes
a row of `agent_memory` under the digest of its bytes, once a session. Values that did not change are not
serialised again: the body points to what the parent's body pointed to. Nothing here knows SQL.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import lz4.block
import ormsgpack
from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_ledger.errors import ValueNotRestorable, ValueNotStorable

BODY_FORMAT = 1
INLINE_BYTES = 256
"""Values up to this size stand in the body: a row of their own costs more than it could save."""
COMPRESS_BYTES = 512
"""Bytes below this size are left alone: LZ4 saves too little to pay for itself."""
PACKED = "+lz4"

Ref = tuple[str, bytes] | str
"""Where a value is: (encoding, bytes) in the body itself, or the id of its row in `agent_memory`."""


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """One row of `agent_memory`."""

    memory_id: str
    encoding: str
    content: bytes


@dataclass(frozen=True, slots=True)
class WriteRow:
    """One row of `pending_writes`. Rows with `idx` below zero replace what is there; others are kept if first."""

    task_id: str
    idx: int
    task_path: str
    channel: str
    encoding: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Body:
    """A checkpoint as it is stored: everything but the values, where each value is, and which delta channels
    have none here and are rebuilt from the ancestors (retention must know, without the serde)."""

    checkpoint: tuple[str, bytes]
    metadata: tuple[str, bytes]
    values: Mapping[str, Ref]
    deltas: Sequence[str] = ()

    @property
    def memory_ids(self) -> list[str]:
        return [ref for ref in self.values.values() if isinstance(ref, str)]


def compress(encoding: str, data: bytes) -> tuple[str, bytes]:
    """The bytes as they are stored: LZ4 where it helps, and said in the encoding."""
    if len(data) < COMPRESS_BYTES:
        return encoding, data
    packed = lz4.block.compress(data)
    return (encoding + PACKED, packed) if len(packed) < len(data) * 0.95 else (encoding, data)


def expand(encoding: str, data: bytes) -> tuple[str, bytes]:
    """What `compress` was given."""
    if not encoding.endswith(PACKED):
        return encoding, data
    return encoding.removesuffix(PACKED), lz4.block.decompress(data)


def digest(encoding: str, data: bytes) -> str:
    """The id of a value: 128 bits of BLAKE2b over how and what."""
    return hashlib.blake2b(encoding.encode() + b"\0" + data, digest_size=16).hexdigest()


Where = Callable[[], str]
"""Names the place of a value for an error message; called only when there is an error."""


def dump(serde: SerializerProtocol, value: Any, where: Where) -> tuple[str, bytes]:
    """`value` through the serde; a refusal names its place and the path inside the value."""
    try:
        return serde.dumps_typed(value)
    except Exception as error:
        path, culprit = _culprit(serde, value)
        raise ValueNotStorable(
            f"{where()}: {type(culprit).__module__}.{type(culprit).__qualname__} at value{path} cannot be serialised:"
            f" {error}"
        ) from error


def _culprit(serde: SerializerProtocol, value: Any, path: str = "", depth: int = 20) -> tuple[str, Any]:
    """The innermost part of a value that the serde refuses."""
    parts: Iterable[tuple[str, Any]] = ()
    if isinstance(value, dict):
        parts = ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, (list, tuple)):
        parts = ((f"[{i}]", part) for i, part in enumerate(value))
    elif hasattr(value, "__dict__"):
        parts = ((f".{name}", part) for name, part in vars(value).items())
    for step, part in itertools.islice(parts, 10_000) if depth else ():
        try:
            serde.dumps_typed(part)
        except Exception:
            return _culprit(serde, part, path + step, depth - 1)
    return path, value


def load(serde: SerializerProtocol, encoding: str, data: bytes, where: Where) -> Any:
    """A value back from the serde; a failure names its place."""
    try:
        return serde.loads_typed(expand(encoding, data))
    except Exception as error:
        raise ValueNotRestorable(f"{where()}: the stored value cannot be restored: {error}") from error


def encode_values(
    serde: SerializerProtocol,
    values: Mapping[str, Any],
    reused: Mapping[str, Ref],
    where: Callable[[str], str],
) -> tuple[dict[str, Ref], list[MemoryRow]]:
    """Where each channel's value is, and the rows that have to be there. `reused` says what did not change."""
    refs: dict[str, Ref] = {}
    rows: dict[str, MemoryRow] = {}
    for channel, value in values.items():
        if channel in reused:
            refs[channel] = reused[channel]
            continue
        encoding, data = dump(serde, value, lambda channel=channel: where(channel))  # type: ignore[misc]
        if len(data) <= INLINE_BYTES:
            refs[channel] = (encoding, data)
            continue
        memory_id = digest(encoding, data)
        refs[channel] = memory_id
        rows[memory_id] = MemoryRow(memory_id, *compress(encoding, data))
    return refs, list(rows.values())


def encode_writes(
    serde: SerializerProtocol, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str, where: Where
) -> list[WriteRow]:
    """A task's writes as rows; LangGraph's special channels have fixed indexes below zero."""
    return [
        WriteRow(
            task_id,
            WRITES_IDX_MAP.get(channel, position),
            task_path,
            channel,
            *compress(*dump(serde, value, lambda channel=channel: f"{where()}, channel {channel!r}")),  # type: ignore[misc]
        )
        for position, (channel, value) in enumerate(writes)
    ]


def pack_body(body: Body) -> bytes:
    """A body as the bytes of its column, the first of which says how to read them."""
    plain = ormsgpack.packb([BODY_FORMAT, body.checkpoint, body.metadata, dict(body.values), list(body.deltas)])
    encoding, data = compress("m", plain)
    return (b"L" if encoding.endswith(PACKED) else b"m") + data


def unpack_body(data: bytes, where: Where) -> Body:
    """The body that `pack_body` wrote."""
    try:
        plain = lz4.block.decompress(data[1:]) if data[:1] == b"L" else data[1:]
        version, checkpoint, metadata, values, deltas = ormsgpack.unpackb(plain)
        if version != BODY_FORMAT:
            raise ValueError(f"unknown body format {version}")
        refs = {k: v if isinstance(v, str) else (v[0], v[1]) for k, v in values.items()}
        return Body((checkpoint[0], checkpoint[1]), (metadata[0], metadata[1]), refs, deltas)
    except Exception as error:
        raise ValueNotRestorable(f"{where()}: the stored checkpoint is damaged: {error}") from error


def verified(memory_id: str, encoding: str, content: bytes, where: Where) -> tuple[str, bytes]:
    """A memory row's plain bytes, or an error if they are not what their id says."""
    try:
        plain = expand(encoding, content)
    except Exception as error:
        raise ValueNotRestorable(f"{where()}: memory {memory_id} is damaged: {error}") from error
    if digest(*plain) != memory_id:
        raise ValueNotRestorable(f"{where()}: memory {memory_id} is damaged: its digest does not match")
    return plain
