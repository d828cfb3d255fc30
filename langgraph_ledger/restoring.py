"""Serialised bytes back to a value, and an error in place of what the serializer would put where a type is not allowed.

LangGraph's serializer gives the parts of an object whose type its allow-list does not have, and says so in its log.
Whoever reads the state would take them for the value, and the next save would make that so.
"""

from __future__ import annotations

import threading
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.event_hooks import SerdeEvent, register_serde_event_listener

from langgraph_ledger.errors import TypeNotAllowed, ValueNotRestorable
from langgraph_ledger.places import Where

MOST = 100
"""Of so many refused types an error tells."""


class _Heard(threading.local):
    """What the serializer has refused in this thread since the last `load` began."""

    def __init__(self) -> None:
        self.refused: list[tuple[str, ...]] = []


_heard = _Heard()


def load(serde: SerializerProtocol, encoding: str, data: bytes, where: Where) -> Any:
    """A value back from the serde; a failure, or a type that it may not make, names its place."""
    refused = _heard.refused
    if refused:  # by somebody else who used a serializer
        refused.clear()
    try:
        value = serde.loads_typed((encoding, data))
    except Exception as error:
        raise ValueNotRestorable(f"{where()}: the stored value cannot be restored: {error}") from error
    if refused:
        raise TypeNotAllowed(f"{where()}: {_how_to_allow(list(dict.fromkeys(refused)))}")
    return value


def _how_to_allow(refused: list[tuple[str, ...]]) -> str:
    names = ", ".join(".".join(parts) for parts in refused)
    calls = [parts for parts in refused if len(parts) > 2]
    if calls:
        return f"the stored value would have {names} called, which LangGraph's serializer never does"
    return (
        f"it holds {names}, which this saver's serializer may not restore. What the schemas of a graph name is allowed"
        " for graph.checkpointer, if LANGGRAPH_STRICT_MSGPACK is set; to allow it everywhere:"
        f" LedgerSaver(..., serde=JsonPlusSerializer(allowed_msgpack_modules={refused!r}))"
    )


def _note(event: SerdeEvent) -> None:
    """Keeps what the serializer refuses."""
    refused = _heard.refused
    if len(refused) >= MOST:
        return
    if event["kind"] == "msgpack_blocked":
        refused.append((event["module"], event["name"]))
    elif event["kind"] == "msgpack_method_blocked" and event.get("method") != "fromisoformat":
        # a subclass of datetime is stored so, and comes back as its text under every allow-list
        refused.append((event["module"], event["name"], str(event.get("method"))))


register_serde_event_listener(_note)
