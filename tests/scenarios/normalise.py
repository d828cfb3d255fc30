"""The normal form: what a user can see of a graph, as JSON that is equal when and only when the behaviour is.

Random identifiers (checkpoints, tasks, interrupts, messages, threads) become `<1>`, `<2>`, ... by first appearance,
times become `<time>`, channel versions their number. Types survive: a tuple does not equal a list.
"""

import dataclasses
import json
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import StateSnapshot

NULL_TASK = "00000000-0000-0000-0000-000000000000"
UNIQUE = re.compile(r"\b(?:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32})\b")
CONFIG_KEY_CHECKPOINTER = "__pregel_checkpointer"
"""LangGraph puts the saver itself into the configs it hands out for subgraphs; some savers hand it back."""
SHORTEST = len("2026-01-01T00:00:00")
"""What is shorter holds no identifier and no time."""
UNORDERED = "(unordered)"
TIME = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(?:[+-]\d\d:\d\d|Z)?")


def normal_form(observations: Any) -> Any:
    """`observations` as JSON with every random identifier replaced."""
    return _Names().replace(plain(observations))


def plain(value: Any) -> Any:
    """`value` as JSON that keeps types apart; identifiers are still the real ones."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str) and not isinstance(value, Enum):
        return str.__str__(value)
    if isinstance(value, StateSnapshot):
        return snapshot(value)
    if isinstance(value, CheckpointTuple):
        return checkpoint_tuple(value)
    if isinstance(value, BaseMessage):
        return {"message": value.type, **plain(value.model_dump(exclude_defaults=True, exclude={"type"}))}
    if isinstance(value, BaseException):
        return {type(value).__name__: str(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {type(value).__name__: plain(value._asdict())}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {type(value).__name__: fields}
    if isinstance(value, Mapping):
        kept = {str(k): v for k, v in value.items() if k != CONFIG_KEY_CHECKPOINTER}
        return {k: _unordered(v) if k == "__interrupt__" else plain(v) for k, v in kept.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, tuple):
        return {"tuple": [plain(v) for v in value]}
    if isinstance(value, (set, frozenset)):
        return {type(value).__name__: sorted((plain(v) for v in value), key=_blank)}
    slots = getattr(type(value), "__slots__", ())
    return {type(value).__name__: {s: plain(getattr(value, s)) for s in slots} or repr(value)}


def snapshot(state: StateSnapshot) -> Any:
    return {
        "values": plain(state.values),
        "next": list(state.next),
        "config": plain(state.config),
        "parent": plain(state.parent_config),
        "metadata": plain(state.metadata),
        "created_at": plain(state.created_at),
        "tasks": [plain(task._asdict()) for task in state.tasks],
        "interrupts": plain(list(state.interrupts)),
    }


def checkpoint_tuple(found: CheckpointTuple) -> Any:
    checkpoint = found.checkpoint
    return {
        "config": plain(found.config),
        "parent": plain(found.parent_config),
        "metadata": plain(found.metadata),
        "values": plain(checkpoint["channel_values"]),
        "versions": {k: _number(v) for k, v in checkpoint["channel_versions"].items()},
        "seen": {n: {k: _number(v) for k, v in s.items()} for n, s in checkpoint["versions_seen"].items()},
        "updated": plain(checkpoint.get("updated_channels")),
        "rest": {k: plain(checkpoint[k]) for k in ("v", "id", "ts")},  # type: ignore[literal-required]
        "writes": [[plain(task), channel, plain(value)] for task, channel, value in found.pending_writes or ()],
    }


def namespaces(found: Mapping[str, list[CheckpointTuple]]) -> Any:
    """All that a saver holds of a thread. What orders the namespaces is `_Names.arrange`, not their random ids."""
    return {UNORDERED: [{"1 namespace": n, "2 checkpoints": _without_inherited(found[n])} for n in found]}


def _without_inherited(tuples: list[CheckpointTuple]) -> list[Any]:
    """The checkpoints of a namespace. A delta channel's snapshot is compared where it was taken: a saver may show it at
    the descendants too, as long as the channel does not change, or leave it to LangGraph to look for it there."""
    versions = {t.checkpoint["id"]: t.checkpoint["channel_versions"] for t in tuples}
    shown = []
    for found in tuples:
        parent = (found.parent_config or {}).get("configurable", {}).get("checkpoint_id")
        inherited = {
            channel
            for channel, value in found.checkpoint["channel_values"].items()
            if isinstance(value, _DeltaSnapshot)
            and versions.get(parent, {}).get(channel) == found.checkpoint["channel_versions"].get(channel)
        }
        form = plain(found)
        form["values"] = {channel: value for channel, value in form["values"].items() if channel not in inherited}
        shown.append(form)
    return shown


def _unordered(interrupts: Any) -> Any:
    """Parallel tasks ask in the order in which they come to it."""
    return sorted((plain(i) for i in interrupts), key=_blank)


def _number(version: Any) -> int:
    return int(str(version).split(".")[0])


def _blank(value: Any) -> str:
    return TIME.sub("#", UNIQUE.sub("#", json.dumps(value, sort_keys=True)))


def _blank_key(key: str) -> str:
    return key if len(key) < SHORTEST else UNIQUE.sub("#", key)


class _Names:
    """Random identifiers, numbered by first appearance."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def replace(self, value: Any) -> Any:
        if isinstance(value, str):
            if len(value) < SHORTEST:
                return value
            return TIME.sub("<time>", UNIQUE.sub(self._name, value))
        if isinstance(value, list):
            return [self.replace(v) for v in value]
        if isinstance(value, dict):
            if UNORDERED in value:
                return self.arrange(value[UNORDERED])
            return {self.replace(k): self.replace(value[k]) for k in sorted(value, key=_blank_key)}
        return value

    def arrange(self, values: list[Any]) -> list[Any]:
        """Always the next of those left that is smallest by the names known so far, ids without a name left out."""
        left = [(json.dumps(value, sort_keys=True), value) for value in values]
        arranged = []
        while left:
            keys = [TIME.sub("#", UNIQUE.sub(self._known, text)) for text, _ in left]
            arranged.append(self.replace(left.pop(keys.index(min(keys)))[1]))
        return arranged

    def _known(self, match: re.Match[str]) -> str:
        number = self._numbers.get(match[0])
        return "#" if number is None else f"<{number:06}>"

    def _name(self, match: re.Match[str]) -> str:
        if match[0] == NULL_TASK:
            return "<null>"
        return f"<{self._numbers.setdefault(match[0], len(self._numbers) + 1)}>"


def differences(expected: Any, found: Any, path: str = "") -> list[str]:
    """Where two normal forms differ, one line each."""
    if isinstance(expected, dict) and isinstance(found, dict) and expected.keys() == found.keys():
        return [line for key in expected for line in differences(expected[key], found[key], f"{path}.{key}")]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        return [line for i in range(len(found)) for line in differences(expected[i], found[i], f"{path}[{i}]")]
    return (
        [] if expected == found and type(expected) is type(found) else [f"{path}: {expected!r:.300} / {found!r:.300}"]
    )
