"""Moving threads from one saver to another: every checkpoint, namespace and pending write, and each is compared.

Both ends are any of LangGraph's savers, so this is the way in from an official saver and the way back. Checkpoints keep
their ids; the source is only read. What is there already is compared and not stored again, so a transfer that was
stopped can simply be made again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP, BaseCheckpointSaver, CheckpointTuple, PendingWrite

from langgraph_ledger.errors import InvalidInput, NotTransferred
from langgraph_ledger.runs import Marked, Run
from langgraph_ledger.saver import LedgerSaver


@dataclass(frozen=True, slots=True)
class Transferred:
    """What a transfer has moved, or found to be there already."""

    threads: int
    checkpoints: int
    pending_writes: int


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

    Raises `NotTransferred` if the target gives back anything else than what the source holds, and `StateConflict` if
    somebody writes to a thread of a ledger meanwhile.
    """
    threads = checkpoints = writes = 0
    for thread_id in threads_of(source) if thread_ids is None else thread_ids:
        found = _oldest_first(source, thread_id)
        if not found and thread_ids is None:
            continue  # a session that has not come to a checkpoint yet
        if not found:
            raise InvalidInput(f"the source holds no checkpoint of thread {thread_id!r}")
        _check_target(target, thread_id, found)
        _store(target, thread_id, found)
        for item in found:
            _compare(target, thread_id, item)
        _compare_heads(source, target, thread_id, found)
        threads, checkpoints = threads + 1, checkpoints + len(found)
        writes += sum(len(item.pending_writes or ()) for item in found)
        if progress is not None:
            progress(thread_id, len(found))
    return Transferred(threads, checkpoints, writes)


def threads_of(saver: BaseCheckpointSaver[Any]) -> Sequence[str]:
    """The ids of a saver's threads. Savers that this does not know are asked for every checkpoint they hold."""
    kind = type(saver).__name__
    if isinstance(saver, LedgerSaver):
        return [session.session_id for session in saver.sessions(limit=2**31)]
    if kind == "InMemorySaver":
        return list(cast("Any", saver).storage)
    if kind in ("SqliteSaver", "PostgresSaver"):
        with cast("Any", saver).cursor() if kind == "SqliteSaver" else cast("Any", saver)._cursor() as cursor:
            cursor.execute("SELECT DISTINCT thread_id FROM checkpoints ORDER BY thread_id")
            return [row["thread_id"] if isinstance(row, Mapping) else row[0] for row in cursor.fetchall()]
    return list(dict.fromkeys(item.config["configurable"]["thread_id"] for item in saver.list(None)))


def _oldest_first(source: BaseCheckpointSaver[Any], thread_id: str) -> list[CheckpointTuple]:
    """A thread's checkpoints in the order of their making: a ledger lists them so, elsewhere their ids say it."""
    found = list(source.list({"configurable": {"thread_id": thread_id}}))
    if isinstance(source, LedgerSaver):
        return found[::-1]
    return sorted(found, key=lambda item: str(item.checkpoint["id"]))


def _check_target(target: BaseCheckpointSaver[Any], thread_id: str, items: Sequence[CheckpointTuple]) -> None:
    known = {_place(item)[:2] for item in items}
    for item in target.list({"configurable": {"thread_id": thread_id}}):
        if _place(item)[:2] not in known:
            raise InvalidInput(
                f"thread {thread_id!r} is in use: the target has checkpoint {_place(item)[1]}, which the source does"
                " not have"
            )


def _store(target: BaseCheckpointSaver[Any], thread_id: str, items: Sequence[CheckpointTuple]) -> None:
    run = _begun(target, thread_id)
    versions: dict[tuple[str, str], Mapping[str, Any]] = {}
    for item in items:
        namespace, checkpoint_id, parent_id = _place(item)
        own = item.checkpoint["channel_versions"]
        before = versions.get((namespace, parent_id or ""), {})
        values = item.checkpoint["channel_values"]
        changed = {name: version for name, version in own.items() if name in values or before.get(name) != version}
        versions[namespace, checkpoint_id] = own
        target.put(_config(thread_id, namespace, _marked(parent_id, run)), item.checkpoint, item.metadata, changed)
        place = _config(thread_id, namespace, _marked(checkpoint_id, run))
        for number, (task_id, writes) in enumerate(_by_task(item.pending_writes or ())):
            target.put_writes(place, writes, task_id, f"{number:08}")  # a path by which they sort as they were


def _begun(target: BaseCheckpointSaver[Any], thread_id: str) -> Run | None:
    """The run that writes to a ledger's thread; other savers know of none."""
    if not isinstance(target, LedgerSaver):
        return None
    head = target.get_tuple(_config(thread_id, "", None))
    if head is None:
        return target._ledger.runs.announced()
    found: Run | None = head.config["configurable"]["checkpoint_id"].run
    return found


def _marked(checkpoint_id: str | None, run: Run | None) -> str | None:
    return checkpoint_id if checkpoint_id is None or run is None else Marked(checkpoint_id, run)


def _config(thread_id: str, namespace: str, checkpoint_id: str | None) -> RunnableConfig:
    place = {"thread_id": thread_id, "checkpoint_ns": namespace}
    return {"configurable": place if checkpoint_id is None else {**place, "checkpoint_id": checkpoint_id}}


def _place(item: CheckpointTuple) -> tuple[str, str, str | None]:
    parent = item.parent_config["configurable"]["checkpoint_id"] if item.parent_config else None
    namespace = item.config["configurable"].get("checkpoint_ns", "")
    return namespace, str(item.checkpoint["id"]), None if parent is None else str(parent)


def _by_task(writes: Sequence[PendingWrite]) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    found: dict[str, list[tuple[str, Any]]] = {}
    for task_id, channel, value in writes:
        found.setdefault(task_id, []).append((channel, value))
    yield from found.items()


def _in_order(writes: Sequence[PendingWrite]) -> list[tuple[str, list[tuple[str, Any]]]]:
    """What each task wrote, in the order in which savers keep it. A task that came over in the middle and then went on
    has written under two paths, by which a saver sorts."""
    return [(task, sorted(own, key=lambda w: WRITES_IDX_MAP.get(w[0], 0))) for task, own in _by_task(writes)]


def _compare(target: BaseCheckpointSaver[Any], thread_id: str, item: CheckpointTuple) -> None:
    namespace, checkpoint_id, parent_id = _place(item)
    found = target.get_tuple(_config(thread_id, namespace, checkpoint_id))
    where = f"thread {thread_id!r}, namespace {namespace!r}, checkpoint {checkpoint_id}"
    if found is None:
        raise NotTransferred(f"{where}: the target does not have it")
    parts = {
        "parent": (parent_id, _place(found)[2]),
        "checkpoint": (_rest(item), _rest(found)),
        "metadata": (dict(item.metadata), {k: v for k, v in found.metadata.items() if k in item.metadata}),
        "pending writes": (_in_order(item.pending_writes or ()), _in_order(found.pending_writes or ())),
    }
    for channel, value in item.checkpoint["channel_values"].items():
        parts[f"channel {channel!r}"] = (value, found.checkpoint["channel_values"].get(channel))
    for part, (here, there) in parts.items():
        if not _same(target, here, there):
            raise NotTransferred(f"{where}: the target gives back another {part} than the source holds")


def _compare_heads(
    source: BaseCheckpointSaver[Any], target: BaseCheckpointSaver[Any], thread_id: str, items: Sequence[CheckpointTuple]
) -> None:
    for namespace in dict.fromkeys(_place(item)[0] for item in items):
        here, there = (saver.get_tuple(_config(thread_id, namespace, None)) for saver in (source, target))
        if (here and _place(here)[1]) != (there and _place(there)[1]):
            raise NotTransferred(
                f"thread {thread_id!r}, namespace {namespace!r}: the target takes another checkpoint for the latest"
            )


def _rest(item: CheckpointTuple) -> dict[str, Any]:
    return {key: value for key, value in item.checkpoint.items() if key != "channel_values"}


def _same(saver: BaseCheckpointSaver[Any], one: Any, other: Any) -> bool:
    """Alike, type for type. What is no plain container is compared as it is serialised."""
    if isinstance(one, Marked) or isinstance(other, Marked):
        return bool(one == other)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(_same(saver, one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, itertools.repeat(saver), one, other))
    if isinstance(one, (set, frozenset)):  # it may come back in another order
        return bool(one == other)
    return saver.serde.dumps_typed(one) == saver.serde.dumps_typed(other)
