"""Golden ledgers: where they are, and how a copy of one is opened."""

import gzip
import json
from pathlib import Path
from typing import Any

import psycopg
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from langgraph_ledger import LedgerSaver, sql
from tests.golden.threads import Thread

FOLDER = Path(__file__).parent
KEY = b"a key for tests."
LATEST = sql.load("sqlite").migrations[-1].number
VERSIONS = sorted(int(path.name.removeprefix("ledger-")) for path in FOLDER.glob("ledger-*"))
ENDINGS = ("", "-working")
"""Of the two files of a ledger on SQLite."""


def folder(version: int) -> Path:
    return FOLDER / f"ledger-{version}"


def expected(version: int) -> Any:
    """By database, ledger and thread: what was seen of it, and what came of it when it went on."""
    return json.loads(gzip.decompress((folder(version) / "expected.json.gz").read_bytes()))


def unpack(version: int, ledger: str, path: Path) -> str:
    """A copy of the SQLite one; its path."""
    for ending in ENDINGS:
        packed = folder(version) / f"{ledger}.db{ending}.gz"
        if packed.exists():
            Path(f"{path}{ending}").write_bytes(gzip.decompress(packed.read_bytes()))
    return str(path)


def restore(version: int, ledger: str, url: str) -> str:
    """A copy of the Postgres one, in an empty database; its URL."""
    with psycopg.connect(url) as connection:
        connection.execute(gzip.decompress((folder(version) / f"{ledger}.sql.gz").read_bytes()))
    return url


def opened(url: str, ledger: str, thread: Thread | None = None) -> LedgerSaver:
    """A saver on a copy, as the thread wants it."""
    serde = EncryptedSerializer.from_pycryptodome_aes(key=KEY) if ledger == "encrypted" else None
    return LedgerSaver(url, serde=serde, **(thread.options if thread else {}))
