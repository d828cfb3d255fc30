"""What must never be in the database: secrets of a config, and with an encrypting serializer any plain text."""

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict
from uuid import uuid4

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode, ToolRuntime
from langgraph.types import Command, interrupt

from langgraph_ledger import StateConflict, expect
from tests.direct import contents, query
from tests.four_ways import Backend, Flavoured


class State(TypedDict, total=False):
    items: Annotated[list[Any], operator.add]
    messages: Annotated[list[Any], operator.add]


def graph_on(saver: Any, *nodes: Callable[[State], Any]) -> Any:
    named = [(getattr(node, "name", None) or node.__name__, node) for node in nodes]
    return StateGraph(State).add_sequence(named).add_edge(START, named[0][0]).compile(checkpointer=saver)


def config(**more: Any) -> Any:
    return {"configurable": {"thread_id": str(uuid4()), **more}}


def answer(state: State) -> State:
    return {"items": [f"answer {len(state.get('items', []))}"]}


def everything(backend: Backend) -> bytes:
    """Every byte of a database that could hold text."""
    if backend.kind == "sqlite":
        return b"".join(path.read_bytes() for path in Path(backend.url).parent.glob(Path(backend.url).name + "*"))
    texts = [row for table in contents(backend) for row in query(backend, f"SELECT t::text FROM {table} t")]
    rows = [repr(contents(backend)).encode(), *(text.encode() for (text,) in texts)]
    return b"\n".join(rows)


def also(where: Any, **more: Any) -> Any:
    return {**where, "configurable": {**where["configurable"], **more}}


def plan(state: State) -> State:
    return {"messages": [AIMessage("", tool_calls=[{"name": "look", "args": {"what": "this"}, "id": "call 1"}])]}


@tool
def look(what: str, config: RunnableConfig, runtime: ToolRuntime) -> str:
    """Look."""
    return what + str(len(config["configurable"]) > 3)


def broken(state: State) -> State:
    raise OSError("failed")


def question(state: State) -> State:
    return {"items": [interrupt("may I?")]}


def test_secrets_of_a_config_are_not_stored(four: Flavoured, backend: Backend) -> None:
    """Not by checkpoints, calls, interrupts, errors or refused writes, nor if LangChain copies them to metadata."""
    names = [
        "api_key", "openai_api_key", "OPENAI_APIKEY", "auth_token", "password", "passphrase", "client_secret",
        "Authorization", "cookie", "db_pwd", "jwt", "bearer", "aws_access_key", "signing_key", "sentry_dsn",
        "connection_string", "__hidden", "__pregel_api", "__url",
    ]  # fmt: skip
    secrets: dict[str, Any] = {name: f"sesame-{uuid4().hex}" for name in names}
    nested = {"keys": {"openai": "sesame-nested"}, "client": object(), "all": ["sesame-listed"]}
    where = {**config(user_id="user 7", **secrets, **nested), "metadata": {"token_count": 5, **secrets}}
    graph = graph_on(four.saver, answer, plan, ToolNode([look], name="tools"), question)
    four.invoke(graph, {"messages": []}, where)
    read = four.get_state(graph, where)
    four.update_state(graph, where, {"items": [2]})
    with pytest.raises(StateConflict):
        four.update_state(graph, also(where, **expect(read)["configurable"]), {"items": [3]})
    four.invoke(graph, Command(resume="yes"), where)
    with pytest.raises(OSError, match="failed"):
        four.invoke(graph_on(four.saver, broken), {"items": [1]}, also(where, thread_id=str(uuid4())))
    thread = where["configurable"]["thread_id"]
    kinds = {entry.checkpoint_type for entry in four.call("history", thread)}
    assert kinds >= {"checkpoint", "tool_call_started", "tool_call_completed", "write_rejected"}
    stored = everything(backend)
    assert b"user 7" in stored
    assert [name for name, secret in secrets.items() if secret.encode() in stored] == []
    assert b"sesame" not in stored
    found = four.get_tuple(where).metadata
    assert (found["user_id"], found["token_count"]) == ("user 7", 5)


def ask(state: State) -> State:
    return {"items": [interrupt("sesame-question")]}


def fail(state: State) -> State:
    raise OSError("sesame-error")


def test_an_encrypted_ledger_has_no_plain_text(open_four: Callable[..., Flavoured], backend: Backend) -> None:
    four = open_four(serde=EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef"))
    where = {**config(team="sesame-configurable"), "metadata": {"note": "sesame-metadata"}}
    graph = graph_on(four.saver, answer, ask)
    four.invoke(graph, {"items": ["sesame-item", "sesame-long" * 500]}, where)
    four.put_writes(four.get_tuple(where).config, [("items", ["sesame-write"])], "task")
    failing = config()
    with pytest.raises(OSError, match="sesame"):
        four.invoke(graph_on(four.saver, fail), {"items": ["sesame"]}, failing)
    assert b"sesame" not in everything(backend)
    found = four.get_tuple(where)
    assert found.checkpoint["channel_values"]["items"] == ["sesame-item", "sesame-long" * 500, "answer 2"]
    assert found.metadata["note"] == "sesame-metadata"
    assert [t.checkpoint["id"] for t in four.list(where, filter={"team": "sesame-configurable"}, limit=1)] == [
        found.checkpoint["id"]
    ]
