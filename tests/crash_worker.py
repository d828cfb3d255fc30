"""A process that forks a child for each job it reads, so that what is slow to import is imported once.

A job is a line of JSON: a scenario or the graph, on which thread of which database, and when the child is to kill
itself. The answer, another line, is how the child ended and what it said: an `ack` after every call that returned.
"""

import asyncio
import gc
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import langgraph_ledger.drivers.postgres  # noqa: F401
from langgraph_ledger import LedgerSaver
from tests.crash_scenarios import SCENARIOS, Actor, put_together, run_graph, run_tools
from tests.four_ways import Flavoured
from tests.golden.migrating import of_the_next_version
from tests.strict_python import PYTHON

APPLICATION = "to be killed"


class Crashes:
    """The other end: starts the worker and gives it jobs."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [*PYTHON, "-m", "tests.crash_worker"],
            cwd=Path(__file__).parent.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def run(self, **job: Any) -> tuple[int, list[str]]:
        """How the child ended (0, or minus the signal), and what it said."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        answer = json.loads(self.process.stdout.readline())
        assert answer["code"] in (0, -signal.SIGKILL), "\n".join(answer["said"])
        return answer["code"], answer["said"]

    def close(self) -> None:
        self.process.communicate()
        assert self.process.returncode == 0


BORDERS = {("before", "begin_write"), ("before", "commit"), ("after", "commit")}
"""What is stored differs from one of these events to the next; between them, a transaction is open."""


def killer(
    at: int | None, say: Callable[[str], None], in_tool: str | None = None, borders: bool = False
) -> Callable[[str, str], None]:
    """A trace that kills this process at the given one of the events within transactions that write, and in tools.

    `in_tool` names the event of a tool to kill at instead: "before" it does something, or "after". With `borders`, only
    those events of transactions count.
    """
    counted = itertools.count()  # by several threads at once
    writing: set[object] = set()  # the threads, or tasks, whose transaction does

    def trace(event: str, statement: str) -> None:
        me = _current()
        if (event, statement) == ("before", "begin_write"):
            writing.add(me)
        if statement == "tool" or (me in writing and (not borders or (event, statement) in BORDERS)):
            number = next(counted)
            say(f"event {event} {statement}")
            if number == at or (statement == "tool" and event == in_tool):
                os.kill(os.getpid(), signal.SIGKILL)
        if event == "after" and statement in ("commit", "rollback"):
            writing.discard(me)

    return trace


def _current() -> object:
    try:
        return asyncio.current_task() or threading.get_ident()
    except RuntimeError:
        return threading.get_ident()


def act(job: dict[str, Any], say: Callable[[str], None]) -> None:
    """What the child does."""
    scenario = SCENARIOS.get(job.get("scenario", ""))
    options: dict[str, Any] = dict(scenario.options) if scenario else {}
    if job["url"].startswith("postgres"):
        options["connection_kwargs"] = {"application_name": APPLICATION}
        options["schema"] = job.get("schema")
    runner = asyncio.Runner() if job.get("flavour") == "async" else None
    actor = Actor(Flavoured(LedgerSaver(job["url"], **options), runner), job["thread"])
    if scenario is not None:
        for call in scenario.ready:
            call(actor)
        if job.get("traced", True):
            actor.on.saver._driver.trace = killer(job.get("kill_at"), say)
        for call in scenario.calls[: job.get("calls")]:
            call(actor)
            say("ack")
    elif job.get("scenario") == "graph":
        actor.on.call("sessions")  # the tables are there: it is the graph's own writes that are counted
        actor.on.saver._driver.trace = killer(job.get("kill_at"), say)
        run_graph(actor, job["durability"], lambda name: say(f"ran {name}"))
    elif job.get("scenario") == "tools":
        actor.on.call("sessions")
        trace = actor.on.saver._driver.trace = killer(
            job.get("kill_at"), say, job.get("kill_in_tool"), job.get("borders", False)
        )
        run_tools(actor, job, say, trace)
    elif job.get("scenario") == "group":
        actor.on.call("sessions")
        actor.on.saver._driver.trace = killer(job.get("kill_at"), say)
        put_together(actor)
    elif job.get("scenario") in ("tables", "migration"):
        if job["scenario"] == "migration":
            of_the_next_version(actor.on.saver)
        actor.on.saver._driver.trace = killer(job.get("kill_at"), say)
        actor.on.call("setup")
    else:
        raise AssertionError(job)


def fork(job: dict[str, Any]) -> dict[str, Any]:
    """Lets a child do the job, and kills it from outside if the job says so: so long after so many acks."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            os.close(reader)
            act(job, lambda text: os.write(writer, f"{text}\n".encode()) and None)
        except BaseException:
            os.write(writer, traceback.format_exc().encode())
            code = 1
        os._exit(code)
    os.close(writer)
    said = b""
    acks, turns = job.get("kill_after", (-1, 0))
    while chunk := os.read(reader, 65536):
        said += chunk
        if 0 <= acks <= said.count(b"ack\n"):
            for _ in range(turns):
                pass
            os.kill(pid, signal.SIGKILL)
            acks = -1
    os.close(reader)
    return {"code": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), "said": said.decode().splitlines()}


def main() -> None:
    gc.freeze()  # what a child does not touch, it does not copy
    for line in sys.stdin:
        print(json.dumps(fork(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
