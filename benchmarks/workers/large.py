"""A million checkpoints, in whole tables and in partitions: saves, reads, prunes, deletions, vacuum."""

import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import psycopg
from langgraph.checkpoint.base import empty_checkpoint

from benchmarks.harness import TOTAL_SIZE, ask, rounded, thread
from benchmarks.workers.contest import percentiles
from langgraph_ledger import LedgerSaver
from tests.postgres_server import create_database, drop_database

COPIED = 100
"""Checkpoints in the thread of which a database is filled with copies."""
AT_ONCE = 250
"""Threads that one statement copies."""
WARM = 30
"""Calls before any counts."""
LINES = "checkpoint_log", "agent_memory", "pending_writes", "agent_state_ledger", "sessions"
PIECES = """
SELECT c.oid::regclass::text FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
WHERE c.relkind = 'r' AND COALESCE(i.inhparent, c.oid)::regclass::text = ANY (%s)
"""
"""The tables that hold rows: those of these names, or their partitions."""
FACTS = {"source": "loop", "parents": {}}


class Large:
    """A ledger full of copies of one thread."""

    def __init__(self, server: str, partitions: int | None) -> None:
        self.url = create_database(server)
        self.saver = LedgerSaver(self.url, partitions=partitions, max_size=2)
        self.admin = psycopg.connect(self.url, autocommit=True)
        self.milliseconds: dict[str, list[float]] = {}
        self.figures: dict[str, Any] = {}
        self.threads = 0

    def close(self, server: str) -> None:
        self.saver.close()
        self.admin.close()
        drop_database(server, self.url)

    def fill(self, checkpoints: int) -> None:
        """Real rows of one real thread, copied by the server under other names."""
        config, before = thread("source"), empty_checkpoint()
        self.saver.get_tuple(config)
        for step in range(COPIED):
            config, before = self.put("seed", config, before, step)
            self.saver.put_writes(config, [("n", step)], f"task {step}")
        self.admin.execute("UPDATE sessions SET status = 'completed'")
        start = time.perf_counter()
        total = checkpoints // COPIED
        while self.threads < total:
            count = min(AT_ONCE, total - self.threads)
            for table in LINES:
                self.admin.execute(_copy(self.admin, table), {"first": self.threads, "last": self.threads + count - 1})
            self.threads += count
        self.figures["filled s"] = rounded(time.perf_counter() - start)
        self.settle("after filling")
        self.figures["GB"] = rounded(ask(self.admin, TOTAL_SIZE) / 1e9)

    def settle(self, when: str) -> None:
        """What the server has to do for its tables: all of it, and the longest that one of them takes."""
        pieces = [name for (name,) in self.admin.execute(PIECES, [list(LINES)]).fetchall()]
        for what in ("VACUUM", "ANALYZE"):
            took = [self._seconds(f"{what} {piece}") for piece in pieces]
            self.figures[f"{what} {when} s"] = rounded(sum(took))
            self.figures[f"{what} {when}, the longest of a table or partition s"] = rounded(max(took))
        self.admin.execute("CHECKPOINT")

    def rebuild(self) -> None:
        """Making the indexes of the log anew, which writers wait for, table by table."""
        pieces = [name for (name,) in self.admin.execute(PIECES, [["checkpoint_log"]]).fetchall()]
        took = [self._seconds(f"REINDEX TABLE {piece}") for piece in pieces]
        self.figures["REINDEX of checkpoint_log s"] = rounded(sum(took))
        self.figures["REINDEX of checkpoint_log, the longest of a table or partition s"] = rounded(max(took))

    def _seconds(self, statement: str) -> float:
        start = time.perf_counter()
        self.admin.execute(statement.encode())
        return time.perf_counter() - start

    def put(self, name: str, config: Any, before: Any, step: int) -> tuple[Any, Any]:
        """The checkpoint after `before`: a small state as a loop has it, with a list of some lines."""
        version = self.saver.get_next_version(max(before["channel_versions"].values(), default=None), None)
        checkpoint = empty_checkpoint()
        facts = {"last": step, "name": f"step {step}", "done": False}
        checkpoint["channel_values"] = {"n": step, "facts": facts, "lines": [_line(i) for i in range(step // 4)]}
        checkpoint["channel_versions"] = changed = dict.fromkeys(("n", "facts", "lines"), version)
        metadata = {**FACTS, "step": step}
        return self.timed(name, self.saver.put, config, checkpoint, metadata, dict(changed)), checkpoint

    def timed(self, name: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        found = call(*args, **kwargs)
        self.milliseconds.setdefault(name, []).append((time.perf_counter() - start) * 1e3)
        return found

    def probe(self, name: str, kind: str) -> None:
        """What a turn does on a thread: a read, a save, a task's writes. And a page of the thread's history."""
        found = self.timed(f"{kind}get_tuple", self.saver.get_tuple, thread(name))
        config, _ = self.put(f"{kind}put", found.config, found.checkpoint, COPIED + 1)
        self.timed(f"{kind}put_writes", self.saver.put_writes, config, [("n", 1)], "a task")
        self.timed(f"{kind}list(10)", lambda: list(self.saver.list(thread(name), limit=10)))

    def remember(self) -> None:
        """How much memory the server has taken for the saver's connection, mostly for the plans that it keeps."""
        with self.saver._driver._connection() as connection:
            size = ask(connection, "SELECT sum(total_bytes)::bigint FROM pg_backend_memory_contexts")
        self.figures["a connection's memory MB"] = rounded(size / 1e6)


def _line(number: int) -> str:
    return f"{number}: what was said, {number * 7919 % 10007} times, and what came of it"


def _copy(admin: psycopg.Connection[Any], table: str) -> bytes:
    """The statement that copies a thread's rows of a table to others."""
    query = """
        SELECT quote_ident(attname) FROM pg_attribute
        WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attidentity = ''
            AND attname <> 'session_id'
    """
    names = ", ".join(name for (name,) in admin.execute(query, [table]).fetchall())
    order = "ORDER BY i, t.seq" if table == "checkpoint_log" else ""
    text = f"""
        INSERT INTO {table} (session_id, {names})
        SELECT 'copy ' || i, {names} FROM {table} t CROSS JOIN generate_series(%(first)s::int, %(last)s::int) i
        WHERE t.session_id = 'source' {order}"""
    return text.encode()


def compare(server: str, checkpoints: int, partitions: int, probes: int, *, warm: int = WARM) -> dict[str, Any]:
    """Figures of whole tables and of partitions; the two take turns, call by call."""
    chance = random.Random(7)
    with ExitStack() as stack:
        kinds = {"whole": Large(server, None), "partitions": Large(server, partitions)}
        for large in kinds.values():
            stack.callback(large.close, server)
            large.fill(checkpoints)
        both = list(kinds.values())
        threads = both[0].threads
        part = max(2, min(threads // 20, 500))
        pruned, deleted = (
            [f"copy {i}" for i in chance.sample(range(half * threads // 2, (half + 1) * threads // 2), part)]
            for half in (0, 1)
        )
        for i in range(warm + probes):
            name = f"copy {chance.randrange(threads)}"
            chance.shuffle(both)
            for large in both:
                large.probe(name, "" if i >= warm else "warm ")
        for large in both:
            large.remember()
        for names, what in ((pruned, "prune"), (deleted, "delete_thread")):
            for name in names:
                chance.shuffle(both)
                for large in both:
                    if what == "prune":
                        large.timed(what, large.saver.prune, [name], keep_last=1)
                    else:
                        large.timed(what, large.saver.delete_thread, name)
        for large in both:
            large.settle("in the end")
            large.rebuild()
        return {
            "checkpoints": threads * COPIED,
            "threads": threads,
            "partitions": partitions,
            "part": part,
            "kinds": {
                kind: large.figures
                | {
                    name: percentiles(ms)
                    for name, ms in large.milliseconds.items()
                    if not name.startswith(("warm", "seed"))
                }
                for kind, large in kinds.items()
            },
        }
