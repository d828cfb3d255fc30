"""The replay guard: a tool call that has happened is not made again, its result comes from the log.

For LangGraph's ToolNode and for LangChain's agents. LangChain itself is imported only for its own middleware.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from langgraph_ledger.abreast import Abreast
from langgraph_ledger.call_records import find_calls
from langgraph_ledger.calls import Call, around, call_id_of, spot_of
from langgraph_ledger.errors import InvalidInput
from langgraph_ledger.flow import Flow, adrive
from langgraph_ledger.here import is_sent, must_be_here, run_flow
from langgraph_ledger.ledger import Ledger
from langgraph_ledger.lines import Ticket, in_line
from langgraph_ledger.once import RETURN, OnUnknown, check_policy, decide, own_call
from langgraph_ledger.questions import making


class ReplayGuard:
    """Lets a resumed run go on with the logged results of its tool calls instead of making them again.

    `ToolNode(tools, **ReplayGuard().wrappers)` guards a ToolNode, `create_agent(..., middleware=[ReplayGuard()
    .middleware()])` an agent. Only calls of the same step are answered from the log, by their id.

    Args:
        on_unknown: what to do about a call of which it is not known whether it happened: "ask" interrupts the graph
            with the question, to be answered by `Command(resume={"happened": True, "result": what it returned})` or
            `Command(resume={"happened": False})`, and asks again if the answer is none; "retry" makes it again, for
            tools that may run twice; "fail" raises `UnknownCall`.
        tools: other answers for single tools, by name.
    """

    def __init__(self, on_unknown: OnUnknown = "ask", *, tools: Mapping[str, OnUnknown] | None = None) -> None:
        self.on_unknown = check_policy(on_unknown)
        self.tools = {name: check_policy(policy, name) for name, policy in (tools or {}).items()}

    @property
    def wrappers(self) -> dict[str, Any]:
        """The arguments for ToolNode."""
        return {"wrap_tool_call": self.wrap_tool_call, "awrap_tool_call": self.awrap_tool_call}

    def _decision(self, request: Any) -> tuple[Call, Ledger, Flow[Any]]:
        conf, saver = must_be_here("ReplayGuard")
        if not saver._ledger.log_tools:
            raise InvalidInput("ReplayGuard needs the log of tool calls, which this saver's log_tools=False turned off")
        asked = request.tool_call
        step = [] if is_sent() else list(_asked_with(request.state, asked["id"]))
        policy = self.tools.get(asked["name"], self.on_unknown)
        spot, run = spot_of(saver._ledger, conf)
        facts = {"tool": asked["name"], "node": spot.node}
        line = (spot.task_id, conf.get("checkpoint_ns"), around.get())  # threads of a tool may know of no call around
        call = Call(spot, call_id_of(asked["id"]), facts, conf, run=run, line=line)
        return call, saver._ledger, _decided(saver, call, asked, step, policy)

    def wrap_tool_call(self, request: Any, execute: Callable[[Any], Any]) -> Any:
        """For ToolNode's argument of that name."""
        call, ledger, flow = self._decision(request)
        with Abreast(call, ledger.driver):
            verdict, result = run_flow(ledger, flow)
            if verdict == RETURN:
                return _message(request, result)
            with making(call):
                return execute(request)

    async def awrap_tool_call(self, request: Any, execute: Callable[[Any], Awaitable[Any]]) -> Any:
        """For ToolNode's argument of that name."""
        call, ledger, flow = self._decision(request)
        async with Abreast(call, ledger.driver):
            verdict, result = await adrive(flow, ledger.driver)
            if verdict == RETURN:
                return _message(request, result)
            with making(call):
                return await execute(request)

    def middleware(self) -> Any:
        """A middleware for LangChain's `create_agent`."""
        try:
            from langchain.agents.middleware import AgentMiddleware
        except ImportError as error:
            raise InvalidInput("ReplayGuard.middleware() needs LangChain: pip install langchain") from error
        guard = self

        class ReplayGuardMiddleware(AgentMiddleware):  # type: ignore[misc, type-arg, unused-ignore]
            def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
                return guard.wrap_tool_call(request, handler)

            async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
                return await guard.awrap_tool_call(request, handler)

        return ReplayGuardMiddleware()


def _asked_with(state: Any, call_id: Any) -> Iterator[Any]:
    """The calls that the latest message asks for which asks for one of this id."""
    values = state if isinstance(state, Mapping) else getattr(state, "__dict__", {})
    for messages in [state] if isinstance(state, list) else values.values():
        for message in reversed(messages) if isinstance(messages, list) else ():
            calls = getattr(message, "tool_calls", None) or ()
            if any(call["id"] == call_id for call in calls):
                yield from calls
                return


def _refuse_differing(calls: Iterable[Any], call_id: Any) -> None:
    """Refuses them all before one is made: in another run the log could not say which one that was."""
    asked = [(call["name"], call["args"]) for call in calls if call["id"] == call_id]
    if any(one != asked[0] for one in asked):
        raise _shared(call_id)


def _shared(call_id: Any) -> InvalidInput:
    return InvalidInput(
        f"the id {call_id!r} belongs to several calls of one step: ReplayGuard cannot tell one from another."
        " Each needs an id of its own, which graph.update_state can give it"
    )


def _decided(saver: Any, call: Call, asked: Any, step: Sequence[Any], policy: OnUnknown) -> Flow[Any]:
    _refuse_differing(step, asked["id"])
    yield from _tell_apart(saver, call, asked)
    beside = [call_id_of(one["id"]) for one in step] if len(step) > 1 else []
    assert call.run is not None
    decision = decide(saver, call, asked["name"], {"arguments": asked["args"]}, policy, beside)
    return (yield from in_line(Ticket(call.run, ("decided", call.line)), decision))


def _tell_apart(saver: Any, call: Call, asked: Any) -> Flow[None]:
    """Refuses a call if this run has made another one of its id in this task, unless that failed: then this is a new
    try, with what somebody has set right."""
    assert call.run is not None
    guarded, key = call.run.guarded, (call.spot.task_id, asked["id"])
    asks = hash((asked["name"], repr(asked["args"])))
    if guarded.setdefault(key, asks) == asks:
        return
    calls = yield from find_calls(saver._ledger, saver.serde, call.spot.session_id, call.call_id)
    before = own_call(calls, call.spot)
    if before is None or before.status != "failed":
        raise _shared(asked["id"])
    guarded[key] = asks


def _message(request: Any, result: Any) -> Any:
    """What a tool call gives: the logged message or command; anything else in a message of its own."""
    from langchain_core.messages import ToolMessage
    from langgraph.types import Command

    if isinstance(result, (ToolMessage, Command, list)):
        return result
    text = result if isinstance(result, str) else "" if result is None else str(result)
    call = request.tool_call
    return ToolMessage(text, name=call["name"], tool_call_id=call["id"])
