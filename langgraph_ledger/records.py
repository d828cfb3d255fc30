"""What the ledger tells about itself: sessions, log entries, and plain JSON that both databases accept."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from langchain_core.messages import BaseMessage, ToolMessage
from langgraph.types import Command

from langgraph_ledger import legible, markup


@dataclass(frozen=True, slots=True)
class Session:
    """One thread's life. `status` is active, paused, completed or failed; times are UTC.

    `run_id` is the fence token of the run that wrote last or is at work, since `run_started_at`. `outcome` says how
    it ended where that was by a breakpoint, a cancellation, a shutdown or an error.
    """

    session_id: str
    status: str
    metadata: Mapping[str, Any]
    started_at: datetime
    last_active_at: datetime
    run_id: str | None = None
    run_started_at: datetime | None = None
    outcome: Mapping[str, Any] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        pairs: list[tuple[str, markup.Cell]] = [("status", markup.status(self.status))]
        if self.outcome:
            pairs.append(("run ended", " ".join(str(part) for part in self.outcome.values())))
        pairs += [(name, legible.short(value)) for name, value in self.metadata.items()]
        pairs += [("started (UTC)", legible.moment(self.started_at))]
        pairs += [("last active (UTC)", legible.moment(self.last_active_at))]
        return markup.page(legible.short(self.session_id), markup.facts(pairs))


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One row of `checkpoint_log`. `seq` orders the entries of a session; `payload` depends on `checkpoint_type`.

    `state_bytes` is the size of a checkpoint's state when serialised, whatever of it is stored for it alone. Entries
    about calls have a `call_id` (a tool call's is its id) and an `attempt_id`, the same for start and end.
    """

    seq: int
    session_id: str
    agent_id: str
    checkpoint_type: str
    checkpoint_id: str | None
    parent_checkpoint_id: str | None
    run_id: str | None
    task_id: str | None
    payload: Mapping[str, Any]
    created_at: datetime
    call_id: str | None = None
    attempt_id: str | None = None
    state_bytes: int | None = None


def now() -> str:
    """The present, UTC, as both databases take it."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def as_time(value: Any) -> datetime:
    """A time as a database returned it."""
    found = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    return found.astimezone(UTC)


MAX_TEXT = 256
MAX_ITEMS = 16


def text_for_json(value: str) -> str:
    """Text without what JSONB refuses: NUL becomes U+2400, a lone surrogate a question mark."""
    if value.isascii() and "\0" not in value:
        return value
    return value.replace("\0", "\u2400").encode("utf-8", "replace").decode("utf-8")


def _scalar(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_TEXT
    if type(value) is float:
        return math.isfinite(value)
    return value is None or type(value) in (bool, int)


def _named_scalar(item: tuple[Any, Any]) -> bool:
    return isinstance(item[0], str) and len(item[0]) <= MAX_TEXT and _scalar(item[1])


def describe(value: Any) -> Any:
    """A JSON-safe copy of a small plain value, or a short description of anything else. Never fails, never large."""
    if _scalar(value):
        return text_for_json(str.__str__(value)) if isinstance(value, str) else value
    if type(value) in (list, tuple) and len(value) <= MAX_ITEMS and all(map(_scalar, value)):
        return [describe(v) for v in value]
    if type(value) is dict and len(value) <= MAX_ITEMS and all(map(_named_scalar, value.items())):
        return {text_for_json(k): describe(v) for k, v in value.items()}
    return described(value)


def described(value: Any) -> dict[str, Any]:
    """What kind of value it is and how long, and nothing of what it holds."""
    kind = type(value)
    found: dict[str, Any] = {"$type": f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")}
    if isinstance(value, (str, bytes, bytearray, list, tuple, dict, set, frozenset)):
        found["$length"] = len(value)
    return found


def describe_result(value: Any) -> Any:
    """The same of what a tool gives: of messages and commands also what they say, long text cut off."""
    if type(value) is list and len(value) <= MAX_ITEMS and any(isinstance(v, (BaseMessage, Command)) for v in value):
        return [_described_part(v) for v in value]
    return _described_part(value)


def _described_part(value: Any) -> Any:
    if isinstance(value, BaseMessage):
        return _described_message(value)
    if isinstance(value, Command):
        given = {name: getattr(value, name) for name in ("graph", "resume", "goto") if getattr(value, name)}
        found = {**described(value), **{name: describe(part) for name, part in given.items()}}
        return found if value.update is None else {**found, "update": _described_update(value.update)}
    return describe(value)


def _described_message(message: BaseMessage) -> dict[str, Any]:
    content: Any = message.content
    if isinstance(content, str) and len(content) > MAX_TEXT:
        content = f"{content[: MAX_TEXT - 1]}…"
    status = {"status": describe(message.status)} if isinstance(message, ToolMessage) else {}
    return {**described(message), "content": describe(content), **status}


def _described_update(update: Any) -> Any:
    """What a command puts into the state; where that is messages, what they say."""
    if type(update) is not dict or len(update) > MAX_ITEMS or not all(isinstance(name, str) for name in update):
        return describe(update)
    return {text_for_json(name[:MAX_TEXT]): _described_messages(part) for name, part in update.items()}


def _described_messages(value: Any) -> Any:
    several = type(value) is list and len(value) <= MAX_ITEMS and all(isinstance(part, BaseMessage) for part in value)
    if several and value:
        return [_described_message(part) for part in value]
    return _described_message(value) if isinstance(value, BaseMessage) else describe(value)


# sorted, so that it is the same text whatever order a database keeps
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, sort_keys=True).encode


def to_json(value: Any) -> str:
    """JSON text of what `describe` made."""
    return _encode(value)


def from_json(text: str) -> dict[str, Any]:
    """The JSON object that a database returned. Raises ValueError where it holds anything else."""
    try:
        found = json.loads(text)
    except (TypeError, RecursionError) as error:  # not text at all, or too deep
        raise ValueError(str(error)) from error
    if not isinstance(found, dict):
        raise ValueError(f"a JSON object is expected, not {text[:40]}")
    return found
