"""What survives a restart, told of real graphs without running them."""

import json
import operator
import re
import sqlite3
import threading
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, TypedDict
from uuid import UUID

import pytest
from langchain_core.tools import tool
from langgraph.cache.memory import InMemoryCache
from langgraph.channels import UntrackedValue
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.store.memory import InMemoryStore
from pydantic import BaseModel

from langgraph_ledger import Audit, Batched, LedgerError, LedgerSaver, ReplayGuard, audit


class Opaque:
    def __init__(self) -> None:
        raise AssertionError("an audit constructs nothing")


@dataclass
class Holder:
    number: int
    connection: sqlite3.Connection | None


class Model(BaseModel):
    model_config = {"arbitrary_types_allowed": True}
    parts: list[Opaque]


class State(TypedDict):
    number: int
    messages: Annotated[list[Any], operator.add]
    when: dict[str, tuple[datetime, UUID | None, Path, re.Pattern[str]]]
    holder: Holder
    model: Model
    lock: type(threading.Lock())  # type: ignore[misc, valid-type]
    scratch: Annotated[dict[str, Any], UntrackedValue]
    anything: Any


def builder(state: type = State) -> Any:
    def node(state: Any) -> Any:
        raise AssertionError("an audit runs nothing")

    return StateGraph(state).add_node("node", node).add_edge(START, "node")


def verdicts(report: Audit, kind: str) -> dict[str, str]:
    return {f"{row.graph}.{row.name}".removeprefix("."): row.verdict for row in report.rows if row.kind == kind}


def detail(report: Audit, name: str) -> str:
    (row,) = [row for row in report.rows if row.name == name]
    return row.detail


def test_channels(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    report = audit(builder().compile(checkpointer=LedgerSaver(path)))
    assert verdicts(report, "channel") == {
        "number": "durable",
        "messages": "durable",
        "when": "durable",
        "holder": "not serialisable",
        "model": "not serialisable",
        "lock": "not serialisable",
        "scratch": "untracked",
        "anything": "durable",
    }
    assert detail(report, "holder") == "value.connection: sqlite3.Connection cannot be serialised"
    assert detail(report, "model") == f"value.parts[]: {__name__}.Opaque cannot be serialised"
    assert {row.name for row in report.findings} == {"holder", "model", "lock", "scratch"}
    assert not path.exists(), "no database is opened"


def test_values_are_tried() -> None:
    values = {"anything": {"deep": [1, threading.Lock()]}, "number": 1}
    report = audit(builder().compile(checkpointer=LedgerSaver(":memory:")), values=values)
    assert detail(report, "anything") == "value['deep'][1]: _thread.lock cannot be serialised"
    assert detail(report, "number") == "LastValue, the value given was tried"


class Small(TypedDict):
    number: int


@pytest.mark.parametrize("saver", [None, InMemorySaver()], ids=["none", "memory"])
def test_without_a_ledger_nothing_survives(saver: Any) -> None:
    report = audit(builder(Small).compile(checkpointer=saver))
    assert verdicts(report, "channel") == {"number": "lost"}
    assert verdicts(report, "flush") == {}


def test_subgraphs_stores_and_caches() -> None:
    outer = StateGraph(Small)
    for name, own in {"inherits": None, "keeps": True, "anew": False, "other": InMemorySaver()}.items():
        outer.add_node(name, builder(Small).compile(checkpointer=own)).add_edge(START, name)
    graph = outer.compile(checkpointer=LedgerSaver(":memory:"), store=InMemoryStore(), cache=InMemoryCache())
    report = audit(graph)
    assert verdicts(report, "subgraph") == {"inherits": "durable", "keeps": "durable", "anew": "lost", "other": "lost"}
    found = verdicts(report, "channel")
    assert (found["inherits.number"], found["keeps.number"]) == ("durable", "durable")
    assert (found["anew.number"], found["other.number"]) == ("lost", "lost")
    assert verdicts(report, "store") == {"store": "lost"}
    assert verdicts(report, "cache") == {"cache": "lost"}


@tool
def pay(what: str) -> str:
    """Pay."""
    return what


@tool
def look(what: str) -> str:
    """Look."""
    return what


def test_tools() -> None:
    look.metadata = {"idempotent": True}
    graph = (
        StateGraph(Small)
        .add_node("open", ToolNode([pay, look]))
        .add_node("guarded", ToolNode([pay], **ReplayGuard().wrappers))
        .add_edge(START, "open")
        .add_edge(START, "guarded")
        .compile(checkpointer=LedgerSaver(":memory:"))
    )
    found = [(row.name, row.verdict) for row in audit(graph).rows if row.kind == "tool"]
    assert found == [("pay", "may happen twice"), ("look", "durable"), ("pay", "durable")]


def test_settings_and_formats() -> None:
    graph = builder(Small).compile(checkpointer=LedgerSaver(":memory:"))
    report = audit(graph, durability="exit")
    assert verdicts(report, "durability") == {"exit": "lost"}
    assert verdicts(report, "flush") == {"always": "durable"}
    assert json.loads(json.dumps(report.to_dict()))["rows"][0] == {
        "kind": "channel",
        "graph": "",
        "name": "number",
        "verdict": "durable",
        "detail": "LastValue",
    }
    assert str(report).splitlines()[1] == "channel     number  durable          LastValue"
    assert "<td>LastValue</td>" in report._repr_html_()


@pytest.mark.parametrize(
    ("flush", "name", "loss"),
    [
        (Batched(20, 0.2), "batched", "the last 20 checkpoints or those of the last 200 ms and one commit"),
        (Batched(7, None), "batched", "the last 7 checkpoints; nothing of a run that has ended"),
        ("important", "important", "at most 1000 checkpoints, and none of what is important"),
    ],
)
def test_the_policy_in_force(flush: Any, name: str, loss: str) -> None:
    report = audit(builder(Small).compile(checkpointer=LedgerSaver(":memory:", flush=flush)))
    assert verdicts(report, "flush") == {name: "durable, but for the last"}
    assert loss in detail(report, name)


def test_bad_arguments() -> None:
    with pytest.raises(LedgerError, match="takes a compiled graph, not a StateGraph"):
        audit(builder(Small))
    with pytest.raises(LedgerError, match="expected 'sync', 'async' or 'exit'"):
        audit(builder(Small).compile(), durability="never")
