"""What LedgerSaver is meant to reach, and whether it does: each target against the saver of the same database."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.savers import CONTENDERS

SQLITE, POSTGRES = "ledger-sqlite", "ledger-postgres"
AIOSQLITE, APOSTGRES = "ledger-aiosqlite", "ledger-apostgres"


@dataclass(frozen=True)
class Limit:
    """A bound on a figure: on the figure itself, or on its ratio to another saver's figure of the same name."""

    bound: float
    against: str = ""
    """The key of a saver."""
    least: bool = False
    """Whether the bound is the least that will do; else it is the most."""
    unit: str = ""

    def __str__(self) -> str:
        sign, number = "at least" if self.least else "at most", f"{self.bound:g}"
        return f"{sign} {number}x {CONTENDERS[self.against].title}" if self.against else f"{sign} {number}{self.unit}"


@dataclass(frozen=True)
class Target:
    """A figure of LedgerSaver that has to keep within a limit; an aim is what would be better still."""

    workload: str
    metric: str
    saver: str
    limit: Limit
    aim: Limit | None = None
    per: str = ""
    """The metric that the figure is divided by: how much it has grown from there."""


@dataclass(frozen=True)
class Verdict:
    """What became of a target."""

    target: Target
    found: str
    reached: bool
    aim_found: str
    aim_reached: bool | None


def _targets() -> Iterator[Target]:
    yield Target("W1", "stored MB", SQLITE, Limit(4, unit=" MB"), Limit(2, unit=" MB"))
    yield Target("W1", "stored MB", POSTGRES, Limit(6, unit=" MB"), Limit(3, unit=" MB"))
    memory = Limit(1, "memory")
    yield Target("W1", "last 10 turns ms", SQLITE, Limit(0.4, "sqlite"), memory)
    yield Target("W1", "last 10 turns ms", POSTGRES, Limit(0.25, "postgres"), memory)
    yield Target("W2", "put ms", SQLITE, Limit(0.35, "sqlite"))
    yield Target("W2", "put ms", POSTGRES, Limit(0.12, "postgres"))
    yield Target("W2", "get latest ms", SQLITE, Limit(1, "sqlite"), Limit(0.8, "sqlite"))
    yield Target("W2", "get latest ms", POSTGRES, Limit(0.5, "postgres"))
    yield Target("W2", "list(100) ms", SQLITE, Limit(1, "sqlite"), Limit(0.6, "sqlite"))
    yield Target("W2", "list(100) ms", POSTGRES, Limit(0.7, "postgres"), Limit(0.6, "postgres"))
    near = Limit(0.8, "memory", least=True)
    yield Target("W3", "sync steps/s", SQLITE, Limit(1.2, "sqlite", least=True), near)
    yield Target("W3", "sync steps/s", POSTGRES, Limit(1.5, "postgres", least=True), near)
    yield Target("W4", "threads/s", SQLITE, Limit(1.2, "sqlite", least=True))
    yield Target("W4", "threads/s", POSTGRES, Limit(1.3, "postgres", least=True))
    yield Target("W4", "KB/thread", SQLITE, Limit(1, "sqlite"))
    yield Target("W4", "KB/thread", POSTGRES, Limit(1, "postgres"))
    for saver, bound in ((SQLITE, 1.5), (AIOSQLITE, 1.5), (POSTGRES, 2.5), (APOSTGRES, 2.5)):
        yield Target("W5", "turns/s", saver, Limit(bound, CONTENDERS[saver].peer or "", least=True))
    yield Target("W6", "open and load ms", SQLITE, Limit(1, "sqlite"))
    yield Target("W6", "open and load ms", POSTGRES, Limit(0.5, "postgres"))
    yield Target("W6", "import ms", SQLITE, Limit(30, unit=" ms"))
    for saver, peer in ((SQLITE, "sqlite"), (POSTGRES, "postgres")):
        yield Target("W7", "invoke ms", saver, Limit(0.8, peer), Limit(1.2, "memory"))
    for workload, metrics in (
        ("W8", ("step ms", "get ms", "list(10) ms", "stored MB")),
        ("W9", ("last 20 turns ms", "get_state ms", "stored MB")),
    ):
        for metric in metrics:
            for saver in (SQLITE, AIOSQLITE, POSTGRES, APOSTGRES):
                yield Target(workload, metric, saver, Limit(1.1, CONTENDERS[saver].peer or ""))
    for saver in (POSTGRES, APOSTGRES):
        for call in ("put", "put_writes", "get_tuple"):
            yield Target("W11", f"{call}: round trips", saver, Limit(1))
    near = Limit(0.85, "memory", least=True)
    yield Target("W12", "Batched: steps/s", SQLITE, Limit(1.5, "sqlite", least=True), near)
    yield Target("W12", "Batched: steps/s", POSTGRES, Limit(2, "postgres", least=True), near)
    for saver in (SQLITE, AIOSQLITE, POSTGRES, APOSTGRES):
        yield Target("W12", "Batched: commits", saver, Limit(0.05, CONTENDERS[saver].peer or ""))


def _of_growth(row: Mapping[str, Any], saver: str) -> Iterator[Target]:
    """The figures at the largest size against those at the smallest."""
    for kind in ("KB/message", "put ms", "get_tuple ms"):
        of = "messages" if kind == "KB/message" else "checkpoints"
        names = [name for name in row if name.endswith(f" {of}: {kind}")]
        if names:
            bound = Limit(1.5, unit=f"x that of {names[0].split(':')[0]}")
            yield Target("W10", names[-1], saver, bound, per=names[0])


def verdicts(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[Verdict]:
    """Every target whose figures are there."""
    targets = list(_targets())
    for saver, row in results.get("W10", {}).items():
        if saver.startswith("ledger"):
            targets += _of_growth(row, saver)
    targets.sort(key=lambda target: int(target.workload[1:]))
    found = [_verdict(target, results.get(target.workload, {})) for target in targets]
    return [verdict for verdict in found if verdict is not None]


def _verdict(target: Target, rows: Mapping[str, Mapping[str, Any]]) -> Verdict | None:
    text, reached = _held(target, target.limit, rows)
    if reached is None:
        return None
    aim_text, aim_reached = _held(target, target.aim, rows) if target.aim else ("", None)
    return Verdict(target, text, reached, aim_text, aim_reached)


def _held(target: Target, limit: Limit, rows: Mapping[str, Mapping[str, Any]]) -> tuple[str, bool | None]:
    figure = middle(rows.get(target.saver, {}).get(target.metric))
    base = middle(rows.get(limit.against or target.saver, {}).get(target.per or target.metric))
    if figure is None or base is None:
        return "", None
    relative = limit.against or target.per
    number = round(figure / base, 2) if relative else figure
    text = f"{number:.2f}x" if relative else f"{number:.3g}{limit.unit}"
    return text, number >= limit.bound if limit.least else number <= limit.bound


def middle(figure: Any) -> float | None:
    """The number that stands for a figure: its median, or itself."""
    if isinstance(figure, dict):
        return float(figure["median"])
    return float(figure) if isinstance(figure, (int, float)) else None
