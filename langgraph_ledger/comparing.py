"""What differs between two checkpoints of a thread. Values are compared as data: nothing of them is constructed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_ledger import ids, legible, markup, working
from langgraph_ledger.data import plain, reader_of
from langgraph_ledger.errors import UnknownCheckpoint
from langgraph_ledger.flow import Flow
from langgraph_ledger.ledger import Ledger
from langgraph_ledger.operations.checkpoints import read_checkpoint
from langgraph_ledger.places import body_label, unpack_body
from langgraph_ledger.reading import decode
from langgraph_ledger.unified import unified

SHOWN_LINES, SHOWN_CHARACTERS = 200, 500
"""Of a channel, and of a line, in a notebook."""
_INTERNAL = ("__", "branch:", "join:")
_NOTHING = object()


@dataclass(frozen=True, slots=True)
class Diff:
    """What differs between two checkpoints of a thread. `print` it, or show it in a notebook.

    `changes` has the channels that differ, each with lines as `diff -u` writes them: of the values as JSON, where an
    object is its fields and a `$type`. `before` and `after` are the checkpoints' ids. A `DeltaChannel` is compared
    where both checkpoints hold it whole, and otherwise named in `not_compared`. Of very large values that differ in
    very many places the lines may be more than need be.
    """

    thread_id: str
    checkpoint_ns: str
    before: str
    after: str
    changes: Mapping[str, tuple[str, ...]]
    not_compared: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, list[str]]:
        """The lines by channel, as JSON can hold them."""
        return {channel: list(lines) for channel, lines in self.changes.items()}

    def __str__(self) -> str:
        changes = [
            "\n".join([f"{legible.line(channel)}:", *(f"  {legible.line(text)}" for text in lines)])
            for channel, lines in self.changes.items()
        ]
        return "\n".join([*(changes or ["no difference"]), *self._left_out()])

    _repr_pretty_ = legible.as_text

    def _repr_html_(self) -> str:
        title = f"{legible.short(self.thread_id)}: from {legible.short(self.before)} to {legible.short(self.after)}"
        parts = [self._channel(channel, lines) for channel, lines in self.changes.items()]
        left_out = [markup.note(text) for text in self._left_out()]
        return markup.page(title, *(parts or [markup.note("no difference")]), *left_out)

    def _left_out(self) -> list[str]:
        why = "not compared, for not both checkpoints hold it whole"
        return [f"{legible.short(name)}: {why}" for name in self.not_compared]

    def _channel(self, channel: str, lines: tuple[str, ...]) -> str:
        more = len(lines) - SHOWN_LINES
        rest = f"{more} more lines are not shown: .changes has them" if more > 0 else ""
        shown = [_marked(legible.short(text, SHOWN_CHARACTERS)) for text in lines[:SHOWN_LINES]]
        return f"<b>{markup.escape(legible.short(channel))}</b>{markup.listing(shown)}{markup.note(rest)}"


def _marked(text: str) -> markup.Cell:
    mark = {"+": markup.GOOD, "-": markup.BAD, "@": markup.DIM}.get(text[:1])
    return markup.Marked(text, mark) if mark else text


def is_internal(channel: str) -> bool:
    """Whether a channel is LangGraph's own, not one of the graph's state."""
    return channel.startswith(_INTERNAL)


def pretty(value: Any) -> str:
    """A value as JSON for the eye."""
    return json.dumps(plain(value), ensure_ascii=False, indent=2)


@dataclass(frozen=True, slots=True)
class State:
    """A checkpoint's values, and the delta channels that it does not hold whole."""

    checkpoint_id: str
    values: Mapping[str, Any]
    open_deltas: Set[str]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two checkpoints to compare."""

    thread_id: str
    checkpoint_ns: str
    before: State
    after: State


def read_pair(
    ledger: Ledger, serde: SerializerProtocol, thread_id: str, before: str, after: str | None, checkpoint_ns: str
) -> Flow[Pair]:
    """Two checkpoints of one namespace; the second is the latest if it is not named. Changes nothing."""
    session_id, agent_id = ids.clean(thread_id, "thread_id"), ids.namespace_of({"checkpoint_ns": checkpoint_ns})
    first = yield from _state(ledger, serde, session_id, agent_id, str(ids.clean(before, "checkpoint_id")))
    wanted = None if after is None else str(ids.clean(after, "checkpoint_id"))
    second = yield from _state(ledger, serde, session_id, agent_id, wanted)
    return Pair(session_id, agent_id, first, second)


def compare(pair: Pair) -> Diff:
    """What differs between them. Takes its time over large values, and none of a database's."""
    states = (pair.before, pair.after)
    left_out = pair.before.open_deltas | pair.after.open_deltas
    names = {*pair.before.values, *pair.after.values} - left_out
    lines = {
        name: _changes(*(state.values.get(name, _NOTHING) for state in states))
        for name in sorted(names)
        if not is_internal(name)
    }
    changes = {name: found for name, found in lines.items() if found}
    ends = (pair.before.checkpoint_id, pair.after.checkpoint_id)
    return Diff(pair.thread_id, pair.checkpoint_ns, *ends, changes, tuple(sorted(left_out)))


def _state(
    ledger: Ledger, serde: SerializerProtocol, session_id: str, agent_id: str, checkpoint_id: str | None
) -> Flow[State]:
    vault = yield from ledger.vault(reader_of(serde))
    _, stored = yield read_checkpoint(session_id, agent_id, checkpoint_id)
    if stored is None:
        what = f"checkpoint {checkpoint_id!r}" if checkpoint_id else "checkpoints"
        raise UnknownCheckpoint(f"thread {session_id!r} has no {what} in namespace {agent_id!r}")
    stored.working = yield from working.fetch(ledger, session_id)
    found = decode(ledger, vault, stored, None).checkpoint
    body = unpack_body(vault, stored.body, body_label(agent_id, stored.checkpoint_id), lambda: f"thread {session_id!r}")
    # of a channel that nothing was written to yet the checkpoint holds all, which is nothing
    return State(stored.checkpoint_id, found["channel_values"], found["channel_versions"].keys() & body.deltas)


def _changes(before: Any, after: Any) -> tuple[str, ...]:
    # not `splitlines`: it drops separators such as U+2028, which JSON has within a line, and which may be what differs
    old, new = ([] if value is _NOTHING else pretty(value).split("\n") for value in (before, after))
    return tuple(unified(old, new))
