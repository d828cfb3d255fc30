"""HTML of the displays in notebooks: tables, facts, lines of a difference. Everything that is shown is escaped here.

No scripts, no ids, nothing from elsewhere. Where a viewer drops the styles, plain tables remain.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from langgraph_ledger import legible

GOOD, BAD, WARN, BUSY, DIM, CODE, TIME = "good", "bad", "warn", "busy", "dim", "code", "time"
"""How a text may be marked."""

_LIGHT = "--lgl-good:#1a7f37;--lgl-bad:#cf222e;--lgl-warn:#9a6700;--lgl-busy:#0969da;--lgl-side:#8250df"
_DARK = "--lgl-good:#3fb950;--lgl-bad:#ff7b72;--lgl-warn:#d29922;--lgl-busy:#58a6ff;--lgl-side:#bc8cff"
_FONT = "var(--jp-code-font-family,ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace)"
_RULES = f"""
.lgl{{{_LIGHT};font-size:var(--jp-ui-font-size1,13px);line-height:1.5;overflow-x:auto;padding:2px 0}}
@media (prefers-color-scheme:dark){{.lgl{{{_DARK}}}}}
[data-jp-theme-light=true] .lgl,.vscode-light .lgl,html[theme=light] .lgl{{{_LIGHT}}}
[data-jp-theme-light=false] .lgl,.vscode-dark .lgl,html[theme=dark] .lgl{{{_DARK}}}
.lgl .lgl-title{{font-weight:600;margin:0 0 4px}}
.lgl .lgl-note,.lgl .lgl-dim{{opacity:.65}}
.lgl .lgl-note{{margin:4px 0}}
.lgl .lgl-good{{color:var(--lgl-good)}}
.lgl .lgl-bad{{color:var(--lgl-bad)}}
.lgl .lgl-warn{{color:var(--lgl-warn)}}
.lgl .lgl-busy{{color:var(--lgl-busy)}}
.lgl .lgl-code,.lgl pre,.lgl svg{{font-family:{_FONT};font-size:12px}}
.lgl table{{border-collapse:collapse;margin:0;font-size:inherit;table-layout:auto}}
.lgl table th,.lgl table td{{text-align:left!important;vertical-align:top;padding:3px 14px 3px 6px;border:0;
max-width:46em;white-space:normal;overflow-wrap:break-word}}
.lgl table th{{white-space:nowrap;font-weight:600}}
.lgl table td.lgl-code,.lgl .lgl-time{{white-space:nowrap}}
.lgl table thead th{{border-bottom:1px solid rgba(128,128,128,.5)}}
.lgl table tbody tr{{border-bottom:1px solid rgba(128,128,128,.2);background:none}}
.lgl pre{{margin:0 0 8px;padding:4px 6px;border-left:2px solid rgba(128,128,128,.4);background:none;color:inherit;
white-space:pre-wrap;overflow-wrap:anywhere}}
.lgl details{{margin:6px 0 0}}
.lgl summary{{cursor:pointer}}
"""
_STYLE = f"<style>{_RULES.strip()}</style>"


class Marked(NamedTuple):
    """A text, and how it is marked."""

    text: Any
    mark: str


Cell = str | Marked


def escape(value: Any) -> str:
    """Text in one line as it stands in a page, between tags or within an attribute."""
    return html.escape(legible.line(value))


def span(cell: Cell) -> str:
    """A text, marked if it is to be."""
    if isinstance(cell, Marked):
        return f'<span class="lgl-{cell.mark}">{escape(cell.text)}</span>'
    return escape(cell)


def page(title: str, *parts: str) -> str:
    """A display: a title over its parts, which are HTML."""
    return f'<div class="lgl">{_STYLE}<div class="lgl-title">{escape(title)}</div>{"".join(parts)}</div>'


def note(text: str) -> str:
    """A remark on a display; nothing if there is none to be made."""
    return f'<div class="lgl-note">{escape(text)}</div>' if text else ""


def table(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Rows under their headings."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def facts(pairs: Iterable[tuple[str, Cell]]) -> str:
    """Names and what they stand for."""
    rows = "".join(f"<tr><th>{escape(name)}</th>{_cell(cell)}</tr>" for name, cell in pairs)
    return f"<table><tbody>{rows}</tbody></table>"


def _cell(cell: Cell) -> str:
    if isinstance(cell, Marked) and cell.mark == CODE:
        return f'<td class="lgl-code">{escape(cell.text)}</td>'
    return f"<td>{span(cell)}</td>"


def listing(lines: Iterable[Cell]) -> str:
    """Lines one under the other, their spaces kept."""
    return f"<pre>{chr(10).join(map(span, lines))}</pre>"


def folded(title: str, content: str) -> str:
    """HTML that is shown when its title is clicked on."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def moment(value: datetime | None) -> Marked:
    """A time, UTC, in one line."""
    return Marked(legible.moment(value), TIME)


def status(name: str) -> Marked:
    """A session's status in its colour."""
    return Marked(name, {"completed": GOOD, "failed": BAD, "paused": WARN, "active": BUSY}.get(name, DIM))
