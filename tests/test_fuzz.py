"""Decoders are given anything at all, with the right digests: what comes out is a value or the ledger's own error."""

import os
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_ledger.errors import ValueNotRestorable
from langgraph_ledger.memory import Chunker
from langgraph_ledger.places import Place, Ref, WriteRow, pack_body, unpack_body, unpack_write
from langgraph_ledger.shelf import Shelf
from langgraph_ledger.vault import INDEX, PART
from tests.decoders import DECODERS, attempt
from tests.forging import VAULT, Rows, chunk, packed

LONG = "LANGGRAPH_LEDGER_TEST_FUZZ"
"""The variable that says how many examples to try, each time others; without it a few, the same each time."""
fuzz = settings(
    max_examples=int(os.environ.get(LONG, "60")), deadline=None, database=None, derandomize=LONG not in os.environ
)

WORDS = st.sampled_from(["msgpack", "part", "", "null", "json", "pickle", "é"])
SCALARS = st.none() | st.booleans() | st.integers(-3, 2**40) | st.binary(max_size=40) | WORDS
ANYTHING = st.recursive(
    SCALARS, lambda v: st.lists(v, max_size=5) | st.dictionaries(st.text(max_size=3), v, max_size=3), max_leaves=12
)
IDS = [VAULT.digest(kind, bytes((n,)), b"") for kind in (PART, INDEX) for n in range(4)]
SHAPES = st.lists(st.binary(max_size=4) | st.integers(-2, 5), max_size=5)
KINDS = st.sampled_from([PART, INDEX, "part+lz4", "part+zstd", "index+lz4", "b", ""])


def body_like(checkpoint: Any, metadata: Any, places: Any, deltas: Any) -> Any:
    return [1, checkpoint, metadata, places, deltas]


ROPES = st.tuples(SHAPES, st.lists(st.sampled_from(IDS), max_size=4).map(b"".join))
PLACES = st.tuples(WORDS, st.booleans(), st.binary(max_size=9) | ROPES).map(list)
PAIRS = st.tuples(st.sampled_from(["msgpack", "null", "json"]), st.binary(max_size=9)).map(list)
CHANNELS = st.dictionaries(st.text(max_size=3), PLACES | ANYTHING, max_size=3)
BODY = st.builds(body_like, PAIRS | ANYTHING, PAIRS | ANYTHING, CHANNELS | ANYTHING, ANYTHING)


@fuzz
@given(st.binary(max_size=60) | ANYTHING | BODY, st.sampled_from([b"b", b"b+lz4", b"b+zstd", b"\xff"]))
def test_any_body(value: Any, encoding: bytes) -> None:
    data = value if isinstance(value, bytes) else packed(value)
    for stored in (data, VAULT.seal(data, "label"), VAULT.seal(encoding + b"\0" + data, "label")):
        try:
            body = unpack_body(VAULT, stored, "label", lambda: "here")
        except ValueNotRestorable:
            continue
        assert pack_body(VAULT, body, "label")


@fuzz
@given(ANYTHING | PLACES | st.binary(max_size=40))
def test_any_write(value: Any) -> None:
    data = value if isinstance(value, bytes) else packed(value)
    row = WriteRow("task", 0, "", "a", VAULT.seal(data, "write//c/task/0"), None)
    try:
        place = unpack_write(VAULT, row, ("", "c"), lambda: "here")
    except ValueNotRestorable:
        return
    assert packed(place.packed())


@pytest.mark.parametrize("name", DECODERS)
@fuzz
@given(data=st.binary(max_size=200) | st.builds(bytes.__add__, st.binary(max_size=1), ANYTHING.map(packed)))
def test_any_bytes(name: str, data: bytes) -> None:
    """`python -m tests.fuzz_decoders` looks for worse ones."""
    attempt(name, data)


@st.composite
def shelves(draw: st.DrawFn) -> tuple[Rows, Sequence[Any]]:
    """Rows that refer to those before them, all with the right digests, and what to read of them."""
    rows: Rows = {}
    refs: list[Any] = [Ref(memory_id) for memory_id in IDS[:2]]
    for _ in range(draw(st.integers(0, 8))):
        chosen = draw(st.lists(st.sampled_from(refs), max_size=3))
        children = b"".join(ref.memory_id for ref in chosen)
        fitting = packed([-1 if ref.is_index else 1 for ref in chosen])
        content = draw(st.binary(max_size=30) | SHAPES.map(packed) | ANYTHING.map(packed) | st.just(fitting))
        encoding = draw(KINDS)
        kind = encoding.partition("+")[0]
        refs.append(chunk(rows, content, children if draw(st.booleans()) else b"", kind, encoding))
    pieces = st.sampled_from(refs) | st.sampled_from([b"\x91", b"\x92", b"", b"\xc0"])
    return rows, draw(st.lists(pieces, min_size=1, max_size=4))


@fuzz
@given(shelves(), st.sampled_from(["msgpack", "bytes", "json", "null", "pickle"]), st.booleans())
def test_any_shelf(found: tuple[Rows, Sequence[Any]], encoding: str, delta: bool) -> None:
    rows, pieces = found
    shelf = Shelf(VAULT, "t", rows)
    for _ in range(3):  # images are made of what is met again
        try:
            shelf.value(Place(encoding, None, pieces, delta), lambda: "here")
        except ValueNotRestorable:
            continue


@fuzz
@given(
    st.randoms(use_true_random=False),
    st.sampled_from([[1, "x" * 2000, {"a": [2] * 900}], {"k": "v" * 400}, "text " * 300]),
)
def test_a_shelf_with_changed_bytes(chance: random.Random, value: Any) -> None:
    """A byte of a stored row is changed, the digest is made right again: what comes out is a value or our error."""
    chunker = Chunker(VAULT, "t", frozenset())
    place = chunker.place(value, lambda: "here")
    rows: Rows = {}
    names: dict[bytes, Any] = {}
    for row in chunker.rows.values():
        content = bytearray(row.content)
        content[chance.randrange(len(content))] = chance.randrange(256)
        names[row.memory_id] = chunk(rows, bytes(content), row.children or b"", encoding=row.encoding)
    pieces = [names.get(p.memory_id, p) if isinstance(p, Ref) else p for p in place.pieces]
    try:
        Shelf(VAULT, "t", rows).value(Place(place.encoding, place.here, pieces), lambda: "here")
    except ValueNotRestorable:
        return
