"""The world outside: a database of its own, which knows every ticket and everything that a tool has done.

It stands for the shop's systems and keeps the truth that savers are compared with, so nothing in it is undone or
overwritten. What a killed process has committed here is there: SIGKILL takes nothing from the operating system's hands,
so no commit has to be synced.
"""

import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

LOOK_UPS = ("look_up_customer", "check_order")
EFFECTS = ("issue_refund", "send_mail")
PATIENCE = 3
"""So many tickets later a person has seen to a question."""

_SCHEMA = """
CREATE TABLE tickets (number INTEGER PRIMARY KEY, status TEXT NOT NULL, begun_again INTEGER NOT NULL DEFAULT 0);
CREATE TABLE executions (
    id INTEGER PRIMARY KEY, worker INTEGER NOT NULL, ticket INTEGER NOT NULL, name TEXT NOT NULL, call_id TEXT NOT NULL,
    effect INTEGER NOT NULL DEFAULT 0, ended INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX executions_of_ticket ON executions (ticket);
"""

Called = tuple[int, str]
"""A tool call: the ticket and the call's id."""


class Desk:
    """One process's access to it. `pause` is how long a tool takes; it has its effect half-way."""

    def __init__(
        self,
        path: Path | str,
        worker: int = 0,
        pause: float = 0.0,
        *,
        after_effect: Callable[[], None] = lambda: None,
    ) -> None:
        self.worker, self.pause, self.after_effect = worker, pause, after_effect
        self._lock = threading.Lock()  # tools of one step run side by side
        self._connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = OFF")

    def close(self) -> None:
        self._connection.close()

    def ask(self, query: str, *values: object) -> list[tuple]:
        with self._lock:
            return self._connection.execute(query, values).fetchall()

    # --- tickets

    def open(self, tickets: int) -> None:
        """So many new tickets, on an empty database."""
        self._connection.executescript(_SCHEMA)
        self._connection.execute("BEGIN")
        self._connection.executemany(
            "INSERT INTO tickets (number, status) VALUES (?, 'new')", [(n,) for n in range(1, tickets + 1)]
        )
        self._connection.execute("COMMIT")

    def next(self) -> tuple[int, str] | None:
        """The next ticket and its status: one that was left, one whose question has been seen to, a new one."""
        query = """
            SELECT number, status FROM tickets WHERE status = 'taken'
            UNION ALL SELECT number, status FROM tickets WHERE status = 'waiting'
                AND number + ? <= (SELECT max(number) FROM tickets WHERE status <> 'new')
            UNION ALL SELECT min(number), status FROM tickets WHERE status = 'new' GROUP BY status
            UNION ALL SELECT number, status FROM tickets WHERE status = 'waiting'
            LIMIT 1"""
        found = self.ask(query, PATIENCE)
        return found[0] if found else None

    def mark(self, ticket: int, status: str) -> None:
        self.ask("UPDATE tickets SET status = ? WHERE number = ?", status, ticket)

    def answered(self) -> int:
        return int(self.ask("SELECT count(*) FROM tickets WHERE status = 'answered'")[0][0])

    def begin(self, ticket: int) -> None:
        """A ticket is begun from its start: once more, if tools have been called for it."""
        self.ask(
            "UPDATE tickets SET begun_again = begun_again + 1"
            " WHERE number = ?1 AND EXISTS (SELECT 1 FROM executions WHERE ticket = ?1)",
            ticket,
        )

    # --- tools

    def execute(self, ticket: int, name: str, call_id: str) -> None:
        """A tool at work, with its effect if it is one that has any."""
        row = self.ask(
            "INSERT INTO executions (worker, ticket, name, call_id) VALUES (?, ?, ?, ?) RETURNING id",
            *(self.worker, ticket, name, call_id),
        )[0][0]
        time.sleep(self.pause / 2)
        if name in EFFECTS:
            self.ask("UPDATE executions SET effect = 1 WHERE id = ?", row)
            self.after_effect()
        time.sleep(self.pause / 2)
        self.ask("UPDATE executions SET ended = 1 WHERE id = ?", row)

    # --- the truth

    def happened(self, ticket: int, call_id: str) -> bool:
        """Whether a call has had its effect."""
        query = "SELECT count(*) FROM executions WHERE ticket = ? AND call_id = ? AND effect"
        return bool(self.ask(query, ticket, call_id)[0][0])

    def made(self, worker: int) -> set[Called]:
        """The calls that a process has made."""
        return set(self.ask("SELECT ticket, call_id FROM executions WHERE worker = ?", worker))

    def in_flight(self, worker: int) -> set[Called]:
        """The calls in the middle of which a process was killed."""
        return set(self.ask("SELECT ticket, call_id FROM executions WHERE worker = ? AND NOT ended", worker))

    def effects_twice(self) -> int:
        """Effects beyond the first of their kind on a ticket."""
        query = "SELECT count(*) - count(DISTINCT ticket || name) FROM executions WHERE effect"
        return int(self.ask(query)[0][0])

    def effects_missing(self) -> int:
        """Effects that tickets which are marked as answered have not had."""
        query = "SELECT count(DISTINCT ticket || name) FROM executions WHERE effect"
        return len(EFFECTS) * self.answered() - int(self.ask(query)[0][0])

    def begun_again(self) -> int:
        """Tickets that were begun from their start more than once."""
        return int(self.ask("SELECT count(*) FROM tickets WHERE begun_again")[0][0])
