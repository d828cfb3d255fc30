"""When changes are committed, four ways: seen from another saver, which knows only what is in the database."""

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from langgraph_ledger import Batched, LedgerError, LedgerSaver, Transition
from langgraph_ledger.errors import SaverClosed
from tests.direct import contents
from tests.flush.counting import at, counting, prefix
from tests.four_ways import Backend, Flavoured
from tests.strict_python import PYTHON


class Items(TypedDict):
    items: list[int]


ROOT = Path(__file__).parent.parent.parent
Opener = Callable[..., Flavoured]
NEVER = Batched(100_000, None)
NAMES = ["always", "important", "by number", "never", "predicate"]


class Outside:
    """What another process would find."""

    def __init__(self, backend: Backend) -> None:
        self.saver = LedgerSaver(backend.url)
        self.saver.setup()

    def number(self, thread: str = "1") -> int:
        return prefix(self.saver, thread)


@pytest.fixture
def outside(backend: Backend) -> Any:
    found = Outside(backend)
    yield found
    found.saver.close()


def run(four: Flavoured, graph: Any, config: Any, durability: str = "sync") -> Any:
    return four.invoke(graph, {"number": 0, "seen": []}, config, durability=durability)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("flush", ["always", "important", Batched(7, None), NEVER, lambda transition: False], ids=NAMES)
def test_who_has_the_result_has_it_on_disk(open_four: Opener, outside: Outside, flush: Any, durability: str) -> None:
    four = open_four(flush=flush)
    graph = counting(four.saver, 30, is_async=four.is_async)
    assert run(four, graph, at("1"), durability)["number"] == 30
    if durability == "exit":
        assert outside.saver.get_tuple(at("1")).checkpoint["channel_values"]["number"] == 30  # type: ignore[union-attr]
    else:
        assert outside.number() == 30
    assert outside.saver.sessions()[0].status == "completed"


def test_batched_by_number(open_four: Opener, outside: Outside) -> None:
    seen: list[int] = []
    four = open_four(flush=Batched(10, None))
    graph = counting(four.saver, 50, lambda number: seen.append(outside.number()), is_async=four.is_async)
    run(four, graph, at("1"))
    # the checkpoints -1, 0, 1, ... 8 come first: they are there when the node of step 9 runs
    assert seen == [-1] * 8 + [8] * 10 + [18] * 10 + [28] * 10 + [38] * 10 + [48] * 2


def test_batched_by_time(open_four: Opener, outside: Outside) -> None:
    """Where four steps take longer than that time, they get more of it, on another thread."""
    came = threading.Event()

    def each(number: int) -> None:
        if number == 5 and outside.number(thread) == -1:
            deadline = time.monotonic() + 60
            while outside.number(thread) < 4 and time.monotonic() < deadline:
                time.sleep(0.01)
            assert outside.number(thread) == 4
            came.set()

    # in a thread of its own for asynchronous nodes too, which hold up their loop here
    four = open_four()
    for delay in (0.3, 1.5, 7.5, 40.0):
        thread = str(delay)
        graph = counting(four.saver, 6, each, is_async=four.is_async)
        run(four, graph, at(thread, ledger_flush=Batched(1000, delay)))
        if came.is_set():
            break
    assert came.is_set()


def test_what_is_important(open_four: Opener, outside: Outside) -> None:
    seen: list[int] = []

    def each(number: int) -> None:
        seen.append(outside.number())
        if number == 4 and interrupt("go on?") != "yes":
            raise AssertionError

    four = open_four(flush="important")
    graph = counting(four.saver, 6, each)
    run(four, graph, at("1"))
    assert outside.number() == 3
    assert outside.saver.recover("1").interrupts[0].value == "go on?"
    four.invoke(graph, Command(resume="yes"), at("1"), durability="sync")
    assert outside.number() == 6
    # the answer is stored from a thread of LangGraph's, and takes along what there is by then
    assert seen[:5] == [0, 0, 0, 0, 3], "the input is there at once, steps wait for what is important"


def test_a_tool_call_takes_what_waits_along(open_four: Opener, outside: Outside) -> None:
    """In the same commit; what comes after waits again, until the call has ended."""
    commits: list[str] = []
    seen: list[int] = []

    @tool
    def act(number: int) -> str:
        """Act."""
        calls = [entry.checkpoint_type for entry in outside.saver.history("1") if entry.call_id]
        assert calls == ["tool_call_started"]
        seen.append(outside.number())
        return "done"

    def each(number: int) -> None:
        if number == 5:
            before = len(commits)
            act.invoke({"name": "act", "args": {"number": number}, "id": "call", "type": "tool_call"})
            seen.append(commits[before:].count("commit"))

    four = open_four(flush=NEVER)
    four.call("setup")
    four.saver._driver.trace = lambda event, name: commits.append(name) if event == "after" else None
    run(four, counting(four.saver, 6, each), at("1"))
    assert seen == [4, 2], "what was before it is there, with one commit each for start and end"


def test_an_error_takes_what_waits_along(open_four: Opener, outside: Outside) -> None:
    def each(number: int) -> None:
        if number == 4:
            raise ValueError("four")

    four = open_four(flush=NEVER)
    with pytest.raises(ValueError, match="four"):
        run(four, counting(four.saver, 6, each, is_async=four.is_async), at("1"))
    assert outside.number() == 3
    report = outside.saver.recover("1")
    assert (report.status, report.errors) == ("failed", ("ValueError('four')",))


def test_a_breakpoint_is_an_end(open_four: Opener, outside: Outside) -> None:
    four = open_four(flush=NEVER)
    graph = counting(four.saver, 6, is_async=four.is_async)
    four.invoke(graph, {"number": 0, "seen": []}, at("1"), interrupt_after=["step"])
    assert outside.number() == 1
    assert outside.saver.sessions()[0].status == "paused"


def test_the_limit_of_steps_is_an_end(open_four: Opener, outside: Outside) -> None:
    four = open_four(flush=NEVER)
    graph = counting(four.saver, 60, is_async=four.is_async)
    with pytest.raises(RecursionError):
        four.invoke(graph, {"number": 0, "seen": []}, {**at("1"), "recursion_limit": 8})
    assert outside.number() == 8


def test_reading_comes_after_writing(open_four: Opener, outside: Outside) -> None:
    four = open_four(flush=NEVER)
    graph = counting(four.saver, 60, is_async=four.is_async)
    assert len(four.stream(graph, {"number": 0, "seen": []}, at("1"), take=5, durability="sync")) == 5
    assert four.get_state(graph, at("1")).values["number"] >= 4
    assert outside.number() >= 4


@pytest.mark.parametrize("way", ["flush", "close"])
def test_flush_and_close(open_four: Opener, outside: Outside, way: str) -> None:
    four = open_four(flush=NEVER)
    graph = counting(four.saver, 60, is_async=four.is_async)
    stream = {"number": 0, "seen": []}
    if four.runner is None:
        items = graph.stream(stream, at("1"), durability="sync")
        for _ in range(5):
            next(items)
    else:
        items = graph.astream(stream, at("1"), durability="sync")
        for _ in range(5):
            four.runner.run(anext(items))  # type: ignore[arg-type]
    assert outside.number() == -1
    four.call(way)
    assert outside.number() >= 4
    with contextlib.suppress(SaverClosed):
        items.close() if four.runner is None else four.runner.run(items.aclose())


def test_outside_of_a_run_nothing_waits(open_four: Opener, outside: Outside) -> None:
    four = open_four(flush=NEVER)
    graph = counting(four.saver, 3, is_async=four.is_async)
    four.update_state(graph, at("1"), {"number": 7, "seen": []}, as_node="step")
    assert outside.saver.get_tuple(at("1")).checkpoint["channel_values"]["number"] == 7  # type: ignore[union-attr]


@pytest.mark.parametrize("options", [{}, {"flush": "important", "log_tools": False}], ids=["logged", "not logged"])
def test_a_policy_for_one_call(open_four: Opener, outside: Outside, options: Any) -> None:
    four = open_four(**options)
    seen: list[int] = []
    graph = counting(four.saver, 5, lambda number: seen.append(outside.number("2")), is_async=four.is_async)
    run(four, graph, at("2", ledger_flush=Batched(3, None)))
    run(four, graph, at("1", ledger_flush="always"))
    assert seen == [-1, 1, 1, 1, 4, 5, 5, 5, 5, 5]
    assert outside.number("1") == 5
    metadata = outside.saver.get_tuple(at("1")).metadata  # type: ignore[union-attr]
    assert "ledger_flush" not in metadata


def test_a_policy_for_one_call_of_a_saver_that_is_not_told_of_ends(sqlite_path: str) -> None:
    """In a process of its own: the callbacks that tell it are there as soon as any saver has asked for them."""
    program = f"""
from langgraph_ledger import Batched, LedgerError, LedgerSaver
from tests.flush.counting import at, counting
with LedgerSaver({sqlite_path!r}, log_tools=False) as saver:
    graph = counting(saver, 3)
    try:
        graph.invoke({{"number": 0, "seen": []}}, at("1", ledger_flush=Batched(3, None)))
    except LedgerError as error:
        print(error)
    print(saver.get_tuple(at("1")))
    print(graph.invoke({{"number": 0, "seen": []}}, at("1", ledger_flush="always"))["number"])
"""
    ended = subprocess.run([*PYTHON, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    refused, *rest = ended.stdout.splitlines()
    assert "with log_tools=False and flush='always' this saver is not told how runs end" in refused
    assert rest == ["None", "3"]


def test_a_predicate(open_four: Opener, outside: Outside) -> None:
    seen: list[int] = []
    told: list[Transition] = []

    def every_fourth(transition: Transition) -> bool:
        told.append(transition)
        return transition.kind == "checkpoint" and transition.step is not None and transition.step % 4 == 0

    four = open_four(flush=every_fourth)
    graph = counting(four.saver, 9, lambda number: seen.append(outside.number()), is_async=four.is_async)
    run(four, graph, at("1"))
    assert seen == [0, 0, 0, 0, 4, 4, 4, 4, 8]
    first = told[0]
    assert (first.kind, first.source, first.step, first.thread_id) == ("checkpoint", "input", -1, "1")
    writes = [t for t in told if t.kind == "writes"]
    assert len(writes) >= 9
    assert all("number" in t.channels and t.task_id for t in writes)


def test_a_predicate_that_fails_fails_the_run(open_four: Opener, outside: Outside) -> None:
    four = open_four(flush=lambda transition: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(four, counting(four.saver, 3, is_async=four.is_async), at("1"))
    assert outside.number() == -1


def test_values_are_those_of_the_call(open_four: Opener, outside: Outside) -> None:
    """State that is changed in place afterwards is stored as it was."""

    def first(state: Any) -> Any:
        return {"items": [1]}

    def second(state: Any) -> Any:
        state["items"].append(2)
        return {"items": state["items"]}

    four = open_four(flush=NEVER)
    graph = StateGraph(Items).add_sequence([("first", first), ("second", second)]).add_edge(START, "first")
    four.invoke(graph.compile(checkpointer=four.saver), {"items": []}, at("1"), durability="sync")
    found = [item.checkpoint["channel_values"].get("items") for item in outside.saver.list(at("1"))]
    assert found == [[1, 2], [1], [], None]


def test_the_tables_are_those_of_always(open_four: Opener, backend: Backend, outside: Outside) -> None:
    """What is stored does not depend on when it is."""
    shape = []
    for thread, flush in {"a": "always", "b": Batched(3, None), "c": "important"}.items():
        four = open_four(flush=flush)
        run(four, counting(four.saver, 12, is_async=four.is_async), at(thread))
        rows = contents(backend)
        log = [row for row in rows["checkpoint_log"] if thread in row]
        shape.append((len(log), len([r for r in rows["pending_writes"] if thread in r]), outside.number(thread)))
        versions = [row[3] for row in rows["agent_state_ledger"] if thread in row]
        assert versions == [14]
    assert shape[0] == shape[1] == shape[2]


@pytest.mark.parametrize(
    ("flush", "message"),
    [
        ("sometimes", "expected 'always', 'important', Batched"),
        (5, "expected 'always', 'important', Batched"),
        (Batched, "expected 'always', 'important', Batched"),
    ],
)
def test_a_policy_that_is_none(sqlite_path: str, flush: Any, message: str) -> None:
    with pytest.raises(LedgerError, match=message):
        LedgerSaver(sqlite_path, flush=flush)
    with LedgerSaver(sqlite_path) as saver, pytest.raises(LedgerError, match="configurable"):
        counting(saver, 3).invoke({"number": 0, "seen": []}, at("1", ledger_flush=flush))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "max_changes=0: expected a whole number, 1 or more"),
        ((True,), "max_changes=True"),
        ((2.5,), "max_changes=2.5"),
        ((5, -1), "max_delay=-1: expected seconds"),
        ((5, float("nan")), "max_delay=nan"),
        ((5, "x"), "max_delay='x'"),
        ((5, None, "x"), "commit_when='x': expected a function"),
    ],
)
def test_limits_that_are_none(arguments: Any, message: str) -> None:
    with pytest.raises(LedgerError, match=message):
        Batched(*arguments)
