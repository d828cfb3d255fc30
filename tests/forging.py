"""Rows of `agent_memory` as who can write to the database may make them: their ids are right, whatever is in them."""

from typing import Any

import ormsgpack
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from langgraph_ledger.places import Ref
from langgraph_ledger.vault import INDEX, PART, PlainVault

STRICT = JsonPlusSerializer(allowed_msgpack_modules=None)
VAULT = PlainVault(STRICT)
Rows = dict[bytes, tuple[str, bytes, bytes | None]]


def packed(value: Any) -> bytes:
    return ormsgpack.packb(value)


def chunk(
    rows: Rows, content: bytes, children: bytes = b"", kind: str = PART, encoding: str = "", plain: bytes | None = None
) -> Ref:
    """Adds a row whose id is right for `plain`, whatever its content is; returns a reference to it."""
    memory_id = VAULT.digest(kind, content if plain is None else plain, children)
    rows[memory_id] = (encoding or kind, content, children or None)
    return Ref(memory_id, kind == INDEX)
