"""For LangGraph's server: the checkpointer that a `langgraph.json` names. Nothing else of the package needs it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from langgraph_ledger.errors import InvalidInput
from langgraph_ledger.saver import LedgerSaver

__all__ = ["checkpointer"]

URL, SCHEMA = "LANGGRAPH_LEDGER_URL", "LANGGRAPH_LEDGER_SCHEMA"


@asynccontextmanager
async def checkpointer() -> AsyncIterator[LedgerSaver]:
    """A saver for as long as the server runs: `"checkpointer": {"path": "langgraph_ledger.server.checkpointer"}`.

    The environment says where: `LANGGRAPH_LEDGER_URL` is a SQLite path or a Postgres URL, `LANGGRAPH_LEDGER_SCHEMA` the
    Postgres schema, if it is not the default one. The tables are made, or brought up to date, before the server takes
    its first request. Other options need a function of yours like this one.

    Raises `InvalidInput` if no URL is set, `DatabaseUnavailable` if the database cannot be reached.
    """
    url = os.environ.get(URL)
    if not url:
        raise InvalidInput(f"{URL} is not set: set it to a SQLite path or a Postgres URL before the server starts")
    async with LedgerSaver(url, schema=os.environ.get(SCHEMA) or None) as saver:
        await saver.asetup()
        yield saver
