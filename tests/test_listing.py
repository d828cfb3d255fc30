"""Listing: the order of saving, pages, `before`, and filters that answer as InMemorySaver does, on both databases."""

import math
from enum import Enum, StrEnum
from typing import Any
from uuid import uuid4

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from langgraph_ledger.reading import PAGE
from tests.direct import at, checkpoint, save, shared_backend
from tests.four_ways import Flavoured

backend = shared_backend


@pytest.fixture
def thread() -> str:
    return str(uuid4())


def ids(found: list[Any]) -> list[str]:
    return [t.checkpoint["id"] for t in found]


def chain(four: Any, thread: str, names: list[str], ns: str = "", **metadata: Any) -> None:
    """Checkpoints one after the other, each the child of the one before."""
    parent = None
    for step, name in enumerate(names):
        save(four, at(thread, parent, ns=ns), name, {"n": step}, {"step": step, **metadata})
        parent = name


# --- order and pages


NAMES = ["2", "10", "9", "Z", "a", "é", "01", "~", "00000000-0000-0000-0000-000000000000"]


def test_the_latest_is_the_last_saved(four: Flavoured, thread: str) -> None:
    """Whatever its id looks like: ids of other sources neither sort nor need to."""
    chain(four, thread, NAMES)
    assert ids(four.list(at(thread))) == NAMES[::-1]
    assert four.get_tuple(at(thread)).checkpoint["id"] == NAMES[-1]
    assert ids(four.list(at(thread), limit=3)) == NAMES[:-4:-1]
    for position, name in enumerate(NAMES):
        assert ids(four.list(at(thread), before=at(thread, name))) == NAMES[:position][::-1]
        assert ids(four.list(at(thread), before=at(thread, name), limit=1)) == NAMES[:position][::-1][:1]


def test_pages(four: Flavoured, thread: str) -> None:
    total = 2 * PAGE + 5
    names = [f"{n:05}" for n in range(total)]
    chain(four, thread, names)
    assert ids(four.list(at(thread))) == names[::-1]
    for limit in (0, 1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, total, total + 1, 10**30):
        assert ids(four.list(at(thread), limit=limit)) == names[::-1][:limit]
    assert ids(four.list(at(thread), before=at(thread, names[-2]), limit=2 * PAGE)) == names[-3::-1][: 2 * PAGE]
    even = [name for n, name in enumerate(names) if n % 2 == 0][::-1]
    for limit in (None, 1, PAGE, PAGE + 2):
        found = four.list(at(thread), filter={"half": True}, limit=limit)
        assert found == []
        steps = [name for name in even if int(name) == 4]
        assert ids(four.list(at(thread), filter={"step": 4}, limit=limit)) == steps
    assert ids(four.list(at(thread), filter={"step": 0}, limit=1)) == ["00000"]


def test_saving_while_listing(four: Flavoured, thread: str) -> None:
    chain(four, thread, [f"{n:05}" for n in range(PAGE + 10)])
    saver, seen = four.saver, []
    if four.runner is None:
        for found in saver.list(at(thread)):
            seen.append(found.checkpoint["id"])
            save(saver, found.config, f"copy of {seen[-1]}")
    else:

        async def copy_all() -> None:
            async for found in saver.alist(at(thread)):
                seen.append(found.checkpoint["id"])
                made = checkpoint(f"copy of {seen[-1]}")
                await saver.aput(found.config, made, {}, {})

        four.runner.run(copy_all())
    assert seen == [f"{n:05}" for n in range(PAGE + 10)][::-1]
    assert len(four.list(at(thread))) == 2 * len(seen)


# --- where


def test_threads_and_namespaces(four: Flavoured, thread: str) -> None:
    other = str(uuid4())
    chain(four, thread, ["1", "2"])
    chain(four, thread, ["s1", "s2"], ns="sub:1")
    chain(four, other, ["3"])
    save(four, at(thread, "2"), "4")
    everywhere = {"configurable": {"thread_id": thread}}
    assert ids(four.list(everywhere)) == ["4", "s2", "s1", "2", "1"]
    assert ids(four.list(everywhere, limit=2)) == ["4", "s2"]
    assert ids(four.list(at(thread))) == ["4", "2", "1"]
    assert ids(four.list(at(thread, ns="sub:1"))) == ["s2", "s1"]
    assert four.list(at(thread, ns="sub")) == four.list(at(str(uuid4()))) == []
    assert [t.config for t in four.list(at(thread, ns="sub:1"))] == [at(thread, c, ns="sub:1") for c in ("s2", "s1")]
    mine = [t for t in four.list(None) if t.config["configurable"]["thread_id"] in (thread, other)]
    assert ids(mine) == ["4", "3", "s2", "s1", "2", "1"]
    assert ids(four.list(None, limit=2)) == ["4", "3"]
    assert ids(four.list(None, limit=1, before=at(other, "3"))) != ["3"]


def test_a_config_with_a_checkpoint_id(four: Flavoured, thread: str) -> None:
    chain(four, thread, ["1", "2", "3"])
    save(four, at(thread, ns="sub"), "2")
    assert ids(four.list(at(thread, "2"))) == ["2"]
    assert four.list(at(thread, "2"))[0].checkpoint["channel_values"] == {"n": 1}
    assert len(four.list({"configurable": {"thread_id": thread, "checkpoint_id": "2"}})) == 2
    assert four.list(at(thread, "9")) == []
    assert four.list(at(thread, "2"), filter={"step": 7}) == []
    assert ids(four.list(at(thread, "2"), filter={"step": 1}, limit=1)) == ["2"]


def test_each_item_is_whole(four: Flavoured, thread: str) -> None:
    """Values in and out of the body, writes in order, and parents, as `get_tuple` gives them."""
    for n in range(3):
        save(
            four, at(thread, str(n - 1) if n else None), str(n), {"small": n, "large": f"{n}" * 5000, "same": "s" * 999}
        )
        four.put_writes(at(thread, str(n)), [("b", n), ("a", "w" * 5000)], "task 2", "path 1")
        four.put_writes(at(thread, str(n)), [("c", None)], "task 1", "path 1")
    found = four.list(at(thread))
    assert found == [four.get_tuple(at(thread, str(n))) for n in (2, 1, 0)]
    assert [w[:2] for w in found[0].pending_writes] == [("task 1", "c"), ("task 2", "b"), ("task 2", "a")]
    assert four.list(None, limit=3) == found


# --- before


def test_before_a_checkpoint_that_is_not_known(four: Flavoured, thread: str) -> None:
    """Then the ids are compared: LangGraph's own are ordered by time."""
    chain(four, thread, ["1", "3", "5"])
    assert ids(four.list(at(thread), before=at(thread, "4"))) == ["3", "1"]
    assert ids(four.list(at(thread), before=at(thread, "9"))) == ["5", "3", "1"]
    assert four.list(at(thread), before=at(thread, "0")) == []
    assert ids(four.list(at(thread), before=at(thread), limit=1)) == ["5"]


SUB = "sub:1"


def nested(four: Flavoured, thread: str, root_id: str, name: str, parent: str | None) -> None:
    """A subgraph's checkpoint, saved under a root checkpoint as LangGraph does it."""
    save(four, at(thread, parent, ns=SUB, checkpoint_map={"": root_id, SUB: parent}), name)


@pytest.mark.parametrize("root_first", [True, False], ids=["root first", "subgraph first"])
def test_before_a_root_checkpoint_in_a_subgraph(four: Flavoured, thread: str, root_first: bool) -> None:
    """Replay asks a subgraph for what it had before a root checkpoint, whose save the subgraph may overtake."""
    names: dict[str, list[str]] = {}
    parent = below = None
    for step in range(4):
        root_id = f"{step}-root"
        made = [f"{step}-sub-{n}" for n in range(2)]
        actions = [lambda r=root_id, p=parent: save(four, at(thread, p), r)]

        def save_below(root_id: str = root_id, made: list[str] = made) -> None:
            nonlocal below
            for name in made:
                nested(four, thread, root_id, name, below)
                below = name

        actions.insert(1 if root_first or not step else 0, save_below)
        for action in actions:
            action()
        names[root_id], parent = made, root_id
    expected: list[str] = []
    for root_id, made in names.items():
        found = four.list(at(thread, ns=SUB), before=at(thread, root_id))
        assert ids(found) == expected[::-1], root_id
        assert ids(four.list(at(thread, ns=SUB), before=at(thread, root_id), limit=1)) == expected[::-1][:1]
        assert ids(four.list(at(thread, ns=SUB), before=at(thread, root_id), filter={"step": 0})) == expected[::-1]
        expected += made


# --- filters


class Colour(Enum):
    RED = "red"


class Word(StrEnum):
    RED = "red"


LONG = "long " * 200
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2**53 + 1, 2**63, 0.0, -0.0, 1.0, 1.5, 1e22, 1e-300, math.inf, 10**18, 3.14159,
    "", "1", "1.0", "true", "null", "None", "text", "TEXT", " text", "it's", 'a "b"', "back\\slash", "50%_",
    "Zoë", "Zoe\u0308", "東京🦜", "\n\t", "[1]", '{"a":1}', LONG, LONG + "x", LONG[:256], LONG[:257], "\u2028",
    [], [1], [True], [1.0], ["a", None], [[1], {"a": 2}], {}, {"a": 1}, {"a": True}, {"a": 1.0}, {"a": 1, "b": 2},
    {"b": {"c": [1, 2, {"d": None}]}}, {"": ""}, {"k" * 300: 1}, list(range(100)),
    b"bytes", Colour.RED, "red", ("t", 1), ["t", 1], {1, 2},
]  # fmt: skip


def filled(four: Flavoured, thread: str, key: str = "key") -> tuple[Flavoured, InMemorySaver]:
    """The same checkpoints in a ledger and in memory, one for each value, and one without the key."""
    memory, parent = InMemorySaver(), None
    for number, value in enumerate([*VALUES, ...]):
        metadata = {"step": number} if value is ... else {"step": number, key: value}
        for saver in (four, memory):
            save(saver, at(thread, parent), f"{number:04}", metadata=metadata)
        parent = f"{number:04}"
    return four, memory


def test_filters_answer_as_memory_does(four: Flavoured, thread: str) -> None:
    """1, True and 1.0 are equal to Python, so they are here; "1" is not."""
    ledger, memory = filled(four, thread)
    for value in VALUES:
        wanted = {"key": value}
        assert ids(ledger.list(at(thread), filter=wanted)) == ids(list(memory.list(at(thread), filter=wanted))), value
    ones = [f"{n:04}" for n, v in enumerate(VALUES) if type(v) in (int, bool, float) and v == 1]
    assert ids(ledger.list(at(thread), filter={"key": True})) == ones[::-1]
    for wanted in (
        {},
        {"key": "text", "step": 21},
        {"key": "text", "step": 7},
        {"no such key": 1},
        {"no such key": None},
    ):
        for limit in (None, 2):
            expected = ids(list(memory.list(at(thread), filter=wanted, limit=limit)))
            assert ids(ledger.list(at(thread), filter=wanted, limit=limit)) == expected


KEYS = [
    "it's",
    'a "b"',
    "a.b",
    "$.a",
    "a[0]",
    "%s",
    ":x",
    "'; DROP TABLE sessions; --",
    "Zoë 東京",
    "",
    " ",
    "k" * 500,
    "\\",
    "\u2400",
]


def test_filter_keys(four: Flavoured, thread: str) -> None:
    memory = InMemorySaver()
    for number, key in enumerate(KEYS):
        for saver in (four, memory):
            metadata = {"step": number, key: f"value {number}"}
            save(saver, at(thread, f"{number - 1}" if number else None), f"{number}", metadata=metadata)
    for number, key in enumerate(KEYS):
        for wanted, expected in ((f"value {number}", [f"{number}"]), ("value", [])):
            assert ids(list(memory.list(at(thread), filter={key: wanted}))) == expected
            assert ids(four.list(at(thread), filter={key: wanted})) == expected, key


def test_filters_on_odd_text(four: Flavoured, thread: str) -> None:
    """A NUL, which LangGraph's savers drop, is kept and found. A lone surrogate is lost in its serializer: as there."""
    memory, odd = InMemorySaver(), ["a\0b", "a\u2400b", "ab", "\0", "\ud800", "\ufffd", "?", "\u2400"]
    for number, value in enumerate(odd):
        for saver in (four, memory):
            metadata = {"step": number, "key": value}
            save(saver, at(thread, f"{number - 1}" if number else None), f"{number}", metadata=metadata)
    for number, value in enumerate(odd):
        expected = [f"{number}"] if "\0" in value or value == "ab" else None
        found = ids(four.list(at(thread), filter={"key": value}))
        assert found == (expected or ids(list(memory.list(at(thread), filter={"key": value})))), value


def test_nan_equals_nothing(four: Flavoured, thread: str) -> None:
    save(four, at(thread), "1", metadata={"step": 0, "key": math.nan})
    assert four.list(at(thread), filter={"key": math.nan}) == []
    assert math.isnan(four.list(at(thread))[0].metadata["key"])


def test_a_text_of_a_type_of_its_own(four: Flavoured, thread: str) -> None:
    """Equal to a plain str, and found by one in memory."""
    memory = InMemorySaver()
    for saver in (four, memory):
        save(saver, at(thread), "1", metadata={"step": 0, "key": Word.RED})
    assert ids(list(memory.list(at(thread), filter={"key": "red"}))) == ["1"]
    assert ids(four.list(at(thread), filter={"key": "red"})) == ["1"]
