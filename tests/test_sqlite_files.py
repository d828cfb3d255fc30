"""SQLite files to which something happens: moved, deleted, damaged, read-only, locked, on a full disk, on a network."""

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from langgraph_ledger import LedgerSaver
from langgraph_ledger.drivers import file_systems
from langgraph_ledger.errors import DatabaseUnavailable, LedgerError, NotALedger
from tests.crash_scenarios import THREE, Actor
from tests.direct import at, save
from tests.four_ways import Backend, Flavoured
from tests.strict_python import PYTHON

ROOT = Path(__file__).parent.parent


@pytest.fixture
def backend(sqlite_path: str) -> Backend:
    return Backend("sqlite", sqlite_path)


# --- another file than it was


def remove(path: Path) -> None:
    for ending in ("", "-wal", "-shm"):
        Path(f"{path}{ending}").unlink()


def replace(path: Path) -> None:
    remove(path)
    with LedgerSaver(path.with_name("other.db")) as other:
        save(other, at("thread"), "other")
    os.replace(path.with_name("other.db"), path)


@pytest.mark.parametrize("happens", [remove, replace])
def test_a_file_that_goes_while_it_is_open(four: Flavoured, sqlite_path: str, happens: Callable[[Path], None]) -> None:
    """Nothing is acknowledged that nobody would find, and what took its place is left alone."""
    place = save(four, at("thread"), "1")
    path = Path(sqlite_path)
    kept = path.with_name("kept.db")
    os.link(path, kept)
    happens(path)
    for ask in (lambda: save(four, place, "2"), lambda: four.get_tuple(at("thread")), lambda: four.call("sessions")):
        with pytest.raises(DatabaseUnavailable, match=r"ledger\.db' was deleted, or replaced"):
            ask()
    if happens is replace:
        with LedgerSaver(sqlite_path) as fresh:
            assert [found.checkpoint["id"] for found in fresh.list(at("thread"))] == ["other"]
    os.replace(kept, path)
    save(four, place, "2")  # it is back


def test_a_program_that_changes_its_folder(open_four: Callable[..., Flavoured], tmp_path: Path, flavour: str) -> None:
    """A relative path is that of the beginning, for connections that are opened later too."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        four = Flavoured(LedgerSaver("relative.db"), open_four().runner)
        place = save(four, at("thread"), "1")
        os.chdir(elsewhere)
        assert four.get_tuple(at("thread")).checkpoint["id"] == "1"
        save(four, place, "2")
        four.close()
    finally:
        os.chdir(before)
    assert list(elsewhere.iterdir()) == []
    with LedgerSaver(tmp_path / "relative.db") as saver:
        assert len(list(saver.list(at("thread")))) == 2


# --- damage


def answers(path: Path) -> list[Any]:
    """What a saver says of a file; errors of the package's own in their place."""

    def asked(saver: LedgerSaver, method: str, *arguments: Any) -> Any:
        try:
            found = getattr(saver, method)(*arguments)
            return list(found) if isinstance(found, Iterator) else found
        except LedgerError as error:
            return error

    with LedgerSaver(path, read_only=True) as saver:
        questions = [("get_tuple", at("t")), ("list", at("t")), ("history", "t"), ("sessions",), ("verify", None)]
        return [asked(saver, *question) for question in questions]


def test_a_page_that_is_damaged(sqlite_path: str, tmp_path: Path) -> None:
    """Each page in turn, in two ways: what is told is right, or it is an error; and `verify` finds what others do."""
    with LedgerSaver(sqlite_path) as saver:
        for make in THREE:
            make(Actor(Flavoured(saver, None), "t"))
    whole, copy = Path(sqlite_path).read_bytes(), tmp_path / "copy.db"
    size = int.from_bytes(whole[16:18], "big")
    right = answers(Path(sqlite_path))
    assert right[-1] == []
    noticed = 0
    for page in range(len(whole) // size):
        for damage in (bytes(size), bytes(b ^ 0x55 for b in whole[page * size : (page + 1) * size])):
            copy.write_bytes(whole[: page * size] + damage + whole[(page + 1) * size :])
            *told, verified = answers(copy)
            for found, expected in zip(told, right, strict=False):
                assert found == expected or isinstance(found, LedgerError), (page, found)
                assert not isinstance(found, NotALedger) or str(copy) in str(found)
            if any(isinstance(found, LedgerError) for found in told):
                noticed += 1
                assert isinstance(verified, LedgerError) or verified != [], page
    assert noticed > 10


# --- a file that may not be written


READ_ONLY = """
import os, sys
from langgraph_ledger import LedgerSaver
from langgraph_ledger.drivers import file_systems
from langgraph_ledger.errors import DatabaseUnavailable, ReadOnlyLedger
from tests.direct import at, save

with LedgerSaver(":memory:") as saver:  # imports what it needs, while it may
    save(saver, at("thread"), "1".encode("ascii").decode("ascii"))
if os.geteuid() == 0:  # whom no permission stops
    os.setuid(65534)
path, what = sys.argv[1:]
with LedgerSaver(path) as saver, LedgerSaver(path, read_only=True) as reader:
    if what == "file":
        assert saver.get_tuple(at("thread")).checkpoint["id"] == "1"
        assert reader.get_tuple(at("thread")).checkpoint["id"] == "1"
        expected, words = ReadOnlyLedger, "or its directory is read-only"
    else:
        expected, words = (ReadOnlyLedger, DatabaseUnavailable), "two more files beside a ledger"
        try:
            reader.get_tuple(at("thread"))
        except expected as error:
            assert words in str(error)
        else:
            raise AssertionError("read")
    try:
        save(saver, at("thread", "1"), "2")
    except expected as error:
        assert words in str(error) and path in str(error), error
    else:
        raise AssertionError("written")
"""


@pytest.mark.parametrize("what", ["file", "directory"])
def test_what_may_not_be_written(what: str) -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own is closed to other users
        path = Path(folder, "ledger.db")
        with LedgerSaver(path) as saver:
            save(saver, at("thread"), "1")
        path.chmod(0o444)
        Path(folder).chmod(0o777 if what == "file" else 0o555)
        script(READ_ONLY, str(path), what)
        Path(folder).chmod(0o755)
        with LedgerSaver(path) as saver:
            assert len(list(saver.list(at("thread")))) == 1


def script(text: str, *arguments: str) -> str:
    found = subprocess.run([*PYTHON, "-c", text, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stderr) == (0, "")
    return found.stdout


# --- a disk that is full

FULL = """
import asyncio, json, resource, sys
from langgraph_ledger import LedgerSaver
from langgraph_ledger.errors import DatabaseError
from tests.direct import at, save
from tests.four_ways import Flavoured

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

saved = {}
for flavour, runner in (("sync", None), ("async", asyncio.Runner())):
    four = Flavoured(LedgerSaver(f"{sys.argv[1]}/{flavour}.db", compression="none"), runner)
    place, stored = at("thread"), []
    for size in range(60_000, 1_000_000, 17_011):  # wherever in a commit it is
        limit(size)
        try:
            for number in range(len(stored), 1000):
                place = save(four, place, f"{number:03}", {"value": f"{number}" * 3000})
                stored.append(f"{number:03}")
        except DatabaseError as error:
            assert "nothing of this is stored" in str(error) and f"{flavour}.db" in str(error), error
        else:
            raise AssertionError("no limit")
    limit(resource.RLIM_INFINITY)
    stored.append("last")
    save(four, place, "last")
    assert four.call("verify", "thread") == []
    four.close()
    saved[flavour] = stored
print(json.dumps(saved))
"""


def test_a_full_disk_in_the_middle_of_commits(tmp_path: Path) -> None:
    """Files that may not grow stand for it. All that was acknowledged is there, and nothing else is."""
    saved = json.loads(script(FULL, str(tmp_path)))
    assert saved.keys() == {"sync", "async"}
    for flavour, stored in saved.items():
        assert len(stored) > 20
        with closing(sqlite3.connect(tmp_path / f"{flavour}.db")) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        with LedgerSaver(tmp_path / f"{flavour}.db") as saver:
            assert [found.checkpoint["id"] for found in saver.list(at("thread"))] == stored[::-1]


# --- a file that another process writes to

HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
connection.close()
"""


def test_another_process_holds_the_lock(open_four: Callable[..., Flavoured], sqlite_path: str) -> None:
    """Whoever waits less than that is told so; whoever waits longer gets it."""
    hasty, patient = open_four(busy_timeout=0.05), open_four(busy_timeout=20)
    place = save(hasty, at("thread"), "1")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, sqlite_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        holder.stdout.readline()
        with pytest.raises(DatabaseUnavailable, match=r"ledger\.db' was kept locked .* longer than busy_timeout"):
            save(hasty, place, "2")
        assert hasty.get_tuple(at("thread")).checkpoint["id"] == "1", "reading waits for nobody"

        def let_go(event: str, statement: str) -> None:
            if (event, statement) == ("before", "begin_write"):
                print(file=holder.stdin, flush=True)

        patient.saver._driver.trace = let_go
        save(patient, place, "2")
    assert [found.checkpoint["id"] for found in patient.list(at("thread"))] == ["2", "1"]


# --- a file system that several machines share


def test_a_network_file_system(
    open_four: Callable[..., Flavoured], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning says so, once for a saver. The table of what is mounted is one that names the test's folder."""
    folder = tmp_path / "at work"
    folder.mkdir()
    table = tmp_path / "mountinfo"
    monkeypatch.setattr(file_systems, "MOUNTS", str(table))
    point = os.path.realpath(folder).replace(" ", r"\040")
    table.write_text(
        f"21 1 8:1 / / rw - ext4 /dev/sda1 rw\n22 21 0:5 / {point} rw shared:1 - nfs4 server:/ rw\n"
        f"23 21 0:6 / {point[:-1]} rw - cifs server rw\n"
    )
    four = Flavoured(LedgerSaver(folder / "ledger.db"), open_four().runner)
    with pytest.warns(RuntimeWarning, match=r"ledger\.db' is on a network file system \(nfs4\)") as caught:
        save(four, at("thread"), "1")
    assert len(caught) == 1
    save(four, at("thread", "1"), "2")
    assert four.get_tuple(at("thread")).checkpoint["id"] == "2"
    four.close()
    with LedgerSaver(tmp_path / "beside it.db") as saver:
        saver.setup()


def test_a_library_that_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = sqlite3.sqlite_version_info
    monkeypatch.setattr("langgraph_ledger.drivers.sqlite.OLDEST", (found[0], found[1] + 1, 0))
    with pytest.raises(NotALedger) as caught, LedgerSaver(str(tmp_path / "ledger.db")) as saver:
        saver.setup()
    assert sqlite3.sqlite_version in str(caught.value)
    assert f"{found[0]}.{found[1] + 1}.0 or newer" in str(caught.value)
    assert not (tmp_path / "ledger.db").exists()
