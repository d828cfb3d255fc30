"""What differs between two checkpoints, four ways."""

import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import START, StateGraph

from langgraph_ledger import Diff
from langgraph_ledger.errors import InvalidInput, UnknownCheckpoint
from tests.direct import at
from tests.four_ways import Flavoured


class State(TypedDict):
    notes: Annotated[list[Any], operator.add]
    data: bytes


def graph_of(four: Flavoured) -> Any:
    inner = StateGraph(State).add_node("deep", lambda state: {"data": b"two"}).add_edge(START, "deep").compile()
    builder = StateGraph(State).add_sequence(
        [("write", lambda state: {"notes": [HumanMessage("hi", id="m")], "data": b"one"}), ("inner", inner)]
    )
    return builder.add_edge(START, "write").compile(checkpointer=four.saver)


def diff(four: Flavoured, *ids: str, **options: Any) -> Diff:
    found: Diff = four.call("diff", "t", *ids, **options)
    return found


@pytest.mark.parametrize("encrypted", [False, True])
def test_two_checkpoints(open_four: Callable[..., Flavoured], encrypted: bool) -> None:
    four = open_four(serde=EncryptedSerializer.from_pycryptodome_aes(key=b"k" * 16) if encrypted else None)
    four.invoke(graph_of(four), {"notes": ["a"]}, at("t"))
    _, begun, written, ended = [e.checkpoint_id for e in four.call("history", "t") if not e.agent_id]
    found = diff(four, begun, written)
    assert set(found.changes) == {"notes", "data"}
    assert found.changes["notes"][1:3] == (" [", '-  "a"')
    assert '+    "$type": "langchain_core.messages.human.HumanMessage",' in found.changes["notes"]
    assert '+    "content": "hi",' in found.changes["notes"]
    assert str(found).startswith("data:\n  @@")
    assert '<span class="lgl-good">+    &quot;content&quot;: &quot;hi&quot;,</span>' in found._repr_html_()

    other = diff(four, written)
    assert (other.before, other.after) == (written, ended)
    assert '"$length": 3' in str(other), "values of one length are told from one another"
    assert set(other.changes) == {"notes", "data"}
    assert other.to_dict() == {name: list(lines) for name, lines in other.changes.items()}

    same = diff(four, written, written)
    assert (same.changes, str(same)) == ({}, "no difference")


def test_in_a_subgraph_and_what_is_not_there(four: Flavoured) -> None:
    four.invoke(graph_of(four), {"notes": ["a"]}, at("t"))
    nested = [e for e in four.call("history", "t") if e.agent_id]
    found = diff(four, str(nested[0].checkpoint_id), checkpoint_ns=nested[0].agent_id)
    assert list(found.changes) == ["data", "notes"]
    with pytest.raises(UnknownCheckpoint, match="thread 't' has no checkpoint 'none' in namespace ''"):
        diff(four, "none")
    with pytest.raises(UnknownCheckpoint, match="thread 'nobody' has no"):
        four.call("diff", "nobody", "none")
    with pytest.raises(InvalidInput, match="checkpoint_id"):
        diff(four, 1.5)  # type: ignore[arg-type]
