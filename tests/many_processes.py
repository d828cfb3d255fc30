"""A process that forks others which all begin at once, each with a saver of its own."""

import gc
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import langgraph_ledger.drivers.postgres  # noqa: F401
from langgraph_ledger import LedgerSaver
from tests.direct import at, checkpoint

THREAD = "one of many"


def put(saver: LedgerSaver, number: int, count: int = 0) -> None:
    made = checkpoint(f"{number}-{count}", {"number": f"{number}" * 500})
    saver.put(at(f"{THREAD} {number}"), made, {"source": "loop", "step": count, "parents": {}}, {"number": "1"})


FIRST: list[Callable[[LedgerSaver, int], Any]] = [
    lambda saver, number: saver.get_tuple(at(f"{THREAD} {number}")),
    put,
    lambda saver, number: list(saver.list(None)),
    lambda saver, number: saver.setup(),
    lambda saver, number: saver.sessions(),
    lambda saver, number: saver.delete_thread("nothing"),
    lambda saver, number: saver.history(f"{THREAD} {number}"),
    lambda saver, number: saver.prune([f"{THREAD} {number}"]),
]


def first_call(url: str, number: int, turn: int, schema: str | None) -> None:
    """Each process another method, and another one the next time; then all of them save."""
    with LedgerSaver(url, schema=schema) as saver:
        FIRST[(number + turn) % len(FIRST)](saver, number)
        put(saver, number, 1)


def many_puts(url: str, number: int, puts: int, schema: str | None) -> None:
    with LedgerSaver(url, schema=schema) as saver:
        for count in range(puts):
            put(saver, number, count)


def at_once(processes: int, act: Callable[[int], None]) -> list[str]:
    """What went wrong in any of the processes. They begin when the last one is there: the pipe is closed then."""
    ready, wait = os.pipe(), os.pipe()
    errors = os.pipe()
    children = []
    for number in range(processes):
        pid = os.fork()
        if pid:
            children.append(pid)
            continue
        code = 0
        try:
            os.close(wait[1])
            os.write(ready[1], b".")
            os.read(wait[0], 1)
            act(number)
        except BaseException:
            os.write(errors[1], traceback.format_exc().encode())
            code = 1
        os._exit(code)
    for _ in range(processes):
        os.read(ready[0], 1)
    for end in (*ready, *wait, errors[1]):
        os.close(end)
    with os.fdopen(errors[0]) as text:
        found = text.read()
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    return [f"exit codes {codes}", found] if any(codes) else []


def main() -> None:
    gc.freeze()
    for line in sys.stdin:
        job = json.loads(line)
        act = {"first call": first_call, "many puts": many_puts}[job["what"]]
        how = (job["how"], job.get("schema"))
        wrong = at_once(job["processes"], lambda number, job=job, act=act, how=how: act(job["url"], number, *how))
        print(json.dumps(wrong), flush=True)


if __name__ == "__main__":
    main()
