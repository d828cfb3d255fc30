"""Commands for after a crash: what was in flight, what was found out about it, what is still held."""

from __future__ import annotations

import json as json_text
from typing import Annotated, Any

import typer

from langgraph_ledger.cli import output
from langgraph_ledger.cli.options import ATTENTION, FAILED, Json, Schema, Thread, Url, existing, ledger, period

PANEL = "After a crash"


def add_to(app: typer.Typer) -> None:
    for command in (recover, resolve, release):
        app.command(rich_help_panel=PANEL)(command)


def recover(
    url: Url,
    thread: Annotated[
        str | None, typer.Argument(metavar="[THREAD]", help="One thread; without it, all that need a person.")
    ] = None,
    idle: Annotated[
        str | None, typer.Option(help="Also count threads of other hosts that were idle for so long, such as 5m.")
    ] = None,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Report what a crash left behind; changes nothing. Exits with 3 if a thread needs a person.

    Listed are the threads that are active while their process is gone, and others with an unknown call or something
    held: one that waits for the answer about a call, say. Those that only wait for an answer, or have failed, are in
    `sessions --status paused` and `sessions --status failed`.
    """
    with ledger(url, schema) as saver:
        if thread is not None:
            existing(saver, thread)
        reports = [saver.recover(thread)] if thread is not None else saver.unresolved(idle=period(idle))
    if json:
        output.as_json([report.to_dict() for report in reports])
    elif not reports:
        output.say("no thread was left by a crash")
    for number, report in enumerate(reports if not json else ()):
        if number:
            output.say("")
        output.report(report)
    attention = any(r.crashed or r.unknown or r.unapplied or r.held or r.status == "failed" for r in reports)
    raise typer.Exit(ATTENTION if attention else 0)


def resolve(
    url: Url,
    thread: Thread,
    call: Annotated[str, typer.Argument(metavar="CALL", help="The id of the call, as `recover` shows it.")],
    happened: Annotated[bool, typer.Option("--happened/--not-happened", help="Whether the call was made.")],
    result: Annotated[str | None, typer.Option(help="What it gave: JSON, or else text.")] = None,
    no_result: Annotated[bool, typer.Option("--no-result", help="It happened, and gave nothing.")] = False,
    task: Annotated[str | None, typer.Option(help="The task, if several have made a call of this id.")] = None,
    schema: Schema = None,
) -> None:
    """Put on record what was found out about an unknown call, so that the next run goes on accordingly.

    It is for good. A call that happened needs its result, with which a guarded run goes on.
    """
    if happened and (result is None) != no_result:
        raise typer.BadParameter("--happened: give what it returned, --result JSON, or --no-result if it was nothing")
    if not happened and (result is not None or no_result):
        raise typer.BadParameter("--not-happened: a call that was not made has no result to give")
    given = {"result": None if result is None else _value(result)} if happened else {}
    with ledger(url, schema, write=True) as saver:
        saver.resolve_call(thread, call, happened=happened, task_id=task, **given)
    output.say(f"on record: call {output.line(call)} {'was' if happened else 'was not'} made")


def release(
    url: Url,
    thread: Thread,
    resource: Annotated[str, typer.Argument(metavar="RESOURCE", help="What is held, as `recover` shows it.")],
    schema: Schema = None,
) -> None:
    """Release what a crashed run held, after it was dealt with."""
    with ledger(url, schema, write=True) as saver:
        existing(saver, thread)
        count = saver.release_hold(thread, resource)
    if not count:
        typer.echo(output.line(f"nobody holds {resource!r} on thread {thread!r}: see lgledger recover"), err=True)
        raise typer.Exit(FAILED)
    output.say(f"released: {count}")


def _value(text: str) -> Any:
    try:
        return json_text.loads(text)
    except ValueError:
        return text
