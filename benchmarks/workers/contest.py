"""Some processes at work at once on an empty database, and what became of their turns."""

import multiprocessing
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from benchmarks.harness import ask, rounded, thread
from benchmarks.workers.shift import Done, Job, opened, shared_graph, work
from tests.postgres_server import create_database, drop_database

SILENCE = 120
"""Seconds after the end of its time after which a worker that says nothing has something wrong with it."""
WAL = "SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint"
UPDATES = """
SELECT relname, n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
WHERE relname IN ('agent_state_ledger', 'sessions')
"""


def preload() -> None:
    """Has the processes begin with everything imported."""
    modules = ["benchmarks.workers.shift", "langgraph_ledger.drivers.postgres", "langgraph.checkpoint.postgres"]
    multiprocessing.get_context("forkserver").set_forkserver_preload(modules)


@contextmanager
def database(server: str, saver: str) -> Iterator[str]:
    """An empty database with the tables of a saver."""
    url = create_database(server)
    try:
        with opened(saver, url) as one:
            one.setup()
        yield url
    finally:
        drop_database(server, url)


def at_work(jobs: Sequence[Job]) -> list[Done]:
    """Has a process do each job, all at once."""
    context = multiprocessing.get_context("forkserver")
    start = context.Barrier(len(jobs))
    workers = []
    for job in jobs:
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=work, args=(job, start, theirs), daemon=True)
        process.start()
        theirs.close()
        workers.append((process, mine))
    found = []
    try:
        for job, (_, pipe) in zip(jobs, workers, strict=True):
            if not pipe.poll(job.seconds + SILENCE):
                raise RuntimeError(f"worker {job.number} of {job.saver} says nothing")
            found.append(Done(**pipe.recv()))
    finally:
        for process, pipe in workers:
            pipe.close()
            process.join(SILENCE / 10)
            process.kill()
    return found


def own_threads(server: str, saver: str, processes: int, seconds: float) -> dict[str, Any]:
    """Each worker on threads of its own."""
    with database(server, saver) as url, psycopg.connect(url, autocommit=True) as connection:
        before = ask(connection, WAL)
        done = at_work([Job(saver, url, number, seconds) for number in range(processes)])
        written = ask(connection, WAL) - before
        turns = sum(one.turns for one in done)
        table = "checkpoints" if saver == "postgres" else "checkpoint_log"
        checkpoints = ask(connection, f"SELECT count(*) FROM {table}") * turns / (turns + processes)
        connection.execute("SELECT pg_stat_force_next_flush()")
        hot = {name: [updates, hot] for name, updates, hot in connection.execute(UPDATES).fetchall()}
    return {
        "turns": turns,
        "connections": sum(one.connections for one in done),
        "turns/s": sum(one.turns / (one.ended - one.began) for one in done),
        "checkpoints": checkpoints,
        "put ms": [ms for one in done for ms in one.put_ms],
        "turn ms": [ms for one in done for ms in one.turn_ms],
        "wal": written * turns / (turns + processes),
        "hot": hot,
    }


@dataclass
class Verdict:
    """What became of turns on shared threads, by what the threads hold in the end."""

    acknowledged: int
    lost: int
    """Acknowledged, and not there."""
    twice: int
    unasked: int
    """There although the worker was told that the turn was refused: the winner had built on its stored input."""


def judge(won: Sequence[str], held: Sequence[str]) -> Verdict:
    counts = Counter(held)
    return Verdict(
        acknowledged=len(won),
        lost=sum(1 for entry in won if not counts[entry]),
        twice=sum(count - 1 for count in counts.values()),
        unasked=len(counts.keys() - set(won)),
    )


def shared_threads(
    server: str, saver: str, processes: int, seconds: float, threads: int, *, retry: bool
) -> dict[str, Any]:
    """All workers on a few threads, each turn an entry."""
    with database(server, saver) as url:
        jobs = [Job(saver, url, number, seconds, shared=threads, retry=retry) for number in range(processes)]
        done = at_work(jobs)
        with opened(saver, url) as one:
            graph = shared_graph(one)
            states = [graph.get_state(thread(f"shared {number}")).values for number in range(threads)]
        held = [entry for state in states for entry in state.get("entries", [])]
        logged = 0
        if saver != "postgres":
            with psycopg.connect(url) as connection:
                logged = ask(connection, "SELECT count(*) FROM rejected_writes")
    verdict = judge([entry for one in done for entry in one.won], held)
    return {
        "runs": sum(one.attempts for one in done),
        "refused": sum(one.refused for one in done),
        "on record": logged,
        "turns": sum(one.turns for one in done),
        "acknowledged": verdict.acknowledged,
        "acknowledged/s": rounded(sum(len(one.won) / (one.ended - one.began) for one in done)),
        "lost": verdict.lost,
        "twice": verdict.twice,
        "unasked": verdict.unasked,
        "turn ms": percentiles([ms for one in done for ms in one.turn_ms]),
    }


def percentiles(samples: Sequence[float]) -> dict[str, float]:
    """The median, and what 95 and 99 of a hundred stay below."""
    if len(samples) < 2:
        return {"p50": rounded(samples[0]) if samples else 0.0, "n": len(samples)}
    cuts = statistics.quantiles(samples, n=100, method="inclusive")
    return {"p50": rounded(cuts[49]), "p95": rounded(cuts[94]), "p99": rounded(cuts[98]), "n": len(samples)}
