"""A flush takes the lock of a thread's root row as it needs it in the end: who shares a lock first and wants it alone
later waits for others who share it, while they may wait for something else that it holds."""

import operator
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph

from langgraph_ledger import Batched, LedgerSaver
from tests.direct import at
from tests.four_ways import Backend


class State(TypedDict):
    seen: Annotated[list[str], operator.add]


def nested(saver: LedgerSaver) -> Any:
    inner = StateGraph(State).add_node("inner", lambda state: {"seen": ["inner"]}).add_edge(START, "inner").compile()
    outer = StateGraph(State).add_node("first", inner).add_node("second", inner)
    return outer.add_edge(START, "first").add_edge("first", "second").compile(saver)


@pytest.mark.parametrize("most", [2, 3, 5, 100])
def test_no_shared_lock_before_an_update_of_the_row(backend: Backend, most: int) -> None:
    sent: list[str] = []
    with LedgerSaver(backend.url, flush=Batched(most, None)) as saver:
        saver.setup()
        saver._driver.trace = lambda event, statement: sent.append(statement) if event == "before" else None
        found = nested(saver).invoke({"seen": []}, at("t"), durability="sync")
        saver._driver.trace = None
    assert found["seen"].count("inner") == 3
    assert "keep_alone" in sent
    transactions = " ".join(sent).split("commit")
    assert not [one for one in transactions if "keep " in one and "advance_root" in one.split("keep ", 1)[1]]
