"""Which call of a graph a run belongs to, as LangChain's callbacks know it.

LangChain tells its handlers when a chain begins and ends, and gives each an id that a saver never sees. But a graph
reads its thread right after its beginning was told, in the same context, so the id that was told last is its own.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextvars import ContextVar
from typing import Any
from uuid import UUID

REMEMBERED = 10_000
"""Calls of graphs that are under way at most; of more than these the oldest are not told of their end."""

latest: ContextVar[UUID | None] = ContextVar("langgraph_ledger_latest_chain", default=None)
"""The chain that began last in this context."""

_lock = threading.Lock()
_under_way: dict[bool, OrderedDict[UUID, Any]] = {False: OrderedDict(), True: OrderedDict()}


def entered(what: Any, *, asynchronous: bool) -> bool:
    """Notes what belongs to the chain that has just begun in this context. Whether its end will be told."""
    chain = latest.get()
    if chain is not None:
        with _lock:
            found = _under_way[asynchronous]
            found[chain] = what
            while len(found) > REMEMBERED:
                found.popitem(last=False)
    return chain is not None


def under_way(*, asynchronous: bool) -> bool:
    """Whether there is any to be told of."""
    return bool(_under_way[asynchronous])


def left(chain: UUID, *, asynchronous: bool) -> Any:
    """What belongs to a chain that ends; None if nothing does, as for nearly all of them."""
    with _lock:
        return _under_way[asynchronous].pop(chain, None)
