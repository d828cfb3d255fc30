"""What is printed: tables and lines for people, JSON for programs. What was stored cannot steer the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from langgraph_ledger import legible
from langgraph_ledger.data import plain as plain
from langgraph_ledger.legible import clean as clean
from langgraph_ledger.legible import line as line
from langgraph_ledger.legible import moment as moment
from langgraph_ledger.legible import size as size
from langgraph_ledger.recovery import Recovery


def cell(value: Any) -> Text:
    """Text as it is, for rich would take what is in brackets for markup."""
    return Text(line(value))


def console() -> Console:
    """Where tables go. A pipe has no width of its own, and lines must not break there."""
    return Console(highlight=False, soft_wrap=False, width=None if sys.stdout.isatty() else 200)


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, empty: str) -> None:
    """Rows under their headings, or a sentence if there are none."""
    if not rows:
        say(empty)
        return
    found = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        found.add_row(*(value if isinstance(value, Text) else cell(value) for value in row))
    console().print(found)


def facts(lines: Sequence[tuple[str, Any]]) -> None:
    """Names and what they stand for, one a line."""
    say(legible.facts([(name, line(value)) for name, value in lines]))


def report(found: Recovery) -> None:
    """A recovery report, a line for each fact."""
    facts(found.lines())


def say(text: str) -> None:
    """One line."""
    print(text.encode(sys.stdout.encoding or "utf-8", "replace").decode(sys.stdout.encoding or "utf-8"))


def drawing(lines: Iterable[Text]) -> None:
    """Lines that must not break where the terminal is narrow."""
    for text in lines:
        console().print(text, soft_wrap=True)


def as_json(value: Any) -> None:
    """The same for programs: one JSON document, times as ISO 8601, nothing but ASCII."""
    say(json.dumps(plain(value), indent=2))


def fields_of(record: Any) -> dict[str, Any]:
    """A record's fields by name."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def age(value: datetime) -> str:
    """How long ago that was."""
    seconds = max(0.0, (datetime.now(UTC) - value).total_seconds())
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"
