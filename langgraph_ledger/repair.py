"""Threads with dangling tool calls: a model has asked for calls whose results never came, and no model takes that.

`repair` adds what is missing through `update_state`: the logged result where there is one, else a message that says
what is known. The graph's state is otherwise left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from langgraph_ledger.call_records import CallRecord
from langgraph_ledger.conflicts import expect, run_steps, run_steps_async
from langgraph_ledger.errors import InvalidInput


def _dangling(messages: Sequence[Any]) -> list[tuple[int, dict[str, Any]]]:
    """Tool calls without a result, each with the position of the message that asks for it."""
    answered = {getattr(message, "tool_call_id", None) for message in messages}
    return [
        (position, call)
        for position, message in enumerate(messages)
        for call in getattr(message, "tool_calls", None) or ()
        if call.get("id") is not None and call["id"] not in answered
    ]


def _answer(call: Mapping[str, Any], records: Sequence[CallRecord]) -> Any:
    from langchain_core.messages import ToolMessage

    completed = [r for r in records if r.status == "completed" and r.kept]
    if completed and isinstance(completed[-1].result, ToolMessage):
        return completed[-1].result
    facts = {"name": call["name"], "tool_call_id": call["id"]}
    if completed:
        return ToolMessage(str(completed[-1].result), **facts)
    status = records[-1].status if records else "not made"
    text = {
        "not made": "This call was not made.",
        "unknown": "It is not known whether this call was made: it was started, and no end is on record.",
        "completed": "This call was made; its result was not kept.",
        "failed": f"This call failed: {records[-1].error}" if records else "",
        "interrupted": "This call was interrupted before it was made.",
        "cancelled": "This call was cancelled; whether it had an effect is not known.",
    }[status]
    return ToolMessage(text, status="error", **facts)


def _steps(
    graph_state: Callable[[], Any],
    find: Callable[[str, str], Any],
    write: Callable[[Any, Any], Any],
    config: Mapping[str, Any],
    key: str,
) -> Generator[Any, Any, list[Any]]:
    from langchain_core.messages import RemoveMessage
    from langgraph.graph.message import REMOVE_ALL_MESSAGES

    snapshot = yield graph_state()
    messages = snapshot.values.get(key) or []
    if not isinstance(messages, list):
        raise InvalidInput(f"the state's {key!r} is no list of messages")
    missing = _dangling(messages)
    added: dict[int, list[Any]] = {}
    for position, call in missing:
        records = yield find(config["configurable"]["thread_id"], call["id"])
        added.setdefault(position, []).append(_answer(call, records))
    answers = [answer for found in added.values() for answer in found]
    if not answers:
        return []
    if all(position == len(messages) - 1 for position in added):
        update = answers
    else:  # a result belongs right behind the message that asks for it
        update = [RemoveMessage(REMOVE_ALL_MESSAGES)]
        for position, message in enumerate(messages):
            update += [message, *added.get(position, ())]
    yield write(expect(snapshot), {key: update})
    return answers


def repair(
    graph: Any, config: Mapping[str, Any], *, messages: str = "messages", as_node: str | None = None
) -> list[Any]:
    """Adds the results that the dangling tool calls of a thread lack; returns the messages added.

    Args:
        graph: a graph compiled with a LedgerSaver, whose state holds messages as `add_messages` merges them.
        config: names the thread.
        messages: the name of that part of the state.
        as_node: the node on whose behalf the state is updated, as in `update_state`: the one that makes the calls, if
            the graph is to go on behind it.

    A call that has happened gets its logged result; another gets an error result that says what is known. Raises
    `StateConflict` if somebody writes to the thread meanwhile.
    """
    steps = _steps(
        lambda: graph.get_state(config),
        graph.checkpointer.find_calls,
        lambda place, values: graph.update_state(place, values, as_node),
        config,
        messages,
    )
    found: list[Any] = run_steps(steps)
    return found


async def arepair(
    graph: Any, config: Mapping[str, Any], *, messages: str = "messages", as_node: str | None = None
) -> list[Any]:
    """`repair`, asynchronously."""
    steps = _steps(
        lambda: graph.aget_state(config),
        graph.checkpointer.afind_calls,
        lambda place, values: graph.aupdate_state(place, values, as_node),
        config,
        messages,
    )
    found: list[Any] = await run_steps_async(steps)
    return found
