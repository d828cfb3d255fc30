"""Pruning and copying while runs are at work: they do not notice, and nothing is left without what it needs."""

import asyncio
import gc
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, TypedDict
from uuid import uuid4

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt

from langgraph_ledger import LedgerSaver
from tests.direct import at, checkpoint, save, shared_backend
from tests.four_ways import Backend, Flavoured
from tests.installed import older_than
from tests.test_retention import sound

backend = shared_backend
durabilities = pytest.mark.parametrize("durability", ["sync", "async", "exit"])
BULKY = "bulky " * 200


def extend(state: list[str], writes: Sequence[list[str]]) -> list[str]:
    return [*state, *(item for write in writes for item in write)]


class Plain(TypedDict, total=False):
    items: Annotated[list[Any], operator.add]
    kept: str
    n: int


class Delta(TypedDict, total=False):
    items: Annotated[list[Any], DeltaChannel(extend, snapshot_frequency=1000)]
    kept: str
    n: int


states = pytest.mark.parametrize("state", [Plain, Delta])
forked_states = pytest.mark.parametrize(
    "state",
    [
        Plain,
        pytest.param(
            Delta,
            marks=pytest.mark.skipif(
                older_than("langgraph", "1.2.13"),
                reason="before, LangGraph took over what the step that is run again had written",
            ),
        ),
    ],
)


@pytest.fixture
def thread() -> str:
    return str(uuid4())


@pytest.fixture
def prune(backend: Backend, thread: str) -> Iterator[Callable[[], None]]:
    """Prunes the test's thread as another process would, through a saver of its own."""
    with LedgerSaver(backend.url) as other:
        yield lambda: other.prune([thread])


def graph_on(saver: Any, state: Any, *nodes: Callable[[Any], Any], **options: Any) -> Any:
    return (
        StateGraph(state).add_sequence(nodes).add_edge(START, nodes[0].__name__).compile(checkpointer=saver, **options)
    )


def texts(found: Any) -> list[str]:
    return [str(item).split(" bulky")[0] for item in found["items"]]


@states
@durabilities
def test_prune_in_every_node(
    four: Flavoured, backend: Backend, thread: str, prune: Callable[[], None], durability: str, state: Any
) -> None:
    def one(state: Any) -> Any:
        prune()
        return {"items": [f"one {BULKY}"]}

    def two(state: Any) -> Any:
        prune()
        return {"items": ["two"], "n": len(state["items"])}

    def three(state: Any) -> Any:
        prune()
        return {"items": ["three"]}

    graph = graph_on(four.saver, state, one, two, three)
    for turn in range(3):
        found = four.invoke(graph, {"items": [f"in {turn}"], "kept": BULKY}, at(thread), durability=durability)
        assert found["n"] == 4 * turn + 2
        assert texts(found) == [text for n in range(turn + 1) for text in (f"in {n}", "one", "two", "three")]
        assert four.get_state(graph, at(thread)).values == found
    prune()
    assert four.get_state(graph, at(thread)).values == found
    if state is Plain:
        assert len(four.list(at(thread))) == 1
        sound(four, backend, thread)


@durabilities
def test_prune_between_parallel_tasks(
    four: Flavoured, backend: Backend, thread: str, prune: Callable[[], None], durability: str
) -> None:
    def split(state: Any) -> Any:
        prune()
        return Command(goto=[Send("each", {"n": n}) for n in range(6)])

    def each(task: Any) -> Any:
        prune()
        return {"items": [interrupt("well?") if task["n"] == 3 else task["n"]]}

    builder = StateGraph(Plain).add_node(split).add_node(each).add_edge(START, "split")
    graph = builder.compile(checkpointer=four.saver)
    four.invoke(graph, {"items": []}, at(thread), durability=durability)
    prune()
    found = four.invoke(graph, Command(resume="answer"), at(thread), durability=durability)
    assert found["items"] == [0, 1, 2, "answer", 4, 5]
    sound(four, backend, thread)


@pytest.mark.parametrize("stateful", [None, True], ids=["stateless", "stateful"])
def test_prune_inside_a_subgraph(
    four: Flavoured, backend: Backend, thread: str, prune: Callable[[], None], stateful: Any
) -> None:
    def inside(state: Any) -> Any:
        prune()
        return {"items": [f"inside {BULKY}"]}

    def ask(state: Any) -> Any:
        prune()
        return {"items": [interrupt("well?")]}

    inner = StateGraph(Plain).add_sequence([inside, ask]).add_edge(START, "inside").compile(checkpointer=stateful)

    def call(state: Any) -> Any:
        prune()
        return {"items": [f"{len(inner.invoke({'items': ['down']})['items'])} below"]}

    graph = graph_on(four.saver, Plain, call)
    if four.is_async:

        async def acall(state: Any) -> Any:
            await asyncio.to_thread(prune)  # another saver's: on the loop it would hold up a save that it waits for
            return {"items": [f"{len((await inner.ainvoke({'items': ['down']}))['items'])} below"]}

        graph = graph_on(four.saver, Plain, acall)
    for turn in range(2):
        four.invoke(graph, {"items": [f"in {turn}"]}, at(thread), durability="sync")
        prune()
        found = four.invoke(graph, Command(resume="yes"), at(thread), durability="sync")
    assert texts(found) == ["in 0", "3 below", "in 1", "6 below" if stateful else "3 below"]
    sound(four, backend, thread)


@forked_states
@durabilities
def test_time_travel_from_a_checkpoint_that_is_pruned_meanwhile(
    four: Flavoured, backend: Backend, thread: str, prune: Callable[[], None], durability: str, state: Any
) -> None:
    """`kept` is taken over from the old checkpoint, which is gone, with its memory, when the new one is saved."""
    travelling: list[bool] = []

    def one(state: Any) -> Any:
        return {"items": [f"one {len(state['items'])}"]}

    def two(state: Any) -> Any:
        if travelling:
            prune()
        return {"items": ["two"]}

    def three(state: Any) -> Any:
        return {"items": ["three"], "kept": state["kept"] if travelling else "overwritten"}

    graph = graph_on(four.saver, state, one, two, three)
    four.invoke(graph, {"items": ["in"], "kept": BULKY}, at(thread))
    old = next(s.config for s in four.get_state_history(graph, at(thread)) if s.next == ("two",))
    travelling.append(True)
    expected = {"items": ["in", "one 1", "two", "three"], "kept": BULKY}
    assert four.invoke(graph, None, old, durability=durability) == expected
    assert four.get_state(graph, at(thread)).values == expected
    if state is Plain:
        sound(four, backend, thread)
    travelling.clear()
    assert texts(four.invoke(graph, {"items": ["next"]}, at(thread)))[-4:-2] == ["next", "one 5"]


@durabilities
def test_an_interrupt_in_time_travel_outlives_a_prune(
    four: Flavoured, backend: Backend, thread: str, prune: Callable[[], None], durability: str
) -> None:
    pruning: list[bool] = []

    def one(state: Any) -> Any:
        return {"items": ["one"]}

    def ask(state: Any) -> Any:
        if pruning and pruning.pop():
            prune()
        return {"items": [interrupt("well?")]}

    graph = graph_on(four.saver, Plain, one, ask)
    four.invoke(graph, {"items": ["in"]}, at(thread))
    four.invoke(graph, Command(resume="first"), at(thread))
    old = next(s.config for s in four.get_state_history(graph, at(thread)) if s.next == ("ask",))
    pruning.append(True)
    four.invoke(graph, None, old, durability=durability)
    assert [i.value for i in four.get_state(graph, at(thread)).interrupts] == ["well?"]
    prune()
    found = four.invoke(graph, Command(resume="second"), at(thread), durability=durability)
    assert found["items"] == ["in", "one", "second"]
    sound(four, backend, thread)


def test_values_of_a_pruned_parent_are_stored_again(four: Flavoured, backend: Backend, thread: str) -> None:
    values = {"kept": BULKY, "gone": BULKY[::-1]}
    save(four, at(thread), "1", values)
    save(four, at(thread, "1"), "2", {"kept": "changed"})
    old = four.get_tuple(at(thread, "1"))
    four.call("prune", [thread])
    assert four.get_tuple(at(thread, "1")) is None
    made = {**old.checkpoint, "id": "3"}
    four.put(old.config, made, {"step": 3}, {})
    assert four.get_tuple(at(thread)).checkpoint["channel_values"] == values
    sound(four, backend, thread)


def test_late_writes_to_a_pruned_checkpoint_of_the_same_run(four: Flavoured, backend: Backend, thread: str) -> None:
    """A task's writes and the next checkpoint are saved by different workers, and a prune may come in between."""
    save(four, at(thread), "1", {"kept": BULKY})
    mine = four.get_tuple(at(thread)).config
    second = save(four, mine, "2", {"kept": BULKY})
    save(four, second, "3", {"kept": BULKY})
    four.call("prune", [thread])
    four.put_writes(second, [("items", ["late"])], "task")
    assert [t.checkpoint["id"] for t in four.list(at(thread))] == ["3"]
    sound(four, backend, thread)


def test_writes_in_one_commit_fail_one_by_one(backend: Backend, thread: str) -> None:
    async def inside() -> list[Any]:
        async with LedgerSaver(backend.url) as saver:
            await saver.aput(at(thread), checkpoint("1"), {}, {})
            second = await saver.aput((await saver.aget_tuple(at(thread))).config, checkpoint("2"), {}, {})
            third = await saver.aput(second, checkpoint("3"), {}, {})
            await saver.aprune([thread])
            late, good = saver.aput_writes(second, [("a", 1)], "late"), saver.aput_writes(third, [("a", 2)], "good")
            found = await asyncio.gather(late, good, return_exceptions=True)
            assert (await saver.aget_tuple(at(thread))).pending_writes == [("good", "a", 2)]
            return found

    found = asyncio.run(inside())
    gc.collect()
    assert found[1] is None


@durabilities
def test_copies_made_while_a_run_works(four: Flavoured, backend: Backend, thread: str, durability: str) -> None:
    copies: list[str] = []

    def copy() -> None:
        copies.append(str(uuid4()))
        with LedgerSaver(backend.url) as other:
            other.copy_thread(thread, copies[-1])

    def one(state: Any) -> Any:
        copy()
        return {"items": [f"one {BULKY}"]}

    def two(state: Any) -> Any:
        copy()
        return {"items": ["two"]}

    graph = graph_on(four.saver, Plain, one, two)
    found = four.invoke(graph, {"items": ["in"]}, at(thread), durability=durability)
    assert texts(found) == ["in", "one", "two"]
    for name in copies:
        sound(four, backend, name)
    if durability == "sync":
        assert [texts(four.get_state(graph, at(name)).values) for name in copies] == [["in"], ["in", "one"]]
