"""What is in the database in the end: through a saver that knows nothing of it, and as rows."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import psycopg

from benchmarks.history.records import DRAFT, digest, durable
from langgraph_ledger import LedgerSaver, LogEntry

Place = tuple[str, str]
"""Within a thread: namespace and checkpoint id."""


@dataclass
class Stored:
    """A checkpoint as it is stored."""

    parent: str | None
    values: str
    step: Any
    source: Any
    draft: str = ""
    """Of the working channel, if its value is there."""


@dataclass
class Remains:
    """A thread as it is stored."""

    version: int = 0
    deleted: bool = False
    heads: dict[str, str] = field(default_factory=dict)
    """The current checkpoint of each namespace."""
    latest: str | None = None
    """The root checkpoint that a list begins with."""
    checkpoints: dict[Place, Stored] = field(default_factory=dict)
    writes: dict[tuple[str, str, str], dict[int, list[str]]] = field(default_factory=dict)
    """By namespace, checkpoint and task: the channel and the value's digest under each number."""
    log: Sequence[LogEntry] = ()
    copies: dict[str, "Remains"] = field(default_factory=dict)
    """Copies of it, by name."""
    findings: list[str] = field(default_factory=list)
    """What `verify` finds."""


HEADS = "SELECT session_id, agent_id, checkpoint_id, version, deleted_at FROM agent_state_ledger"
WRITES = "SELECT session_id, agent_id, checkpoint_id, task_path, task_id, idx FROM pending_writes"


def remains_of(url: str, threads: Sequence[str]) -> dict[str, Remains]:
    """Reads everything. Whatever cannot be read raises."""
    connection: Any = psycopg.connect(url) if url.startswith("postgres") else sqlite3.connect(url)
    with closing(connection):
        heads, writes = (connection.execute(query).fetchall() for query in (HEADS, WRITES))
    numbers = _numbers(writes)
    copies = {name: name.split(" by ")[0].removeprefix("copy of ") for name, *_ in heads if name not in threads}
    with LedgerSaver(url, read_only=True, working_channels={DRAFT}) as saver:
        found = {thread: _remains(saver, thread, numbers) for thread in (*threads, *copies)}
    for thread, namespace, checkpoint_id, version, deleted_at in heads:
        remains = found[thread]
        if namespace == "":
            remains.version, remains.deleted = version, deleted_at is not None
        if checkpoint_id is not None:
            remains.heads[namespace] = checkpoint_id
    for name, thread in copies.items():
        found[thread].copies[name] = found.pop(name)
    return found


def _numbers(rows: Sequence[tuple[Any, ...]]) -> dict[tuple[str, str, str], list[tuple[str, int]]]:
    """Task and number of each of a checkpoint's writes, in the order in which a saver gives the writes."""
    found: dict[tuple[str, str, str], list[tuple[str, int]]] = {}
    for thread, namespace, checkpoint_id, _, task, number in sorted(rows):
        found.setdefault((thread, namespace, checkpoint_id), []).append((task, number))
    return found


def _remains(saver: LedgerSaver, thread: str, numbers: dict[tuple[str, str, str], list[tuple[str, int]]]) -> Remains:
    remains = Remains(log=saver.history(thread))
    remains.findings = [f"{found.where}: {found.what}" for found in saver.verify(thread) if not found.harmless]
    for found in saver.list({"configurable": {"thread_id": thread}}):
        conf, checkpoint, metadata = found.config["configurable"], found.checkpoint, found.metadata
        place = (conf["checkpoint_ns"], str(checkpoint["id"]))
        if place[0] == "" and remains.latest is None:
            remains.latest = place[1]
        parent = found.parent_config["configurable"]["checkpoint_id"] if found.parent_config else None
        values = checkpoint["channel_values"]
        draft = digest(values[DRAFT]) if DRAFT in values else ""
        told = (parent, digest(durable(values)), metadata.get("step"), metadata.get("source"), draft)
        remains.checkpoints[place] = Stored(*told)
        kept = [write for write in found.pending_writes or () if write[1] != DRAFT]
        rows = zip(numbers.get((thread, *place), []), kept, strict=True)
        for (task, number), (_, channel, value) in rows:
            remains.writes.setdefault((*place, task), {})[number] = [channel, digest(value)]
    return remains
