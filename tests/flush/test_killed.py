"""SIGKILL at moments that nobody chose, under every policy: on disk is a prefix, and no more is lost than is said.

`LEDGER_KILLS` says how many there are for each policy and database, of synchronous and asynchronous runs in turn;
figures are printed with `-s`.
"""

import os
import random
import signal
from collections.abc import Iterator
from itertools import count

import pytest

from langgraph_ledger import LedgerSaver
from tests.direct import query
from tests.flush.counting import at, counting, prefix
from tests.flush.killed import APPLICATION, POLICIES, Killed
from tests.four_ways import Backend

KILLS = int(os.environ.get("LEDGER_KILLS", "6"))
ONE_COMMIT = 0.5
"""Seconds that a commit may take on a busy machine, the time until it is begun included."""

_threads = count()


@pytest.fixture(scope="module")
def killed() -> Iterator[Killed]:
    found = Killed()
    yield found
    found.close()


def gone(backend: Backend) -> None:
    """Waits until the server has noticed that its client is gone: it finishes what it was sent before."""
    who = f"SELECT COUNT(*) FROM pg_stat_activity WHERE application_name = '{APPLICATION}'"
    while backend.kind == "postgres" and query(backend, who) != [(0,)]:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_a_prefix_is_on_disk(backend: Backend, killed: Killed, policy: str) -> None:
    chance = random.Random(policy)
    flush = POLICIES[policy]
    most_lost, longest = 0, 0.0
    with LedgerSaver(backend.url) as saver:
        saver.setup()
        for number in range(KILLS):
            thread = f"thread {next(_threads)}"
            answer = killed.run(
                url=backend.url,
                thread=thread,
                policy=policy,
                flavour=("sync", "async")[number % 2],
                tool_every=7 if policy == "important" else 0,
                pause=chance.choice([0, 0, 0.002]),
                after=chance.uniform(0, 0.4),
            )
            assert answer["code"] == -signal.SIGKILL
            gone(backend)
            nodes: dict[int, float] = {}
            effects = set()
            for line in answer["said"]:
                what, number, moment = line.split()
                if what == "node":
                    nodes[int(number)] = float(moment)
                else:
                    effects.add(int(number))
            there = prefix(saver, thread)
            put = max(nodes) - 1  # so many were put
            lost = list(range(there + 1, put + 1))
            most_lost = max(most_lost, len(lost))
            if lost:  # a checkpoint was put when the node after it began
                longest = max(longest, answer["killed"] - nodes[lost[0] + 1])
            started = {
                int(e.call_id.split()[1])
                for e in saver.history(thread)
                if e.checkpoint_type.endswith("started") and e.call_id
            }
            assert effects <= started, "an acknowledged tool call"
            assert there >= max(started, default=0) - 1, "what came before an important transition"
            assert saver.rejected_writes(thread) == []
            report = saver.recover(thread)
            if there >= 0:
                assert report.crashed
                again = counting(saver, there + 3)
                assert again.invoke(None, at(thread))["number"] == max(there + 3, 1)
    print(f"\n{backend.kind}, {policy}: {KILLS} kills, lost at most {most_lost} checkpoints of {longest * 1000:.0f} ms")
    if flush == "always":
        assert most_lost == 0
    elif flush == "important":
        assert most_lost <= 7 + 1
    else:
        assert most_lost <= flush.max_changes
        assert flush.max_delay is None or longest <= flush.max_delay + ONE_COMMIT
