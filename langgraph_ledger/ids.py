"""What may name a thread, a namespace, a checkpoint or a task, and how it is read from a config.

The limits keep every key within one Postgres index row (2,704 bytes).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast
from uuid import UUID

from langgraph_ledger.errors import InvalidInput

LIMITS = {
    "thread_id": 512,
    "checkpoint_ns": 1536,
    "checkpoint_id": 128,
    "task_id": 128,
    "run_id": 512,
    "task_path": 1_000_000,
    "channel": 1_000_000,
}
"""Bytes of UTF-8 that an id may take. The last two are part of no key."""

NEVER_EMPTY = frozenset(("thread_id", "checkpoint_id", "task_id"))


KEY_BYTES = 512
"""Bytes of UTF-8 that a name of the caller's may take: of a call, of a resource."""


@lru_cache(4096)
def _is_clean(value: str, limit: int) -> bool:
    return bool(value) and value.isascii() and len(value) <= limit and "\0" not in value


def clean(value: Any, what: str) -> str:
    """`value` as the string that is stored, or `InvalidInput` saying what is wrong with it."""
    return _checked(value, what, LIMITS[what])


def key(value: Any, what: str) -> str:
    """A name that the caller gives something, checked like an id; never empty."""
    if value == "":
        raise InvalidInput(f"{what} must not be empty")
    return _checked(value, what, KEY_BYTES)


def _checked(value: Any, what: str, limit: int) -> str:
    if type(value) is str and _is_clean(value, limit):
        return value
    if isinstance(value, bool) or not isinstance(value, (str, int, UUID)):
        raise InvalidInput(f"{what} must be a str, int or UUID, not {type(value).__name__}: {value!r:.80}")
    text = value if isinstance(value, str) else str(value)
    if not text and what in NEVER_EMPTY:
        raise InvalidInput(f"{what} must not be empty")
    if "\0" in text:
        raise InvalidInput(f"{what} holds a NUL character, which Postgres cannot store: {text!r:.80}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{what} holds a lone surrogate, which is not valid text: {text!r:.80}") from error
    if size > limit:
        raise InvalidInput(f"{what} is {size:,} bytes long, more than the {limit:,} that fit in an index")
    return text


def configurable(config: Any) -> Mapping[str, Any]:
    """The `configurable` part of a config."""
    found = config.get("configurable") if type(config) is dict or isinstance(config, Mapping) else None
    if type(found) is not dict and not isinstance(found, Mapping):
        raise InvalidInput(f'config must be a mapping with a "configurable" part: {config!r:.120}')
    return cast("Mapping[str, Any]", found)


def thread_of(conf: Mapping[str, Any]) -> str:
    """The thread that a config names."""
    thread = conf.get("thread_id")
    if thread is None:
        raise InvalidInput('config["configurable"] has no thread_id; LangGraph needs one to save a thread')
    return clean(thread, "thread_id")


def namespace_of(conf: Mapping[str, Any]) -> str:
    """The checkpoint namespace that a config names, "" for the root."""
    namespace = conf.get("checkpoint_ns")
    return "" if namespace is None else clean(namespace, "checkpoint_ns")


def checkpoint_of(conf: Mapping[str, Any]) -> str | None:
    """The checkpoint that a config names, marks and all, or None for the latest."""
    found = conf.get("checkpoint_id")
    return None if found is None or found == "" else clean(found, "checkpoint_id")
