"""What was stored, as text for people: nothing of it steers the terminal or the page that shows it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

ROWS = 100
"""How many rows a display shows. Who wants all of them has the objects."""
WIDTH = 60
"""How many characters of a stored text a display shows in a line of its own."""

_STEERING = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff"
    r"\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Control characters, those that turn writing round or cannot be seen, and halves of characters."""


def clean(value: Any) -> str:
    """Text without what a terminal obeys and an eye is deceived by: such characters are shown by their numbers."""
    return _STEERING.sub(_numbered, str(value))


def _numbered(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def line(value: Any) -> str:
    """The same in one line: what was stored cannot look like a line of ours."""
    return clean(value).replace("\n", "\\n").replace("\t", " ")


def origin(told: Mapping[str, Any]) -> list[str]:
    """Of what a log shows of a checkpoint's metadata, the step and what it came from, as far as they are there."""
    step, source = told.get("step"), told.get("source")
    if isinstance(source, Mapping):  # a description of it, which is all that there is if the metadata are encrypted
        return ["encrypted"]
    return [str(part) for part in (f"step {step}" if step is not None else "", source) if part]


def short(value: Any, width: int = WIDTH) -> str:
    """The same, and no longer than `width` characters."""
    text = line(value)
    return text if len(text) <= width else f"{text[: width - 1]}…"


def as_text(shown: object, printer: Any, cycle: bool) -> None:
    """What IPython shows of an object where it shows text, as its `_repr_pretty_`: what `print` does."""
    printer.text(str(shown))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows under their headings; the last column may be as long as it is."""
    lines = [columns, *rows]
    widths = [max(len(cells[i]) for cells in lines) for i in range(len(columns) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(cells, widths, strict=False)), cells[-1]]).rstrip()
        for cells in lines
    )


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Names and what they stand for, one a line."""
    width = max(len(name) for name, _ in pairs)
    return "\n".join(f"{name + ':':<{width + 2}}{text}" for name, text in pairs)


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
