"""Flows: what the saver does around its operations, written once and driven synchronously or not.

A flow is a generator of operations, and of futures that another call of the same saver is about to resolve.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from concurrent.futures import Future
from typing import Any, TypeVar

from langgraph_ledger.drivers.transact import Driver
from langgraph_ledger.statements import Operation

T = TypeVar("T")

Step = Operation[Any] | Future[None]
Flow = Generator[Step, Any, T]


def drive(flow: Flow[T], driver: Driver) -> T:
    """Carries out a flow on the calling thread."""
    answer: Any
    try:
        step = next(flow)
        while True:
            try:
                answer = step.result() if isinstance(step, Future) else driver.run(step)
            except BaseException as error:
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


async def adrive(flow: Flow[T], driver: Driver) -> T:
    """Carries out a flow on the running event loop."""
    answer: Any
    try:
        step = next(flow)
        while True:
            try:
                if isinstance(step, Future):  # shielded: a waiter that is cancelled must not cancel what it waits for
                    answer = await asyncio.shield(asyncio.wrap_future(step))
                else:
                    answer = await driver.arun(step)
            except BaseException as error:
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
