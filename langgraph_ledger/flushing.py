"""What waits to be committed: one queue for each saver, in the order in which things happened, and how it is flushed.

A flush sends everything that waits as one transaction, so that what is on disk is always a prefix of what happened. If
that transaction cannot be carried out as a whole, because a write has lost or is there already, its changes are sent
one after another, each with all that may come up. What cannot be stored for want of a database stays in the queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from langgraph_ledger.conflicts import StateConflict
from langgraph_ledger.drivers.transact import Driver
from langgraph_ledger.errors import DatabaseError, DatabaseUnavailable, Duplicate, LedgerError, ReuseRefused
from langgraph_ledger.flow import Flow, Turn, adrive, drive
from langgraph_ledger.operations.checkpoints import BEHIND
from langgraph_ledger.policies import Batched
from langgraph_ledger.runs import Run
from langgraph_ledger.statements import Access, Batch, Operation, Statement, Steps

MAX_BYTES = 16 * 2**20
"""How many bytes may wait, whatever the policy says."""
MAX_ENTRIES = 10_000
"""How many calls of put and put_writes may wait, whatever the policy says."""
IDLE_SECONDS = 2.0
"""How long the thread that watches the time stays when there is nothing to watch."""
RETRY_SECONDS = 1.0
"""After a flush in the background has failed, it is tried again so many seconds later."""


@dataclass(slots=True, eq=False, repr=False)
class Change:
    """One write that waits. Everything that it needs is encoded.

    `operation(claimed)` sends it: `claimed` says that a write of its run goes before it. `stored(answer)` is told what
    came of that, and says whether it is stored. `alone` is the way of a write on its own, whatever may come up.
    """

    run: Run
    weight: int
    is_checkpoint: bool
    operation: Callable[[bool], Operation[Any]]
    stored: Callable[[Any], bool]
    alone: Callable[[], Flow[None]]
    after: Callable[[], Flow[None]] | None = None
    """What is to be done once it is stored, of what is safe to lose."""
    checked: bool = True
    """Whether it counts only as long as its run holds the thread."""
    number: int = 0
    due: float | None = None


class Queue:
    """What waits to be committed, of all runs of one saver."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.failed = False
        """Whether the last flush has failed: then nothing is added before one has succeeded."""
        self._registered = False
        self._reset()
        _queues.add(self)

    def _reset(self) -> None:
        self._pid = os.getpid()
        self.lock = threading.Condition()
        self.entries: deque[Change] = deque()
        self.turn: Turn | None = None
        self._checkpoints = self._bytes = self._last = 0
        self._due: float | None = None
        self._thread: threading.Thread | None = None

    @property
    def last(self) -> int:
        """The number of the change that was added last."""
        return self._last

    def add(self, change: Change, delay: float | None) -> None:
        """Adds a change; after `delay` seconds it will be flushed from the background."""
        with self.lock:
            if not self._registered:
                self._registered = True
                # made after the driver's pool has been, and therefore called before that is closed
                weakref.finalize(self.driver, _at_exit, weakref.ref(self))
            _waiting.add(self)
            self._last += 1
            change.number = self._last
            self.entries.append(change)
            self._checkpoints += change.is_checkpoint
            self._bytes += change.weight
            if delay is None:
                return
            change.due = time.monotonic() + delay
            if self._due is None or change.due < self._due:
                self._due = change.due
                self._watch(delay)

    def full(self, policy: Batched | None) -> bool:
        """Whether so much waits that it is time."""
        with self.lock:
            limit = policy.max_changes if policy is not None else 1
            return self._checkpoints >= limit or self._bytes >= MAX_BYTES or len(self.entries) >= MAX_ENTRIES

    def removed(self, change: Change) -> None:
        """Takes the change that has been waiting longest out: it is stored, or never will be."""
        with self.lock:
            assert self.entries[0] is change
            self.entries.popleft()
            self._checkpoints -= change.is_checkpoint
            self._bytes -= change.weight
            if not self.entries:
                self._due = None
                _waiting.discard(self)

    def begin(self, number: int) -> tuple[list[Change], Turn | None]:
        """What is to be flushed so that the change of this number is, and the turn to do it.

        Of changes without a turn somebody else sees to it, whose turn is returned with no changes.
        """
        with self.lock:
            if not self.entries or self.entries[0].number > number:
                return [], None
            if self.turn is not None:
                return [], self.turn
            self.turn = Turn(asyncio._get_running_loop())
            return list(self.entries), self.turn

    def end(self, turn: Turn, *, failed: bool) -> None:
        with self.lock:
            self.turn, self.failed = None, failed
            # once a flush, not with each change that it removes: a thousand may wait
            self._due = min((c.due for c in self.entries if c.due is not None), default=None)
            if self._due is not None and failed:
                self._due = max(self._due, time.monotonic() + RETRY_SECONDS)
            if self._due is not None and self.driver.needs_loop:  # a thread looks by itself, a timer has to be set
                self._watch(max(0.0, self._due - time.monotonic()))
        turn.set_result(None)

    # --- time

    def _watch(self, delay: float) -> None:
        """Sees to it that a flush follows. The lock is held."""
        if self.driver.needs_loop:
            loop = asyncio._get_running_loop()
            if loop is not None:
                loop.call_later(delay, _flush_on_loop, weakref.ref(self), loop)
        elif self._thread is None:
            self._thread = threading.Thread(target=_watch, args=(self,), name="ledger-flush", daemon=True)
            self._thread.start()
        else:
            self.lock.notify_all()

    def is_due(self) -> bool:
        """Waits until a flush is due; False if there is nothing to wait for any more."""
        with self.lock:
            while True:
                if self._due is None:
                    if not self.lock.wait(IDLE_SECONDS) and self._due is None:
                        self._thread = None
                        return False
                    continue
                left = self._due - time.monotonic()
                if left <= 0:
                    return True
                self.lock.wait(left)

    def postpone(self) -> None:
        """Says that a flush in the background has failed. Whoever calls next tries again, and is told if it fails."""
        with self.lock:
            self.failed = bool(self.entries)
            if self.failed:
                self._due = time.monotonic() + RETRY_SECONDS

    def drop(self, reason: LedgerError) -> None:
        """Forgets what waits; its runs will be told why."""
        left = list(self.entries)
        if self._pid != os.getpid():
            self._reset()  # the lock may be held by a thread that only the parent has
        else:
            with self.lock:
                self.entries.clear()
                self._checkpoints, self._bytes, self._due = 0, 0, None
        self.failed = False
        _waiting.discard(self)
        for change in left:
            change.run.lost = reason


def _watch(queue: Queue) -> None:
    while queue.is_due():
        try:
            drive(flush(queue), queue.driver)
        except Exception:  # kept in the queue; whoever calls next is told
            queue.postpone()


def _flush_on_loop(reference: weakref.ref[Queue], loop: asyncio.AbstractEventLoop) -> None:
    queue = reference()
    if queue is not None and queue.entries:
        task = loop.create_task(_aflush(queue))
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)


async def _aflush(queue: Queue) -> None:
    try:
        await adrive(flush(queue), queue.driver)
    except Exception:
        queue.postpone()


_tasks: set[asyncio.Task[None]] = set()
_queues: weakref.WeakSet[Queue] = weakref.WeakSet()
_waiting: set[Queue] = set()
"""Queues in which something waits: kept, even if their saver is not."""


def _at_exit(reference: weakref.ref[Queue]) -> None:
    queue = reference()
    if queue is not None and queue.entries:
        drive(flush(queue), queue.driver)


def _after_fork() -> None:
    for queue in list(_queues):
        queue.drop(
            DatabaseUnavailable(
                "this process was forked while changes of this run waited to be committed, which its parent does: read"
                " the thread again and go on from there"
            )
        )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# --- adding and flushing


def submit(queue: Queue, change: Change, policy: Batched | None, *, at_once: bool) -> Flow[None]:
    """Adds a write to what waits, and commits all of it if it is time. Raises what has become of its run."""
    if queue.failed or (not at_once and queue.full(policy)):
        yield from flush(queue)
        _check(change)
    change.run.queued = True
    queue.add(change, policy.max_delay if policy is not None and not at_once else None)
    if at_once or queue.full(policy):
        yield from flush(queue, change.number)
        _check(change)


def _check(change: Change) -> None:
    if change.checked:
        change.run.check()


def flush(queue: Queue, number: int | None = None) -> Flow[None]:
    """Commits what waits, up to the change of this number; what has been added until now, if none is named."""
    wanted = queue.last if number is None else number
    while True:
        group, turn = queue.begin(wanted)
        if turn is None:
            return
        if not group:
            yield turn  # somebody else is at it
            continue
        failed = True
        try:
            yield from _send(queue, group)
            failed = False
        finally:
            queue.end(turn, failed=failed)


def _send(queue: Queue, group: Sequence[Change]) -> Flow[None]:
    answers: Sequence[Any] | None = None
    if len(group) > 1:
        with contextlib.suppress(Duplicate, ReuseRefused):  # which of them it is will be seen
            answers = yield together(_operations(group))
        if answers is None:
            for change in group:
                change.run.touched = (None, 0.0)  # what was said of the session is not stored either
    of_run: dict[Run, Any] = {}
    for place, change in enumerate(group):
        if answers is None or not change.stored(_answer(change, answers[place], of_run)):
            yield from _alone(change)
        queue.removed(change)
        if change.after is not None and change.run.fenced is None and change.run.lost is None:
            yield from change.after()


def _answer(change: Change, answer: Any, of_run: dict[Run, Any]) -> Any:
    """What came of a change; behind another one of its run, what came of that."""
    if answer == BEHIND:
        return of_run[change.run]
    if change.checked:
        of_run[change.run] = answer
    return answer


def _operations(group: Sequence[Change]) -> list[Operation[Any]]:
    """What a group is sent as. A write right behind another one of its run is no longer asked whether that holds the
    thread; where a run of the same saver came in between, it is."""
    latest: dict[str, Run] = {}
    operations = []
    for change in group:
        session_id = change.run.session_id
        operations.append(change.operation(latest.get(session_id) is change.run))
        if change.checked:
            latest[session_id] = change.run
    return operations


def _alone(change: Change) -> Flow[None]:
    """Stores one change; what keeps it from being stored for good is told to its run, and what follows is dropped."""
    run = change.run
    if change.checked and (run.fenced is not None or run.lost is not None):
        return
    try:
        yield from change.alone()
    except StateConflict:
        pass  # its run is fenced, and raises at its next call
    except ReuseRefused as error:
        run.lost = error
    except DatabaseError:
        raise
    except LedgerError as error:
        run.lost = error


def together(operations: Sequence[Operation[Any]]) -> Operation[list[Any]]:
    """Several operations of a single batch each, as one: their statements in one transaction, and their results."""

    def steps() -> Steps[list[Any]]:
        begun = [operation.steps() for operation in operations]
        batches = [next(part) for part in begun]
        answers = yield Batch(_in_lock_order([s for batch in batches for s in batch.statements]), last=True)
        results, start = [], 0
        for part, batch in zip(begun, batches, strict=True):
            end = start + len(batch.statements)
            try:
                part.send(answers[start:end])
            except StopIteration as stop:
                results.append(stop.value)
            start = end
        return results

    return Operation("flush", Access.WRITE, steps)


def _in_lock_order(statements: Sequence[Statement]) -> tuple[Statement, ...]:
    """The statements, with a shared lock of a root row made exclusive where the row is updated further on."""
    found, updated = list[Statement](), set[tuple[str, str]]()
    for statement in reversed(statements):
        if statement.name == "advance_root":
            updated.add(_holder(statement))
        alone = statement.name == "keep" and _holder(statement) in updated
        found.append(replace(statement, name="keep_alone") if alone else statement)
    return tuple(reversed(found))


def _holder(statement: Statement) -> tuple[str, str]:
    return statement.params["session_id"], statement.params["writer"]
