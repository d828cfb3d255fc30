"""Where a value is, as it is stored: places, the body of a checkpoint, task writes, and the rows of `agent_memory`.

A place is the bytes of a small value, or the pieces of a rope: literal bytes and references to rows which, joined, are
the bytes of the value. Nothing here serialises, and nothing here knows SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ormsgpack

from langgraph_ledger.codecs import Compression, compress, expand
from langgraph_ledger.errors import KeyMissing, ValueNotRestorable
from langgraph_ledger.vault import DIGEST_BYTES, Vault

Where = Callable[[], str]
"""Names the place of a value for an error message; called only when there is an error."""


@dataclass(slots=True, eq=False, repr=False)
class MemoryRow:
    """One row of `agent_memory`; `children` are the ids, end to end, of the rows that this one refers to."""

    memory_id: bytes
    encoding: str
    plain_bytes: int
    content: bytes
    children: bytes | None = None


@dataclass(slots=True, eq=False, repr=False)
class Ref:
    """A piece of a rope that is a row of its own: the bytes themselves, or more pieces."""

    memory_id: bytes
    is_index: bool = False


Pieces = Sequence[bytes | Ref]


@dataclass(slots=True, eq=False, repr=False)
class Place:
    """Where one value is: its bytes here, or the pieces to join; how they are encoded, and whether to wrap them."""

    encoding: str
    here: bytes | None
    pieces: Pieces = ()
    delta: bool = False

    @property
    def ids(self) -> bytes:
        return ids_of(self.pieces)

    def packed(self) -> list[Any]:
        content = self.here if self.here is not None else [pack_shape(self.pieces), self.ids]
        return [self.encoding, self.delta, content]


def unpack_place(packed: Sequence[Any]) -> Place:
    """The place that `Place.packed` wrote."""
    encoding, delta, content = packed
    if not isinstance(encoding, str) or not isinstance(delta, bool):
        raise ValueError("it is no place")
    if isinstance(content, bytes):
        return Place(encoding, content, (), delta)
    pieces = unpack_shape(*content)
    if not pieces:
        raise ValueError("it has no pieces")
    return Place(encoding, None, pieces, delta)


def ids_of(pieces: Pieces) -> bytes:
    """The ids of all references, end to end."""
    return b"".join([p.memory_id for p in pieces if isinstance(p, Ref)])


def split_ids(ids: bytes) -> list[bytes]:
    """What `ids_of` joined."""
    return [ids[i : i + DIGEST_BYTES] for i in range(0, len(ids), DIGEST_BYTES)]


def pack_shape(pieces: Pieces) -> list[Any]:
    """Pieces without their ids: literals as they are, a run of references to bytes as its length, an index as -1."""
    shape: list[Any] = []
    for piece in pieces:
        if isinstance(piece, bytes):
            shape.append(piece)
        elif piece.is_index:
            shape.append(-1)
        elif shape and isinstance(shape[-1], int) and shape[-1] > 0:
            shape[-1] += 1
        else:
            shape.append(1)
    return shape


def unpack_shape(shape: Sequence[Any], ids: bytes) -> Pieces:
    """The pieces of a shape and its ids; ValueError unless it takes all of them and no more."""
    pieces: list[bytes | Ref] = []
    found = split_ids(ids)
    taken = 0
    for entry in shape:
        if isinstance(entry, bytes):
            pieces.append(entry)
        elif entry == -1 and taken < len(found):
            pieces.append(Ref(found[taken], True))
            taken += 1
        elif type(entry) is int and 0 < entry <= len(found) - taken:
            pieces.extend(map(Ref, found[taken : taken + entry]))
            taken += entry
        else:
            raise ValueError(f"{entry!r:.40} is no piece, or its id is missing")
    if taken * DIGEST_BYTES != len(ids):
        raise ValueError("there are ids that no piece takes")
    return pieces


def memory_label(session_id: str, memory_id: bytes) -> str:
    """The place of a chunk's content."""
    return f"{session_id}/{memory_id.hex()}"


def body_label(agent_id: str, checkpoint_id: str) -> str:
    """The place of a checkpoint's body within its session."""
    return f"checkpoint/{agent_id}/{checkpoint_id}"


def write_label(agent_id: str, checkpoint_id: str, task_id: str, idx: int) -> str:
    """The place of a pending write within its session."""
    return f"write/{agent_id}/{checkpoint_id}/{task_id}/{idx}"


@dataclass(slots=True, eq=False, repr=False)
class WriteRow:
    """One row of `pending_writes`. Rows with `idx` below zero replace what is there; others are kept if first."""

    task_id: str
    idx: int
    task_path: str
    channel: str
    place: bytes
    memory_ids: bytes | None
    digest: bytes | None = None
    together: int | None = None


@dataclass(slots=True, eq=False, repr=False)
class Body:
    """A checkpoint as it is stored: everything but the values, where each value is, and which delta channels have
    none here and are rebuilt from the ancestors (retention must know, without the serde)."""

    checkpoint: tuple[str, bytes]
    metadata: tuple[str, bytes]
    places: Mapping[str, Place]
    deltas: Sequence[str] = ()

    @property
    def memory_ids(self) -> bytes | None:
        return b"".join([place.ids for place in self.places.values()]) or None


BODY_FORMAT = 1


def pack_body(vault: Vault, body: Body, label: str, compression: Compression = "lz4") -> bytes:
    """A body as the bytes of its column: the encoding with its codec, a NUL and the content, sealed."""
    places = {channel: place.packed() for channel, place in body.places.items()}
    plain = ormsgpack.packb([BODY_FORMAT, body.checkpoint, body.metadata, places, list(body.deltas)])
    encoding, data = compress("b", plain, compression)
    return vault.seal(encoding.encode() + b"\0" + data, label)


def unpack_body(vault: Vault, data: bytes, label: str, where: Where) -> Body:
    """The body that `pack_body` wrote."""
    try:
        encoding, _, packed = vault.unseal(data, label).partition(b"\0")
        version, checkpoint, metadata, places, deltas = ormsgpack.unpackb(expand(encoding.decode(), packed)[1])
        if version != BODY_FORMAT:
            raise ValueError(f"unknown body format {version}")
        found = {channel: unpack_place(place) for channel, place in places.items()}
        return Body(_serialised(*checkpoint), _serialised(*metadata), found, [str(channel) for channel in deltas])
    except Exception as error:
        raise unreadable(where, "the stored checkpoint", error) from error


def unreadable(where: Where, what: str, error: Exception) -> ValueNotRestorable:
    """What to raise if something that is stored cannot be opened."""
    if isinstance(error, KeyMissing):
        return KeyMissing(f"{where()}: {what} cannot be read: {error}")
    return ValueNotRestorable(f"{where()}: {what} is damaged: {error}")


def _serialised(encoding: str, data: bytes) -> tuple[str, bytes]:
    if not isinstance(encoding, str) or not isinstance(data, bytes):
        raise ValueError("a part of it is no serialised value")
    return encoding, data


def unpack_write(vault: Vault, row: WriteRow, place: tuple[str, str], where: Where) -> Place:
    """Where a pending write's value is."""
    return unpack_sealed(vault, row.place, write_label(*place, row.task_id, row.idx), "write", where)


def unpack_sealed(vault: Vault, data: bytes, label: str, what: str, where: Where) -> Place:
    """A place that stands in a row by itself."""
    try:
        return unpack_place(ormsgpack.unpackb(vault.unseal(data, label)))
    except Exception as error:
        raise unreadable(where, f"the stored {what}", error) from error


Fetched = Mapping[bytes, tuple[str, bytes, bytes | None]]
"""Rows of `agent_memory` by id: encoding, content, children."""
