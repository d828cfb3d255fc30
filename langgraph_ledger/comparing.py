"""What differs between two checkpoints of a thread. Values are compared as data: nothing of them is constructed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import unified_diff
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_ledger import ids, legible, markup, working
from langgraph_ledger.data import plain, reader_of
from langgraph_ledger.errors import UnknownCheckpoint
from langgraph_ledger.flow import Flow
from langgraph_ledger.ledger import Ledger
from langgraph_ledger.operations.checkpoints import read_checkpoint
from langgraph_ledger.reading import decode

CONTEXT_LINES = 2
SHOWN_LINES, SHOWN_CHARACTERS = 200, 500
"""Of a channel, and of a line, in a notebook."""
_INTERNAL = ("__", "branch:", "join:")
_NOTHING = object()


@dataclass(frozen=True, slots=True)
class Diff:
    """What differs between two checkpoints of a thread. `print` it, or show it in a notebook.

    `changes` has the channels that differ, each with lines as `diff -u` writes them: of the values as JSON, where an
    object is its fields and a `$type`. `before` and `after` are the checkpoints' ids. A `DeltaChannel` is compared
    where both checkpoints hold it whole.
    """

    thread_id: str
    checkpoint_ns: str
    before: str
    after: str
    changes: Mapping[str, tuple[str, ...]]

    def to_dict(self) -> dict[str, list[str]]:
        """The lines by channel, as JSON can hold them."""
        return {channel: list(lines) for channel, lines in self.changes.items()}

    def __str__(self) -> str:
        if not self.changes:
            return "no difference"
        return "\n".join(
            "\n".join([f"{legible.line(channel)}:", *(f"  {legible.line(text)}" for text in lines)])
            for channel, lines in self.changes.items()
        )

    _repr_pretty_ = legible.as_text

    def _repr_html_(self) -> str:
        title = f"{legible.short(self.thread_id)}: from {legible.short(self.before)} to {legible.short(self.after)}"
        parts = [self._channel(channel, lines) for channel, lines in self.changes.items()]
        return markup.page(title, *(parts or [markup.note("no difference")]))

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


def diff(
    ledger: Ledger, serde: SerializerProtocol, thread_id: str, before: str, after: str | None, checkpoint_ns: str
) -> Flow[Diff]:
    """Compares two checkpoints of one namespace; the second is the latest if it is not named. Changes nothing."""
    session_id, agent_id = ids.clean(thread_id, "thread_id"), ids.namespace_of({"checkpoint_ns": checkpoint_ns})
    first = yield from _state(ledger, serde, session_id, agent_id, str(ids.clean(before, "checkpoint_id")))
    wanted = None if after is None else str(ids.clean(after, "checkpoint_id"))
    second = yield from _state(ledger, serde, session_id, agent_id, wanted)
    names = sorted(name for name in {*first[1], *second[1]} if not is_internal(name))
    lines = {name: _changes(*(state.get(name, _NOTHING) for _, state in (first, second))) for name in names}
    changes = {name: found for name, found in lines.items() if found}
    return Diff(session_id, agent_id, first[0], second[0], changes)


def _state(
    ledger: Ledger, serde: SerializerProtocol, session_id: str, agent_id: str, checkpoint_id: str | None
) -> Flow[tuple[str, Mapping[str, Any]]]:
    vault = yield from ledger.vault(reader_of(serde))
    _, stored = yield read_checkpoint(session_id, agent_id, checkpoint_id)
    if stored is None:
        what = f"checkpoint {checkpoint_id!r}" if checkpoint_id else "checkpoints"
        raise UnknownCheckpoint(f"thread {session_id!r} has no {what} in namespace {agent_id!r}")
    stored.working = yield from working.fetch(ledger, session_id)
    found = decode(ledger, vault, stored, None)
    return stored.checkpoint_id, found.checkpoint["channel_values"]


def _changes(before: Any, after: Any) -> tuple[str, ...]:
    old, new = ([] if value is _NOTHING else pretty(value).splitlines() for value in (before, after))
    _, _, *lines = [*unified_diff(old, new, lineterm="", n=CONTEXT_LINES)] or (None, None)
    return tuple(lines)
