"""A lane: one thread, or one event loop, that uses a saver; and the savers and lanes of a soak."""

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NoReturn, Self

from langgraph.errors import EmptyInputError

from benchmarks.soak.activities import ACTIVITIES, Activity
from benchmarks.soak.graphs import Failure, agent, turn
from langgraph_ledger import Batched, LedgerSaver, StateConflict
from langgraph_ledger.drivers.sqlite import MAX_THREADS
from langgraph_ledger.errors import InvalidInput
from tests.four_ways import Flavoured

EXPECTED = (StateConflict, EmptyInputError, InvalidInput, Failure)
"""How an activity may end: its thread was taken, its question was answered by another one, its thread was deleted, it
failed as planned."""
CHILD_SECONDS = 60.0
DEFAULT_EXECUTOR = min(32, (os.cpu_count() or 1) + 4)
"""Threads that an event loop may have for what is synchronous."""
MAX_CONNECTIONS = 10
"""A saver's `max_size`, for each event loop and for all threads."""


class Lane(Flavoured):
    """Does one activity after another, in its own flavour."""

    def __init__(self, saver: LedgerSaver, url: str, threads: Sequence[str], seed: str, *, asynchronous: bool) -> None:
        super().__init__(saver, asyncio.Runner() if asynchronous else None)
        self.url, self.threads = url, threads
        self.chance = random.Random(seed)
        self.graph = agent(saver)
        self.told = Counter[str]()

    @property
    def thread(self) -> str:
        """The name of one of the threads."""
        return self.chance.choice(self.threads)

    def do(self, activity: Activity) -> None:
        """One activity, which may lose."""
        how = "done"
        try:
            activity(self)
        except EXPECTED as error:
            how = type(error).__name__
        self.told[f"{activity.__name__} {how}"] += 1

    def work(self, until: float) -> None:
        """Activities at random, until it is time."""
        while time.monotonic() < until:
            self.do(self.chance.choice(ACTIVITIES))

    def all(self) -> None:
        """Every activity once."""
        for activity in ACTIVITIES:
            self.do(activity)

    def end(self) -> None:
        if self.runner is not None:
            self.runner.run(self.saver.aclose())
            self.runner.close()


class Lanes:
    """Two savers of one database, one of which commits later, and what uses them side by side."""

    def __init__(self, url: str, threads: int = 40, seed: int = 1) -> None:
        names = [f"thread {number}" for number in range(threads)]
        self.url = url
        self.savers = [LedgerSaver(url), LedgerSaver(url, flush=Batched(20, 0.05), working_channels={"draft"})]
        for saver in self.savers:
            saver.setup()
        self.lanes = [
            Lane(saver, url, names, f"{seed} {number} {asynchronous}", asynchronous=asynchronous)
            for number, saver in enumerate(self.savers)
            for asynchronous in (False, True)
        ]
        self.pool = ThreadPoolExecutor(len(self.lanes))

    @property
    def told(self) -> Counter[str]:
        """How often each activity ended how."""
        return sum((lane.told for lane in self.lanes), Counter[str]())

    @property
    def loops(self) -> list[asyncio.AbstractEventLoop]:
        return [lane.runner.get_loop() for lane in self.lanes if lane.runner is not None]

    @property
    def limits(self) -> dict[str, int]:
        """How large the savers' and the event loops' pools may become."""
        on_sqlite = not self.url.startswith("postgres")
        threads = MAX_THREADS * len(self.savers) * on_sqlite + DEFAULT_EXECUTOR * sum(
            lane.is_async for lane in self.lanes
        )
        return {"pooled": threads, "connections": 0 if on_sqlite else MAX_CONNECTIONS * len(self.lanes)}

    def spell(self, seconds: float) -> None:
        """Load from all lanes for so long; then what waits is committed."""
        until = time.monotonic() + seconds
        self._each(lambda lane: lane.work(until))
        self._rest()

    def round(self) -> None:
        """Every activity once in every lane, side by side."""
        self._each(Lane.all)
        self._rest()

    def _each(self, work: Any) -> None:
        for done in [self.pool.submit(work, lane) for lane in self.lanes]:
            done.result()

    def _rest(self) -> None:
        for saver in self.savers:
            saver.flush()
            saver.sessions(limit=1)  # the ends of streams that were left are put on record
        for lane in self.lanes:
            if lane.runner is not None:  # tasks that have just ended are done with
                lane.runner.run(asyncio.sleep(0.1))

    def fork(self) -> None:
        """A worker that goes on with a saver of its parent's. Nobody may be at work."""
        lane = self.lanes[0]
        child = os.fork()
        if child == 0:
            _child(lane)
        until = time.monotonic() + CHILD_SECONDS
        while (found := os.waitpid(child, os.WNOHANG)) == (0, 0):
            if time.monotonic() > until:
                os.kill(child, 9)
            time.sleep(0.01)
        if code := os.waitstatus_to_exitcode(found[1]):
            raise RuntimeError(f"a forked worker ended with code {code}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.pool.shutdown()
        for lane in self.lanes:
            lane.end()
        for saver in self.savers:
            saver.close()


def _child(lane: Lane) -> NoReturn:
    code = 1
    with suppress(BaseException):
        lane.graph.invoke(turn("tools"), {"configurable": {"thread_id": "thread of a child"}})
        lane.saver.delete_thread("thread of a child")
        lane.saver.close()
        code = 0
    os._exit(code)
