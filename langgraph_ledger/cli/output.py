"""What is printed: tables and lines for people, JSON for programs. What was stored cannot steer the terminal."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from langgraph_ledger.recovery import Recovery

_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


def clean(value: Any) -> str:
    """Text without what a terminal obeys: control characters and those that turn writing round become visible."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", str(value))


def line(value: Any) -> str:
    """The same in one line: what was stored cannot look like a line of ours."""
    return clean(value).replace("\n", "\\n").replace("\t", " ")


def cell(value: Any, width: int | None = None) -> Text:
    """Text as it is, for rich would take what is in brackets for markup."""
    text = line(value)
    return Text(text if width is None or len(text) <= width else f"{text[: width - 1]}…")


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
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        say(f"{name + ':':<{width + 2}}{line(value)}")


def report(found: Recovery) -> None:
    """A recovery report, a line for each fact."""
    facts(found.lines())


def say(text: str) -> None:
    """One line."""
    print(text.encode(sys.stdout.encoding or "utf-8", "replace").decode(sys.stdout.encoding or "utf-8"))


def tree(found: Tree) -> None:
    console().print(found)


def as_json(value: Any) -> None:
    """The same for programs: one JSON document, times as ISO 8601, nothing but ASCII."""
    say(json.dumps(plain(value), indent=2))


def fields_of(record: Any) -> dict[str, Any]:
    """A record's fields by name."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def plain(value: Any) -> Any:
    """A value with nothing but what JSON has words for."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(part) for part in value]
    if isinstance(value, (bytes, bytearray)):
        return {"$type": "bytes", "$length": len(value)}
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and value - value == 0):
        return value
    return str(value)


def size(count: float | None) -> str:
    """Bytes as people read them."""
    if count is None:
        return "?"
    for unit in ("B", "KB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def moment(value: datetime | None) -> str:
    """A time, UTC."""
    return "?" if value is None else value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def age(value: datetime) -> str:
    """How long ago that was."""
    seconds = max(0.0, (datetime.now(UTC) - value).total_seconds())
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"
