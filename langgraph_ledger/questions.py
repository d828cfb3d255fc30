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

from langgraph import types
from langgraph.checkpoint.serde.types import RESUME
from langgraph.errors import GraphInterrupt

from langgraph_ledger.call_records import INQUIRIES, QUESTIONS
from langgraph_ledger.calls import Call, around

_SCRATCHPAD = "__pregel_scratchpad"
_interrupt_id = getattr(types, "_interrupt_id", None)
"""How LangGraph names a question; before it had this, all of a task had one name."""
_installing = threading.Lock()


class Questions:
    """In place of what a task's scratchpad has for `interrupt()`: which slot a question has, and who is answered."""

    def __init__(self, conf: Mapping[str, Any]) -> None:
        self._scratchpad = scratchpad = conf[_SCRATCHPAD]
        self._by_id = bool(conf.get("__pregel_resume_map"))
        self._lock = threading.Lock()
        self._answer = scratchpad.get_null_resume
        self.answered = len(scratchpad.resume)
        """The questions in the slots below this one have an answer, whether they are asked again or not."""
        if not self._by_id and _is_there(self._answer):
            self.answered += 1
        self._given = set(range(scratchpad.interrupt_counter()))  # to questions from before the first call
        self._reserved: set[int] = set()
        self._passed: set[int] = set()
        self._latest: dict[str, Call] = {}
        self.open: dict[int, GraphInterrupt] = {}
        """The questions that calls have ended with, by their slots."""

    def begin(self, call: Call) -> None:
        """A call, or what decides about it, is about to ask; a step that is tried again asks the same again."""
        with self._lock:
            earlier = self._latest.get(call.call_id)
            if earlier is not None and earlier is not call:
                self._given.difference_update(earlier.slots)
                self._passed.difference_update(earlier.slots)
                for slot in earlier.slots:
                    self.open.pop(slot, None)
            self._latest[call.call_id] = call

    def reserve(self, slots: Iterable[int]) -> None:
        """Keeps the answers of calls for them. A question without one may have another slot each time."""
        with self._lock:
            self._reserved.update(slot for slot in slots if slot < self.answered)

    def slot(self) -> int:
        """The slot of the question that is being asked: the one with its answer, or the first that nobody has."""
        call = around.get()
        with self._lock:
            slot = self._slot_of(call if call is not None and call.questions is self else None)
            self._given.add(slot)
        self._tell(slot)
        _asking.set((self, slot) if slot >= len(self._scratchpad.resume) else None)
        return slot

    def _slot_of(self, call: Call | None) -> int:
        if call is not None and len(call.slots) < len(call.before):
            slot = call.before[len(call.slots)]
            if slot < self.answered and slot not in self._given:
                return slot
        first = 0
        while call is not None:
            if call.line and call.questions is self:  # what is not on record as its own is somebody else's answer
                first = self.answered
            call = call.outer
        return next(n for n in count(first) if n not in self._given and n not in self._reserved)

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
        elif self.is_owed():
            return None
        return self._given_answer(consume)

    def is_owed(self) -> bool:
        """Whether the next answer is for a call of this task, and not for a graph within."""
        return len(self._scratchpad.resume) in self._reserved

    def _given_answer(self, consume: bool) -> Any:
        if self._by_id:  # the answers of this run have names, so this is what an earlier run was given
            return None
        return self._answer(consume)

    def pass_over(self, slots: Iterable[int]) -> None:
        """Takes the answers of a call that does not ask for them. One that a crash took along leaves its slot
        behind."""
        resume = self._scratchpad.resume
        with self._lock:
            own = sorted(set(slots) - self._given)
            self._given.update(own)
            self._passed.update(own)
            while len(resume) in self._passed:
                resume.append(self._given_answer(True))
        for slot in own:
            self._tell(slot)

    def shown(self, conf: Mapping[str, Any]) -> GraphInterrupt:
        """Of the open questions the one that will be answered first, under the name that its answer has then.

        An answer for which nobody came is kept for its call, so that it is not overwritten by the next one.
        """
        resume, slot = self._scratchpad.resume, min(self.open)
        with self._lock:
            if len(resume) < slot and (answer := self._given_answer(True)) is not None:
                resume.append(answer)
        if _interrupt_id is not None:
            self.open[slot].args[0][0].id = _interrupt_id(conf["checkpoint_ns"], len(resume))
        return self.open[slot]


def _is_there(answer: Any) -> bool:
    """Whether the run's answer without an id is still to be had. LangGraph shows it after it was taken, too."""
    questions = getattr(answer, "__self__", None)
    if isinstance(questions, Questions):
        return not (questions._by_id or questions.is_owed()) and _is_there(questions._answer)
    names, cells = getattr(getattr(answer, "__code__", None), "co_freevars", ()), getattr(answer, "__closure__", None)
    parts = {name: cell.cell_contents for name, cell in zip(names, cells or (), strict=False)}
    if not parts.keys() >= {"null_resume_write", "pending_writes", "parent_scratchpad"}:
        return answer(False) is not None
    write, parent = parts["null_resume_write"], parts["parent_scratchpad"]
    if write is None:
        return parent is not None and _is_there(parent.get_null_resume)
    return any(one is write for one in parts["pending_writes"])


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


def unasked(call: Call) -> list[int]:
    """The slots of the answers that a call had before and has not asked for again."""
    if call.questions is None:
        return list(call.before)
    before = call.before[len(call.slots) :]
    return [slot for slot in before if slot < call.questions.answered and slot not in call.slots]


def asked(call: Call) -> dict[str, Any]:
    """The slots of a call's questions and of those about it, for its entries in the log, if there were any."""
    askers = {QUESTIONS: call, INQUIRIES: call.asker}
    return {which: [*one.slots, *unasked(one)] for which, one in askers.items() if one and (one.slots or one.before)}


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


@contextmanager
def making(call: Call) -> Iterator[None]:
    """The call is made in this block. Answers that it does not ask for any more are nobody else's."""
    with asking(call):
        try:
            yield
        finally:
            if call.questions is not None:
                call.questions.pass_over(unasked(call))


def ends_with(call: Call, error: BaseException | None) -> None:
    """Notes the question of its own that a call ends with, if it does."""
    slots = [*call.slots, *(call.asker.slots if call.asker is not None else ())]
    if isinstance(error, GraphInterrupt) and call.questions is not None and slots:
        own = max(slots)
        if own >= len(call.conf[_SCRATCHPAD].resume):  # else it is one of a graph within
            call.questions.open[own] = error


def keep_answers(call: Call) -> None:
    """Lets LangGraph keep all answers of the task: of calls side by side each sends those up to its own."""
    if call.questions is not None and call.conf[_SCRATCHPAD].resume:
        call.conf["__pregel_send"]([(RESUME, list(call.conf[_SCRATCHPAD].resume))])
