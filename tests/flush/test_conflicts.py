"""A queued write that loses: nothing of it is kept, it is on record, and its run is stopped and never returns."""

import asyncio
import operator
import threading
import time
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START as BEGIN
from langgraph.graph import StateGraph
from langgraph.types import interrupt

from langgraph_ledger import Batched, LedgerSaver, StateConflict, modify, retry_on_conflict
from langgraph_ledger.errors import WrongFlavour
from tests.direct import query
from tests.flush.counting import at, counting, prefix
from tests.four_ways import Backend, Flavoured

Opener = Callable[..., Flavoured]
NEVER = Batched(100_000, None)
POLICIES: dict[str, Any] = {
    "always": "always",
    "important": "important",
    "by number": Batched(4, None),
    "never": NEVER,
}
START = {"number": 0, "seen": []}


def rival(backend: Backend, to: int = 100) -> None:
    """Another process's run, from beginning to end."""
    with LedgerSaver(backend.url) as saver:
        graph = counting(saver, to)
        begin = None if saver.get_tuple(at("1")) else START
        if begin is None:
            graph.update_state(at("1"), {"number": to, "seen": []}, as_node="step")
        else:
            graph.invoke(begin, at("1"))


def rows(backend: Backend, table: str) -> int:
    return int(query(backend, f"SELECT COUNT(*) FROM {table}")[0][0])


def overtake(backend: Backend) -> int:
    """Another process's update, tried again as long as a save of the run that it overtakes comes in between.

    Returns how many checkpoints there are then.
    """
    with LedgerSaver(backend.url) as saver:
        modify(counting(saver, 100), at("1"), lambda state: {"number": 100, "seen": []}, as_node="step")
        return checkpoints(saver)


def checkpoints(saver: LedgerSaver) -> int:
    return len([entry for entry in saver.history("1") if entry.checkpoint_type == "checkpoint"])


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("flush", POLICIES.values(), ids=POLICIES)
def test_a_run_that_is_overtaken_never_returns(
    open_four: Opener, backend: Backend, flush: Any, durability: Any
) -> None:
    """It is overtaken at step 6; what it had committed before stays, and nothing of it is added."""
    ran: list[int] = []
    stored: list[int] = []

    def each(number: int) -> None:
        ran.append(number)
        if number == 6:
            stored.append(overtake(backend))

    four = open_four(flush=flush)
    with pytest.raises(StateConflict) as caught:
        four.invoke(counting(four.saver, 20, each), START, at("1"), durability=durability)
    conflict = caught.value
    with LedgerSaver(backend.url) as saver:
        rejected = [entry for entry in saver.rejected_writes("1") if entry.payload["writer"] == conflict.writer]
        most = {"exit": 1, "sync": 2, "async": len(ran)}[durability]
        assert 1 <= len(rejected) <= most, "each write that was on its way: a step's task's and its checkpoint"
        assert conflict.committed is (stored[0] > 1)
        assert conflict.last_committed is None or conflict.last_committed in set(saver.ancestors(at("1")))
        assert checkpoints(saver) == stored[0]
        latest = saver.get_tuple(at("1"))
        assert latest is not None
        assert latest.checkpoint["channel_values"]["number"] == 100
    if durability == "sync":
        assert conflict.committed is (flush is not NEVER)
        most = {"always": 6, "by number": 10}.get(next(name for name in POLICIES if POLICIES[name] is flush), 20)
        assert ran[-1] <= most, "it is stopped once it is known, when enough waits"


def test_a_conflict_that_is_found_when_nothing_is_left_to_write(backend: Backend) -> None:
    """The last save of the run is refused while its caller looks at the last step: there is no result."""
    with LedgerSaver(backend.url, flush=NEVER) as saver:
        builder = counting(saver, 3).builder
        stream = builder.compile(checkpointer=saver, interrupt_before=["step"]).stream(START, at("1"))
        assert "__interrupt__" in next(stream)
        rival(backend)
        saver.flush()
        assert len(saver.rejected_writes()) == 1
        with pytest.raises(StateConflict):
            next(stream)


def test_of_two_under_batched_exactly_one_wins(open_four: Opener, backend: Backend) -> None:
    """Both have read, and neither has committed anything, when the second one begins and ends within the first."""
    one, other = open_four(flush=NEVER), open_four(flush=NEVER)
    results: list[Any] = []

    def each(number: int) -> None:
        if number == 3 and not results:
            results.append(None)
            saver = LedgerSaver(backend.url, flush=NEVER)
            results[0] = counting(saver, 10).invoke(START, at("1"))
            saver.close()

    assert other.saver is not one.saver
    with pytest.raises(StateConflict):
        one.invoke(counting(one.saver, 10, each), START, at("1"))
    assert results[0]["number"] == 10
    with LedgerSaver(backend.url) as saver:
        assert prefix(saver, "1") == 10
        assert len(saver.rejected_writes("1")) == 1


def test_a_conflict_found_in_the_background_stops_the_run(open_four: Opener, backend: Backend) -> None:
    """Nothing is flushed by the run itself: time does it, and the run learns of it at its next step.

    The rival has to be faster than that time. Where it was not, it gets more of it, on another thread.
    """

    class TooLate(Exception):
        """The run's first steps had been committed when the rival came."""

    four = open_four()
    ran: list[int] = []
    fenced: list[bool] = []

    def each(number: int) -> None:
        ran.append(number)
        if number == 3:
            with LedgerSaver(backend.url) as other:
                if counting(other, 4).invoke(START, thread)["seen"] != [1, 2, 3, 4]:
                    raise TooLate
            (run,) = (run for run in four.saver._ledger.open_runs() if run.session_id == str(delay))
            for _ in range(2000):
                if run.fenced is not None:
                    break
                time.sleep(0.02)
            fenced.append(run.fenced is not None)

    for delay in (0.2, 1.0, 5.0, 25.0):
        thread = at(str(delay), ledger_flush=Batched(100_000, delay))
        ran.clear()
        with pytest.raises((StateConflict, TooLate)) as caught:
            four.invoke(counting(four.saver, 40, each), START, thread, durability="sync")
        if fenced:
            break
    assert fenced == [True]
    assert caught.type is StateConflict
    assert ran == [1, 2, 3]


def test_a_retry_adds_the_input_once(backend: Backend) -> None:
    tries: list[int] = []

    def each(number: int) -> None:
        if number == 3 and not tries:
            tries.append(number)
            with LedgerSaver(backend.url) as other:
                counting(other, 2).invoke(START, at("1"))

    with LedgerSaver(backend.url, flush=NEVER) as saver:
        found = retry_on_conflict(counting(saver, 5, each), {"number": 1, "seen": [0]}, at("1"))
        assert found["seen"] == [1, 2, 0, 2, 3, 4, 5]


def test_a_conflict_that_is_only_reported(open_four: Opener, backend: Backend) -> None:
    def each(number: int) -> None:
        if number == 3:
            rival(backend)

    four = open_four(flush=NEVER, on_conflict="report")
    assert four.invoke(counting(four.saver, 10, each), START, at("1"))["number"] == 10
    rejected = four.call("rejected_writes", "1")
    assert [entry.payload["accepted"] for entry in rejected] == [True]
    assert four.get_tuple(at("1")).checkpoint["channel_values"]["number"] == 10


def test_a_deleted_thread_stays_deleted(open_four: Opener, backend: Backend) -> None:
    def each(number: int) -> None:
        if number == 3:
            with LedgerSaver(backend.url) as other:
                other.delete_thread("1")

    four = open_four(flush=Batched(2, None))
    with pytest.raises(StateConflict):
        four.invoke(counting(four.saver, 10, each), START, at("1"), durability="sync")
    assert rows(backend, "agent_memory") == 0
    assert four.get_tuple(at("1")) is None


def test_a_fork_of_an_old_checkpoint_that_is_pruned_meanwhile(open_four: Opener, backend: Backend) -> None:
    """What its first checkpoint takes over from its parent is either stored with it or there."""
    four = open_four(flush=NEVER)
    graph = counting(four.saver, 30)
    four.invoke(graph, {"number": 0, "seen": [], "more": ["x" * 1000]}, at("1"))
    old = next(s for s in four.get_state_history(graph, at("1")) if s.values["number"] == 20)

    def each(number: int) -> None:
        if number == 23:
            with LedgerSaver(backend.url) as other:
                other.prune(["1"])

    again = counting(four.saver, 25, each)
    assert four.invoke(again, None, old.config)["number"] == 25
    assert four.get_state(again, at("1")).values["seen"] == list(range(1, 26))


def test_a_synchronous_call_where_it_would_wait_for_ever(backend: Backend) -> None:
    """On a loop that is just committing asynchronously, a synchronous read works or says why it cannot."""

    async def main() -> None:
        async with LedgerSaver(backend.url, flush=NEVER) as saver:
            graph = counting(saver, 1000, is_async=True)
            stream = graph.astream(START, at("1"), durability="sync")
            for _ in range(5):
                await anext(stream)
            saver._driver.trace = lambda event, statement: 0.2 if (event, statement) == ("before", "commit") else None
            task = asyncio.create_task(saver.aflush())
            while saver._ledger.queue.turn is None:
                await asyncio.sleep(0)
            with pytest.raises(WrongFlavour, match="would wait for ever"):
                saver.get_tuple(at("1"))
            await task
            saver._driver.trace = None
            assert saver.get_tuple(at("1")) is not None
            await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(main())


def test_a_run_of_the_same_saver_comes_in_between(backend: Backend) -> None:
    """Between two writes of a run in one flush: the second one is refused, though the first one held the thread."""
    second_has_read, second_may_go_on = threading.Event(), threading.Event()
    second_has_put, second_may_end = threading.Event(), threading.Event()

    class Paused(LedgerSaver):
        def get_tuple(self, config: Any) -> Any:
            found = super().get_tuple(config)
            if config["configurable"].get("pause"):
                second_has_read.set()
                assert second_may_go_on.wait(30)
            return found

    class State(TypedDict):
        seen: Annotated[list[str], operator.add]

    with Paused(backend.url, flush=NEVER) as saver:
        queue = saver._ledger.queue

        def starts(state: State) -> Any:
            second.start()
            assert second_has_read.wait(30)
            return {"seen": ["first"]}

        def asks(state: State) -> Any:
            assert second_has_read.wait(30)  # which has committed all that waited
            deadline = time.monotonic() + 30
            while not queue.entries and time.monotonic() < deadline:
                time.sleep(0.01)  # until what the other node has written waits
            second_may_go_on.set()
            assert second_has_put.wait(30)
            return {"seen": [interrupt("?")]}

        def counts(state: State) -> Any:
            second_has_put.set()
            assert second_may_end.wait(30)
            return {"seen": ["second"]}

        builder = StateGraph(State).add_node("begin", lambda state: {"seen": ["begin"]}).add_edge(BEGIN, "begin")
        builder.add_node("starts", starts).add_node("asks", asks)
        first = builder.add_edge("begin", "starts").add_edge("begin", "asks").compile(saver)
        other = StateGraph(State).add_node("counts", counts).add_edge(BEGIN, "counts").compile(saver)
        begin: Any = {"seen": []}  # both runs in durability "sync": a save is queued before the nodes after it run
        second = threading.Thread(target=lambda: other.invoke(begin, at("1", pause=True), durability="sync"))
        try:
            with pytest.raises(StateConflict) as caught:
                first.invoke(begin, at("1"), durability="sync")
        finally:
            second_may_go_on.set()
            second_may_end.set()
            second.join()
        rejected = saver.rejected_writes("1")
        assert [entry.payload["writer"] for entry in rejected] == [caught.value.writer]
    with LedgerSaver(backend.url) as reader:
        assert list(reader.recover("1").interrupts) == []
        latest = reader.get_tuple(at("1"))
        assert latest is not None
        assert latest.checkpoint["channel_values"]["seen"][-1] == "second"
