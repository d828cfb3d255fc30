"""Load one process with all that a saver can do, and see whether memory, descriptors and threads stay where they are.

    python -m benchmarks.soak                                  an hour on each database
    python -m benchmarks.soak --minutes 15 --database sqlite

Threads and event loops use two savers of one database: runs, questions, forks, streams that are left, cancelled runs,
conflicts, tools, prunes, deletions, copies, savers that are opened and closed. Every few seconds they rest, a worker is
forked, and a sample is taken. The program ends with 1 if the last third of the samples is above the third before it.
"""

import argparse
import json
import logging
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from benchmarks.soak.lane import Lanes
from benchmarks.soak.samples import Sample, is_supported, remember_less, take
from benchmarks.soak.verdict import FEWEST, Finding, verdict
from tests.postgres_server import create_database, drop_database, own_server

SPELL = 15.0
"""Seconds of load between two samples, or less, so that there are enough samples."""
MEGABYTES = {"memory", "stored"}


def main() -> int:
    arguments = _arguments()
    if not is_supported():
        raise SystemExit("what a process holds is read from /proc, which only Linux has")
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    logging.getLogger("concurrent.futures").setLevel(logging.CRITICAL)  # LangGraph's futures, of streams that were left
    logging.getLogger("langchain_core.callbacks.manager").setLevel(logging.CRITICAL)  # each refused tool
    if arguments.remembered is not None:
        remember_less(arguments.remembered)
    rising = 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ledger-soak-")))
        server = arguments.postgres
        if "postgres" in arguments.database:
            server = server or stack.enter_context(own_server())
        for database in arguments.database:
            url = str(folder / "soak.db") if database == "sqlite" else create_database(server)
            with Lanes(url, arguments.threads, arguments.seed) as lanes:
                samples = soak(lanes, arguments.minutes)
            rising += _report(database, samples, lanes, arguments.out)
            if database == "postgres":
                drop_database(server, url)
    return 1 if rising else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60, help="on each database (%(default)s)")
    parser.add_argument("--threads", type=int, default=40, help="LangGraph threads that are worked on (%(default)s)")
    parser.add_argument("--database", nargs="+", default=["sqlite", "postgres"], choices=("sqlite", "postgres"))
    parser.add_argument("--postgres", metavar="URL", help="a server; without it one is started from the wheel")
    parser.add_argument(
        "--remembered", type=int, metavar="N", help="entries that savers remember (10000: full after some minutes)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of what is done (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("build/soak"), help="where samples go (%(default)s)")
    return parser.parse_args()


def soak(lanes: Lanes, minutes: float) -> list[Sample]:
    """Spells of load and samples in turn, for so many minutes."""
    samples: list[Sample] = []
    began = time.monotonic()
    spell = min(SPELL, minutes * 60 / (FEWEST + 1))
    while time.monotonic() - began < minutes * 60 or len(samples) < FEWEST:
        lanes.spell(spell)
        lanes.fork()
        done, stored = sum(lanes.told.values()), lanes.savers[0].stats().bytes_stored
        samples.append(take(time.monotonic() - began, done, lanes.savers, lanes.loops, stored, lanes.url))
        print(line(samples[-1]), flush=True)
    return samples


def line(sample: Sample) -> str:
    """A sample in one line."""
    return ", ".join(f"{name} {_shown(name, value)}" for name, value in asdict(sample).items())


def _shown(name: str, value: float) -> str:
    return f"{value / 1e6:,.1f} MB" if name in MEGABYTES else f"{value:,.0f}"


def _report(database: str, samples: Sequence[Sample], lanes: Lanes, out: Path) -> int:
    out.mkdir(parents=True, exist_ok=True)
    told = lanes.told
    found = {"samples": [asdict(sample) for sample in samples], "told": dict(sorted(told.items()))}
    (out / f"{database}.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    findings = verdict(samples, lanes.limits)
    ends = Counter[str]()
    for what, count in told.items():
        ends[what.split()[1]] += count
    print(f"\n{database}: {samples[-1].seconds / 60:.0f} minutes, {dict(ends)}\n\n{table(findings)}\n", flush=True)
    return sum(not finding.flat for finding in findings)


def table(findings: Sequence[Finding]) -> str:
    """The verdict, as a table."""
    lines = ["| what | middle third | last third | in an hour | verdict |", "| --- | --- | --- | --- | --- |"]
    for found in findings:
        values = (_shown(found.name, value) for value in (found.before, found.after, found.slope))
        lines.append(f"| {found.name.replace('_', ' ')} | {' | '.join(values)} | {'flat' if found.flat else 'RISES'} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
