"""A process that forks a child for each job it reads, lets it count, and kills it with SIGKILL at a moment of chance.

A job is a line of JSON, the answer another: what the child said, with the times, and when it was killed. The child says
a number when the node for it begins: then (durability "sync") the checkpoint of the number before has been put. A tool
says its number from within.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from langchain_core.tools import tool

import langgraph_ledger.drivers.postgres  # noqa: F401
from langgraph_ledger import Batched, LedgerSaver
from tests.flush.counting import at, counting
from tests.strict_python import PYTHON

APPLICATION = "to be killed"
POLICIES: dict[str, Any] = {
    "always": "always",
    "by number": Batched(20, None),
    "by number and time": Batched(20, 0.05),
    "by time": Batched(100_000, 0.1),
    "important": "important",
}


class Killed:
    """The other end: starts the worker and gives it jobs."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [*PYTHON, "-m", "tests.flush.killed"],
            cwd=Path(__file__).parent.parent.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def run(self, **job: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        self.process.communicate()
        assert self.process.returncode == 0


def count(job: dict[str, Any], writer: int) -> None:
    """What the child does."""

    def say(what: str, number: int) -> None:
        os.write(writer, f"{what} {number} {time.monotonic()}\n".encode())

    @tool
    def mark(number: int) -> str:
        """Do something that counts."""
        say("effect", number)
        return "done"

    def calls(number: int) -> list[Any]:
        say("node", number)
        if not job["tool_every"] or number % job["tool_every"]:
            return []
        return [{"name": "mark", "args": {"number": number}, "id": f"call {number}", "type": "tool_call"}]

    def each(number: int) -> None:
        for call in calls(number):
            mark.invoke(call)
        time.sleep(job["pause"])

    async def aeach(number: int) -> None:
        for call in calls(number):
            await mark.ainvoke(call)
        await asyncio.sleep(job["pause"])

    options = {"connection_kwargs": {"application_name": APPLICATION}} if job["url"].startswith("postgres") else {}
    saver = LedgerSaver(job["url"], flush=POLICIES[job["policy"]], **options)
    start: Any = {"number": 0, "seen": []}
    if job["flavour"] == "sync":
        counting(saver, 100_000, each).invoke(start, at(job["thread"]), durability="sync")
    else:
        graph = counting(saver, 100_000, aeach, is_async=True)
        asyncio.run(graph.ainvoke(start, at(job["thread"]), durability="sync"))


def fork(job: dict[str, Any]) -> dict[str, Any]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            count(job, writer)
        finally:
            os._exit(1)
    os.close(writer)
    said = os.read(reader, 65536)  # it has begun
    time.sleep(job["after"])
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    while chunk := os.read(reader, 65536):
        said += chunk
    os.close(reader)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {"said": said.decode().splitlines(), "killed": killed, "code": code}


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(fork(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
