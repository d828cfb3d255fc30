"""A LangGraph checkpoint saver on a version-checked relational ledger, for SQLite and Postgres."""

from langgraph_ledger.conflicts import (
    SessionBusy,
    StateConflict,
    amodify,
    aretry_on_conflict,
    expect,
    modify,
    retry_on_conflict,
)
from langgraph_ledger.errors import LedgerError
from langgraph_ledger.records import LogEntry, Session
from langgraph_ledger.saver import LedgerSaver

__all__ = [
    "LedgerError",
    "LedgerSaver",
    "LogEntry",
    "Session",
    "SessionBusy",
    "StateConflict",
    "amodify",
    "aretry_on_conflict",
    "expect",
    "modify",
    "retry_on_conflict",
]
