"""Opening the databases of the official savers: to read one and leave it as it is, whichever version made it; or to
write to one.

The official savers bring a database up to date when they open it, which changes it, and cannot read an older one that
they may not change. So they are shown an older one as they expect it: through views, which are not part of it.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

import typer
from langgraph.checkpoint.base import BaseCheckpointSaver

from langgraph_ledger.cli.options import is_url
from langgraph_ledger.verbatim import VerbatimSerializer

Saver = BaseCheckpointSaver[Any]

BUSY_SECONDS = 30.0
"""How long to wait for whoever is writing to a SQLite file."""

_WITH_TASK_PATH = """
WITH checkpoint_writes AS NOT MATERIALIZED (SELECT w.*, ''::text AS task_path FROM checkpoint_writes w)
"""
_COLUMNS = """
SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
"""


@contextlib.contextmanager
def reading(place: str) -> Iterator[Saver]:
    """A saver of a file or a URL as it is at this moment; values are given as the bytes they are."""
    with _reading_postgres(place) if is_url(place) else _reading_sqlite(place) as saver:
        yield saver


@contextlib.contextmanager
def writing(place: str) -> Iterator[Saver]:
    """The same to write to, with its tables made if they are not there."""
    if is_url(place):
        from langgraph.checkpoint.postgres import PostgresSaver

        with PostgresSaver.from_conn_string(place) as saver:
            saver.serde = VerbatimSerializer()
            saver.setup()
            yield saver
        return
    from langgraph.checkpoint.sqlite import SqliteSaver

    with contextlib.closing(sqlite3.connect(place, check_same_thread=False)) as connection:
        yield SqliteSaver(connection, serde=VerbatimSerializer())


@contextlib.contextmanager
def _reading_sqlite(place: str) -> Iterator[Saver]:
    from langgraph.checkpoint.sqlite import SqliteSaver

    if not Path(place).is_file():
        raise typer.BadParameter(f"there is no file {place}")
    connection = sqlite3.connect(":memory:", uri=True, timeout=BUSY_SECONDS, check_same_thread=False)
    with contextlib.closing(connection):
        saver = SqliteSaver(connection, serde=VerbatimSerializer())
        saver.setup()  # of the empty database in memory, whose tables the views then hide
        of_checkpoints, columns = _attached(connection, place)
        _check(place, "SqliteSaver", of_checkpoints, columns)
        added = "" if "task_path" in columns else ", '' AS task_path"
        connection.execute("CREATE TEMP VIEW checkpoints AS SELECT * FROM source.checkpoints")
        connection.execute(f"CREATE TEMP VIEW writes AS SELECT *{added} FROM source.writes")
        connection.execute("BEGIN")
        yield saver


def _attached(connection: sqlite3.Connection, place: str) -> tuple[Set[str], Set[str]]:
    """Opens a file beside the tables that are there; the columns of its two tables, none where there is no table."""
    try:
        connection.execute("ATTACH ? AS source", (f"{Path(place).resolve().as_uri()}?mode=ro",))
        query = "SELECT name FROM pragma_table_info(?, 'source')"
        found = [{name for (name,) in connection.execute(query, (table,))} for table in ("checkpoints", "writes")]
    except sqlite3.OperationalError:
        raise  # it is locked, or cannot be opened
    except sqlite3.DatabaseError:
        return set(), set()
    return found[0], found[1]


@contextlib.contextmanager
def _reading_postgres(place: str) -> Iterator[Saver]:
    import psycopg
    from langgraph.checkpoint.postgres import PostgresSaver
    from psycopg.rows import dict_row

    with psycopg.connect(place, autocommit=True, prepare_threshold=None, row_factory=dict_row) as connection:
        connection.read_only, connection.isolation_level = True, psycopg.IsolationLevel.REPEATABLE_READ
        with connection.transaction():
            connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")  # the target may take its time
            tables = ("checkpoints", "checkpoint_writes")
            of_checkpoints, of_writes = (
                {row["attname"] for row in connection.execute(_COLUMNS, (table,))} for table in tables
            )
            _check("the source", "PostgresSaver", of_checkpoints, of_writes)
            saver = PostgresSaver(connection, serde=VerbatimSerializer())
            if "task_path" not in of_writes:
                vars(saver).update(
                    SELECT_SQL=_WITH_TASK_PATH + saver.SELECT_SQL,
                    SELECT_PENDING_SENDS_SQL=_WITH_TASK_PATH + saver.SELECT_PENDING_SENDS_SQL,
                )
            yield saver


def _check(name: str, saver: str, of_checkpoints: Set[str], of_writes: Set[str]) -> None:
    """Refuses what is no database of the saver, or one that no version since its 1.0 has made."""
    if "thread_ts" in of_checkpoints:
        raise typer.BadParameter(
            f"{name} was made by a LangGraph before 0.2, whose checkpoints no later saver can read: finish its threads"
            " with that version"
        )
    if of_checkpoints and "checkpoint_id" not in of_checkpoints:
        raise typer.BadParameter(
            f"{name} was made by ShallowPostgresSaver, which keeps no history: in Python, give that saver to"
            " langgraph_ledger.transfer"
        )
    if not of_checkpoints or not of_writes:
        raise typer.BadParameter(f"{name} is no database of {saver}")
