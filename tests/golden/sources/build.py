"""Makes the golden databases that are not there, each with the versions it is for.

    python -m tests.golden.sources.build FOLDER SERVER

FOLDER is for the environments that pip makes, SERVER the URL of a Postgres server; `pg_dump` has to be on the path.
"""

import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from tests.golden.sources import FOLDER, VERSIONS
from tests.postgres_server import create_database, drop_database


def main(environments: Path, server: str) -> None:
    for name, packages in VERSIONS.items():
        file, dump = FOLDER / f"sqlite-{name}.db", FOLDER / f"postgres-{name}.sql"
        python = environment(environments / name, packages)
        if not file.exists():
            make(python, file)
        if not dump.exists():
            url = create_database(server)
            make(python, url)
            dump.write_text(dumped(url), "utf-8")
            drop_database(server, url)


def environment(folder: Path, packages: Sequence[str]) -> Path:
    """A Python with these packages."""
    python = folder / "bin" / "python"
    if not folder.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    return python


def make(python: Path, place: Path | str) -> None:
    subprocess.run([python, FOLDER / "make.py", str(place)], check=True)


def dumped(url: str) -> str:
    """The tables and rows in plain SQL, without what only psql understands."""
    options = ("--inserts", "--no-owner", "--no-privileges", "--no-comments")
    found = subprocess.run(["pg_dump", *options, url], check=True, capture_output=True, text=True).stdout
    lines = [line for line in found.splitlines() if line and not line.startswith(("--", "\\", "SET ", "SELECT pg_"))]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
