"""W1 to W5: what a conversation, a loop, many threads and many clients cost.

A workload gives the figures of each saver. What has a median is milliseconds or a rate; sizes are totals.
"""

import asyncio
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from langgraph.checkpoint.base.id import uuid6

from benchmarks import graphs
from benchmarks.corpus import conversation
from benchmarks.harness import Bench, Results, Subject, rounded, summary, thread
from benchmarks.savers import POOL_SIZE


def chat(bench: Bench) -> Results:
    """A conversation grows by an invoke for each turn, with durability "async", LangGraph's default"""
    sizes = bench.sizes
    pairs = conversation(sizes.chat_turns, sizes.chat_megabytes)
    few = min(10, sizes.chat_turns // 2)
    with bench.opened() as subjects:
        for subject in subjects:
            subject.notes["graph"] = graphs.chat(subject.saver, subject.is_async, [reply for _, reply in pairs])
            subject.notes["written"] = 0
        for i, subject in bench.turns(subjects, sizes.chat_turns):
            before = subject.written()
            state = {"messages": [pairs[i][0]]}
            found = subject.call("turn", subject.notes["graph"], "invoke", state, thread("chat"), durability="async")
            subject.notes["written"] += subject.written() - before
            assert len(found["messages"]) == 2 * i + 2
        return {
            subject.key: {
                "first 10 turns ms": summary([s * 1e3 for s in subject.seconds["turn"][:few]]),
                "last 10 turns ms": summary([s * 1e3 for s in subject.seconds["turn"][-few:]]),
                "all turns s": rounded(sum(subject.seconds["turn"])),
                "stored MB": rounded(subject.stored() / 1e6),
                "written MB": rounded(subject.notes["written"] / 1e6),
                "_turns ms": [rounded(s * 1e3) for s in subject.seconds["turn"]],
            }
            for subject in subjects
        }


def operations(bench: Bench) -> Results:
    """The saver's methods on that conversation, one message more with each put"""
    sizes = bench.sizes
    rounds, skipped = sizes.operations_seed + sizes.operations, sizes.operations_seed
    pairs = conversation(
        sizes.chat_turns + sizes.operations, sizes.chat_megabytes * (1 + sizes.operations / sizes.chat_turns)
    )
    messages = [message for pair in pairs for message in pair]
    first = 2 * sizes.chat_turns - rounds + sizes.operations // 2
    with bench.opened() as subjects:
        for subject in subjects:
            subject.notes.update(version=None, config=thread("operations"), ids=[])
        for i, subject in bench.turns(subjects, rounds):
            kind = "" if i >= skipped else "seed "
            put_messages(subject, messages[: first + i], i, kind)
            written = [("messages", [messages[first + i]])]
            task = str(uuid.uuid4())
            subject.call(kind + "put_writes", subject.saver, "put_writes", subject.notes["config"], written, task)
        for kind, i, subject in bench.reads(subjects):
            found = subject.call(f"{kind}get latest", subject.saver, "get_tuple", thread("operations"))
            assert len(found.checkpoint["channel_values"]["messages"]) == first + rounds - 1
            assert len(found.pending_writes) == 1
            ids = subject.notes["ids"]
            named = thread("operations", ids[-2 - i % (len(ids) - 2)])
            assert subject.call(f"{kind}get by id", subject.saver, "get_tuple", named) is not None
        for limit in (10, 100):
            for _, subject in bench.turns(subjects, sizes.lists):
                listed = subject.call(f"list({limit})", subject.saver, "list", thread("operations"), limit=limit)
                assert len(listed) == min(limit, rounds)
        names = ("put", "put_writes", "get latest", "get by id", "list(10)", "list(100)")
        return {s.key: {f"{name} ms": s.milliseconds(name) for name in names} for s in subjects}


def put_messages(subject: Subject, messages: list[Any], step: int, kind: str = "") -> None:
    """A put of the next checkpoint in the subject's thread, whose state is these messages."""
    notes = subject.notes
    if notes["version"] is None:  # a run begins with a read
        subject.call("first", subject.saver, "get_tuple", notes["config"])
    notes["version"] = version = subject.saver.get_next_version(notes["version"], None)
    checkpoint = {
        "v": 4,
        "id": str(uuid6(clock_seq=step)),
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": {"messages": messages},
        "channel_versions": {"__start__": version, "messages": version, "branch:to:model": version},
        "versions_seen": {
            "__input__": {},
            "__start__": {"__start__": version},
            "model": {"branch:to:model": version},
        },
        "updated_channels": ["messages"],
    }
    metadata = {"source": "loop", "step": step, "parents": {}}
    changed = {"messages": version}
    notes["config"] = subject.call(f"{kind}put", subject.saver, "put", notes["config"], checkpoint, metadata, changed)
    notes["ids"].append(checkpoint["id"])


def loop(bench: Bench) -> Results:
    """A loop of many steps on a small state, one invoke, in each durability"""
    sizes = bench.sizes
    with bench.opened() as subjects:
        for subject in subjects:
            subject.notes["graph"] = graphs.loop(subject.saver, subject.is_async)
        for durability, rounds in (("sync", sizes.loop_rounds), ("async", 1), ("exit", 1)):
            for i, subject in bench.turns(subjects, rounds + 1):  # the first warms up
                start = {"n": 0, "until": sizes.loop_steps if i else 20, "facts": {}}
                config = thread(f"{durability} {i}", recursion_limit=sizes.loop_steps + 25)
                name, graph = durability if i else "warm", subject.notes["graph"]
                subject.call(name, graph, "invoke", start, config, durability=durability)
        return {
            s.key: {
                f"{durability} steps/s": summary([sizes.loop_steps / seconds for seconds in s.seconds[durability]])
                for durability in ("sync", "async", "exit")
            }
            for s in subjects
        }


def threads(bench: Bench) -> Results:
    """Many threads: an invoke of 4 steps on each, then the latest states of some, at random"""
    sizes = bench.sizes
    chunks = sizes.threads // sizes.threads_in_turn
    with bench.opened() as subjects:
        for subject in subjects:
            subject.notes["graph"] = graphs.loop(subject.saver, subject.is_async)
            subject.call("warm", subject.notes["graph"], "invoke", {"n": 0, "until": 4, "facts": {}}, thread("warm"))
        for i, subject in bench.turns(subjects, chunks):
            for j in range(sizes.threads_in_turn):
                start = {"n": 0, "until": 4, "facts": {}}
                subject.call("invoke", subject.notes["graph"], "invoke", start, thread(f"user {i} {j}"))
        for i, subject in bench.turns(subjects, POOL_SIZE + sizes.thread_reads):
            name = f"user {bench.shuffle.randrange(chunks)} {bench.shuffle.randrange(sizes.threads_in_turn)}"
            found = subject.call("get" if i >= POOL_SIZE else "warm", subject.saver, "get_tuple", thread(name))
            assert found.checkpoint["channel_values"]["n"] == 4
        return {
            s.key: {
                "threads/s": rounded(sizes.threads / sum(s.seconds["invoke"])),
                "invoke ms": s.milliseconds("invoke"),
                "get ms": s.milliseconds("get"),
                "KB/thread": rounded(s.stored() / 1e3 / (sizes.threads + 1)),
            }
            for s in subjects
        }


def clients(bench: Bench) -> Results:
    """Many clients at once, each chatting on its own thread: threads for synchronous savers, tasks for the others"""
    sizes = bench.sizes
    pairs = conversation(sizes.client_turns, sizes.client_turns * 0.002)
    replies = [reply for _, reply in pairs]
    with bench.opened() as subjects:
        for i, subject in bench.turns(subjects, sizes.client_rounds):
            graph = graphs.chat(subject.saver, subject.is_async, replies)
            count = sizes.tasks if subject.is_async else sizes.clients
            done: list[float] = []

            def talk(client: int, i: int = i, graph: Any = graph, done: list[float] = done) -> None:
                for human, _ in pairs:
                    start = time.perf_counter()
                    graph.invoke({"messages": [human]}, thread(f"{i} {client}"))
                    done.append(time.perf_counter() - start)

            async def atalk(client: int, i: int = i, graph: Any = graph, done: list[float] = done) -> None:
                for human, _ in pairs:
                    start = time.perf_counter()
                    await graph.ainvoke({"messages": [human]}, thread(f"{i} {client}"))
                    done.append(time.perf_counter() - start)

            start = time.perf_counter()
            if subject.is_async:
                subject.wait(_all(atalk, count))
            else:
                with ThreadPoolExecutor(count) as pool:
                    list(pool.map(talk, range(count)))
            subject.seconds["turn"] += done
            subject.seconds["rate"].append(len(done) / (time.perf_counter() - start))
        return {
            s.key: {
                "clients": f"{sizes.tasks} tasks" if s.is_async else f"{sizes.clients} threads",
                "turns/s": summary(s.seconds["rate"]),
                "turn ms": s.milliseconds("turn"),
            }
            for s in subjects
        }


async def _all(client: Any, count: int) -> None:
    await asyncio.gather(*(client(i) for i in range(count)))
