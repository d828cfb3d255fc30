"""A graph that counts, and what the ledger holds of it: whether that is a prefix of what happened."""

import operator
import os
from collections.abc import Callable
from inspect import isawaitable
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.graph import END, START, StateGraph


class Count(TypedDict):
    number: int
    seen: Annotated[list[int], operator.add]
    payload: bytes


def counting(
    saver: Any,
    to: int,
    each: Callable[[int], Any] = lambda number: None,
    *,
    is_async: bool = False,
    payload: int | None = None,
) -> Any:
    """A graph that counts up to `to`, a step for each. `each` is called with every new number, within its node;
    what it returns is awaited there, if it can be.

    `payload`: so many new bytes in each step.
    """

    def counted(number: int) -> Any:
        return {"number": number, "seen": [number], **({"payload": os.urandom(payload)} if payload else {})}

    def step(state: Count) -> Any:
        each(state["number"] + 1)
        return counted(state["number"] + 1)

    async def astep(state: Count) -> Any:
        done = each(state["number"] + 1)
        if isawaitable(done):
            await done
        return counted(state["number"] + 1)

    builder = StateGraph(Count).add_node("step", astep if is_async else step).add_edge(START, "step")
    builder.add_conditional_edges("step", lambda state: END if state["number"] >= to else "step")
    return builder.compile(checkpointer=saver)


def at(thread: str, **more: Any) -> Any:
    return {"configurable": {"thread_id": thread, **more}, "recursion_limit": 100_000}


def _at_one_moment(
    saver: BaseCheckpointSaver[str], thread: str
) -> tuple[CheckpointTuple | None, list[CheckpointTuple]]:
    """The head and the history, read again where a run that is still going has moved the head in between."""
    latest = saver.get_tuple(at(thread))
    while True:
        found = list(saver.list(at(thread)))
        again = saver.get_tuple(at(thread))
        if (again and again.config) == (latest and latest.config):
            return latest, found
        latest = again


def prefix(saver: BaseCheckpointSaver[str], thread: str) -> int:
    """The number that the thread has got to; fails if what is stored is no prefix: if anything before it is missing.

    -1 stands for a thread of which nothing is stored.
    """
    latest, found = _at_one_moment(saver, thread)
    if latest is None:
        assert not found, "checkpoints without a head"
        return -1
    there = {item.config["configurable"]["checkpoint_id"] for item in found}
    for item in found:
        parent = item.parent_config
        assert parent is None or parent["configurable"]["checkpoint_id"] in there, "a child without its parent"
    steps = [item.metadata["step"] for item in found]
    assert steps == list(range(steps[0], -2, -1)), "a hole"
    assert latest.config == found[0].config, "the head is not the latest"
    values = latest.checkpoint["channel_values"]
    number = values.get("number", 0)
    assert values.get("seen", []) == list(range(1, number + 1))
    assert number == max(steps[0], 0)
    return int(number)
