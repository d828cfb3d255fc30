"""Images: what is recognised is the same to the last type, what is made anew is nobody's, and damage still shows."""

from array import array
from collections.abc import Iterator
from enum import Enum
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from langgraph_ledger.images import IMAGE_BYTES, Image, Images, image_of
from langgraph_ledger.memory import ALONE_BYTES, Chunker
from langgraph_ledger.places import Place
from langgraph_ledger.shelf import Shelf
from langgraph_ledger.vault import PlainVault

SERDE = JsonPlusSerializer()
LONG = "a sentence that is long enough to stand alone. " * 40

LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.floats(allow_nan=False), st.text(max_size=9))
DATA = st.recursive(LEAVES, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=4), v, max_size=3))
TEXT = st.one_of(st.text(max_size=12), st.just(LONG))
CONTENT = TEXT | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXT}), max_size=2)
EXTRAS = st.dictionaries(st.sampled_from(["note", "score"]), DATA, max_size=2)
CALLS = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.just("find"),
            "args": st.dictionaries(st.text(max_size=4), DATA, max_size=2),
            "id": st.text(max_size=4),
            "type": st.just("tool_call"),
        }
    ),
    max_size=2,
)
MESSAGES: st.SearchStrategy[AnyMessage] = st.one_of(
    st.builds(lambda c, k, e: HumanMessage(c, additional_kwargs=k, **e), CONTENT, EXTRAS, EXTRAS),
    st.builds(lambda c, t, i: AIMessage(c, tool_calls=t, id=i), CONTENT, CALLS, st.none() | st.text(max_size=4)),
    st.builds(lambda c, a: ToolMessage(c, tool_call_id="c", artifact=a), CONTENT, DATA),
    st.builds(SystemMessage, CONTENT),
)


def same(one: Any, other: Any) -> bool:
    """Equal, type for type, all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, (HumanMessage, AIMessage, ToolMessage, SystemMessage)):
        sets = one.__pydantic_fields_set__ == other.__pydantic_fields_set__
        extra = same(one.__pydantic_extra__, other.__pydantic_extra__)
        return sets and extra and same(one.__dict__, other.__dict__)
    return repr(one) == repr(other)


def restored(value: Any) -> Any:
    return SERDE.loads_typed(SERDE.dumps_typed(value))


class Memory:
    """A chunker's rows and the shelf they are read from, of one vault."""

    def __init__(self, limit: int = IMAGE_BYTES) -> None:
        self.vault = PlainVault(SERDE, Images(limit))
        self.rows: dict[bytes, tuple[str, bytes, bytes | None]] = {}

    def put(self, value: Any) -> Place:
        chunker = Chunker(self.vault, "t", set(self.rows))
        place = chunker.place(value, lambda: "here")
        self.rows |= {k: (r.encoding, r.content, r.children) for k, r in chunker.rows.items()}
        return place

    def get(self, place: Place) -> Any:
        return Shelf(self.vault, "t", self.rows).value(place, lambda: "here")


@settings(deadline=None)
@given(MESSAGES)
def test_a_message_made_from_its_image_is_the_message_and_nobody_elses(message: AnyMessage) -> None:
    found = restored(message)
    key = image_of(found)
    assert key is not None
    first, second = (Image(key, frozenset(found.__pydantic_fields_set__)).made() for _ in range(2))
    assert same(first, found)
    assert same(second, found)
    first.additional_kwargs["changed"] = True
    first.content = "changed"
    assert same(second, found)


@settings(deadline=None)
@given(MESSAGES, MESSAGES)
def test_equal_images_mean_equal_bytes(one: AnyMessage, other: AnyMessage) -> None:
    assert image_of(one) != image_of(other) or SERDE.dumps_typed(one) == SERDE.dumps_typed(other)


@pytest.mark.parametrize(("before", "after"), [(1, True), (1, 1.0), (0.0, -0.0), ([1], (1,)), ("1", 1), (None, False)])
def test_a_change_of_type_alone_changes_the_image(before: Any, after: Any) -> None:
    message = HumanMessage("hello", additional_kwargs={"n": before})
    image = image_of(message)
    message.additional_kwargs["n"] = after
    assert image is not None
    assert image_of(message) != image


def test_only_messages_have_images_and_only_if_they_hold_plain_data() -> None:
    class Mine(HumanMessage):
        pass

    others: list[Any] = [Mine("x"), {"a": 1}, "text", None, 3]
    held = [object(), np.zeros(300), np.float64(1), array("i", [1]), (1, 2), {1}, Kind.ONE, 2**70, uuid4(), Text("x")]
    others += [HumanMessage("x", additional_kwargs={"o": value}) for value in held]
    others += [HumanMessage("x", additional_kwargs={"deep": [{"o": value}]}) for value in held]
    assert [image_of(other) for other in others] == [None] * len(others)


class Kind(Enum):
    ONE = 1


class Text(str):
    pass


def test_what_has_the_same_bytes_and_is_not_the_same_is_not_taken_for_it() -> None:
    """Arrays of another type or shape, and plain bytes, are as long and hold the same."""
    memory = Memory()
    raw = np.arange(400, dtype=np.float32)
    held = [raw, raw.reshape(20, 20), raw.view(np.int64), raw.tobytes()]
    value = [ToolMessage(LONG, tool_call_id="c", artifact=artifact, id="1") for artifact in held] + held
    place = memory.put(value)
    for _ in range(4):
        found = memory.get(place)
        for one, artifact in zip(found, [*held, *held], strict=True):
            there = getattr(one, "artifact", one)
            assert type(there) is type(artifact)
            assert getattr(there, "dtype", None) == getattr(artifact, "dtype", None)
            assert getattr(there, "shape", None) == getattr(artifact, "shape", None)
            assert bytes(there) == bytes(artifact)


def test_a_message_that_changes_while_it_is_serialised_is_not_remembered_as_what_it_was() -> None:
    memory = Memory()
    message = HumanMessage(LONG, additional_kwargs={"n": 1})
    twin = message.model_copy(deep=True)
    chunker = Chunker(memory.vault, "t", set())
    dumped = chunker._dumped

    def late(value: Any) -> bytes:
        message.additional_kwargs["n"] = 2
        return dumped(value)

    chunker._dumped = late  # type: ignore[method-assign]
    chunker.place([message], lambda: "here")
    assert restored([twin]) == memory.get(memory.put([twin]))


@settings(deadline=None, max_examples=60)
@given(st.lists(MESSAGES | DATA, max_size=30))
def test_reading_again_and_again_gives_what_the_serde_gives(values: list[Any]) -> None:
    memory = Memory()
    place = memory.put(values)
    for _ in range(4):
        assert same(memory.get(place), restored(values))
    grown = [*values, HumanMessage("one more"), *values[:2]]
    place = memory.put(grown)
    for _ in range(3):
        assert same(memory.get(place), restored(grown))


def containers() -> Iterator[Any]:
    messages = [HumanMessage(LONG, id="1"), AIMessage("short", id="2"), HumanMessage(LONG, id="1")]
    yield messages
    yield {str(n): message for n, message in enumerate(messages)}
    yield [messages, [LONG, LONG + "b"], {"deep": messages}]
    yield [[LONG, 1, LONG], {"k": LONG}, LONG]
    yield [{"n": n, "text": "some text"} for n in range(2000)]
    yield list(range(5000))
    yield [b"\xc4\x14" + b"x" * 18, b"y" * 20] * 40


@pytest.mark.parametrize("value", [*containers()], ids=lambda value: type(value).__name__)
def test_containers_of_every_kind_are_restored_each_time(value: Any) -> None:
    memory = Memory()
    place = memory.put(value)
    for _ in range(4):
        assert same(memory.get(place), restored(value))


def test_what_was_handed_out_is_not_handed_out_again() -> None:
    memory = Memory()
    place = memory.put([HumanMessage(LONG, additional_kwargs={"tags": ["a"]})] * 2)
    for _ in range(3):
        first, second = memory.get(place)
        assert first.additional_kwargs == second.additional_kwargs == {"tags": ["a"]}
        first.additional_kwargs["tags"].append("b")
        assert second.additional_kwargs == {"tags": ["a"]}


def test_a_message_that_is_changed_in_place_is_serialised_again() -> None:
    memory = Memory()
    message = HumanMessage(LONG, additional_kwargs={"tags": ["a"]})
    before = memory.put([message])
    message.additional_kwargs["tags"].append("b")
    after = memory.put([message])
    assert memory.get(before)[0].additional_kwargs == {"tags": ["a"]}
    assert memory.get(after)[0].additional_kwargs == {"tags": ["a", "b"]}


def test_a_message_that_is_known_but_not_stored_in_this_session_is_stored() -> None:
    memory = Memory()
    memory.put([HumanMessage(LONG)])
    memory.rows.clear()
    assert memory.get(memory.put([HumanMessage(LONG)])) == [HumanMessage(LONG)]


def test_what_is_kept_is_bounded() -> None:
    memory = Memory(limit=200_000)
    kept = memory.vault.images
    for n in range(300):
        place = memory.put([HumanMessage(f"{n} {LONG}")])
        for _ in range(3):
            memory.get(place)
    weights = [w for part in (kept._serialised, kept._unpacked, kept._seen) for w in (part._weight,)]
    assert sum(weights) <= 200_000
    assert 0 < len(kept._unpacked._young) + len(kept._unpacked._old) < 100
    assert len(LONG) > ALONE_BYTES


def test_an_allow_list_that_allows_nothing_lets_these_messages_pass() -> None:
    strict = JsonPlusSerializer(allowed_msgpack_modules=None)
    for message in (HumanMessage("a"), AIMessage("a"), ToolMessage("a", tool_call_id="c"), SystemMessage("a")):
        assert same(strict.loads_typed(strict.dumps_typed(message)), restored(message))
