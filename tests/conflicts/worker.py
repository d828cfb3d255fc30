"""A process that runs graphs on a thread when told to, and can be held, stopped or killed inside a node."""

import asyncio
import multiprocessing
import os
import signal
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from tests.conflicts.stage import Stage, Watched
from tests.scenarios.api import run_now

PATIENCE = 300.0


class HeldStage(Stage):
    """A stage whose caller says when it is in a node that it is to be held at, and waits for an answer."""

    def __init__(self, saver: Watched, job: dict[str, Any], pipe: Connection) -> None:
        super().__init__(saver, job["flavour"], job["durability"])
        self.thread, self.who, self.pipe, self.holds = job["thread"], job["who"], pipe, job["holds"]

    async def enter(self, who: str, step: str) -> None:
        await super().enter(who, step)
        if step in self.holds:
            self.pipe.send(("at", step))
            await self.api.inner._call(self._told, lambda: asyncio.to_thread(self._told))

    def _told(self) -> None:
        assert self.pipe.poll(PATIENCE), "nobody said how to go on"
        self.pipe.recv()


async def _perform(job: dict[str, Any], pipe: Connection) -> Any:
    saver = Watched(job["url"], **job["options"])
    stage = HeldStage(saver, job, pipe)
    if "first" in stage.holds:
        stage.event("at once").set()
        stage.hold(stage.who, "first", stage.event("at once"), once=job["settled"] and stage.input_saved(stage.who))
    if step := job["until_refused"]:
        stage.hold(stage.who, step, stage.event("refused"))
    try:
        outcome = await stage.attempt(stage.who, job["input"])
    finally:
        await stage.api._call(saver.close, saver.aclose)
    return outcome, stage.ran


def work(pipe: Connection) -> None:
    """Does one job after another until there are no more."""
    with suppress(EOFError):
        while True:
            job = pipe.recv()
            performed = _perform(job, pipe)
            pipe.send(("ended", asyncio.run(performed) if job["flavour"] == "async" else run_now(performed)))


class Worker:
    """The process, seen from the test."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs,), daemon=True)
        self.process.start()
        assert self.process.pid is not None
        self.pid: int = self.process.pid
        theirs.close()

    def begin(self, stage: Stage, who: str, url: str, **job: Any) -> None:
        """Starts a run. It is held at the steps named in `holds` (in the first, once its input is saved if `settled`);
        the step `until_refused` ends when a save has been refused. `options` are the saver's."""
        own = {"who": who, "thread": stage.thread, "flavour": stage.api.flavour, "durability": stage.durability}
        defaults = {"holds": [], "settled": False, "until_refused": None, "input": None, "options": {}}
        self.pipe.send({**own, "url": url, **defaults, **job})

    def hear(self) -> tuple[str, Any]:
        """What the process says next."""
        assert self.pipe.poll(PATIENCE), "the process says nothing"
        found: tuple[str, Any] = self.pipe.recv()
        return found

    def expect(self, what: str) -> Any:
        """What the process says next, which must be this."""
        said, detail = self.hear()
        assert said == what, (said, detail)
        return detail

    def go_on(self) -> None:
        self.pipe.send("go on")

    def stop(self) -> None:
        """SIGSTOP; returns when it has taken effect."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def continue_(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL; returns when it is dead."""
        self.process.kill()
        self.process.join()
        self.pipe.close()

    def close(self) -> None:
        self.pipe.close()
        self.process.join(PATIENCE)
        if self.process.is_alive():
            self.kill()
        self.process.close()
