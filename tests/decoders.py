"""Each decoder as a function of any bytes, for those who look for bytes that it does not expect.

It gives a value, or the ledger's own error, which `attempt` lets pass.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import TypeVar

from langgraph_ledger.codecs import VALUE_LIMIT
from langgraph_ledger.data import DataSerializer, plain
from langgraph_ledger.errors import InvalidInput, ValueNotRestorable, ValueNotStorable
from langgraph_ledger.memory import dump
from langgraph_ledger.operations.sessions import as_entry, as_session
from langgraph_ledger.places import Place, WriteRow, pack_body, unpack_body, unpack_write
from langgraph_ledger.records import to_json
from langgraph_ledger.restoring import load
from langgraph_ledger.shelf import Shelf
from langgraph_ledger.vault import INDEX, PART
from langgraph_ledger.verbatim import VerbatimSerializer
from tests.forging import STRICT, VAULT, Rows, chunk, packed

T = TypeVar("T")
ENCODINGS = (b"b", b"b+lz4", b"b+zstd")
KINDS = ("part", "part+lz4", "part+zstd", "index", "index+lz4")
TYPES = ("msgpack", "json", "bytes", "null")
DAY = "2030-01-01T00:00:00+00:00"


class Choices:
    """Bytes that decide: each choice takes one."""

    def __init__(self, data: bytes) -> None:
        self._left = data

    def take(self, number: int) -> bytes:
        taken, self._left = self._left[:number], self._left[number:]
        return taken

    def up_to(self, most: int) -> int:
        return int.from_bytes(self.take(1), "big") % (most + 1)

    def one_of(self, several: Sequence[T]) -> T:
        return several[self.up_to(len(several) - 1)]


def here() -> str:
    return "here"


def body(data: bytes) -> None:
    """A checkpoint's body, with the right digest."""
    choices = Choices(data)
    sealed = VAULT.seal(choices.one_of(ENCODINGS) + b"\0" + choices.take(len(data)), "label")
    assert pack_body(VAULT, unpack_body(VAULT, sealed, "label", here), "label")


def unsealed(data: bytes) -> None:
    """A column that holds a body, or anything."""
    unpack_body(VAULT, data, "label", here)


def write(data: bytes) -> None:
    """The place of a pending write, with the right digest."""
    row = WriteRow("task", 0, "", "a", VAULT.seal(data, "write//c/task/0"), None)
    assert packed(unpack_write(VAULT, row, ("", "c"), here).packed())


def shelf(data: bytes) -> None:
    """Chunks that refer to those before them, all with the right digests; the last one is read."""
    choices, rows = Choices(data), Rows()
    refs = [chunk(rows, b"\x01")]
    for _ in range(1 + choices.up_to(5)):
        children = b"".join(choices.one_of(refs).memory_id for _ in range(choices.up_to(3)))
        encoding = choices.one_of(KINDS)
        kind = INDEX if encoding.startswith(INDEX) else PART
        refs.append(chunk(rows, choices.take(choices.up_to(60)), children, kind, encoding))
    found, place = Shelf(VAULT, "t", rows), Place(choices.one_of(TYPES), None, [refs[-1]], choices.up_to(1) == 1)
    for _ in range(3):  # images are made of what is met again
        found.value(place, here)


def value(data: bytes) -> None:
    """A serialised value, restored with an allow-list."""
    choices = Choices(data)
    load(STRICT, choices.one_of(TYPES), choices.take(len(data)), here)


def shown(data: bytes) -> None:
    """The same as the command line reads it: it makes JSON of it, whatever it was."""
    choices = Choices(data)
    assert to_json(plain(load(DataSerializer(), choices.one_of(TYPES), choices.take(len(data)), here)))


def moved(data: bytes) -> None:
    """The same as it is moved from one database to another, without being made an object."""
    serde = VerbatimSerializer()
    written = dump(serde, load(serde, "msgpack", data, here), here, VALUE_LIMIT)
    assert dump(serde, load(serde, *written, here), here, VALUE_LIMIT) == written


def columns(data: bytes) -> None:
    """The JSON of a session and of an entry of the log."""
    text = data.decode("utf-8", "surrogateescape")
    as_entry((1, "t", "", "checkpoint", "c", None, None, None, text, DAY, None, None, None))
    as_session(("t", "active", text, DAY, DAY, None, None, text))


DECODERS: dict[str, Callable[[bytes], None]] = {
    one.__name__: one for one in (body, unsealed, write, shelf, value, shown, moved, columns)
}


def attempt(name: str, data: bytes) -> None:
    """Lets a decoder read bytes."""
    with contextlib.suppress(ValueNotRestorable, ValueNotStorable, InvalidInput):
        DECODERS[name](data)
