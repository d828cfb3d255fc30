"""Every kind of value, as channel value, pending write and metadata, and through a graph: on both databases it comes
back equal, type for type, or as the table in docs/guarantees.md says, or it is refused with its place."""

import dataclasses
import math
import re
import threading
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, IntFlag, StrEnum
from fractions import Fraction
from ipaddress import ip_address, ip_network
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypedDict
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Interrupt, Overwrite, Send, interrupt
from pydantic import BaseModel, PrivateAttr, SecretStr
from pydantic.v1 import BaseModel as OldModel

from langgraph_ledger import errors
from langgraph_ledger.memory import ALONE_BYTES, GROUP_BYTES, INLINE_BYTES, NEST_BYTES, SLICE
from tests.direct import at, checkpoint, save, shared_backend
from tests.four_ways import Flavoured
from tests.installed import older_than

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


class Bits(IntFlag):
    A = 1
    B = 2


class Text(str):
    pass


class Items(list[Any]):
    pass


class Moment(datetime):
    pass


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


class Noted(Model):
    _note: str = PrivateAttr("none")


class Holder(BaseModel):
    inner: Model


class Old(OldModel):
    name: str
    inner: "Old | None" = None


Old.update_forward_refs()


class Pair(NamedTuple):
    left: Any
    right: Any


class Unknown:
    pass


def nested(depth: int, inner: Any = "bottom") -> Any:
    for n in range(depth):
        inner = [inner] if n % 2 else {"in": inner}
    return inner


def linked(depth: int) -> Any:
    found = None
    for n in range(depth):
        found = Point(n, found)
    return found


def circular() -> Any:
    found: list[Any] = []
    found.append(found)
    return found


HALF_PAST = timezone(timedelta(hours=2, minutes=30))
CALL = {"name": "search", "args": {"q": "ü"}, "id": "call 1", "type": "tool_call"}
VALUES: dict[str, list[Any]] = {
    "scalars": [None, True, False],
    "integers": [0, 1, -1, 255, -(2**31), 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1],
    "large integers": [2**64, -(2**63) - 1, 10**400],
    "floats": [0.0, -0.0, 1.0, 0.1, 1e22, 1.7976931348623157e308, 5e-324, math.inf, -math.inf, math.nan],
    "texts": ["", "a", "NUL \0 inside", "\0", "東京🦜🔗", "Zoe\u0308", "null", "{}", "'\"\\%"],
    "long texts": ["x" * (n + d) for n in (INLINE_BYTES, ALONE_BYTES, NEST_BYTES) for d in (-5, -3, 0)],
    "a megabyte": ["é" * 500_000],
    "bytes": [b"", b"\0\xff", bytes(range(256)) * 40, bytearray(b""), bytearray(b"\0\xff" * 300)],
    "lists": [[], [[]], [1, "a", None, 2.5], [None] * 300, list(range(2000)), [math.nan]],
    "cut lists": [
        [f"item {n}" for n in range(GROUP_BYTES)], ["x" * ALONE_BYTES, "y", "z" * NEST_BYTES], [0] * (SLICE + 1),
        [[n, "x" * NEST_BYTES] for n in range(40)], [[]] * 5000, [{"n": n, "t": [n]} for n in range(SLICE)],
        [["y" * 700] * 50, {"k": ["z" * 900] * 40}], [bytes([n % 256]) * n for n in range(300)],
    ],
    "deep": [nested(50), nested(50, "x" * 3000), nested(240), [nested(200)] * 3, linked(60)],
    "too deep": [nested(600), nested(2000), circular(), linked(2000)],
    "sets": [set(), {1, 2}, frozenset(), frozenset({"a", 1}), {None}, set(range(400)), {frozenset({1})}],
    "dicts": [{}, {"": {}}, {"a": {"b": {"c": []}}}, {1: 2}, {None: 1}, {(1, 2): 3}, {True: 1}, {1.5: 1}, {b"k": 1}],
    "large dicts": [{f"key {n}": n for n in range(1000)}, {f"{n}": {"n": [n]} for n in range(300)}, {"k" * 5000: "v"}],
    "deques": [deque([1]), deque(), [deque([deque([1])])]],
    "enums": [Colour.RED, Colour.GREEN, Level.HIGH, Word.YES, Right.READ | Right.WRITE, Bits.A | Bits.B, [Colour.RED]],
    "objects": [Point(1), Point(1, Point(2, [Point(3)])), Frozen([1, "a"]), Pair(1, [2])],
    "models": [
        Model(name="m"), Model(name="ü\0", when=datetime(2024, 2, 29, tzinfo=UTC), inner=Model(name="inner")),
        Old(name="old", inner=Old(name="older")), Holder(inner=Model(name="x")), [SecretStr("whisper")],
    ],
    "times": [
        datetime(2024, 2, 29, 23, 59, 59, 999999), datetime(2024, 2, 29, tzinfo=UTC), datetime(1, 1, 1), datetime.max,
        datetime(2024, 1, 1, tzinfo=HALF_PAST), time(1, tzinfo=ZoneInfo("Asia/Tokyo"), fold=1),
        date(2024, 2, 29), time(1, 2, 3), time(1, 2, 3, 4, tzinfo=UTC), timedelta(days=-1, microseconds=1), UTC,
        ZoneInfo("Asia/Tokyo"),
    ],
    "others": [
        UUID(int=1), Decimal("1.10"), Decimal("NaN"), Decimal("1E+400"), Path("/a/b"), Path("c"),
        re.compile("a+", re.IGNORECASE), re.compile(b"\\d"), ip_address("::1"), ip_network("10.0.0.0/8"),
    ],
    "other refused": [
        ..., NotImplemented,
        Fraction(1, 3), PurePosixPath("/a/b"), 1 + 2j, range(3), slice(1, 2), {"\ud800": 1}, {frozenset({1}): 1},
        np.float64(1.5), np.int64(3), np.True_, np.datetime64("2024-02-29"), np.array(["2024-02-29"], "datetime64[D]"),
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
    "refused": [
        object(), Unknown(), [1, {"a": Unknown()}], lambda: 1, threading.Lock(), (n for n in range(3)), type, Unknown,
        {"deep": [Point(Unknown())]},
    ],
}  # fmt: skip

REFUSED = {"refused", "other refused", "large integers", "too deep"}


def array(*args: Any, **more: Any) -> Any:
    found = np.array(*args, **more)
    found.flags.writeable = False
    return found


BERLIN = datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)
CHANGES: dict[str, list[tuple[Any, Any]]] = {
    "a tuple": [
        ((), []), ((1,), [1]), ((1, [2, (3, {"a": (4,)})]), [1, [2, [3, {"a": [4]}]]]), ({"a": ((),)}, {"a": [[]]}),
        (tuple(range(500)), list(range(500))), (Frozen((1,)), Frozen([1])), (Pair((1,), 2), Pair([1], 2)),
        ([Send("node", (1,))], [Send("node", [1])]),
    ],
    "a set that holds tuples": [(frozenset({(1, 2)}), [[1, 2]]), ({(1,)}, [[1]])],
    "a deque with a `maxlen`": [(deque([1], maxlen=3), deque([1]))],
    "`Counter`, `OrderedDict`, `defaultdict`, other subclasses of `dict`": [
        (Counter("aab"), {"a": 2, "b": 1}), (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (defaultdict(list, a=[1]), {"a": [1]}),
    ],
    "other subclasses of `str`, `int`, `list`": [(Text("x"), "x"), (Items([1]), [1]), (np.str_("x"), "x")],
    "an enum as the key of a dict": [({Colour.RED: 1}, {1: 1}), ({Word.YES: 1}, {"yes": 1}), ({Level.HIGH: 1}, {3: 1})],
    "`memoryview`, and a `bytearray` inside of another value": [
        (memoryview(b"view"), b"view"), ([memoryview(b"view")], [b"view"]), ({"b": bytearray(b"x")}, {"b": b"x"}),
    ],
    "text with a lone surrogate": [("\ud800 alone", "? alone")],
    "a datetime in a `ZoneInfo`": [
        (BERLIN, BERLIN.replace(tzinfo=timezone(timedelta(hours=1)), fold=0)),
        (datetime(2024, 1, 1, tzinfo=ZoneInfo("UTC")), datetime(2024, 1, 1, tzinfo=UTC)),
    ],
    "an object of a subclass of `datetime`": [(Moment(2024, 2, 29), "2024-02-29T00:00:00")],
    "an exception": [
        (ValueError("bad", 1), "ValueError('bad', 1)"), (OSError(2, "gone"), "FileNotFoundError(2, 'gone')"),
    ],
    "an object whose class is not found under its module and name": [(namedtuple("Local", "a")(1), {"a": 1})],
    "a pydantic model's private attributes": [(Noted(name="x"), Noted(name="x"))],
    "a pydantic model in a field declared as its base class": [
        (Holder(inner=Noted(name="x")), Holder(inner=Model(name="x"))),
    ],
    "a numpy array": [
        (np.arange(3), array([0, 1, 2])), (np.arange(6).reshape(2, 3).T, array([[0, 3], [1, 4], [2, 5]], order="F")),
        (np.arange(10)[::2], array([0, 2, 4, 6, 8])), (np.array(5), array(5)),
        (np.zeros((0, 3)), array(np.zeros((0, 3)))),
        (np.array(["a", "é"]), array(["a", "é"])), ([np.arange(3, dtype=">i4")], [array([0, 1, 2], dtype=">i4")]),
        (Point(np.ones(500)), Point(array(np.ones(500)))),
    ],
    "a subclass of a numpy array": [
        (np.ma.array([1, 2], mask=[0, 1]), array([1, 2])),
    ],
}  # fmt: skip
"""What LangGraph's serializer changes: what docs/guarantees.md calls it, what is saved, what comes back."""

if older_than("langgraph-checkpoint", "4.3"):  # docs/versions.md says so
    for topic in ("a set that holds tuples", "an object whose class is not found under its module and name"):
        CHANGES[topic] = [(value, None) for value, _ in CHANGES[topic]]

CHANGES["a pydantic model's private attributes"][0][0]._note = "lost"

LOST = [np.array([1, "a"], dtype=object), np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]), np.array(None)]
"""What that serializer takes and gives back as None, or as bytes without their meaning."""
LOST += [["x" * 2000, {"in": [LOST[0]]}], {"a": 1, "b": LOST[1]}, [Point(LOST[2])]]
LOST += [[1, np.array([None] * ALONE_BYTES, dtype=object)]]  # an element that is a chunk of its own

Got = tuple[str, Any]
"""What became of a value: ("restored", it) or ("refused", its error)."""


def same(a: Any, b: Any) -> bool:
    """Equal, and of the same types all the way down; NaN equals itself, and -0.0 is not 0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        known = (a.dtype, a.shape, a.flags.writeable, a.flags.f_contiguous)
        return known == (b.dtype, b.shape, b.flags.writeable, b.flags.f_contiguous) and a.tobytes() == b.tobytes()
    if isinstance(a, BaseModel) and a.__pydantic_private__ != b.__pydantic_private__:
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
    if isinstance(a, datetime) and type(a.tzinfo) is not type(b.tzinfo):
        return False
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

    def compare_all(write: Any, read: Any, *places: str, inside: bool = False) -> None:
        """`inside`: the value is put inside of another one, as which LangGraph's savers tell what is to come back."""
        wrong = []
        for topic, value, wanted in EVERYTHING:
            found = attempt(writer, reader, write, read, value)
            if topic in REFUSED:
                fine = type(found[1]) is errors.ValueNotStorable and all(p in str(found[1]) for p in places)
            else:
                expected = attempt(memory, memory, write, read, value) if inside else ("restored", wanted)
                fine = same(expected, found)
            if not fine:
                wrong.append(f"{topic}: {value!r:.60}: {found!r:.150}")
        assert wrong == []

    return compare_all


EVERYTHING = [
    *((topic, value, value) for topic, values in VALUES.items() for value in values),
    *(("refused", value, None) for value in LOST),
    *((topic, value, wanted) for topic, changes in CHANGES.items() for value, wanted in changes),
]


def test_the_table_of_changes_is_what_comes_back() -> None:
    """Each row of the table in docs/guarantees.md has its values here, and none is kept after all."""
    page = (Path(__file__).parent.parent / "docs" / "guarantees.md").read_text("utf-8")
    table = page.split("| you save | you get |\n| --- | --- |\n")[1].split("\n\n")[0]
    rows = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", table, re.MULTILINE))
    assert list(rows) == list(CHANGES)
    assert [(topic, value) for topic, changes in CHANGES.items() for value, got in changes if same(value, got)] == []


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
        "metadata", "checkpoint 1", "thread '", inside=True,
    )  # fmt: skip


class Kept(TypedDict, total=False):
    value: Any
    asked: Any
    answer: Any
    sent: Any
    moved: Any


def test_through_a_graph(four: Flavoured, open_four: Callable[..., Flavoured]) -> None:
    """As a node's result, in an interrupt, in its answer, in a `Send`, in a `Command`: what another process reads."""
    told = [(value, wanted) for topic, value, wanted in EVERYTHING if topic not in REFUSED]
    kept = [(v, w) for v, w in told if not isinstance(v, _DeltaSnapshot | Overwrite | Command | RemoveMessage)]
    values, wanted = [value for value, _ in kept], [wanted for _, wanted in kept]

    def ask(state: Kept) -> Any:
        return {"answer": interrupt(values)}

    def move(state: Kept) -> Any:
        return Command(update={"moved": values}, goto=Send("sent", {"sent": values}))

    def sent(state: Kept) -> Any:
        return {"sent": state["sent"]}

    builder = StateGraph(Kept).add_node("sent", sent)
    builder.add_sequence([("give", lambda state: {"value": values}), ask, move]).add_edge(START, "give")
    config = at(str(uuid4()))
    four.invoke(builder.compile(checkpointer=four.saver), {"asked": values}, config)
    other = builder.compile(checkpointer=open_four().saver)
    paused = four.get_state(other, config)
    four.invoke(other, Command(resume=values), config)
    state = four.get_state(builder.compile(checkpointer=open_four().saver), config).values
    for name in ("asked", "value", "moved", "sent", "answer"):
        assert [v for v, w, s in zip(values, wanted, state[name], strict=True) if not alike(w, s)] == [], name
    assert [v for v, w, s in zip(values, wanted, paused.interrupts[0].value, strict=True) if not alike(w, s)] == []


def alike(wanted: Any, found: Any) -> bool:
    """As `same`, but for a bytearray that comes back as bytes, as it does inside of a list."""
    return same(bytes(wanted) if type(wanted) is bytearray else wanted, found)


FILTERS: list[tuple[str, Any]] = [
    *((key, "x") for key in ("a.b", "$.a", "$", 'a"b', "a'b", "a`b", "%", "a_b", "*", "[0]", "--", "/* */", ";", "")),
    *((key, "x") for key in ("a\0b", "a\u2400b", "东京", "k" * 300, "{schema}", ":page", "%(page)s", "\\", "$type")),
    *(("text", v) for v in ("x", "X", "", "%", "_", "'", '"', "\\", "a\0b", "a\u2400b", "null", "1", "true")),
    *(("text", v) for v in ("x" * 256, "x" * 257, "é", "e\u0301", "東京", "{}", "[1]", ":page", Word.YES, "yes", "?")),
    *(
        ("number", v)
        for v in (0, -0.0, 1, 1.0, True, False, 1.5, 2**53, 2**53 + 1, 2**63, -(2**63), math.inf, math.nan)
    ),
    *(("plain", v) for v in (None, [], [1], [1, "x"], {}, {"a": {"b": 1}}, {"a": None}, b"x", [None], ["a\0b"])),
    *(("object", v) for v in (Colour.RED, Level.HIGH, 3, Decimal("1.0"), UUID(int=1), Point(1), {1}, UTC, BERLIN)),
]


def test_filters_of_metadata(four: Flavoured) -> None:
    """`list(filter=...)` gives the checkpoints whose metadata, as it is read, is equal in Python."""
    thread = str(uuid4())
    for number, (key, value) in enumerate(FILTERS):
        save(four, at(thread, f"{number - 1:03}" if number else None), f"{number:03}", metadata={key: value})
    every = {t.checkpoint["id"]: t.metadata for t in four.list(at(thread))}
    for key, value in [*FILTERS, ("text", "\ud800"), ("missing", None), ("missing", "x"), (1, "x"), ("plain", (1,))]:
        found = [t.checkpoint["id"] for t in four.list(at(thread), filter={key: value})]
        assert found == [n for n, metadata in every.items() if metadata.get(key) == value], (key, value)
    assert four.list(at(thread), filter={"a.b": "x", "text": "x"}) == []
    with pytest.raises(errors.InvalidInput, match=r"'number'.*ndarray cannot be compared"):
        four.list(at(thread), filter={"number": np.arange(3)})


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
