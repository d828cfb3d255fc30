"""A process that was stopped in a tool and overtaken meanwhile makes none of its other calls."""

import multiprocessing
import os
import signal
from uuid import uuid4

import pytest

from tests.direct import shared_backend
from tests.four_ways import Backend, Flavoured
from tests.recovery.stage import config_of, kinds
from tests.recovery.zombie import STEPS, graph_of, work

backend = shared_backend
PATIENCE = 60


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_stopped_process_makes_no_more_calls(
    four: Flavoured, backend: Backend, flavour: str, durability: str
) -> None:
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    config = config_of(str(uuid4()))
    thread = config["configurable"]["thread_id"]
    zombie = context.Process(target=work, args=(theirs, backend.url, thread, flavour, durability), daemon=True)
    zombie.start()
    try:
        assert mine.poll(PATIENCE)
        assert mine.recv() == "at"
        assert zombie.pid is not None
        os.kill(zombie.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, zombie.pid, os.WSTOPPED)
        ran: list[str] = []
        four.invoke(graph_of(four, lambda what: ran.append(what) or what), {"messages": ["overtaker"]}, config)
        assert ran == list(STEPS)
        os.kill(zombie.pid, signal.SIGCONT)
        mine.send("go on")
        assert mine.poll(PATIENCE)
        assert mine.recv() == ("refused", ["first"])
    finally:
        zombie.kill()
        zombie.join()
    found = kinds(four, config)
    assert found[0] == ("tool_call_started", "first")
    assert found[-1] == ("tool_call_completed", "first"), "what it did is on record, whoever holds the thread"
    assert len(found) == 2 * (1 + len(STEPS))
    report = four.call("recover", thread)
    assert (report.status, report.unknown, report.unapplied) == ("completed", (), ())
