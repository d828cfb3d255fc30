"""LangGraph's allow-list of types: what it does not have is never made, and never becomes a dict in silence either."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, TypedDict
from uuid import uuid4

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph._internal import _serde as graph_serde
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde import _msgpack as checkpoint_serde
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from langgraph_ledger import StateConflict, expect
from langgraph_ledger.errors import ValueNotRestorable
from langgraph_ledger.verbatim import VerbatimSerializer
from tests.direct import at, save, shared_backend
from tests.four_ways import Flavoured

backend = shared_backend


@dataclass
class Point:
    x: int


class Colour(Enum):
    RED = "red"


class Model(BaseModel):
    point: Point
    colour: Colour = Colour.RED


class Stranger(BaseModel):
    name: str


NAME = f"{Stranger.__module__}.Stranger"
HOW = f"allowed_msgpack_modules=[('{Stranger.__module__}', 'Stranger')]"
ALLOWED: Any = [Stranger]


def serializer(allowed: Any, *, encrypted: bool) -> Any:
    plain = JsonPlusSerializer(allowed_msgpack_modules=allowed)
    return EncryptedSerializer.from_pycryptodome_aes(plain, key=b"0123456789abcdef") if encrypted else plain


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_a_type_that_is_not_allowed(open_four: Callable[..., Flavoured], encrypted: bool) -> None:
    """Whoever reads it is told where it is and how to allow it; whoever allows it gets it; nobody else is disturbed."""
    options = {"working_channels": {"scratch"}}
    strict = open_four(serde=serializer(None, encrypted=encrypted), **options)
    allowed = open_four(serde=serializer(ALLOWED, encrypted=encrypted), **options)
    stranger = Stranger(name="x")
    deep = [HumanMessage("fine", id="1"), {"deep": [Stranger(name="y" * 3000)]}]
    threads = {name: str(uuid4()) for name in ("value", "deep", "write", "metadata", "working", "fine")}
    save(strict, at(threads["value"]), "1", {"a": stranger})
    save(strict, at(threads["deep"]), "1", {"a": deep})
    save(strict, at(threads["write"]), "1")
    strict.put_writes(at(threads["write"], "1"), [("a", [stranger])], "task 7")
    save(strict, at(threads["metadata"]), "1", metadata={"step": 1, "who": stranger})
    save(strict, at(threads["working"]), "1", {"scratch": stranger})
    save(strict, at(threads["fine"]), "1", {"a": [HumanMessage("fine", id="1"), Command(goto="x")]})
    places = {"value": "channel 'a'", "deep": "channel 'a'", "write": "task 7"}
    places |= {"metadata": "metadata", "working": "channel 'scratch'"}
    for name, place in places.items():
        for read in (lambda n=name: strict.get_tuple(at(threads[n])), lambda n=name: strict.list(at(threads[n]))):
            for _ in range(3):
                with pytest.raises(ValueNotRestorable) as caught:
                    read()
                assert all(word in str(caught.value) for word in (place, NAME, HOW)), str(caught.value)
                assert threads[name] in str(caught.value)
    assert strict.get_tuple(at(threads["fine"])).checkpoint["channel_values"]["a"][0].content == "fine"

    def values(name: str) -> Any:
        return allowed.get_tuple(at(threads[name]))

    assert values("value").checkpoint["channel_values"]["a"] == stranger
    assert values("deep").checkpoint["channel_values"]["a"] == deep
    assert values("write").pending_writes[0][2] == [stranger]
    assert values("metadata").metadata["who"] == stranger
    assert values("working").checkpoint["channel_values"]["scratch"] == stranger


class State(TypedDict, total=False):
    model: Model
    points: Annotated[list[Point], operator.add]
    anything: Any


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with LANGGRAPH_STRICT_MSGPACK=true, which LangGraph looks at once, when it is imported."""
    monkeypatch.setattr(graph_serde, "STRICT_MSGPACK_ENABLED", True)
    monkeypatch.setattr(checkpoint_serde, "STRICT_MSGPACK_ENABLED", True)
    monkeypatch.setattr(BaseCheckpointSaver, "serde", JsonPlusSerializer())


def build() -> Any:
    def give(state: State) -> State:
        return {"model": Model(point=Point(1)), "points": [Point(len(state.get("points", [])))]}

    def ask(state: State) -> State:
        assert type(state["points"][0]) is Point
        return {"points": [interrupt({"about": state["model"]})]}

    inner = StateGraph(State).add_sequence([give, ask]).add_edge(START, "give").compile()
    return StateGraph(State).add_node("inner", inner).add_edge(START, "inner")


@pytest.mark.usefixtures("strict")
def test_strict_graphs(open_four: Callable[..., Flavoured]) -> None:
    """What the schemas of a graph name is allowed for that graph, also in a subgraph; conflicts are seen as ever."""
    four, config = open_four(), at(str(uuid4()))
    four.invoke(build().compile(checkpointer=four.saver), {"points": [Point(0)]}, config)
    other = open_four()
    graph = build().compile(checkpointer=other.saver)
    paused = other.get_state(graph, config, subgraphs=True)
    assert paused.interrupts[0].value == {"about": Model(point=Point(1))}
    assert paused.tasks[0].state.values["points"] == [Point(0), Point(1)]
    assert other.on(graph.checkpointer, "recover", config["configurable"]["thread_id"]).interrupts[0].value == {
        "about": Model(point=Point(1))
    }
    with pytest.raises(ValueNotRestorable, match=r"channel 'points'.*Point, which .* graph\.checkpointer"):
        other.call("recover", config["configurable"]["thread_id"])
    done = other.invoke(graph, Command(resume=Point(9)), config)
    assert done["points"][-1] == Point(9)
    assert done["model"] == Model(point=Point(1))
    expected = other.get_state(graph, config)
    four.update_state(graph, config, {"points": [Point(5)]})
    with pytest.raises(StateConflict):
        other.update_state(graph, expect(expected), {"points": [Point(6)]})


@pytest.mark.usefixtures("strict")
def test_a_strict_graph_and_a_type_that_no_schema_names(open_four: Callable[..., Flavoured]) -> None:
    four, thread = open_four(), str(uuid4())
    graph = build().compile(checkpointer=four.saver)
    four.invoke(graph, {"points": [Point(0)], "anything": [Stranger(name="x")]}, at(thread))
    for read in (
        lambda: four.get_state(graph, at(thread)),
        lambda: four.invoke(graph, Command(resume=Point(9)), at(thread)),
        lambda: four.get_state_history(graph, at(thread)),
    ):
        with pytest.raises(ValueNotRestorable, match=f"{thread}.*channel 'anything'.*{NAME}") as caught:
            read()
        assert HOW in str(caught.value)
    allowing = open_four(serde=JsonPlusSerializer(allowed_msgpack_modules=ALLOWED))
    again = build().compile(checkpointer=allowing.saver)
    assert allowing.get_state(again, at(thread)).values["anything"] == [Stranger(name="x")]


@pytest.mark.usefixtures("strict")
def test_a_strict_ledger_is_moved_as_it_is(open_four: Callable[..., Flavoured]) -> None:
    """Moving makes no objects, and needs nothing allowed; an allow-list does not change that."""
    four, thread = open_four(), str(uuid4())
    save(four, at(thread), "1", {"a": [Stranger(name="x"), AIMessage("y" * 2000, id="1")]})
    serde = VerbatimSerializer().with_msgpack_allowlist([Point])
    mover = open_four(serde=serde)
    copy = str(uuid4())
    save(mover, at(copy), "1", mover.get_tuple(at(thread)).checkpoint["channel_values"])
    allowing = open_four(serde=JsonPlusSerializer(allowed_msgpack_modules=ALLOWED))
    values = [allowing.get_tuple(at(t)).checkpoint["channel_values"] for t in (thread, copy)]
    assert values[0] == values[1] == {"a": [Stranger(name="x"), AIMessage("y" * 2000, id="1")]}


def test_by_default_graphs_with_types_of_their_own_just_run(four: Flavoured) -> None:
    """Without LangGraph's variable no graph tells its saver of its types: strictness by default would stop this one."""
    config = at(str(uuid4()))
    graph = build().compile(checkpointer=four.saver)
    four.invoke(graph, {"points": [Point(0)], "anything": Stranger(name="x")}, config)
    assert four.get_state(graph, config).values["anything"] == Stranger(name="x")
    assert four.saver.with_allowlist([("a", "B")]) is four.saver
