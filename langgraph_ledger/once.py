"""Effects that must not happen twice: `once`, and holds on resources, for any code in a node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, Self, TypeVar
from uuid import uuid4

from langgraph.errors import GraphInterrupt
from langgraph.types import interrupt

from langgraph_ledger import ids
from langgraph_ledger.call_records import CallRecord, find_calls
from langgraph_ledger.calls import Call, Spot, around, call_id_of, error_name, record_end, record_start, spot_of
from langgraph_ledger.errors import InvalidInput, UnknownCall
from langgraph_ledger.flow import Flow, adrive
from langgraph_ledger.here import must_be_here, run_flow
from langgraph_ledger.ledger import Ledger
from langgraph_ledger.lines import Ticket, in_line
from langgraph_ledger.operations.calls import CANCELLED, COMPLETED, FAILED, HELD_RESOURCE, INTERRUPTED, RELEASED
from langgraph_ledger.questions import counted, pass_over
from langgraph_ledger.recovery import is_open, resolve
from langgraph_ledger.runs import Run

T = TypeVar("T")

OnUnknown = Literal["ask", "retry", "fail"]

MAKE, RETURN = "make", "return"
"""What to do about a call: make it, or return what is on record."""


def check_policy(on_unknown: str, tool: str | None = None) -> OnUnknown:
    """`on_unknown` if it is one; for a guard's single tool, it is named."""
    if on_unknown not in ("ask", "retry", "fail"):
        given = f"on_unknown={on_unknown!r}" if tool is None else f"tools={{{tool!r}: {on_unknown!r}}}"
        raise InvalidInput(f"{given}: expected 'ask', 'retry' or 'fail'")
    return on_unknown  # type: ignore[return-value]


def decide(saver: Any, call: Call, name: str, values: Mapping[str, Any], on_unknown: OnUnknown) -> Flow[Any]:
    """Whether to make a call now: (MAKE, None), or (RETURN, its result). `values` are its arguments, if it has any.

    Of a call that may have happened, "ask" interrupts the graph with a question, "fail" raises `UnknownCall`.
    """
    ledger: Ledger = saver._ledger
    spot = call.spot
    record = yield from _record_of(saver, call, values)
    if record is None:
        return MAKE, None
    if call.ticket is not None:  # those before it have asked what they ask, or are about to
        yield from call.ticket.come()
    arguments = values.get("arguments")
    for asker in record.asked_by:
        if asker == spot.task_id:  # again, and answered at once: LangGraph counts the questions of a task
            _asked(call, record, name, arguments)
    if not is_open(record):
        if record.status != "completed":
            return MAKE, None
        if (record.agent_id, record.task_id) == (spot.agent_id, spot.task_id):
            pass_over(call.conf, record.asked)
        return RETURN, record.result
    if on_unknown == "retry":
        return MAKE, None
    if on_unknown == "fail":
        raise UnknownCall(_unknown(spot.session_id, record, name))
    answer = _asked(call, record, name, arguments)
    happened, result = answer["happened"], answer.get("result")
    found_out = (happened, result, record.task_id, "ask", spot.task_id)
    yield from resolve(ledger, saver.serde, spot.session_id, call.call_id, *found_out)
    return (RETURN, result) if happened else (MAKE, None)


def _record_of(saver: Any, call: Call, values: Mapping[str, Any]) -> Flow[CallRecord | None]:
    """What is on record about the call that stands here; None if it is to be made.

    What an earlier run leaves open is put on record for this task as well: the question, or the error, stores a
    checkpoint, and behind that the earlier run no longer counts.
    """
    ledger, spot = saver._ledger, call.spot
    calls = yield from find_calls(ledger, saver.serde, spot.session_id, call.call_id)
    own = own_call(calls, spot)
    earlier = _earlier(calls, call, values) if own is None else None
    if earlier is None:
        return own
    if values and not is_open(earlier):
        return earlier
    # an attempt of its own: what is found out about it says nothing of the one that is made then
    attempt = replace(call, attempt_id=uuid4().hex, ticket=None)
    yield from record_start(ledger, saver.serde, attempt, **values)
    return own_call((yield from find_calls(ledger, saver.serde, spot.session_id, call.call_id)), spot)


def own_call(calls: Sequence[CallRecord], spot: Spot) -> CallRecord | None:
    """Of the calls of a name, the one that was made where this one stands."""
    return next((c for c in calls if (c.agent_id, c.task_id) == (spot.agent_id, spot.task_id)), None)


def _earlier(calls: Sequence[CallRecord], call: Call, values: Mapping[str, Any]) -> CallRecord | None:
    """What another run, none of whose steps was stored (under durability "exit", say), did where this one stands now.

    A run that begins again has other tasks. Calls with the same arguments are taken for the same in their order, each
    for one. Without arguments nothing tells those of several tasks or steps apart.
    """
    spot, run = call.spot, call.run
    assert run is not None
    found = [c for c in calls if _again(c, spot, run) and c.arguments == values.get("arguments")]
    found = sorted((c for c in found if c.status == "completed" or is_open(c)), key=is_open)
    if not values:
        return found[0] if found else None
    here = (spot.agent_id, spot.task_id)
    return next((c for c in found if run.answered.setdefault(c.attempt_id, here) == here), None)


def _again(call: CallRecord, spot: Spot, run: Run) -> bool:
    if call.based or call.settled or call.run_id == run.token:
        return False
    return call.node == spot.node and _path(call.agent_id) == _path(spot.agent_id)


def _path(namespace: str) -> list[str]:
    return [step.partition(":")[0] for step in namespace.split("|")]


ANSWER = 'Command(resume={"happened": True, "result": what it returned}) or Command(resume={"happened": False})'
"""The form of the answer, as the question names it."""


def _asked(call: Call, record: CallRecord, name: str, arguments: Any) -> dict[str, Any]:
    """The answer about a call, asked for again until it is one: LangGraph keeps an answer for good once it is given."""
    question = {
        "question": f"Did the call {name!r} happen? A crash left it unknown.",
        "call_id": record.call_id,
        "name": name,
        "arguments": arguments,
        "started_at": record.started_at.isoformat(),
        "answer": ANSWER,
    }
    while True:
        with counted(call):
            answer = interrupt(question)
        call.asked -= 1  # it is asked each time, where those of the call itself are passed over
        if isinstance(answer, dict) and isinstance(answer.get("happened"), bool):
            return answer
        question = {**question, "problem": f"{answer!r:.80} is no answer: expected {ANSWER}"}


def _unknown(session_id: str, call: CallRecord, name: str) -> str:
    what = {"unknown": "was started and has no end on record", "cancelled": "was cancelled while it ran"}
    state = what.get(call.status, "happened, and its result was not kept")
    which = f"{session_id!r}, call_id={call.call_id!r}, task_id={call.task_id!r}"
    return (
        f"thread {session_id!r}: the call {name!r} (id {call.call_id}, task {call.task_id}) {state}. Find out whether"
        f" it happened, say so with saver.resolve_call({which}, happened=True, result=...) or, with the same ids,"
        " happened=False, and run the graph again"
    )


def _steps(key: str, on_unknown: str) -> Generator[Flow[Any] | None, Any, Any]:
    """What `once` does: yields flows to carry out, and None where the function is to be called."""
    policy = check_policy(on_unknown)
    conf, saver = must_be_here("once()")
    call_id = call_id_of(f"once:{ids.key(key, 'key')}")
    spot, run = spot_of(saver._ledger, conf)
    facts, line = {"once": key, "node": spot.node}, (spot.task_id, around.get())
    ticket = Ticket(run, ("begins", line))
    call = Call(spot, call_id, facts, conf, run=run, whole=True, line=line, ticket=ticket)
    try:
        verdict, result = yield decide(saver, call, key, {}, policy)
        if verdict == RETURN:
            return result
        try:
            yield record_start(saver._ledger, saver.serde, call)
        except asyncio.CancelledError as error:  # it may be stored, and there will be no other end
            yield record_end(saver._ledger, saver.serde, call, CANCELLED, {}, error_type=error_name(error), ran=False)
            raise
    finally:
        ticket.give_up()
    try:
        with counted(call):
            result = yield None
    except BaseException as error:
        kind = (
            INTERRUPTED if isinstance(error, GraphInterrupt) else FAILED if isinstance(error, Exception) else CANCELLED
        )
        values = {"error": str(error)} if kind == FAILED else {}
        end = record_end(saver._ledger, saver.serde, call, kind, values, error_type=error_name(error))
        yield in_line(Ticket(run, ("fails", call.line)), end)
        raise
    asked: dict[str, Any] = {"asked": call.asked} if call.asked else {}
    yield record_end(saver._ledger, saver.serde, call, COMPLETED, {"result": result}, **asked)
    return result


def once(key: str, fn: Callable[[], T], *, on_unknown: OnUnknown = "fail") -> T:
    """Calls `fn` and returns what it returned; when the node runs again, returns that without calling it.

    For effects outside of the state, such as a payment, in any code of a node. `key` names the effect within the task:
    it is another one in the graph's next step. If a crash left it unknown whether it happened, `on_unknown` says
    what to do: "fail" (the default, other than a `ReplayGuard`'s) raises `UnknownCall`, "ask" interrupts the graph with
    the question, to be answered as a guard's, "retry" calls it again.
    An `fn` that raises has not happened and is called again. What it returns must be something that a state may hold.
    """
    steps = _steps(key, on_unknown)
    _, saver = must_be_here("once()")
    ledger = saver._ledger
    try:
        step = next(steps)
        while True:
            try:
                answer = fn() if step is None else run_flow(ledger, step)
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


async def aonce(key: str, fn: Callable[[], Awaitable[T]], *, on_unknown: OnUnknown = "fail") -> T:
    """`once` for an async function."""
    steps = _steps(key, on_unknown)
    _, saver = must_be_here("aonce()")
    driver = saver._ledger.driver
    try:
        step = next(steps)
        while True:
            try:
                answer: Any = await fn() if step is None else await adrive(step, driver)
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


class hold:
    """`with hold("file:report.csv"):` inside a node puts on record that a resource is in use, until the block ends.

    It is a note, not a lock: what a crash left held shows in `recover()`, for a cleaner that deals with it and then
    says so with `release_hold()`. `async with` works too. One object is for one block at a time.
    """

    def __init__(self, resource: str) -> None:
        self.resource = ids.key(resource, "resource")
        self._held: tuple[Any, Call] | None = None

    def _take(self) -> tuple[Ledger, Flow[None]]:
        conf, saver = must_be_here("hold()")
        spot, run = spot_of(saver._ledger, conf)
        call = Call(spot, self.resource, {}, conf, run=run)
        self._held = (saver, call)
        return saver._ledger, record_start(saver._ledger, saver.serde, call, HELD_RESOURCE)

    def _release(self) -> tuple[Ledger, Flow[None]]:
        assert self._held is not None
        (saver, call), self._held = self._held, None
        return saver._ledger, record_end(saver._ledger, saver.serde, call, RELEASED, {}, started=HELD_RESOURCE)

    def __enter__(self) -> Self:
        run_flow(*self._take())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        run_flow(*self._release())

    async def __aenter__(self) -> Self:
        ledger, flow = self._take()
        try:
            await adrive(flow, ledger.driver)
        except asyncio.CancelledError:  # it may be stored, and the block is not entered, so nothing else releases it
            await adrive(self._release()[1], ledger.driver)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        ledger, flow = self._release()
        await adrive(flow, ledger.driver)
