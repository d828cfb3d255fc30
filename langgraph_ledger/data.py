"""Stored values as plain data, for the eye: types are named, and nothing of them is imported or constructed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import ormsgpack
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from langgraph_ledger.images import is_plain


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
        if kind == "json":
            return json.loads(content, object_hook=_object)
        return _opaque(kind, content)


def reader_of(serde: SerializerProtocol) -> SerializerProtocol:
    """Reads as data what a serializer has stored, if that is in LangGraph's own format; otherwise the serializer."""
    if isinstance(serde, EncryptedSerializer):
        return EncryptedSerializer(serde.cipher, reader_of(serde.serde))
    return DataSerializer() if is_plain(serde) else serde


def plain(value: Any) -> Any:
    """A value with nothing but what JSON has words for."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(part) for part in value]
    if isinstance(value, (bytes, bytearray)):
        return _opaque("bytes", value)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and value - value == 0):
        return value
    return str(value)


def _opaque(kind: str, content: bytes | bytearray) -> dict[str, Any]:
    """Bytes that are not looked into: described so that others of their length are told from them."""
    return {"$type": kind, "$length": len(content), "$sha256": hashlib.sha256(content).hexdigest()[:16]}


def _unpacked(content: bytes) -> Any:
    return ormsgpack.unpackb(content, ext_hook=_extension, option=ormsgpack.OPT_NON_STR_KEYS)


def _extension(code: int, content: bytes) -> Any:
    try:
        found = _unpacked(content)
    except ValueError:
        return _opaque(f"extension {code}", content)
    if not (isinstance(found, list) and len(found) >= 3 and all(isinstance(part, str) for part in found[:2])):
        return found
    return _named(".".join(found[:2]), found[2])


def _object(found: dict[str, Any]) -> Any:
    """An object as LangGraph's JSON had it, which older versions wrote."""
    name = found.get("id")
    if "lc" not in found or not isinstance(name, list):
        return found
    return _named(".".join(map(str, name)), found.get("kwargs") or found.get("args"))


def _named(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return {"$type": name, **{str(key): part for key, part in value.items()}}
    return {"$type": name, "value": value}
