"""The vocabulary of operations: named statements, batches of them, and the operation that yields them.

An operation is a generator. It yields batches of named statements and receives, for each batch, one list of
rows a statement; its return value is the result. It knows no database library, no connection and no event
loop, so one text serves sync and async and both databases (the idea is psycopg's `generators.py`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")

Row = tuple[Any, ...]
Rows = list[Row]
Params = Mapping[str, Any]


class Access(enum.Enum):
    """What a transaction may do, so that a driver can pick the connection and the way to begin."""

    READ = "read"
    WRITE = "write"
    MAINTENANCE = "maintenance"
    """Statements that may stand in no transaction; each is on its own."""


@dataclass(slots=True, eq=False, repr=False)
class Statement:
    """One named query with its parameters; `many` runs it once for each set of parameters, yielding no rows."""

    name: str
    params: Params = field(default_factory=dict)
    many: Sequence[Params] | None = None


@dataclass(slots=True, eq=False, repr=False)
class Batch:
    """Statements that depend on no answer among them, so that they can travel together.

    `last` promises that the operation needs nothing more of its transaction: a driver may send the commit
    along. Whatever an operation writes in a last batch must therefore be guarded in SQL.
    """

    statements: tuple[Statement, ...]
    last: bool = False


Steps = Generator[Batch, list[Rows], T]


@dataclass(slots=True, eq=False, repr=False)
class Operation(Generic[T]):
    """A transaction to run: a name for messages, what it may do, and how to begin its steps (anew, on a retry)."""

    name: str
    access: Access
    steps: Callable[[], Steps[T]]
    side: bool = False
    """Whether it is about what is safe to lose, and may go to another place."""


@dataclass(slots=True, eq=False, repr=False)
class Migration:
    """One numbered step of the schema; `statements` are names of queries."""

    number: int
    name: str
    statements: tuple[str, ...]


def batch(*statements: Statement | None, last: bool = False) -> Batch:
    """A batch of the statements that are not None."""
    return Batch(tuple(s for s in statements if s is not None and (s.many is None or s.many)), last)
