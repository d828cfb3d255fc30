"""Whether two savers hold the same: checkpoints compared part by part, type for type. Nothing is written here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from langgraph.checkpoint.base import WRITES_IDX_MAP, BaseCheckpointSaver, CheckpointTuple, PendingWrite
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME

from langgraph_ledger.runs import Marked

Saver = BaseCheckpointSaver[Any]


def place_of(item: CheckpointTuple) -> tuple[str, str, str | None]:
    """Namespace, checkpoint id, and the parent's id if there is one."""
    parent = item.parent_config["configurable"]["checkpoint_id"] if item.parent_config else None
    namespace = item.config["configurable"].get("checkpoint_ns", "")
    return namespace, str(item.checkpoint["id"]), None if parent is None else str(parent)


def unlike(saver: Saver, here: CheckpointTuple, there: CheckpointTuple, *, writes: bool = False) -> str | None:
    """The name of a part in which the second checkpoint, which `saver` gave, is another than the first; None if none.

    It may have more metadata. Pending writes come after a checkpoint, and are compared if asked for.
    """
    parts: dict[str, tuple[Any, Any]] = {
        "parent": (place_of(here)[2], place_of(there)[2]),
        "checkpoint": (_rest(here), _rest(there)),
        "metadata": (dict(here.metadata), {k: v for k, v in there.metadata.items() if k in here.metadata}),
    }
    if writes:
        parts["pending writes"] = (_in_order(here.pending_writes or ()), _in_order(there.pending_writes or ()))
    for channel, value in here.checkpoint["channel_values"].items():
        parts[f"channel {channel!r}"] = (value, there.checkpoint["channel_values"].get(channel))
    sorted_by_some = ("checkpoint", "metadata")  # PostgresSaver keeps them as JSONB, which has an order of its own
    return next((part for part, pair in parts.items() if not same(saver, *pair, part not in sorted_by_some)), None)


def has_moved_on(saver: Saver, here: CheckpointTuple, there: CheckpointTuple) -> bool:
    """Whether tasks have written something to the second checkpoint that they have not written to the first.

    What a task asks, and the error that it ends in, give way to the next ones when it runs again.
    """
    known: dict[tuple[str, str], list[Any]] = {}
    for task_id, channel, value in here.pending_writes or ():
        known.setdefault((task_id, channel), []).append(value)
    for task_id, channel, value in there.pending_writes or ():
        values = known.get((task_id, channel), [])
        if channel in (INTERRUPT, ERROR) and values:
            continue
        if channel == RESUME and type(value) is list:  # a task's answers, of which it gets more
            values = [found[: len(value)] if type(found) is list else found for found in values]
        if not any(same(saver, found, value) for found in values):
            return True
    return False


def same(saver: Saver, one: Any, other: Any, ordered: bool = True) -> bool:
    """Whether two values are alike, type for type, and their keys in one order if it is `ordered`. What is no plain
    container is compared as it is serialised."""
    if isinstance(one, Marked) or isinstance(other, Marked):
        return bool(one == other)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        keys_alike = list(one) == list(other) if ordered else one.keys() == other.keys()
        return keys_alike and all(same(saver, one[key], other[key], ordered) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(saver, *pair, ordered) for pair in zip(one, other, strict=True))
    if isinstance(one, (set, frozenset)):  # it may come back in another order
        return bool(one == other)
    serde = saver.serde.serde if isinstance(saver.serde, EncryptedSerializer) else saver.serde
    return bool(serde.dumps_typed(one) == serde.dumps_typed(other))  # encrypted, nothing is like anything else


def by_task(writes: Sequence[PendingWrite]) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """Task by task, what each has written."""
    found: dict[str, list[tuple[str, Any]]] = {}
    for task_id, channel, value in writes:
        found.setdefault(task_id, []).append((channel, value))
    yield from found.items()


def _in_order(writes: Sequence[PendingWrite]) -> list[tuple[str, list[tuple[str, Any]]]]:
    """What each task wrote, in the order in which savers keep it. A task that came over in the middle and then went on
    has written under two paths, by which a saver sorts."""
    return [(task, sorted(own, key=lambda w: WRITES_IDX_MAP.get(w[0], 0))) for task, own in by_task(writes)]


def _rest(item: CheckpointTuple) -> dict[str, Any]:
    return {key: value for key, value in item.checkpoint.items() if key != "channel_values"}
