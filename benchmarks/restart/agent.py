"""The support agent: it looks a ticket up, asks a person now and then, sends money, sends a mail, answers.

The model is scripted, and every ticket asks for the same calls under the same ids whenever it is worked on.
"""

import time
from collections.abc import Callable
from typing import Annotated, Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, InjectedToolCallId, tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt

from benchmarks.restart.desk import LOOK_UPS, Desk
from langgraph_ledger import ReplayGuard

ASK_ABOUT = 5
"""Of so many tickets one is put to a person before money is sent."""


def question(ticket: int) -> dict[str, Any]:
    """What a customer writes."""
    return {"messages": [HumanMessage(f"My order A-{ticket} arrived broken. I am customer{ticket}@example.com.")]}


def answer(ticket: int) -> str:
    """What the customer is told in the end."""
    return f"You get {amount(ticket)} EUR back for A-{ticket}."


def result(ticket: int, name: str) -> str:
    """What a tool returns, and what whoever looks into the desk's database would say that it had returned."""
    return f"{name} of A-{ticket}: done, {amount(ticket)} EUR"


def amount(ticket: int) -> int:
    return 20 + ticket * 37 % 200


class Scripted(BaseChatModel):
    """Asks for the next tools, as long as there are any, after `thinks` seconds."""

    thinks: float = 0.0

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        time.sleep(self.thinks)
        ticket = int(str(messages[0].content).split("A-")[1].split()[0])
        done = sum(isinstance(message, ToolMessage) for message in messages)
        names = {0: LOOK_UPS, 2: ("issue_refund",), 3: ("send_mail",)}.get(done, ())
        calls = [
            ToolCall(name=name, args={"ticket": ticket}, id=f"{name}-{ticket}", type="tool_call") for name in names
        ]
        reply = AIMessage("" if calls else answer(ticket), tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=reply)])


def build(
    saver: Any,
    desk: Desk,
    guard: ReplayGuard | None,
    at_work: Callable[[], None] = lambda: None,
    thinks: float = 0.0,
) -> Any:
    """The agent's graph. `at_work` is called whenever a node begins, or a tool call comes up in one; the model takes
    `thinks` seconds for each of its four messages."""
    model = Scripted(thinks=thinks)

    def agent(state: MessagesState) -> Any:
        at_work()
        return {"messages": [model.invoke(state["messages"])]}

    def approve(state: MessagesState) -> Any:
        at_work()
        if not interrupt("May the money be sent?"):
            raise ValueError("the person of this benchmark says yes")
        return {}

    def route(state: MessagesState) -> str:
        calls = getattr(state["messages"][-1], "tool_calls", [])
        if not calls:
            return END
        asked = calls[0]["name"] == "issue_refund" and calls[0]["args"]["ticket"] % ASK_ABOUT == 0
        return "approve" if asked else "tools"

    def each_call(request: Any, execute: Callable[[Any], Any]) -> Any:
        at_work()
        return guard.wrap_tool_call(request, execute) if guard else execute(request)

    builder = StateGraph(MessagesState).add_node("agent", agent).add_node("approve", approve)
    builder.add_node("tools", ToolNode(tools(desk), wrap_tool_call=each_call))
    builder.add_edge(START, "agent").add_conditional_edges("agent", route, ["tools", "approve", END])
    builder.add_edge("approve", "tools").add_edge("tools", "agent")
    return builder.compile(checkpointer=saver)


def tools(desk: Desk) -> list[BaseTool]:
    """Two that look something up, and may run as often as they like; two that must run once."""

    @tool
    def look_up_customer(ticket: int, call_id: Annotated[str, InjectedToolCallId]) -> str:
        """Find the customer."""
        desk.execute(ticket, "look_up_customer", call_id)
        return result(ticket, "look_up_customer")

    @tool
    def check_order(ticket: int, call_id: Annotated[str, InjectedToolCallId]) -> str:
        """Find the order."""
        desk.execute(ticket, "check_order", call_id)
        return result(ticket, "check_order")

    @tool
    def issue_refund(ticket: int, call_id: Annotated[str, InjectedToolCallId]) -> str:
        """Send money back."""
        desk.execute(ticket, "issue_refund", call_id)
        return result(ticket, "issue_refund")

    @tool
    def send_mail(ticket: int, call_id: Annotated[str, InjectedToolCallId]) -> str:
        """Tell the customer."""
        desk.execute(ticket, "send_mail", call_id)
        return result(ticket, "send_mail")

    return [look_up_customer, check_order, issue_refund, send_mail]
