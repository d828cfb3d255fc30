"""SIGKILL at every moment of a tool call, on both databases: recovery tells what is so, and nothing is done twice.

As in `test_crash.py`, a process kills itself at one event after another: before and after what the tool does, before
and after each transaction that writes and before its commit, and in one way of running the graph before and after each
statement. What it did it says through a pipe, so that is known
whatever was stored.
"""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import ToolMessage
from langgraph.prebuilt import ToolNode

from langgraph_ledger import LedgerSaver, Recovery, ReplayGuard
from tests.crash_scenarios import paying
from tests.crash_worker import Crashes
from tests.four_ways import Flavoured
from tests.ledger_rows import half_written
from tests.recovery.stage import made
from tests.test_crash import Remains, crashes, killed_everywhere, remains

__all__ = ["crashes", "remains"]

WAYS = [
    ("sync", "sync", 1),
    ("async", "sync", 1),
    ("sync", "async", 2),
    ("async", "async", 2),
    ("sync", "exit", 1),
    ("async", "exit", 2),
]
"""Flavour, durability, and how many calls the step makes."""


def messages_of(saver: LedgerSaver, config: Any) -> list[Any]:
    """The messages that the state has, or that a task has written."""
    found = saver.get_tuple(config)
    if found is None:
        return []
    written = [m for _, channel, value in found.pending_writes or () if channel == "messages" for m in value]
    return [*found.checkpoint["channel_values"].get("messages", []), *written]


def check(report: Recovery, log: dict[str, set[str]], known: set[str], effects: set[str]) -> None:
    """Compares the report with the rows, with the state, and with what the process said that it did."""
    started, ended = log.get("tool_call_started", set()), log.get("tool_call_completed", set())
    assert effects <= started
    assert ended <= effects
    assert {call.call_id for call in report.unknown} == started - ended
    assert {call.call_id for call in report.unapplied} == ended - known
    assert report.failed == report.cancelled == report.interrupted == ()
    assert str(report)
    assert json.loads(json.dumps(report.to_dict()))["thread_id"] == report.thread_id


@pytest.mark.parametrize(("flavour", "durability", "number"), WAYS)
def test_killed_at_every_moment_of_a_tool_call(
    remains: Remains, crashes: Crashes, flavour: str, durability: str, number: int
) -> None:
    ids = ["c1", "c2"][:number]
    job = {"scenario": "tools", "url": remains.url, "flavour": flavour, "durability": durability, "calls": ids}
    job["borders"] = (flavour, durability) != ("sync", "sync")
    seen = set()
    for thread, said in killed_everywhere(crashes, **job):
        effects = [line.removeprefix("effect ") for line in said if line.startswith("effect ")]
        rows = remains.rows(thread)
        assert half_written(rows) == [], said
        log: dict[str, set[str]] = {}
        for row in rows["checkpoint_log"]:
            if row["call_id"]:
                log.setdefault(row["checkpoint_type"], set()).add(row["call_id"])
        config: Any = {"configurable": {"thread_id": thread}}
        with remains.reopened() as saver:
            state = messages_of(saver, config)
            known = {m.tool_call_id for m in state if isinstance(m, ToolMessage)}
            report = saver.recover(thread)
            check(report, log, known, set(effects))
            statuses = [row["status"] for row in rows["sessions"]]
            assert report.status == (statuses[0] if statuses else "unknown")
            assert report.crashed is (report.status == "active")
            assert (thread in {s.session_id for s in saver.recoverable()}) is report.crashed
            assert report == saver.recover(thread), "it changes nothing"
            seen.add((bool(report.unknown), bool(report.unapplied), len(effects), len(known)))
            effects += finished(saver, config, ids, report, set(effects), durability)
        assert sorted(effects) == sorted(ids), said
    assert {unknown for unknown, *_ in seen} == {True, False}
    assert any(unapplied for _, unapplied, *_ in seen)


def finished(
    saver: LedgerSaver, config: Any, ids: Sequence[str], report: Recovery, before: set[str], durability: str
) -> list[str]:
    """Finds out about unknown calls, lets a guarded graph finish, and returns what it did."""
    thread = config["configurable"]["thread_id"]
    for call in report.unknown:
        happened = call.call_id in before
        result = f"{call.call_id} is paid" if happened else None
        saver.resolve_call(thread, call.call_id, happened=happened, result=result)
    assert saver.recover(thread).unknown == ()
    effects: list[str] = []

    def say(text: str) -> None:
        effects.append(text.removeprefix("effect "))

    def pay(what: str) -> str:
        say(f"effect {what}")
        return f"{what} is paid"

    four = Flavoured(saver, None)
    node = ToolNode([made(four, pay, "pay")], **ReplayGuard("fail").wrappers)
    graph = paying(four, ids, say, lambda *event: None, node=node)
    begin = None if saver.get_tuple(config) else {"messages": ["go"]}
    found = graph.invoke(begin, config, durability=durability)["messages"]
    assert [m.content for m in found if isinstance(m, ToolMessage)] == [f"{i} is paid" for i in ids]
    after = saver.recover(thread)
    assert (after.status, after.crashed, after.unknown, after.unapplied) == ("completed", False, (), ())
    return effects
