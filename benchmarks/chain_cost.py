"""What the digests and the chain of the log (`chain_log=`) cost a put.

    python -m benchmarks.chain_cost              a table: milliseconds of a put, processor and elapsed, and the ratios
    python -m benchmarks.chain_cost --puts 500   fewer puts: to see that it works, not for figures

One saver on one thread puts one checkpoint after another, ten with digests and ten without in turn, so that noise falls
on both. The first of each ten is left out, for it chains, or not, what the ten before have left.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import Checkpoint, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

from langgraph_ledger import LedgerSaver
from tests.postgres_server import own_server

TURN = 10
WARM = 200
STATES: dict[str, Any] = {
    "a number and a short list": lambda number: {"n": number, "words": ["hello", f"{number}"]},
    "twenty messages": lambda number: {
        "messages": [HumanMessage(f"{max(number, 19) - back} " * 100, id=str(number - back)) for back in range(20)]
    },
}
Times = dict[bool, list[tuple[float, float]]]


def puts(saver: LedgerSaver, state: Any, number: int) -> Times:
    """Processor and elapsed time of each put, by whether it made digests."""
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    saver.get_tuple(config)
    found: Times = {True: [], False: []}
    for count in range(WARM + number):
        chained = count // TURN % 2 == 0
        saver._ledger.chain_log = chained
        checkpoint = checkpoint_of(state(count), count)
        metadata: Any = {"source": "loop", "step": count, "parents": {}}
        elapsed, worked = time.perf_counter(), time.thread_time()
        config = saver.put(config, checkpoint, metadata, checkpoint["channel_versions"])
        times = (time.thread_time() - worked, time.perf_counter() - elapsed)
        if count >= WARM and count % TURN:
            found[chained].append(times)
    return found


def checkpoint_of(values: Any, number: int) -> Checkpoint:
    """A checkpoint, all of whose channels are new."""
    versions = dict.fromkeys(values, f"{number:032}.0.5")
    made = {"id": str(uuid6(clock_seq=-2)), "channel_values": values, "channel_versions": versions}
    return {**empty_checkpoint(), **made}  # type: ignore[typeddict-item]


def ledgers(folder: Path, url: str) -> Iterator[tuple[str, LedgerSaver]]:
    yield "SQLite", LedgerSaver(str(folder / "full.db"))
    yield 'SQLite, `synchronous="OFF"`', LedgerSaver(str(folder / "off.db"), synchronous="OFF")
    yield "Postgres", LedgerSaver(url)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--puts", type=int, default=4000, help="how many of each kind on each database")
    number = parser.parse_args().puts
    print("| state | database | processor ms | with digests | elapsed ms | with digests |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, state in STATES.items():
        with tempfile.TemporaryDirectory() as folder, own_server() as url:
            for database, saver in ledgers(Path(folder), url):
                with saver:
                    found = puts(saver, state, number)
                cells = []
                for which in (0, 1):
                    without, within = (statistics.median(times[which] for times in found[on]) for on in (False, True))
                    cells += [f"{1000 * without:.3f}", f"{1000 * within:.3f} ({within / without:.3f}x)"]
                print(f"| {name} | {database} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
