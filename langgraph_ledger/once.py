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
from langgraph_ledger.call_records import INQUIRIES, QUESTIONS, CallRecord, find_calls, latest_slots
from langgraph_ledger.calls import Call, Spot, call_id_of, error_name, record_end, record_start, spot_of
from langgraph_ledger.errors import InvalidInput, UnknownCall
from langgraph_ledger.flow import Flow, adrive
from langgraph_ledger.here import must_be_here, run_flow
from langgraph_ledger.ledger import Ledger
from langgraph_ledger.operations.calls import (
    CANCELLED,
    COMPLETED,
    FAILED,
    HELD_RESOURCE,
    INTERRUPTED,
    RELEASED,
    read_questions,
)
from langgraph_ledger.questions import asked, asking, keep_answers, making, questions_of
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


def decide(
    saver: Any, call: Call, name: str, values: Mapping[str, Any], on_unknown: OnUnknown, beside: Sequence[str] = ()
) -> Flow[Any]:
    """Whether to make a call now: (MAKE, None), or (RETURN, its result). `values` are its arguments, if it has any.
    `beside`: the names of all calls that its task makes, if there are several.

    Of a call that may have happened, "ask" interrupts the graph with a question, "fail" raises `UnknownCall`.
    """
    ledger: Ledger = saver._ledger
    spot = call.spot
    record = yield from _record_of(saver, call, values)
    # of one call alone somebody may answer before the question was asked
    call.asker = asker = replace(call, call_id=f"about {call.call_id}", slots=[], line=call.line if beside else ())
    yield from _recall(call, asker, record, beside)
    if record is None:
        return MAKE, None
    arguments = values.get("arguments")
    for inquirer in record.asked_by:
        if inquirer == spot.task_id:  # again, and answered at once: LangGraph counts the questions of a task
            _asked(asker, record, name, arguments)
    if not is_open(record):
        if record.status != "completed":
            return MAKE, None
        with asking(call):
            if call.questions is not None:
                call.questions.pass_over([*call.before, *asker.before])
                keep_answers(call)
        return RETURN, record.result
    if on_unknown == "retry":
        return MAKE, None
    if on_unknown == "fail":
        raise UnknownCall(_unknown(spot.session_id, record, name))
    try:
        answer = _asked(asker, record, name, arguments)
    except GraphInterrupt:
        if call.line and tuple(asker.slots) != record.inquiries:
            # a start of its own keeps the slot of this question
            attempt = replace(call, attempt_id=uuid4().hex, facts={**call.facts, **asked(call)})
            yield from record_start(ledger, saver.serde, attempt, **values)
        raise
    happened, result = answer["happened"], answer.get("result")
    found_out = (happened, result, record.task_id, "ask", spot.task_id)
    yield from resolve(ledger, saver.serde, spot.session_id, call.call_id, *found_out, **asked(call))
    return (RETURN, result) if happened else (MAKE, None)


def _recall(call: Call, asker: Call, record: CallRecord | None, beside: Sequence[str]) -> Flow[None]:
    """Gives a call's questions, and those about it, the slots that they had, and keeps for the calls beside it what
    those had."""
    spot, questions = call.spot, questions_of(call.conf)
    if questions is None or spot.task_id is None:
        return
    call.questions = asker.questions = questions
    if record is not None and own_call([record], spot) is not None:
        call.before, asker.before = record.questions or (), record.inquiries or ()
    if beside and questions.answered:
        rows = yield read_questions(spot.session_id, spot.agent_id, spot.task_id, beside)
        kept = latest_slots(rows)
        own = kept.get(call.call_id, {})
        call.before, asker.before = own.get(QUESTIONS, ()), own.get(INQUIRIES, ())
        questions.reserve(slot for found in kept.values() for slots in found.values() for slot in slots)
    questions.reserve([*call.before, *asker.before])


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
    attempt = replace(call, attempt_id=uuid4().hex)
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
        with asking(call):
            answer = interrupt(question)
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
    call = Call(spot, call_id, {"once": key, "node": spot.node}, conf, run=run, whole=True)
    verdict, result = yield decide(saver, call, key, {}, policy)
    if verdict == RETURN:
        return result
    try:
        yield record_start(saver._ledger, saver.serde, call)
    except asyncio.CancelledError as error:  # it may be stored, and there will be no other end
        yield record_end(saver._ledger, saver.serde, call, CANCELLED, {}, error_type=error_name(error), ran=False)
        raise
    try:
        with making(call):
            result = yield None
    except BaseException as error:
        kind = (
            INTERRUPTED if isinstance(error, GraphInterrupt) else FAILED if isinstance(error, Exception) else CANCELLED
        )
        values = {"error": str(error)} if kind == FAILED else {}
        facts = {**asked(call), "error_type": error_name(error)}
        yield record_end(saver._ledger, saver.serde, call, kind, values, **facts)
        raise
    yield record_end(saver._ledger, saver.serde, call, COMPLETED, {"result": result}, **asked(call))
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
