"""Power cuts, and kills, at every moment of SQLite's work on a ledger's files, modelled: see `power_cuts.py`."""

import pickle
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from langgraph_ledger import LedgerSaver
from tests.direct import at
from tests.power_cuts import Event, disks, library
from tests.strict_python import PYTHON

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(library() is None, reason="this Python's SQLite cannot be reached through ctypes")

SAVES = """
import pickle, sys
from langgraph_ledger import LedgerSaver
from tests.direct import at, save
from tests.power_cuts import Event, record

events = []
record(events)
saver = LedgerSaver(sys.argv[1], synchronous=sys.argv[2], compression="none")
place = at("thread")
for number in range(10):
    place = save(saver, place, f"{number:02}", {"large": f"{number:02}" * 1500})
    events.append(Event("ack", f"{number:02}"))
    if number == 1:  # a log is copied into the file when it has so many pages: soon, and again and again
        saver._driver._writer.execute("PRAGMA wal_autocheckpoint = 30")
saver.close()
with open(sys.argv[3], "wb") as file:
    pickle.dump(events, file)
"""


def recorded(folder: Path, synchronous: str) -> list[Event]:
    ended = subprocess.run(
        [*PYTHON, "-c", SAVES, str(folder / "ledger.db"), synchronous, str(folder / "events")],
        cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
    return pickle.loads((folder / "events").read_bytes())  # type: ignore[no-any-return]


def found_on(folder: Path, files: dict[str, bytes]) -> list[str]:
    """The checkpoints that are there when the machine is on again; the file is whole, or this raises."""
    folder.mkdir()
    for name, data in files.items():
        if not name.endswith("-shm"):
            (folder / name).write_bytes(data)
    with closing(sqlite3.connect(folder / "ledger.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'ledger_migrations'").fetchone():
            return []
        query = "SELECT checkpoint_id FROM checkpoint_log ORDER BY seq"
        return [found for (found,) in connection.execute(query)]


@pytest.mark.parametrize("synchronous", ["FULL", "NORMAL"])
def test_a_power_cut_at_every_moment(tmp_path: Path, synchronous: str) -> None:
    """What is there is whole, and a prefix of what was saved. With FULL it is all that was acknowledged."""
    events = recorded(tmp_path, synchronous)
    saved = [f"{number:02}" for number in range(10)]
    lost, cuts = 0, 0
    for left in disks(events, seed=1):
        folder = tmp_path / f"{left.moment} {left.kind}"
        found, told = found_on(folder, left.files), len(left.acknowledged)
        cuts += 1
        lost += len(found) < told
        assert found == saved[: len(found)], folder
        if synchronous == "FULL" or left.kind == "killed":
            assert told <= len(found) <= told + 1, folder
        if left.moment % 40 == 0 and left.kind != "killed" and found:
            with LedgerSaver(folder / "ledger.db") as saver:
                assert [item.checkpoint["id"] for item in saver.list(at("thread"))] == found[::-1]
                assert saver.verify(None) == []
        shutil.rmtree(folder)
    assert cuts > 250
    assert (lost > 0) == (synchronous == "NORMAL"), "the model shows what is lost if less is synced"
