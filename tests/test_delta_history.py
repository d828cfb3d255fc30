"""What delta channels are rebuilt from: the same as InMemorySaver gives, and as the base class's own walk gives."""

import random
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from langgraph_ledger.reading import PAGE
from tests.direct import at, checkpoint, shared_backend
from tests.four_ways import Flavoured
from tests.installed import older_than

backend = shared_backend

pytestmark = pytest.mark.skipif(
    older_than("langgraph-checkpoint", "4.3"),
    reason="before, InMemorySaver left out writes and had others in another order than they were made in",
)

CHANNELS = ["a", "b", "ü % ' channel"]
BULKY = "x" * 3000
"""Too large to stand in the checkpoint itself."""


class Tree:
    """A thread built checkpoint by checkpoint, in a ledger and in memory alike."""

    def __init__(self, four: Flavoured, thread: str = "", ns: str = "") -> None:
        self.four, self.memory = four, InMemorySaver()
        self.thread, self.ns = thread or f"thread {uuid4()}", ns
        self.versions: dict[str, dict[str, str]] = {}
        self.count = 0

    def at(self, checkpoint_id: str | None = None) -> Any:
        return at(self.thread, checkpoint_id, ns=self.ns)

    def add(self, parent: str | None, values: Mapping[str, Any] | None = None, touched: tuple[str, ...] = ()) -> str:
        """A child of `parent` in which these channels have values, and those touched have new versions without one."""
        self.count += 1
        made, new = f"{self.count:06}", dict.fromkeys([*(values or {}), *touched], f"{self.count:08}")
        self.versions[made] = {**self.versions.get(parent or "", {}), **new}
        for saver, config in ((self.four, self.read(parent)), (self.memory, self.at(parent))):
            saver.put(config, checkpoint(made, values, self.versions[made]), {"step": self.count}, new)
        return made

    def read(self, place: str | None) -> Any:
        """The config of a checkpoint just read: with it, writing there is never a conflict."""
        return self.four.get_tuple(self.at(place)).config if place else self.at()

    def write(self, where: str, task: str, *writes: tuple[str, Any], path: str = "") -> None:
        self.four.put_writes(self.read(where), list(writes), task, path)
        self.memory.put_writes(self.at(where), list(writes), task, path)

    def history(self, target: str | None, *channels: str) -> Any:
        """The answer, which three ways of asking agree on."""
        asked = {"config": self.at(target), "channels": channels or CHANNELS}
        found = self.four.call("get_delta_channel_history", **asked)
        assert found == self.memory.get_delta_channel_history(**asked)
        saver = self.four.saver
        base = Flavoured(_Base(saver), self.four.runner).call("get_delta_channel_history", **asked)
        assert found == base
        assert list(found) == list(asked["channels"])
        return found


class _Base:
    """The base class's implementation, on a saver's reads."""

    def __init__(self, saver: BaseCheckpointSaver[str]) -> None:
        self.saver = saver

    def get_delta_channel_history(self, **asked: Any) -> Any:
        return BaseCheckpointSaver.get_delta_channel_history(self.saver, **asked)

    async def aget_delta_channel_history(self, **asked: Any) -> Any:
        return await BaseCheckpointSaver.aget_delta_channel_history(self.saver, **asked)


@pytest.fixture
def tree(four: Flavoured) -> Tree:
    return Tree(four)


def written(found: Any, channel: str = "a") -> list[Any]:
    return [value for _, _, value in found[channel]["writes"]]


def test_writes_come_in_order_of_path_task_and_position(tree: Tree) -> None:
    root = tree.add(None)
    tree.write(root, "task 2", ("a", "2.0"), ("b", "other"), ("a", "2.2"), path="~x, 0000000001")
    tree.write(root, "task 1", ("a", "1.0"), path="~x, 0000000001")
    tree.write(root, "task 0", ("a", "last"), path="~x, 0000000010")
    tree.write(root, "task 3", ("a", "first"))
    child = tree.add(root, touched=("a", "b"))
    tree.write(child, "task 0", ("a", "later"))
    target = tree.add(child, touched=("a",))
    found = tree.history(target)
    assert written(found) == ["first", "1.0", "2.0", "2.2", "last", "later"]
    assert found["a"]["writes"][0] == ("task 3", "a", "first")
    assert found[CHANNELS[2]] == {"writes": []}


def test_only_the_parent_chain_counts(tree: Tree) -> None:
    """Siblings and their children were put in between and afterwards; listing the thread would find them all."""
    root = tree.add(None)
    tree.write(root, "task", ("a", "root"))
    left = tree.add(root, touched=("a",))
    right = tree.add(root, touched=("a",))
    tree.write(right, "task", ("a", "right"))
    tree.write(left, "task", ("a", "left"))
    deep_right = tree.add(right, touched=("a",))
    deep_left = tree.add(left, touched=("a",))
    tree.write(deep_right, "task", ("a", "right again"))
    assert written(tree.history(deep_left)) == ["root", "left"]
    assert written(tree.history(deep_right)) == ["root", "right"]
    assert written(tree.history(left)) == ["root"]
    assert tree.history(root)["a"] == {"writes": []}


@pytest.mark.parametrize(
    "seed", ["plain", None, [], 0, BULKY, _DeltaSnapshot(["snap", BULKY])], ids=lambda v: repr(v)[:20]
)
def test_a_value_ends_the_walk_and_its_own_writes_count(tree: Tree, seed: Any) -> None:
    root = tree.add(None)
    tree.write(root, "task", ("a", "before the seed"), ("b", "kept"))
    seeded = tree.add(root, {"a": seed}, ("b",))
    tree.write(seeded, "task", ("a", "at the seed"))
    middle = tree.add(seeded, touched=("a",))
    tree.write(middle, "task", ("a", BULKY))
    target = tree.add(middle, touched=("a",))
    tree.write(target, "task", ("a", "the target's own"))
    found = tree.history(target)
    assert found["a"]["seed"] == seed
    assert type(found["a"]["seed"]) is type(seed)
    assert written(found) == ["at the seed", BULKY]
    assert written(found, "b") == ["kept"]
    assert "seed" not in found["b"]


def test_a_value_in_the_target_itself_is_no_seed(tree: Tree) -> None:
    root = tree.add(None, {"a": 1})
    tree.write(root, "task", ("a", 2))
    target = tree.add(root, {"a": 3})
    assert tree.history(target, "a") == {"a": {"seed": 1, "writes": [("task", "a", 2)]}}


def test_each_channel_stops_at_its_own_seed(tree: Tree) -> None:
    place = None
    for n in range(8):
        place = tree.add(place, {2: {"a": "a2"}, 5: {"b": "b5"}}.get(n, {}), ("a", "b"))
        tree.write(place, "task", ("a", n), ("b", n), (CHANNELS[2], n))
    found = tree.history(tree.add(place))
    assert (found["a"]["seed"], written(found, "a")) == ("a2", [2, 3, 4, 5, 6, 7])
    assert (found["b"]["seed"], written(found, "b")) == ("b5", [5, 6, 7])
    assert written(found, CHANNELS[2]) == list(range(8))


@pytest.mark.parametrize("depth", [PAGE, PAGE + 1, 2 * PAGE + 7])
def test_long_chains(tree: Tree, depth: int) -> None:
    place = tree.add(None, {"a": "start"}, ("b",))
    tree.write(place, "task", ("a", 0))
    for n in range(1, depth):
        place = tree.add(place, touched=("a",))
        if n % 10 == 9 or n == depth - 1:
            tree.write(place, "task", ("a", n))
    found = tree.history(tree.add(place, touched=("a",)))
    assert found["a"]["seed"] == "start"
    assert written(found) == sorted({0, depth - 1, *range(9, depth, 10)})
    assert found["b"] == {"writes": []}


def test_latest_checkpoint_without_an_id(tree: Tree) -> None:
    root = tree.add(None)
    tree.write(root, "task", ("a", "one"))
    tree.add(root, touched=("a",))
    assert written(tree.history(None)) == ["one"]


def test_nothing_to_find(tree: Tree) -> None:
    root = tree.add(None)
    tree.write(root, "task", ("a", "one"))
    tree.add(root, touched=("a",))
    nothing = {channel: {"writes": []} for channel in CHANNELS}
    assert tree.history("999999") == nothing
    assert Tree(tree.four).history(None) == nothing
    assert Tree(tree.four, tree.thread, "other:ns").history(None) == nothing
    assert tree.four.call("get_delta_channel_history", config=tree.at(), channels=[]) == {}


def test_a_parent_that_is_gone_ends_the_walk(tree: Tree) -> None:
    """As when a checkpoint was imported without its ancestors."""
    tree.memory.put(tree.at("never stored"), checkpoint("000001", {}, {"a": "1"}), {}, {"a": "1"})
    tree.four.put(tree.at("never stored"), checkpoint("000001", {}, {"a": "1"}), {}, {"a": "1"})
    assert tree.history("000001", "a") == {"a": {"writes": []}}


def test_namespaces_and_threads_are_apart(tree: Tree) -> None:
    trees = [tree, Tree(tree.four, tree.thread, "sub:1"), Tree(tree.four)]
    for n, one in enumerate(trees):
        root = one.add(None, {"b": n})
        one.write(root, "task", ("a", n))
        one.add(root, touched=("a",))
    for n, one in enumerate(trees):
        found = one.history("000002")
        assert written(found) == [n]
        assert found["b"] == {"seed": n, "writes": []}


def grow(tree: Tree, choose: random.Random) -> list[str]:
    """A random tree: forks, several tasks with paths, values that are plain, snapshots or bulky, replaced writes."""
    places: list[str] = []
    due: dict[str, set[str]] = {}
    for _ in range(choose.randint(2, 30)):
        parent = choose.choice([places[-1], choose.choice(places)]) if places else None
        values = {
            channel: choose.choice([None, 0, [1], BULKY, _DeltaSnapshot([choose.random()])])
            for channel in CHANNELS
            if choose.random() < 0.15
        }
        touched = due.get(parent or "", set()) - values.keys()
        place = tree.add(parent, values, tuple(touched))
        places.append(place)
        due[place] = set()
        for task in choose.sample(range(100), choose.choice([0, 1, 1, 3])):
            path = choose.choice(["", f"~__pregel_pull, {task % 7}", f"~__pregel_push, {task:010}"])
            writes = [(choose.choice([*CHANNELS, "__error__"]), choose.random()) for _ in range(choose.randint(0, 4))]
            due[place] |= {channel for channel, _ in writes} - {"__error__"}
            for _ in range(choose.choice([1, 1, 2])):
                tree.write(place, f"task {task}", *writes, path=path)
    return places


@pytest.mark.parametrize("seed", range(5))
def test_random_trees(four: Flavoured, seed: int) -> None:
    choose = random.Random(seed)
    tree = Tree(four)
    places = grow(tree, choose)
    for target in [None, *choose.sample(places, min(8, len(places)))]:
        channels = choose.sample(CHANNELS, choose.randint(1, 3))
        if target is None and max(places) != places[-1]:
            continue
        tree.history(target, *channels)
