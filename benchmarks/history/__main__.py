"""Let processes work on a few threads, kill them, cut their connections, and hold what they were told against the end.

    python -m benchmarks.history                               ten minutes on each database, with six processes
    python -m benchmarks.history --minutes 1 --database sqlite
    python -m benchmarks.history --flush always batched important   a round under each in turn
    python -m benchmarks.history --without-check --minutes 1   the version check taken away: violations are to be found

It plays rounds of some seconds, each on a database of its own. A round with violations leaves what was said in it in
`build/history`, and the program ends with 1.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.history.judge import counts_of
from benchmarks.history.play import Played, Round
from benchmarks.history.trial import played_and_judged
from benchmarks.history.worker import POLICIES
from tests.postgres_server import create_database, drop_database, own_server

SECONDS = 20
"""How long a round takes, at most a life longer."""
SHOWN = 20
BLOWS = ("kills", "stops", "cut connections")
LEFT = Path("build/history")


def main() -> int:
    arguments = _arguments()
    wrong = 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ledger-history-")))
        server = arguments.postgres
        if "postgres" in arguments.database:
            server = server or stack.enter_context(own_server())
        for database in arguments.database:
            wrong += _rounds(database, server, folder, arguments)
    return 1 if wrong else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.history", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10, help="on each database (%(default)s)")
    parser.add_argument("--processes", type=int, default=6, help="workers at a time (%(default)s)")
    parser.add_argument("--threads", type=int, default=3, help="threads they work on (%(default)s)")
    parser.add_argument("--database", nargs="+", default=["sqlite", "postgres"], choices=("sqlite", "postgres"))
    parser.add_argument("--postgres", metavar="URL", help="a server; without it one is started from the wheel")
    parser.add_argument("--flush", nargs="+", default=["always"], choices=POLICIES, help="when workers commit (always)")
    parser.add_argument("--seed", type=int, default=1, help="of the first round (%(default)s)")
    parser.add_argument("--without-check", action="store_true", help="let every claim succeed")
    return parser.parse_args()


def _rounds(database: str, server: str, folder: Path, arguments: argparse.Namespace) -> int:
    """Plays until time is up; how many violations were found."""
    until = time.monotonic() + 60 * arguments.minutes
    counts, wrong, seed = Counter[str](), 0, arguments.seed
    while (left := until - time.monotonic()) > 0:
        url = str(folder / f"{seed}.db") if database == "sqlite" else create_database(server)
        plan = Round(
            url,
            seed,
            arguments.processes,
            arguments.threads,
            operations=sys.maxsize,
            seconds=min(SECONDS, left),
            checked=not arguments.without_check,
            flush=arguments.flush[seed % len(arguments.flush)],
        )
        played, found = played_and_judged(plan)
        counts.update({**played.counts, "rounds": 1, **counts_of(played.events)})
        for line in found[:SHOWN]:
            print(f"{database}, {plan.flush}, seed {seed}: {line}", flush=True)
        if found:
            _leave(database, seed, played, found)
        wrong, seed = wrong + len(found), seed + 1
        if database == "postgres":
            drop_database(server, url)
    print(f"\n{table(database, counts)}\n\n{wrong} violations", flush=True)
    return wrong


def _leave(database: str, seed: int, played: Played, found: list[str]) -> None:
    LEFT.mkdir(parents=True, exist_ok=True)
    left: dict[str, Any] = {"violations": found, "events": played.events}
    (LEFT / f"{database}-{seed}.json").write_text(json.dumps(left) + "\n", "utf-8")


def table(database: str, counts: Counter[str]) -> str:
    """What was done, as a table."""
    lines = [
        f"{database}: " + ", ".join(f"{counts[what]:,} {what}" for what in ("rounds", *BLOWS)),
        "",
        "|            | acknowledged | refused | unknown |",
        "| ---------- | ------------ | ------- | ------- |",
    ]
    for what in ("operation", "read", "put", "writes", "tool"):
        told = [counts[f"{what} {how}"] for how in ("ok", "refused", "unknown")]
        lines.append(f"| {what:10} | {told[0]:12,} | {told[1]:7,} | {told[2]:7,} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
