"""Commands that show what is there: sessions, a thread's state, its history, its log, its conflicts."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.text import Text

from langgraph_ledger.audit import Audit
from langgraph_ledger.audit import audit as audit_of
from langgraph_ledger.branches import CHECKPOINT, REJECTED
from langgraph_ledger.cli import output
from langgraph_ledger.cli.options import ATTENTION, FAILED, Json, Schema, Thread, Url, existing, ledger, period
from langgraph_ledger.comparing import is_internal, pretty
from langgraph_ledger.errors import LedgerError
from langgraph_ledger.listings import subject, values
from langgraph_ledger.markup import BAD, GOOD
from langgraph_ledger.records import LogEntry, Session

PANEL = "Looking"
Status = Annotated[str | None, typer.Option("--status", help="active, paused, completed or failed.")]
At = Annotated[str | None, typer.Option("--at", metavar="CHECKPOINT", help="An earlier checkpoint than the latest.")]
Namespace = Annotated[str, typer.Option("--ns", metavar="NAMESPACE", help="A subgraph's namespace.")]


def add_to(app: typer.Typer) -> None:
    for command in (sessions, show, history, diff, log, conflicts, audit):
        app.command(rich_help_panel=PANEL)(command)


def sessions(
    url: Url,
    status: Status = None,
    idle: Annotated[str | None, typer.Option(help="Only threads idle for so long, such as 12h or 30d.")] = None,
    where: Annotated[list[str] | None, typer.Option(help="Only threads with this metadata: NAME=VALUE.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many, the most recently active first.")] = 50,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """List threads: where they are in their life, and since when."""
    wanted = dict(_pair(text) for text in where or ())
    least = period(idle)
    with ledger(url, schema) as saver:
        found = [s for s in saver.sessions(status, limit=2**31) if _matches(s, wanted)]
    if least is not None:
        found = [s for s in found if (time.time() - s.last_active_at.timestamp()) >= least.total_seconds()]
    found = found[:limit]
    if json:
        output.as_json([output.fields_of(session) for session in found])
        return
    rows = [
        (s.session_id, s.status, output.age(s.last_active_at), output.moment(s.started_at), _outcome(s)) for s in found
    ]
    output.table(("thread", "status", "idle", "started (UTC)", "last run"), rows, empty="no threads")


def show(
    url: Url, thread: Thread, at: At = None, ns: Namespace = "", schema: Schema = None, json: Json = False
) -> None:
    """Show a thread's state, and what is next."""
    place: dict[str, Any] = {"thread_id": thread, "checkpoint_ns": ns}
    if at:
        place["checkpoint_id"] = at
    with ledger(url, schema) as saver:
        existing(saver, thread)
        found = saver.get_tuple({"configurable": place})
        report = saver.recover(thread)
    if found is None:
        output.say(f"there is no such checkpoint in thread {output.line(thread)}")
        raise typer.Exit(FAILED)
    values = {name: value for name, value in found.checkpoint["channel_values"].items() if not is_internal(name)}
    if json:
        known = {"checkpoint_id": str(found.checkpoint["id"]), "metadata": found.metadata, "values": values}
        output.as_json({**known, "recovery": report.to_dict()})
        return
    output.report(report)
    output.facts([("checkpoint", found.checkpoint["id"]), ("step", found.metadata.get("step"))])
    for name, value in values.items():
        output.say(f"\n{output.line(name)}:")
        for line in pretty(value).splitlines():
            output.say(f"  {output.clean(line)}")


def history(url: Url, thread: Thread, schema: Schema = None, json: Json = False) -> None:
    """Draw a thread's checkpoints as a tree: forks, subgraphs, steps, refused writes."""
    with ledger(url, schema) as saver:
        existing(saver, thread)
        found = saver.history(thread)
    lines = list(found.outline())
    if json:
        output.as_json([output.fields_of(entry) for entry in found if entry.checkpoint_type in (CHECKPOINT, REJECTED)])
        return
    if not lines:
        output.say(f"thread {output.line(thread)} has no checkpoints")
        raise typer.Exit(FAILED)
    output.say(output.line(thread))
    output.drawing(_drawn(*line) for line in lines)


def diff(
    url: Url,
    thread: Thread,
    before: Annotated[str, typer.Argument(metavar="A", help="A checkpoint's id.")],
    after: Annotated[str | None, typer.Argument(metavar="[B]", help="Another one's; without it, the latest.")] = None,
    ns: Namespace = "",
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Show what differs between two checkpoints of a thread."""
    with ledger(url, schema) as saver:
        existing(saver, thread)
        found = saver.diff(thread, before, after, checkpoint_ns=ns)
    if json:
        output.as_json(found.to_dict())
        return
    output.drawing(_coloured(text) for text in str(found).splitlines())


def log(
    url: Url,
    thread: Thread,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on and print what is added.")] = False,
    calls: Annotated[bool, typer.Option("--calls", help="Only tool calls and other effects.")] = False,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Print a thread's log: checkpoints, tool calls with their durations, refused writes."""
    begun: dict[str | None, LogEntry] = {}
    last = 0
    with ledger(url, schema) as saver:
        existing(saver, thread)
        while True:
            for entry in saver.history(thread):
                if entry.seq <= last:
                    continue
                last = entry.seq
                if entry.checkpoint_type == "tool_call_started":
                    begun[entry.attempt_id] = entry
                if not calls or entry.call_id is not None:
                    _print(entry, begun.get(entry.attempt_id) if entry.call_id else None, json)
            if not follow:
                return
            time.sleep(0.5)


def conflicts(
    url: Url,
    thread: Annotated[str | None, typer.Argument(metavar="[THREAD]", help="One thread; without it, all.")] = None,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """List refused writes: who lost, to whom, on what. Exits with 3 if there are any."""
    with ledger(url, schema) as saver:
        if thread is not None:
            existing(saver, thread)
        found = saver.rejected_writes(thread)
    if json:
        output.as_json([output.fields_of(entry) for entry in found])
    else:
        output.table(found.columns, found.rows(), empty="no write was ever refused")
    raise typer.Exit(ATTENTION if found else 0)


def audit(
    graph: Annotated[
        str, typer.Argument(metavar="MODULE:GRAPH", help="A compiled graph, or a function that makes it.")
    ],
    durability: Annotated[str, typer.Option(help="The durability it runs with: sync, async or exit.")] = "async",
    json: Json = False,
) -> None:
    """Say what of a graph survives a restart. Imports its module; exits with 3 if something does not survive."""
    report = _audited(graph, durability)
    output.as_json(report.to_dict()) if json else output.say(output.clean(report))
    raise typer.Exit(ATTENTION if report.findings else 0)


# --- parts


def _audited(place: str, durability: str) -> Audit:
    module, found, name = place.partition(":")
    if not (module and found and name):
        raise typer.BadParameter(f"{place!r}: expected MODULE:GRAPH, as in my_app.agent:graph")
    sys.path.insert(0, os.getcwd())
    try:
        graph = getattr(importlib.import_module(module), name)
        return audit_of(graph() if callable(graph) and not hasattr(graph, "channels") else graph, durability=durability)
    except (ImportError, AttributeError, LedgerError) as error:
        typer.echo(output.line(f"{type(error).__name__}: {error}"), err=True)
        raise typer.Exit(FAILED) from error


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        raise typer.BadParameter(f"--where {text!r}: expected NAME=VALUE")
    return name, value


def _matches(session: Session, wanted: Mapping[str, str]) -> bool:
    return all(str(session.metadata.get(name)) == value for name, value in wanted.items())


def _outcome(session: Session) -> str:
    return " ".join(str(part) for part in session.outcome.values())


def _print(entry: LogEntry, start: LogEntry | None, as_json: bool) -> None:
    if as_json:
        output.say(json.dumps(output.plain(output.fields_of(entry))))
        return
    parts = [output.moment(entry.created_at), f"{entry.checkpoint_type:<20}", subject(entry)]
    if start is not None and start is not entry:
        parts.append(f"{(entry.created_at - start.created_at).total_seconds():.2f} s")
    if entry.call_id is None:
        parts += [entry.agent_id, entry.checkpoint_id or ""]
    output.say("  ".join(output.line(part) for part in (*parts, *values(entry)) if part))


def _coloured(text: str) -> Text:
    return Text(text, style={"  +": "green", "  -": "red", "  @": "dim"}.get(text[:3], ""))


def _drawn(before: str, text: str, mark: str) -> Text:
    line = Text(before)
    line.append(text, style="red" if mark == BAD else "")
    return line.append("  head", style="bold green") if mark == GOOD else line
