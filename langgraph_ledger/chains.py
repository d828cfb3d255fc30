"""What makes the tables evidence: a digest of each row, and a chain over the digests of a log, in their order.

Nothing here reads or writes a database. How the chain is continued is said once more in SQL (`{chained}`), since only
the transaction that appends an entry knows what came before it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

import ormsgpack

from langgraph_ledger.records import as_time, to_json

Stamp = Callable[[bytes], bytes]
"""The digest of a row's bytes; see `vault.py`."""

PRUNED, COPIED = "history_pruned", "history_copied"
MARKS = (PRUNED, COPIED)
"""Entries at which a chain begins anew, over everything that stands before them."""
REJECTED = "write_rejected"

NO_DIGEST = bytes(33)
"""Stands in a chain for an entry without a digest: that it is there, and where, and nothing of what it says."""


@lru_cache(maxsize=4096)
def genesis(session_id: str, agent_id: str) -> bytes:
    """What a namespace's chain begins with, so that it is no other's."""
    return hashlib.sha256(ormsgpack.packb(["log", session_id, agent_id])).digest()


def continued(before: bytes, digests: Sequence[bytes | None], own: bytes) -> bytes:
    """A chain with these digests behind it, then the entry's own."""
    return hashlib.sha256(b"".join([before, *(digest or NO_DIGEST for digest in digests), own])).digest()


def continued_in_sqlite(before: bytes, digests: str | None, own: bytes) -> bytes:
    """What SQLite calls: the same, of digests in hexadecimal, if there are any."""
    if not isinstance(before, bytes):  # SQLite takes anything; a chain that somebody has altered is no reason to stop
        before = repr(before).encode()
    return hashlib.sha256(before + (bytes.fromhex(digests) + own if digests else own)).digest()


def of_entry(
    stamp: Stamp,
    agent_id: str,
    kind: str,
    checkpoint_id: str | None,
    parent_id: str | None,
    root_id: str | None,
    run_id: str | None,
    task_id: str | None,
    call_id: str | None,
    attempt_id: str | None,
    payload: str,
    state_bytes: int | None,
    body: bytes | None,
    created_at: str,
) -> bytes:
    """The digest of an entry of the log. Not of its thread and its number, which the chain is for, so that a copy keeps
    it; and not of `memory_ids`, which the body holds too."""
    names = (checkpoint_id, parent_id, root_id, run_id, task_id, call_id, attempt_id)
    return stamp(ormsgpack.packb(("entry", agent_id, kind, *names, exact(payload), state_bytes, body, created_at)))


def of_head(stamp: Stamp, entry: bytes, state: str) -> bytes:
    """The digest of a head: of the entry that its checkpoint is, and of the state that it shows."""
    return stamp(b"head" + entry + exact(state).encode())


def of_write(
    stamp: Stamp,
    agent_id: str,
    checkpoint_id: str,
    task_id: str,
    idx: int,
    task_path: str,
    channel: str,
    place: bytes,
    together: int,
) -> bytes:
    """The digest of a pending write."""
    return stamp(ormsgpack.packb(("write", agent_id, checkpoint_id, task_id, idx, task_path, channel, place, together)))


# --- JSON, which Postgres keeps as values and not as text


def exact(text: str) -> str:
    """What `to_json` made, in the form that is compared: as it is, but for floats that JSONB writes otherwise."""
    return normal(text) if "e+" in text or "-0.0" in text else text


def normal(text: str) -> str:
    """JSON as a database returned it, in the one form that is compared. Raises ValueError if it is none."""
    try:
        return to_json(json.loads(text, parse_float=_number))
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _number(text: str) -> int | float:
    if "e+" in text:
        return int(Decimal(text))
    found = float(text)
    return found if found else 0.0


# --- checking


@dataclass(slots=True, eq=False, repr=False)
class Link:
    """An entry of a namespace's log as a chain sees it."""

    seq: int
    kind: str
    digest: bytes | None
    chain: bytes | None

    @property
    def counts(self) -> bool:
        """Whether chains hold it: all do, but for refusals on a thread that had no row to lock."""
        return self.kind != REJECTED or self.chain is not None


@dataclass(frozen=True, slots=True)
class Break:
    """A place where a chain does not hold. `seq` is the entry that says so."""

    seq: int
    what: str


EXPLAINED = 20
"""Of so many breaks of a chain it is tried out what has happened; if all is altered, that would take for ever."""
MANY = 200
"""Up to so many entries between two seals it is tried out which of them does not belong there."""


def breaks(first: bytes, links: Sequence[Link]) -> list[Break]:
    """Where the chain of a namespace's entries, in their order, is not what it was. `first` is its genesis."""
    members = [link for link in links if link.counts]
    begin = max((i for i, link in enumerate(members) if link.kind in MARKS and link.chain), default=None)
    found, segment, before, last = list[Break](), list[Link](), first, None
    for place, link in enumerate(members):
        if link.chain is None or (begin is not None and place < begin):
            segment.append(link)
            continue
        if not _holds(before, segment, link):
            tried = len(found) < EXPLAINED
            what = _explained(first, members, before, segment, link, last) if tried else "the chain does not hold"
            found.append(Break(link.seq, what))
        segment, before, last = [], link.chain, link.seq
    return found


def _holds(before: bytes, segment: Sequence[Link], link: Link) -> bool:
    return continued(before, [one.digest for one in segment], link.digest or NO_DIGEST) == link.chain


def _explained(
    first: bytes, members: Sequence[Link], before: bytes, segment: Sequence[Link], link: Link, last: int | None
) -> str:
    """What has happened, where one entry too many, or two that have changed places, would explain it."""
    if len(segment) <= MANY:
        for i, one in enumerate(segment):
            if _holds(before, [*segment[:i], *segment[i + 1 :]], link):
                return f"entry {one.seq} before it was inserted"
        for i in range(len(segment)):
            for j in range(i + 1, len(segment)):
                swapped = list(segment)
                swapped[i], swapped[j] = segment[j], segment[i]
                if _holds(before, swapped, link):
                    return f"the entries {segment[i].seq} and {segment[j].seq} before it were reordered"
    for other in members:
        if other is not link and other.chain is not None and _holds(other.chain, (), link):
            if other.seq < link.seq:
                return f"it was made right after entry {other.seq}: what stands between them was inserted"
            return f"it was reordered: it was made right after what is entry {other.seq} now"
    if before != first and _holds(first, (), link):
        return "it was reordered, or what stands before it was inserted: it was made as the first one"
    between = f"between entry {last} and it" if last is not None else "before it"
    return f"the chain does not hold: an entry {between} was removed, or more than one was moved or inserted"


def as_moment(value: Any) -> str:
    """A time as a database returned it, as it was sent."""
    return as_time(value).isoformat(timespec="microseconds")
