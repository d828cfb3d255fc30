"""Write operations to set against each other: what a session holds before, and who does what to it.

They are recorded from a saver at work, on template sessions: its calls read, but what they would write is kept instead.
A recorded operation is then carried out on any session, as often as one likes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

from langgraph.checkpoint.serde.types import INTERRUPT

from langgraph_ledger import LedgerSaver
from langgraph_ledger.calls import Call, record_end, record_start, spot_of
from langgraph_ledger.flow import drive
from langgraph_ledger.operations.calls import COMPLETED
from langgraph_ledger.statements import Access, Batch, Operation, Statement

SOURCE, COPY = "template-source", "template-copy"
EXISTING, NOTHING, DELETED, EMPTIED = (f"template-{name}" for name in ("existing", "nothing", "deleted", "emptied"))
TEMPLATES = {"existing": EXISTING, "nothing": NOTHING, "deleted": DELETED, "expired": DELETED, "emptied": EMPTIED}
BELOW = "sub:new"
A_LOT, MORE, SHARED = "a" * 500, "b" * 500, "c" * 500


def config(thread: str, checkpoint_id: str | None = None, namespace: str = "", **more: Any) -> Any:
    named = {} if checkpoint_id is None else {"checkpoint_id": checkpoint_id}
    return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace, **named, **more}}


def put(
    saver: LedgerSaver, where: Any, checkpoint_id: str, new: Mapping[str, str], *, run_id: str | None = None, **old: str
) -> Any:
    """Saves a checkpoint with these new values, and with those that its parent has too."""
    versions = {channel: f"version of {value[:9]}" for channel, value in {**new, **old}.items()}
    made: Any = {
        "v": 4,
        "id": checkpoint_id,
        "ts": "2030-01-01T00:00:00+00:00",
        "channel_values": {**new, **old},
        "channel_versions": versions,
        "versions_seen": {},
        "updated_channels": None,
    }
    metadata: Any = {"source": "loop", "step": 0, "parents": {}, **({"run_id": run_id} if run_id else {})}
    return saver.put(where, made, metadata, {channel: versions[channel] for channel in new})


def put_below(saver: LedgerSaver, thread: str, root: str, namespace: str, checkpoint_id: str, **new: str) -> None:
    """Saves a checkpoint of a subgraph that runs under a root checkpoint."""
    where = config(thread, None, namespace, __pregel_task_id="task", checkpoint_map={"": root})
    put(saver, where, checkpoint_id, new or {"inner": SHARED})


def a_call(saver: LedgerSaver, where: Any, name: str) -> Call:
    """A tool call of a task that runs after a root checkpoint."""
    named = where["configurable"]
    conf = {
        "thread_id": named["thread_id"],
        "checkpoint_ns": f"tools:{name}",
        "checkpoint_map": {"": named["checkpoint_id"]},
        "__pregel_task_id": name,
    }
    spot, run = spot_of(saver._ledger, conf)
    return Call(spot, name, {"tool": "act"}, conf, f"attempt at {name}", run)


def begin_below(saver: LedgerSaver, where: Any, name: str) -> None:
    """A call that is made in a subgraph which has no checkpoint yet."""
    call = a_call(saver, where, name)
    call.spot = replace(call.spot, agent_id=BELOW)
    drive(record_start(saver._ledger, saver.serde, call, arguments={"what": SHARED}), saver._ledger.driver)


def begin(saver: LedgerSaver, where: Any, name: str) -> None:
    flow = record_start(saver._ledger, saver.serde, a_call(saver, where, name), arguments={"what": SHARED})
    drive(flow, saver._ledger.driver)


def end(saver: LedgerSaver, where: Any, name: str, result: str) -> None:
    flow = record_end(saver._ledger, saver.serde, a_call(saver, where, name), COMPLETED, {"result": result})
    drive(flow, saver._ledger.driver)


def seed(saver: LedgerSaver, thread: str) -> Any:
    """Two root checkpoints, writes, one of a subgraph, and two calls, by a run that holds the thread from then on."""
    saver.get_tuple(config(thread))
    first = put(saver, config(thread), "cp1", {"text": A_LOT}, run_id="run-1")
    saver.put_writes(first, [("answer", "first" * 100)], "first")
    put_below(saver, thread, "cp1", "sub:1", "sub1", inner=SHARED)
    begin(saver, first, "over")
    end(saver, first, "over", A_LOT)
    second = put(saver, first, "cp2", {"text": MORE}, run_id="run-2")
    begin(saver, second, "open")
    return second


class Recorder:
    """Stands in for a driver: reads are carried out; of writes so many are kept, and said to have succeeded or not."""

    def __init__(self, driver: Any, writes: int, *, succeed: bool) -> None:
        self.driver, self.writes, self.succeed = driver, writes, succeed
        self.operations: list[Operation[Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.driver, name)

    def run(self, operation: Operation[Any]) -> Any:
        if operation.access is Access.READ:
            return self.driver.run(operation)
        self.operations.append(operation)
        if len(self.operations) == self.writes:
            raise Kept
        return 1 if self.succeed else None


class Kept(Exception):
    """Ends a call whose writes have been recorded."""


@contextmanager
def recording(saver: LedgerSaver, writes: int, *, succeed: bool) -> Iterator[list[Operation[Any]]]:
    ledger, driver = saver._ledger, saver._ledger.driver
    recorder = ledger.driver = Recorder(driver, writes, succeed=succeed)  # type: ignore[assignment]
    try:
        yield recorder.operations
    except Kept:
        pass
    finally:
        ledger.driver = driver


def elsewhere(operation: Operation[Any], thread: str) -> Operation[Any]:
    """The operation on another session than the template that it was recorded on."""
    names = {**dict.fromkeys(TEMPLATES.values(), thread), COPY: f"{thread}-copy"}

    def moved(params: Mapping[str, Any]) -> dict[str, Any]:
        return {k: names.get(v, v) if k in ("session_id", "target_id") else v for k, v in params.items()}

    def steps() -> Any:
        inner = operation.steps()
        answers = None
        while True:
            try:
                batch = inner.send(answers)  # type: ignore[arg-type]
            except StopIteration as stop:
                return stop.value
            statements = [
                Statement(s.name, moved(s.params), None if s.many is None else [moved(p) for p in s.many])
                for s in batch.statements
            ]
            answers = yield Batch(tuple(statements), batch.last)

    return Operation(operation.name, operation.access, steps)


class Cast:
    """Who takes part: the run that holds the threads, a saver of other runs, and one that has never read."""

    def __init__(self, url: str) -> None:
        self.holder, self.other, self.stranger = (LedgerSaver(url) for _ in range(3))
        self.held = seed(self.holder, EXISTING)
        seed(self.other, SOURCE)
        seed(self.other, DELETED)
        self.other.delete_thread(DELETED)
        put(self.other, config(EMPTIED), "gone", {"text": A_LOT}, run_id="run-of-the-emptied")
        self.other.delete_for_runs(["run-of-the-emptied"])
        self.shared = self.read(EXISTING)  # what the parts of one run have read that has not written yet
        self.stranger.setup()

    def read(self, thread: str, checkpoint_id: str | None = None) -> Any:
        """Begins a run; returns what it writes with."""
        found = self.other.get_tuple(config(thread, checkpoint_id))
        return found.config if found else config(thread)

    def close(self) -> None:
        for saver in (self.holder, self.other, self.stranger):
            saver.close()


Kind = Callable[[Cast, str], Sequence[Operation[Any]]]


def _kind(
    who: str,
    act: Callable[[LedgerSaver, Cast, str], Any],
    writes: int = 1,
    *,
    refused: bool = False,
    without_first: bool = False,
) -> Kind:
    @cache
    def record(cast: Cast, side: str) -> Sequence[Operation[Any]]:
        saver = getattr(cast, who)
        with recording(saver, writes, succeed=not refused) as operations:
            act(saver, cast, side)
        assert len(operations) == writes
        return operations[without_first:]

    return record


def _root(cast: Cast) -> str:
    return cast.held["configurable"]["checkpoint_id"]  # type: ignore[no-any-return]


def _below(where: Any) -> Any:
    return where["configurable"]["checkpoint_id"]


def _text(side: str) -> str:
    return side * 100


RIVALS: dict[str, Kind] = {  # each a run of its own that has read version 2
    "put": _kind("other", lambda s, c, x: put(s, c.read(EXISTING), f"put-{x}", {"text": _text(x)})),
    "put_writes": _kind("other", lambda s, c, x: s.put_writes(c.read(EXISTING), [("answer", _text(x))], x)),
    "nested put": _kind("other", lambda s, c, x: put_below(s, EXISTING, _below(c.read(EXISTING)), "sub:1", f"n-{x}")),
    "put of an old value": _kind("other", lambda s, c, x: put(s, c.read(EXISTING), f"old-{x}", {"text": A_LOT})),
    "put_writes on an old one": _kind(
        "other", lambda s, c, x: s.put_writes(c.read(EXISTING, "cp1"), [("answer", _text(x))], x)
    ),
    "call": _kind("other", lambda s, c, x: begin(s, c.read(EXISTING), f"call {x}")),
    "fork": _kind("other", lambda s, c, x: put(s, c.read(EXISTING, "cp1"), f"fork-{x}", {}, text=A_LOT)),
}
SAME_RUN: dict[str, Kind] = {  # parts of one run, which has read version 2 and not written yet
    "first put": _kind("other", lambda s, c, x: put(s, c.shared, f"first-{x}", {"text": _text(x)})),
    "first put_writes": _kind("other", lambda s, c, x: s.put_writes(c.shared, [("answer", _text(x))], x)),
    "first nested put": _kind("other", lambda s, c, x: put_below(s, EXISTING, _below(c.shared), f"sub:{x}", f"f-{x}")),
}
HOLDER: dict[str, Kind] = {  # parts of the run that holds the session
    "holder's put": _kind("holder", lambda s, c, x: put(s, c.held, f"held-{x}", {}, text=MORE)),
    "holder's put_writes": _kind("holder", lambda s, c, x: s.put_writes(c.held, [("answer", _text(x))], x)),
    "holder's interrupt": _kind("holder", lambda s, c, x: s.put_writes(c.held, [(INTERRUPT, _text(x))], x)),
    "holder's call": _kind("holder", lambda s, c, x: begin(s, c.held, f"call {x}")),
    "holder's nested put": _kind("holder", lambda s, c, x: put_below(s, EXISTING, _root(c), f"sub:{x}", f"h-{x}")),
}
FIRST_BELOW: Kind = _kind("holder", lambda s, c, x: put_below(s, EXISTING, _root(c), BELOW, f"first-{x}"))
CALL_BELOW: Kind = _kind("holder", lambda s, c, x: begin_below(s, c.held, f"below {x}"))
CROSSED: Kind = _kind(  # branches of one run that save the same two large values, named the other way round
    "holder",
    lambda s, c, x: put_below(
        s,
        EXISTING,
        _root(c),
        f"sub:{x}",
        f"c-{x}",
        **{"x" if x == "left" else "y": A_LOT * 2, "y" if x == "left" else "x": MORE * 2},
    ),
)
TWICE: Kind = _kind("other", lambda s, c, x: put(s, c.shared, "twice", {"text": "same" * 100}))
BLIND: dict[str, Kind] = {  # writers that never read
    "blind put": _kind("stranger", lambda s, c, x: put(s, config(EXISTING, "cp2"), f"b-{x}", {"text": _text(x)})),
    "blind put_writes": _kind(
        "stranger", lambda s, c, x: s.put_writes(config(EXISTING, "cp2"), [("answer", _text(x))], f"blind {x}")
    ),
}
UPKEEP: dict[str, Kind] = {
    "delete_session": _kind("other", lambda s, c, x: s.delete_thread(EXISTING)),
    "delete_runs": _kind("other", lambda s, c, x: s.delete_for_runs(["run-1"])),
    "prune": _kind("other", lambda s, c, x: s.prune([EXISTING])),
    "copy from": _kind("other", lambda s, c, x: s.copy_thread(EXISTING, COPY)),
    "copy to": _kind("other", lambda s, c, x: s.copy_thread(SOURCE, EXISTING)),
    "end of a call": _kind("holder", lambda s, c, x: end(s, c.held, "open", MORE)),
    # a put that is refused, and what it leaves in the log
    "log": _kind("other", lambda s, c, x: put(s, c.read(EXISTING), f"l-{x}", {}), 2, refused=True, without_first=True),
}


def _whole_run(saver: LedgerSaver, cast: Cast, side: str) -> None:
    """A run on a new thread that returns to a value it had before."""
    where = put(saver, cast.read(NOTHING), f"run1-{side}", {"text": A_LOT})
    where = put(saver, where, f"run2-{side}", {"text": _text(side)})
    put(saver, where, f"run3-{side}", {"text": A_LOT})


NEW: dict[str, Kind] = {  # on a thread that holds nothing
    "new put": _kind("other", lambda s, c, x: put(s, c.read(NOTHING), f"new-{x}", {"text": A_LOT})),
    "new nested put": _kind(
        "other", lambda s, c, x: [c.read(NOTHING), put_below(s, NOTHING, "unknown", "sub:1", f"nn-{x}")]
    ),
    "blind new put": _kind("stranger", lambda s, c, x: put(s, config(NOTHING), f"bn-{x}", {"text": A_LOT})),
    "whole run": _kind("other", _whole_run, 3),
}
PURGE: Kind = _kind("other", lambda s, c, x: s.delete_thread(DELETED), 2, without_first=True)
ON_EMPTIED: dict[str, Kind] = {  # on a thread all of whose checkpoints were deleted with their run
    "put on emptied": _kind("other", lambda s, c, x: put(s, c.read(EMPTIED), f"emptied-{x}", {"text": A_LOT})),
    "blind put": NEW["blind new put"],
}
AFTER_DELETE: dict[str, Kind] = {  # on a deleted thread
    "fresh put": _kind("other", lambda s, c, x: put(s, c.read(DELETED), f"fresh-{x}", {"text": A_LOT})),
    "stale put": RIVALS["put"],
    "stale holder's put": HOLDER["holder's put"],
    "blind put": NEW["blind new put"],
}
