"""Values as their bytes say, for moving them: what they are objects of is neither imported nor made, nor lost."""

from __future__ import annotations

import json
from typing import Any

import ormsgpack
from langgraph.checkpoint.serde.jsonplus import EXT_DELTA_SNAPSHOT, JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from langgraph_ledger.errors import InvalidInput

_PACK = ormsgpack.OPT_NON_STR_KEYS | ormsgpack.OPT_PASSTHROUGH_BIG_INT
_UNPACK = ormsgpack.OPT_NON_STR_KEYS

# Classes that LangGraph has moved since they were stored. No allow-list knows them by their old names.
_OLD_MODULE, _NEW_MODULE = "langgraph.constants", "langgraph.types"
_MOVED = ("Send", "Interrupt")
_OLD_PACKED = tuple(ormsgpack.packb(_OLD_MODULE) + ormsgpack.packb(name) for name in _MOVED)


class Opaque:
    """Bytes of a kind that are moved as they are: a pickle, say."""

    __slots__ = ("content", "kind")

    def __init__(self, kind: str, content: bytes) -> None:
        self.kind, self.content = kind, content


class JsonObject:
    """What an object was made of, in the JSON that LangGraph stored before it stored msgpack."""

    __slots__ = ("fields",)

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields


class VerbatimSerializer(JsonPlusSerializer):
    """Reads and writes the bytes of `JsonPlusSerializer`, with an `ormsgpack.Ext` or a `JsonObject` where it would make
    an object."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Bytes that mean what those meant that `loads_typed` was given; the same ones, unless they were JSON."""
        if obj is None:
            return "null", b""
        if isinstance(obj, bytes):
            return "bytes", obj
        if isinstance(obj, bytearray):
            return "bytearray", bytes(obj)
        if isinstance(obj, Opaque):
            return obj.kind, obj.content
        try:
            return "msgpack", ormsgpack.packb(obj, default=_packed, option=_PACK)
        except ormsgpack.MsgpackEncodeError:  # a JsonObject, or text with a surrogate, which JSON has let pass
            if not _is_json(obj):
                raise
            return "json", json.dumps(obj, default=_fields).encode()

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """A value without objects; kinds other than msgpack and JSON as they are."""
        kind, content = data
        if kind == "msgpack":
            return ormsgpack.unpackb(content, ext_hook=_kept, option=_UNPACK)
        if kind == "json":
            return json.loads(content, object_hook=_unmade)
        if kind in ("null", "bytes", "bytearray"):
            return super().loads_typed(data)
        if "+" in kind:
            raise InvalidInput(
                f"the values are encrypted ({kind}): use langgraph_ledger.transfer with their serializer"
            )
        return Opaque(kind, bytes(content))


def _kept(code: int, content: bytes) -> Any:
    if code == EXT_DELTA_SNAPSHOT:
        return _DeltaSnapshot(ormsgpack.unpackb(content, ext_hook=_kept, option=_UNPACK))
    if content.startswith(_OLD_PACKED, 1):  # behind a byte that says how many parts there are
        content = content.replace(ormsgpack.packb(_OLD_MODULE), ormsgpack.packb(_NEW_MODULE), 1)
    return ormsgpack.Ext(code, content)


def _packed(value: Any) -> Any:
    if isinstance(value, _DeltaSnapshot):
        return ormsgpack.Ext(EXT_DELTA_SNAPSHOT, ormsgpack.packb(value.value, default=_packed, option=_PACK))
    raise TypeError(f"{type(value).__name__} did not come out of a database")


def _unmade(found: dict[str, Any]) -> Any:
    if "lc" not in found:
        return found
    for name in _MOVED:
        if found.get("id") == [*_OLD_MODULE.split("."), name]:
            found["id"] = [*_NEW_MODULE.split("."), name]
    return JsonObject(found)


def _fields(value: Any) -> dict[str, Any]:
    if isinstance(value, JsonObject):
        return value.fields
    raise TypeError(f"{type(value).__name__} did not come out of a database")


def _is_json(value: Any) -> bool:
    """Whether JSON gives the value back as it is: not if it has keys, tuples or objects that msgpack had stored."""
    kind = type(value)
    if kind is dict:
        return all(isinstance(key, str) for key in value) and all(map(_is_json, value.values()))
    if kind is list:
        return all(map(_is_json, value))
    return kind is JsonObject or value is None or isinstance(value, (str, int, float))
