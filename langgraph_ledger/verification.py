"""Whether what is stored is what was stored: every digest, every reference in both directions, every row read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_ledger import ids
from langgraph_ledger.branches import REJECTED
from langgraph_ledger.calls import call_label
from langgraph_ledger.errors import DatabaseError, DatabaseUnavailable, InvalidInput, KeyMissing, ValueNotRestorable
from langgraph_ledger.evidence import Evidence, Head, checked_heads
from langgraph_ledger.flow import Flow
from langgraph_ledger.ledger import Ledger
from langgraph_ledger.operations.retention import PAGE
from langgraph_ledger.operations.secrets import read_secrets
from langgraph_ledger.operations.sessions import as_entry, as_session
from langgraph_ledger.operations.verification import (
    Entry,
    Everything,
    check_database,
    entry_place,
    find_threads,
    read_everything,
    read_log_heads,
    write_place,
)
from langgraph_ledger.places import WriteRow, body_label, unpack_body, unpack_sealed, unpack_write
from langgraph_ledger.shelf import Shelf
from langgraph_ledger.statements import Rows
from langgraph_ledger.vault import Vault


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it was stored. `where` says in which row, `what` is wrong with it.

    What is wrong with the database itself belongs to no thread: `thread_id` is empty.
    `unread` is what could not be checked: it is encrypted, and there is no key. `harmless` are chunks that nothing
    refers to: they take room, and the next prune of the thread removes them. So are heads that a prune or a deletion
    has overtaken.
    """

    thread_id: str
    where: str
    what: str
    harmless: bool = False
    unread: bool = False


class Findings(list[Finding]):
    """What was found, and in how many threads it was looked for: `threads`, of which one that is not there is none.

    `pruned` are those of which a prune has removed something, `unchained` all entries of logs and pending writes that
    have no digest.
    """

    def __init__(self, found: Iterable[Finding] = (), threads: int = 0, pruned: int = 0, unchained: int = 0) -> None:
        super().__init__(found)
        self.threads, self.pruned, self.unchained = threads, pruned, unchained

    def add(self, other: Findings) -> None:
        self.extend(other)
        self.threads += other.threads
        self.pruned += other.pruned
        self.unchained += other.unchained


def verify(
    ledger: Ledger, serde: SerializerProtocol, thread_id: str | None, against: Sequence[Head] | None = None
) -> Flow[Findings]:
    """What is wrong with a thread's rows, or with all threads and the database: nothing, one hopes. Changes nothing."""
    heads = checked_heads(against or ())
    if thread_id is None:
        return (yield from _verify_all(ledger, serde, heads))
    session_id = ids.clean(thread_id, "thread_id")
    return (yield from _verify_one(ledger, serde, session_id, heads.get(session_id, ())))


def _verify_one(ledger: Ledger, serde: SerializerProtocol, session_id: str, heads: Sequence[Head]) -> Flow[Findings]:
    vault = yield from ledger.vault(serde)
    found: Everything = yield read_everything(session_id)
    checks = _Checks(vault, session_id, found)
    evidence = checks.evidence
    findings = Findings(checks.findings(), int(checks.is_thread), int(evidence.pruned), evidence.unchained)
    if any(finding.unread for finding in findings) and not (yield read_secrets()):
        # nothing was ever written with a key: there is none that could be given
        findings[:] = [replace(finding, unread=False) for finding in findings]
    differing = [one for head in heads if (one := evidence.against(head)) is not None]
    findings.extend(Finding(session_id, where, what, harmless) for where, what, harmless in differing)
    return findings


def log_heads(ledger: Ledger, thread_id: str | None) -> Flow[list[dict[str, Any]]]:
    """The ends of the chains of a thread, or of all threads."""
    yield from ledger.ready()
    if thread_id is not None:
        return _as_heads((yield read_log_heads(ids.clean(thread_id, "thread_id"))))
    heads: list[dict[str, Any]] = []
    after = ""
    while True:
        page = yield find_threads(after)
        for session_id in page:
            if isinstance(session_id, str):
                heads += _as_heads((yield read_log_heads(session_id)))
        if len(page) < PAGE:
            return heads
        after = page[-1]


def _as_heads(rows: Rows) -> list[dict[str, Any]]:
    """A chain that somebody has altered is no reason to stop: it is told as one that no log has."""
    chains = [(*place, chain.hex() if isinstance(chain, bytes) else "") for *place, chain in rows]
    return [{"thread_id": s, "checkpoint_ns": str(a), "seq": seq, "chain": chain} for s, a, seq, chain in chains]


def _verify_all(ledger: Ledger, serde: SerializerProtocol, heads: Mapping[str, Sequence[Head]]) -> Flow[Findings]:
    yield from ledger.ready()
    findings = Findings(Finding("", "the database", said) for said in (yield check_database()))
    missing = set(heads)
    after = ""
    while True:
        page = yield find_threads(after)
        for session_id in page:
            missing.discard(session_id)
            findings.add((yield from _verify_any(ledger, serde, session_id, heads)))
        if len(page) < PAGE:
            break
        after = page[-1]
    for session_id in sorted(missing):
        what = "nothing is left of it: it was removed, or deleted longer ago than a deletion is on record"
        findings.append(Finding(session_id, "all of it", what))
    return findings


def _verify_any(
    ledger: Ledger, serde: SerializerProtocol, session_id: Any, heads: Mapping[str, Sequence[Head]]
) -> Flow[Findings]:
    """What is wrong with one of many threads; if it cannot be read at all, that, for the others may be whole."""
    try:
        if not isinstance(session_id, str):
            raise InvalidInput("its session_id is no text: no saver has written it")
        return (yield from _verify_one(ledger, serde, session_id, heads.get(session_id, ())))
    except DatabaseUnavailable:
        raise
    except (DatabaseError, InvalidInput) as error:
        return Findings([Finding(str(session_id), "all of it", str(error))], threads=1)


class _Checks:
    def __init__(self, vault: Vault, session_id: str, found: Everything) -> None:
        self.vault, self.session_id, self.found = vault, session_id, found
        self.shelf = Shelf(vault, session_id, found.memory)
        self.evidence = Evidence(vault, session_id, found)
        self.referred: set[bytes] = set()
        kinds = {entry.kind for entry in found.entries}
        current = any(row.checkpoint_id is not None for row in found.heads)
        rows = bool(current or kinds - {REJECTED} or found.writes or found.memory)
        self.is_thread = rows or found.session is not None  # a tombstone, or a refusal that it has outlived, is none

    def findings(self) -> Iterator[Finding]:
        for where, what in self.found.mistyped:
            yield Finding(self.session_id, where, what)
        for where, check in self._rows():
            unread = False
            try:
                wrong = check()
            except ValueNotRestorable as error:
                wrong = str(error).removeprefix(f"thread {self.session_id!r}, ").removeprefix(f"{where}: ")
                unread = isinstance(error, KeyMissing)
            except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
                wrong = f"it was changed: {error}"  # to something that nobody has thought of
            if wrong:
                yield Finding(self.session_id, where, wrong, unread=unread)
        for where, wrong in self.evidence.findings():
            yield Finding(self.session_id, where, wrong)
        reachable = self.shelf.reachable(b"".join(self.referred))
        for memory_id in self.found.memory:
            if memory_id not in reachable:
                yield Finding(self.session_id, f"memory {memory_id.hex()}", "nothing refers to it", harmless=True)

    def _rows(self) -> Iterator[tuple[str, Callable[[], str | None]]]:
        if self.is_thread:
            yield "its row in sessions", self._session
        there = {(entry.agent_id, entry.checkpoint_id) for entry in self.found.entries if entry.kind == "checkpoint"}
        for head in self.found.heads:
            if head.checkpoint_id is not None and (head.agent_id, head.checkpoint_id) not in there:
                what = f"its latest checkpoint, {head.checkpoint_id}, is missing"
                yield f"namespace {head.agent_id!r}", partial(str, what)
        for entry in self.found.entries:
            body, memory_ids = entry.body, entry.memory_ids
            seq, _, agent_id, kind, checkpoint_id, *_, call_id, attempt_id, _ = entry.row
            yield entry_place(seq, agent_id), partial(self._entry, entry)
            if kind == "checkpoint":
                where = f"namespace {agent_id!r}, checkpoint {checkpoint_id}"
                yield where, partial(self._checkpoint, where, agent_id, checkpoint_id, body or b"", memory_ids)
            elif body is not None:
                where = f"call {call_id!r}, {kind}"
                yield where, partial(self._call, where, call_label(call_id, attempt_id, kind), body, memory_ids)
        for agent_id, checkpoint_id, row in self.found.writes:
            where = write_place(agent_id, checkpoint_id, row)
            if (agent_id, checkpoint_id) not in there:
                yield where, partial(str, "its checkpoint is missing")
            yield where, partial(self._write, where, (agent_id, checkpoint_id), row)
        for memory_id in self.found.memory:
            yield f"memory {memory_id.hex()}", partial(self._chunk, memory_id)

    def _session(self) -> str | None:
        if self.found.session is None:
            return "it is missing: sessions(), prune(None) and sweep() pass the thread over until it is written to"
        as_session(self.found.session)
        return None

    def _entry(self, entry: Entry) -> str | None:
        as_entry(entry.row)
        return self.evidence.entry(entry)

    def _checkpoint(
        self, where: str, agent_id: str, checkpoint_id: str, data: bytes, memory_ids: bytes | None
    ) -> str | None:
        self.referred.add(memory_ids or b"")  # so that chunks have an owner if the body cannot be read
        body = unpack_body(self.vault, data, body_label(agent_id, checkpoint_id), lambda: where)
        return self._refers(body.memory_ids, memory_ids)

    def _write(self, where: str, place: tuple[str, str], row: WriteRow) -> str | None:
        self.referred.add(row.memory_ids or b"")
        found = unpack_write(self.vault, row, place, lambda: where)
        return self._refers(found.ids or None, row.memory_ids) or self.evidence.write(*place, row)

    def _call(self, where: str, label: str, data: bytes, memory_ids: bytes | None) -> str | None:
        self.referred.add(memory_ids or b"")
        found = unpack_sealed(self.vault, data, label, "call", lambda: where)
        return self._refers(found.ids or None, memory_ids)

    def _refers(self, sealed: bytes | None, column: bytes | None) -> str | None:
        """References are in a row twice: sealed, and where SQL finds them."""
        self.referred.add(sealed or b"")
        missing = [i.hex() for i in self.shelf.reachable(sealed or b"") if i not in self.found.memory]
        if missing:
            return f"memory {missing[0]} is missing"
        return None if (sealed or b"") == (column or b"") else "memory_ids is not what the row refers to"

    def _chunk(self, memory_id: bytes) -> str | None:
        where = f"memory {memory_id.hex()}"
        if memory_id[0] & 0x80:  # bytes, not an index: see vault.py
            self.shelf.plain(memory_id, lambda: where)
        else:
            self.shelf.index(memory_id, lambda: where)
        children = self.found.memory[memory_id][2] or b""
        size = len(self.shelf.plain(memory_id, lambda: where)) + len(children)
        return None if size == self.found.sizes[memory_id] else "plain_bytes is not its size"
