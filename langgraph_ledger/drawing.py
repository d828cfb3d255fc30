"""The tree of a thread's checkpoints as SVG: a row for each, the latest at the bottom, a column for each branch."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

from langgraph_ledger import legible
from langgraph_ledger.branches import Descent, Lane, lanes
from langgraph_ledger.markup import escape
from langgraph_ledger.records import LogEntry

ROW, COLUMN, MARGIN = 22, 18, 12
"""The height of a row, the widths of a column and of the margin, in pixels."""
WIDEST = 320
"""What all columns may take."""
CHARACTER, GAP = 7.3, 22
"""How wide a character is, about, and how far texts of a row are apart."""

Texts = tuple[str, ...]


def draw(entries: Sequence[LogEntry], head: str | None) -> str:
    """Checkpoints and refused writes of a log as an SVG element; `head` is the current checkpoint of the root graph."""
    return _Drawing(Descent(entries), head).svg()


class _Drawing:
    def __init__(self, descent: Descent, head: str | None) -> None:
        self.descent, self.head = descent, head
        self.lanes = lanes(descent)
        columns = 1 + max((lane.column for lane in self.lanes), default=0)
        self.step = min(COLUMN, WIDEST / columns)
        self.left = 2 * MARGIN + (columns - 1) * self.step + ROW / 2
        self.x = {place: MARGIN + lane.column * self.step for lane in self.lanes for place in lane.places}

    def svg(self) -> str:
        rows = [self._texts(entry) for entry in self.descent.entries]
        widths = [max((_width(row[i]) for row in rows if len(row) > 1), default=0) for i in range(4)]
        starts = [self.left + sum(width + GAP for width in widths[:i]) for i in range(5)]
        whole = max([starts[4], *(self.left + _width(row[0]) for row in rows)])
        lines = [part for lane in reversed(self.lanes) for part in self._lines(lane)]
        dots = [self._row(place, row, starts) for place, row in enumerate(rows)]
        return (
            '<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="how the checkpoints follow one another"'
            f' width="{whole:.0f}" height="{len(rows) * ROW + 4}" fill="currentColor">{"".join([*lines, *dots])}</svg>'
        )

    def _y(self, place: int) -> int:
        return MARGIN + place * ROW

    def _colour(self, place: int) -> str:
        if self.descent.is_refused(place):
            return "var(--lgl-bad)"
        return "var(--lgl-side)" if self.descent.entries[place].agent_id else "var(--lgl-busy)"

    def _lines(self, lane: Lane) -> Iterator[str]:
        """What leads to a lane, and its own line: dashed if a subgraph or a refused write begins there."""
        first, last = lane.places[0], lane.places[-1]
        look = f'fill="none" stroke="{self._colour(first)}" stroke-width="2"'
        x = self.x[first]
        if lane.origin is not None:
            start, y = self.x[lane.origin], self._y(lane.origin)
            bend = f"M{start:g} {y}C{start:g} {y + ROW / 2:g} {x:g} {y + ROW / 2:g} {x:g} {y + ROW}V{self._y(first)}"
            dashes = ' stroke-dasharray="3 3"' if lane.called or self.descent.is_refused(first) else ""
            yield f'<path d="{bend}" {look}{dashes}/>'
        if first != last:
            yield f'<path d="M{x:g} {self._y(first)}V{self._y(last)}" {look}/>'

    def _row(self, place: int, row: Texts, starts: Sequence[float]) -> str:
        entry = self.descent.entries[place]
        mark = self._mark(place)
        texts = "".join(
            f'<text x="{x:.0f}" y="{self._y(place) + 4}"{self._look(place, i)}>{escape(text)}</text>'
            for i, (x, text) in enumerate(zip(starts, row, strict=False))
            if text
        )
        return f"<g><title>{escape(_told(entry))}</title>{mark}{texts}</g>"

    def _mark(self, place: int) -> str:
        x, y, colour = self.x[place], self._y(place), self._colour(place)
        if self.descent.is_refused(place):
            cross = f"M{x - 4:g} {y - 4}l8 8m0 -8l-8 8"
            return f'<path d="{cross}" fill="none" stroke="{colour}" stroke-width="2.5"/>'
        ring = f'<circle cx="{x:g}" cy="{y}" r="7.5" fill="none" stroke="var(--lgl-good)" stroke-width="2"/>'
        dot = f'<circle cx="{x:g}" cy="{y}" r="4.5" fill="{colour}"/>'
        return dot + ring if self._is_head(self.descent.entries[place]) else dot

    def _look(self, place: int, column: int) -> str:
        if self.descent.is_refused(place):
            return ' fill="var(--lgl-bad)"'
        if column == 0 and self._is_head(self.descent.entries[place]):
            return ' fill="var(--lgl-good)" font-weight="600"'
        return ' opacity=".65"' if column else ""

    def _is_head(self, entry: LogEntry) -> bool:
        return entry.agent_id == "" and entry.checkpoint_id == self.head

    def _texts(self, entry: LogEntry) -> Texts:
        """What stands beside an entry: of a checkpoint four texts, one in each column."""
        if entry.checkpoint_type != "checkpoint":
            return (refusal(entry),)
        nodes = "|".join(step.partition(":")[0] for step in entry.agent_id.split("|"))
        parts = [*legible.origin(entry.payload), nodes, self._is_head(entry) * "head"]
        label = " · ".join(legible.short(part, 40) for part in parts if part)
        size = legible.size(entry.state_bytes) if entry.state_bytes is not None else ""
        return label, legible.short(entry.checkpoint_id, 40), size, legible.moment(entry.created_at)


def refusal(entry: LogEntry) -> str:
    """A refused write in one line."""
    told = entry.payload
    what = "reported" if told.get("accepted") else "refused"
    found = f"had read version {told.get('version_read')}, found {told.get('version_found')}"
    return legible.short(f"{what}: run {str(told.get('writer'))[:8]} {found}", 100)


def _told(entry: LogEntry) -> str:
    """What is shown when a pointer rests on an entry."""
    parts = [entry.checkpoint_id, entry.agent_id and f"in {entry.agent_id}", entry.payload.get("message")]
    return " ".join(str(part) for part in parts if part)


def _width(text: str) -> float:
    return CHARACTER * sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
