"""Kill a support agent at random moments, at least every 30 tickets, and start it again until all tickets are done.

    python -m benchmarks.restart                     1,000 tickets for each saver, what they cost unkilled, and loading
    python -m benchmarks.restart --quick             a few tickets: to see that it works, not for figures
    python -m benchmarks.restart --tickets 200 --saver sqlite ledger-sqlite-guard
    python -m benchmarks.restart --report FILE       write docs/restart.md from a run's figures; measures nothing

Workers are processes that get SIGKILL. Tools have their effects in a database of their own, which records every
execution: what a saver knows after a kill is compared with that. The seed decides when kills come.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.environment import environment, server
from benchmarks.harness import QUICK, Bench, Sizes
from benchmarks.restart import crashes, report
from benchmarks.restart.overhead import overhead
from benchmarks.restart.ways import WAYS, Way, stored
from benchmarks.savers import CONTENDERS
from benchmarks.special import cold_start

PAUSES = (0.05, 0.25)
"""Seconds that a tool takes where the overhead is measured."""
THINKING = {"overhead": 0.0, "overhead with a model": 0.1}
"""Seconds that the model takes there for a message."""
SHORT_PAUSE = 0.01
"""Seconds that it takes where workers are killed: enough that many kills come in the middle of a tool."""
TICKET = 0.1
"""Seconds within which a kill comes, once a ticket has been taken: about as long as one takes."""
LOADED = ("sqlite", "postgres", "ledger-sqlite", "ledger-postgres")
"""The savers from which a conversation is loaded by a new process."""


def main() -> int:
    arguments = _arguments()
    if arguments.report:
        print(report.write(arguments.report))
        return 0
    ways = [WAYS[key] for key in arguments.saver]
    crashes.preload(ways)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ledger-restart-")))
        sizes = replace(QUICK, cold_starts=2) if arguments.quick else Sizes(cold_starts=15)
        loaded = [CONTENDERS[key] for key in LOADED if key in {way.saver for way in ways}]
        url, admin = server(stack, [way.contender for way in ways], arguments.postgres)
        bench = Bench(loaded, sizes, folder, url, admin, stack.enter_context(asyncio.Runner()))
        _measure(arguments, bench, ways)
    print(f"\n{arguments.out} holds the figures")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.restart", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--tickets", type=int, metavar="N", help="tickets for each saver (1000, quick: 60)")
    parser.add_argument(
        "--saver", nargs="+", default=list(WAYS), choices=WAYS, metavar="S", help=f"some of {', '.join(WAYS)}"
    )
    parser.add_argument("--seed", type=int, default=1, help="decides when kills come (%(default)s)")
    parser.add_argument(
        "--durability", default="async", choices=("sync", "async"), help="LangGraph's (%(default)s, its own default)"
    )
    parser.add_argument("--postgres", metavar="URL", help="a server; without it one is started from the wheel")
    parser.add_argument(
        "--out", type=Path, default=Path("build/restart.json"), help="where the figures go (%(default)s)"
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


def _measure(arguments: argparse.Namespace, bench: Bench, ways: Sequence[Way]) -> None:
    """Every part in turn; what is done is printed, and written to the file, at once."""
    tickets = arguments.tickets or (60 if arguments.quick else 1000)
    sizes = f"{tickets:,} tickets, seed {arguments.seed}, durability {arguments.durability!r}"
    facts = {**environment(bench), "sizes": sizes + ", --quick: not for figures" * arguments.quick}
    found: dict[str, Any] = {"environment": facts, "crashes": {}, **{part: {} for part in THINKING}, "loading": {}}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)

    def show(part: str) -> None:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        print(f"\n{part}\n\n{report.parts(found)[part]}", flush=True)

    show("environment")
    for way in ways:
        with stored(way, bench.folder, bench.server) as store:
            kills = crashes.at_random(arguments.seed, TICKET)
            outcome = crashes.survive(
                store, bench.folder, tickets, kills, pause=SHORT_PAUSE, durability=arguments.durability
            )
        found["crashes"][way.key] = asdict(outcome)
        print(f"{way.title}: {outcome.kills} kills, {outcome.seconds:.0f} s", flush=True)
    show("crashes")
    compared = [way for way in WAYS.values() if way in ways or way.key == "memory"]
    few = 3 if arguments.quick else 30
    for part, thinks in THINKING.items():
        for pause in PAUSES:
            figures = overhead(compared, bench.folder, bench.server, few, pause, thinks, arguments.durability)
            found[part][f"{pause * 1e3:.0f} ms"] = figures
        show(part)
    found["loading"] = cold_start(bench)
    show("loading")


if __name__ == "__main__":
    sys.exit(main())
