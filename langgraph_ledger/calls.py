"""The way of a call's log entries: where in the graph the call stands, its start under the version check, its end.

A call is a tool call, or anything else with effects outside of the state. Nothing here knows LangChain's callbacks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import ormsgpack
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_ledger import ids
from langgraph_ledger.errors import InvalidInput, ValueNotStorable
from langgraph_ledger.flow import Flow, Pause, holds_up_loop
from langgraph_ledger.flushing import Change, submit
from langgraph_ledger.ledger import Ledger
from langgraph_ledger.lines import Ticket, in_line
from langgraph_ledger.memory import Chunker
from langgraph_ledger.operations.calls import RESOLVED, STARTED, CallEntry, put_call_end, put_call_start
from langgraph_ledger.operations.checkpoints import Writer, read_root
from langgraph_ledger.places import MemoryRow
from langgraph_ledger.records import describe, describe_result, described, now, to_json
from langgraph_ledger.refusals import refuse
from langgraph_ledger.runs import Marked, Run
from langgraph_ledger.statements import Operation
from langgraph_ledger.storing import is_news, regardless, writer_of
from langgraph_ledger.vault import Vault

PATIENCE = 5.0
"""Seconds that a call waits for the checkpoint of its step to be on its way, where one is to be expected."""


@dataclass(frozen=True, slots=True)
class Spot:
    """Where in a thread a call stands: the innermost graph around it that keeps checkpoints, and its task there.

    `node` is the node that makes it, of whatever graph.
    """

    session_id: str
    agent_id: str
    task_id: str | None
    checkpoint_id: Any
    root_id: Any
    node: str | None = None


@dataclass(slots=True, eq=False, repr=False)
class Call:
    """One attempt at a call. `facts` are shown in the log as they are. `whole`: its values are kept, whatever size.

    `line`: those beside which it is made. `outer`: the call in which it is made. `slots`: those of the questions that
    it has asked, among the `questions` of its task; `before`: those that it had earlier. `asker`: whoever
    asks about the call, whether it happened, with slots of its own.
    """

    spot: Spot
    call_id: str
    facts: dict[str, Any]
    conf: Mapping[str, Any] = field(default_factory=dict)
    attempt_id: str = field(default_factory=lambda: uuid4().hex)
    run: Run | None = None
    whole: bool = False
    line: tuple[Any, ...] = ()
    slots: list[int] = field(default_factory=list)
    before: Sequence[int] = ()
    questions: Any = None
    asker: Call | None = None
    outer: Call | None = None


around: ContextVar[Call | None] = ContextVar("langgraph_ledger_call", default=None)
"""The guarded call, or the `once`, whose code is running."""


def call_id_of(given: Any) -> str:
    """A name for a call that fits into a key: the one that is given, or a digest if that is too long or no text."""
    try:
        return ids.key(given, "call_id")
    except InvalidInput:
        return f"sha256:{hashlib.sha256(repr(given).encode()).hexdigest()}"


def error_name(error: BaseException) -> str:
    """The kind of an error, as the log names it."""
    return f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")


def spot_of(ledger: Ledger, conf: Mapping[str, Any]) -> tuple[Spot, Run]:
    """Where the code that runs with this config stands, and on whose behalf."""
    session_id = ids.thread_of(conf)
    run = ledger.runs.writing(conf, session_id, None) or Run(ledger.runs, session_id, None)
    steps = ids.namespace_of(conf).split("|")
    checkpoints = conf.get("checkpoint_map") or {}
    innermost = len(steps) - 1
    for depth in range(innermost, -1, -1):
        namespace, task = "|".join(steps[:depth]), steps[depth]
        if ":" in task and (not namespace or namespace in run.namespaces):
            break
    else:
        depth, namespace, task = innermost, "", steps[innermost]
    task_id = task.rpartition(":")[2] or None
    node = steps[innermost].rpartition(":")[0] or None
    return Spot(session_id, namespace, task_id, checkpoints.get(namespace), checkpoints.get(""), node), run


def record_start(
    ledger: Ledger, serde: SerializerProtocol, call: Call, kind: str = STARTED, **values: Any
) -> Flow[None]:
    """Puts on record that a call is about to be made; raises, and nothing may be done, if the run is overtaken.

    It is made after those that came before it to the same line, if it stands in one.
    """
    assert call.run is not None
    start = _store_start(ledger, serde, call, kind, values)
    yield from (in_line(Ticket(call.run, ("begins", call.line)), start) if call.line else start)


def _store_start(
    ledger: Ledger, serde: SerializerProtocol, call: Call, kind: str, values: Mapping[str, Any]
) -> Flow[None]:
    vault = yield from ledger.vault(serde, adding=True)
    assert call.run is not None
    run, spot = call.run, call.spot
    yield from _checkpoint_stored(ledger, run, spot, call.conf)
    run.check()
    entry = _entry(ledger, vault, call, kind, values)
    start = _Start(ledger, run, entry)
    if ledger.queue.entries:  # what waits is committed along
        yield from submit(ledger.queue, start.change(), None, at_once=True)
    else:
        yield from start.alone()


@dataclass(slots=True, eq=False, repr=False)
class _Start:
    """A start on its way to the database, by itself or with what waits."""

    ledger: Ledger
    run: Run
    entry: CallEntry
    moment: str = field(default_factory=now)

    def operation(self, writer: Writer) -> Operation[int | None]:
        status = "active" if is_news(self.run, "active", writer.holds) else None
        return put_call_start(writer, self.entry, status, self.moment)

    def _terms(self, claimed: bool) -> Writer:
        parent_id = self.entry.checkpoint_id if self.entry.agent_id == "" else None
        return writer_of(self.ledger, self.run, parent_id, claimed)

    def alone(self) -> Flow[None]:
        ledger, run, entry = self.ledger, self.run, self.entry
        version = yield self.operation(self._terms(False))
        while version is None:
            head = yield read_root(run.session_id)
            yield from refuse(ledger, run, entry.kind, entry.agent_id, entry.checkpoint_id or "", head)
            version = yield self.operation(regardless(ledger, run, head))
        run.claimed = True

    def change(self) -> Change:
        def stored(version: Any) -> bool:
            self.run.claimed = self.run.claimed or version is not None
            return version is not None

        return Change(self.run, 0, False, lambda claimed: self.operation(self._terms(claimed)), stored, self.alone)


def record_end(
    ledger: Ledger,
    serde: SerializerProtocol,
    call: Call,
    kind: str,
    values: Mapping[str, Any],
    *,
    started: str = STARTED,
    **facts: Any,
) -> Flow[None]:
    """Puts on record what came of a call, whether its run still holds the thread or not.

    Of `values` ("result", say) the one there is is kept; `facts` are shown as they are.
    """
    vault = yield from ledger.vault(serde, adding=call.run is not None)
    end = put_call_end(_entry(ledger, vault, call, kind, values, **facts), started, now())
    if call.run is None or not ledger.queue.entries:
        yield end
        return

    def alone() -> Flow[None]:
        yield end

    change = Change(call.run, 0, False, lambda _: end, lambda _: True, alone, checked=False)
    yield from submit(ledger.queue, change, None, at_once=True)


def _checkpoint_stored(ledger: Ledger, run: Run, spot: Spot, conf: Mapping[str, Any]) -> Flow[None]:
    """Waits for the checkpoint that the call's step follows, so that whatever comes later in the log moved past it.

    Under durability "exit" there is none to wait for. A synchronous call in an asynchronous node must not wait: the
    checkpoint may need the loop that it holds up.
    """
    checkpoint_id = spot.checkpoint_id
    if (
        holds_up_loop.get()
        or conf.get("__pregel_durability") == "exit"
        or not checkpoint_id
        or isinstance(checkpoint_id, Marked)
    ):
        return
    place = (spot.agent_id, str(checkpoint_id))
    put = run.put_of(place)
    if put is None and not ledger.runs.made(spot.session_id, *place):
        yield Pause(run.expect_put(place), PATIENCE)
        put = run.put_of(place)
    if put is not None and not put.done():
        yield put


# --- encoding


def call_label(call_id: str, attempt_id: str, kind: str) -> str:
    """The place of an entry's value within its session."""
    return f"call/{call_id}/{attempt_id}/{kind}"


def _entry(ledger: Ledger, vault: Vault, call: Call, kind: str, values: Mapping[str, Any], **facts: Any) -> CallEntry:
    spot = call.spot
    payload = {**call.facts, **facts}
    body, memory_ids, rows = None, None, list[MemoryRow]()
    for name, value in values.items():
        shown = value if call.whole else _redacted(ledger, call, name, value)
        found_out = kind == RESOLVED  # by somebody who gives it for a run to go on with
        limit = None if call.whole or found_out else ledger.log_limit
        found = _kept(ledger, vault, spot.session_id, shown, limit)
        show = describe_result if found is not None else describe  # what is too large to keep is not quoted either
        payload[name] = (show if vault.is_open else described)(shown)
        if found is None and found_out:
            raise InvalidInput(f"the {name} given for call {call.call_id!r} cannot be stored")
        if found is None:
            payload["kept"] = False
            continue
        body, memory_ids, rows = found
        body = vault.seal(body, call_label(call.call_id, call.attempt_id, kind))
        if shown is not value:
            payload["kept"] = False  # what is stored is not what came
    return CallEntry(
        session_id=spot.session_id,
        agent_id=spot.agent_id,
        kind=kind,
        checkpoint_id=str(spot.checkpoint_id) if spot.checkpoint_id else None,
        root_id=str(spot.root_id) if spot.root_id else None,
        run_id=call.run.token if call.run is not None else None,
        task_id=spot.task_id,
        call_id=call.call_id,
        attempt_id=call.attempt_id,
        payload=to_json(payload),
        body=body,
        memory_ids=memory_ids,
        memory=rows,
        stamp=ledger.stamp,
    )


def _redacted(ledger: Ledger, call: Call, name: str, value: Any) -> Any:
    if ledger.redact is None:
        return value
    return ledger.redact(str(call.facts.get("tool", call.call_id)), name, value)


def _kept(
    ledger: Ledger, vault: Vault, session_id: str, value: Any, limit: int | None
) -> tuple[bytes, bytes | None, list[MemoryRow]] | None:
    """A value's place and its chunks; None if it cannot be stored, or is larger than the log takes."""
    chunker = Chunker(vault, session_id, frozenset(), ledger.compression)
    try:
        place = chunker.place(value, lambda: f"thread {session_id!r}, a call")
    except ValueNotStorable:
        return None
    if limit is not None and chunker.size > limit:
        return None
    return ormsgpack.packb(place.packed()), place.ids or None, list(chunker.rows.values())
