"""Compare LangGraph checkpoint savers, each on an empty store of its own.

    python -m benchmarks                        everything
    python -m benchmarks --quick                small sizes, about a minute: to see that it works, not for figures
    python -m benchmarks --workload W2 --saver sqlite ledger-sqlite
    python -m benchmarks --flush-ms 1           on a disk whose flush takes a millisecond longer than this one's
    python -m benchmarks --report results.json  write docs/performance.md from a run's figures; measures nothing

Savers take turns in random order within each workload, so that noise falls on all of them: ratios within a table hold,
figures of different tables do not compare. A cell is median / 99th percentile (ratio of medians to the official saver
of the same database and flavour).
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import flushing, growth, page, slow_disk, special, tables, workloads
from benchmarks.environment import environment, server
from benchmarks.harness import QUICK, Bench, Results, Sizes, rounded
from benchmarks.savers import CONTENDERS

WORKLOADS: dict[str, Callable[[Bench], Results]] = {
    "W1": workloads.chat,
    "W2": workloads.operations,
    "W3": workloads.loop,
    "W4": workloads.threads,
    "W5": workloads.clients,
    "W6": special.cold_start,
    "W7": special.fan_out,
    "W8": special.random_state,
    "W9": special.delta_channel,
    "W10": growth.cost_of_growth,
    "W11": growth.requests,
    "W12": flushing.policies,
}


def main() -> int:
    arguments = _arguments()
    if arguments.report:
        for path in page.write(arguments.report):
            print(path)
        return 0
    if arguments.flush_ms and slow_disk.flush_milliseconds() != arguments.flush_ms:
        slow_disk.begin_again(arguments.flush_ms, arguments.out.parent)
    contenders = [CONTENDERS[key] for key in arguments.saver]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ledger-benchmark-")))
        bench = Bench(
            contenders,
            QUICK if arguments.quick else Sizes(),
            folder,
            *server(stack, contenders, arguments.postgres),
            stack.enter_context(asyncio.Runner()),
        )
        report = {
            "environment": environment(bench),
            "sizes": asdict(bench.sizes),
            "pace": {},
            "seconds": {},
            "results": {},
        }
        print(tables.environment(report))
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        for name in arguments.workload:
            _measure(bench, name, report)
            arguments.out.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    print(f"\nTargets\n\n{tables.targets(report)}\n\n{arguments.out} holds the figures")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument(
        "--workload", nargs="+", default=list(WORKLOADS), choices=WORKLOADS, metavar="W", help="some of W1 to W12"
    )
    parser.add_argument(
        "--saver", nargs="+", default=list(CONTENDERS), choices=CONTENDERS, metavar="S", help="; ".join(CONTENDERS)
    )
    parser.add_argument("--postgres", metavar="URL", help="a server; without it one is started from the wheel")
    parser.add_argument(
        "--flush-ms", type=float, default=0, metavar="MS", help="make every flush of the disk take so much longer"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("build/benchmarks.json"), help="where the figures go (%(default)s)"
    )
    parser.add_argument(
        "--report", type=Path, nargs="?", const=page.RESULTS, metavar="FILE", help="a run's figures (those on the page)"
    )
    return parser.parse_args()


def _measure(bench: Bench, name: str, report: dict[str, Any]) -> None:
    workload = WORKLOADS[name]
    print(f"\n{name}: {(workload.__doc__ or '').strip()}\n", flush=True)
    before, start = _pace(), time.perf_counter()
    rows = report["results"][name] = workload(bench)
    report["seconds"][name] = rounded(time.perf_counter() - start)
    report["pace"][name] = [before, _pace()]
    print(tables.figures(rows))
    if name == "W11":
        print(f"\n{tables.statements(rows)}")
    print(f"\n{report['seconds'][name]} s; the machine's pace: {report['pace'][name]}", flush=True)


def _pace() -> float:
    """Milliseconds that a fixed piece of work takes: how fast the machine is just now."""
    text = json.dumps([{"id": i, "text": "x" * (i % 50), "tags": [i, str(i)]} for i in range(5000)])
    samples = []
    for _ in range(9):
        start = time.perf_counter()
        json.loads(text)
        samples.append((time.perf_counter() - start) * 1e3)
    return rounded(statistics.median(samples))


if __name__ == "__main__":
    sys.exit(main())
