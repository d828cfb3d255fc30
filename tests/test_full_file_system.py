"""A file system that is really full, in the middle of a commit, under each flush policy.

The error says what to do, nothing that was acknowledged is lost, and once there is room the run goes on where it was.
Where no file system may be mounted, a process whose files may not grow stands for it.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from langgraph_ledger import Batched, LedgerSaver
from langgraph_ledger.errors import DatabaseError
from tests.flush.counting import at, counting, prefix
from tests.strict_python import PYTHON

ROOT = Path(__file__).parent.parent
START = {"number": 0, "seen": []}
POLICIES: dict[str, tuple[Any, int]] = {
    "always": ("always", 0),
    "by number": (Batched(5, None), 5),
    "by time": (Batched(100_000, 0.02), 100_000),
    "important": ("important", 100_000),
}
"""Each with the number of acknowledged steps that may not be on disk yet when it fails."""
LEFT = (0, 30_000, 100_000)
"""Bytes that there is room for. A step takes about twice 20,000."""


def fill_up(path: Path, policy: str, fill: Callable[[], None], make_room: Callable[[], None]) -> None:
    flush, waiting = POLICIES[policy]
    ran: list[int] = []

    def each(number: int) -> None:
        ran.append(number)
        if number == 6 and ran.count(6) == 1:
            fill()

    with LedgerSaver(path, flush=flush, compression="none") as saver:
        saver.setup()
        graph = counting(saver, 40, each, payload=20_000)
        with pytest.raises(DatabaseError, match=r"nothing of this is stored.*make room") as caught:
            graph.invoke(START, at("1"), durability="sync")
        assert path.name in str(caught.value)
        reached = ran[-1]
        with LedgerSaver(path) as other:
            assert prefix(other, "1") >= reached - 1 - waiting
        make_room()
        assert graph.get_state(at("1")).values["number"] >= reached - 1, "what waited is stored"
        assert graph.invoke(None, at("1"))["number"] == 40
        assert min(ran[ran.index(reached) + 1 :], default=reached) >= reached, "no acknowledged step runs again"
        assert saver.verify("1") == []
        assert saver.rejected_writes() == []
    with LedgerSaver(path) as other:
        assert prefix(other, "1") == 40


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", place]
    if sys.platform != "linux" or os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a file system of its own can only be mounted by root, on Linux")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("left", LEFT)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_file_system_that_is_full(small: Path, policy: str, left: int) -> None:
    filler = small / "filler"

    def fill() -> None:
        with filler.open("wb") as file:
            while True:
                try:
                    os.posix_fallocate(file.fileno(), 0, max(1, shutil.disk_usage(small).free - left))
                    return
                except OSError:  # a flush in the background was faster
                    file.truncate(0)

    fill_up(small / "ledger.db", policy, fill, filler.unlink)


LIMITED = """
import resource, sys
from pathlib import Path
from tests.test_full_file_system import LEFT, fill_up

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

for left in LEFT:
    path = Path(sys.argv[1]) / f"{left}.db"
    log = path.with_name(f"{left}.db-wal")
    fill_up(path, sys.argv[2], lambda: limit(log.stat().st_size + left), lambda: limit(resource.RLIM_INFINITY))
"""


@pytest.mark.parametrize("policy", POLICIES)
def test_files_that_may_not_grow(tmp_path: Path, policy: str) -> None:
    found = subprocess.run(
        [*PYTHON, "-c", LIMITED, tmp_path, policy], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert (found.returncode, found.stderr) == (0, "")
