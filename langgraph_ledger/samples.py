"""Whether a serializer takes values of a declared type: tried on samples, made without running a constructor."""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import inspect
import pathlib
import re
import threading
import types
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, ForwardRef, Literal, TypeVar
from uuid import UUID

from langgraph.checkpoint.serde.base import SerializerProtocol
from typing_extensions import is_typeddict

from langgraph_ledger.codecs import VALUE_LIMIT
from langgraph_ledger.errors import ValueNotStorable
from langgraph_ledger.memory import culprit, dump

Refused = tuple[str, str]
"""The path within the value, and why."""

_NOW = datetime.datetime.now(datetime.UTC)
_KNOWN_SAMPLES: Mapping[type, Any] = {
    type(sample): sample
    for sample in (
        *(_NOW, _NOW.date(), _NOW.time(), datetime.UTC, UUID(int=0), re.compile("")),
        *(threading.Lock(), threading.RLock(), (_ for _ in range(0))),
    )
} | {pathlib.Path: pathlib.Path()}
"""Of types that cannot be made by themselves."""

_PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None), list, dict, tuple, set, frozenset, object)


def refused_part(serde: SerializerProtocol, value: Any) -> Refused | None:
    """The part of a value that the serializer does not take; None if it takes all of it."""
    try:
        dump(serde, value, lambda: "audit", VALUE_LIMIT)
    except ValueNotStorable:
        path, part = culprit(serde, value)
        return path, _refused(type(part))
    return None


def refused_type(serde: SerializerProtocol, declared: Any) -> Refused | None:
    """The first part of a type whose values the serializer does not take, or that cannot be tried."""
    unsure: Refused | None = None
    for path, part in _leaves(declared, "", set()):
        found = _try(serde, part)
        if found is not None and not found.startswith("cannot be tried"):
            return path, found
        if found is not None and unsure is None:
            unsure = path, found
    return unsure


def _name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def _leaves(declared: Any, path: str, seen: set[Any]) -> Iterator[tuple[str, Any]]:
    """The classes that a type is made of, each with its place in a value."""
    origin, args = typing.get_origin(declared), typing.get_args(declared)
    if origin is typing.Annotated or getattr(origin, "__name__", "") in ("Required", "NotRequired", "ReadOnly"):
        yield from _leaves(args[0], path, seen)
    elif origin is Literal or declared is Any or isinstance(declared, (TypeVar, ForwardRef, str)):
        return
    elif origin in (typing.Union, types.UnionType):
        for part in args:
            yield from _leaves(part, path, seen)
    elif origin is not None:
        if origin in (collections.abc.Callable, type):
            yield path, origin
        mapping = isinstance(origin, type) and issubclass(origin, collections.abc.Mapping)
        for part in args:
            if part is not Ellipsis and not isinstance(part, list):
                yield from _leaves(part, f"{path}[{'...' if mapping else ''}]", seen)
    elif isinstance(declared, type) or is_typeddict(declared):
        yield from _of_class(declared, path, seen)
    else:
        yield path, declared


def _of_class(kind: Any, path: str, seen: set[Any]) -> Iterator[tuple[str, Any]]:
    if kind in seen or kind in _PLAIN:
        return
    seen.add(kind)
    as_key = is_typeddict(kind)
    fields = _fields(kind)
    if fields is None:
        yield path, kind
        return
    for name, part in fields.items():
        yield from _leaves(part, f"{path}[{name!r}]" if as_key else f"{path}.{name}", seen)


def _fields(kind: Any) -> Mapping[str, Any] | None:
    """The fields of what is serialised field by field; None for another class."""
    if hasattr(kind, "model_fields"):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    if not (is_typeddict(kind) or dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")):
        return None
    try:
        return typing.get_type_hints(kind)
    except Exception:  # names that are not there at run time
        return {}


def _try(serde: SerializerProtocol, kind: Any) -> str | None:
    """Why a class's instances are not taken, or cannot be tried; None if they are."""
    if not isinstance(kind, type):
        return f"cannot be tried: {kind!r} is no class"
    if inspect.isabstract(kind) or getattr(kind, "_is_protocol", False) or kind.__module__ == "collections.abc":
        return f"cannot be tried: {_name(kind)} is abstract" if kind is not collections.abc.Callable else _refused(kind)
    try:
        sample = _KNOWN_SAMPLES[kind] if kind in _KNOWN_SAMPLES else _sample(kind)
    except Exception:
        return f"cannot be tried: no {_name(kind)} can be made without its constructor; give a value"
    try:
        serde.dumps_typed(sample)
    except Exception as error:  # that of an empty shell may only miss what a constructor would have put there
        taken = isinstance(error, AttributeError) or isinstance(error.__cause__, AttributeError)
        return None if taken else _refused(kind)
    return None


def _sample(kind: type) -> Any:
    if issubclass(kind, Enum):
        return next(iter(kind))
    try:
        return kind.__new__(kind)
    except TypeError:  # an array, for one, wants to know how large it is
        return kind.__new__(kind, 1)  # type: ignore[call-arg]


def _refused(kind: Any) -> str:
    return f"{_name(kind)} cannot be serialised"
