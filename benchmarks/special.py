"""W6 to W9: cold starts, fan-out, state that never repeats, delta channels."""

import compileall
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import graphs
from benchmarks.corpus import conversation
from benchmarks.counting import counting
from benchmarks.harness import Bench, Results, rounded, summary, thread

ROOT = Path(__file__).parent.parent


def cold_start(bench: Bench) -> Results:
    """A new process loads that conversation; synchronous savers"""
    sizes = bench.sizes
    pairs = conversation(sizes.chat_turns, sizes.chat_megabytes)
    messages = [message for pair in pairs for message in pair]
    compileall.compile_dir(ROOT / "langgraph_ledger", quiet=1)  # as an installer does
    with bench.opened(skip=["memory"]) as everyone:
        subjects = [subject for subject in everyone if not subject.is_async]
        for subject in subjects:
            graph = graphs.chat(subject.saver, False, [])
            for at in range(0, len(messages), 10):
                graph.update_state(thread("cold"), {"messages": messages[at : at + 10]}, as_node="model")
        for _, subject in bench.turns(subjects, sizes.cold_starts):
            command = [sys.executable, "-m", "benchmarks.cold", subject.key, subject.address, str(len(messages))]
            ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
            for name, seconds in json.loads(ended.stdout).items():
                subject.seconds[name].append(seconds)
        for subject in subjects:
            pairs_of_times = zip(subject.seconds["open"], subject.seconds["load"], strict=True)
            subject.seconds["open and load"] = [opening + loading for opening, loading in pairs_of_times]
        names = ("import langgraph", "import", "open", "load", "open and load")
        return {s.key: {f"{name} ms": s.milliseconds(name) for name in names} for s in subjects}


def fan_out(bench: Bench) -> Results:
    """Parallel tasks in one invoke; statements and commits are counted in another one"""
    sizes = bench.sizes
    start: dict[str, Any] = {"results": []}
    with bench.opened() as subjects:
        for i, subject in bench.turns(subjects, sizes.fan_outs + 1):
            graph = graphs.fan(subject.saver, subject.is_async, sizes.sends)
            found = subject.call("invoke" if i else "warm", graph, "invoke", start, thread(f"fan {i}"))
            assert len(found["results"]) == sizes.sends
        results: Results = {s.key: {"invoke ms": s.milliseconds("invoke")} for s in subjects}
    with counting(bench) as counter, bench.opened(skip=["memory"]) as subjects:
        for i, subject in bench.turns(subjects, sizes.counted + 1):
            graph = graphs.fan(subject.saver, subject.is_async, sizes.sends)
            with counter.count(subject) as count:
                subject.call("counted", graph, "invoke", start, thread(f"fan {i}"))
            if i:
                subject.seconds["statements"].append(count.statements)
                subject.seconds["commits"].append(count.writes)
        for subject in subjects:
            for name in ("statements", "commits"):
                results[subject.key][name] = summary(subject.seconds[name])["median"]
    return results


def random_state(bench: Bench) -> Results:
    """A loop whose state is random bytes, all new with each step, with durability "sync", five steps an invoke"""
    sizes = bench.sizes
    with bench.opened() as subjects:
        for subject in subjects:
            subject.notes["graph"] = graphs.noise(subject.saver, subject.is_async, sizes.random_kilobytes)
        for i, subject in bench.turns(subjects, sizes.random_steps // 5 + 1):
            start = {"n": 0, "until": 5, "blob": b"", "items": []}
            name = "invoke" if i else "warm"
            subject.call(name, subject.notes["graph"], "invoke", start, thread("random"), durability="sync")
        for kind, _, subject in bench.reads(subjects):
            found = subject.call(f"{kind}get", subject.saver, "get_tuple", thread("random"))
            assert len(found.checkpoint["channel_values"]["blob"]) == sizes.random_kilobytes * 500
        for _, subject in bench.turns(subjects, sizes.lists):
            subject.call("list", subject.saver, "list", thread("random"), limit=10)
        return {
            s.key: {
                "step ms": summary([seconds * 1e3 / 5 for seconds in s.seconds["invoke"]]),
                "get ms": s.milliseconds("get"),
                "list(10) ms": s.milliseconds("list"),
                "stored MB": rounded(s.stored() / 1e6),
            }
            for s in subjects
        }


def delta_channel(bench: Bench) -> Results:
    """A conversation in a delta channel, whose state is rebuilt from writes, with durability "async" as in W1"""
    sizes = bench.sizes
    pairs = conversation(sizes.delta_turns, sizes.chat_megabytes * sizes.delta_turns / sizes.chat_turns)
    replies = [reply for _, reply in pairs]
    few = min(20, sizes.delta_turns // 2)
    with bench.opened() as subjects:
        for subject in subjects:
            subject.notes["graph"] = graphs.chat(subject.saver, subject.is_async, replies, delta=True)
        for i, subject in bench.turns(subjects, sizes.delta_turns):
            state = {"messages": [pairs[i][0]]}
            subject.call("turn", subject.notes["graph"], "invoke", state, thread("delta"), durability="async")
        for kind, _, subject in bench.reads(subjects):
            found = subject.call(f"{kind}get", subject.notes["graph"], "get_state", thread("delta"))
            assert len(found.values["messages"]) == 2 * sizes.delta_turns
        return {
            s.key: {
                "last 20 turns ms": summary([seconds * 1e3 for seconds in s.seconds["turn"][-few:]]),
                "get_state ms": s.milliseconds("get"),
                "stored MB": rounded(s.stored() / 1e6),
            }
            for s in subjects
        }
