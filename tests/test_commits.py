"""How many commits and round trips there are, and that nothing is acknowledged before its commit."""

import sqlite3
import threading
from collections import Counter
from contextlib import closing
from typing import Any, TypedDict

from langgraph.checkpoint.base.id import uuid6
from langgraph.graph import START, StateGraph
from langgraph.types import Send

from langgraph_ledger import LedgerSaver
from tests.direct import at
from tests.four_ways import Flavoured


def counted(saver: LedgerSaver) -> Counter[str]:
    """Statements by name, from now on."""
    counts: Counter[str] = Counter()
    saver._driver.trace = lambda event, name: counts.update([name]) if event == "after" else None
    return counts


def put(saver: LedgerSaver, config: Any, number: int) -> Any:
    made = {
        "v": 4, "id": str(uuid6()), "ts": "", "channel_values": {"n": number},
        "channel_versions": {"n": f"{number:04}"}, "versions_seen": {},
    }  # fmt: skip
    return saver.put(config, made, {"source": "loop", "step": number, "parents": {}}, {"n": f"{number:04}"})


def test_threads_share_commits_and_each_is_told_after_its_own(sqlite_path: str) -> None:
    """What a put returned is in the file, seen from another connection."""
    saver, errors = LedgerSaver(sqlite_path), []
    saver.setup()
    counts = counted(saver)
    start = threading.Barrier(16)

    def work(thread: str) -> None:
        try:
            start.wait()
            with closing(sqlite3.connect(sqlite_path)) as other:
                config = at(thread)
                for number in range(20):
                    config = put(saver, config, number)
                    checkpoint_id = config["configurable"]["checkpoint_id"]
                    found = other.execute("SELECT 1 FROM checkpoint_log WHERE checkpoint_id = ?", (checkpoint_id,))
                    assert found.fetchone() == (1,)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(f"t{number}",)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert counts["commit"] + counts["commit_part"] >= 320
    assert counts["commit"] < 320
    saver.close()


def test_one_refused_write_of_a_shared_commit_refuses_no_other(sqlite_path: str) -> None:
    with LedgerSaver(sqlite_path) as saver:
        saver.setup()
        first = put(saver, at("a"), 1)
        saver.get_tuple(at("a"))
        tickets = []
        with saver._driver._write_lock:  # everybody has to wait, so that the next commit is shared
            threads = []
            for name, config in (("good", at("b")), ("bad", first), ("good too", at("c"))):

                def attempt(name: str = name, config: Any = config) -> None:
                    try:
                        if name == "bad":
                            changed = {"v": 4, "id": first["configurable"]["checkpoint_id"], "ts": "other",
                                       "channel_values": {}, "channel_versions": {}, "versions_seen": {}}  # fmt: skip
                            saver.put(at("a"), changed, {"source": "loop", "step": 9, "parents": {}}, {})
                        else:
                            put(saver, config, 1)
                        tickets.append((name, None))
                    except Exception as error:
                        tickets.append((name, type(error).__name__))

                threads.append(threading.Thread(target=attempt))
                threads[-1].start()
            while len(saver._driver._queue) < 3:
                pass
        for thread in threads:
            thread.join()
        assert sorted(tickets) == [("bad", "CheckpointExists"), ("good", None), ("good too", None)]
        assert saver.get_tuple(at("b")) is not None
        assert saver.get_tuple(at("c")) is not None


class State(TypedDict):
    n: int


def test_a_step_is_one_commit(four: Flavoured) -> None:
    """A task's writes go along with the next checkpoint."""
    builder = StateGraph(State)
    builder.add_node("step", lambda state: {"n": state["n"] + 1})
    builder.add_edge(START, "step")
    builder.add_conditional_edges("step", lambda state: "step" if state["n"] < 30 else "__end__")
    graph = builder.compile(checkpointer=four.saver)
    four.call("setup")
    counts = counted(four.saver)
    four.invoke(graph, {"n": 0}, {**at("t"), "recursion_limit": 100}, durability="sync")
    steps, writes = 32, 31
    assert counts["begin_write"] <= steps + writes * 2 // 3


def test_a_fan_out_shares_commits(four: Flavoured) -> None:
    builder = StateGraph(State)
    builder.add_node("task", lambda state: None)
    builder.add_conditional_edges(START, lambda state: [Send("task", {"n": i}) for i in range(100)])
    graph = builder.compile(checkpointer=four.saver)
    four.call("setup")
    counts = counted(four.saver)
    four.invoke(graph, {"n": 0}, at("t"))
    assert counts["begin_write"] < 60
    assert len(four.get_state_history(graph, at("t"))) == 3


def test_single_operations_go_in_one_batch(four: Flavoured) -> None:
    """put, put_writes and get_tuple: one transaction each, whose statements need no answers among them."""
    counts = counted(four.saver)
    four.call("setup")
    config = four.put(at("t"), {"v": 4, "id": str(uuid6()), "ts": "", "channel_values": {"a": ["x" * 5000]},
        "channel_versions": {"a": "1"}, "versions_seen": {}}, {"source": "loop", "step": 1, "parents": {}},
        {"a": "1"})  # fmt: skip
    for call in (lambda: four.put_writes(config, [("a", ["y" * 5000])], "task"), lambda: four.get_tuple(at("t"))):
        counts.clear()
        call()
        assert counts["begin_write"] + counts["begin_read"] == 1
        assert counts["commit"] == 1


def test_what_is_known_of_a_parent_is_not_read(four: Flavoured) -> None:
    """Nor that it holds nothing."""
    four.call("setup")
    counts, config = counted(four.saver), at("t")
    for number in range(3):
        made = {"v": 4, "id": str(uuid6()), "ts": "", "channel_values": {}, "channel_versions": {}, "versions_seen": {}}
        config = four.put(config, made, {"source": "input", "step": number, "parents": {}}, {})
    assert counts["begin_write"] == 3
    assert counts["read_checkpoint"] == counts["begin_read"] == 0
