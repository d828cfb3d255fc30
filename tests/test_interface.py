"""How a saver is made, opened, shared and closed, what may name a thread, and what must never be in the database."""

import asyncio
import copy
import dataclasses
import gc
import json
import operator
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict
from uuid import UUID, uuid4

import ormsgpack
import psycopg
import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph

from langgraph_ledger import LedgerSaver, StateConflict, errors
from langgraph_ledger.runs import Marked, Run, Runs
from tests.direct import at, checkpoint, contents, save
from tests.four_ways import Backend, Flavoured

DEAD = "postgresql://postgres@127.0.0.1:1/nowhere"
AT_MODULE_LEVEL = LedgerSaver("made-at-import-and-never-used.db")


class State(TypedDict, total=False):
    items: Annotated[list[Any], operator.add]


def graph_on(saver: Any, *nodes: Callable[[State], Any]) -> Any:
    return StateGraph(State).add_sequence(nodes).add_edge(START, nodes[0].__name__).compile(checkpointer=saver)


def answer(state: State) -> State:
    return {"items": [f"answer {len(state['items'])}"]}


def finish(state: State) -> State:
    return {"items": ["end"]}


def config(thread: Any = None, **more: Any) -> Any:
    return {"configurable": {"thread_id": thread or str(uuid4()), **more}}


# --- making, opening, closing


def test_the_constructor_does_nothing_yet(tmp_path: Path) -> None:
    for target in (
        tmp_path / "a.db",
        str(tmp_path / "no" / "b.db"),
        ":memory:",
        "sqlite:///x",
        DEAD,
        "host=127.0.0.1 port=1",
    ):
        saver = LedgerSaver(target)
        saver.close()
        saver.close()
    assert list(tmp_path.iterdir()) == []
    assert not Path("made-at-import-and-never-used.db").exists()
    assert "made-at-import" in repr(AT_MODULE_LEVEL)


def test_one_saver_in_every_kind_of_block(backend: Backend) -> None:
    thread = str(uuid4())
    with LedgerSaver(backend.url) as saver:
        save(saver, at(thread), "1")
    with LedgerSaver.from_conn_string(backend.url) as saver:
        save(saver, saver.get_tuple(at(thread)).config, "2")

    async def inside() -> list[str]:
        async with LedgerSaver(backend.url) as saver:
            await saver.setup()
            save_config = (await saver.aget_tuple(at(thread))).config
        async with LedgerSaver.from_conn_string(backend.url, pipeline=True) as saver:
            await saver.asetup()
            assert (await saver.aget_tuple(save_config)).checkpoint["id"] == "2"
            found = [t.checkpoint["id"] async for t in saver.alist(at(thread))]
        await saver.aclose()
        await saver.aclose()
        return found

    assert asyncio.run(inside()) == ["2", "1"]
    itself = LedgerSaver.from_conn_string(backend.url)
    itself.setup()
    itself.setup()
    assert [t.checkpoint["id"] for t in itself.list(at(thread))] == ["2", "1"]
    itself.close()
    itself.close()


def test_setup_is_never_needed_and_harmless(four: Flavoured, backend: Backend) -> None:
    assert four.get_tuple(at(str(uuid4()))) is None
    before = contents(backend)
    four.call("setup")
    four.call("setup")
    assert contents(backend) == before
    assert [row[:2] for row in before["ledger_migrations"]] == [(1, "ledger"), (2, "chains")]


def test_setup_without_await_on_a_running_loop(backend: Backend) -> None:
    async def inside() -> Any:
        async with LedgerSaver(backend.url) as saver:
            saver.setup()
            return await saver.aget_tuple(at("t"))

    assert asyncio.run(inside()) is None


def test_savers_on_two_databases_know_nothing_of_each_other(tmp_path: Path) -> None:
    with LedgerSaver(tmp_path / "a.db") as one, LedgerSaver(tmp_path / "b.db") as other:
        save(one, at("t"), "1")
        one.get_tuple(at("t"))
        save(other, at("t"), "1")


def test_every_error_is_raised_to_somebody(backend: Backend) -> None:
    """An error that nobody asks for is logged by asyncio when it is collected: noise that looks like a fault."""
    unheard: list[Any] = []

    async def inside() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: unheard.append(context))
        thread = str(uuid4())
        async with LedgerSaver(backend.url) as one, LedgerSaver(backend.url) as other:
            await one.aput(at(thread), checkpoint("1"), {}, {})
            stale, fresh = (await one.aget_tuple(at(thread))).config, (await other.aget_tuple(at(thread))).config
            await other.aput(fresh, checkpoint("2"), {}, {})
            tasks = (one.aput_writes(stale, [("a", n)], f"task {n}") for n in range(12))
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(error) for error in found] == [StateConflict] * 12

    asyncio.run(inside())
    gc.collect()
    assert unheard == []


# --- the allow-list


@dataclasses.dataclass
class Car:
    wheels: int


def test_with_allowlist_is_a_view_of_the_same_saver(open_four: Callable[..., Flavoured]) -> None:
    strict = open_four(serde=JsonPlusSerializer(allowed_msgpack_modules=None))
    view = Flavoured(strict.saver.with_allowlist([(Car.__module__, "Car")]), strict.runner)
    thread = str(uuid4())
    save(strict, at(thread), "1", {"car": Car(4), "many": [Car(n) for n in range(200)]})
    with pytest.raises(errors.ValueNotRestorable, match="Car"):
        strict.get_tuple(at(thread))
    found = view.get_tuple(at(thread))
    assert found.checkpoint["channel_values"] == {"car": Car(4), "many": [Car(n) for n in range(200)]}
    save(view, found.config, "2")
    strict.put_writes(view.get_tuple(at(thread)).config, [("car", Car(5))], "task")
    assert view.get_tuple(at(thread)).pending_writes == [("task", "car", Car(5))]
    view.close()
    with pytest.raises(RuntimeError, match="was closed"):
        strict.get_tuple(at(thread))


# --- what names a thread


NAMES = [
    "it's", 'a "quoted" name', "100 %s %(x)s %%", "a:b|c/d\\e", "'; DROP TABLE sessions; --", "Zoë 東京 العربية",
    "🦜🔗", "\n\t", "?1 :session_id $1 {schema}", "00000000-0000-0000-0000-000000000000", "x" * 512,
]  # fmt: skip


def test_thread_names(four: Flavoured) -> None:
    graph = graph_on(four.saver, answer)
    for name in NAMES:
        four.invoke(graph, {"items": [name]}, config(name))
    for name in NAMES:
        assert four.get_state(graph, config(name)).values == {"items": [name, "answer 1"]}
        assert {t.config["configurable"]["thread_id"] for t in four.list(config(name))} == {name}
    assert {s.session_id for s in four.call("sessions")} == set(NAMES)
    for name in NAMES:
        four.call("delete_thread", name)
    assert four.list(None) == []


@pytest.mark.parametrize("thread", [7, -(2**70), UUID("12345678123456781234567812345678")], ids=str)
def test_threads_named_by_int_and_uuid(four: Flavoured, thread: Any) -> None:
    graph = graph_on(four.saver, answer)
    four.invoke(graph, {"items": [1]}, config(thread))
    four.invoke(graph, {"items": [2]}, config(thread))
    expected = [1, "answer 1", 2, "answer 3"]
    assert four.get_state(graph, config(thread)).values["items"] == expected
    assert four.get_state(graph, config(str(thread))).values["items"] == expected
    four.call("copy_thread", thread, 8)
    four.call("delete_thread", thread)
    assert four.get_tuple(config(thread)) is None
    assert four.get_state(graph, config(8)).values["items"] == expected


def test_a_namespace_of_none_is_the_root(four: Flavoured) -> None:
    thread = str(uuid4())
    save(four, {"configurable": {"thread_id": thread, "checkpoint_ns": None}}, "1")
    assert four.get_tuple({"configurable": {"thread_id": thread}}).config == at(thread, "1")


# --- versions and marks


def test_next_version() -> None:
    saver = LedgerSaver(":memory:")
    versions = [saver.get_next_version(None, None)]
    for _ in range(1100):
        versions.append(saver.get_next_version(versions[-1], None))
    assert versions == sorted(set(versions))
    assert all(isinstance(v, str) for v in versions)
    assert type(versions[-1])() == ""
    assert type(versions[-1])() < versions[0]
    assert saver.get_next_version("00000000000000000000000000000041.0.123", None).startswith("0000000042")
    assert saver.get_next_version(41, None) == 42
    assert saver.get_next_version(41.5, None) == 42.0
    assert isinstance(saver.get_next_version(41.5, None), float)


def test_a_mark_is_not_seen(four: Flavoured) -> None:
    graph, where = graph_on(four.saver, answer), config()
    four.invoke(graph, {"items": [1]}, where)
    state = four.get_state(graph, where)
    marked = state.config["configurable"]["checkpoint_id"]
    assert isinstance(marked, Marked)
    plain = str(marked)
    assert type(plain) is str
    assert marked == plain
    assert hash(marked) == hash(plain)
    assert {plain: 1}[marked] == 1
    assert state.config == {"configurable": {**where["configurable"], "checkpoint_ns": "", "checkpoint_id": plain}}
    assert repr(state.config) == repr(
        {"configurable": {**where["configurable"], "checkpoint_ns": "", "checkpoint_id": plain}}
    )
    for copied in (pickle.loads(pickle.dumps(marked)), copy.deepcopy(marked), copy.copy(marked)):
        assert copied == plain
    assert type(pickle.loads(pickle.dumps(state.config))["configurable"]["checkpoint_id"]) is str
    assert json.loads(json.dumps(state.config)) == state.config
    assert ormsgpack.unpackb(ormsgpack.packb(marked)) == plain
    assert UUID(marked) == UUID(plain)
    assert Marked("a", Run(Runs(), "t", 1)) == Marked("a", Run(Runs(), "t", 2))
    assert Marked("a") < Marked("b") > "a"
    assert f"{marked}" == "%s" % marked == plain  # noqa: UP031


# --- Postgres schemas


ODD = ["Agents", 'odd "name"; --', "Ünïcode 東", "a.b", "x" * 63, "a%s", "a :b", "a'b"]


@pytest.mark.parametrize("name", ODD)
def test_schemas_are_apart(fresh_postgres_url: Callable[[], str], name: str) -> None:
    url, thread = fresh_postgres_url(), str(uuid4())
    with LedgerSaver(url) as public, LedgerSaver(url, schema=name) as other:
        save(public, at(thread), "1", {"where": "public"})
        save(other, at(thread), "2", {"where": name})
        assert [t.checkpoint["channel_values"] for t in public.list(None)] == [{"where": "public"}]
        assert [t.checkpoint["channel_values"] for t in other.list(None, filter={"step": 0})] == [{"where": name}]
        other.copy_thread(thread, "copy")
        other.prune([thread, "copy"])
        public.delete_thread(thread)
        assert [s.session_id for s in public.sessions()] == []
        assert {s.session_id for s in other.sessions()} == {thread, "copy"}
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT schemaname FROM pg_tables WHERE tablename = 'checkpoint_log'").fetchall()
        assert sorted(found) == sorted([("public",), (name,)])


def test_the_search_path_is_left_alone(fresh_postgres_url: Callable[[], str]) -> None:
    url = fresh_postgres_url()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA mine")
        connection.execute("SET search_path TO mine")
        saver = LedgerSaver(connection, schema="agents")
        save(saver, at("t"), "1")
        assert connection.execute("SHOW search_path").fetchone() == ("mine",)
        assert connection.execute("SELECT count(*) FROM agents.checkpoint_log").fetchone() == (1,)
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'mine'").fetchone() == (0,)


def test_sqlite_does_not_load_psycopg(tmp_path: Path) -> None:
    script = f"""
import sys
from langgraph_ledger import LedgerSaver, StateConflict
with LedgerSaver({str(tmp_path / "x.db")!r}) as saver:
    assert saver.get_tuple({{"configurable": {{"thread_id": "1"}}}}) is None
print(sorted(name for name in sys.modules if name.startswith(("psycopg", "aiosqlite"))))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_the_example_of_the_readme(tmp_path: Path) -> None:
    saver = LedgerSaver(tmp_path / "agents.db")
    builder = StateGraph(State).add_sequence([answer, finish]).add_edge(START, "answer")
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"items": ["hello"]}, {"configurable": {"thread_id": "1"}})
    assert [session.status for session in saver.sessions()] == ["completed"]
    saver.close()
