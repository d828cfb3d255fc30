"""Lists that the saver returns, which show themselves: as text when printed, as a table or a drawing in a notebook."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from langgraph_ledger import legible, markup
from langgraph_ledger.legible import ROWS
from langgraph_ledger.markup import BAD, CODE, GOOD, TIME, WARN, Marked
from langgraph_ledger.records import LogEntry, Session

T = TypeVar("T")


class Listing(list[T]):
    """A list that says what is in it."""

    _repr_pretty_ = legible.as_text


class Sessions(Listing[Session]):
    """Sessions, the most recently active first. Shown are the first hundred."""

    columns = ("thread", "status", "last active (UTC)", "started (UTC)", "metadata", "last run")

    def __str__(self) -> str:
        if not self:
            return "no threads"
        rows = [[cell.text if isinstance(cell, Marked) else cell for cell in _session(s)] for s in self[:ROWS]]
        return "\n".join([legible.table(self.columns, rows), *_told(_rest(self))])

    def _repr_html_(self) -> str:
        title = _number(len(self), "thread")
        if not self:
            return markup.page(title)
        return markup.page(title, markup.table(self.columns, map(_session, self[:ROWS])), markup.note(_rest(self)))


def _session(session: Session) -> list[markup.Cell]:
    return [
        legible.short(session.session_id),
        markup.status(legible.short(session.status)),
        markup.moment(session.last_active_at),
        markup.moment(session.started_at),
        legible.short(", ".join(f"{name}={value}" for name, value in session.metadata.items())),
        legible.short(" ".join(str(part) for part in session.outcome.values())),
    ]


class Rejected(Listing[LogEntry]):
    """Refused writes, oldest first. Shown are the last hundred."""

    columns = ("when (UTC)", "thread", "operation", "read", "found", "refused run", "by run", "the write")

    def rows(self) -> list[list[str]]:
        """What is said of each of them; `columns` are the headings."""
        return [_conflict(entry) for entry in self]

    def __str__(self) -> str:
        if not self:
            return "no write was ever refused"
        return "\n".join([*_told(_left_out(self)), legible.table(self.columns, self.rows()[-ROWS:])])

    def _repr_html_(self) -> str:
        title = _number(len(self), "refused write")
        if not self:
            return markup.page(title)
        shown = map(_marked, self.rows()[-ROWS:])
        return markup.page(title, markup.note(_left_out(self)), markup.table(self.columns, shown))


def _marked(cells: list[str]) -> list[markup.Cell]:
    when, *cells, accepted = cells
    return [Marked(when, TIME), *cells, Marked(accepted, BAD if accepted == "refused" else WARN)]


def _conflict(entry: LogEntry) -> list[str]:
    told = entry.payload
    versions = (_text(told.get(name)) for name in ("version_read", "version_found"))
    runs = (_text(told.get(name))[:8] for name in ("writer", "winner"))
    accepted = "let through" if told.get("accepted") else "refused"
    place = (legible.moment(entry.created_at), entry.session_id, _text(told.get("operation")))
    return [legible.short(cell) for cell in (*place, *versions, *runs, accepted)]


class History(Listing[LogEntry]):
    """A thread's log, oldest first. Shown are the last hundred entries, and how its checkpoints descend.

    `thread_id` is the thread, `head` the current checkpoint of its root graph, None if there is none.
    """

    columns = ("when (UTC)", "entry", "of", "what", "namespace", "checkpoint")

    def __init__(self, entries: Iterable[LogEntry] = (), thread_id: str = "", head: str | None = None) -> None:
        super().__init__(entries)
        self.thread_id, self.head = thread_id, head

    def __getitem__(self, place: Any) -> Any:
        """A part of a history is one too."""
        found = super().__getitem__(place)
        return History(found, self.thread_id, self.head) if isinstance(place, slice) else found

    def outline(self) -> Iterable[tuple[str, str, str]]:
        """The tree of checkpoints, a line for each: what is drawn before it, what it says, and its mark if any."""
        from langgraph_ledger.branches import Descent, outline
        from langgraph_ledger.drawing import refusal

        for before, entry in outline(Descent(self)):
            if isinstance(entry, str):
                yield before, entry, ""
            elif entry.checkpoint_type == "write_rejected":
                yield before, refusal(entry), BAD
            else:
                yield before, _checkpoint(entry), GOOD if self._is_head(entry) else ""

    def _is_head(self, entry: LogEntry) -> bool:
        return entry.agent_id == "" and entry.checkpoint_id == self.head

    def __str__(self) -> str:
        lines = [f"{before}{text}{'  head' * (mark == GOOD)}" for before, text, mark in self[-ROWS:].outline()]
        return "\n".join([legible.short(self.thread_id), *_told(_left_out(self)), *lines])

    def _repr_html_(self) -> str:
        from langgraph_ledger.drawing import draw

        shown = self[-ROWS:]
        kinds = [entry.checkpoint_type for entry in self]
        counts = [_number(kinds.count(kind), what) for kind, what in _COUNTED.items() if kind in kinds]
        title = f"{legible.short(self.thread_id)}: {', '.join(counts) or 'no checkpoints'}"
        log = markup.table(self.columns, map(_logged, shown))
        return markup.page(
            title,
            markup.note(_left_out(self)),
            draw(shown, self.head),
            markup.folded(f"the log: {_number(len(shown), 'entry', 'entries')}", log),
        )


_COUNTED = {"checkpoint": "checkpoint", "tool_call_started": "tool call", "write_rejected": "refused write"}


def _checkpoint(entry: LogEntry) -> str:
    size = legible.size(entry.state_bytes) if entry.state_bytes is not None else ""
    parts = (entry.checkpoint_id, *legible.origin(entry.payload), size, legible.moment(entry.created_at))
    return "  ".join(legible.short(part) for part in parts if part)


def _logged(entry: LogEntry) -> list[markup.Cell]:
    marks = {"write_rejected": BAD, "tool_call_failed": BAD, "tool_call_completed": GOOD}
    kind = legible.short(entry.checkpoint_type)
    return [
        markup.moment(entry.created_at),
        Marked(kind, marks[kind]) if kind in marks else kind,
        legible.short(subject(entry)),
        legible.short("  ".join(values(entry)), 200),
        legible.short(entry.agent_id),
        Marked(legible.short(entry.checkpoint_id or ""), CODE),
    ]


def subject(entry: LogEntry) -> str:
    """What an entry is about: a tool, an effect, a resource, a step."""
    told = entry.payload
    if entry.call_id is not None:
        return f"{told.get('tool') or told.get('once') or ''} {entry.call_id}".strip()
    return " ".join(reversed(legible.origin(told))) or str(told.get("operation") or "")


def values(entry: LogEntry) -> list[str]:
    """What the log shows of arguments, results and errors, or of what was refused, pruned or copied."""
    told = entry.payload
    if entry.checkpoint_type == "history_pruned":
        return [f"{told.get('removed')} entries removed"]
    if entry.checkpoint_type == "history_copied":
        return [f"from thread {told.get('thread')}"]
    if entry.call_id is None:
        return [str(told["message"])] if told.get("message") else []
    shown = [told[name] for name in ("arguments", "result", "error") if name in told]
    return [legible.short(json.dumps(_briefly(value), ensure_ascii=False), 120) for value in shown]


def _briefly(value: Any) -> Any:
    """A description with what is said first, and the type's own name last: the line may end before it."""
    if isinstance(value, list):
        return [_briefly(part) for part in value]
    if not isinstance(value, dict):
        return value
    rest = {name: _briefly(part) for name, part in value.items() if name != "$type"}
    kind = value.get("$type")
    return rest if kind is None else {**rest, "$type": str(kind).rpartition(".")[2]}


# --- what they have in common


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _number(count: int, what: str, several: str | None = None) -> str:
    return f"{count or 'no'} {what if count == 1 else several or f'{what}s'}"


def _rest(found: Sequence[Any]) -> str:
    return f"… and {len(found) - ROWS} more, which are not shown" if len(found) > ROWS else ""


def _left_out(found: Sequence[Any]) -> str:
    return f"the first {len(found) - ROWS} of {len(found)} are not shown" if len(found) > ROWS else ""


def _told(note: str) -> list[str]:
    return [note] if note else []
