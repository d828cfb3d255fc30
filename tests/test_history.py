"""The history check, in its short form: workers are killed, stopped and cut off, and what they were told is true.

`python -m benchmarks.history` is the long form.
"""

import copy
import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.history.judge import calls_of, counts_of, violations
from benchmarks.history.play import Played, Round
from benchmarks.history.remains import Remains, Stored, remains_of
from langgraph_ledger import LedgerSaver
from tests.conflicts.databases import shared_database
from tests.four_ways import Backend
from tests.strict_python import PYTHON

Play = Callable[..., Played]


@pytest.fixture(scope="module")
def play() -> Iterator[Play]:
    """Plays a round, in a process of its own."""
    with subprocess.Popen(
        [*PYTHON, "-m", "tests.history_rounds"],
        cwd=Path(__file__).parent.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def one(url: str, **plan: Any) -> Played:
            with LedgerSaver(url) as saver:
                saver.setup()
            process.stdin.write(json.dumps({"url": url, **plan}) + "\n")
            played = Played(**json.loads(process.stdout.readline()))
            assert played.failures == []
            return played

        yield one


@dataclass
class History:
    """What was said in a round, and what there is after it."""

    events: list[dict[str, Any]]
    remains: dict[str, Remains]
    counts: dict[str, int]

    def wrong(self) -> list[str]:
        return violations(self.events, self.remains)

    @property
    def kept(self) -> list[Remains]:
        """The threads that were never deleted."""
        return list(self.remains.values())[:-1]

    @property
    def first(self) -> Remains:
        return self.kept[0]

    def told(self, what: str, how: str, **facts: Any) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Begin and end of the calls on the first thread that came to this end, as far as they are on these terms."""
        ends = {event["end"]: event for event in self.events if event.get("how") == how}
        return [
            (event, ends[event["call"]])
            for event in self.events
            if event.get("call") in ends and event["what"] == what and event["thread"] == "thread 0"
            if all(event[name] == value for name, value in facts.items())
        ]


def history_of(played: Played, url: str) -> History:
    return History(played.events, remains_of(url, Round(url).names), played.counts)


database = pytest.fixture(scope="module", params=["sqlite", "postgres"])(shared_database)


@pytest.fixture(scope="module")
def history(database: Backend, play: Play) -> History:
    return history_of(play(database.url, operations=100), database.url)


def test_what_was_told_is_what_there_is(history: History) -> None:
    counts = counts_of(history.events)
    assert history.counts["kills"]
    assert counts["put ok"]
    assert counts["put refused"]
    assert counts["operation unknown"]
    assert history.wrong() == []


def test_a_saver_without_the_version_check_is_found_out(backend: Backend, play: Play) -> None:
    found = history_of(play(backend.url, operations=50, checked=False), backend.url).wrong()
    assert any("was read, and written over, by all of" in line for line in found)
    assert any("has the children" in line for line in found)


# --- each of the ways in which a saver may fail is seen


def lost_checkpoint(history: History) -> None:
    put, _ = history.told("put", "ok", ns="")[-1]
    del history.first.checkpoints["", put["checkpoint"]]


def changed_value(history: History) -> None:
    place, stored = next(iter(history.first.checkpoints.items()))
    history.first.checkpoints[place] = replace(stored, values="other")


def refused_checkpoint(history: History) -> None:
    put, _ = history.told("put", "refused")[0]
    stored = Stored(put["parent"], put["values"], put["step"], put["source"])
    history.first.checkpoints[put["ns"], put["checkpoint"]] = stored


def checkpoint_of_nobody(history: History) -> None:
    history.first.checkpoints["", "nobody's"] = Stored(None, "", 0, "loop")


def _of_two(history: History) -> dict[int, list[str]]:
    """What a task has written, two writes or more that were acknowledged, as it is stored."""
    calls, _ = calls_of(history.events)
    tasks = Counter(call.facts["task"] for call in calls if call.what == "writes")
    return next(
        history.first.writes[call["ns"], call["checkpoint"], call["task"]]
        for call, _ in history.told("writes", "ok")
        if len(call["rows"]) > 1 and call["rows"][1][0] == 1 and tasks[call["task"]] == 1
        if (call["ns"], call["checkpoint"], call["task"]) in history.first.writes
    )


def lost_writes(history: History) -> None:
    _of_two(history).clear()


def torn_writes(history: History) -> None:
    del _of_two(history)[1]


def changed_write(history: History) -> None:
    _of_two(history)[0][1] = "other"


def stale_read(history: History) -> None:
    _, end = history.told("read", "ok")[-1]
    end["version"] = 1


def version_that_fell(history: History) -> None:
    history.first.version = 1


def two_states_of_a_version(history: History) -> None:
    _, end = next((call, end) for call, end in history.told("read", "ok") if end["version"])
    history.events += [{**end, "end": "twin", "checkpoint": "other"}]
    history.events[-1:-1] = [{"call": "twin", "what": "read", "thread": "thread 0", "op": "twin", "at": end["at"]}]


def swallowed_refusal(history: History) -> None:
    refused = {put["op"] for put, _ in history.told("put", "refused")}
    for operation, end in history.told("operation", "refused"):
        if operation["op"] in refused:
            end["how"] = "ok"


def result_of_nobody(history: History) -> None:
    for _, end in history.told("operation", "ok", kind="turn"):
        end["log"] = "other"


def lost_tool_calls(history: History) -> None:
    for there in history.kept:
        there.log = [entry for entry in there.log if entry.call_id is None]


def lost_refusals(history: History) -> None:
    for there in history.kept:
        there.log = [entry for entry in there.log if entry.checkpoint_type != "write_rejected"]


def back_from_the_dead(history: History) -> None:
    after = max(event["at"] for event in history.events) + 1
    deletion = {"call": "last", "what": "operation", "thread": "thread 0", "kind": "delete", "op": "last", "at": after}
    history.events += [deletion, {"end": "last", "how": "ok", "at": after + 1}]


def head_elsewhere(history: History) -> None:
    history.first.heads[""] = "other"


COPY = "copy of thread 0 by somebody"


def copy_of_what_was_never_there(history: History) -> None:
    stored = {("", "nobody's"): Stored(None, "", 0, "loop")}
    history.first.copies[COPY] = Remains(checkpoints=stored, heads={"": "nobody's"}, latest="nobody's")


def changed_copy(history: History) -> None:
    (place, stored), *_ = history.first.checkpoints.items()
    changed = replace(stored, step=1000)
    history.first.copies[COPY] = Remains(checkpoints={place: changed}, heads={"": place[1]}, latest=place[1])


def copy_without_its_head(history: History) -> None:
    history.first.copies[COPY] = Remains(heads={"": "gone"})


def lost_copy(history: History) -> None:
    after = max(event["at"] for event in history.events) + 1
    copied = {"call": "last", "what": "operation", "thread": "thread 0", "kind": "copy", "op": "last", "at": after}
    history.events += [copied, {"end": "last", "how": "ok", "at": after + 1}]


def newer_draft(history: History) -> None:
    for place, stored in history.first.checkpoints.items():
        history.first.checkpoints[place] = replace(stored, draft="that of another checkpoint")


FAILURES = {
    copy_of_what_was_never_there: f"{COPY}: checkpoint ('', \"nobody's\") was put by nobody",
    changed_copy: f"{COPY}: checkpoint",
    copy_without_its_head: f"{COPY}: its head is gone",
    lost_copy: "was acknowledged, and 'copy of thread 0 by last' is not there",
    newer_draft: "shows another value of 'draft'",
    lost_checkpoint: "is lost",
    changed_value: "is Stored",
    refused_checkpoint: "was refused, and checkpoint",
    checkpoint_of_nobody: "was put by nobody",
    lost_writes: "are lost",
    torn_writes: "are there, [1] are not",
    changed_write: "was put by nobody, or was refused",
    stale_read: "saw version 1, after",
    version_that_fell: "it is 1 in the end",
    two_states_of_a_version: "'other'",
    swallowed_refusal: "was acknowledged, and put",
    result_of_nobody: "returned a state that it has not stored",
    lost_tool_calls: "lacks ['tool_call_",
    lost_refusals: "is not in the log",
    back_from_the_dead: "came before a deletion",
    head_elsewhere: "the head ('', 'other') is missing",
}


@pytest.mark.parametrize("fail", FAILURES, ids=lambda fail: fail.__name__)
def test_a_failure_is_seen(history: History, fail: Callable[[History], None]) -> None:
    failed = copy.deepcopy(history)
    fail(failed)
    assert any(FAILURES[fail] in line for line in failed.wrong())


def test_what_is_committed_later(backend: Backend, play: Play) -> None:
    """Whoever has a result has all of it on disk, though its saves may have waited; and what is lost is still seen."""
    found = history_of(play(backend.url, operations=60, flush="batched"), backend.url)
    assert violations(found.events, found.remains, later=True) == []
    done = {operation["op"] for operation, _ in found.told("operation", "ok", kind="turn")}
    place = next(
        place
        for put, _ in found.told("put", "ok")
        if put["op"] in done and (place := (put["ns"], put["checkpoint"])) in found.first.checkpoints
    )
    del found.first.checkpoints[place]
    assert any("is lost" in line for line in violations(found.events, found.remains, later=True))
