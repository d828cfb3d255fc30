"""The ways to answer a conflict: run again, expect, modify."""

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command

from langgraph_ledger import (
    LedgerSaver,
    StateConflict,
    amodify,
    aretry_on_conflict,
    conflicts,
    expect,
    modify,
    retry_on_conflict,
)
from tests.conflicts.stage import Line, Stage, lines, says
from tests.conflicts.verdict import log_of, nothing_lost
from tests.four_ways import Backend

Play = Callable[..., tuple[Stage, Any]]
CALLERS = ("A", "B", "C", "D")
TIRELESS = 100
once = pytest.mark.parametrize("durability", ["sync"])
"""For what does not depend on when a run saves."""
early = pytest.mark.parametrize("durability", ["sync", "async"])


async def retried(stage: Stage, who: str, input: Any = None, graph: Any = None) -> Any:
    return await stage.api._call(
        retry_on_conflict,
        aretry_on_conflict,
        graph or stage.graph,
        says(who) if input is None else input,
        stage.config(who),
        attempts=TIRELESS,
        durability=stage.durability,
    )


def test_every_caller_adds_its_input_once(play: Play, database: Backend, observer: LedgerSaver, existing: bool) -> None:
    """All callers are in the graph at once. Each one's input is in what it gets, and in the thread exactly once."""

    async def scene(stage: Stage) -> Any:
        if existing:
            await stage.attempt("base")
        return await stage.api.gather(*(lambda who=who: retried(stage, who) for who in CALLERS))

    stage, results = play(scene)
    found = Counter(log_of(observer, stage))
    for who, result in zip(CALLERS, results, strict=True):
        (given,) = says(who)["log"]
        assert found[given] == 1, who
        assert result["log"].count(given) == 1, who
    nothing_lost(database, observer, stage, None)


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def test_every_message_comes_once(play: Play, observer: LedgerSaver) -> None:
    async def scene(stage: Stage) -> Any:
        async def answer(state: Chat) -> dict[str, Any]:
            return {"messages": [AIMessage(f"re: {state['messages'][-1].content}")]}

        builder = StateGraph(Chat)
        builder.add_node("answer", stage.api.node(answer))
        builder.add_edge(START, "answer")
        builder.add_edge("answer", END)
        graph = stage.api.compile(builder)
        said = {who: {"messages": [HumanMessage(f"from {who}")]} for who in CALLERS}
        await stage.api.gather(*(lambda who=who: retried(stage, who, said[who], graph) for who in CALLERS))
        return await stage.api.get_state(graph, stage.config("A"))

    _, state = play(scene)
    said = Counter(m.content for m in state.values["messages"] if isinstance(m, HumanMessage))
    assert said == {f"from {who}": 1 for who in CALLERS}


async def retried_after(stage: Stage, save: str, rival: Callable[[], Any], input: Any = None, once: Any = None) -> Any:
    """What a retried call gets that is passed by a rival when about to make this save (`once` this has happened)."""
    stage.hold("A", save, stage.event("passed"), once=stage.event(*once) if once else None)

    async def passing() -> Any:
        await stage.at("A", save)
        return await rival()

    result, _ = await stage.overtaken(lambda: retried(stage, "A", input), passing)
    return result


@early
@pytest.mark.parametrize("save", ["put 1", "put 2", "put 3", "put 4"])
def test_the_input_is_added_once_wherever_a_run_is_overtaken(
    play: Play, database: Backend, observer: LedgerSaver, save: str
) -> None:
    """Before its input is saved, before the input has become state, after its first step, and after its second."""

    async def scene(stage: Stage) -> Any:
        return await retried_after(stage, save, lambda: stage.attempt("B"))

    stage, result = play(scene)
    found = log_of(observer, stage)
    for who in "AB":
        assert found.count(says(who)["log"][0]) == 1, who
    assert result["log"] == found
    nothing_lost(database, observer, stage, None)


@early
@pytest.mark.parametrize("save", ["put 2", "put 3"])
def test_the_input_is_added_once_when_the_winner_went_on_with_it(play: Play, observer: LedgerSaver, save: str) -> None:
    """The rival has no input of its own: it continues from what it finds, which is the overtaken run's."""

    async def scene(stage: Stage) -> Any:
        async def go_on() -> Any:
            return await stage.api.invoke(stage.graph, None, stage.config("B"))

        return await retried_after(stage, save, go_on)

    stage, result = play(scene)
    found = log_of(observer, stage)
    assert result["log"] == found
    # a step whose result the overtaken run had saved is not run again
    assert found in ([*says("A")["log"], *lines("B")[1:]], [*lines("A", "first"), *lines("B")[2:]])


@early
@pytest.mark.parametrize("save", ["put 1", "put 2", "put 3"])
def test_the_input_is_added_once_when_an_update_was_first(play: Play, observer: LedgerSaver, save: str) -> None:
    async def scene(stage: Stage) -> Any:
        async def update() -> Any:
            await stage.api.update_state(stage.graph, stage.config("B"), {"log": ["update"]}, as_node="fourth")

        return await retried_after(stage, save, update)

    stage, result = play(scene)
    found = log_of(observer, stage)
    assert found.count(says("A")["log"][0]) == 1
    assert found.count("update") == 1
    assert result["log"] == found


@early
def test_a_command_is_not_added_twice(play: Play, observer: LedgerSaver) -> None:
    """An input that is a command is saved in another way, as writes to the checkpoint before it, which the winner takes
    up. The call may give up, but it must not add the command again."""

    async def scene(stage: Stage) -> None:
        await stage.attempt("base")
        command = Command(update=says("A"), goto="fourth")
        with suppress(StateConflict):
            await retried_after(stage, "fourth", lambda: stage.attempt("B"), command, ("saved", "A", "put_writes", 1))

    stage, _ = play(scene)
    found = log_of(observer, stage)
    for who in "AB":
        assert found.count(says(who)["log"][0]) == 1, who


@once
def test_an_answer_to_an_interrupt_is_not_retried(play: Play, observer: LedgerSaver) -> None:
    async def scene(stage: Stage) -> Any:
        graph = stage.api.compile(stage.asking())
        await stage.attempt("base", graph=graph)
        stage.hold("A", "ask", stage.event("passed"), once=stage.event("saved", "A", "put_writes", 1))

        async def rival() -> Any:
            await stage.at("A", "ask")
            return await stage.attempt("B", Command(resume="B answers"), graph)

        async def overtaken() -> Any:
            with pytest.raises(StateConflict):
                await retried(stage, "A", Command(resume="A answers"), graph)

        await stage.overtaken(overtaken, rival)

    stage, _ = play(scene)
    assert stage.ran.count(("A", "ask")) == 1
    assert log_of(observer, stage) == [*says("base")["log"], "first base", "B answers B", "third B"]


Loses = Callable[[Any], Any]


def as_it_is(snapshot: Any) -> Any:
    return snapshot


def through_json(snapshot: Any) -> Any:
    return SimpleNamespace(config=json.loads(json.dumps(snapshot.config)))


@once
@pytest.mark.parametrize("kept", [as_it_is, through_json])
def test_expect(play: Play, database: Backend, observer: LedgerSaver, existing: bool, kept: Loses) -> None:
    """An update counts on what its caller has read, an empty thread included."""

    async def scene(stage: Stage) -> None:
        if existing:
            await stage.attempt("base")
        snapshot = kept(await stage.api.get_state(stage.graph, stage.config("A")))
        await update(stage, snapshot, "first")
        with pytest.raises(StateConflict) as caught:
            await update(stage, snapshot, "second")
        assert caught.value.committed is False
        assert caught.value.version_read != caught.value.version_found
        assert observer.rejected_writes(stage.thread)
        await update(stage, kept(await stage.api.get_state(stage.graph, stage.config("A"))), "third")

    async def update(stage: Stage, snapshot: Any, value: str) -> None:
        await stage.api.update_state(stage.graph, expect(snapshot), {"log": [value]}, as_node="fourth")

    stage, _ = play(scene)
    assert log_of(observer, stage) == [*(lines("base") if existing else []), "first", "third"]
    nothing_lost(database, observer, stage, None)


@once
def test_expect_of_a_subgraph(play: Play, database: Backend, observer: LedgerSaver) -> None:
    """A subgraph's snapshot is refused too when anything was written to the thread since."""

    async def scene(stage: Stage) -> None:
        graph = stage.api.compile(stage.asking_below())
        await stage.attempt("base", graph=graph)

        async def below() -> Any:
            state = await stage.api.get_state(graph, stage.config("A"), subgraphs=True)
            return state.tasks[0].state

        snapshot = await below()
        await stage.api.update_state(graph, expect(snapshot), {"log": ["first"]})
        with pytest.raises(StateConflict):
            await stage.api.update_state(graph, expect(snapshot), {"log": ["second"]})
        again = await below()
        assert again.values["log"][-1] == "first"
        await stage.api.update_state(graph, expect(again), {"log": ["third"]})
        assert (await below()).values["log"][-2:] == ["first", "third"]

    stage, _ = play(scene)
    nothing_lost(database, observer, stage, None)


class Counted(TypedDict, total=False):
    count: int


WORKERS, TIMES = 8, 4


@once
def test_modify_counts_right(play: Play, database: Backend, observer: LedgerSaver) -> None:
    """Eight workers read, add one and write, four times each."""

    async def scene(stage: Stage) -> Any:
        async def node(state: Counted) -> None:
            return None

        builder = StateGraph(Counted)
        builder.add_node("node", stage.api.node(node))
        builder.add_edge(START, "node")
        graph = stage.api.compile(builder)

        def add_one(snapshot: Any) -> dict[str, int]:
            return {"count": snapshot.values.get("count", 0) + 1}

        async def worker() -> None:
            for _ in range(TIMES):
                await stage.api._call(
                    modify, amodify, graph, stage.config("A"), add_one, as_node="node", attempts=10 * TIRELESS
                )

        await stage.api.gather(*[worker] * WORKERS)
        return await stage.api.get_state(graph, stage.config("A"))

    stage, state = play(scene)
    assert state.values["count"] == WORKERS * TIMES
    nothing_lost(database, observer, stage, None)


@once
def test_modify_gives_up(play: Play, database: Backend, observer: LedgerSaver) -> None:
    """Somebody writes between each of its reads and its updates."""

    async def scene(stage: Stage) -> Any:
        await stage.attempt("base")
        calls = []

        def think(snapshot: Any) -> dict[str, Any]:
            calls.append(snapshot)
            with LedgerSaver(database.url) as other:
                graph = StateGraph(stage.graph.builder.state_schema)
                graph.add_node("fourth", lambda state: None)
                graph.add_edge(START, "fourth")
                graph.compile(checkpointer=other).update_state(stage.config("B"), {"log": ["B"]}, as_node="fourth")
            return {"log": ["A"]}

        with pytest.raises(StateConflict):
            await stage.api._call(modify, amodify, stage.graph, stage.config("A"), think, as_node="fourth", attempts=3)
        return calls

    stage, calls = play(scene)
    assert len(calls) == 3
    assert log_of(observer, stage) == [*lines("base"), "B", "B", "B"]


def test_a_retry_waits_by_chance(backend: Backend, flavour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each refusal, by the length of the refused run and ever longer, and never for long."""
    bounds: list[tuple[float, float]] = []
    clock = (number / 8 for number in itertools.count())  # a run takes an eighth of a second
    chance = SimpleNamespace(uniform=lambda low, high: bounds.append((low, high)) or 0.0)
    monkeypatch.setattr(conflicts, "random", chance)
    monkeypatch.setattr(conflicts, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=time.sleep))
    config: Any = {"configurable": {"thread_id": "t"}}
    left = 5

    def overtaken(state: Line) -> Any:
        nonlocal left
        if left:
            left -= 1
            with LedgerSaver(backend.url) as other:
                StateGraph(Line).add_node("n", lambda s: {}).add_edge(START, "n").compile(
                    checkpointer=other
                ).update_state(config, {"log": ["other"]}, as_node="n")
        return {"log": ["mine"]}

    with LedgerSaver(backend.url) as saver:
        graph = StateGraph(Line).add_node("overtaken", overtaken).add_edge(START, "overtaken")
        compiled = graph.compile(checkpointer=saver)
        options: Any = {"attempts": 10, "durability": "sync"}
        if flavour == "sync":
            found = retry_on_conflict(compiled, {"log": ["given"]}, config, **options)
        else:
            found = asyncio.run(aretry_on_conflict(compiled, {"log": ["given"]}, config, **options))
    assert Counter(found["log"]) == {"given": 1, "mine": 1, "other": 5}
    assert bounds == [(0, min(conflicts.LONGEST_PAUSE, 2**n / 8)) for n in range(1, 6)]
