"""From places back to values: rows that were fetched together, checked, joined and restored."""

from __future__ import annotations

import os
from typing import Any

import ormsgpack
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from langgraph_ledger.codecs import expand
from langgraph_ledger.errors import KeyMissing, ValueNotRestorable
from langgraph_ledger.images import Image, Unpacked, is_list, is_plain
from langgraph_ledger.places import Fetched, Pieces, Place, Where, memory_label, split_ids, unpack_shape, unreadable
from langgraph_ledger.restoring import load
from langgraph_ledger.vault import NO_KEY, Vault, looks_encrypted

FEWEST, SMALLEST = 1000, 16
"""Of so many pieces each may be empty; of more, each holds so many bytes on average. See memory.py for what is cut."""
DEEPEST = 100
"""Levels of indexes. Each is shorter than what it stands for, so the largest value has a few."""


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
            plain = self._open(memory_id, row)
        except Exception as error:
            raise unreadable(where, f"memory {memory_id.hex()}", error) from error
        self._plain[memory_id] = plain
        return plain

    def _open(self, memory_id: bytes, row: tuple[str, bytes, bytes | None]) -> bytes:
        encoding, content, children = row
        if not self.vault.is_open:
            content = self.vault.unseal(content, memory_label(self.session_id, memory_id))
        try:
            kind, plain = expand(encoding, content, self.vault.limit)
            if self.vault.digest(kind, plain, children or b"") != memory_id:
                raise ValueError("its digest does not match")
        except Exception as error:
            if self.vault.is_open and looks_encrypted(content):
                raise KeyMissing(NO_KEY) from error
            raise
        return plain

    def index(self, memory_id: bytes, where: Where) -> Pieces:
        """What an index refers to, checked."""
        shape = self.plain(memory_id, where)
        try:
            return unpack_shape(ormsgpack.unpackb(shape), self.rows[memory_id][2] or b"")
        except Exception as error:
            raise unreadable(where, f"memory {memory_id.hex()}", error) from error

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
        self.pieces = 0
        self.stubs: list[tuple[bytes, Image]] = []

    def data(self, place: Place) -> bytes:
        """The serialised bytes at a place, with stubs."""
        if place.here is not None:
            self._grow(len(place.here))
            return place.here
        first = place.pieces[0]
        if place.encoding != "msgpack" or not isinstance(first, bytes) or not is_list(first):
            self.images = False
        parts: list[bytes] = []
        self._join(place.pieces, parts)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _join(self, pieces: Pieces, parts: list[bytes], depth: int = 0) -> None:
        shelf = self.shelf
        if depth > DEEPEST:
            raise ValueNotRestorable(f"{self.where()}: its memory is damaged: too deep")
        for piece in pieces:
            if isinstance(piece, bytes):
                self._grow(len(piece))
                parts.append(piece)
                continue
            memory_id = piece.memory_id
            self.used.add(memory_id)
            if piece.is_index:
                self._grow(0)
                self._join(shelf.index(memory_id, self.where), parts, depth + 1)
            elif self.images and (found := shelf.images(memory_id, self.where)) and found.elements:
                self._grow(found.size)
                for image in found.elements:
                    parts.append(_STUB + len(self.stubs).to_bytes(4, "big"))
                    self.stubs.append((memory_id, image))
            else:
                plain = shelf.plain(memory_id, self.where)
                self._grow(len(plain))
                parts.append(plain)

    def _grow(self, size: int) -> None:
        """Counts a piece. Rows may refer to one another so that a few of them claim to be very much."""
        self.size += size
        self.pieces += 1
        if self.size > self.shelf.vault.limit:
            raise ValueNotRestorable(
                f"{self.where()}: the stored value takes more than value_limit={self.shelf.vault.limit:,} bytes"
            )
        if self.pieces > FEWEST + self.size // SMALLEST:
            raise ValueNotRestorable(f"{self.where()}: its memory is damaged: too many pieces that hold nothing")

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
