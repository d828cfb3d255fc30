"""Channel values to chunks: serialising, cutting, digests.

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
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import ormsgpack
from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import EXT_NUMPY_ARRAY
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from langgraph_ledger.chains import Stamp, of_write
from langgraph_ledger.codecs import Compression, compress
from langgraph_ledger.errors import ValueNotStorable
from langgraph_ledger.images import WHOLE, Key, Serialised, header, is_plain, key_of
from langgraph_ledger.places import (
    MemoryRow,
    Place,
    Ref,
    Where,
    WriteRow,
    ids_of,
    memory_label,
    pack_shape,
    write_label,
)
from langgraph_ledger.vault import INDEX, PART, Vault
from langgraph_ledger.verbatim import VerbatimSerializer

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


def dump(serde: SerializerProtocol, value: Any, where: Where, limit: int) -> tuple[str, bytes]:
    """`value` through the serde; a refusal names its place and the path inside the value."""
    try:
        encoding, data = serialised(serde, value)
    except Exception as error:
        path, part = culprit(serde, value)
        raise ValueNotStorable(
            f"{where()}: {type(part).__module__}.{type(part).__qualname__} at value{path} cannot be serialised: {error}"
        ) from error
    refuse_large(len(data), limit, where)
    return encoding, data


def refuse_large(size: int, limit: int, where: Where) -> None:
    """Raises `ValueNotStorable` for what would not be restored."""
    if size > limit:
        raise ValueNotStorable(f"{where()}: the value takes {size:,} bytes, more than value_limit={limit:,}")


def serialised(serde: SerializerProtocol, value: Any) -> tuple[str, bytes]:
    """What the serde makes of a value; TypeError for what it takes and would not give back at all."""
    encoding, data = serde.dumps_typed(value)
    if encoding == "msgpack" and may_lose(data):
        _refuse_lost_arrays(serde, data)
    return encoding, data


def may_lose(data: bytes | bytearray) -> bool:
    """Whether there may be an array of objects or records in these bytes. To be sure takes longer."""
    return "numpy" in sys.modules and (b"|O" in data or b"|V" in data)


def _refuse_lost_arrays(serde: SerializerProtocol, data: bytes) -> None:
    """LangGraph stores the addresses of the objects in an array, which become None, and of records only the bytes."""

    def look(code: int, content: bytes) -> None:
        found = ormsgpack.unpackb(content, ext_hook=look, option=ormsgpack.OPT_NON_STR_KEYS)
        if code == EXT_NUMPY_ARRAY and str(found[0]).startswith(("|O", "|V")):
            raise TypeError(f"LangGraph's serializer cannot restore an array of dtype {found[0]}")

    if type(serde) is not VerbatimSerializer and is_plain(serde):
        ormsgpack.unpackb(data, ext_hook=look, option=ormsgpack.OPT_NON_STR_KEYS)


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
            serialised(serde, part)
        except Exception:
            return culprit(serde, part, path + step, depth - 1)
    return path, value


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
        self._suspect = False

    def place(self, value: Any, where: Where) -> Place:
        """Where `value` is going to be."""
        if type(value) is _DeltaSnapshot:
            inner = self.place(value.value, where)
            return Place(inner.encoding, inner.here, inner.pieces, True)
        if type(value) in (list, dict) and value and is_plain(self.serde):
            size = self.size
            try:
                self._suspect = False
                pieces = self._pieces(value)
                if self._suspect:
                    dump(self.serde, value, where, self.vault.limit)
                refuse_large(self.size - size, self.vault.limit, where)
                return self._rope("msgpack", pieces)
            except _Whole:
                self.size = size
            except ValueNotStorable:
                raise
            except Exception as error:
                # says where the serde refuses; if it does not, the fault is ours
                dump(self.serde, value, where, self.vault.limit)
                raise error
        if (key := key_of(value, WHOLE)) is not None and key[1] is WHOLE and is_plain(self.serde):
            ref = self._recognised(key, lambda: dump(self.serde, value, where, self.vault.limit)[1], lambda: key)
            if isinstance(ref, Ref):
                return Place("bytes" if type(value) is bytes else "msgpack", None, (ref,))
        encoding, data = dump(self.serde, value, where, self.vault.limit)
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
        self._suspect = self._suspect or may_lose(data)
        return data

    def _end(self, group: bytearray, pieces: list[bytes | Ref]) -> bytearray:
        """Adds a group of small elements to the pieces; returns the next one, empty."""
        if not group:
            return group
        self.size += len(group)
        self._suspect = self._suspect or may_lose(group)
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
        return self._recognised(key, lambda: self._dumped([element])[1:], lambda: key_of(element))

    def _recognised(self, key: Key, serialise: Callable[[], bytes], again: Callable[[], Key | None]) -> bytes | Ref:
        """What a value becomes that has a key. One that was met before is not serialised."""
        images = self.vault.images
        found = images.serialised(key)
        if found is None:
            data = serialise()
            found = Serialised(None, len(data), data)
            if len(data) >= ALONE_BYTES:
                memory_id = self._row(PART, data)
                found = Serialised(memory_id, len(data), row=self.rows.get(memory_id) if self.vault.is_open else None)
            if key == again():  # or somebody has changed it meanwhile
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
    stamp: Stamp | None = None,
) -> list[WriteRow]:
    """A task's writes as rows; LangGraph's special channels have fixed indexes below zero. `stamp` makes digests."""
    rows = []
    together = len({WRITES_IDX_MAP.get(channel, position) for position, (channel, _) in enumerate(writes)})
    for position, (channel, value) in enumerate(writes):
        found = chunker.place(value, partial(_channel, where, channel))
        index = WRITES_IDX_MAP.get(channel, position)
        packed = chunker.vault.seal(ormsgpack.packb(found.packed()), write_label(*place, task_id, index))
        digest = of_write(stamp, *place, task_id, index, task_path, channel, packed, together) if stamp else None
        counted = together if stamp else None
        rows.append(WriteRow(task_id, index, task_path, channel, packed, found.ids or None, digest, counted))
    return rows


def _channel(where: Where, channel: str) -> str:
    return f"{where()}, channel {channel!r}"
