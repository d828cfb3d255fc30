"""W12: a loop whose saves are committed one by one, together, or along with the important ones."""

from typing import Any

from benchmarks import graphs
from benchmarks.counting import counting
from benchmarks.harness import Bench, Results, Subject, summary, thread
from langgraph_ledger import Batched

POLICIES: dict[str, Any] = {"always": "always", "Batched": Batched(), "important": "important"}
EXIT = "exit"
"""Not a policy but a durability: LangGraph saves once, at the end."""


def policies(bench: Bench) -> Results:
    """A loop of many steps in each flush policy (savers without any commit each save), and with durability "exit\""""
    steps = bench.sizes.loop_steps
    with bench.opened() as subjects:
        for i, subject in bench.turns(subjects, bench.sizes.loop_rounds + 1):
            for way in bench.shuffle.sample(_ways(subject), len(_ways(subject))):
                _loop(subject, way, i, steps if i else 20, way if i else "warm")
        results: Results = {
            s.key: {
                f"{way}: steps/s": summary([steps / t for t in s.seconds[_own(s, way)]]) for way in (*POLICIES, EXIT)
            }
            for s in subjects
        }
    with counting(bench) as counter, bench.opened(skip=["memory"]) as subjects:
        for subject in subjects:
            commits: dict[str, float] = {}
            _loop(subject, "always", 0, 20, "warm")
            for way in _ways(subject):
                with counter.count(subject) as count:
                    _loop(subject, way, 1, steps, "counted")
                commits[way] = count.writes
            results[subject.key] |= {f"{way}: commits": commits[_own(subject, way)] for way in (*POLICIES, EXIT)}
    return results


def _ways(subject: Subject) -> list[str]:
    return [*POLICIES, EXIT] if subject.contender.peer else ["always", EXIT]


def _own(subject: Subject, way: str) -> str:
    """What a saver does where another one follows this policy."""
    return way if way in _ways(subject) else "always"


def _loop(subject: Subject, way: str, number: int, steps: int, name: str) -> None:
    graph = graphs.loop(subject.saver, subject.is_async)
    config = thread(f"{way} {number}", recursion_limit=steps + 25)
    if subject.contender.peer:
        config["configurable"]["ledger_flush"] = POLICIES.get(way, "always")
    start: dict[str, Any] = {"n": 0, "until": steps, "facts": {}}
    durability = "exit" if way == EXIT else "sync"
    found = subject.call(name, graph, "invoke", start, config, durability=durability)
    assert found["n"] == steps
