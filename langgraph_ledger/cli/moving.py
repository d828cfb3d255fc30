"""Commands that move threads from an official saver's database into a ledger, and back."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from langgraph.checkpoint.base import BaseCheckpointSaver
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from langgraph_ledger.cli import output
from langgraph_ledger.cli.options import FAILED, Json, Schema, Url, is_url
from langgraph_ledger.errors import LedgerError
from langgraph_ledger.saver import LedgerSaver
from langgraph_ledger.transfers import threads_of, transfer
from langgraph_ledger.verbatim import VerbatimSerializer

PANEL = "Moving in and out"
Threads = Annotated[list[str] | None, typer.Argument(metavar="[THREAD]...", help="Without them, all.")]


def add_to(app: typer.Typer) -> None:
    app.command("import", rich_help_panel=PANEL)(import_)
    app.command(rich_help_panel=PANEL)(export)


def import_(
    url: Url,
    source: Annotated[
        str,
        typer.Option("--from", metavar="SOURCE", help="A database of SqliteSaver (a file) or PostgresSaver (a URL)."),
    ],
    threads: Threads = None,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Copy threads of an official saver into the ledger: history, forks, subgraphs, pending writes, delta channels.

    The source is only read, each checkpoint is read back and compared, and an import that was stopped goes on.
    """
    with _errors(), _official(source, write=False) as official, _ledger(url, schema) as ledger:
        _move(official, ledger, threads, json)


def export(
    url: Url,
    target: Annotated[
        str, typer.Option("--to", metavar="TARGET", help="The same, to write to; made if it is not there.")
    ],
    threads: Threads = None,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Copy threads of the ledger into a database of an official saver."""
    with _errors(), _ledger(url, schema, read_only=True) as ledger, _official(target, write=True) as official:
        _move(ledger, official, threads, json)


def _move(
    source: BaseCheckpointSaver[Any], target: BaseCheckpointSaver[Any], threads: list[str] | None, json: bool
) -> None:
    chosen = threads or threads_of(source)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("threads", total=len(chosen))
        moved = transfer(source, target, chosen, progress=lambda thread, count: progress.advance(task))
    figures = output.fields_of(moved)
    if json:
        output.as_json(figures)
        return
    counted = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in figures.items())
    output.say(f"moved and compared: {counted}")


def _ledger(url: str, schema: str | None, *, read_only: bool = False) -> LedgerSaver:
    """Values pass through as the bytes they are: their types need not be there, and are not lost."""
    return LedgerSaver(url, schema=schema, serde=VerbatimSerializer(), log_tools=False, read_only=read_only)


@contextlib.contextmanager
def _official(place: str, *, write: bool) -> Iterator[BaseCheckpointSaver[Any]]:
    if is_url(place):
        from langgraph.checkpoint.postgres import PostgresSaver

        with PostgresSaver.from_conn_string(place) as saver:
            saver.serde = VerbatimSerializer()
            if write:
                saver.setup()
            yield saver
        return
    from langgraph.checkpoint.sqlite import SqliteSaver

    if not write and not Path(place).is_file():
        raise typer.BadParameter(f"there is no file {place}")
    name = place if write else f"{Path(place).resolve().as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(name, uri=not write, check_same_thread=False)) as connection:
        if not write and not _has_tables(connection):
            raise typer.BadParameter(f"{place} is no database of SqliteSaver")
        yield SqliteSaver(connection, serde=VerbatimSerializer())


def _has_tables(connection: sqlite3.Connection) -> bool:
    try:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.DatabaseError:
        return False
    return {"checkpoints", "writes"} <= names


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        typer.echo(f"{error}: install the official saver's package to read or write its database", err=True)
        raise typer.Exit(FAILED) from error
    except LedgerError as error:
        typer.echo(output.line(f"{type(error).__name__}: {error}"), err=True)
        raise typer.Exit(FAILED) from error
