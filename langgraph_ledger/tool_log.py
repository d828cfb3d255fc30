"""The log that writes itself: LangChain callbacks that put every tool call of a graph on record.

Registered with LangChain when the first saver asks for it, two handlers see every tool call of the process, and leave
those alone whose graph has no LedgerSaver. There are two because the callbacks of an asynchronous tool must not hold
up its event loop, and LangChain does not await handlers of synchronous ones. They are called in any order (LangChain
merges handlers as sets), so each knows whose event it is: the asynchronous one is passed over where no loop runs, the
other where a coroutine calls it, which awaits the first one as well.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.tracers.context import register_configure_hook
from langgraph.errors import GraphBubbleUp, GraphInterrupt, ParentCommand

from langgraph_ledger import invocations
from langgraph_ledger.calls import Call, around, call_id_of, error_name, record_end, record_start, spot_of
from langgraph_ledger.errors import LedgerError, ThreadLocked
from langgraph_ledger.flow import Flow, adrive
from langgraph_ledger.here import here, out_of_reach, run_flow
from langgraph_ledger.lifecycle import run_ends
from langgraph_ledger.lines import Ticket, in_line
from langgraph_ledger.operations.calls import CANCELLED, COMPLETED, FAILED, INTERRUPTED
from langgraph_ledger.questions import asked
from langgraph_ledger.records import MAX_TEXT, text_for_json

REMEMBERED = 10_000
"""Tool calls that are under way at most; of more than these the oldest leave no end in the log."""

Recorded = tuple[Any, Call, Any]
"""The saver that knows of a call which is under way, the call, and its arguments."""


class _Calls:
    """The tool calls that are under way, by the id that LangChain gives each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: OrderedDict[UUID, Recorded | None] = OrderedDict()

    def add(self, run_id: UUID, recorded: Recorded) -> bool:
        """Whether it was not there yet."""
        with self._lock:
            if run_id in self._found:
                return False
            self._found[run_id] = recorded
            while len(self._found) > REMEMBERED:
                self._found.popitem(last=False)
            return True

    def refuse(self, run_id: UUID) -> None:
        """Notes that a call is not to be made: the other handler may still be asked to begin it."""
        with self._lock:
            self._found[run_id] = None

    def take(self, run_id: UUID) -> Recorded | None:
        with self._lock:
            return self._found.pop(run_id, None)


_calls = _Calls()


def _begun(run_id: UUID, parent_run_id: UUID | None, inputs: Any, facts: Mapping[str, Any]) -> Recorded | None:
    """The call that begins, if it is one to be recorded and nobody has taken it yet."""
    conf, saver = here()
    if saver is None or not saver._ledger.log_tools:
        return None
    spot, run = spot_of(saver._ledger, conf)
    tool_call_id = facts.get("tool_call_id")
    call_id = run_id.hex if tool_call_id is None else call_id_of(tool_call_id)
    facts = {**facts, "node": spot.node}
    told = {k: v for k, v in facts.items() if v is not None}
    shown = {k: v if isinstance(v, int) else text_for_json(str(v)[:MAX_TEXT]) for k, v in told.items()}
    call = Call(spot, call_id, shown, conf, run_id.hex, run, line=(spot.task_id, parent_run_id))
    if not _calls.add(run_id, (saver, call, inputs)):
        return None
    guarded = around.get()
    if guarded is not None and (guarded.call_id, guarded.spot.task_id) == (call_id, spot.task_id):
        call.outer = guarded
    return saver, call, inputs


def _facts(serialized: Any, tool_call_id: Any, metadata: Any) -> dict[str, Any]:
    metadata = metadata or {}
    return {
        "tool": (serialized or {}).get("name"),
        "tool_call_id": tool_call_id,
        "step": metadata.get("langgraph_step"),
    }


def _start(recorded: Recorded) -> Flow[None]:
    saver, call, arguments = recorded
    return record_start(saver._ledger, saver.serde, call, arguments=arguments)


def _end(recorded: Recorded, output: Any) -> Flow[None]:
    saver, call, _ = recorded
    end = record_end(saver._ledger, saver.serde, call, COMPLETED, {"result": output}, **_questions(call))
    return _in_turn(call, end)


def _questions(call: Call) -> dict[str, Any]:
    return {} if call.outer is None else asked(call.outer)


def _failure(recorded: Recorded, error: BaseException, **facts: Any) -> Flow[None]:
    saver, call, _ = recorded
    values: dict[str, Any] = {}
    if isinstance(error, ParentCommand):  # a graph within the tool has ended by telling its parent how to go on
        kind, values = COMPLETED, {"result": error.args[0] if error.args else None}
    elif isinstance(error, GraphInterrupt):
        kind = INTERRUPTED
    elif isinstance(error, Exception) and not isinstance(error, GraphBubbleUp):
        kind, values = FAILED, {"error": str(error)}
    else:
        kind = CANCELLED
    facts |= {**_questions(call), "error_type": error_name(error)}
    end = record_end(saver._ledger, saver.serde, call, kind, values, **facts)
    return _in_turn(call, end)


def _in_turn(call: Call, end: Flow[None]) -> Flow[None]:
    """Of errors the first one that comes out is the one that a node raises; by then the ends before it are stored."""
    assert call.run is not None
    yield from in_line(Ticket(call.run, ("ends", call.line)), end)


class _Handler(BaseCallbackHandler):
    """What both have in common: they look at tools and chains, at once, and what they raise stops the tool."""

    raise_error = True
    run_inline = True
    ignore_llm = ignore_retriever = ignore_retry = True
    ignore_chat_model = ignore_custom_event = True


def _called_by_coroutine() -> bool:
    """Whether the caller of the caller is one."""
    return bool(sys._getframe(2).f_code.co_flags & inspect.CO_COROUTINE)


class ToolLog(_Handler):
    """Records the calls of synchronous tools, and how synchronous runs end."""

    def on_chain_start(self, serialized: Any, inputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        invocations.latest.set(run_id)  # for the asynchronous ones too: it waits for nothing

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._ended(run_id, None)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._ended(run_id, error)

    def _ended(self, run_id: UUID, error: BaseException | None) -> None:
        found = invocations.left(run_id, asynchronous=False) if invocations.under_way(asynchronous=False) else None
        if found is None:
            return
        ledger, run, secret = found
        # perhaps from within a garbage collection, where nothing may be waited for
        if isinstance(error, GeneratorExit) or out_of_reach(ledger):
            ledger.late.append((run, secret, error))
        else:
            run_flow(ledger, run_ends(ledger, run, secret, error))

    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        inputs: dict[str, Any] | None = None,
        tool_call_id: Any = None,
        **kwargs: Any,
    ) -> None:
        if _called_by_coroutine():
            return
        facts = _facts(serialized, tool_call_id, metadata)
        recorded = _begun(run_id, parent_run_id, input_str if inputs is None else inputs, facts)
        if recorded is None:
            return
        if out_of_reach(recorded[0]._ledger):  # a call that cannot be put on record is made all the same
            _calls.refuse(run_id)
            return
        try:
            run_flow(recorded[0]._ledger, _start(recorded))
        except ThreadLocked:  # the same: it cannot be put on record
            _calls.refuse(run_id)
        except BaseException:
            if asyncio._get_running_loop() is None:
                _calls.take(run_id)  # nobody else is asked about it
            else:
                _calls.refuse(run_id)
            raise

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        if not _called_by_coroutine() and (recorded := _calls.take(run_id)) is not None:
            run_flow(recorded[0]._ledger, _end(recorded, output))

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        if not _called_by_coroutine() and (recorded := _calls.take(run_id)) is not None:
            try:
                run_flow(recorded[0]._ledger, _failure(recorded, error))
            except LedgerError as problem:
                error.add_note(f"The end of this tool call could not be logged: {problem}")


class AsyncToolLog(_Handler, AsyncCallbackHandler):
    """Records the calls of asynchronous tools, and how asynchronous runs end."""

    @property
    def ignore_chain(self) -> bool:
        return not invocations.under_way(asynchronous=True)

    def on_chain_start(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        """The other handler sees to it."""

    async def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        await self._ended(run_id, None)

    async def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        await self._ended(run_id, error)

    @staticmethod
    async def _ended(run_id: UUID, error: BaseException | None) -> None:
        found = invocations.left(run_id, asynchronous=True)
        if found is not None:
            ledger, run, secret = found
            await adrive(run_ends(ledger, run, secret, error), ledger.driver)

    @property
    def ignore_agent(self) -> bool:
        """Where no event loop runs, there is no asynchronous tool."""
        return asyncio._get_running_loop() is None

    async def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        inputs: dict[str, Any] | None = None,
        tool_call_id: Any = None,
        **kwargs: Any,
    ) -> None:
        facts = _facts(serialized, tool_call_id, metadata)
        recorded = _begun(run_id, parent_run_id, input_str if inputs is None else inputs, facts)
        if recorded is None:
            return
        driver = recorded[0]._ledger.driver
        try:
            await adrive(_start(recorded), driver)
        except asyncio.CancelledError as error:  # it may be stored, and there will be no other end
            _calls.take(run_id)
            await adrive(_failure(recorded, error, ran=False), driver)
            raise
        except BaseException:
            _calls.take(run_id)
            raise

    async def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        if (recorded := _calls.take(run_id)) is not None:
            await adrive(_end(recorded, output), recorded[0]._ledger.driver)

    async def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        if (recorded := _calls.take(run_id)) is not None:
            try:
                await adrive(_failure(recorded, error), recorded[0]._ledger.driver)
            except LedgerError as problem:
                error.add_note(f"The end of this tool call could not be logged: {problem}")


_handlers = (AsyncToolLog(), ToolLog())
_registered: list[ContextVar[Any]] = []
_registering = threading.Lock()


def register() -> None:
    """Lets LangChain call these handlers for every tool, from now on and in every context. Once is enough."""
    with _registering:
        if not _registered:
            for handler in _handlers:
                _registered.append(ContextVar(f"langgraph_ledger_{type(handler).__name__}", default=handler))
                register_configure_hook(_registered[-1], inheritable=True)
