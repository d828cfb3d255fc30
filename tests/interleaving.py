"""Steps operations statement by statement, each on a connection of its own, through every interleaving.

A *lane* is one writer: operations one after another on one connection, each in a transaction as the drivers run it
(`transact`), `many` statements row by row. A *schedule* says whose statement comes next each time. A statement that
waits for the other lane's lock leaves its lane waiting, and only the other lane can go on.
"""

import re
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Pending
from functools import cache
from typing import Any

import psycopg

from langgraph_ledger.drivers import postgres, sqlite
from langgraph_ledger.drivers.transact import transact
from langgraph_ledger.sql import Dialect
from langgraph_ledger.statements import Operation, Statement


class SqliteConnection:
    """Sends statements to SQLite; "waiting" is SQLITE_BUSY, and the statement has to be sent again."""

    merge_begin = False

    def __init__(self, path: str, dialect: Dialect) -> None:
        self.dialect, self.texts = dialect, dialect.texts
        self.raw = sqlite3.connect(path, isolation_level=None, timeout=0, check_same_thread=False)
        self.raw.execute("PRAGMA synchronous=OFF")
        sqlite.teach(self.raw)

    def send(self, statement: Statement) -> Any:
        """The statement's rows, or None if another connection's lock is in the way. Raises the database's errors."""
        try:
            return self.raw.execute(self.texts[statement.name], statement.params).fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                return None
            raise

    def answered(self, others: Sequence["SqliteConnection"]) -> bool:
        """Whether a waiting statement may go on."""
        return not any(other.raw.in_transaction for other in others)

    def resume(self) -> Any:
        """The rows of the statement that waited, or None if it has to be sent again."""
        return None

    def abandon(self) -> None:
        if self.raw.in_transaction:
            self.raw.execute("ROLLBACK")

    def close(self) -> None:
        self.raw.close()

    translate = staticmethod(sqlite.translate)
    error = sqlite3.Error


class PostgresConnection:
    """Sends statements to Postgres from a thread; "waiting" is what the server says of the backend."""

    def __init__(self, url: str, dialect: Dialect, *, merge_begin: bool = True) -> None:
        self.dialect, self.texts, self.merge_begin = dialect, dialect.texts, merge_begin
        self.raw = psycopg.connect(url, autocommit=True, prepare_threshold=None)
        self.raw.execute("SET synchronous_commit = off")  # isolation is looked at here, not durability
        self.pid = self.raw.info.backend_pid
        self.observer = psycopg.connect(url, autocommit=True)
        self.thread = ThreadPoolExecutor(1)
        self.pending: Future[Any] | None = None

    def _execute(self, statement: Statement) -> Any:
        arrays = self.dialect.arrays[statement.name]
        params = {name: [value] if name in arrays else value for name, value in statement.params.items()}
        cursor = self.raw.execute(self.texts[statement.name], params, binary=not arrays)
        return cursor.fetchall() if cursor.description else []

    def send(self, statement: Statement) -> Any:
        self.pending = self.thread.submit(self._execute, statement)
        return self.resume() if self.answered(()) else None

    def answered(self, others: Sequence["PostgresConnection"]) -> bool:
        """Waits until the server has answered, or says that the backend waits for another one's lock."""
        assert self.pending is not None
        while True:
            try:
                self.pending.result(0.001)
            except Pending:
                (row,) = self.observer.execute("SELECT pg_blocking_pids(%s)", [self.pid]).fetchall()
                if row[0] and not self.pending.done():
                    return False
            except psycopg.Error:
                return True  # raised where it is resumed
            else:
                return True

    def resume(self) -> Any:
        assert self.pending is not None
        pending, self.pending = self.pending, None
        return pending.result()

    def abandon(self) -> None:
        """Gives up what is under way, and the transaction."""
        if self.pending is not None:
            self.raw.cancel_safe()
            self.pending.exception()
            self.pending = None
        self.raw.execute("ROLLBACK")

    def close(self) -> None:
        self.thread.shutdown()
        self.raw.close()
        self.observer.close()

    translate = staticmethod(postgres.translate)
    error = psycopg.Error


Connection = SqliteConnection | PostgresConnection


class Lane:
    """One writer at work: its operations, the statement that is next, and what came of the operations so far."""

    def __init__(self, connection: Connection, script: Sequence[Callable[[], Operation[Any]]]) -> None:
        self.connection = connection
        self.script = list(script)
        self.outcomes: list[str] = []
        self.names: list[str] = []
        self.waiting = self.finished = False
        self.between = True  # no transaction is open
        self._begin()

    def _begin(self) -> None:
        """Makes the next operation ready, if the last one was not refused."""
        if not self.script or (self.outcomes and not self.outcomes[-1].startswith("ok")):
            self.finished = True
            return
        self.operation = self.script.pop(0)()
        self.groups = transact(self.operation)
        self._load(next(self.groups))

    def _load(self, group: Sequence[Statement]) -> None:
        self.group, self.answers = group, [[] for _ in group]
        self.queue = [
            (index, Statement(statement.name, params))
            for index, statement in enumerate(group)
            for params in (statement.many if statement.many is not None else [statement.params])
        ]

    def step(self) -> frozenset[str]:
        """Sends the next statement; afterwards the lane may be waiting, or done with an operation.

        Returns in which tables the statement locked rows, or waits to.
        """
        while True:
            statement = self.queue[0][1]
            try:
                rows = self.connection.send(statement)
                if rows is None:
                    self.waiting = True
                else:
                    self._take(rows)
            except self.connection.error as error:
                self._fail(error)
            if self.between or not (self.connection.merge_begin and statement.name.startswith("begin_")):
                return tables_locked(self.connection.texts[statement.name])

    def wake(self, others: Sequence["Lane"]) -> None:
        """Goes on with a statement that waited, if it may."""
        if self.connection.answered([other.connection for other in others]):  # type: ignore[arg-type]
            self.waiting = False
            try:
                rows = self.connection.resume()
                if rows is not None:
                    self._take(rows)
            except self.connection.error as error:
                self._fail(error)

    def _take(self, rows: Any) -> None:
        index, statement = self.queue.pop(0)
        self.names.append(statement.name)
        self.between = statement.name == "commit"
        self.answers[index] = rows if self.group[index].many is None else []
        if self.queue:
            return
        try:
            self._load(self.groups.send(self.answers))
        except StopIteration as stop:
            self.outcomes.append(_outcome(self.operation.name, stop.value))
            self._begin()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        known = self.connection.translate(error, "") if isinstance(error, self.connection.error) else error
        self.outcomes.append(type(known).__name__)
        self.connection.raw.execute(self.connection.texts["rollback"])
        self.between = self.finished = True


def _outcome(operation: str, value: Any) -> str:
    if operation == "purge_tombstones":
        return "ok"  # how many it found is up to earlier schedules
    version = value[0] if isinstance(value, tuple) else value  # put_writes also says whether the checkpoint is there
    return "refused" if operation in ("put", "put_writes", "tool_call_started") and version is None else f"ok {value}"


class Schedules:
    """Walks the tree of schedules depth first; each schedule is run from its beginning and asks here who goes next.

    With `reduce` a schedule is left out if it only swaps neighbouring statements of another one that commute (the
    *sleep sets* of partial-order reduction). In READ COMMITTED two statements of open transactions commute if they
    lock rows of different tables: neither sees what the other has not committed, and neither waits for the other.
    On SQLite, where only one transaction is open, all that is left to commute with is the other lane's vain attempt to
    begin. A statement that ended a transaction (a commit, or an error) commutes with nothing.
    """

    def __init__(self, *, reduce: bool = False) -> None:
        self.reduce = reduce
        self.nodes: list[_Node] = []
        self.depth = 0

    def choose(self, ready: Sequence[int]) -> int | None:
        """Which of the lanes that can go on does, or None if nothing new can come of going on."""
        if self.depth == len(self.nodes):
            self.nodes.append(_Node(list(ready), self.nodes[-1].asleep_below() if self.reduce and self.nodes else {}))
            if not self.nodes[-1].advance():
                return None
        return self.nodes[self.depth].pick

    def stepped(self, locked: frozenset[str] | None) -> None:
        """Says of the chosen statement in which tables it locked rows; None: it ended its transaction."""
        self.nodes[self.depth].tried[self.nodes[self.depth].pick] = locked
        self.depth += 1

    def again(self) -> bool:
        """Turns to the next schedule, if there is one."""
        while self.nodes and not self.nodes[-1].advance():
            self.nodes.pop()
        self.depth = 0
        return bool(self.nodes)

    def __str__(self) -> str:
        return "".join("LR"[node.pick] for node in self.nodes)


class _Node:
    """A point of a schedule: who can go on, who went on from here before, and whose turn would lead nowhere new."""

    def __init__(self, ready: list[int], asleep: dict[int, frozenset[str] | None]) -> None:
        self.ready, self.asleep = ready, asleep
        self.tried: dict[int, frozenset[str] | None] = {}
        self.pick = -1

    def advance(self) -> bool:
        left = [lane for lane in self.ready if lane not in self.tried and lane not in self.asleep]
        self.pick = left[0] if left else -1
        return bool(left)

    def asleep_below(self) -> dict[int, frozenset[str] | None]:
        mine = self.tried[self.pick]
        others = {**self.asleep, **self.tried}
        return {
            lane: locked
            for lane, locked in others.items()
            if lane != self.pick and mine is not None and locked is not None and not mine & locked
        }


_LOCKING = re.compile(r"(?:INSERT INTO|UPDATE|DELETE FROM) (\w+)")


@cache
def tables_locked(text: str) -> frozenset[str]:
    """The tables in which a statement locks rows: those it writes, or reads FOR SHARE or FOR UPDATE."""
    if text.startswith("BEGIN IMMEDIATE"):
        return frozenset(["the whole file"])
    found = set(_LOCKING.findall(text)) - {"SET"}
    if "pg_advisory_xact_lock" in text:
        found.add("a namespace")
    if re.search(r"FOR (SHARE|UPDATE)", text):
        found |= set(re.findall(r"FROM (\w+)", text))
    return frozenset(found)


def play(lanes: Sequence[Lane], schedules: Schedules, *, whole: bool = False) -> str:
    """Runs one schedule. "done", "deadlock", or "seen" if it was given up because it would show nothing new.

    With `whole` an operation is one step: what is reached then is what a serial database could have come to.
    """
    while not all(lane.finished for lane in lanes):
        ready = [index for index, lane in enumerate(lanes) if not (lane.finished or lane.waiting)]
        pick = schedules.choose(ready) if ready else None
        if pick is None:
            for lane in lanes:
                lane.connection.abandon()
            return "seen" if ready else "deadlock"
        lane = lanes[pick]
        locked = lane.step()
        while whole and not lane.between:
            lane.step()
        schedules.stepped(None if lane.between and not lane.waiting else locked)
        if lane.between:  # only the end of a transaction lets go of locks
            for other in lanes:
                if other.waiting:
                    other.wake([one for one in lanes if one is not other])
    return "done"
