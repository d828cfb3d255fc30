"""What a worker puts on record of its calls: a line when one begins, a line when it has ended.

A call without an end was cut off: whether it happened is not known. Lines go into a pipe, so that what was said before
a SIGKILL has been heard; each is short enough to arrive whole. The clock is the machine's, the same for all processes.
"""

import hashlib
import itertools
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP

from langgraph_ledger import LedgerSaver, StateConflict

OP = "op"
"""The key of `configurable` that says which operation of a worker a call of the saver belongs to."""


DRAFT = "draft"
"""The channel that is safe to lose."""


def digest(value: Any) -> str:
    """Equal for equal values, and short."""
    text = json.dumps(value, sort_keys=True, default=repr)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def durable(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a checkpoint without what is safe to lose."""
    return {channel: value for channel, value in values.items() if channel != DRAFT}


class Journal:
    """Where a worker says what it does. Its threads may speak at the same time."""

    def __init__(self, end: int, worker: str) -> None:
        self.end, self.worker, self.numbers = end, worker, itertools.count(1)

    def say(self, **facts: Any) -> None:
        os.write(self.end, json.dumps({**facts, "at": time.monotonic_ns()}).encode() + b"\n")

    @contextmanager
    def call(self, what: str, thread: str, **facts: Any) -> Iterator[dict[str, Any]]:
        """Around a call; what is put into the dict is said of its end."""
        number, answer = f"{self.worker}.{next(self.numbers)}", dict[str, Any]()
        self.say(call=number, what=what, thread=thread, **facts)
        try:
            yield answer
        except StateConflict as conflict:
            unlogged = bool(getattr(conflict, "__notes__", None))
            self.say(end=number, how="refused", writer=conflict.writer, unlogged=unlogged)
            raise
        except BaseException as error:
            self.say(end=number, how="unknown", error=f"{type(error).__name__}: {str(error)[:300]}")
            raise
        self.say(end=number, how="ok", **answer)


class RecordedSaver(LedgerSaver):
    """A LedgerSaver whose reads of a thread's latest state and whose writes are put on record."""

    journal: Journal

    def get_tuple(self, config: RunnableConfig) -> Any:
        if _names_a_checkpoint(config):
            return super().get_tuple(config)
        with self.journal.call("read", **_of(config)) as answer:
            found = super().get_tuple(config)
            answer |= self._read(found)
        return found

    async def aget_tuple(self, config: RunnableConfig) -> Any:
        if _names_a_checkpoint(config):
            return await super().aget_tuple(config)
        with self.journal.call("read", **_of(config)) as answer:
            found = await super().aget_tuple(config)
            answer |= self._read(found)
        return found

    def put(self, config: RunnableConfig, checkpoint: Any, metadata: Any, *rest: Any) -> RunnableConfig:
        with self.journal.call("put", **_put(config, checkpoint, metadata)):
            return super().put(config, checkpoint, metadata, *rest)

    async def aput(self, config: RunnableConfig, checkpoint: Any, metadata: Any, *rest: Any) -> RunnableConfig:
        with self.journal.call("put", **_put(config, checkpoint, metadata)):
            return await super().aput(config, checkpoint, metadata, *rest)

    def put_writes(self, config: RunnableConfig, writes: Any, task_id: str, task_path: str = "") -> None:
        with self.journal.call("writes", **_writes(config, writes, task_id)):
            super().put_writes(config, writes, task_id, task_path)

    async def aput_writes(self, config: RunnableConfig, writes: Any, task_id: str, task_path: str = "") -> None:
        with self.journal.call("writes", **_writes(config, writes, task_id)):
            await super().aput_writes(config, writes, task_id, task_path)

    def _read(self, found: Any) -> dict[str, Any]:
        """What was read: the version is what the run of this read will state when it writes."""
        if found is None:
            run = self._ledger.runs.announced()
            return {"version": run.read_version if run is not None else None, "checkpoint": None}
        checkpoint_id = found.config["configurable"]["checkpoint_id"]
        return {"version": checkpoint_id.run.read_version, "checkpoint": str(checkpoint_id)}


def _names_a_checkpoint(config: RunnableConfig) -> bool:
    conf = config["configurable"]
    return bool(conf.get("checkpoint_id") or conf.get("checkpoint_ns"))


def _of(config: RunnableConfig) -> dict[str, Any]:
    conf = config["configurable"]
    return {"thread": conf["thread_id"], "ns": conf.get("checkpoint_ns") or "", OP: conf.get(OP)}


def _put(config: RunnableConfig, checkpoint: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_of(config),
        "checkpoint": str(checkpoint["id"]),
        "parent": _text(config["configurable"].get("checkpoint_id")),
        "values": digest(durable(checkpoint["channel_values"])),
        DRAFT: digest(checkpoint["channel_values"].get(DRAFT)),
        "log": digest(checkpoint["channel_values"].get("log", [])),
        "step": metadata.get("step"),
        "source": metadata.get("source"),
    }


def _writes(config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str) -> dict[str, Any]:
    kept = [(n, channel, value) for n, (channel, value) in enumerate(writes) if channel != DRAFT]
    rows = [[WRITES_IDX_MAP.get(channel, n), channel, digest(value)] for n, channel, value in kept]
    return {**_of(config), "checkpoint": str(config["configurable"]["checkpoint_id"]), "task": task_id, "rows": rows}


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
