"""The tables, of the terminal and of the page alike."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.savers import CONTENDERS
from benchmarks.targets import middle, verdicts

Report = Mapping[str, Any]


def figures(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """A line for each saver: median / 99th percentile, and the ratio of medians to the saver it is compared with."""
    metrics = list(dict.fromkeys(name for row in rows.values() for name in row if not name.startswith("_")))
    keys = [key for key in CONTENDERS if key in rows]
    lines = [["", *metrics]]
    for key in keys:
        base = rows.get(CONTENDERS[key].peer or "", {})
        lines.append([CONTENDERS[key].title, *(_cell(rows[key].get(name), base.get(name)) for name in metrics)])
    if len(metrics) > 7:  # wide: turn it around
        lines = [list(column) for column in zip(*lines, strict=True)]
    return table(lines)


def _cell(figure: Any, base: Any) -> str:
    if isinstance(figure, str):
        return figure
    number, other = middle(figure), middle(base)
    if number is None:
        return ""
    text = short(number)
    if isinstance(figure, dict) and "p99" in figure:
        text += f" / {short(figure['p99'])}"
    return f"{text} ({number / other:.2f}x)" if other else text


def targets(report: Report) -> str:
    """What is to be reached, and whether it is."""
    lines = [["", "figure", "of", "target", "found", "reached", "aim", "found", "reached"]]
    for verdict in verdicts(report["results"]):
        target = verdict.target
        name = target.metric.removesuffix(" ms").removesuffix(" MB") if not target.per else target.metric
        aim = [str(target.aim), verdict.aim_found, _yes(verdict.aim_reached)] if target.aim else ["", "", ""]
        lines.append(
            [
                target.workload,
                name,
                CONTENDERS[target.saver].title,
                str(target.limit),
                verdict.found,
                _yes(verdict.reached),
                *aim,
            ]
        )
    return table(lines)


def _yes(reached: bool | None) -> str:
    return "" if reached is None else "yes" if reached else "**no**"


def statements(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The statements of each call of LedgerSaver, by the names that they have in its query files."""
    lines = [["", "call", "statements, in order"]]
    for key in CONTENDERS:
        for name, *names in rows.get(key, {}).get("_statements", []):
            lines.append([CONTENDERS[key].title, name, ", ".join(names)])
    return table(lines)


def environment(report: Report) -> str:
    """Where and with what the figures were taken."""
    return "\n".join(f"- {name}: {value}" for name, value in report["environment"].items())


def pace(report: Report) -> str:
    """How fast the machine was before and after each workload."""
    lines = [["", *report["pace"]]]
    lines.append(["ms", *(f"{short(before)} to {short(after)}" for before, after in report["pace"].values())])
    return table(lines)


def table(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    rows = [lines[0], ["-" * width for width in widths], *lines[1:]]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    )


def short(number: float) -> str:
    return f"{number:.3g}" if abs(number) < 1000 else f"{number:,.0f}"
