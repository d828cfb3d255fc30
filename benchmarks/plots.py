"""The plots of the page."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.savers import CONTENDERS
from benchmarks.tables import short
from benchmarks.targets import middle

COLOURS = {"memory": "#8a8a8a", "sqlite": "#4c8bbf", "postgres": "#3f9e6e"}
LEDGER = {"sqlite": "#d1495b", "postgres": "#edae49"}

Rows = Mapping[str, Mapping[str, Any]]


def draw(results: Mapping[str, Rows], folder: Path) -> list[Path]:
    """Draws what there are figures for."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 9, "axes.grid": True, "grid.alpha": 0.3, "svg.hashsalt": "ledger"})
    made = []
    for name, workloads, plot in PLOTS:
        if all(workload in results for workload in workloads):
            figure = plot(pyplot, *(results[workload] for workload in workloads))
            made.append(folder / f"{name}.png")
            figure.savefig(made[-1], dpi=110, metadata={"Software": None})
            pyplot.close(figure)
    return made


def _colour(key: str) -> str:
    contender = CONTENDERS[key]
    return (LEDGER if contender.peer else COLOURS)[contender.store]


def _style(key: str) -> dict[str, Any]:
    dashes = "--" if CONTENDERS[key].is_async else "-"
    return {"color": _colour(key), "linestyle": dashes, "label": CONTENDERS[key].title, "linewidth": 1.3}


def _bars(axes: Any, rows: Rows, metric: str, title: str, *, log: bool = False) -> None:
    """A bar for each saver, the first on top."""
    keys = [key for key in reversed(CONTENDERS) if middle(rows.get(key, {}).get(metric))]
    values = [middle(rows[key][metric]) or 0.0 for key in keys]
    axes.barh(range(len(keys)), values, color=[_colour(key) for key in keys])
    axes.set_yticks(range(len(keys)), [CONTENDERS[key].title for key in keys])
    for place, value in enumerate(values):
        axes.annotate(f" {short(value)}", (value, place), va="center", fontsize=8)
    axes.margins(x=0.2)
    axes.set_title(title, fontsize=10)
    if log:
        _logarithmic(axes.set_xscale, axes.xaxis)


def _logarithmic(set_scale: Callable[[str], None], axis: Any, ticks: Sequence[float] = (1, 2, 5)) -> None:
    from matplotlib import ticker

    set_scale("log")
    axis.set_major_locator(ticker.LogLocator(subs=ticks))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_locator(ticker.NullLocator())


def _several(pyplot: Any, bars: Sequence[tuple[Rows, str, str]], columns: int) -> Any:
    lines = -(-len(bars) // columns)
    figure, axes = pyplot.subplots(lines, columns, figsize=(5.2 * columns, 2.9 * lines), layout="constrained")
    for place, (rows, metric, title) in zip(axes.flat, bars, strict=True):
        _bars(place, rows, metric, title)
    return figure


def _chat(pyplot: Any, rows: Rows) -> Any:
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    for key in CONTENDERS:
        if key in rows:
            turns = rows[key]["_turns ms"]
            left.plot([2 * (i + 1) for i in range(len(turns))], _smooth(turns), **_style(key))
    left.set(xlabel="messages in the thread", ylabel="ms for a turn (median of 5)")
    _logarithmic(left.set_yscale, left.yaxis)
    left.set_title("W1: how long a turn takes", fontsize=10)
    figure.legend(fontsize=8, loc="outside lower center", ncols=5)
    _bars(right, rows, "stored MB", "W1: MB stored", log=True)
    return figure


def _smooth(values: Sequence[float]) -> list[float]:
    return [sorted(values[max(0, i - 2) : i + 3])[len(values[max(0, i - 2) : i + 3]) // 2] for i in range(len(values))]


def _operations(pyplot: Any, rows: Rows) -> Any:
    names = ("put ms", "put_writes ms", "get latest ms", "get by id ms", "list(10) ms", "list(100) ms")
    return _several(pyplot, [(rows, name, f"W2: {name}") for name in names], 2)


def _rates(pyplot: Any, loop: Rows, threads: Rows, clients: Rows, fan: Rows) -> Any:
    bars = [
        (loop, "sync steps/s", 'W3: steps/s, durability "sync"'),
        (threads, "threads/s", "W4: threads/s"),
        (clients, "turns/s", "W5: turns/s, many clients"),
        (fan, "invoke ms", "W7: ms for a fan-out"),
    ]
    return _several(pyplot, bars, 2)


def _growth(pyplot: Any, rows: Rows) -> Any:
    kinds = (
        ("messages: KB/message", "messages in the list", "KB written for one more message"),
        ("checkpoints: put ms", "checkpoints in the database", "ms for a put"),
        ("checkpoints: get_tuple ms", "checkpoints in the database", "ms for a get_tuple"),
    )
    figure, axes = pyplot.subplots(1, 3, figsize=(13, 3.6), layout="constrained")
    for place, (kind, across, up) in zip(axes, kinds, strict=True):
        for key in CONTENDERS:
            row = rows.get(key, {})
            points = [(int(n.split()[0].replace(",", "")), middle(row[n])) for n in row if n.endswith(f" {kind}")]
            if points:
                place.plot(*zip(*points, strict=True), marker="o", **_style(key))
        place.set_xlabel(across)
        _logarithmic(place.set_xscale, place.xaxis, ticks=(1,))
        if kind.startswith("messages"):
            _logarithmic(place.set_yscale, place.yaxis)
        else:
            place.set_ylim(bottom=0)
        place.set_title(f"W10: {up}", fontsize=10)
        place.legend(fontsize=7)
    return figure


PLOTS: tuple[tuple[str, tuple[str, ...], Callable[..., Any]], ...] = (
    ("chat", ("W1",), _chat),
    ("operations", ("W2",), _operations),
    ("rates", ("W3", "W4", "W5", "W7"), _rates),
    ("growth", ("W10",), _growth),
)
