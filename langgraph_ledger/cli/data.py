"""Stored values as plain data, for the eye: types are named, and nothing of them is imported or constructed."""

from __future__ import annotations

from typing import Any

import ormsgpack
from langgraph.checkpoint.serde.base import SerializerProtocol


class DataSerializer(SerializerProtocol):
    """Reads what `JsonPlusSerializer` wrote. An object becomes `{"$type": its class, ...what it was made of}`."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Plain data only: what the command line itself has to store, such as what was found out about a call."""
        if obj is None:
            return "null", b""
        return "msgpack", ormsgpack.packb(obj, option=ormsgpack.OPT_NON_STR_KEYS)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """A stored value as data."""
        kind, content = data
        if kind == "null":
            return None
        if kind in ("bytes", "bytearray"):
            return bytes(content)
        if kind == "msgpack":
            return _unpacked(content)
        return {"$type": kind, "$length": len(content)}


def _unpacked(content: bytes) -> Any:
    return ormsgpack.unpackb(content, ext_hook=_extension, option=ormsgpack.OPT_NON_STR_KEYS)


def _extension(code: int, content: bytes) -> Any:
    try:
        found = _unpacked(content)
    except ValueError:
        return {"$type": f"extension {code}", "$length": len(content)}
    if not (isinstance(found, list) and len(found) >= 3 and all(isinstance(part, str) for part in found[:2])):
        return found
    name, value = ".".join(found[:2]), found[2]
    if isinstance(value, dict):
        return {"$type": name, **{str(key): part for key, part in value.items()}}
    return {"$type": name, "value": value}
