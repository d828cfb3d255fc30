"""Images: elements of lists that this process has serialised or restored before, recognised and made anew.

An image is everything that a message consists of, as a key that is equal only if all of it is, type for type. Whoever
saves a message whose image is known need not serialise it to know its chunk, and whoever reads a chunk that was
checked and unpacked before, byte for byte the same, need not do so again: the message is made anew from its image, as
`copy.deepcopy` would. Nothing here knows SQL.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import ormsgpack
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from langgraph_ledger.verbatim import VerbatimSerializer

IMAGE_BYTES = 48_000_000
"""How much a saver keeps, about; what was not used for longest goes first."""
OVERHEAD_BYTES = 400
"""What keeping anything costs besides its bytes, about."""
MESSAGES = {
    "langchain_core.messages.ai": "AIMessage",
    "langchain_core.messages.human": "HumanMessage",
    "langchain_core.messages.system": "SystemMessage",
    "langchain_core.messages.tool": "ToolMessage",
}
"""Classes whose instances are their fields and nothing else, and that every allow-list lets pass."""

_PLAIN_ONLY = (
    ormsgpack.OPT_NON_STR_KEYS
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
"""Refuses all but plain data, whose bytes tell one type from another."""

Key = tuple[type | None, tuple[str, ...], str | None, bytes]
"""Class, names of the fields, the first field if it is text, and the others. Python keeps hashes of text and bytes."""
LARGE = 1024
"""How long text or bytes must be to be recognised."""
ELEMENT, WHOLE = ("element",), ("whole",)
"""What text or bytes are recognised as, for they are serialised differently."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def is_plain(serde: SerializerProtocol) -> bool:
    """Whether a serializer's bytes are LangGraph's own, both ways: a container's are its elements' behind a header."""
    kind = type(serde)
    return kind is VerbatimSerializer or (
        isinstance(serde, JsonPlusSerializer)
        and kind.dumps_typed is JsonPlusSerializer.dumps_typed
        and kind.loads_typed is JsonPlusSerializer.loads_typed
    )


def key_of(value: Any, role: tuple[str, ...] = ELEMENT) -> Key | None:
    """What a value is recognised by when it is saved again: messages, large texts and bytes; None for all others."""
    kind = type(value)
    if kind is bytes:
        return (kind, role, None, value) if len(value) >= LARGE else None
    if kind is str:
        return (kind, role, value, b"") if len(value) >= LARGE else None
    return image_of(value)


def image_of(element: Any) -> Key | None:
    """The image of a message; None for everything else."""
    kind = type(element)
    if kind not in _messages and not _is_message(kind):
        return None
    fields = element.__dict__
    values = [*fields.values(), element.__pydantic_extra__, element.__pydantic_private__]
    text = values.pop(0) if type(values[0]) is str else None
    try:
        return kind, tuple(fields), text, ormsgpack.packb(values, option=_PLAIN_ONLY)
    except (TypeError, ValueError):  # something that is not plain data
        return None


_messages: set[type] = set()


def _is_message(kind: type) -> bool:
    if MESSAGES.get(kind.__module__) != kind.__qualname__:
        return False
    _messages.add(kind)
    return True


@dataclass(slots=True, eq=False, repr=False)
class Image:
    """One element: its key, and which fields a message was given explicitly."""

    key: Key
    fields_set: frozenset[str] = frozenset()

    def made(self) -> Any:
        """The element anew; nothing of it that can change is shared."""
        kind, names, text, data = self.key
        values = ormsgpack.unpackb(data, ext_hook=ormsgpack.Ext, option=ormsgpack.OPT_NON_STR_KEYS)
        if kind is None:
            return values
        private, extra = values.pop(), values.pop()
        if text is not None:
            values.insert(0, text)
        element: Any = object.__new__(kind)
        put = object.__setattr__
        put(element, "__dict__", dict(zip(names, values, strict=True)))
        put(element, "__pydantic_extra__", extra)
        put(element, "__pydantic_fields_set__", set(self.fields_set))
        put(element, "__pydantic_private__", private)
        return element


def _of_restored(element: Any) -> Image | None:
    key = image_of(element)
    if key is not None:
        return Image(key, frozenset(element.__pydantic_fields_set__))
    try:
        return Image((None, (), None, ormsgpack.packb(element, option=_PLAIN_ONLY)))
    except (TypeError, ValueError):
        return None


@dataclass(slots=True, eq=False, repr=False)
class Unpacked:
    """A chunk as it was stored when it was checked, and its elements; None if they have no images."""

    encoding: str
    content: bytes
    size: int
    elements: Sequence[Image] | None

    def is_of(self, row: tuple[str, bytes, bytes | None]) -> bool:
        """Whether a row of `agent_memory` is the one that was checked."""
        return self.content == row[1] and self.encoding == row[0] and row[2] is None


@dataclass(slots=True, eq=False, repr=False)
class Serialised:
    """What an element becomes: a chunk of its own (and the row that holds it), or the bytes of a small one."""

    memory_id: bytes | None
    size: int
    data: bytes = b""
    row: Any = None


class _Recent(Generic[K, V]):
    """A bounded mapping in two generations: what is found in the old one moves to the young one.

    Takes no lock: each step is one operation on a dict, and what two threads do at once is at worst done twice.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._young: dict[K, tuple[V, int]] = {}
        self._old: dict[K, tuple[V, int]] = {}
        self._weight = 0

    def get(self, key: K) -> V | None:
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key)
            if found is None:
                return None
            self.add(key, *found)
        return found[0]

    def add(self, key: K, value: V, weight: int) -> None:
        self._young[key] = (value, weight)
        self._weight += weight
        if self._weight > self._limit // 2:
            self._old, self._young, self._weight = self._young, {}, 0


class Images:
    """What one saver remembers of elements, for one way of naming chunks."""

    def __init__(self, limit: int | None = None) -> None:
        limit = IMAGE_BYTES if limit is None else limit
        self._serialised: _Recent[Key, Serialised] = _Recent(limit // 2)
        self._unpacked: _Recent[tuple[str, bytes], Unpacked] = _Recent(limit // 2)
        self._seen: _Recent[tuple[str, bytes], bool] = _Recent(limit // 8)

    def serialised(self, key: Key) -> Serialised | None:
        """What an element with this image has become before."""
        return self._serialised.get(key)

    def add_serialised(self, key: Key, found: Serialised) -> None:
        """Notes what an element with this image becomes."""
        row = 0 if found.row is None else len(found.row.content)
        self._serialised.add(key, found, _weight(key) + len(found.data) + row)

    def unpacked(self, session_id: str, memory_id: bytes) -> Unpacked | None:
        """A chunk that was checked before."""
        return self._unpacked.get((session_id, memory_id))

    def seen(self, session_id: str, memory_id: bytes) -> bool:
        """Whether a chunk is met for the second time: images are not worth their making for what is read once."""
        place = (session_id, memory_id)
        if self._seen.get(place):
            return True
        self._seen.add(place, True, OVERHEAD_BYTES)
        return False

    def unpack(
        self, serde: SerializerProtocol, session_id: str, memory_id: bytes, row: tuple[str, bytes, Any], plain: bytes
    ) -> Unpacked:
        """Makes the images of a chunk that has been checked, and notes them."""
        found = Unpacked(row[0], row[1], len(plain), _elements(serde, plain))
        weight = len(row[1]) + OVERHEAD_BYTES
        for image in found.elements or ():
            weight += _weight(image.key)
            if len(found.elements or ()) == 1 and image.key[0] is not None:
                self.add_serialised(image.key, Serialised(memory_id, len(plain)))
        self._unpacked.add((session_id, memory_id), found, weight)
        return found

    def pass_over(self, session_id: str, memory_id: bytes) -> None:
        """Notes that the images of a chunk are of no use."""
        if (found := self._unpacked.get((session_id, memory_id))) is not None:
            found.elements = None


def _weight(key: Key) -> int:
    return len(key[2] or "") + len(key[3]) + OVERHEAD_BYTES


def _elements(serde: SerializerProtocol, plain: bytes) -> Sequence[Image] | None:
    """The images of the elements in a chunk, if they are known to become these very bytes."""
    values = _first(serde, plain, 1)
    if values is None or not _are(serde, values, plain):
        values = _values(serde, plain)
        if not values or not _are(serde, values, plain):
            return None
    images = [_of_restored(value) for value in values]
    return None if None in images else images  # type: ignore[return-value]


def _are(serde: SerializerProtocol, values: list[Any], plain: bytes) -> bool:
    """Whether the values become these bytes; what follows the last value is not noticed by who reads them."""
    return serde.dumps_typed(values)[1] == header(len(values)) + plain


def _first(serde: SerializerProtocol, plain: bytes, count: int) -> list[Any] | None:
    try:
        return list(serde.loads_typed(("msgpack", header(count) + plain)))
    except Exception:  # there are not so many
        return None


def _values(serde: SerializerProtocol, plain: bytes) -> list[Any]:
    """The values that stand end to end in a chunk."""
    low, high = 0, 2
    while high <= len(plain) and _first(serde, plain, high) is not None:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _first(serde, plain, middle) is not None else (low, middle)
    return _first(serde, plain, low) or []


def header(size: int, *, is_list: bool = True) -> bytes:
    """What msgpack writes before the elements of a list or dict."""
    if size < 16:
        return bytes(((0x90 if is_list else 0x80) | size,))
    if size < 65_536:
        return (b"\xdc" if is_list else b"\xde") + size.to_bytes(2, "big")
    return (b"\xdd" if is_list else b"\xdf") + size.to_bytes(4, "big")


_LISTS = frozenset(bytes((first,)) for first in (*range(0x90, 0xA0), 0xDC, 0xDD))


def is_list(data: bytes) -> bool:
    """Whether these bytes begin a list."""
    return data[:1] in _LISTS
