"""What the commands have in common: which ledger, what to print, and what an error looks like."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from langgraph_ledger.cli import output
from langgraph_ledger.data import DataSerializer, reader_of
from langgraph_ledger.drivers.opening import is_postgres, sqlite_path
from langgraph_ledger.errors import DatabaseUnavailable, InvalidInput, KeyMissing, LedgerError, SchemaMissing
from langgraph_ledger.saver import LedgerSaver

FAILED, ATTENTION = 1, 3
"""Exit codes beside 0 (all is well) and 2 (wrong usage): it failed, and there is something to look at."""

KEY = "LANGGRAPH_AES_KEY"
"""LangGraph's own variable for the key of its `EncryptedSerializer`."""

Url = Annotated[
    str,
    typer.Option("--url", "-u", envvar="LANGGRAPH_LEDGER_URL", help="A SQLite file or a Postgres URL.", metavar="URL"),
]
Schema = Annotated[str | None, typer.Option("--schema", help="The Postgres schema of the ledger's tables.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Thread = Annotated[str, typer.Argument(metavar="THREAD", help="The thread's id.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it; without this it is only said what would be done.")]


@contextlib.contextmanager
def ledger(
    url: str, schema: str | None = None, *, write: bool = False, made: bool = False, partitions: int | None = None
) -> Iterator[LedgerSaver]:
    """The ledger that a command is about; `made` if it is not there. What goes wrong ends the command, in one line.

    Values are read as data: nothing that is stored is imported, constructed or unpickled to show it.
    """
    try:
        if not made:
            must_exist(url)
        with LedgerSaver(
            url,
            schema=schema,
            partitions=partitions,
            serde=DataSerializer(),
            read_only=not write,
            log_tools=False,
        ) as saver:
            if write and not made and not saver.is_up_to_date():
                raise SchemaMissing(url)  # a mistyped name must not make tables
            if not made:
                _give_key(saver)
            yield saver
    except LedgerError as error:
        typer.echo(failure(error, url, schema), err=True)
        raise typer.Exit(FAILED) from error


def _give_key(saver: LedgerSaver) -> None:
    """Lets a saver read an encrypted ledger, if there is a key. Only then: with one it reads nothing that is plain."""
    if KEY not in os.environ or not saver.is_encrypted():
        return
    try:
        saver.serde = reader_of(EncryptedSerializer.from_pycryptodome_aes())
    except ImportError as error:
        raise InvalidInput(f"{KEY} is set, and to use it the extra 'encryption' has to be installed") from error
    except ValueError as error:
        raise InvalidInput(f"{KEY}: {error}") from error
    saver.is_encrypted()  # raises if it is another key


def must_exist(url: str) -> None:
    """Raises DatabaseUnavailable for a file that is not there; whether a server is shows when it is asked."""
    if not is_url(url) and not Path(path := sqlite_path(url)).exists():
        raise DatabaseUnavailable(f"{path!r} does not exist")


def failure(error: Exception, url: str, schema: str | None) -> str:
    """What is printed of an error: one line, in the words of the command line."""
    said = str(error)
    if isinstance(error, KeyMissing):
        said = f"{said}, and the command line the variable {KEY}"
    if isinstance(error, SchemaMissing):
        place = repr(url)
        if is_url(url):
            place = "the default schema" if schema is None else f"the schema {schema!r}"
        elsewhere = "if it is in another one, say --schema NAME; " if is_url(url) else ""
        said = f"no ledger in {place}, or an older one; {elsewhere}lgledger schema --migrate makes it"
    return output.line(f"{type(error).__name__}: {' '.join(said.split())}")


def existing(saver: LedgerSaver, *threads: str) -> None:
    """Ends the command if one of these threads is none that the ledger knows anything of: its name is mistyped."""
    for thread in threads:
        if not _known(saver, thread):
            typer.echo(output.line(f"there is no thread {thread!r}"), err=True)
            raise typer.Exit(FAILED)


def _known(saver: LedgerSaver, thread: str) -> bool:
    """Whether there is anything to show, be it a refused write or what a damaged thread has left."""
    found = saver.stats(thread)
    stored = found.threads or found.checkpoints or found.pending_writes or found.chunks or found.conflicts
    return bool(stored or saver.history(thread)) or saver.recover(thread).status != "unknown"


def is_url(place: str) -> bool:
    """Whether it is a Postgres URL, not a file."""
    return is_postgres(place)


def period(text: str | None) -> timedelta | None:
    """A time span as people write it: 90s, 15m, 12h, 30d."""
    if text is None:
        return None
    units = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
    try:
        return timedelta(**{units[text[-1:]]: float(text[:-1])})
    except (KeyError, ValueError, OverflowError) as error:
        raise typer.BadParameter(f"{text!r}: expected a number and one of s, m, h, d, as in 30d") from error
