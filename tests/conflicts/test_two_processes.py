"""Two runs on one thread in two processes: at once, one after the other, and one stopped while the other passes."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from langgraph_ledger import LedgerSaver
from tests.conflicts.stage import STEPS, Stage, lines, says
from tests.conflicts.verdict import judge, log_of
from tests.conflicts.worker import PATIENCE, Worker
from tests.four_ways import Backend

Play = Callable[..., tuple[Stage, Any]]


@pytest.fixture(scope="module")
def workers() -> Iterator[list[Worker]]:
    both = [Worker(), Worker()]
    yield both
    for worker in both:
        worker.close()


def begun(play: Play, existing: bool) -> Stage:
    async def scene(stage: Stage) -> None:
        if existing:
            assert (await stage.attempt("base"))["log"] == lines("base")

    stage, _ = play(scene)
    stage.ran.clear()
    return stage


def base(existing: bool) -> list[str]:
    return lines("base") if existing else []


def ended(stage: Stage, workers: dict[str, Worker]) -> dict[str, Any]:
    """What the runs returned or raised; the steps that they ran become the stage's."""
    outcomes = {}
    for who, worker in workers.items():
        outcomes[who], ran = worker.expect("ended")
        stage.ran += ran
    return outcomes


def test_two_processes_meet(
    play: Play, database: Backend, observer: LedgerSaver, existing: bool, workers: list[Worker]
) -> None:
    """Both are in their first step before either goes on (unless one has been refused by then), and under durability
    async in their second one until one is refused."""
    stage = begun(play, existing)
    holds = ["first", "second"] if stage.durability == "async" else ["first"]
    waiting, outcomes = dict(zip("AB", workers, strict=True)), {}
    for who, worker in waiting.items():
        worker.begin(stage, who, database.url, holds=holds)
    for step in holds:
        for who, worker in list(waiting.items()):
            said, detail = worker.hear()
            if said == "ended":
                outcomes[who], ran = detail
                stage.ran += ran
                del waiting[who]
            else:
                assert detail == step
        if step == "second":
            wait_for_a_refusal(observer, stage)
        for worker in waiting.values():
            worker.go_on()
    outcomes |= ended(stage, waiting)
    winner, _ = judge(database, observer, stage, outcomes)
    found = log_of(observer, stage)
    loser = "AB".replace(winner, "")
    assert found == outcomes[winner]["log"]
    assert found in (base(existing) + lines(winner), base(existing) + says(loser)["log"] + lines(winner))
    assert stage.steps_of(winner) == list(STEPS)


def wait_for_a_refusal(observer: LedgerSaver, stage: Stage) -> None:
    deadline = time.monotonic() + PATIENCE
    while not observer.rejected_writes(stage.thread):
        assert time.monotonic() < deadline, "nobody was refused"
        time.sleep(0.002)


def test_a_stopped_process_is_overtaken(
    play: Play, database: Backend, observer: LedgerSaver, existing: bool, durability: str, workers: list[Worker]
) -> None:
    """SIGSTOP inside a node, another process comes and goes, SIGCONT."""
    stage = begun(play, existing)
    stopped, passing = workers
    until = "second" if durability == "async" else None
    stopped.begin(stage, "A", database.url, holds=["first"], settled=True, until_refused=until)
    assert stopped.expect("at") == "first"
    stopped.stop()
    try:
        passing.begin(stage, "B", database.url)
        outcomes = ended(stage, {"B": passing})
    finally:
        stopped.continue_()
        stopped.go_on()
    outcomes |= ended(stage, {"A": stopped})
    _, conflict = judge(database, observer, stage, outcomes, winner="B")
    kept = [] if stage.durability == "exit" else says("A")["log"]
    assert log_of(observer, stage) == base(existing) + kept + lines("B")
    assert conflict.committed is (stage.durability != "exit")
