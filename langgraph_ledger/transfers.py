"""Moving threads from one saver to another: every checkpoint, namespace and pending write, and each is compared.

Both ends are any of LangGraph's savers, so this is the way in from an official saver and the way back. Checkpoints keep
their ids; the source is only read. What is there already is compared and not stored again, so a transfer that was
stopped can simply be made again.
"""

from __future__ import annotations

import contextlib
import threading
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.serde.event_hooks import SerdeEvent, register_serde_event_listener
from langgraph.checkpoint.serde.types import TASKS

from langgraph_ledger.errors import InvalidInput, NotTransferred
from langgraph_ledger.likeness import by_task, has_moved_on, place_of, unlike
from langgraph_ledger.runs import Marked, Run, announce
from langgraph_ledger.saver import LedgerSaver


@dataclass(frozen=True, slots=True)
class Transferred:
    """What a transfer has moved, or found to be there already."""

    threads: int
    checkpoints: int
    pending_writes: int

    def __add__(self, other: Transferred) -> Transferred:
        return Transferred(
            self.threads + other.threads,
            self.checkpoints + other.checkpoints,
            self.pending_writes + other.pending_writes,
        )


def transfer(
    source: BaseCheckpointSaver[Any],
    target: BaseCheckpointSaver[Any],
    thread_ids: Iterable[str] | None = None,
    *,
    progress: Callable[[str, int], None] | None = None,
) -> Transferred:
    """Copies threads from one saver to another, and reads each checkpoint back to compare it.

    Args:
        source: the saver to read.
        target: the saver to write to. A thread that it holds already must be a part of the source's.
        thread_ids: the threads; None for all that `threads_of` finds.
        progress: called with each thread's id and its number of checkpoints when it is done.

    Raises `NotTransferred` if the source cannot be read, or the target gives back anything else than what the source
    holds, `InvalidInput` if the target holds something else under a thread's id, which is left as it is, and
    `StateConflict` if somebody writes to a thread of a ledger meanwhile. Threads that were done by then stay.
    """
    moved = Transferred(0, 0, 0)
    for thread_id in threads_of(source) if thread_ids is None else thread_ids:
        part = move(source, target, thread_id, required=thread_ids is not None)
        moved += part
        if progress is not None and part.threads:
            progress(thread_id, part.checkpoints)
    return moved


def move(
    source: BaseCheckpointSaver[Any], target: BaseCheckpointSaver[Any], thread_id: str, *, required: bool = True
) -> Transferred:
    """`transfer` of one thread. Without `required` it may have no checkpoint yet, as a session that has just begun."""
    found = _oldest_first(source, thread_id)
    if not found and required:
        raise InvalidInput(f"the source holds no checkpoint of thread {thread_id!r}")
    if not found:
        return Transferred(0, 0, 0)
    with _allowed(thread_id, "target"):
        _check_target(target, thread_id, found)
        _store(target, thread_id, found)
        for item in found:
            _compare(target, thread_id, item)
    _compare_heads(source, target, thread_id, found)
    return Transferred(1, len(found), sum(len(item.pending_writes or ()) for item in found))


def threads_of(saver: BaseCheckpointSaver[Any]) -> Sequence[str]:
    """The ids of a saver's threads. Savers that this does not know are asked for every checkpoint they hold."""
    kind = type(saver).__name__
    if isinstance(saver, LedgerSaver):
        return [session.session_id for session in saver.sessions(limit=2**31)]
    if kind == "InMemorySaver":
        return list(cast("Any", saver).storage)
    if kind in ("SqliteSaver", "PostgresSaver"):
        official = cast("Any", saver)
        with official.cursor(transaction=False) if kind == "SqliteSaver" else official._cursor() as cursor:
            cursor.execute("SELECT DISTINCT thread_id FROM checkpoints ORDER BY thread_id")
            return [row["thread_id"] if isinstance(row, Mapping) else row[0] for row in cursor.fetchall()]
    return list(dict.fromkeys(item.config["configurable"]["thread_id"] for item in saver.list(None)))


def is_of_a_database(error: Exception) -> bool:
    """Whether it is the database that failed an official saver, not the values in it. Imports no database library."""
    return type(error).__module__.partition(".")[0] in ("sqlite3", "psycopg")


def _oldest_first(source: BaseCheckpointSaver[Any], thread_id: str) -> list[CheckpointTuple]:
    """A thread's checkpoints in the order of their making: a ledger lists them so, elsewhere their ids say it."""
    config: RunnableConfig = {"configurable": {"thread_id": thread_id}}
    if isinstance(source, LedgerSaver):
        with _allowed(thread_id, "source"):
            return list(source.list(config))[::-1]
    try:
        with _allowed(thread_id, "source"):
            found = sorted(source.list(config), key=_id_of)
    except Exception as error:
        if isinstance(error, NotTransferred) or is_of_a_database(error):
            raise
        raise NotTransferred(
            f"thread {thread_id!r}: the source cannot be read: {error or type(error).__name__}"
        ) from error
    for item in found:
        _upgrade(source, item)
    return found


def _id_of(item: CheckpointTuple) -> str:
    if not isinstance(item.checkpoint, Mapping):
        kind = getattr(item.checkpoint, "kind", type(item.checkpoint).__name__)
        raise InvalidInput(
            f"its checkpoints were written by another serializer ({kind}): use langgraph_ledger.transfer, and"
            " give it to both savers"
        )
    return str(item.checkpoint["id"])


def _upgrade(source: BaseCheckpointSaver[Any], item: CheckpointTuple) -> None:
    """Puts what has to run next where LangGraph 0.5 and later have it, as the graph does that reads the checkpoint."""
    checkpoint = cast("dict[str, Any]", item.checkpoint)
    if checkpoint.get("v", 4) >= 4:
        return
    sends, values = checkpoint.pop("pending_sends", None), checkpoint["channel_values"]
    if sends and isinstance(sends[0], str):  # PostgresSaver 1.0 had them among what it stores as JSON
        sends = source.serde.loads_typed((sends[0], b64decode(sends[1])))
    if sends and TASKS not in values:  # later on it finds them among the parent's writes
        values[TASKS] = sends
        checkpoint["channel_versions"][TASKS] = max(checkpoint["channel_versions"].values())


@contextlib.contextmanager
def _allowed(thread_id: str, end: str) -> Iterator[None]:
    """Sees to it that a serializer restores every value: in the place of an object that it does not allow it gives
    what the object was made of, and the type would be lost without an error."""
    refused: set[str] = set()
    reader = threading.get_ident()

    def note(event: SerdeEvent) -> None:
        if event["kind"].endswith("blocked") and threading.get_ident() == reader:
            refused.add(f"{event['module']}.{event['name']}")

    stop, error = register_serde_event_listener(note), None
    try:
        yield
    except Exception as raised:
        error = raised
    finally:
        stop()
    if refused:
        raise NotTransferred(
            f"thread {thread_id!r}: the {end}'s serializer does not allow {', '.join(sorted(refused))}: name it in"
            " allowed_msgpack_modules, or use `lgledger import`, which moves values as the bytes they are"
        ) from error
    if error is not None:
        raise error


def _check_target(target: BaseCheckpointSaver[Any], thread_id: str, items: Sequence[CheckpointTuple]) -> None:
    """Refuses a thread of the target that is no part of the source's."""
    known = {place_of(item)[:2]: item for item in items}
    for there in target.list({"configurable": {"thread_id": thread_id}}):
        here = known.get(place_of(there)[:2])
        found = f"thread {thread_id!r} is in use: the target has checkpoint {place_of(there)[1]}"
        if here is None:
            raise InvalidInput(f"{found}, which the source does not have")
        if part := unlike(target, here, there):
            raise InvalidInput(f"{found} with another {part} than the source")
        if has_moved_on(target, here, there):
            raise InvalidInput(f"{found} with writes of tasks that the source does not have")


def _store(target: BaseCheckpointSaver[Any], thread_id: str, items: Sequence[CheckpointTuple]) -> None:
    run = _begun(target, thread_id)
    versions: dict[tuple[str, str], Mapping[str, Any]] = {}
    for item in items:
        namespace, checkpoint_id, parent_id = place_of(item)
        own = item.checkpoint["channel_versions"]
        before = versions.get((namespace, parent_id or ""), {})
        values = item.checkpoint["channel_values"]
        changed = {name: version for name, version in own.items() if name in values or before.get(name) != version}
        versions[namespace, checkpoint_id] = own
        target.put(_config(thread_id, namespace, _marked(parent_id, run)), item.checkpoint, item.metadata, changed)
        place = _config(thread_id, namespace, _marked(checkpoint_id, run))
        for number, (task_id, writes) in enumerate(by_task(item.pending_writes or ())):
            target.put_writes(place, writes, task_id, f"{number:08}")  # a path by which they sort as they were


def _begun(target: BaseCheckpointSaver[Any], thread_id: str) -> Run | None:
    """The run that writes to a ledger's thread; other savers know of none."""
    if not isinstance(target, LedgerSaver):
        return None
    head = target.get_tuple(_config(thread_id, "", None))
    if head is None:
        return target._ledger.runs.announced()
    found: Run | None = head.config["configurable"]["checkpoint_id"].run
    announce(found)  # to checkpoints without a parent, which have nothing to be marked
    return found


def _marked(checkpoint_id: str | None, run: Run | None) -> str | None:
    return checkpoint_id if checkpoint_id is None or run is None else Marked(checkpoint_id, run)


def _config(thread_id: str, namespace: str, checkpoint_id: str | None) -> RunnableConfig:
    place = {"thread_id": thread_id, "checkpoint_ns": namespace}
    return {"configurable": place if checkpoint_id is None else {**place, "checkpoint_id": checkpoint_id}}


def _compare(target: BaseCheckpointSaver[Any], thread_id: str, item: CheckpointTuple) -> None:
    namespace, checkpoint_id, _ = place_of(item)
    found = target.get_tuple(_config(thread_id, namespace, checkpoint_id))
    where = f"thread {thread_id!r}, namespace {namespace!r}, checkpoint {checkpoint_id}"
    if found is None:
        raise NotTransferred(f"{where}: the target does not have it")
    if part := unlike(target, item, found, writes=True):
        raise NotTransferred(f"{where}: the target gives back another {part} than the source holds")


def _compare_heads(
    source: BaseCheckpointSaver[Any], target: BaseCheckpointSaver[Any], thread_id: str, items: Sequence[CheckpointTuple]
) -> None:
    for namespace in dict.fromkeys(place_of(item)[0] for item in items):
        here, there = (saver.get_tuple(_config(thread_id, namespace, None)) for saver in (source, target))
        if (here and place_of(here)[1]) != (there and place_of(there)[1]):
            raise NotTransferred(
                f"thread {thread_id!r}, namespace {namespace!r}: the target takes another checkpoint for the latest"
            )
