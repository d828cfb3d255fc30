"""The agent of the demo: a support desk on LangGraph with a scripted model, so that it needs no network and no key.

The graph is what any LangGraph user would write. What the demo adds is a `Desk`, which is told of every step.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, InjectedToolCallId, tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Send


@dataclass(frozen=True)
class Ticket:
    """What a customer wrote."""

    number: int
    subject: str
    email: str
    order: str

    @property
    def text(self) -> str:
        """The message as the agent receives it."""
        return f"{self.subject}. My order is {self.order}, I am {self.email}."


CUSTOMERS = {
    "ada@example.com": "Ada",
    "grace@example.com": "Grace",
    "alan@example.com": "Alan",
    "joan@example.com": "Joan",
}
ORDERS: dict[str, dict[str, str | int]] = {
    "A-1001": {"item": "headphones", "status": "delivered broken", "amount": 79},
    "A-1002": {"item": "keyboard", "status": "lost", "amount": 120},
    "A-1003": {"item": "rain coat", "status": "returned", "amount": 95},
    "A-1004": {"item": "desk lamp", "status": "on its way", "amount": 45},
}
TICKETS = (
    Ticket(1, "The headphones arrived broken", "ada@example.com", "A-1001"),
    Ticket(2, "My keyboard never arrived", "grace@example.com", "A-1002"),
    Ticket(3, "I sent the coat back, it was too small", "alan@example.com", "A-1003"),
    Ticket(4, "Where is my lamp", "joan@example.com", "A-1004"),
)
FOLLOW_UP = "And the voucher that you promised for the trouble? My order is A-1001, I am ada@example.com."


class Desk(Protocol):
    """Who is told what the agent does."""

    def step(self, name: str) -> None:
        """The current step is running now: node or tool `name`."""

    def effect(self, name: str, call_id: str) -> None:
        """The world outside changes now, once for each call of this method."""


class ScriptedModel(BaseChatModel):
    """A chat model whose reply follows from the messages alone."""

    signature: str

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        reply = _reply(messages, self.signature)
        return ChatResult(generations=[ChatGeneration(message=reply)])


def build_graph(
    desk: Desk, checkpointer: BaseCheckpointSaver[str], signature: str
) -> CompiledStateGraph[MessagesState, None, MessagesState, MessagesState]:
    """The support agent: the model, then its tool calls side by side, then the model again until it has an answer."""
    model = ScriptedModel(signature=signature)

    def agent(state: MessagesState) -> dict[str, list[AnyMessage]]:
        desk.step("agent")
        return {"messages": [model.invoke(state["messages"])]}

    def route(state: MessagesState) -> list[Send] | str:
        calls = getattr(state["messages"][-1], "tool_calls", [])
        return [Send("tools", [call]) for call in calls] or END

    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_node("tools", ToolNode(build_tools(desk)))
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", route, ["tools", END])
    builder.add_edge("tools", "agent")
    return builder.compile(checkpointer=checkpointer)


def build_tools(desk: Desk) -> list[BaseTool]:
    """The four tools of the desk; the last two change the world outside."""

    @tool
    def look_up_customer(email: str) -> str:
        """Find a customer by mail address."""
        desk.step("look_up_customer")
        return json.dumps({"name": CUSTOMERS[email]})

    @tool
    def check_order(order: str) -> str:
        """Find out what became of an order."""
        desk.step("check_order")
        return json.dumps(ORDERS[order])

    @tool
    def issue_refund(order: str, amount: int, call_id: Annotated[str, InjectedToolCallId]) -> str:
        """Send money back."""
        desk.step("issue_refund")
        desk.effect("refund", call_id)
        return json.dumps({"refunded": amount, "order": order})

    @tool
    def send_voucher(order: str, call_id: Annotated[str, InjectedToolCallId]) -> str:
        """Send a voucher."""
        desk.step("send_voucher")
        desk.effect("voucher", call_id)
        return json.dumps({"voucher": 10, "order": order})

    return [look_up_customer, check_order, issue_refund, send_voucher]


def transcript(messages: list[BaseMessage]) -> list[tuple[str, str, list[str]]]:
    """A conversation without the ids that differ from run to run: kind, text and calls of each message."""
    return [(m.type, str(m.content), [call["name"] for call in getattr(m, "tool_calls", [])]) for m in messages]


def _reply(messages: list[BaseMessage], signature: str) -> AIMessage:
    start = max(i for i, message in enumerate(messages) if isinstance(message, HumanMessage))
    question = str(messages[start].content)
    order, email = re.findall(r"A-\d+", question)[0], re.findall(r"\S+@\S+\.com", question)[0]
    results = {m.name: json.loads(str(m.content)) for m in messages[start:] if isinstance(m, ToolMessage)}
    if "voucher" in question:
        if "send_voucher" not in results:
            return _calls(("send_voucher", {"order": order}))
        return AIMessage(f"A voucher over {results['send_voucher']['voucher']} EUR is on its way. Signed, {signature}")
    if "check_order" not in results:
        return _calls(("look_up_customer", {"email": email}), ("check_order", {"order": order}))
    name, found = results["look_up_customer"]["name"], results["check_order"]
    if found["status"] == "on its way":
        return AIMessage(f"{name}, your {found['item']} is on its way. Signed, {signature}")
    if "issue_refund" not in results:
        return _calls(("issue_refund", {"order": order, "amount": found["amount"]}))
    return AIMessage(f"{name}, you get {found['amount']} EUR back for the {found['item']}. Signed, {signature}")


def _calls(*calls: tuple[str, dict[str, Any]]) -> AIMessage:
    """A reply that asks for tools; the ids follow from the order, so a repeated call has the same one."""
    made = [
        ToolCall(name=name, args=args, id=f"{name}-{args.get('order', args.get('email'))}", type="tool_call")
        for name, args in calls
    ]
    return AIMessage("", tool_calls=made)
