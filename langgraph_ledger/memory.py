"""Channel values to chunks and back: serialising, cutting, digests.

A value is serialised by LangGraph's serde. What is tiny stands where it is needed; everything else becomes rows of
`agent_memory` under the digest of its bytes, each stored once a session. A `list` or `dict` is serialised element by
element and cut at element borders into a rope: literal bytes and references to chunks which, joined, are the very
bytes that the serde makes of the whole value. Large elements are chunks of their own; runs of small ones are cut
where their content says so, and so is a long row of references, so that equal runs of elements are equal chunks
whatever was appended, trimmed or edited around them (content-defined chunking as in LBFS, on borders that the
serialiser knows). Nothing here knows SQL.
"""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import ormsgpack
from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from langgraph_ledger.codecs import Compression, compress, expand
from langgraph_ledger.errors import ValueNotRestorable, ValueNotStorable
from langgraph_ledger.images import WHOLE, Image, Key, Serialised, Unpacked, header, is_list, is_plain, key_of
from langgraph_ledger.vault import DIGEST_BYTES, INDEX, PART, Vault

INLINE_BYTES = 320
"""Values up to this size stand in the body: a row of their own costs more than it could save."""
ALONE_BYTES = 1024
"""An element of at least this size is a chunk of its own; smaller ones share chunks."""
GROUP_BYTES = 1024
"""How large a chunk of small elements is on average; four times as much at most."""
LITERAL_BYTES = 64
"""Runs of small elements up to this size stand among the references."""
INDEX_PIECES = 24
"""How many pieces a chunk of references holds on average; four times as many at most."""
INLINE_PIECES = 16
"""How many pieces of a rope stand in the body."""
NEST_BYTES = 2048
"""An element that is itself a list or dict is cut further if it is at least this large."""
SLICE = 512
"""A list of nothing but numbers, text and the like is serialised so many elements at a time."""
SLICE_BYTES = 32_768
"""A slice larger than this has large elements, and is serialised one by one after all."""

_SCALARS = frozenset((int, float, bool, type(None), str, bytes))

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
    if isinstance(content, bytes):
        return Place(encoding, content, (), delta)
    return Place(encoding, None, unpack_shape(*content), delta)


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
    """The pieces of a shape and its ids."""
    pieces: list[bytes | Ref] = []
    following = iter(split_ids(ids))
    for entry in shape:
        if isinstance(entry, bytes):
            pieces.append(entry)
        elif entry == -1:
            pieces.append(Ref(next(following), True))
        else:
            pieces.extend(map(Ref, itertools.islice(following, entry)))
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
        return Body((checkpoint[0], checkpoint[1]), (metadata[0], metadata[1]), found, deltas)
    except Exception as error:
        raise ValueNotRestorable(f"{where()}: the stored checkpoint is damaged: {error}") from error


# --- serialising


def dump(serde: SerializerProtocol, value: Any, where: Where) -> tuple[str, bytes]:
    """`value` through the serde; a refusal names its place and the path inside the value."""
    try:
        return serde.dumps_typed(value)
    except Exception as error:
        path, part = culprit(serde, value)
        raise ValueNotStorable(
            f"{where()}: {type(part).__module__}.{type(part).__qualname__} at value{path} cannot be serialised: {error}"
        ) from error


def culprit(serde: SerializerProtocol, value: Any, path: str = "", depth: int = 20) -> tuple[str, Any]:
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
            return culprit(serde, part, path + step, depth - 1)
    return path, value


def load(serde: SerializerProtocol, encoding: str, data: bytes, where: Where) -> Any:
    """A value back from the serde; a failure names its place."""
    try:
        return serde.loads_typed((encoding, data))
    except Exception as error:
        raise ValueNotRestorable(f"{where()}: the stored value cannot be restored: {error}") from error


class _Whole(Exception):
    """A value that cannot be serialised in parts."""


class Chunker:
    """Turns values into places, and collects the rows that have to be there and are not `known` to be."""

    def __init__(
        self, vault: Vault, session_id: str, known: frozenset[bytes] | set[bytes], compression: Compression = "lz4"
    ) -> None:
        self.vault, self.serde = vault, vault.serde
        self.session_id, self.known, self.compression = session_id, known, compression
        self.rows: dict[bytes, MemoryRow] = {}
        self.used: set[bytes] = set()
        """Every id that the places refer to, directly or not."""
        self.size = 0
        """Serialised bytes of what has been placed."""

    def place(self, value: Any, where: Where) -> Place:
        """Where `value` is going to be."""
        if type(value) is _DeltaSnapshot:
            inner = self.place(value.value, where)
            return Place(inner.encoding, inner.here, inner.pieces, True)
        if type(value) in (list, dict) and value and is_plain(self.serde):
            size = self.size
            try:
                return self._rope("msgpack", self._pieces(value))
            except _Whole:
                self.size = size
            except Exception as error:
                dump(self.serde, value, where)  # says where the serde refuses; if it does not, the fault is ours
                raise error
        if (key := key_of(value, WHOLE)) is not None and key[1] is WHOLE and is_plain(self.serde):
            ref = self._recognised(key, lambda: dump(self.serde, value, where)[1])
            if isinstance(ref, Ref):
                return Place("bytes" if type(value) is bytes else "msgpack", None, (ref,))
        encoding, data = dump(self.serde, value, where)
        self.size += len(data)
        if len(data) <= INLINE_BYTES:
            return Place(encoding, data)
        return Place(encoding, None, (self._chunk(data),))

    # cutting

    def _rope(self, encoding: str, pieces: list[bytes | Ref]) -> Place:
        if all(isinstance(piece, bytes) for piece in pieces):
            whole = b"".join(pieces)  # type: ignore[arg-type]
            if len(whole) <= INLINE_BYTES:
                return Place(encoding, whole)
        header, rest = pieces[:1], pieces[1:]  # apart, for it says how many there are and changes with each of them
        while len(rest) > INLINE_PIECES:
            rest = self._index(rest)
        return Place(encoding, None, (*header, *rest))

    def _index(self, pieces: list[bytes | Ref]) -> list[bytes | Ref]:
        """The pieces in rows of their own, cut where the ids say so."""
        shorter: list[bytes | Ref] = []
        segment: list[bytes | Ref] = []
        for piece in pieces:
            segment.append(piece)
            border = isinstance(piece, Ref) and piece.memory_id[1] < 256 // INDEX_PIECES and len(segment) > 3
            if border or len(segment) == 4 * INDEX_PIECES:
                shorter.append(self._index_row(segment))
                segment = []
        if len(segment) > 3 or not shorter:
            shorter.append(self._index_row(segment))
        else:
            shorter.extend(segment)
        return shorter

    def _index_row(self, pieces: list[bytes | Ref]) -> Ref:
        children = ids_of(pieces)
        return Ref(self._row(INDEX, ormsgpack.packb(pack_shape(pieces)), children), True)

    def _chunk(self, data: bytes) -> Ref:
        return Ref(self._row(PART, data))

    def _row(self, kind: str, content: bytes, children: bytes = b"") -> bytes:
        memory_id = self.vault.digest(kind, content, children)
        self.used.add(memory_id)
        if memory_id not in self.known and memory_id not in self.rows:
            self.rows[memory_id] = self._new_row(memory_id, kind, content, children)
        return memory_id

    def _new_row(self, memory_id: bytes, kind: str, content: bytes, children: bytes) -> MemoryRow:
        encoding, packed = compress(kind, content, self.compression)
        if not self.vault.is_open:
            packed = self.vault.seal(packed, memory_label(self.session_id, memory_id))
        return MemoryRow(memory_id, encoding, len(content) + len(children), packed, children or None)

    def _pieces(self, value: Any) -> list[bytes | Ref]:
        """A container's bytes in pieces. Elements must be serialised as they would be inside of it."""
        pieces: list[bytes | Ref] = [self._counted(header(len(value), is_list=type(value) is list))]
        group = bytearray()
        for data, element in self._elements(value):
            if isinstance(data, Ref):
                group = self._end(group, pieces)
                pieces.append(data)
                continue
            if len(data) >= ALONE_BYTES:
                group = self._end(group, pieces)
                if len(data) >= NEST_BYTES and type(element) in (list, dict):
                    pieces += self._nested(value, data, element)
                else:
                    pieces.append(self._chunk(self._counted(data)))
                continue
            group += data
            if zlib.crc32(data) % GROUP_BYTES < len(data) or len(group) >= 4 * GROUP_BYTES:
                group = self._end(group, pieces)
        self._end(group, pieces)
        return pieces

    def _nested(self, outer: Any, data: bytes, element: Any) -> list[bytes | Ref]:
        if type(outer) is list:
            return self._pieces(element)
        key = self._counted(data[: len(data) - len(self._dumped(element))])  # of a dict, the key comes first
        return [key, *self._pieces(element)]

    def _counted(self, data: bytes) -> bytes:
        self.size += len(data)
        return data

    def _end(self, group: bytearray, pieces: list[bytes | Ref]) -> bytearray:
        """Adds a group of small elements to the pieces; returns the next one, empty."""
        if not group:
            return group
        self.size += len(group)
        pieces.append(self._chunk(bytes(group)) if len(group) > LITERAL_BYTES else bytes(group))
        return bytearray()

    def _elements(self, value: Any) -> Iterable[tuple[bytes | Ref, Any]]:
        """The bytes of each element (of a dict: key and value) with the element (the value)."""
        if type(value) is dict:
            for key, part in value.items():
                yield self._dumped({key: part})[1:], part
        elif len(value) > SLICE // 8 and _SCALARS.issuperset(map(type, value)):
            for start in range(0, len(value), SLICE):
                part = value[start : start + SLICE]
                data = self._dumped(part)[len(header(len(part))) :]
                if len(data) <= SLICE_BYTES:
                    yield data, None
                else:
                    yield from ((self._dumped([element])[1:], None) for element in part)
        else:
            for element in value:
                yield self._element(element), element

    def _element(self, element: Any) -> bytes | Ref:
        """The bytes of an element, or, of a large one that will be met again, its chunk."""
        key = key_of(element)
        if key is None:
            return self._dumped([element])[1:]
        return self._recognised(key, lambda: self._dumped([element])[1:])

    def _recognised(self, key: Key, serialise: Callable[[], bytes]) -> bytes | Ref:
        """What a value becomes that has a key. One that was met before is not serialised."""
        images = self.vault.images
        found = images.serialised(key)
        if found is None:
            data = serialise()
            found = Serialised(None, len(data), data)
            if len(data) >= ALONE_BYTES:
                memory_id = self._row(PART, data)
                found = Serialised(memory_id, len(data), row=self.rows.get(memory_id) if self.vault.is_open else None)
            images.add_serialised(key, found)
        elif found.memory_id is not None:
            self._include(found, serialise)
        if found.memory_id is None:
            return found.data
        self.size += found.size
        return Ref(found.memory_id)

    def _include(self, found: Serialised, serialise: Callable[[], bytes]) -> None:
        """Sees to it that a chunk is among the rows if it is not stored."""
        memory_id = found.memory_id
        assert memory_id is not None
        self.used.add(memory_id)
        if memory_id in self.known or memory_id in self.rows:
            return
        if found.row is not None:
            self.rows[memory_id] = found.row
        else:
            self._row(PART, serialise())

    def _dumped(self, value: Any) -> bytes:
        encoding, data = self.serde.dumps_typed(value)
        if encoding != "msgpack":
            raise _Whole
        return data


def encode_writes(
    chunker: Chunker,
    writes: Sequence[tuple[str, Any]],
    place: tuple[str, str],
    task_id: str,
    task_path: str,
    where: Where,
) -> list[WriteRow]:
    """A task's writes as rows; LangGraph's special channels have fixed indexes below zero."""
    rows = []
    for position, (channel, value) in enumerate(writes):
        found = chunker.place(value, partial(_channel, where, channel))
        index = WRITES_IDX_MAP.get(channel, position)
        packed = chunker.vault.seal(ormsgpack.packb(found.packed()), write_label(*place, task_id, index))
        rows.append(WriteRow(task_id, index, task_path, channel, packed, found.ids or None))
    return rows


def _channel(where: Where, channel: str) -> str:
    return f"{where()}, channel {channel!r}"


def unpack_write(vault: Vault, row: WriteRow, place: tuple[str, str], where: Where) -> Place:
    """Where a pending write's value is."""
    try:
        data = vault.unseal(row.place, write_label(*place, row.task_id, row.idx))
        return unpack_place(ormsgpack.unpackb(data))
    except Exception as error:
        raise ValueNotRestorable(f"{where()}: the stored write is damaged: {error}") from error


# --- restoring

Fetched = Mapping[bytes, tuple[str, bytes, bytes | None]]
"""Rows of `agent_memory` by id: encoding, content, children."""


class Shelf:
    """Rows that were fetched together, each checked against its id and unpacked once."""

    def __init__(self, vault: Vault, session_id: str, rows: Fetched) -> None:
        self.vault, self.session_id, self.rows = vault, session_id, rows
        self._plain: dict[bytes, bytes] = {}
        self._unpacked: dict[bytes, Unpacked] = {}
        self._has_images = is_plain(vault.serde)

    def read(self, place: Place, where: Where) -> tuple[Any, set[bytes], int]:
        """The value at a place, the ids of all that it is made of, and its size when serialised."""
        found = Reading(self, where)
        data = found.data(place)
        value = load(self.vault.serde, place.encoding, data, where)
        if found.stubs and (nested := found.fill(value)):
            for memory_id in nested:
                self.vault.images.pass_over(self.session_id, memory_id)
            found = Reading(self, where, images=False)
            value = load(self.vault.serde, place.encoding, found.data(place), where)
        return (_DeltaSnapshot(value) if place.delta else value), found.used, found.size

    def value(self, place: Place, where: Where) -> Any:
        """The value at a place."""
        return self.read(place, where)[0]

    def images(self, memory_id: bytes, where: Where) -> Unpacked | None:
        """The elements of a chunk that is met not for the first time, if it has any; checked, as all is."""
        found = self._unpacked.get(memory_id)
        if found is not None or not self._has_images:
            return found
        images, row = self.vault.images, self.rows.get(memory_id)
        found = images.unpacked(self.session_id, memory_id)
        if found is None or row is None or not found.is_of(row):
            if not images.seen(self.session_id, memory_id):
                return None
            plain = self.plain(memory_id, where)
            found = images.unpack(self.vault.serde, self.session_id, memory_id, self.rows[memory_id], plain)
        self._unpacked[memory_id] = found
        return found

    def plain(self, memory_id: bytes, where: Where) -> bytes:
        """The bytes of a chunk, or the shape of an index, checked."""
        found = self._plain.get(memory_id)
        if found is not None:
            return found
        row = self.rows.get(memory_id)
        if row is None:
            raise ValueNotRestorable(f"{where()}: memory {memory_id.hex()} is missing")
        try:
            content = row[1]
            if not self.vault.is_open:
                content = self.vault.unseal(content, memory_label(self.session_id, memory_id))
            kind, plain = expand(row[0], content)
        except Exception as error:
            raise ValueNotRestorable(f"{where()}: memory {memory_id.hex()} is damaged: {error}") from error
        if self.vault.digest(kind, plain, row[2] or b"") != memory_id:
            raise ValueNotRestorable(f"{where()}: memory {memory_id.hex()} is damaged: its digest does not match")
        self._plain[memory_id] = plain
        return plain

    def reachable(self, ids: bytes) -> frozenset[bytes]:
        """The ids of these rows and of all that they refer to."""
        found: set[bytes] = set()
        waiting = split_ids(ids)
        while waiting:
            memory_id = waiting.pop()
            if memory_id not in found:
                found.add(memory_id)
                row = self.rows.get(memory_id)
                if row is not None and row[2]:
                    waiting.extend(split_ids(row[2]))
        return frozenset(found)


class Reading:
    """One value being put together. Elements that have images are made from them: a stub stands in their place among
    the bytes, and the element takes its place in the value."""

    def __init__(self, shelf: Shelf, where: Where, *, images: bool = True) -> None:
        self.shelf, self.where, self.images = shelf, where, images
        self.used: set[bytes] = set()
        self.size = 0
        self.stubs: list[tuple[bytes, Image]] = []

    def data(self, place: Place) -> bytes:
        """The serialised bytes at a place, with stubs."""
        if place.here is not None:
            self.size = len(place.here)
            return place.here
        first = place.pieces[0]
        self.images = self.images and place.encoding == "msgpack" and isinstance(first, bytes) and is_list(first)
        parts: list[bytes] = []
        self._join(place.pieces, parts)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _join(self, pieces: Pieces, parts: list[bytes]) -> None:
        shelf = self.shelf
        for piece in pieces:
            if isinstance(piece, bytes):
                self.size += len(piece)
                parts.append(piece)
                continue
            memory_id = piece.memory_id
            self.used.add(memory_id)
            if piece.is_index:
                shape = ormsgpack.unpackb(shelf.plain(memory_id, self.where))
                self._join(unpack_shape(shape, shelf.rows[memory_id][2] or b""), parts)
            elif self.images and (found := shelf.images(memory_id, self.where)) and found.elements:
                self.size += found.size
                for image in found.elements:
                    parts.append(_STUB + len(self.stubs).to_bytes(4, "big"))
                    self.stubs.append((memory_id, image))
            else:
                plain = shelf.plain(memory_id, self.where)
                self.size += len(plain)
                parts.append(plain)

    def fill(self, value: list[Any]) -> set[bytes]:
        """Puts the elements where their stubs are; returns the chunks whose stubs stand elsewhere, deeper inside."""
        nested = dict(enumerate(self.stubs))
        for position, element in enumerate(value):
            if type(element) is bytes and len(element) == _STUB_BYTES and element.startswith(_STUB[2:]):
                _, image = nested.pop(int.from_bytes(element[-4:], "big"))
                value[position] = image.made()
        return {memory_id for memory_id, _ in nested.values()}


_STUB_BYTES = 20
_STUB = bytes((0xC4, _STUB_BYTES)) + os.urandom(_STUB_BYTES - 4)
"""What msgpack writes before so many bytes, and bytes that nobody else can know."""
