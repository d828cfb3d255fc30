"""The way of deletions, prunes and copies: check the arguments, then one operation a thread."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

from langgraph_ledger import ids
from langgraph_ledger.errors import InvalidInput
from langgraph_ledger.flow import Flow
from langgraph_ledger.ledger import Ledger
from langgraph_ledger.memory import unpack_body
from langgraph_ledger.operations.retention import (
    Summary,
    copy_session,
    delete_runs,
    delete_session,
    find_runs,
    prune_session,
)
from langgraph_ledger.records import now

STRATEGIES = ("keep_latest", "delete")


def delete_thread(ledger: Ledger, thread_id: str) -> Flow[None]:
    """Deletes a thread, leaving a tombstone."""
    session_id = ids.clean(thread_id, "thread_id")
    yield from ledger.ready()
    yield delete_session(session_id, uuid4().hex, now())


def delete_for_runs(ledger: Ledger, run_ids: Sequence[str]) -> Flow[None]:
    """Deletes the checkpoints of these runs, thread by thread."""
    wanted = [str(ids.clean(run_id, "run_id")) for run_id in _sequence(run_ids, "run_ids")]
    yield from ledger.ready()
    if wanted:
        for session_id in (yield find_runs(wanted)):
            yield delete_runs(session_id, frozenset(wanted), uuid4().hex, now())


def copy_thread(ledger: Ledger, source_thread_id: str, target_thread_id: str) -> Flow[None]:
    """Copies a thread to an empty one."""
    source, target = ids.clean(source_thread_id, "thread_id"), ids.clean(target_thread_id, "thread_id")
    if source == target:
        raise InvalidInput(f"cannot copy thread {source!r} to itself")
    yield from ledger.ready()
    yield copy_session(source, target, uuid4().hex, now())


def prune(ledger: Ledger, thread_ids: Sequence[str], strategy: str) -> Flow[None]:
    """Prunes threads one by one, each in a transaction of its own."""
    if strategy not in STRATEGIES:
        raise InvalidInput(f"strategy={strategy!r}: expected one of {', '.join(STRATEGIES)}")
    sessions = [ids.clean(thread_id, "thread_id") for thread_id in _sequence(thread_ids, "thread_ids")]
    yield from ledger.ready()
    for session_id in sessions:
        if strategy == "delete":
            yield delete_session(session_id, uuid4().hex, now())
        else:
            yield prune_session(session_id, _summarise)


def _sequence(given: Sequence[str], what: str) -> Sequence[str]:
    if isinstance(given, (str, bytes)):
        raise InvalidInput(f"{what} must be a sequence of ids, not one string: {given!r:.80}")
    return list(given)


def _summarise(data: bytes) -> Summary:
    body = unpack_body(data, lambda: "reading a checkpoint")
    return Summary(frozenset(body.deltas), frozenset(body.places))
