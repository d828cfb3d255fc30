"""A LangGraph checkpoint saver on a version-checked relational ledger, for SQLite and Postgres."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from langgraph_ledger.audit import Audit, AuditRow, audit
from langgraph_ledger.call_records import CallRecord
from langgraph_ledger.conflicts import (
    SessionBusy,
    StateConflict,
    amodify,
    aretry_on_conflict,
    expect,
    modify,
    retry_on_conflict,
)
from langgraph_ledger.errors import LedgerError, UnknownCall
from langgraph_ledger.guard import ReplayGuard
from langgraph_ledger.once import aonce, hold, once
from langgraph_ledger.policies import Batched, Transition
from langgraph_ledger.records import LogEntry, Session
from langgraph_ledger.recovery import HeldResource, PendingInterrupt, Recovery
from langgraph_ledger.repair import arepair, repair
from langgraph_ledger.saver import LedgerSaver

if TYPE_CHECKING:
    from langgraph_ledger.comparing import Diff
    from langgraph_ledger.transfers import Transferred, transfer

__all__ = [
    "Audit",
    "AuditRow",
    "Batched",
    "CallRecord",
    "Diff",
    "HeldResource",
    "LedgerError",
    "LedgerSaver",
    "LogEntry",
    "PendingInterrupt",
    "Recovery",
    "ReplayGuard",
    "Session",
    "SessionBusy",
    "StateConflict",
    "Transferred",
    "Transition",
    "UnknownCall",
    "amodify",
    "aonce",
    "arepair",
    "aretry_on_conflict",
    "audit",
    "expect",
    "hold",
    "modify",
    "once",
    "repair",
    "retry_on_conflict",
    "transfer",
]

_WHEN_USED = {"Diff": "comparing", "Transferred": "transfers", "transfer": "transfers"}


def __getattr__(name: str) -> Any:
    """What few programs need is imported when it is asked for."""
    if name not in _WHEN_USED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHEN_USED[name]}"), name)
