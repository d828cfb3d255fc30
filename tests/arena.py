"""A database on which many schedules are run, each on a session of its own."""

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from langgraph_ledger import sql
from langgraph_ledger.chains import Link, breaks, genesis
from tests.four_ways import Backend
from tests.interleaving import Connection, Lane, PostgresConnection, Schedules, SqliteConnection, play
from tests.ledger_rows import TABLES, half_written, read_rows
from tests.rivals import COPY, PURGE, SOURCE, TEMPLATES, Cast, Kind, elsewhere

RECORDED = {*TEMPLATES.values(), SOURCE, COPY}


class Arena:
    """One database for many schedules, each on a session of its own that begins as a copy of a template."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.dialect = sql.load(backend.kind)  # type: ignore[arg-type]
        self.cast = Cast(backend.url)
        self.mine = self.connect(self.dialect)
        self.observer: Any = self.mine.raw
        self.columns = {}
        for table in TABLES:
            names = [c[0] for c in self.observer.execute(f"SELECT * FROM {table} WHERE 1 = 0").description]
            self.columns[table] = ", ".join(n for n in names if n not in ("seq", "session_id"))
        self.count = itertools.count()

    @property
    def on_postgres(self) -> bool:
        return self.backend.kind == "postgres"

    def connect(self, dialect: sql.Dialect, **options: Any) -> Connection:
        kind = PostgresConnection if self.on_postgres else SqliteConnection
        return kind(self.backend.url, dialect, **options)

    def close(self) -> None:
        self.mine.close()
        self.cast.close()

    def new_session(self, seed: str) -> str:
        name = f"session-{next(self.count)}"
        inserts = [
            f"INSERT INTO {t} (session_id, {c}) SELECT '{name}', {c} FROM {t} WHERE session_id = '{TEMPLATES[seed]}'"
            + (" ORDER BY seq" if t == "checkpoint_log" else "")
            for t, c in self.columns.items()
        ]
        if self.on_postgres:
            self.observer.execute(";".join(inserts).encode())
        else:
            self.observer.executescript("BEGIN;" + ";".join(inserts) + ";COMMIT")
        if seed == "expired":
            old = "SET deleted_at = '2020-01-01T00:00:00+00:00'"
            self.observer.execute(f"UPDATE agent_state_ledger {old} WHERE session_id = '{name}'")
        return name

    def all_schedules(
        self,
        seed: str,
        pair: Sequence[Kind],
        connections: Sequence[Connection],
        *,
        whole: bool = False,
        reduce: bool = False,
    ) -> Iterator[tuple[str, list[Lane], Any, list[str]]]:
        """Runs each schedule of two lanes; yields it, the lanes, what was left, and what is wrong in itself.

        What was left is what the operations returned, and the rows.
        """
        recorded = self.recorded(pair)
        schedules = Schedules(reduce=reduce)
        while True:
            thread = self.new_session(seed)
            scripts = [[partial(elsewhere, operation, thread) for operation in kept] for kept in recorded]
            lanes = [Lane(connection, script) for connection, script in zip(connections, scripts, strict=True)]
            end = play(lanes, schedules, whole=whole)
            if seed == "expired":  # what a purge skipped because somebody was at work on it, the next one takes
                play([Lane(self.mine, [partial(elsewhere, *PURGE(self.cast, "left"), thread)])], Schedules())
            if end != "seen":
                rows = read_rows(self.observer, {thread: "thread", f"{thread}-copy": "copy"})
                left = ([lane.outcomes for lane in lanes], rows)
                wrong = half_written(rows) + self.broken_chains(thread) + ["deadlock"] * (end == "deadlock")
                yield str(schedules), lanes, left, wrong
            if not schedules.again():
                return

    def broken_chains(self, thread: str) -> list[str]:
        """Where the chains of what is left do not hold. They begin with the name of the session that was recorded."""
        logs: dict[tuple[str, str], list[Link]] = {}
        columns = "session_id, agent_id, seq, checkpoint_type, digest, chain"
        which = f"session_id IN ('{thread}', '{thread}-copy') ORDER BY seq"
        for session_id, agent_id, *link in self.observer.execute(f"SELECT {columns} FROM checkpoint_log WHERE {which}"):
            logs.setdefault((session_id, agent_id), []).append(Link(*link))
        found = []
        for (_, agent_id), links in logs.items():
            each = [breaks(genesis(template, agent_id), links) for template in RECORDED]
            if all(each):
                found.append(f"namespace {agent_id!r}: {min(each, key=len)[0].what}")
        return found

    def recorded(self, pair: Sequence[Kind]) -> list[Any]:
        return [kind(self.cast, side) for kind, side in zip(pair, ("left", "right"), strict=True)]
