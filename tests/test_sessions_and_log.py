"""What the ledger knows by itself: where each session is in its life, the log, rejected writes, and state for SQL."""

import operator
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypedDict
from uuid import uuid4

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt

from langgraph_ledger import LogEntry, Session, StateConflict
from tests.direct import at, query, save, shared_backend
from tests.four_ways import Backend, Flavoured

backend = shared_backend
durabilities = pytest.mark.parametrize("durability", ["sync", "async", "exit"])


class State(TypedDict, total=False):
    items: Annotated[list[Any], operator.add]
    count: int


Node = Callable[[State], Any]


def graph_on(four: Flavoured, *nodes: Node, **options: Any) -> Any:
    builder = StateGraph(State).add_sequence(nodes).add_edge(START, nodes[0].__name__)
    return builder.compile(checkpointer=four.saver, **options)


@pytest.fixture
def config() -> Any:
    return {"configurable": {"thread_id": str(uuid4())}}


def session(four: Flavoured, config: Any) -> Session | None:
    thread = config["configurable"]["thread_id"]
    return next((s for s in four.call("sessions", limit=10**6) if s.session_id == thread), None)


def status(four: Flavoured, config: Any) -> str | None:
    found = session(four, config)
    return found.status if found else None


def work(state: State) -> State:
    return {"items": ["worked"]}


def ask(state: State) -> State:
    return {"items": [interrupt("well?")]}


# --- sessions


@durabilities
def test_a_session_pauses_and_completes(four: Flavoured, config: Any, durability: str) -> None:
    seen = []

    def look(state: State) -> State:
        with_sync = four.saver.sessions(limit=10**6)
        seen.append({s.session_id: s.status for s in with_sync}.get(config["configurable"]["thread_id"]))
        return {"count": 1}

    graph = graph_on(four, look, ask, work)
    assert status(four, config) is None
    four.invoke(graph, {"items": ["in"]}, config, durability=durability)
    paused = session(four, config)
    assert paused is not None
    assert paused.status == "paused"
    four.invoke(graph, Command(resume="yes"), config, durability=durability)
    completed = session(four, config)
    assert completed is not None
    assert completed.status == "completed"
    assert completed.started_at == paused.started_at
    assert completed.last_active_at > paused.last_active_at
    four.invoke(graph, {"items": ["again"]}, config, durability=durability)
    assert status(four, config) == "paused"
    if durability == "sync":
        assert seen == ["active", "active"]


def test_a_session_is_active_while_a_resumed_run_works(four: Flavoured, config: Any) -> None:
    seen = []

    def look(state: State) -> State:
        seen.extend(
            s.status for s in four.saver.sessions(limit=10**6) if s.session_id == config["configurable"]["thread_id"]
        )
        return {"count": 1}

    graph = graph_on(four, ask, look)
    four.invoke(graph, {"items": []}, config, durability="sync")
    assert status(four, config) == "paused"
    four.invoke(graph, Command(resume="yes"), config, durability="sync")
    assert seen == ["active"]
    assert status(four, config) == "completed"


@durabilities
def test_a_node_that_raises_fails_the_session(four: Flavoured, config: Any, durability: str) -> None:
    broken = [True]

    def fragile(state: State) -> State:
        if broken:
            raise OSError(broken.pop())
        return {"count": 1}

    graph = graph_on(four, work, fragile)
    with pytest.raises(OSError, match="True"):
        four.invoke(graph, {"items": ["in"]}, config, durability=durability)
    assert status(four, config) == "failed"
    four.invoke(graph, None, config, durability=durability)
    assert status(four, config) == "completed"


def test_a_breakpoint_and_an_update_leave_the_session_active(four: Flavoured, config: Any) -> None:
    graph = graph_on(four, work, ask, interrupt_before=["ask"])
    four.invoke(graph, {"items": ["in"]}, config)
    assert status(four, config) in ("active", "paused")
    four.update_state(graph, config, {"items": ["by hand"]}, as_node="work")
    assert status(four, config) in ("active", "paused")
    four.update_state(graph, config, {"items": ["over"]}, as_node="ask")
    assert status(four, config) == "completed"


def test_parallel_tasks(four: Flavoured, config: Any) -> None:
    def split(state: State) -> Any:
        return Command(goto=[Send("each", {"n": n}) for n in range(3)])

    def each(task: Any) -> State:
        return {"items": [interrupt("stop") if task["n"] == 1 else task["n"]]}

    builder = StateGraph(State).add_node(split).add_node(each).add_edge(START, "split")
    graph = builder.compile(checkpointer=four.saver)
    four.invoke(graph, {"items": []}, config)
    assert status(four, config) == "paused"
    four.invoke(graph, Command(resume="go"), config)
    assert status(four, config) == "completed"


def test_an_interrupt_in_a_subgraph_pauses_the_session(four: Flavoured, config: Any) -> None:
    inner = StateGraph(State).add_sequence([work, ask]).add_edge(START, "work").compile()
    graph = StateGraph(State).add_node("inner", inner).add_edge(START, "inner").compile(checkpointer=four.saver)
    four.invoke(graph, {"items": []}, config)
    assert status(four, config) == "paused"
    four.invoke(graph, Command(resume="go"), config)
    assert status(four, config) == "completed"


def test_metadata_and_times(four: Flavoured, config: Any) -> None:
    config["configurable"] |= {"user_id": "user 7", "api_key": "secret"}
    config["metadata"] = {"team": "blue", "n": 3}
    before = datetime.now(UTC) - timedelta(seconds=1)
    four.invoke(graph_on(four, work), {"items": []}, config)
    found = session(four, config)
    assert found is not None
    assert {"user_id": "user 7", "team": "blue", "n": 3}.items() <= found.metadata.items()
    assert "api_key" not in found.metadata
    assert before < found.started_at <= found.last_active_at < datetime.now(UTC) + timedelta(seconds=1)
    assert found.started_at.utcoffset() == timedelta(0)


def test_choosing_sessions(open_four: Callable[..., Flavoured]) -> None:
    four = open_four()
    for thread in {s.session_id for s in four.call("sessions", limit=10**6)}:
        four.call("delete_thread", thread)
    graph, threads = graph_on(four, work, ask), [f"{n} {uuid4()}" for n in range(6)]
    for thread in threads:
        four.invoke(graph, {"items": []}, at(thread))
    for thread in threads[:2]:
        four.invoke(graph, Command(resume="yes"), at(thread))

    def names(*args: Any, **kwargs: Any) -> list[str]:
        return [s.session_id for s in four.call("sessions", *args, **kwargs)]

    order = [threads[n] for n in (1, 0, 5, 4, 3, 2)]
    assert names() == order
    assert names("completed") == order[:2]
    assert names(status="paused") == order[2:]
    assert names("paused", limit=3) == order[2:5]
    assert names(limit=0) == names("failed") == []
    four.call("delete_thread", threads[5])
    assert names("paused") == order[3:]


# --- the log


def entries(four: Flavoured, config: Any) -> list[LogEntry]:
    found: list[LogEntry] = four.call("history", config["configurable"]["thread_id"])
    return found


def test_history_has_each_checkpoint_in_order(four: Flavoured, config: Any) -> None:
    inner = StateGraph(State).add_sequence([work, ask]).add_edge(START, "work").compile()
    builder = (
        StateGraph(State).add_node(work).add_node("inner", inner).add_edge(START, "work").add_edge("work", "inner")
    )
    graph = builder.compile(checkpointer=four.saver)
    config["metadata"] = {"team": "blue"}
    four.invoke(graph, {"items": ["in"]}, config)
    four.invoke(graph, Command(resume="yes"), config)
    found = entries(four, config)
    tuples = four.list({"configurable": {"thread_id": config["configurable"]["thread_id"]}})
    assert [(e.agent_id, e.checkpoint_id) for e in reversed(found)] == [
        (t.config["configurable"]["checkpoint_ns"], t.config["configurable"]["checkpoint_id"]) for t in tuples
    ]
    assert [e.parent_checkpoint_id for e in reversed(found)] == [
        t.parent_config["configurable"]["checkpoint_id"] if t.parent_config else None for t in tuples
    ]
    assert len({e.agent_id for e in found}) == 2
    assert [e.seq for e in found] == sorted({e.seq for e in found})
    assert {e.checkpoint_type for e in found} == {"checkpoint"}
    assert {e.payload["team"] for e in found} == {"blue"}
    assert [e.payload["step"] for e in found if not e.agent_id] == [-1, 0, 1, 2]
    assert found[0].created_at.utcoffset() == timedelta(0)
    assert entries(four, at("no such thread")) == []


def test_a_run_id_is_in_the_log(four: Flavoured, config: Any) -> None:
    config["metadata"] = {"run_id": "run 7"}
    four.invoke(graph_on(four, work), {"items": []}, config)
    assert {e.run_id for e in entries(four, config)} == {"run 7"}


def test_rejected_writes(four: Flavoured, config: Any) -> None:
    other = at(str(uuid4()))
    for where in (config, other):
        save(four, where, "1")
        stale = four.get_tuple(where)
        save(four, four.get_tuple(where).config, "2")
        with pytest.raises(StateConflict) as caught:
            save(four, stale.config, "3")
        with pytest.raises(StateConflict):
            four.put_writes(stale.config, [("a", 1)], "task")
    thread = config["configurable"]["thread_id"]
    mine = four.call("rejected_writes", thread)
    assert [e.session_id for e in mine] == [thread]
    (entry,) = mine
    assert (entry.checkpoint_type, entry.agent_id, entry.checkpoint_id) == ("write_rejected", "", "3")
    facts = entry.payload
    assert (facts["operation"], facts["version_read"], facts["version_found"]) == ("put", 1, 2)
    assert (facts["checkpoint_read"], facts["checkpoint_found"]) == ("1", "2")
    assert facts["committed"] is False
    assert facts["writer"] != facts["winner"]
    assert "thread has moved on" in facts["message"]
    assert caught.value.version_read == 1
    everyone = [e.session_id for e in four.call("rejected_writes")]
    assert everyone.count(thread) == everyone.count(other["configurable"]["thread_id"]) == 1
    assert [e.checkpoint_type for e in entries(four, config)] == ["checkpoint", "checkpoint", "write_rejected"]
    assert len(four.list(config)) == 2


# --- state for SQL


def test_current_state_can_be_queried(four: Flavoured, config: Any, backend: Backend) -> None:
    """The text is JSON: small plain values as they are, everything else as a short description."""
    thread = config["configurable"]["thread_id"]
    values = {
        "name": "Zoë \0 end", "count": 3, "ratio": 0.5, "flag": True, "none": None, "tags": ["a", "b"],
        "owner": {"id": 7}, "nan": float("nan"), "long": "x" * 5000, "raw": b"123", "many": list(range(100)),
        "when": datetime.now(UTC), "surrogate": "\ud800",
    }  # fmt: skip
    save(four, config, "1", values)

    def field(*path: str) -> Any:
        if backend.kind == "sqlite":
            where = "$." + ".".join(f'"{part}"' for part in path)
            select = f"json_extract(state, '{where}')"
        else:
            select = f"state #>> '{{{','.join(path)}}}'"
        ((found,),) = query(
            backend, f"SELECT {select} FROM agent_state_ledger WHERE session_id = ? AND agent_id = ''", thread
        )
        return (
            found
            if backend.kind == "sqlite"
            else {"true": 1, "3": 3, "7": 7, "0.5": 0.5, "5000": 5000}.get(found, found)
        )

    assert field("name") == "Zoë \u2400 end"
    assert (field("count"), field("ratio"), field("flag"), field("none")) == (3, 0.5, 1, None)
    assert (field("tags", "1") if backend.kind == "postgres" else "b") == "b"
    assert field("owner", "id") == 7
    assert (field("long", "$type"), field("long", "$length")) == ("str", 5000)
    assert field("when", "$type") == "datetime.datetime"
    assert field("nan", "$type") == "float"
    assert field("raw", "$type") == "bytes"
    save(four, at(thread, "1"), "2", {"count": 4})
    assert field("count") == 4 if backend.kind == "sqlite" else field("count") == "4"
    assert field("name") is None
    four.call("delete_thread", thread)
    assert field("count") is None
