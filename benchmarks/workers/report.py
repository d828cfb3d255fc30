"""The tables of the benchmark of many workers, of the terminal and of docs/sizing.md alike."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import page, tables
from benchmarks.tables import short, table

PAGE = page.PAGE.with_name("sizing.md")
RESULTS = page.FOLDER / "workers.json"
TITLES = {
    "ledger": "LedgerSaver",
    "ledger-partitions": "LedgerSaver, 16 partitions",
    "postgres": "PostgresSaver",
}

Found = Mapping[str, Any]


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
    if found.get("own threads"):
        texts["own threads"] = _own(found["own threads"])
        texts["what a turn writes"] = _written(found["own threads"])
    if found.get("shared threads"):
        texts["shared threads"] = _shared(found["shared threads"])
    if found.get("large tables"):
        texts["large tables"] = _large(found["large tables"])
    return texts


def _own(rows: Sequence[Found]) -> str:
    lines = [["processes", "", "turns/s", "checkpoints/s", "turn ms: 50, 95, 99 %", "put ms: 50, 95, 99 %"]]
    for row in rows:
        lines.append([
            str(row["processes"]), TITLES[row["saver"]], short(row["turns/s"]), short(row["checkpoints/s"]),
            _percentiles(row["turn ms"]), _percentiles(row["put ms"]),
        ])  # fmt: skip
    return table(lines)


def _percentiles(found: Found) -> str:
    return ", ".join(short(found[name]) for name in ("p50", "p95", "p99") if name in found)


def _written(rows: Sequence[Found]) -> str:
    lines = [
        ["processes", "", "connections", "log (WAL), KB a checkpoint", "heads updated in place (HOT)", "sessions (HOT)"]
    ]
    for row in rows:
        hot = [
            f"{row['hot'][name][1] / row['hot'][name][0]:.1%} of {row['hot'][name][0]:,}" if name in row["hot"] else ""
            for name in ("agent_state_ledger", "sessions")
        ]
        facts = [str(row["processes"]), TITLES[row["saver"]], str(row["connections"]), short(row["wal KB/checkpoint"])]
        lines.append([*facts, *hot])
    return table(lines)


def _shared(rows: Sequence[Found]) -> str:
    lines = [
        ["processes", "", "runs", "refused", "acknowledged turns", "a second", "**lost**", "twice", "turn ms: 50, 99 %"]
    ]
    for row in rows:
        title = TITLES[row["saver"]] + (", `retry_on_conflict`" if row["retry"] else "")
        refused = f"{row['refused']:,} ({row['refused'] / row['runs']:.0%})" if row["refused"] else "0"
        lines.append([
            str(row["processes"]), title, f"{row['runs']:,}", refused, f"{row['acknowledged']:,}",
            short(row["acknowledged/s"]), f"{row['lost']:,}", str(row["twice"]),
            ", ".join(short(row["turn ms"][name]) for name in ("p50", "p99") if name in row["turn ms"]),
        ])  # fmt: skip
    return table(lines)


def _large(found: Found) -> str:
    kinds = found["kinds"]
    lines = [["", "whole tables", f"{found['partitions']} partitions", "ratio"]]
    for name, figure in kinds["whole"].items():
        other = kinds["partitions"][name]
        if isinstance(figure, Mapping):
            one, two = figure["p50"], other["p50"]
            shown = [f"{short(f['p50'])}, {short(f['p99'])}" for f in (figure, other)]
            name += " ms: 50, 99 %"
        else:
            one, two, shown = figure, other, [short(figure), short(other)]
        lines.append([name, *shown, f"{two / one:.2f}x" if one else ""])
    head = f"{found['checkpoints']:,} checkpoints in {found['threads']:,} threads; {found['part']:,} threads pruned to"
    return f"{head} one checkpoint, {found['part']:,} others deleted.\n\n{table(lines)}"
