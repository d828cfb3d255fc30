"""What digests and chains say of a thread's rows: which of them was changed, removed, inserted or moved since it was
written; and heads of logs, kept elsewhere, that say the same of what somebody has altered along with its digests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langgraph_ledger.chains import (
    COPIED,
    PRUNED,
    Link,
    Stamp,
    as_moment,
    breaks,
    genesis,
    normal,
    of_entry,
    of_head,
    of_write,
)
from langgraph_ledger.errors import InvalidInput
from langgraph_ledger.operations.verification import Entry, Everything, LedgerRow, entry_place
from langgraph_ledger.places import WriteRow
from langgraph_ledger.records import from_json
from langgraph_ledger.vault import KEYED_STAMP, Vault, open_stamp

CHECKPOINT = "checkpoint"
Head = Mapping[str, Any]
"""The end of a namespace's chain: `thread_id`, `checkpoint_ns`, `seq` of its entry, `chain` in hexadecimal."""


class Evidence:
    """The digests of one session's rows, and the chains over them."""

    def __init__(self, vault: Vault, session_id: str, found: Everything) -> None:
        self.vault, self.session_id, self.found = vault, session_id, found
        self._by_digest = {entry.digest: entry.seq for entry in found.entries if entry.digest}
        self._by_place = {(entry.agent_id, entry.seq): entry for entry in found.entries}
        self._logs: dict[str, list[Entry]] = {}
        for entry in found.entries:
            self._logs.setdefault(entry.agent_id, []).append(entry)
        self._checkpoints = {(e.agent_id, e.checkpoint_id): e for e in found.entries if e.kind == CHECKPOINT}
        self._latest = {e.agent_id: e for e in found.entries if e.kind == CHECKPOINT}

    # --- one row

    def entry(self, entry: Entry) -> str | None:
        """What is wrong with what an entry says."""
        stamp = self._stamp(entry.digest)
        if entry.digest is None:
            return "its digest was removed: no saver makes a chain without one" if entry.chain else None
        if stamp is None:
            return None
        if stamp is open_stamp and not self.vault.is_open and entry.body is not None:
            return "it was not written with this key: its digest is one that anybody can compute"
        try:
            made = self._of_entry(stamp, entry)
        except (TypeError, ValueError, OverflowError) as error:
            return f"it was changed: {error}"
        if made == entry.digest:
            return None
        if made in self._by_digest:
            return f"it was swapped: it says what entry {self._by_digest[made]} said"
        return "it was changed: its digest does not match"

    def _of_entry(self, stamp: Stamp, entry: Entry) -> bytes:
        _, _, agent_id, kind, checkpoint_id, parent_id, run_id, task_id, payload, created_at, *more = entry.row
        call_id, attempt_id, state_bytes = more
        names = (agent_id, kind, checkpoint_id, parent_id, entry.root_id, run_id, task_id, call_id, attempt_id)
        return of_entry(stamp, *names, normal(payload), state_bytes, entry.body, as_moment(created_at))

    def write(self, agent_id: str, checkpoint_id: str, row: WriteRow) -> str | None:
        """What is wrong with what a pending write says."""
        stamp = self._stamp(row.digest)
        if stamp is None:
            return None
        if stamp is open_stamp and not self.vault.is_open:
            return "it was not written with this key: its digest is one that anybody can compute"
        facts = (row.task_id, row.idx, row.task_path, row.channel, row.place, row.together or 0)
        made = of_write(stamp, agent_id, checkpoint_id, *facts)
        return None if made == row.digest else "it was changed: its digest does not match"

    def _stamp(self, digest: bytes | None) -> Stamp | None:
        """How such a digest is made; None if there is none, or it takes a key that is not here."""
        if digest is None:
            return None
        if digest[:1] != KEYED_STAMP:
            return open_stamp
        return None if self.vault.is_open else self.vault.stamp

    # --- what belongs together

    def findings(self) -> Iterator[tuple[str, str]]:
        """Where something is wrong with what stands beside it, and what."""
        for agent_id, entries in self._logs.items():
            links = [Link(entry.seq, entry.kind, entry.digest, entry.chain) for entry in entries]
            for broken in breaks(genesis(self.session_id, agent_id), links):
                yield entry_place(broken.seq, agent_id), broken.what
        heads = {row.agent_id for row in self.found.heads}
        for row in self.found.heads:
            if wrong := self._head(row):
                yield f"namespace {row.agent_id!r}", wrong
        for agent_id in sorted({place[0] for place in self._checkpoints} - heads - {""}):
            yield f"namespace {agent_id!r}", "its row in agent_state_ledger is missing"
        if "" not in heads and (self.found.session is not None or self._checkpoints or self.found.writes):
            yield "namespace ''", "its row in agent_state_ledger is missing"
        yield from self._tasks()

    def _head(self, row: LedgerRow) -> str | None:
        latest = self._latest.get(row.agent_id)
        if latest is None:
            return None  # and if it names a checkpoint, that it is missing is said elsewhere
        if row.deleted_at is not None:
            return "it says that the thread is deleted, and there are checkpoints"
        if row.checkpoint_id != latest.checkpoint_id:
            there = (row.agent_id, row.checkpoint_id) in self._checkpoints
            says = f"it says that the latest checkpoint is {row.checkpoint_id}"
            return f"{says}, and that is {latest.checkpoint_id}" if there or row.checkpoint_id is None else None
        if row.version < (put := self._put(self._logs[row.agent_id])):
            return f"its version is {row.version}, and {put} checkpoints have raised it"
        return self._state(row, latest)

    @staticmethod
    def _put(entries: Sequence[Entry]) -> int:
        """How many checkpoints were certainly put in a namespace, and not copied there."""
        copied = max((i for i, entry in enumerate(entries) if entry.kind == COPIED), default=-1)
        return sum(entry.kind == CHECKPOINT and entry.digest is not None for entry in entries[copied + 1 :])

    def _state(self, row: LedgerRow, latest: Entry) -> str | None:
        stamp = self._stamp(latest.digest)
        if latest.digest is None or stamp is None or (row.state is None and row.digest is None):
            return None
        try:
            made = of_head(stamp, latest.digest, normal(row.state or ""))
        except ValueError as error:
            return f"its state was changed: {error}"
        return None if made == row.digest else "its state was changed: the digest does not match"

    def _tasks(self) -> Iterator[tuple[str, str]]:
        """Tasks that have given more writes at once than there are."""
        count: Counter[tuple[str, str, str]] = Counter()
        given: dict[tuple[str, str, str], int] = {}
        for agent_id, checkpoint_id, row in self.found.writes:
            task = (agent_id, checkpoint_id, row.task_id)
            count[task] += 1
            given[task] = max(given.get(task, 0), row.together or 0)
        for task, number in given.items():
            if count[task] < number:
                where = f"namespace {task[0]!r}, checkpoint {task[1]}, task {task[2]}"
                yield where, f"of the {number} writes that it gave at once, {number - count[task]} were removed"

    # --- what is on record

    @property
    def pruned(self) -> bool:
        """Whether a prune has removed something of its history."""
        return any(entry.kind == PRUNED for entry in self.found.entries)

    @property
    def unchained(self) -> int:
        """How many entries and pending writes have no digest."""
        writes = sum(row.digest is None for _, _, row in self.found.writes)
        return writes + sum(entry.digest is None for entry in self.found.entries)

    def against(self, head: Head) -> tuple[str, str, bool] | None:
        """Where a head that was kept elsewhere is not in the log, why, and whether that is harmless."""
        agent_id, seq = head["checkpoint_ns"], head["seq"]
        where = entry_place(seq, agent_id)
        entry = self._by_place.get((agent_id, seq))
        if not head["chain"]:
            return where, "its chain could not be read when the head was exported: somebody had altered it", False
        if entry is not None and entry.chain is not None and entry.chain.hex() == head["chain"]:
            return None
        if mark := self._mark(agent_id, seq):
            return where, f"its history was pruned since: {mark}", True
        if self._deleted_through >= seq:
            return where, "the thread was deleted since", True
        if entry is None:
            return where, "it was removed: the head names it, and no prune and no deletion is on record", False
        return where, "its chain is another than the head's: what stands before it was written anew", False

    @property
    def _deleted_through(self) -> int:
        """Up to which number the thread's entries were deleted: 0 if there still are such."""
        through = next((row.deleted_through for row in self.found.heads if row.agent_id == ""), None) or 0
        return through if all(entry.seq > through for entry in self.found.entries) else 0

    def _mark(self, agent_id: str, seq: int) -> str | None:
        for entry in reversed(self.found.entries):
            if entry.kind != PRUNED or entry.agent_id not in ("", agent_id):
                continue
            try:
                facts, when = from_json(entry.row[8]), as_moment(entry.row[9])
            except (TypeError, ValueError, OverflowError):
                continue
            if isinstance(facts.get("through"), int) and facts["through"] >= seq:
                return f"{facts.get('removed')} entries, at {when}"
        return None


def checked_heads(heads: Sequence[Head]) -> dict[str, list[Head]]:
    """Heads by thread. Raises `InvalidInput` if something else was given."""
    found: dict[str, list[Head]] = {}
    if isinstance(heads, (str, bytes, Mapping)):
        raise InvalidInput("against= takes what log_heads() gave: a list of heads")
    for head in heads:
        if not isinstance(head, Mapping) or not (
            all(isinstance(head.get(name), str) for name in ("thread_id", "checkpoint_ns", "chain"))
            and type(head.get("seq")) is int
        ):
            raise InvalidInput(f"{head!r:.80} is no head as log_heads() gives them")
        found.setdefault(head["thread_id"], []).append(head)
    return found
