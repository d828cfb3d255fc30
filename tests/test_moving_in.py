"""`lgledger import`: databases of every version of the official savers, and what cannot be moved."""

import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Interrupt, interrupt
from psycopg import errors as pg
from typer.testing import CliRunner

from langgraph_ledger import LedgerSaver
from langgraph_ledger.cli import official
from langgraph_ledger.cli.app import app
from langgraph_ledger.errors import InvalidInput, NotTransferred
from langgraph_ledger.transfers import transfer
from tests.direct import at, save
from tests.four_ways import Backend, Flavoured
from tests.golden.sources import FOLDER, VERSIONS
from tests.golden.sources.graphs import GRAPHS, NUMBER, TAGS
from tests.installed import older_than
from tests.test_transfer import Order, State, asking, seen

TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
COLUMNS = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public' ORDER BY 1, 2"
KEY = {"key": b"0123456789abcdef"}


def lgledger(*arguments: str) -> Any:
    return CliRunner().invoke(app, [*arguments])


def config(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


@pytest.fixture
def source_of(backend: Backend, tmp_path: Path, fresh_postgres_url: Callable[[], str]) -> Callable[[str], str]:
    """Each call gives a copy of a golden database of the same kind as the test's ledger."""

    def copied(version: str) -> str:
        if backend.kind == "sqlite":
            return str(shutil.copy(FOLDER / f"sqlite-{version}.db", tmp_path / "source.db"))
        url = fresh_postgres_url()
        with psycopg.connect(url) as connection:
            connection.execute((FOLDER / f"postgres-{version}.sql").read_bytes())
        return url

    return copied


def content(place: str) -> Any:
    """All of a database, comparable."""
    if "://" not in place:
        return Path(place).read_bytes()
    with psycopg.connect(place) as connection:
        tables = [name for (name,) in connection.execute(TABLES)]
        rows = [
            connection.execute(f"SELECT xmin::text, t::text FROM {name} t ORDER BY 2").fetchall() for name in tables
        ]  # type: ignore[arg-type]
        return tables, connection.execute(COLUMNS).fetchall(), rows


@pytest.mark.skipif(older_than("langgraph", "1.2.13"), reason="LangGraph cannot answer questions of its own 0.2 before")
@pytest.mark.parametrize("version", VERSIONS)
def test_a_database_of_an_old_version(version: str, backend: Backend, source_of: Callable[[str], str]) -> None:
    """Its threads are gone on with by today's LangGraph, and it stays as it was."""
    source = source_of(version)
    before = content(source)
    done = lgledger("import", "--from", source, "--url", backend.url, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["threads"] == len(GRAPHS)
    assert content(source) == before
    assert "work, work, work" in lgledger("show", "spreading", "--url", backend.url).stdout
    with LedgerSaver(backend.url) as saver:
        ends = {name: resumed(name, saver) for name in GRAPHS}
        assert [saver.verify(name) for name in GRAPHS] == [[]] * len(GRAPHS)
    spoken = {name: [message.content for message in end["messages"]] for name, end in ends.items()}
    assert spoken == {
        "asking": ["begin", "thinking", "that"],
        "nested": ["begin", "thinking", "that"],
        "spreading": ["begin", "thinking"],
        "forked": ["changed", "thinking", "that"],
    }
    assert sorted(ends["spreading"]["done"]) == ["x of 2", "y of 2", "z of 2"]
    for end in ends.values():
        assert (end["tags"], end["number"]) == (TAGS, NUMBER)


def resumed(name: str, saver: LedgerSaver) -> Any:
    graph = GRAPHS[name](saver)
    if name == "spreading":
        assert graph.get_state(config(name)).next == ("work",) * 3
        return graph.invoke(None, config(name))
    assert [question.value for question in saver.recover(name).interrupts] == ["what?"]
    return graph.invoke(Command(resume="that"), config(name))


def test_questions_of_before_they_had_ids(backend: Backend) -> None:
    """Each task's is reported, and what is asked in a subgraph once."""
    with LedgerSaver(backend.url) as saver:
        place = save(Flavoured(saver, None), at("t"), "1", {"x": 1})
        for task in ("one", "two"):
            saver.put_writes(place, [("__interrupt__", Interrupt(value=f"{task}?"))], task)
        below = save(Flavoured(saver, None), at("t", ns="inner:two"), "2", {"x": 1})
        saver.put_writes(below, [("__interrupt__", [Interrupt(value="two?")])], "three")
        asked = saver.recover("t").interrupts
        assert {(question.value, question.agent_id) for question in asked} == {("one?", ""), ("two?", "inner:two")}
        assert len(asked) == 2


def test_a_source_cannot_be_written_to(backend: Backend, source_of: Callable[[str], str]) -> None:
    with official.reading(source_of("2.0.11")) as saver:
        found = saver.get_tuple(config("asking"))
        assert found is not None
        with pytest.raises((sqlite3.OperationalError, pg.ReadOnlySqlTransaction)):
            saver.put_writes(found.config, [("messages", [])], "task")


def test_a_file_without_a_write_ahead_log(tmp_path: Path, sqlite_path: str) -> None:
    """What `VACUUM INTO` gives: SqliteSaver cannot read it without changing it first."""
    file, copy = shutil.copy(FOLDER / "sqlite-2.0.1.db", tmp_path), str(tmp_path / "copy.db")
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("VACUUM INTO ?", (copy,))
    before = content(copy)
    assert lgledger("import", "--from", copy, "--url", sqlite_path).exit_code == 0
    assert content(copy) == before
    assert not Path(f"{copy}-wal").exists()


def test_what_no_saver_of_today_can_read(backend: Backend, tmp_path: Path, fresh_postgres_url: Any) -> None:
    for columns, reason in (
        ("thread_id TEXT, thread_ts TEXT", "before 0.2"),
        ("thread_id TEXT", "ShallowPostgresSaver"),
    ):
        statement = f"CREATE TABLE checkpoints ({columns})"
        if backend.kind == "sqlite":
            source = str(tmp_path / f"{reason}.db")
            with closing(sqlite3.connect(source)) as file:
                file.execute(statement)
        else:
            source = fresh_postgres_url()
            with psycopg.connect(source) as connection:
                connection.execute(statement)  # type: ignore[arg-type]
        refused = lgledger("import", "--from", source, "--url", backend.url)
        assert refused.exit_code == 2
        assert reason in " ".join(refused.output.split())


@pytest.fixture
def made(backend: Backend, tmp_path: Path, fresh_postgres_url: Callable[[], str]) -> Any:
    """The place of a database of an official saver, and that saver with a serializer of one's choice."""
    place = str(tmp_path / "official.db") if backend.kind == "sqlite" else fresh_postgres_url()
    saver_of: Any = SqliteSaver if backend.kind == "sqlite" else PostgresSaver

    @dataclass
    class Made:
        url = place

        def __init__(self) -> None:
            self.manager = saver_of.from_conn_string(place)
            self.saver = self.manager.__enter__()
            self.saver.setup()

        def using(self, serde: Any) -> Any:
            return saver_of(self.saver.conn, serde=serde)

    found = Made()
    yield found
    found.manager.__exit__(None, None, None)


def test_a_thread_that_cannot_be_moved_does_not_keep_the_others(made: Any, backend: Backend) -> None:
    encrypted = EncryptedSerializer.from_pycryptodome_aes(**KEY)
    for thread, serde in (("a", None), ("b", encrypted), ("c", None)):
        asking(made.using(serde)).invoke({"items": [thread]}, config(thread))
    done = lgledger("import", "--from", made.url, "--url", backend.url, "--json")
    report = json.loads(done.stdout)
    assert (done.exit_code, report["threads"], [*report["not_moved"]]) == (1, 2, ["b"])
    assert "thread 'b'" in report["not_moved"]["b"]
    assert "encrypted" in report["not_moved"]["b"]
    assert "not moved: NotTransferred: thread 'b'" in done.stderr
    with LedgerSaver(":memory:", serde=encrypted) as saver:
        assert transfer(made.using(encrypted), saver, ["b"]).threads == 1
        assert asking(saver).invoke(Command(resume="that"), config("b"))["items"][-1] == "that"


def test_what_was_pickled(made: Any, backend: Backend) -> None:
    """SqliteSaver pickles the whole checkpoint, which cannot be opened without the risk of running code in it."""
    serde = JsonPlusSerializer(pickle_fallback=True)
    graph = StateGraph(dict).add_node("turn", lambda state: {"z": state["z"] * 1j}).add_edge(START, "turn")
    graph.compile(checkpointer=made.using(serde)).invoke({"z": 2 + 1j}, config("t"))
    done = lgledger("import", "--from", made.url, "--url", backend.url)
    with LedgerSaver(backend.url, serde=serde) as saver:
        if backend.kind == "sqlite":
            assert done.exit_code == 1
            assert "thread 't'" in done.stderr
            assert "pickle" in done.stderr
            transfer(made.using(serde), saver)
        else:
            assert done.exit_code == 0, done.stderr
        assert graph.compile(checkpointer=saver).get_state(config("t")).values == {"z": -1 + 2j}


def test_types_that_a_serializer_does_not_allow(sqlite_path: str) -> None:
    """It would give what the object was made of, and the type would be lost."""
    strict = JsonPlusSerializer(allowed_msgpack_modules=None)
    lenient = strict.with_msgpack_allowlist([Order])
    graph = StateGraph(dict).add_node("turn", lambda state: {"order": Order(1, ("a",))}).add_edge(START, "turn")
    source = InMemorySaver(serde=lenient)
    graph.compile(checkpointer=source).invoke({"order": None}, config("t"))
    with (
        LedgerSaver(sqlite_path, serde=strict) as saver,
        pytest.raises(NotTransferred, match=r"thread 't': the target's serializer does not allow .*\.Order"),
    ):
        transfer(source, saver)
    source.serde = strict
    with LedgerSaver(":memory:", serde=lenient) as saver:
        with pytest.raises(NotTransferred, match=r"thread 't': the source's serializer does not allow .*\.Order"):
            transfer(source, saver)
        assert saver.sessions() == []


KILLED = """
import os, signal, sys
from langgraph_ledger import LedgerSaver
from langgraph_ledger.cli import moving, official

class Killed(LedgerSaver):
    left = 6
    def put(self, *args):
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().put(*args)

moving.LedgerSaver = Killed
with official.reading(sys.argv[1]) as source, moving._ledger(sys.argv[2], None) as target:
    moving._move(source, target, None, False)
"""


def test_an_import_that_was_killed_goes_on(made: Any, backend: Backend) -> None:
    for thread in ("a", "b", "c"):
        asking(made.saver).invoke({"items": [thread]}, config(thread))
    killed = subprocess.run([sys.executable, "-c", KILLED, made.url, backend.url], capture_output=True, timeout=60)
    assert killed.returncode == -9, killed.stderr
    with LedgerSaver(backend.url) as saver:
        assert 0 < saver.stats().checkpoints < len([*made.saver.list(None)])
        assert lgledger("import", "--from", made.url, "--url", backend.url).exit_code == 0
        for thread in ("a", "b", "c"):
            assert seen(saver, thread) == seen(made.saver, thread)
        assert saver.rejected_writes() == []


class Stopped(BaseException):
    pass


class Stopping(LedgerSaver):
    """Stops before it stores something for the last time that is `left` to it."""

    left = 0

    def put(self, *args: Any) -> Any:
        self.count()
        return super().put(*args)

    def put_writes(self, *args: Any) -> None:
        self.count()
        super().put_writes(*args)

    def count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Stopped


def test_a_transfer_goes_on_wherever_it_was_stopped(backend: Backend) -> None:
    source = InMemorySaver()
    asking(source).invoke({"items": ["begin"]}, config("t"))
    expected, steps = seen(source, "t"), 0
    while True:
        steps += 1
        if backend.kind == "sqlite":
            place: Any = {"target": f"{backend.url}-{steps}"}
        else:
            place = {"target": backend.url, "schema": f"stopped{steps}"}
        with Stopping(**place) as saver:
            saver.left = steps
            try:
                transfer(source, saver)
                break
            except Stopped:
                pass
        with LedgerSaver(**place) as saver:
            transfer(source, saver)
            assert seen(saver, "t") == expected
            assert saver.rejected_writes() == []
    assert steps > 8


def test_a_full_disk(tmp_path: Path, sqlite_path: str) -> None:
    with SqliteSaver.from_conn_string(str(tmp_path / "official.db")) as source:
        for thread in ("a", "b", "c"):
            asking(source).invoke({"items": [os.urandom(150_000).hex()]}, config(thread))
    command = [sys.executable, "-m", "langgraph_ledger", "import", "--from", str(tmp_path / "official.db")]
    limit = 400_000

    def lay_limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    full = subprocess.run(
        [*command, "--url", sqlite_path], preexec_fn=lay_limit, capture_output=True, text=True, timeout=60
    )
    assert full.returncode == 1
    assert full.stderr.strip().startswith("DatabaseError: ")
    assert len(full.stderr.strip().splitlines()) == 1
    done = lgledger(*command[3:], "--url", sqlite_path, "--json")
    assert (done.exit_code, json.loads(done.stdout)["threads"]) == (0, 3), done.stderr


def test_what_the_target_has_of_its_own_is_not_overwritten(made: Any, backend: Backend) -> None:
    asking(made.saver).invoke({"items": ["begin"]}, config("t"))
    with LedgerSaver(backend.url) as saver:
        transfer(made.saver, saver)
        head = saver.get_tuple(config("t"))
        assert head is not None
        task = saver.recover("t").interrupts[0].task_id
        saver.put_writes(head.config, [("__resume__", ["mine"])], task)
        before = seen(saver, "t")
        with pytest.raises(
            InvalidInput, match=r"thread 't' is in use: .* with writes of tasks that the source does not"
        ):
            transfer(made.saver, saver)
        assert seen(saver, "t") == before
        asking(saver).invoke(Command(resume="mine"), config("t"))
        before = seen(saver, "t")
        refused = lgledger("import", "--from", made.url, "--url", backend.url)
        assert refused.exit_code == 1
        assert "which the source does not have" in refused.stderr
        assert seen(saver, "t") == before


def test_another_checkpoint_of_the_same_id_is_not_overwritten() -> None:
    source, target = InMemorySaver(), InMemorySaver()
    asking(source).invoke({"items": ["begin"]}, config("t"))
    transfer(source, target)
    head = target.get_tuple(config("t"))
    assert head is not None
    changed: Any = {**head.checkpoint, "ts": "another moment"}
    target.put(head.parent_config or head.config, changed, head.metadata, {})
    before = seen(target, "t")
    with pytest.raises(InvalidInput, match=f"has checkpoint {head.checkpoint['id']} with another checkpoint than"):
        transfer(source, target)
    assert seen(target, "t") == before


def test_a_second_question_comes_over_later(backend: Backend) -> None:
    """A task that has asked again has another question under the same checkpoint: the target's gives way."""

    def twice(state: Any) -> Any:
        return {"items": [interrupt("first?"), interrupt("second?")]}

    graph = StateGraph(State).add_node("twice", twice).add_edge(START, "twice")
    source = InMemorySaver()
    graph.compile(checkpointer=source).invoke({"items": []}, config("t"))
    with LedgerSaver(backend.url) as saver:
        transfer(source, saver)
        graph.compile(checkpointer=source).invoke(Command(resume=1), config("t"))
        transfer(source, saver)
        assert [question.value for question in saver.recover("t").interrupts] == ["second?"]
        assert graph.compile(checkpointer=saver).invoke(Command(resume=2), config("t"))["items"] == [1, 2]
