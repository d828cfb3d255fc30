"""Commands that look after a ledger: what it takes, what may go, its schema, copies and deletions."""

from __future__ import annotations

from collections.abc import Sequence
from json import dumps, loads
from pathlib import Path
from typing import Annotated, Any

import typer

from langgraph_ledger import sql
from langgraph_ledger.cli import output
from langgraph_ledger.cli.options import (
    ATTENTION,
    FAILED,
    KEY,
    Json,
    Schema,
    Thread,
    Url,
    Yes,
    existing,
    is_url,
    ledger,
    period,
)
from langgraph_ledger.errors import InvalidInput
from langgraph_ledger.verification import Findings

PANEL = "Upkeep"


def add_to(app: typer.Typer) -> None:
    for command in (stats, verify, heads, prune, sweep, compact, copy, delete, schema):
        app.command(rich_help_panel=PANEL)(command)


def stats(
    url: Url,
    thread: Annotated[str | None, typer.Argument(metavar="[THREAD]", help="One thread; without it, all.")] = None,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Say what a thread, or the whole ledger, takes."""
    with ledger(url, schema) as saver:
        if thread is not None:
            existing(saver, thread)
        found = saver.stats(thread)
    if json:
        ratios = {"compression_ratio": found.compression_ratio, "dedupe_ratio": found.dedupe_ratio}
        output.as_json(output.fields_of(found) | ratios)
        return
    output.facts(found.lines())


def verify(
    url: Url,
    threads: Annotated[list[str] | None, typer.Argument(metavar="[THREAD]...", help="Without them, all.")] = None,
    against: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also compare with what `lgledger heads` gave earlier.")
    ] = None,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Check every digest, chain and reference; without threads, of all, and SQLite's file. Exits with 3 if one is not
    as it was, and with 1 if something could not be checked for want of a key."""
    kept = None if against is None else _heads_in(against)
    with ledger(url, schema) as saver:
        existing(saver, *(threads or ()))
        each = [saver.verify(name, against=kept) for name in _each(threads)]
    found = Findings()
    for one in each:
        found.add(one)
    damaged = [finding for finding in found if not finding.harmless and not finding.unread]
    unread = sum(finding.unread for finding in found)
    if json:
        output.as_json([output.fields_of(finding) for finding in found])
    else:
        notes = [f for f in found if f.harmless and not f.where.startswith("memory ")]
        rows = [(f.thread_id, f.where, f.what) for f in (*damaged, *notes)]
        empty = "what could be read is as it was stored" if unread else "all is as it was stored"
        output.table(("thread", "where", "what"), rows, empty=empty)
        unused = len(found) - len(damaged) - len(notes) - unread
        counts = {
            "with a pruned history": found.pruned,
            "rows without a digest": found.unchained,
            "encrypted and not checked": unread,
        }
        more = "".join(f", {what}: {number}" for what, number in counts.items() if number)
        output.say(f"threads: {found.threads}, damaged rows: {len(damaged)}, unused chunks: {unused}{more}")
    if unread:
        typer.echo(f"{unread} rows are encrypted: give their key in the variable {KEY}", err=True)
    raise typer.Exit(ATTENTION if damaged else FAILED if unread else 0)


def heads(
    url: Url,
    threads: Annotated[list[str] | None, typer.Argument(metavar="[THREAD]...", help="Without them, all.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write them there instead.")] = None,
    schema: Schema = None,
) -> None:
    """Print, as JSON, where the chains of the logs end, to be kept elsewhere: for `lgledger verify --against`."""
    with ledger(url, schema) as saver:
        existing(saver, *(threads or ()))
        found = [head for name in _each(threads) for head in saver.log_heads(name)]
    if out is None:
        output.as_json(found)
        return
    try:
        out.write_text(dumps(found, indent=2) + "\n", "utf-8")
    except OSError as error:
        typer.echo(output.line(f"{out}: {error.strerror}"), err=True)
        raise typer.Exit(FAILED) from error


def _each(threads: list[str] | None) -> Sequence[str | None]:
    return threads or [None]


def _heads_in(path: Path) -> Any:
    try:
        return loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        typer.echo(output.line(f"{path}: no heads can be read from it ({error})"), err=True)
        raise typer.Exit(FAILED) from error


def prune(
    url: Url,
    threads: Annotated[list[str] | None, typer.Argument(metavar="[THREAD]...", help="Without them, all.")] = None,
    keep_last: Annotated[int, typer.Option(help="How many checkpoints of each namespace to keep.")] = 1,
    older_than: Annotated[str | None, typer.Option(help="Only what is older than this, such as 30d.")] = None,
    status: Annotated[str | None, typer.Option(help="Only threads with this status.")] = None,
    yes: Yes = False,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Drop old checkpoints. Without --yes it is only said what that would free."""
    options: dict[str, Any] = {"keep_last": keep_last, "older_than": period(older_than), "status": status}
    with ledger(url, schema, write=True) as saver:
        existing(saver, *(threads or ()))
        found = saver.prune(threads or None, dry_run=not yes, **options)
    _freed(found, yes, json)


def sweep(url: Url, yes: Yes = False, schema: Schema = None, json: Json = False) -> None:
    """Delete threads that were idle for longer than their time to live. Without --yes it is only said what goes."""
    with ledger(url, schema, write=True) as saver:
        found = saver.sweep(dry_run=not yes)
    _freed(found, yes, json)


def compact(url: Url, schema: Schema = None, json: Json = False) -> None:
    """Give free room back to the file system. Writers wait until it is done."""
    with ledger(url, schema, write=True) as saver:
        freed = saver.compact()
    output.as_json({"bytes_given_back": freed}) if json else output.say(f"given back: {output.size(freed)}")


def copy(
    url: Url,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The thread to copy.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The thread to make.")],
    last: Annotated[int | None, typer.Option(help="Only so many of the latest checkpoints.")] = None,
    at: Annotated[str | None, typer.Option(metavar="CHECKPOINT", help="Only what led up to this checkpoint.")] = None,
    schema: Schema = None,
) -> None:
    """Copy a thread."""
    with ledger(url, schema, write=True) as saver:
        existing(saver, source)
        if not saver.stats(source).checkpoints:
            typer.echo(output.line(f"thread {source!r} has no checkpoints to copy"), err=True)
            raise typer.Exit(FAILED)
        saver.copy_thread(source, target, last=last, checkpoint_id=at)
    output.say(f"copied {output.line(source)} to {output.line(target)}")


def delete(url: Url, thread: Thread, yes: Yes = False, schema: Schema = None) -> None:
    """Delete all of a thread. Without --yes nothing is done."""
    with ledger(url, schema, write=yes) as saver:
        existing(saver, thread)
        found = saver.stats(thread)
        if yes:
            saver.delete_thread(thread)
    what = f"thread {output.line(thread)}: {found.checkpoints} checkpoints, {output.size(found.bytes_stored)}"
    output.say(f"deleted {what}" if yes else f"would delete {what}; say --yes to do it")


def schema(
    url: Url,
    ddl: Annotated[bool, typer.Option("--ddl", help="Print the statements that make the tables.")] = False,
    migrate: Annotated[bool, typer.Option("--migrate", help="Create the tables, or bring them up to date.")] = False,
    partitions: Annotated[
        int | None, typer.Option(help="In how many partitions, by thread, to make the large tables (Postgres).")
    ] = None,
    schema: Schema = None,
) -> None:
    """Say whether the tables are up to date, print what makes them, or make them."""
    if ddl:
        if partitions is not None and not is_url(url):
            raise typer.BadParameter("partitions are for Postgres")
        try:
            made = sql.script("postgres" if is_url(url) else "sqlite", schema, sql.checked_partitions(partitions))
        except InvalidInput as error:
            raise typer.BadParameter(str(error)) from error
        output.say(made.strip())
        return
    with ledger(url, schema, write=migrate, made=migrate, partitions=partitions) as saver:
        if migrate:
            saver.setup()
        complete = saver.is_up_to_date()
    output.say("the tables are up to date" if complete else "tables are missing: lgledger schema --migrate makes them")
    raise typer.Exit(0 if complete else ATTENTION)


def _freed(found: Any, done: bool, as_json: bool) -> None:
    figures = {name: value for name, value in output.fields_of(found).items() if name != "dry_run"}
    if as_json:
        output.as_json({"done": done, **figures})
        return
    counts = {name.replace("_", " "): value for name, value in figures.items() if name != "bytes"}
    shown = ", ".join([*(f"{value} {name}" for name, value in counts.items()), output.size(figures["bytes"])])
    output.say(f"{'freed' if done else 'would free'}: {shown}" + ("" if done else "; say --yes to do it"))
