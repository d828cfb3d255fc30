"""The tables of the restart benchmark, of the terminal and of docs/restart.md alike."""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import page, tables
from benchmarks.restart.ways import WAYS, Way
from benchmarks.tables import short, table

PAGE = page.PAGE.with_name("restart.md")
RESULTS = page.FOLDER / "restart.json"

Found = Mapping[str, Any]

LIMITS = {"50 ms": 0.06, "250 ms": 0.02}
"""The most that saver, log and guard may add to a ticket, by what a tool takes."""
LOADING = 40.0
"""The most milliseconds that opening a saver and loading the conversation may take."""


def write(results: Path) -> Path:
    """Puts a run's figures in the place of those on the page."""
    found = json.loads(results.read_text("utf-8"))
    text = PAGE.read_text("utf-8")
    for part, content in parts(found).items():
        filled = page.fill(text, part, content)
        if filled is None:
            raise SystemExit(f"{PAGE} has no place for {part}")
        text = filled
    PAGE.write_text(text, "utf-8")
    if results.resolve() != RESULTS:
        RESULTS.write_text(results.read_text("utf-8"), "utf-8")
    return PAGE


def parts(found: Found) -> dict[str, str]:
    """The text of each part that there are figures of."""
    texts = {"environment": tables.environment(found)}
    if found["crashes"]:
        texts["crashes"] = _crashes(found["crashes"])
    for part in ("overhead", "overhead with a model"):
        if found.get(part):
            texts[part] = _overhead(found[part])
    if found["loading"]:
        texts["loading"] = _loading(found["loading"])
    return texts


def _crashes(rows: Found) -> str:
    lines = [["", *(WAYS[key].title for key in rows)]]
    for name, cell in _CELLS:
        lines.append([name, *(cell(WAYS[key], row) for key, row in rows.items())])
    return table(lines)


def _reported(way: Way, row: Found) -> str:
    if not way.is_ledger:
        return f"none of {row['in_flight']}"
    return f"{row['in_flight_reported']} of {row['in_flight']}"


def _milliseconds(samples: Sequence[float]) -> str:
    return short(1e3 * statistics.median(samples)) if samples else "nothing to resume"


_CELLS = (
    ("kills", lambda way, row: str(row["kills"])),
    ("tickets between two kills, at most", lambda way, row: str(row["most_between_kills"])),
    ("tickets lost", lambda way, row: str(row["tickets_lost"])),
    ("tickets repeated", lambda way, row: str(row["tickets_repeated"])),
    ("side effects run twice", lambda way, row: str(row["effects_twice"])),
    ("side effects missing", lambda way, row: str(row["effects_missing"])),
    ("tool calls lost", lambda way, row: str(row["calls_lost"])),
    ("calls in flight at a kill, reported as unknown", _reported),
    ("unknown calls reported in all", lambda way, row: str(row["unknown"]) if way.is_ledger else ""),
    ("from process start to resumed, median ms", lambda way, row: _milliseconds(row["resumed"])),
    ("to open and report on what was left, median ms",
        lambda way, row: _milliseconds(row["reports"]) if way.is_ledger else ""),
    ("seconds for everything", lambda way, row: short(row["seconds"])),
)  # fmt: skip


def _overhead(found: Found) -> str:
    header = [""]
    for pause in found:
        header += [f"tools of {pause}: ms a ticket", "longer than InMemorySaver", f"at most {LIMITS[pause]:.0%}"]
    lines = [header]
    for key in next(iter(found.values())):
        line = [WAYS[key].title]
        for pause, rows in found.items():
            figure = rows[key]
            reached = "" if not WAYS[key].is_ledger else "yes" if figure["overhead"] <= LIMITS[pause] else "**no**"
            line += [short(figure["ms"]), "" if key == "memory" else f"{figure['overhead']:.1%}", reached]
        lines.append(line)
    return table(lines)


def _loading(rows: Found) -> str:
    lines = [["", "open and load, median ms", "against SqliteSaver", f"at most {LOADING:.0f} ms"]]
    base = rows.get("sqlite", {}).get("open and load ms")
    for key, row in rows.items():
        median = row["open and load ms"]["median"]
        ratio = f"{median / base['median']:.2f}x" if base else ""
        reached = "" if not WAYS[key].is_ledger else "yes" if median <= LOADING else "**no**"
        lines.append([WAYS[key].title, short(median), ratio, reached])
    return table(lines)
