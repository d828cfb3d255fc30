"""Many processes on one Postgres: what they get done, what becomes of conflicts, and what large tables cost.

    python -m benchmarks.workers                            1 to 16 processes, then a million checkpoints
    python -m benchmarks.workers --quick                    to see that it works, not for figures
    python -m benchmarks.workers --part large --checkpoints 200000
    python -m benchmarks.workers --report FILE              write docs/sizing.md from a run's figures; measures nothing

Workers are processes, each with a saver of its own. They take turns with nobody: all are at work for some seconds, on
threads of their own or on a few that they share. What they were told is compared with what the threads hold in the end.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.environment import environment, server
from benchmarks.harness import QUICK, Bench, Sizes, rounded
from benchmarks.savers import CONTENDERS
from benchmarks.workers import report
from benchmarks.workers.contest import own_threads, percentiles, preload, shared_threads
from benchmarks.workers.large import compare

PARTS = ("own", "shared", "large")
ROUNDS = 2
"""How often each number of processes is tried on threads of their own, with the savers in another order."""
HOT = 2
"""Threads that all share."""


def main() -> int:
    arguments = _arguments()
    if arguments.report:
        print(report.write(arguments.report))
        return 0
    preload()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ledger-workers-")))
        contenders = [CONTENDERS["ledger-postgres"], CONTENDERS["postgres"]]
        url, admin = server(stack, contenders, arguments.postgres)
        bench = Bench(
            contenders, QUICK if arguments.quick else Sizes(), folder, url, admin, stack.enter_context(asyncio.Runner())
        )
        _measure(arguments, bench)
    print(f"\n{arguments.out} holds the figures")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.workers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--part", nargs="+", default=list(PARTS), choices=PARTS, help="some of own, shared, large")
    parser.add_argument("--processes", nargs="+", type=int, metavar="N", help="1 2 4 8 16 (quick: 1 2)")
    parser.add_argument("--seconds", type=float, metavar="S", help="how long they are at work each time (8, quick: 1)")
    parser.add_argument("--checkpoints", type=int, metavar="N", help="in the large tables (1000000, quick: 2000)")
    parser.add_argument("--partitions", type=int, default=16, metavar="N", help="of the large tables (%(default)s)")
    parser.add_argument("--postgres", metavar="URL", help="a server; without it one is started from the wheel")
    parser.add_argument(
        "--out", type=Path, default=Path("build/workers.json"), help="where the figures go (%(default)s)"
    )
    parser.add_argument(
        "--report",
        type=Path,
        nargs="?",
        const=report.RESULTS,
        metavar="FILE",
        help="a run's figures (those on the page)",
    )
    return parser.parse_args()


def _measure(arguments: argparse.Namespace, bench: Bench) -> None:
    """Every part in turn; what is done is printed, and written to the file, at once."""
    quick = arguments.quick
    processes = arguments.processes or ([1, 2] if quick else [1, 2, 4, 8, 16])
    seconds = arguments.seconds or (1.0 if quick else 8.0)
    facts = environment(bench) | {
        "sizes": f"{seconds:g} s at a time" + ", --quick: not for figures" * quick,
        "where the server is": "on the same machine, and so on the same processors",
        "load average before": f"{os.getloadavg()[0]:.1f}",
    }
    found: dict[str, Any] = {"environment": facts}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)

    def show(*names: str) -> None:
        facts["load average after"] = f"{os.getloadavg()[0]:.1f}"
        arguments.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        for name in names:
            print(f"\n{name}\n\n{report.parts(found)[name]}", flush=True)

    show("environment")
    if "own" in arguments.part:
        found["own threads"] = [row for count in processes for row in _own(bench.server, count, seconds)]
        show("own threads", "what a turn writes")
    if "shared" in arguments.part:
        found["shared threads"] = [row for count in processes for row in _shared(bench.server, count, seconds)]
        show("shared threads")
    if "large" in arguments.part:
        checkpoints = arguments.checkpoints or (2_000 if quick else 1_000_000)
        found["large tables"] = compare(bench.server, checkpoints, arguments.partitions, 20 if quick else 300)
        show("large tables")


def _own(server: str, processes: int, seconds: float) -> list[dict[str, Any]]:
    """Each saver with so many processes on threads of their own, several rounds taken together."""
    rounds: dict[str, list[dict[str, Any]]] = {saver: [] for saver in report.TITLES}
    order = list(rounds)
    for _ in range(ROUNDS):
        random.Random(processes).shuffle(order)
        order.reverse()
        for saver in order:
            rounds[saver].append(own_threads(server, saver, processes, seconds))
    return [_together(saver, processes, found) for saver, found in rounds.items()]


def _together(saver: str, processes: int, found: list[dict[str, Any]]) -> dict[str, Any]:
    turns, checkpoints = (sum(one[name] for one in found) for name in ("turns", "checkpoints"))
    rate = sum(one["turns/s"] for one in found) / len(found)
    hot = {name: [sum(one["hot"][name][i] for one in found) for i in (0, 1)] for name in found[0]["hot"]}
    return {
        "processes": processes,
        "saver": saver,
        "connections": max(one["connections"] for one in found),
        "turns/s": rounded(rate),
        "checkpoints/s": rounded(rate * checkpoints / turns),
        "turn ms": percentiles([ms for one in found for ms in one["turn ms"]]),
        "put ms": percentiles([ms for one in found for ms in one["put ms"]]),
        "wal KB/checkpoint": rounded(sum(one["wal"] for one in found) / checkpoints / 1e3),
        "hot": hot,
    }


def _shared(server: str, processes: int, seconds: float) -> list[dict[str, Any]]:
    ways = (("ledger", True), ("ledger", False), ("postgres", False))
    return [
        {"processes": processes, "saver": saver, "retry": retry}
        | shared_threads(server, saver, processes, seconds, HOT, retry=retry)
        for saver, retry in ways
    ]


if __name__ == "__main__":
    sys.exit(main())
