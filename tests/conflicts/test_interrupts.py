"""One interrupt answered twice at once: one answer counts, the other caller is told."""

from collections.abc import Callable
from typing import Any

import pytest
from langgraph.types import Command

from langgraph_ledger import LedgerSaver
from tests.conflicts.stage import Stage, says
from tests.conflicts.verdict import judge, log_of
from tests.four_ways import Backend

Play = Callable[..., tuple[Stage, Any]]


def expected_log(nested: bool, answer: str, who: str) -> list[str]:
    """The log of a thread that "base" began and `who` answered."""
    inside = ["first base", f"{answer} {who}", f"third {who}"]
    if not nested:
        return says("base")["log"] + inside
    before = [*says("base")["log"], "before base"]
    return [*before, *before, *inside, f"after {who}"]


@pytest.fixture(params=["at the root", "in a subgraph"])
def nested(request: pytest.FixtureRequest) -> bool:
    return request.param == "in a subgraph"


def graph_of(stage: Stage, nested: bool) -> Any:
    return stage.api.compile(stage.asking_below() if nested else stage.asking())


async def pause(stage: Stage, nested: bool) -> Any:
    graph = graph_of(stage, nested)
    assert "__interrupt__" in await stage.attempt("base", graph=graph)
    return graph


def answer(stage: Stage, graph: Any, who: str) -> Any:
    return stage.attempt(who, Command(resume=f"{who} answers"), graph)


def test_two_answers_meet(play: Play, database: Backend, observer: LedgerSaver, nested: bool) -> None:
    """Both have taken up the interrupted node before either goes on."""

    async def scene(stage: Stage) -> Any:
        graph = await pause(stage, nested)
        for who, other in (("A", "B"), ("B", "A")):
            stage.hold(who, "ask", stage.event("at", other, "ask"))
            if stage.durability == "async":
                stage.hold(who, "third", stage.event("refused"))
        return await stage.api.gather(*(lambda who=who: answer(stage, graph, who) for who in "AB"))

    stage, outcomes = play(scene)
    winner, _ = judge(database, observer, stage, dict(zip("AB", outcomes, strict=True)))
    found = log_of(observer, stage)
    assert found == outcomes["AB".index(winner)]["log"]
    assert found == expected_log(nested, f"{winner} answers", winner)
    assert observer.sessions("completed")[0].session_id == stage.thread


def test_one_answer_is_overtaken(play: Play, database: Backend, observer: LedgerSaver, nested: bool) -> None:
    """One caller's answer is being worked on while another's comes and goes."""

    async def scene(stage: Stage) -> Any:
        graph = await pause(stage, nested)
        once = None if stage.durability == "exit" else stage.event("saved", "A", "put_writes", 1)
        stage.hold("A", "ask", stage.event("passed"), once=once)
        if stage.durability == "async":
            stage.hold("A", "third", stage.event("refused", "A"))

        async def rival() -> Any:
            await stage.at("A", "ask")
            return await answer(stage, graph, "B")

        return await stage.overtaken(lambda: answer(stage, graph, "A"), rival)

    stage, outcomes = play(scene)
    _, conflict = judge(database, observer, stage, dict(zip("AB", outcomes, strict=True)), winner="B")
    assert log_of(observer, stage) == expected_log(nested, "B answers", "B")
    assert conflict.committed is (stage.durability != "exit")
    assert conflict.last_committed is None
