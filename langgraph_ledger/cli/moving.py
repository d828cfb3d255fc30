"""Commands that move threads from an official saver's database into a ledger, and back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from langgraph_ledger.cli import official, output
from langgraph_ledger.cli.official import Saver
from langgraph_ledger.cli.options import FAILED, Json, Schema, Url, failure, is_url, must_exist
from langgraph_ledger.errors import DatabaseError, LedgerError
from langgraph_ledger.saver import LedgerSaver
from langgraph_ledger.transfers import Transferred, is_of_a_database, move, threads_of
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

    SOURCE may be of any version since 1.0 of these savers, and is left as it is: it is read as of one moment. Each
    checkpoint is read back and compared. An import that was stopped goes on; a thread that cannot be moved is named
    (exit code 1), and the others are moved.
    """
    with _errors(source, url, schema), official.reading(source) as found, _ledger(url, schema) as ledger:
        _move(found, ledger, threads, json)


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
    with _errors(target, url, schema), _ledger(url, schema, read_only=True) as ledger, official.writing(target) as made:
        _move(ledger, made, threads, json)


def _move(source: Saver, target: Saver, threads: list[str] | None, json: bool) -> None:
    """Moves one thread after another. One that cannot be moved does not keep the others from it."""
    chosen = threads or threads_of(source)
    moved, refused = Transferred(0, 0, 0), dict[str, str]()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        for thread in progress.track(chosen, description="threads"):
            try:
                moved += move(source, target, thread, required=bool(threads))
            except DatabaseError:
                raise  # it would be the same with the next one
            except LedgerError as error:
                refused[thread] = f"{type(error).__name__}: {error}"
    figures = output.fields_of(moved)
    if json:
        output.as_json({**figures, "not_moved": refused})
    else:
        counted = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in figures.items())
        output.say(f"moved and compared: {counted}")
    for reason in refused.values():
        typer.echo(output.line(f"not moved: {reason}"), err=True)
    if refused:
        raise typer.Exit(FAILED)


def _ledger(url: str, schema: str | None, *, read_only: bool = False) -> LedgerSaver:
    """Values pass through as the bytes they are: their types need not be there, and are not lost."""
    if read_only:
        must_exist(url)
    return LedgerSaver(url, schema=schema, serde=VerbatimSerializer(), log_tools=False, read_only=read_only)


@contextlib.contextmanager
def _errors(place: str, url: str, schema: str | None) -> Iterator[None]:
    """What goes wrong ends the command, in one line; `place` is the official saver's database."""
    try:
        yield
    except ImportError as error:
        package = f"langgraph-checkpoint-{'postgres' if is_url(place) else 'sqlite'}"
        typer.echo(f"{error}: to read or write this database, pip install {package}", err=True)
        raise typer.Exit(FAILED) from error
    except Exception as error:
        if not isinstance(error, LedgerError) and not is_of_a_database(error):
            raise
        typer.echo(failure(error, url, schema), err=True)
        raise typer.Exit(FAILED) from error
