"""Values and chunks: what is cut joins to the same bytes, equal parts are stored once, and appending costs the same."""

import random
import string
from typing import Any

import ormsgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from langgraph_ledger.memory import Chunker
from langgraph_ledger.places import Place, unpack_place
from langgraph_ledger.shelf import Reading, Shelf
from langgraph_ledger.vault import PlainVault

SERDE = JsonPlusSerializer()
VAULT = PlainVault(SERDE)


def where() -> str:
    return "here"


def cut(value: Any, known: frozenset[bytes] = frozenset()) -> tuple[Chunker, Place]:
    chunker = Chunker(VAULT, "t", known)
    return chunker, chunker.place(value, where)


def shelf(chunker: Chunker) -> Shelf:
    return Shelf(VAULT, "t", {r.memory_id: (r.encoding, r.content, r.children) for r in chunker.rows.values()})


def joined(chunker: Chunker, place: Place) -> bytes:
    """The bytes at a place, after the place itself went through storage."""
    return Reading(shelf(chunker), where, images=False).data(
        unpack_place(ormsgpack.unpackb(ormsgpack.packb(place.packed())))
    )


def text(seed: int, size: int) -> str:
    return "".join(random.Random(seed).choices(string.ascii_letters + " ", k=size))


def message(number: int, size: int = 3000) -> AIMessage:
    return AIMessage(text(number, size), id=f"m{number}")


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.builds(lambda n: "long " * n, st.integers(200, 900)),
    st.builds(message, st.integers(0, 50)),
    st.tuples(st.integers(0, 2**40), st.text(max_size=5)),
    st.frozensets(st.integers(0, 9)),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=30), st.dictionaries(st.text(max_size=8), inner, max_size=10)),
    max_leaves=60,
)


@settings(deadline=None, max_examples=200)
@given(VALUES)
def test_what_is_cut_joins_to_what_the_serde_makes_of_the_whole(value: Any) -> None:
    chunker, place = cut(value)
    assert (place.encoding, joined(chunker, place)) == SERDE.dumps_typed(value)
    assert chunker.size == len(SERDE.dumps_typed(value)[1])
    assert shelf(chunker).reachable(place.ids) == chunker.used == set(chunker.rows)


SHAPES: dict[str, Any] = {
    "empty list": [],
    "empty dict": {},
    "15 elements": list(range(15)),
    "16 elements": [text(i, 100) for i in range(16)],
    "65,535 elements": list(range(65_535)),
    "65,536 elements": list(range(65_536)),
    "100,000 small texts": [f"element {i}" for i in range(100_000)],
    "long scalars among short": [text(i, 5000 if i % 7 == 0 else 5) for i in range(600)],
    "dict of 70,000": {f"key {i}": i for i in range(70_000)},
    "input of a graph": {"messages": [message(1), message(2)]},
    "nested": [[[text(1, 5000)] * 3, {"a": {"b": [message(1)] * 4}}]] * 5,
    "one of 50 MB": ["x" * 50_000_000],
    "bytes": b"\0" * 10_000,
    "text": text(1, 100_000),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape: str) -> None:
    chunker, place = cut(SHAPES[shape])
    assert (place.encoding, joined(chunker, place)) == SERDE.dumps_typed(SHAPES[shape])


EDITS = {
    "append": lambda xs: [*xs, message(9001)],
    "trim the front": lambda xs: xs[30:],
    "trim the end": lambda xs: xs[:-30],
    "replace in the middle": lambda xs: [*xs[:150], message(9002), *xs[151:]],
    "insert in the middle": lambda xs: [*xs[:150], message(9003), *xs[150:]],
    "remove by id": lambda xs: [x for x in xs if x.id != "m77"],
    "move one": lambda xs: [*xs[1:], xs[0]],
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_stores_what_it_changed(edit: str) -> None:
    """Of 2,000 messages at most one is new; besides it only some of the lists of references around it are."""
    before, _ = cut([message(i, 1200) for i in range(2000)])
    value = EDITS[edit]([message(i, 1200) for i in range(2000)])
    after, place = cut(value, frozenset(before.used))
    stored = {**before.rows, **after.rows}
    after.rows = stored
    assert joined(after, place) == SERDE.dumps_typed(value)[1]
    fresh = [row for memory_id, row in stored.items() if memory_id not in before.rows]
    assert sum(row.children is None for row in fresh) <= 1
    assert sum(len(row.children or b"") for row in fresh) < 2000 * 16 / 4


def test_reordering_stores_no_message_again() -> None:
    messages = [message(i) for i in range(300)]
    before, _ = cut(messages)
    random.Random(1).shuffle(messages)
    after, _ = cut(messages, frozenset(before.used))
    assert all(row.children is not None for row in after.rows.values())


def test_an_element_is_the_same_chunk_wherever_it_stands() -> None:
    """What a graph is given, what a task wrote and what the channel holds share the message's chunk."""
    human = HumanMessage(text(1, 3000), id="h")
    given_, written, held = cut({"messages": [human]})[0], cut([human])[0], cut([message(1), human, message(2)])[0]
    assert len(given_.used & written.used & held.used) == 1


def test_mutation_in_place_is_seen() -> None:
    messages = [message(i) for i in range(50)]
    before, _ = cut(messages)
    messages[20].content = "changed " + text(5, 3000)
    after, place = cut(messages, frozenset(before.used))
    after.rows = {**before.rows, **after.rows}
    restored = shelf(after).value(place, where)
    assert restored == messages
    assert restored[20].content.startswith("changed")


def appended_bytes(size: int) -> float:
    """Bytes of rows, on average, that appending one message to so many stores; a row's key and header included."""
    messages: list[Any] = [message(i, 2000) for i in range(size)]
    chunker, _ = cut(messages)
    stored = 0
    for extra in range(20):
        messages = [*messages, message(100_000 + extra, 2000)]
        chunker, place = cut(messages, frozenset(chunker.used))
        rows = chunker.rows.values()
        stored += sum(80 + len(r.content) + len(r.children or b"") for r in rows) + len(ormsgpack.packb(place.packed()))
    return stored / 20


def test_appending_costs_about_the_same_however_long_the_list_is() -> None:
    hundred, ten_thousand = appended_bytes(100), appended_bytes(10_000)
    assert ten_thousand <= 1.5 * hundred
