"""W10 and W11: how cost grows with what is there already, and what one call asks of the database."""

import uuid
from typing import Any

from langgraph.checkpoint.base import Checkpoint, empty_checkpoint

from benchmarks.corpus import short_messages
from benchmarks.counting import counting
from benchmarks.harness import Bench, Results, Subject, rounded, summary, thread
from benchmarks.savers import POOL_SIZE
from benchmarks.workloads import put_messages

WARM_UP = POOL_SIZE + 2
"""Calls before any counts: every connection of a pool has prepared its statements by then."""

COPIED = 100
"""Checkpoints in the thread of which a database is filled with copies."""


def cost_of_growth(bench: Bench) -> Results:
    """One message more in a list of so many; a put and a get_tuple in a database of so many checkpoints"""
    sizes = bench.sizes
    messages = short_messages(max(sizes.growth_messages) + sizes.growth_warm + sizes.growth_appends)
    results: Results = {}
    with bench.opened(skip=["memory"]) as everyone:
        subjects = [subject for subject in everyone if not subject.is_async]
        results = {subject.key: {} for subject in subjects}
        for size in sizes.growth_messages:
            for subject in subjects:
                start = thread(f"list of {size}")
                subject.notes.update(version=None, config=start, ids=[], written=0)
                put_messages(subject, messages[:size], 0, "seed ")
                subject.settle(checkpoint=True)
            for i, subject in bench.turns(subjects, sizes.growth_warm):
                put_messages(subject, messages[: size + i + 1], i + 1, "warm ")
            warm = size + sizes.growth_warm
            for i, subject in bench.turns(subjects, sizes.growth_appends):
                before = subject.written()
                put_messages(subject, messages[: warm + i + 1], warm + i + 1, f"{size} ")
                subject.notes["written"] += subject.written() - before
            for subject in subjects:
                row, count = results[subject.key], sizes.growth_appends
                row[f"{size:,} messages: KB/message"] = rounded(subject.notes["written"] / 1e3 / count)
                row[f"{size:,} messages: put ms"] = subject.milliseconds(f"{size} put")
    with bench.opened(only="ledger") as everyone:
        for subject in everyone:
            if not subject.is_async:
                results[subject.key] |= _in_larger_databases(subject)
    return results


def _in_larger_databases(subject: Subject) -> dict[str, Any]:
    """Fills a database step by step with copies of one thread; reads and goes on with some of them at each step."""
    bench, row = subject.bench, {}
    sizes = bench.sizes
    config, source, checkpoint = thread("source"), subject.saver, empty_checkpoint()
    for step in range(COPIED):
        config, checkpoint = _small_put(subject, "seed", config, checkpoint, step, step // 4)
    threads = 0
    for size in sizes.growth_checkpoints:
        while threads < size // COPIED:
            source.copy_thread("source", f"copy {threads}")
            threads += 1
        subject.settle()
        for probe in range(WARM_UP + sizes.growth_probes):
            kind = f"{size}" if probe >= WARM_UP else "warm"
            name = f"copy {bench.shuffle.randrange(threads)}"
            found = subject.call(f"get {kind}", subject.saver, "get_tuple", thread(name))
            lines = len(found.checkpoint["channel_values"]["lines"]) + 1
            _small_put(subject, f"put {kind}", found.config, found.checkpoint, COPIED + probe, lines)
        row[f"{size:,} checkpoints: put ms"] = subject.milliseconds(f"put {size}")
        row[f"{size:,} checkpoints: get_tuple ms"] = subject.milliseconds(f"get {size}")
    return row


def _small_put(
    subject: Subject, name: str, config: Any, before: Checkpoint, step: int, lines: int
) -> tuple[Any, Checkpoint]:
    """The checkpoint after `before`, put: a small state as a loop has it, with a list of some lines."""
    versions = before["channel_versions"]
    if not versions:  # a run begins with a read
        subject.call("first", subject.saver, "get_tuple", config)
    version = subject.saver.get_next_version(max(versions.values(), default=None), None)
    checkpoint = empty_checkpoint()
    facts = {"last": step, "name": f"step {step}", "done": False}
    texts = [message.text for message in short_messages(lines)]
    checkpoint["channel_values"] = {"n": step, "facts": facts, "lines": texts}
    checkpoint["channel_versions"] = changed = dict.fromkeys(("n", "facts", "lines"), version)
    metadata = {"source": "loop", "step": step, "parents": {}}
    return subject.call(name, subject.saver, "put", config, checkpoint, metadata, dict(changed)), checkpoint


def requests(bench: Bench) -> Results:
    """What one call asks of the database, in the middle of a run with a small state"""
    sizes = bench.sizes
    names = ("put", "put_writes", "get_tuple")
    with counting(bench) as counter, bench.opened(skip=["memory"]) as subjects:
        for subject in subjects:
            subject.notes.update(config=thread("run"), checkpoint=empty_checkpoint())
        for i, subject in bench.turns(subjects, WARM_UP + sizes.counted):
            for name in names:
                with counter.count(subject) as count:
                    _call(subject, name, i)
                if i >= WARM_UP:
                    subject.seconds[f"{name} statements"].append(count.statements)
                    subject.seconds[f"{name} commits"].append(count.writes)
                    if count.round_trips is not None:
                        subject.seconds[f"{name} round trips"].append(count.round_trips)
        counted = ("statements", "commits", "round trips")
        results: Results = {
            s.key: {
                f"{name}: {what}": summary(s.seconds[f"{name} {what}"])["median"]
                for name in names
                for what in counted
                if s.seconds[f"{name} {what}"]
            }
            for s in subjects
        }
        for subject in subjects:
            if subject.key.startswith("ledger"):
                results[subject.key]["_statements"] = [[name, *_statements(subject, name)] for name in names]
    return results


def _call(subject: Subject, name: str, step: int) -> None:
    notes = subject.notes
    if name == "put":
        where, before = notes["config"], notes["checkpoint"]
        notes["config"], notes["checkpoint"] = _small_put(subject, name, where, before, step, step + 1)
    elif name == "put_writes":
        written = [("n", step), ("facts", {"last": step, "name": f"step {step}"})]
        subject.call(name, subject.saver, name, notes["config"], written, str(uuid.uuid4()))
    else:
        subject.call(name, subject.saver, name, thread("run"))


def _statements(subject: Subject, name: str) -> list[str]:
    """The names of the statements of one call, from the driver's own trace (which sends them one at a time)."""
    seen: list[str] = []

    def trace(event: str, statement: str) -> None:
        if event == "before":
            seen.append(statement)

    driver = subject.saver._driver
    driver.trace = trace
    try:
        _call(subject, name, WARM_UP + subject.bench.sizes.counted)
    finally:
        driver.trace = None
    return seen
