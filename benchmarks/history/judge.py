"""Whether what workers were told and what is in the database agree. Knows neither databases nor processes.

What a call was told: `ok`, `refused` (StateConflict), or nothing that counts (`unknown`: it was killed, or its
connection was lost). A call that may have come before a deletion of its thread proves nothing by not being there.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.history.records import DRAFT, OP
from benchmarks.history.remains import Remains, Stored

EXPECTED = ("DatabaseUnavailable", "EmptyInputError", "ValueError", "InvalidInput")
"""What a call may end with, besides a refusal: a connection was cut, an interrupt was answered by somebody else, a tool
failed, a thread to copy was deleted."""
TAKING = ("delete", "prune")
"""Operations after which something may be missing."""


@dataclass(eq=False)
class Call:
    """A call, from when to when, and what came back."""

    number: str
    what: str
    thread: str
    began: float
    facts: Mapping[str, Any]
    ended: float = math.inf
    how: str = "unknown"
    answer: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.what} {self.number} on {self.thread}"


def calls_of(events: Iterable[Mapping[str, Any]]) -> tuple[list[Call], set[str]]:
    """The calls, in the order in which they began, and the tool calls that were let through to the tool."""
    calls: dict[str, Call] = {}
    let_through = set()
    for event in events:
        if "call" in event:
            calls[event["call"]] = Call(event["call"], event["what"], event["thread"], event["at"], event)
        elif "began" in event:
            let_through.add(event["began"])
        else:
            call = calls[event["end"]]
            call.ended, call.how, call.answer = event["at"], event["how"], event
    return sorted(calls.values(), key=lambda call: call.began), let_through


def violations(
    events: Iterable[Mapping[str, Any]], remains: Mapping[str, Remains], *, later: bool = False
) -> list[str]:
    """What does not agree; nothing, if the saver keeps its promises. `later`: they commit later (see `promised`)."""
    calls, let_through = calls_of(events)
    if later:
        promised(calls)
    found = [f"{call}: {call.answer['error']}" for call in calls if _is_unexpected(call)]
    for thread, there in remains.items():
        own = [call for call in calls if call.thread == thread]
        found += [f"{thread}: {wrong}" for wrong in _Thread(own, let_through, there).wrong()]
    return found


def promised(calls: Sequence[Call]) -> None:
    """Makes of calls what is promised where saves wait for their commit: one that has returned counts as acknowledged
    when its operation has. Of an operation that was cut off or refused it is not known."""
    operations = {call.facts[OP]: call for call in calls if call.what == "operation"}
    for call in calls:
        operation = operations.get(call.facts.get(OP))
        if call.what not in ("put", "writes") or call.how != "ok" or operation is None:
            continue
        call.how, call.ended = ("ok" if operation.how == "ok" else "unknown"), operation.ended


def counts_of(events: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """How many calls of each kind were told what."""
    return Counter(f"{call.what} {call.how}" for call in calls_of(events)[0])


def _is_unexpected(call: Call) -> bool:
    error = call.answer.get("error", "")
    return bool(error) and error.split(":")[0] not in EXPECTED


class _Thread:
    """One thread: the calls on it, and what there is of it."""

    def __init__(self, calls: Sequence[Call], let_through: set[str], there: Remains) -> None:
        self.there, self.let_through = there, let_through
        self.by_kind: dict[str, list[Call]] = defaultdict(list)
        for call in calls:
            self.by_kind[call.what].append(call)
        self.puts = {(call.facts["ns"], call.facts["checkpoint"]): call for call in self.by_kind["put"]}
        self.operations = {call.facts[OP]: call for call in self.by_kind["operation"]}
        self.taken = [call for call in self.operations.values() if call.facts["kind"] in TAKING]
        self.deletions = [call for call in self.taken if call.facts["kind"] == "delete"]

    def wrong(self) -> Iterator[str]:
        yield from self._checkpoints()
        yield from self._task_writes()
        yield from self._versions()
        yield from self._one_run_for_each_version()
        yield from self._one_child()
        yield from self._results()
        yield from self._tool_calls()
        yield from self._refusals()
        yield from self._references()
        yield from self._copies()

    def _may_be_gone(self, call: Call) -> bool:
        return any(taking.ended > call.began for taking in self.taken)

    def _must_be_gone(self, call: Call) -> bool:
        return any(deletion.how == "ok" and deletion.began > call.ended for deletion in self.deletions)

    def _checkpoints(self) -> Iterator[str]:
        """Acknowledged: there, and equal. Refused: not there. Unknown: there and equal, or not. Nothing else."""
        if len(self.puts) < len(self.by_kind["put"]):
            yield "a checkpoint id was put twice"
        for place, put in self.puts.items():
            stored = self.there.checkpoints.get(place)
            if stored is None:
                if put.how == "ok" and not self._may_be_gone(put):
                    yield f"{put} was acknowledged, and checkpoint {place} is lost"
                continue
            if put.how == "refused":
                yield f"{put} was refused, and checkpoint {place} is there"
            if self._must_be_gone(put):
                yield f"{put} came before a deletion, and checkpoint {place} is there"
            yield from self._unlike(place, stored, put)
        for place in self.there.checkpoints.keys() - self.puts.keys():
            yield f"checkpoint {place} was put by nobody"

    def _unlike(self, place: tuple[str, str], stored: Stored, put: Call) -> Iterator[str]:
        facts = put.facts
        expected = (facts["parent"], facts["values"], facts["step"], facts["source"])
        if (stored.parent, stored.values, stored.step, stored.source) != expected:
            yield f"checkpoint {place} of {put} is {stored}, not {expected}"
        if stored.draft and stored.draft != facts[DRAFT]:
            yield f"checkpoint {place} of {put} shows another value of {DRAFT!r} than it had"

    def _copies(self) -> Iterator[str]:
        """A copy is whole or not there, and each checkpoint in it is as it was put."""
        for name, copy in self.there.copies.items():
            yield from (f"{name}: {finding}" for finding in copy.findings)
            if copy.heads.get("") != copy.latest:
                yield f"{name}: its head is {copy.heads.get('')}, and its latest checkpoint {copy.latest}"
            for place, stored in copy.checkpoints.items():
                if place not in self.puts:
                    yield f"{name}: checkpoint {place} was put by nobody"
                else:
                    yield from (f"{name}: {wrong}" for wrong in self._unlike(place, stored, self.puts[place]))
        for operation in self.operations.values():
            if operation.facts["kind"] == "copy" and operation.how == "ok" and not self.deletions:
                name = f"copy of {operation.thread} by {operation.facts[OP]}"
                before = any(put.how == "ok" and put.ended < operation.began for put in self.puts.values())
                if before and name not in self.there.copies:
                    yield f"{operation} was acknowledged, and {name!r} is not there"

    def _task_writes(self) -> Iterator[str]:
        """As with checkpoints, whose writes are with them; each call's whole or not at all, the first to come kept."""
        known: dict[tuple[str, str, str], list[Call]] = defaultdict(list)
        for call in self.by_kind["writes"]:
            known[call.facts["ns"], call.facts["checkpoint"], call.facts["task"]].append(call)
        for place, calls in known.items():
            if place[:2] in self.there.checkpoints:
                yield from self._of_one_task(place, calls, self.there.writes.get(place, {}))
        for place in self.there.writes.keys() - known.keys():
            yield f"writes of task {place} were put by nobody"

    def _of_one_task(
        self, place: tuple[str, str, str], calls: Sequence[Call], there: Mapping[int, list[str]]
    ) -> Iterator[str]:
        authors: dict[int, list[Call]] = {number: [] for number in there}
        for call in calls:
            rows = {number: [channel, value] for number, channel, value in call.facts["rows"]}
            missing = rows.keys() - there.keys()
            own = {number for number, row in rows.items() if there.get(number) == row}
            if missing and call.how == "ok":
                yield f"{call} was acknowledged, and writes {sorted(missing)} of task {place} are lost"
            if missing and own:
                yield f"of {call} writes {sorted(own)} of task {place} are there, {sorted(missing)} are not"
            if call.how != "refused":
                for number in own:
                    authors[number].append(call)
        for number, of in authors.items():
            if not of:
                yield f"write {number} of task {place} was put by nobody, or was refused"
            elif all(any(self._goes_before(number, other, call) for other in calls) for call in of):
                yield f"write {number} of task {place} is that of {of[0]}, where another one counts"

    @staticmethod
    def _goes_before(number: int, other: Call, call: Call) -> bool:
        """Of ordinary writes the first is kept, of special ones (interrupts, answers) the last."""
        if other.how != "ok" or number not in {row[0] for row in other.facts["rows"]}:
            return False
        return other.ended < call.began if number >= 0 else other.began > call.ended

    def _versions(self) -> Iterator[str]:
        """A read sees at least the version that any call saw or made which had ended before; a version is one state."""
        moments = []
        for call in (*self.by_kind["read"], *(put for put in self.by_kind["put"] if put.facts["ns"] == "")):
            if call.how == "ok":
                moments += [(call.began, "began", call), (call.ended, "ended", call)]
        floor, at_least = 0, dict[str, int]()
        for _, moment, call in sorted(moments, key=lambda found: found[:2]):
            if moment == "began":
                at_least[call.number] = floor + (call.what == "put")
                continue
            seen = call.answer["version"] if call.what == "read" else at_least[call.number]
            if seen is not None and seen < at_least[call.number]:
                yield f"{call} saw version {seen}, after {at_least[call.number]}"
            floor = max(floor, seen or 0)
        stored = sum(put.how == "ok" and put.facts["ns"] == "" for put in self.by_kind["put"])
        if self.there.version < max(floor, stored):
            yield f"{stored} checkpoints were stored and version {floor} seen; it is {self.there.version} in the end"
        states: dict[int, set[str | None]] = defaultdict(set)
        for read in self.by_kind["read"]:
            if read.how == "ok" and read.answer["version"]:
                states[read.answer["version"]].add(read.answer["checkpoint"])
        yield from (f"version {version} was {seen}" for version, seen in states.items() if len(seen) > 1)

    def _one_run_for_each_version(self) -> Iterator[str]:
        """Of all that have read one version, at most one has stored anything."""
        read = {call.facts[OP]: call.answer["version"] for call in self.by_kind["read"] if call.how == "ok"}
        took: dict[int, set[str]] = defaultdict(set)
        for operation in self._stored():
            if read.get(operation) is not None:
                took[read[operation]].add(operation)
        for version, operations in took.items():
            if len(operations) > 1:
                yield f"version {version} was read, and written over, by all of {sorted(operations)}"

    def _stored(self) -> set[str]:
        """The operations of which something was stored for certain."""
        found = {put.facts[OP] for place, put in self.puts.items() if place in self.there.checkpoints}
        found |= {put.facts[OP] for put in self.puts.values() if put.how == "ok"}
        found |= {call.facts[OP] for call in self.by_kind["tool"] if call.facts["name"] in self.let_through}
        for call in self.by_kind["writes"]:
            put = self.puts.get((call.facts["ns"], call.facts["checkpoint"]))
            if call.how == "ok" and put is not None and put.how == "ok" and put.ended < call.began:
                found.add(call.facts[OP])  # others may have been held for a put that never was
        return found

    def _one_child(self) -> Iterator[str]:
        """A checkpoint of the root has one child, those of forks apart."""
        children: dict[str | None, list[str]] = defaultdict(list)
        for (namespace, checkpoint_id), put in self.puts.items():
            is_there = (namespace, checkpoint_id) in self.there.checkpoints
            operation = self.operations.get(put.facts[OP])
            forked = operation is not None and operation.facts["kind"] == "fork"
            if namespace == "" and not forked and (is_there or (put.how == "ok" and put.facts["parent"])):
                children[put.facts["parent"]].append(checkpoint_id)
        for parent, found in children.items():
            if len(found) > 1:
                yield f"checkpoint {parent} has the children {found}"

    def _results(self) -> Iterator[str]:
        """Whoever has a result has all that led to it: no write of that operation failed, and its state is stored."""
        by_operation: dict[str, list[Call]] = defaultdict(list)
        for call in (*self.by_kind["put"], *self.by_kind["writes"]):
            by_operation[call.facts[OP]].append(call)
        for name, operation in self.operations.items():
            own = by_operation[name]
            if operation.how != "ok":
                continue
            yield from (f"{operation} was acknowledged, and {call} {call.how}" for call in own if call.how != "ok")
            stored = {call.facts["log"] for call in own if call.what == "put" and call.facts["ns"] == ""}
            if "log" in operation.answer and stored and operation.answer["log"] not in stored:
                yield f"{operation} returned a state that it has not stored"

    def _tool_calls(self) -> Iterator[str]:
        """What was let through has its start, what has returned its end, what was refused neither."""
        kinds: dict[str, set[str]] = defaultdict(set)
        for entry in self.there.log:
            if entry.call_id is not None:
                kinds[entry.call_id].add(entry.checkpoint_type)
        for call in self.by_kind["tool"]:
            logged = kinds.pop(call.facts["name"], set())
            expected = set()
            if call.facts["name"] in self.let_through:
                expected.add("tool_call_started")
            if call.how == "ok":
                expected.add("tool_call_failed" if call.answer.get("failed") else "tool_call_completed")
            if expected - logged and not self._may_be_gone(call):
                yield f"{call} lacks {sorted(expected - logged)} in the log"
            if logged and call.how == "refused":
                yield f"{call} was refused, and has {sorted(logged)} in the log"
            if logged and "tool_call_started" not in logged:
                yield f"{call} has an end and no start"
        yield from (f"tool call {name} was made by nobody" for name in kinds)

    def _refusals(self) -> Iterator[str]:
        """Each run that was told of its refusal is in the log; who else is there was killed before it could tell."""
        logged = {entry.payload["writer"] for entry in self.there.log if entry.checkpoint_type == "write_rejected"}
        refused = [call for calls in self.by_kind.values() for call in calls if call.how == "refused"]
        for call in refused:
            writer, unlogged = call.answer["writer"], call.answer["unlogged"]
            if self.operations[call.facts[OP]].how == "unknown":
                continue  # killed while the refusal was put on record
            if writer not in logged and not unlogged and not self._may_be_gone(call):
                yield f"{call} was refused, and {writer} is not in the log"
        others = logged - {call.answer["writer"] for call in refused}
        unknown = sum(call.how == "unknown" for call in self.operations.values())
        if len(others) > unknown:
            yield f"{len(others)} refusals are in the log that nobody was told of, and {unknown} calls were cut off"

    def _references(self) -> Iterator[str]:
        """Parents are there, heads are there with their values, and the root's is the latest."""
        there = self.there
        for (namespace, checkpoint_id), stored in there.checkpoints.items():
            cut = any(taking.facts["kind"] == "prune" for taking in self.taken)
            if stored.parent is not None and (namespace, stored.parent) not in there.checkpoints and not cut:
                yield f"the parent of checkpoint {checkpoint_id} in {namespace!r} is missing"
        for head in there.heads.items():
            if head not in there.checkpoints:
                yield f"the head {head} is missing"
        if there.heads.keys() != {namespace for namespace, _ in there.checkpoints}:
            yield "a namespace without a head, or a head without checkpoints"
        if there.heads.get("") != there.latest:
            yield f"the head is {there.heads.get('')}, and the latest checkpoint {there.latest}"
        if there.deleted and there.checkpoints:
            yield "a deleted thread has checkpoints"
        yield from there.findings
