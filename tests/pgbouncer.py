"""A real pgbouncer in front of a Postgres server. What belongs here knows nothing of the package under test."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote, urlsplit

import psycopg

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
"""Where it is. No package index has it; Debian does."""
PORT = 6432
"""Part of the name of a socket only."""
SETTINGS = """
[databases]
* = {server}
[pgbouncer]
pool_mode = {mode}
default_pool_size = {servers}
max_client_conn = 1000
auth_type = any
listen_addr =
listen_port = {port}
unix_socket_dir = {directory}
logfile = {directory}/log
"""


class PgBouncer:
    """Stands before a server, and has few connections to it for many clients."""

    def __init__(self, server_url: str, directory: Path, mode: str, servers: int) -> None:
        self._server_url, self.directory = server_url, directory
        known = psycopg.conninfo.conninfo_to_dict(server_url)
        server = " ".join(
            f"{name}={value}" for name in ("host", "port", "user", "password") if (value := known.get(name))
        )
        settings = SETTINGS.format(server=server, mode=mode, servers=servers, port=PORT, directory=directory)
        (directory / "settings").write_text(settings)
        self._user = None
        if os.geteuid() == 0:  # which it refuses to run as
            self._user = "nobody"
            for path in (directory, directory / "settings"):
                shutil.chown(path, self._user)
        self.start()

    def url(self, database_url: str) -> str:
        """The way through it to the database of a URL."""
        path, query = urlsplit(database_url).path, f"host={quote(str(self.directory), safe='')}&port={PORT}"
        return f"postgresql://postgres@{path}?{query}"

    def start(self) -> None:
        assert PROGRAM is not None
        self._process = subprocess.Popen(
            [PROGRAM, "--quiet", self.directory / "settings"], user=self._user, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(self.url(self._server_url)).close()
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.stop()
                    raise RuntimeError(f"pgbouncer has not started:\n{(self.directory / 'log').read_text()}") from None
                time.sleep(0.05)
            else:
                return

    def stop(self) -> None:
        """Ends it as a crash would: its clients lose their lines at once."""
        self._process.kill()
        self._process.wait()
        with suppress(FileNotFoundError):
            (self.directory / f".s.PGSQL.{PORT}").unlink()


@contextmanager
def pgbouncer(server_url: str, *, mode: str = "transaction", servers: int = 2) -> Iterator[PgBouncer]:
    """One that is stopped in the end, and leaves nothing behind."""
    directory = Path(tempfile.mkdtemp(prefix="ledger-pgb-"))  # short, since a socket's path must be
    try:
        bouncer = PgBouncer(server_url, directory, mode, servers)
        try:
            yield bouncer
        finally:
            bouncer.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
