"""The questions that calls ask, and the answers to those of a call that is not made again.

LangGraph counts the questions of a task (`interrupt()`) and answers the first one with the first answer. A call whose
result comes from the log asks nothing: it has to take the answers that it had, or the next one would get them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from langgraph.checkpoint.serde.types import RESUME

from langgraph_ledger.calls import Call, around

_SCRATCHPAD = "__pregel_scratchpad"
_installing = threading.Lock()


class _Counter:
    """In place of a task's own counter of questions: counts them for the calls around as well."""

    def __init__(self, real: Callable[[], int]) -> None:
        self._real = real

    def __call__(self) -> int:
        index, call = self._real(), around.get()
        while call is not None:
            if call.counter is self:  # one around it may stand in a task further out
                call.asked, call.slot = call.asked + 1, index
            call = call.outer
        return index


def _counter_of(scratchpad: Any) -> _Counter:
    with _installing:
        counter = scratchpad.interrupt_counter
        if not isinstance(counter, _Counter):
            counter = _Counter(counter)
            object.__setattr__(scratchpad, "interrupt_counter", counter)  # it is frozen
        return counter


@contextmanager
def counted(call: Call) -> Iterator[None]:
    """Counts for a call what the code in this block asks."""
    scratchpad = call.conf.get(_SCRATCHPAD)
    call.counter = None if scratchpad is None else _counter_of(scratchpad)
    call.outer = around.get()
    token = around.set(call)
    try:
        yield
    finally:
        if around.get() is call:  # elsewhere if a coroutine is closed that nobody finished
            around.reset(token)


def pass_over(conf: Mapping[str, Any], asked: int) -> None:
    """Takes the answers that a call had which asked so often.

    It does as `interrupt()`, but never asks: an answer that a crash took along leaves its place behind.
    """
    scratchpad = conf.get(_SCRATCHPAD)
    if scratchpad is None or not asked:
        return
    counter = _counter_of(scratchpad)
    for _ in range(asked):
        index = counter()
        if index == len(scratchpad.resume):
            scratchpad.resume.append(scratchpad.get_null_resume(True))
        conf["__pregel_send"]([(RESUME, scratchpad.resume[: index + 1])])
