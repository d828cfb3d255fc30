"""Guarded calls that a node makes side by side: none is left running when an error or a question of one ends the node.

ToolNode makes the calls of a message with asyncio.gather, which passes on the first error at once and lets the others
run on when their run is over: nobody would have their results, and a loop that is closed breaks them off. Of several
questions it shows the one that comes out first, where LangGraph gives the answer to the first slot that has none.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from types import TracebackType

from langgraph.errors import GraphInterrupt

from langgraph_ledger.calls import Call
from langgraph_ledger.drivers.transact import Driver
from langgraph_ledger.flow import Flow, adrive, drive
from langgraph_ledger.questions import ends_with, keep_answers


class Company:
    """Those that are under way side by side."""

    def __init__(self) -> None:
        self.under_way = 0
        self.ended: Future[None] = Future()


class Abreast:
    """`with Abreast(call, driver):` around a call. An error leaves the block when the calls beside it have ended, and
    a question as the one of them all that will be answered first."""

    def __init__(self, call: Call, driver: Driver) -> None:
        self._call, self._driver = call, driver

    def __enter__(self) -> None:
        self._join(None)

    def _join(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Those of an event loop wait for each other alone: one in a thread may hold up that loop."""
        assert self._call.run is not None
        self._run, self._key = self._call.run, (self._call.line, loop)
        with self._run.lock:
            self._company: Company = self._run.abreast.setdefault(self._key, Company())
            self._company.under_way += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        drive(self._leave(error), self._driver)

    async def __aenter__(self) -> None:
        self._join(asyncio.get_running_loop())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, Exception):
                await asyncio.sleep(0)  # all that gather makes have begun then
        finally:
            await adrive(self._leave(error), self._driver)

    def _leave(self, error: BaseException | None) -> Flow[None]:
        call, company = self._call, self._company
        ends_with(call, error)
        with self._run.lock:
            company.under_way -= 1
            if over := not company.under_way:
                del self._run.abreast[self._key]
        if over:
            company.ended.set_result(None)
        if isinstance(error, Exception):
            yield company.ended
        first = error
        if isinstance(error, GraphInterrupt) and call.questions is not None and call.questions.open:
            # perhaps of one that has left before others came; those of a graph within come after those of the task
            first = call.questions.shown(call.conf)
        keep_answers(call)
        if first is not None and first is not error:
            raise GraphInterrupt(*first.args)
