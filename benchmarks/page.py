"""The results page: its tables and plots, made from the figures of a run."""

import json
import re
from pathlib import Path

from benchmarks import plots, tables
from benchmarks.tables import Report

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
FOLDER = PAGE.parent / "performance"
RESULTS = FOLDER / "results.json"
FLUSHES = "flushes"
"""What is said of an environment with a slower disk. Its figures have places and a file of their own."""


def write(results: Path) -> list[Path]:
    """Puts a run's figures, tables and plots in the place of those that are there; returns what was written."""
    report = json.loads(results.read_text("utf-8"))
    FOLDER.mkdir(exist_ok=True)
    text = PAGE.read_text("utf-8")
    slow = FLUSHES in report["environment"]
    target = FOLDER / "slow-disk.json" if slow else RESULTS
    parts = {f"slow disk: {part}": content for part, content in _parts(report).items()} if slow else _parts(report)
    for part, content in parts.items():
        filled = fill(text, part, content)
        if filled is None:
            if slow:
                continue
            raise SystemExit(f"{PAGE} has no place for {part}")
        text = filled
    drawn = [] if slow else plots.draw(report["results"], FOLDER)
    PAGE.write_text(text, "utf-8")
    if results.resolve() != target:
        target.write_text(results.read_text("utf-8"), "utf-8")
    return [PAGE, target, *drawn]


def fill(text: str, part: str, content: str) -> str | None:
    """The text with this content between the marks of a part; None if it has none."""
    place = re.search(rf"<!-- {part} -->\n(.*?)<!-- end of {part} -->", text, re.DOTALL)
    return None if place is None else f"{text[: place.start(1)]}\n{content}\n\n{text[place.end(1) :]}"


def _parts(report: Report) -> dict[str, str]:
    """The text between each pair of markers."""
    parts = {
        "environment": tables.environment(report),
        "targets": tables.targets(report),
        "pace": tables.pace(report),
    }
    for name, rows in report["results"].items():
        parts[name] = tables.figures(rows)
    if "W11" in report["results"]:
        parts["W11"] += "\n\n" + tables.statements(report["results"]["W11"])
    return parts
