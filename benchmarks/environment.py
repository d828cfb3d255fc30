"""Where figures are taken: the server that is measured, and what has to be known of the machine and its settings."""

import os
import platform
import sqlite3
import time
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import page, slow_disk
from benchmarks.harness import QUICK, Bench, Subject, ask
from benchmarks.savers import CONTENDERS, Contender

PACKAGES = (
    "langgraph", "langgraph-checkpoint", "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres",
    "langchain-core", "psycopg", "psycopg-pool", "aiosqlite", "ormsgpack", "lz4",
)  # fmt: skip
SETTINGS = (
    "server_version", "fsync", "synchronous_commit", "full_page_writes", "wal_compression", "shared_buffers",
    "max_wal_size", "default_toast_compression",
)  # fmt: skip


def server(stack: ExitStack, contenders: list[Contender], url: str | None) -> tuple[str, Any]:
    """A Postgres server, and a connection to it, if any saver needs one."""
    if all(contender.store != "postgres" for contender in contenders):
        return "", None
    import psycopg

    from tests.postgres_server import own_server

    url = url or stack.enter_context(own_server())
    admin = stack.enter_context(psycopg.connect(url, autocommit=True))
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        if (found := ask(admin, f"SHOW {setting}")) != "on":
            raise SystemExit(f"the Postgres server has {setting} = {found}: durability is to be the same for all")
    return url, admin


def environment(bench: Bench) -> dict[str, str]:
    """What is said of a run beside its figures. Ends the program where figures would not count."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    _, system = max((place, kind) for place, kind in mounts if bench.folder.is_relative_to(place))
    if system in ("tmpfs", "ramfs"):
        raise SystemExit(f"{bench.folder} is in memory, where syncing costs nothing: set TMPDIR to a folder on a disk")
    facts = {
        "sizes": "small (--quick): not for figures" if bench.sizes == QUICK else "full",
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} x {models[0].split(':')[1].strip() if models else platform.machine()}",
        "kernel, file system": f"{platform.release()}, {system}",
        "Python": platform.python_version(),
        "packages": ", ".join(f"{package} {version(package)}" for package in PACKAGES),
        "SQLite": f"{sqlite3.sqlite_version}, {_sqlite_durability(bench)}",
    }
    if (longer := slow_disk.flush_milliseconds()) > 0:
        facts[page.FLUSHES] = f"each takes {longer:g} ms longer than this disk's"
    if bench.admin:
        settings = ", ".join(f"{name} {ask(bench.admin, f'SHOW {name}')}" for name in SETTINGS)
        facts["Postgres"] = settings.removeprefix("server_version ")
    return facts


def _sqlite_durability(bench: Bench) -> str:
    """What the official saver's connection is set to; LedgerSaver is asked for the same by name."""
    subject = Subject(bench, CONTENDERS["sqlite"])
    try:
        connection = subject.saver.conn
        mode, level = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous"))
    finally:
        subject.close()
    if (mode, level) != ("wal", 2):
        raise SystemExit(f"SqliteSaver has journal_mode {mode}, synchronous {level}: expected wal and 2 (FULL)")
    return f"journal_mode {mode}, synchronous FULL"
