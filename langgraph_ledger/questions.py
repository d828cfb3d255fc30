"""The questions of a task: each call that asks with `interrupt()` gets the answer to its own.

LangGraph keeps a task's answers in a list, and gives them to whoever asks in that order. Which call of several asks
first is up to their timing, and a call whose result comes from the log does not ask at all. So the log keeps the slots
of each call's questions in that list, and here they are given out again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Any

from langgraph.checkpoint.serde.types import RESUME
from langgraph.errors import GraphInterrupt

from langgraph_ledger.calls import Call, around

_SCRATCHPAD = "__pregel_scratchpad"
_installing = threading.Lock()


class Questions:
    """In place of what a task's scratchpad has for `interrupt()`: which slot a question has, and who is answered."""

    def __init__(self, conf: Mapping[str, Any]) -> None:
        self._scratchpad = scratchpad = conf[_SCRATCHPAD]
        self._by_id = bool(conf.get("__pregel_resume_map"))
        self._lock = threading.Lock()
        self._answer = scratchpad.get_null_resume
        self._given = set(range(scratchpad.interrupt_counter()))  # to questions from before the first call
        self._reserved: set[int] = set()
        self._latest: dict[str, Call] = {}
        self.open: dict[int, GraphInterrupt] = {}
        """The questions that calls have ended with, by their slots."""

    def begin(self, call: Call) -> None:
        """A call, or what decides about it, is about to ask; a step that is tried again asks the same again."""
        with self._lock:
            earlier = self._latest.get(call.call_id)
            if earlier is not None and earlier is not call:
                self._given.difference_update(earlier.slots)
                for slot in earlier.slots:
                    self.open.pop(slot, None)
            self._latest[call.call_id] = call

    def reserve(self, slots: Iterable[int]) -> None:
        """Keeps slots for the calls that had them before."""
        with self._lock:
            self._reserved.update(slots)

    def slot(self) -> int:
        """The slot of the question that is being asked: the same as before, or the first that nobody has."""
        call = around.get()
        with self._lock:
            slot = self._slot_of(call if call is not None and call.questions is self else None)
            self._given.add(slot)
        self._tell(slot)
        if slot >= len(self._scratchpad.resume):
            _asking.set((self, slot))
        return slot

    def _slot_of(self, call: Call | None) -> int:
        if call is not None and len(call.slots) < len(call.before):
            slot = call.before[len(call.slots)]
            if slot not in self._given:
                return slot
        return next(n for n in count() if n not in self._given and n not in self._reserved)

    def _tell(self, slot: int) -> None:
        call = around.get()
        while call is not None:
            if call.questions is self:  # one around it may stand in a task further out
                call.slots.append(slot)
            call = call.outer

    def answer(self, consume: bool = False) -> Any:
        """The answer that the run was given, for the question whose slot is next, and for those of graphs within."""
        asking = _asking.get()
        if consume and asking is not None and asking[0] is self:
            _asking.set(None)
            if asking[1] != len(self._scratchpad.resume):
                return None
        if self._by_id:  # the answers of this run have names, so this is what an earlier run was given
            return None
        return self._answer(consume)

    def pass_over(self, slots: Iterable[int]) -> None:
        """Takes the answers of a call that is not made again. One that a crash took along leaves its slot behind."""
        with self._lock:
            own = sorted(set(slots) - self._given)
            self._given.update(own)
        for slot in own:
            self._tell(slot)
            if slot == len(self._scratchpad.resume):
                self._scratchpad.resume.append(self.answer(True))


_asking: ContextVar[tuple[Questions, int] | None] = ContextVar("langgraph_ledger_asking", default=None)
"""The question that LangGraph's `interrupt()` looks for an answer to just now."""


def questions_of(conf: Mapping[str, Any]) -> Questions | None:
    """Those of the task with this config, if it is a task's."""
    scratchpad = conf.get(_SCRATCHPAD)
    if scratchpad is None:
        return None
    with _installing:
        found = getattr(scratchpad.interrupt_counter, "__self__", None)
        if not isinstance(found, Questions):
            found = Questions(conf)
            object.__setattr__(scratchpad, "interrupt_counter", found.slot)  # it is frozen
            object.__setattr__(scratchpad, "get_null_resume", found.answer)
        return found


def has_answers(conf: Mapping[str, Any]) -> bool:
    """Whether the run was given an answer, or the task had one before."""
    scratchpad = conf.get(_SCRATCHPAD)
    return scratchpad is not None and bool(scratchpad.resume or scratchpad.get_null_resume(False) is not None)


@contextmanager
def asking(call: Call) -> Iterator[None]:
    """Whatever this block asks, the call asks."""
    call.questions, call.outer = questions_of(call.conf), around.get()
    if call.questions is not None:
        call.questions.begin(call)
    token = around.set(call)
    try:
        yield
    finally:
        if around.get() is call:  # elsewhere if a coroutine is closed that nobody finished
            around.reset(token)


def ends_with(call: Call, error: BaseException | None) -> bool:
    """Notes that a call ends, and whether it does so with a question of its own."""
    if not isinstance(error, GraphInterrupt) or call.questions is None or not call.slots:
        return False
    own = call.slots[-1] >= len(call.conf[_SCRATCHPAD].resume)  # else it is one of a graph within
    if own:
        call.questions.open[call.slots[-1]] = error
    return own


def keep_answers(call: Call) -> None:
    """Lets LangGraph keep all answers of the task: of calls side by side each sends those up to its own."""
    if call.questions is not None and call.conf[_SCRATCHPAD].resume:
        call.conf["__pregel_send"]([(RESUME, list(call.conf[_SCRATCHPAD].resume))])
