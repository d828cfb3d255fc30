"""Commands that show what is there: sessions, a thread's state, its history, its log, its conflicts."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from difflib import unified_diff
from typing import Annotated, Any

import typer
from rich.text import Text
from rich.tree import Tree

from langgraph_ledger.audit import Audit
from langgraph_ledger.audit import audit as audit_of
from langgraph_ledger.cli import output
from langgraph_ledger.cli.options import ATTENTION, FAILED, Json, Schema, Thread, Url, ledger, period
from langgraph_ledger.errors import LedgerError
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
        found = saver.get_tuple({"configurable": place})
        report = saver.recover(thread)
    if found is None:
        output.say(f"there is no such checkpoint in thread {output.line(thread)}")
        raise typer.Exit(FAILED)
    values = {name: value for name, value in found.checkpoint["channel_values"].items() if not _internal(name)}
    if json:
        known = {"checkpoint_id": str(found.checkpoint["id"]), "metadata": found.metadata, "values": values}
        output.as_json({**known, "recovery": report.to_dict()})
        return
    output.report(report)
    output.facts([("checkpoint", found.checkpoint["id"]), ("step", found.metadata.get("step"))])
    for name, value in values.items():
        output.say(f"\n{output.line(name)}:")
        for line in _pretty(value).splitlines():
            output.say(f"  {output.clean(line)}")


def history(url: Url, thread: Thread, schema: Schema = None, json: Json = False) -> None:
    """Draw a thread's checkpoints as a tree: forks, subgraphs, steps, refused writes."""
    with ledger(url, schema) as saver:
        entries = [e for e in saver.history(thread) if e.checkpoint_type in ("checkpoint", "write_rejected")]
        head = saver.get_tuple({"configurable": {"thread_id": thread}})
    if json:
        output.as_json([output.fields_of(entry) for entry in entries])
        return
    if not entries:
        output.say(f"thread {output.line(thread)} has no checkpoints")
        raise typer.Exit(FAILED)
    output.tree(_tree(thread, entries, str(head.checkpoint["id"]) if head else None))


def diff(
    url: Url,
    thread: Thread,
    before: Annotated[str, typer.Argument(metavar="A", help="A checkpoint's id.")],
    after: Annotated[str, typer.Argument(metavar="B", help="Another one's.")],
    ns: Namespace = "",
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Show what differs between two checkpoints of a thread."""
    states = []
    with ledger(url, schema) as saver:
        for checkpoint_id in (before, after):
            place = {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}
            found = saver.get_tuple({"configurable": place})
            if found is None:
                output.say(f"thread {output.line(thread)} has no checkpoint {output.line(checkpoint_id)}")
                raise typer.Exit(FAILED)
            states.append(found.checkpoint["channel_values"])
    names = sorted(name for name in {*states[0], *states[1]} if not _internal(name))
    changes = {name: _changes(*(state.get(name, _NOTHING) for state in states)) for name in names}
    changes = {name: lines for name, lines in changes.items() if lines}
    if json:
        output.as_json(changes)
        return
    for name, lines in changes.items():
        output.say(f"{output.line(name)}:")
        for line in lines:
            output.say(f"  {output.clean(line)}")
    if not changes:
        output.say("no difference")


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
        found = saver.rejected_writes(thread)
    if json:
        output.as_json([output.fields_of(entry) for entry in found])
    else:
        rows = [
            (
                output.moment(e.created_at),
                e.session_id,
                e.payload.get("operation", ""),
                *_versions(e),
                _loser(e),
                _winner(e),
            )
            for e in found
        ]
        columns = ("when (UTC)", "thread", "operation", "read", "found", "refused run", "by run")
        output.table(columns, rows, empty="no write was ever refused")
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


_NOTHING = object()


def _internal(channel: str) -> bool:
    return channel.startswith(("__", "branch:", "join:"))


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        raise typer.BadParameter(f"--where {text!r}: expected NAME=VALUE")
    return name, value


def _matches(session: Session, wanted: Mapping[str, str]) -> bool:
    return all(str(session.metadata.get(name)) == value for name, value in wanted.items())


def _outcome(session: Session) -> str:
    return " ".join(str(part) for part in session.outcome.values())


def _versions(entry: LogEntry) -> tuple[Any, Any]:
    return entry.payload.get("version_read", ""), entry.payload.get("version_found", "")


def _loser(entry: LogEntry) -> str:
    return str(entry.payload.get("writer"))[:8]


def _winner(entry: LogEntry) -> str:
    return str(entry.payload.get("winner"))[:8]


def _pretty(value: Any) -> str:
    return json.dumps(output.plain(value), ensure_ascii=False, indent=2)


def _changes(before: Any, after: Any) -> list[str]:
    old, new = ([] if value is _NOTHING else _pretty(value).splitlines() for value in (before, after))
    return [line for line in unified_diff(old, new, lineterm="", n=2) if not line.startswith(("---", "+++"))]


def _print(entry: LogEntry, start: LogEntry | None, as_json: bool) -> None:
    if as_json:
        output.say(json.dumps(output.plain(output.fields_of(entry))))
        return
    text = entry.payload.get("tool") or entry.payload.get("once") or entry.payload.get("source") or ""
    parts = [output.moment(entry.created_at), f"{entry.checkpoint_type:<20}", text]
    if entry.call_id is not None:
        parts.append(entry.call_id)
        if start is not None and start is not entry:
            parts.append(f"{(entry.created_at - start.created_at).total_seconds():.2f} s")
        shown = [entry.payload[name] for name in ("arguments", "result", "error") if name in entry.payload]
        parts += [json.dumps(output.plain(value), ensure_ascii=False)[:120] for value in shown]
    else:
        parts += [f"step {entry.payload['step']}"] if "step" in entry.payload else []
        parts += [entry.agent_id, entry.checkpoint_id, entry.payload.get("message")]
    output.say("  ".join(output.line(part) for part in parts if part))


def _tree(thread: str, entries: Sequence[LogEntry], head: str | None) -> Tree:
    """Checkpoints under their parents. A line of descent stays on one level: only forks and subgraphs go deeper."""
    kept = {(e.agent_id, e.checkpoint_id) for e in entries if e.checkpoint_type == "checkpoint"}
    children: dict[tuple[str, str | None], list[LogEntry]] = {}
    for entry in entries:
        parent = (entry.agent_id, entry.parent_checkpoint_id)
        children.setdefault(parent if parent in kept else (entry.agent_id, None), []).append(entry)
    found = Tree(output.cell(thread))
    for namespace in dict.fromkeys(entry.agent_id for entry in entries):
        branch = found if not namespace else found.add(output.cell(f"subgraph {namespace}"))
        waiting = [(branch, entry, False) for entry in reversed(children.get((namespace, None), []))]
        while waiting:
            place, entry, is_branch = waiting.pop()
            node = place.add(_line(entry, head))
            below = children.get((namespace, entry.checkpoint_id), []) if entry.checkpoint_type == "checkpoint" else []
            forks = len(below) > 1
            waiting += [(node if forks or is_branch else place, child, forks) for child in reversed(below)]
    return found


def _line(entry: LogEntry, head: str | None) -> Text:
    if entry.checkpoint_type == "write_rejected":
        read, there = _versions(entry)
        return Text(f"refused: run {_loser(entry)} had read version {read}, found {there}", style="red")
    text = f"{entry.checkpoint_id}  step {entry.payload.get('step')}  {entry.payload.get('source')}"
    size = f"  {output.size(entry.state_bytes)}" if entry.state_bytes is not None else ""
    line = Text(f"{output.line(text)}{size}  {output.moment(entry.created_at)}")
    if entry.checkpoint_id == head:
        line.append("  head", style="bold green")
    return line
