"""How one operation becomes one transaction, for every database and for sync and async alike.

`transact` is a generator of groups of statements to send; the drivers' small executors send them. Begin travels
with an operation's first batch and commit with its last one, so that a single-batch operation is one round trip.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator
from typing import Protocol, TypeVar

from langgraph_ledger.statements import Access, Migration, Operation, Rows, Statement, Steps

T = TypeVar("T")

BEGIN = {Access.READ: Statement("begin_read"), Access.WRITE: Statement("begin_write")}
COMMIT = Statement("commit")
ROLLBACK = Statement("rollback")

Trace = Callable[[str, str], float | None]
"""Called with ("before" | "after", statement name) around every statement; returns seconds to pause, or None."""

ATTEMPTS = 4


def transact(operation: Operation[T]) -> Generator[tuple[Statement, ...], list[Rows], T]:
    """Groups of statements that carry out `operation` in one transaction; returns its result.

    The group that follows an error is a lone rollback. An operation that yields nothing touches no database.
    """
    steps = operation.steps()
    if operation.access is Access.MAINTENANCE:
        return (yield from _one_by_one(steps))
    begin: tuple[Statement, ...] = (BEGIN[operation.access],)
    try:
        current = next(steps)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    try:
        while True:
            end = (COMMIT,) if current.last else ()
            answers = yield begin + current.statements + end
            answers = answers[len(begin) : len(begin) + len(current.statements)]
            begin = ()
            try:
                nothing_left = current.last
                current = steps.send(answers)
            except StopIteration as stop:
                if not nothing_left:
                    yield (COMMIT,)
                return stop.value  # type: ignore[no-any-return]
            if nothing_left:
                raise AssertionError(f"operation {operation.name} went on after its last batch")
    except BaseException:
        steps.close()
        raise


def _one_by_one(steps: Steps[T]) -> Generator[tuple[Statement, ...], list[Rows], T]:
    try:
        current = next(steps)
        while True:
            answers = []
            for statement in current.statements:
                answers += yield (statement,)
            current = steps.send(answers)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def pause_before_retry(attempt: int) -> float:
    """Seconds to wait before attempt number `attempt` + 1: exponential with full jitter, below 0.2 s."""
    return random.uniform(0, min(0.2, 0.01 * 2**attempt))


def pause(trace: Trace | None, event: str, name: str) -> None:
    """Lets a synchronous executor obey the trace hook."""
    if trace is not None and (seconds := trace(event, name)):
        time.sleep(seconds)


class Driver(Protocol):
    """What a saver needs of a database: run an operation, synchronously or not, and let go."""

    trace: Trace | None
    read_only: bool
    partitions: int | None
    """In how many partitions the large tables are to be made; None where nobody asked for any."""

    @property
    def needs_loop(self) -> bool:
        """Whether it works in one event loop only: that of a connection which the caller has brought."""
        ...

    @property
    def migrations(self) -> tuple[Migration, ...]: ...

    def run(self, operation: Operation[T]) -> T: ...

    async def arun(self, operation: Operation[T]) -> T: ...

    def close(self) -> None: ...

    async def aclose(self) -> None: ...
