"""Flows: what the saver does around its operations, written once and driven synchronously or not.

A flow is a generator of operations, of futures that another call of the same saver is about to resolve, and of short
pauses for one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from concurrent.futures import CancelledError, Future
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from langgraph_ledger.drivers.transact import Driver
from langgraph_ledger.errors import WrongFlavour
from langgraph_ledger.statements import Operation

T = TypeVar("T")


class Turn(Future[None]):
    """Resolved when somebody who is at it now has ended, perhaps on an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        super().__init__()
        self.loop = loop


@dataclass(slots=True, eq=False, repr=False)
class Pause:
    """Waits until something happens, but no longer than some seconds."""

    until: Future[None]
    seconds: float


Step = Operation[Any] | Future[None] | Pause
Flow = Generator[Step, Any, T]


holds_up_loop: ContextVar[bool] = ContextVar("langgraph_ledger_holds_up_loop", default=False)
"""Set where a flow is driven on the very thread of a running event loop, by code that cannot await: what it waits for
might need that loop."""


def _happened(pause: Pause) -> bool:
    try:
        pause.until.exception(pause.seconds)
    except TimeoutError:
        return False
    except CancelledError:
        pass
    return True


def _result(future: Future[None]) -> Any:
    loop = future.loop if isinstance(future, Turn) else None
    if loop is not None and loop is asyncio._get_running_loop() and not future.done():
        raise WrongFlavour(
            "a synchronous call on an event loop, while calls of the same saver are being committed on that very loop,"
            " would wait for ever: await the asynchronous method, or call from another thread"
        )
    return future.result()


def drive(flow: Flow[T], driver: Driver) -> T:
    """Carries out a flow on the calling thread."""
    answer: Any
    try:
        step = next(flow)
        while True:
            try:
                if isinstance(step, Operation):
                    answer = driver.run(step)
                elif isinstance(step, Future):
                    answer = _result(step)
                else:
                    answer = _happened(step)
            except BaseException as error:
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def _watched(future: Future[None]) -> asyncio.Future[None]:
    """The future for this loop. Its error is somebody's to raise, but not of everyone who waits."""
    found = asyncio.wrap_future(future)
    found.add_done_callback(_seen)
    return found


def _seen(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()


async def adrive(flow: Flow[T], driver: Driver) -> T:
    """Carries out a flow on the running event loop."""
    answer: Any
    try:
        step = next(flow)
        while True:
            try:
                if isinstance(step, Operation):
                    answer = await driver.arun(step)
                elif isinstance(step, Future):  # shielded: a waiter that is cancelled must not cancel what it waits for
                    answer = await asyncio.shield(_watched(step))
                else:
                    waiting = asyncio.shield(_watched(step.until))
                    waiting.add_done_callback(_seen)
                    answer = bool((await asyncio.wait([waiting], timeout=step.seconds))[0])
            except BaseException as error:
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
