"""Every kind of value, as channel value, pending write and metadata: what comes back, on both databases, is what
InMemorySaver gives back with the same serializer, type and all; what it refuses is refused with its place."""

import dataclasses
import math
import re
import threading
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from fractions import Fraction
from ipaddress import ip_address, ip_network
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Command, Interrupt, Overwrite, Send
from pydantic import BaseModel

from langgraph_ledger import errors
from langgraph_ledger.memory import ALONE_BYTES, GROUP_BYTES, INLINE_BYTES, NEST_BYTES, SLICE
from tests.direct import at, checkpoint, save, shared_backend
from tests.four_ways import Flavoured

backend = shared_backend


class Colour(Enum):
    RED = 1
    GREEN = "green"


class Level(IntEnum):
    HIGH = 3


class Word(StrEnum):
    YES = "yes"


class Right(Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Point:
    x: int
    y: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    items: tuple[Any, ...]


class Model(BaseModel):
    name: str
    when: datetime | None = None
    inner: "Model | None" = None


class Pair(NamedTuple):
    left: Any
    right: Any


class Unknown:
    pass


def nested(depth: int, inner: Any = "bottom") -> Any:
    for n in range(depth):
        inner = [inner] if n % 2 else {"in": inner}
    return inner


def circular() -> Any:
    found: list[Any] = []
    found.append(found)
    return found


HALF_PAST = timezone(timedelta(hours=2, minutes=30))
CALL = {"name": "search", "args": {"q": "ü"}, "id": "call 1", "type": "tool_call"}
VALUES: dict[str, list[Any]] = {
    "scalars": [None, True, False, ..., NotImplemented],
    "integers": [0, 1, -1, 255, -(2**31), 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1],
    "large integers": [2**64, -(2**63) - 1, 10**400],
    "floats": [0.0, -0.0, 1.0, 0.1, 1e22, 1.7976931348623157e308, 5e-324, math.inf, -math.inf, math.nan],
    "texts": ["", "a", "NUL \0 inside", "\0", "東京🦜🔗", "Zoe\u0308", "\ud800 alone", "null", "{}", "'\"\\%"],
    "long texts": ["x" * (n + d) for n in (INLINE_BYTES, ALONE_BYTES, NEST_BYTES) for d in (-5, -3, 0)],
    "a megabyte": ["é" * 500_000],
    "bytes": [b"", b"\0\xff", bytes(range(256)) * 40, bytearray(b""), bytearray(b"\0\xff" * 300), memoryview(b"view")],
    "lists": [[], [[]], [1, "a", None, 2.5], [None] * 300, list(range(2000)), [math.nan]],
    "cut lists": [
        [f"item {n}" for n in range(GROUP_BYTES)], ["x" * ALONE_BYTES, "y", "z" * NEST_BYTES], [0] * (SLICE + 1),
        [[n, "x" * NEST_BYTES] for n in range(40)], [[]] * 5000, [{"n": n, "t": (n,)} for n in range(SLICE)],
        [["y" * 700] * 50, {"k": ["z" * 900] * 40}], [bytes([n % 256]) * n for n in range(300)],
    ],
    "deep": [nested(50), nested(50, "x" * 3000), nested(2000), circular()],
    "tuples": [(), (1,), (1, [2, (3, {"a": (4,)})]), ((),), tuple(range(500))],
    "sets": [set(), {1, 2}, frozenset(), frozenset({"a", (1, 2)}), {None}, set(range(400))],
    "dicts": [{}, {"": {}}, {"a": {"b": {"c": []}}}, {1: 2}, {None: 1}, {(1, 2): 3}, {True: 1}, {1.5: 1}, {b"k": 1}],
    "large dicts": [{f"key {n}": n for n in range(1000)}, {f"{n}": {"n": [n]} for n in range(300)}, {"k" * 5000: "v"}],
    "collections": [deque([1]), deque([1], maxlen=3), Counter("aab"), OrderedDict(b=1, a=2), defaultdict(list, a=[1])],
    "enums": [Colour.RED, Colour.GREEN, Level.HIGH, Word.YES, Right.READ | Right.WRITE, [Colour.RED]],
    "objects": [Point(1), Point(1, Point(2, [Point(3)])), Frozen((1, "a")), Pair(1, [2]), namedtuple("Local", "a")(1)],
    "models": [Model(name="m"), Model(name="ü\0", when=datetime(2024, 2, 29, tzinfo=UTC), inner=Model(name="inner"))],
    "times": [
        datetime(2024, 2, 29, 23, 59, 59, 999999), datetime(2024, 2, 29, tzinfo=UTC), datetime(1, 1, 1), datetime.max,
        datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1), datetime(2024, 1, 1, tzinfo=HALF_PAST),
        date(2024, 2, 29), time(1, 2, 3), time(1, 2, 3, 4, tzinfo=UTC), timedelta(days=-1, microseconds=1), UTC,
        ZoneInfo("Asia/Tokyo"),
    ],
    "others": [
        UUID(int=1), Decimal("1.10"), Decimal("NaN"), Decimal("1E+400"), Fraction(1, 3), PurePosixPath("/a/b"), 1 + 2j,
        re.compile("a+", re.IGNORECASE), ip_address("::1"), ip_network("10.0.0.0/8"), range(3), slice(1, 2),
    ],
    "messages": [
        HumanMessage("hi", id="1"), AIMessage("", tool_calls=[CALL], id="2", response_metadata={"n": 1}),
        ToolMessage("result", tool_call_id="1", artifact={"raw": [1]}), SystemMessage([{"type": "text", "text": "s"}]),
        [HumanMessage(f"message {n}", id=f"{n}") for n in range(100)], RemoveMessage(id="1"), Document("page"),
    ],
    "langgraph": [
        Send("node", {"a": [1]}), [Send("node", Point(1)), Send("node", None)], Interrupt("why", id="1"),
        Command(goto="x", update={"a": 1}), Overwrite([1]), _DeltaSnapshot(["a", Point(1)]), _DeltaSnapshot(None),
    ],
    "errors": [ValueError("bad", 1), KeyError("k"), OSError(2, "gone")],
    "refused": [
        object(), Unknown(), [1, {"a": Unknown()}], lambda: 1, threading.Lock(), (n for n in range(3)), type, Unknown,
        {"deep": [Point(Unknown())]},
    ],
}  # fmt: skip

Got = tuple[str, Any]
"""What became of a value: ("restored", it) or ("refused", its error)."""


def same(a: Any, b: Any) -> bool:
    """Equal, and of the same types all the way down; NaN equals itself, and -0.0 is not 0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return a.hex() == b.hex()
    if isinstance(a, (list, tuple, deque)):
        return len(a) == len(b) and all(map(same, a, b)) and getattr(a, "maxlen", 0) == getattr(b, "maxlen", 0)
    if isinstance(a, dict):
        return list(map(repr, a)) == list(map(repr, b)) and all(map(same, a.values(), b.values()))
    if isinstance(a, BaseException) or (isinstance(a, Decimal) and a.is_nan()):
        return repr(a) == repr(b)
    if dataclasses.is_dataclass(a) and not isinstance(a, type):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    return bool(a == b) and getattr(a, "fold", 0) == getattr(b, "fold", 0)


@pytest.fixture
def compare(open_four: Callable[..., Flavoured]) -> Callable[..., None]:
    """Puts values with `write(saver, thread, value)`, reads them with `read(tuple)`, in a ledger and in memory."""
    options = {"serde": JsonPlusSerializer(allowed_msgpack_modules=True)}
    writer, reader, memory = open_four(**options), open_four(**options), InMemorySaver(**options)

    def attempt(saver: Any, reader: Any, write: Any, read: Any, value: Any) -> Got:
        thread = str(uuid4())
        try:
            write(saver, thread, value)
        except Exception as error:
            return "refused", error
        (listed,) = list(reader.list(at(thread)))
        found = read(reader.get_tuple(at(thread)))
        assert same(read(listed), found)
        return "restored", found

    def compare_all(write: Any, read: Any, *places: str) -> None:
        wrong, outcomes = [], set()
        for topic, values in VALUES.items():
            for number, value in enumerate(values):
                expected = attempt(memory, memory, write, read, value)
                found = attempt(writer, reader, write, read, value)
                outcomes.add((topic, expected[0]))
                if expected[0] == "refused":
                    fine = type(found[1]) is errors.ValueNotStorable and all(p in str(found[1]) for p in places)
                else:
                    fine = same(expected, found)
                if not fine:
                    wrong.append(f"{topic}[{number}] {value!r:.60}: {expected!r:.150} / {found!r:.150}")
        assert wrong == []
        never = {"refused", "large integers"}
        assert never <= {topic for topic, outcome in outcomes if outcome == "refused"}
        assert {topic for topic, outcome in outcomes if outcome == "restored"} == VALUES.keys() - never

    return compare_all


def test_channel_values(compare: Any) -> None:
    compare(
        lambda saver, thread, value: save(saver, at(thread), "1", {"before": 1, "channel 7": value}),
        lambda found: found.checkpoint["channel_values"]["channel 7"],
        "'channel 7'", "checkpoint 1", "thread '",
    )  # fmt: skip


def test_pending_writes(compare: Any) -> None:
    def write(saver: Any, thread: str, value: Any) -> None:
        save(saver, at(thread), "1")
        saver.put_writes(at(thread, "1"), [("before", 1), ("channel 7", value)], "task 8")

    compare(write, lambda found: found.pending_writes[1][2], "'channel 7'", "task 8", "thread '")


def test_metadata(compare: Any) -> None:
    """Below the top level, where LangGraph's savers drop the NUL of a text."""
    compare(
        lambda saver, thread, value: save(saver, at(thread), "1", metadata={"step": 1, "key": [value]}),
        lambda found: found.metadata["key"],
        "metadata", "checkpoint 1", "thread '",
    )  # fmt: skip


def test_metadata_keeps_a_nul(four: Flavoured) -> None:
    for text in ("a\0b", "\0", "x" * 1000 + "\0"):
        thread = str(uuid4())
        save(four, at(thread), "1", metadata={"step": 1, "key": text})
        assert four.get_tuple(at(thread)).metadata["key"] == text


def test_a_metadata_key_with_a_nul(four: Flavoured) -> None:
    thread, odd = str(uuid4()), {"a\0b": 1, "\u2400": 2}
    save(four, at(thread), "1", metadata=odd)
    assert four.get_tuple(at(thread)).metadata == odd


def test_a_value_changed_in_place_is_stored_anew(four: Flavoured) -> None:
    """A state is often edited in place: what counts is what it is when it is saved."""
    thread, value = str(uuid4()), {"items": ["one"], "large": ["x" * 500]}
    for n in range(4):
        made = checkpoint(f"{n}", {"a": value}, {"a": f"{n}"})
        four.put(at(thread, f"{n - 1}" if n else None), made, {"step": n}, {"a": f"{n}"})
        value["items"].append(f"more {n}")
        value["large"].append("y" * 500)
    lengths = [
        tuple(len(t.checkpoint["channel_values"]["a"][key]) for key in ("items", "large"))
        for t in four.list(at(thread))
    ]
    assert lengths == [(4, 4), (3, 3), (2, 2), (1, 1)]


def test_a_value_read_is_the_readers_own(four: Flavoured) -> None:
    thread = str(uuid4())
    save(four, at(thread), "1", {"a": [1, ["x" * 500]]})
    four.get_tuple(at(thread)).checkpoint["channel_values"]["a"][1].append("changed")
    assert four.get_tuple(at(thread)).checkpoint["channel_values"]["a"] == [1, ["x" * 500]]
