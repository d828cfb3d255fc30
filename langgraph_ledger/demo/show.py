"""The whole demonstration: open the database, play both acts, say what was checked, leave nothing behind."""

from __future__ import annotations

import re
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from langgraph_ledger import LedgerSaver
from langgraph_ledger.demo.crash import crash_act
from langgraph_ledger.demo.processes import Crew
from langgraph_ledger.demo.rivals import rivals_act
from langgraph_ledger.demo.screen import Screen
from langgraph_ledger.demo.stage import Checks, Stage


def run_demo(url: str | None, keep: bool) -> int:
    """Run the demo and hand back the exit code: 0 if every claim held, 1 if not, 130 if it was interrupted."""
    screen = Screen()
    # A terminated demo must end its workers and remove its files too, which an exception does and the signal does not.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return _run(screen, url, keep)
    except KeyboardInterrupt:
        screen.bad("interrupted; the workers have been ended")
        return 130
    except Exception as error:
        screen.bad(_masked(f"{type(error).__name__}: {error}"))
        return 1


def _run(screen: Screen, url: str | None, keep: bool) -> int:
    started = time.perf_counter()
    if url is not None and (":memory:" in url or "mode=memory" in url):
        raise ValueError("the demo needs a database that several processes can open, and one in memory is not")
    with _folder(keep=keep and url is None) as folder:
        where = url or str(folder / "demo.db")
        screen.title("langgraph_ledger: a support agent that is killed, and two that collide")
        screen.say(f"database: {_masked(where) if url else 'a new SQLite file, ' + where}")
        with LedgerSaver(where) as saver, Crew(folder) as crew:
            stage = Stage(where, folder / "journal", f"demo-{uuid.uuid4().hex[:8]}", saver, crew, screen)
            with _threads(stage, keep):
                crash_act(stage)
                rivals_act(stage)
        return _verdict(screen, stage.checks, time.perf_counter() - started)


@contextmanager
def _folder(keep: bool) -> Iterator[Path]:
    """A directory for the journal and the workers' messages, and for the database if the user named none."""
    folder = Path(tempfile.mkdtemp(prefix="langgraph-ledger-demo-"))
    try:
        yield folder
    finally:
        if not keep:
            # On Windows a killed process's files may stay locked for a moment; leaving one is better than failing.
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _threads(stage: Stage, keep: bool) -> Iterator[None]:
    """Take the demo's threads out of the database at the end, also when something failed."""
    # A first read, before any worker starts: a database that cannot be opened is reported once, and from here.
    for thread in stage.threads():
        if stage.checkpoint_ids(thread):
            raise RuntimeError(f"thread {thread} exists already")
    try:
        yield
    finally:
        # Before the threads go, so that no worker writes to one afterwards.
        stage.crew.end()
        if keep:
            stage.screen.say(f"kept: threads {stage.prefix}-ticket-1 to -{len(stage.threads())}")
        else:
            for thread in stage.threads():
                stage.saver.delete_thread(thread)


def _verdict(screen: Screen, checks: Checks, seconds: float) -> int:
    screen.title("What was checked, against the journal of what really ran")
    for claim in checks.passed:
        screen.good(claim)
    for claim in checks.failed:
        screen.bad(claim)
    total = len(checks.passed) + len(checks.failed)
    if checks.failed:
        screen.title(f"{len(checks.failed)} of {total} checks failed ({seconds:.1f} s)")
        return 1
    screen.title(f"All {total} checks passed ({seconds:.1f} s)")
    return 0


def _masked(text: str) -> str:
    """The text without the passwords of the URLs in it."""
    text = re.sub(r"(://[^:/@\s]*):[^@\s]*@", r"\1:***@", text)
    return re.sub(r"(password=)[^&\s]+", r"\1***", text)
