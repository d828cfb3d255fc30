"""A session's life as far as writes do not tell it: who has begun to work on it, and how a run ended.

What a run writes says most of it (`encoding.py`). What is added here is for people and for workers that look for what
a crash left behind. Nothing of it decides who may write, and no run fails because it could not be stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.errors import GraphBubbleUp

from langgraph_ledger import invocations
from langgraph_ledger.errors import InvalidInput, LedgerError
from langgraph_ledger.flow import Flow
from langgraph_ledger.flushing import flush
from langgraph_ledger.ledger import Ledger, process_start
from langgraph_ledger.operations.checkpoints import Head
from langgraph_ledger.operations.sessions import begin_session, end_session
from langgraph_ledger.policies import FLUSH_KEY, chosen
from langgraph_ledger.records import as_time, describe, described, from_json, now, to_json
from langgraph_ledger.runs import Run


def as_owner(stored: Any) -> Mapping[str, Any]:
    """Who took a thread, as the root row says it; nobody if that cannot be read."""
    try:
        return from_json(stored)
    except ValueError:
        return {}


def owner_alive(owner: Mapping[str, Any], last_active: Any, timeout: float) -> bool:
    """Whether the process that took a thread is there: looked up here, elsewhere by the age of its last sign."""
    pid: Any = owner.get("pid")
    if owner.get("host") != socket.gethostname():
        return (datetime.now(UTC) - as_time(last_active)).total_seconds() < timeout
    return exists(pid) and process_start(pid) == owner.get("started")


def exists(pid: Any) -> bool:
    """Whether there is a process of this number on this host."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, TypeError):
        return False
    except OSError:
        return True
    return True


def run_begins(
    ledger: Ledger, serde: SerializerProtocol, conf: Mapping[str, Any], run: Run, head: Head | None, asynchronous: bool
) -> Flow[None]:
    """Notes that a root graph begins to run. A run that adds input says so by its first checkpoint, right away; one
    that goes on with what is there may write nothing for a long time, so that is put on record here."""
    if conf.get("__pregel_task_id") or run.began:
        return
    run.began = True
    secret = isinstance(serde, EncryptedSerializer)
    run.watched = invocations.entered((ledger, run, secret), asynchronous=asynchronous)
    if chosen(conf, ledger.flush) is not ledger.flush and not run.watched:
        raise InvalidInput(
            f"configurable[{FLUSH_KEY!r}]: with log_tools=False and flush='always' this saver is not told how runs end,"
            " and a run's end has to be committed; give the policy to the saver"
        )
    ledger.begun(run)
    yield from settle(ledger)
    if head is None or head.status in (None, "completed") or ledger.driver.read_only:
        return
    if head.status == "active" and head.owner:
        owner = as_owner(head.owner)
        if owner.get("pid") != os.getpid() and owner_alive(owner, head.updated_at, ledger.owner_timeout):
            return  # somebody is at work; what of it this run gets will be seen when it writes
    with contextlib.suppress(LedgerError):
        version = run.read_version if run.read_version is not None else -1
        if (yield begin_session(run.session_id, version, run.token, ledger.owner(), now())):
            run.touched = ("active", 0.0)


def run_ends(ledger: Ledger, run: Run, secret: bool, error: BaseException | None) -> Flow[None]:
    """Puts on record how a run ended, where its writes have not done so. `secret`: without what an error says.

    What waits is committed first. If that fails, or has failed for this run before, this raises: nobody gets the result
    of a run that has lost.
    """
    ledger.ended(run)
    if run.queued:
        yield from _flush_at_end(ledger, error)
    status, outcome = _outcome(run, error)
    if secret and "error" in outcome:
        outcome["error"] = described(outcome["error"])
    if status is not None:
        with contextlib.suppress(LedgerError):
            yield end_session(run.session_id, run.token, status, to_json(outcome), now())
            run.touched = (status, 0.0)
    if run.queued and error is None:
        run.check()


def _flush_at_end(ledger: Ledger, error: BaseException | None) -> Flow[None]:
    try:
        yield from flush(ledger.queue)
    except LedgerError as problem:
        if error is None:
            raise
        error.add_note(f"What this run had done last could not be stored yet: {problem}")


def _outcome(run: Run, error: BaseException | None) -> tuple[str | None, dict[str, Any]]:
    last = run.touched[0]
    if last is None or run.fenced is not None:
        return None, {}  # it has left no trace, or the thread is another's
    if error is None:
        return ("paused", {"ended": "breakpoint"}) if last == "active" else (None, {})
    if isinstance(error, (GraphBubbleUp, asyncio.CancelledError)) or not isinstance(error, Exception):
        return ("paused", {"ended": "cancelled"}) if last == "active" else (None, {})
    if last == "completed":
        return None, {}
    name = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    return ("failed", {"ended": "failed", "error_type": name, "error": describe(str(error))})


def shut_down(ledger: Ledger) -> Flow[None]:
    """Marks what this process leaves unfinished on purpose, so that it is not taken for a crash."""
    yield from settle(ledger)
    for run in ledger.open_runs():
        if run.touched[0] == "active" and run.fenced is None:
            with contextlib.suppress(LedgerError):
                yield end_session(run.session_id, run.token, "paused", to_json({"ended": "shutdown"}), now())
        ledger.ended(run)


def settle(ledger: Ledger) -> Flow[None]:
    """Puts on record the ends of streams that were left, which are told where nothing may be stored."""
    while ledger.late:
        yield from run_ends(ledger, *ledger.late.popleft())
