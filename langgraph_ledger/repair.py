"""Threads with dangling tool calls: a model has asked for calls whose results never came, and no model takes that.

`repair` adds what is missing through `update_state`: the logged result where there is one, else a message that says
what is known. The graph's state is otherwise left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langgraph_ledger.call_records import CallRecord
from langgraph_ledger.conflicts import expect, run_steps, run_steps_async
from langgraph_ledger.errors import InvalidInput


@dataclass(slots=True)
class _Asked:
    """A tool call that a message asks for, the position of that message, and its result, if it has one.

    Some models use the same ids again in every turn.
    """

    position: int
    call: dict[str, Any]
    answer: Any = None


def _asked(messages: Sequence[Any]) -> list[_Asked]:
    """The tool calls of a conversation. A result belongs to the nearest call of its id before it that has none."""
    asked: list[_Asked] = []
    for position, message in enumerate(messages):
        calls = getattr(message, "tool_calls", None) or ()
        asked += [_Asked(position, call) for call in calls if call.get("id") is not None]
        number = getattr(message, "tool_call_id", None)
        waiting = [one for one in asked if one.answer is None and one.call["id"] == number]
        if waiting:
            next(one for one in waiting if one.position == waiting[-1].position).answer = message
    return asked


def _records_of(dangling: _Asked, asked: Sequence[_Asked], records: Sequence[CallRecord]) -> list[CallRecord]:
    """What is on record about a call without a result: not what gave another call of that id the result it has."""
    call, left = dangling.call, list(records)
    for one in asked:
        if one.answer is not None and one.call["id"] == call["id"]:
            taken = next((r for r in left if _asks(r, one.call) and _gave(r, one.answer)), None)
            left = [record for record in left if record is not taken]
    fitting = [record for record in left if _asks(record, call)]
    open_step = [record for record in left if not record.settled]  # of this turn, however its arguments were redacted
    return [record for record in fitting if not record.settled] or open_step or fitting


def _asks(record: CallRecord, call: Mapping[str, Any]) -> bool:
    """Whether a record may be of this call, as far as its name and arguments were kept."""
    return record.name in ("", call["name"]) and record.arguments in (None, call["args"])


def _gave(record: CallRecord, answer: Any) -> bool:
    if record.status != "completed" or not record.kept:
        return bool(getattr(answer, "status", None) == "error")
    return bool(getattr(record.result, "content", str(record.result)) == answer.content)


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
    asked = _asked(messages)
    added: dict[int, list[Any]] = {}
    for one in asked:
        if one.answer is None:
            records = yield find(config["configurable"]["thread_id"], one.call["id"])
            one.answer = _answer(one.call, _records_of(one, asked, records))
            added.setdefault(one.position, []).append(one.answer)
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
