"""What must never be in the database: secrets of a config, and with an encrypting serializer any plain text."""

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict
from uuid import uuid4

import pytest
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from tests.direct import contents, query
from tests.four_ways import Backend, Flavoured


class State(TypedDict, total=False):
    items: Annotated[list[Any], operator.add]


def graph_on(saver: Any, *nodes: Callable[[State], Any]) -> Any:
    return StateGraph(State).add_sequence(nodes).add_edge(START, nodes[0].__name__).compile(checkpointer=saver)


def config(**more: Any) -> Any:
    return {"configurable": {"thread_id": str(uuid4()), **more}}


def answer(state: State) -> State:
    return {"items": [f"answer {len(state['items'])}"]}


def everything(backend: Backend) -> bytes:
    """Every byte of a database that could hold text."""
    if backend.kind == "sqlite":
        return b"".join(path.read_bytes() for path in Path(backend.url).parent.glob(Path(backend.url).name + "*"))
    texts = [row for table in contents(backend) for row in query(backend, f"SELECT t::text FROM {table} t")]
    rows = [repr(contents(backend)).encode(), *(text.encode() for (text,) in texts)]
    return b"\n".join(rows)


def test_secrets_of_a_config_are_not_stored(four: Flavoured, backend: Backend) -> None:
    names = [
        "api_key",
        "openai_api_key",
        "OPENAI_APIKEY",
        "auth_token",
        "password",
        "client_secret",
        "Authorization",
        "cookie",
    ]
    secrets = {name: f"sesame-{uuid4().hex}" for name in names}
    graph, where = graph_on(four.saver, answer), config(user_id="user 7", **secrets)
    four.invoke(graph, {"items": [1]}, where)
    four.update_state(graph, where, {"items": [2]})
    stored = everything(backend)
    assert b"user 7" in stored
    assert [name for name, secret in secrets.items() if secret.encode() in stored] == []
    assert four.get_tuple(where).metadata["user_id"] == "user 7"


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
