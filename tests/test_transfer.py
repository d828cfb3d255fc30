"""Moving between savers: every scenario's threads come over from an official saver, and go back."""

import copy
import itertools
import operator
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from typer.testing import CliRunner

from langgraph_ledger import LedgerSaver
from langgraph_ledger.cli.app import app
from langgraph_ledger.errors import InvalidInput, NotTransferred, ValueNotRestorable
from langgraph_ledger.likeness import same
from langgraph_ledger.transfers import threads_of, transfer
from tests.direct import at, checkpoint, query, save
from tests.four_ways import Backend, Flavoured
from tests.scenarios import CASES, Case, run

Saver = BaseCheckpointSaver[Any]
ONE_OF_EACH = list({case.scenario.name: case for case in CASES if case.flavour == "sync"}.values())


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def official(request: pytest.FixtureRequest) -> Iterator[Saver]:
    if request.param == "memory":
        yield InMemorySaver()
    elif request.param == "sqlite":
        with SqliteSaver.from_conn_string(":memory:") as saver:
            yield saver
    else:
        with PostgresSaver.from_conn_string(request.getfixturevalue("fresh_postgres_url")()) as saver:
            saver.setup()
            yield saver


def seen(saver: Saver, thread: str) -> list[Any]:
    """All that `list` shows of a thread, comparable, and in one order: InMemorySaver lists namespace by namespace."""
    found = [
        (
            item.config["configurable"]["checkpoint_ns"],
            item.checkpoint["id"],
            item.parent_config and item.parent_config["configurable"]["checkpoint_id"],
            saver.serde.dumps_typed({key: part for key, part in item.checkpoint.items() if key != "channel_values"}),
            {name: saver.serde.dumps_typed(value) for name, value in item.checkpoint["channel_values"].items()},
            item.metadata["step"],
            [(task, channel, saver.serde.dumps_typed(value)) for task, channel, value in item.pending_writes or ()],
        )
        for item in saver.list({"configurable": {"thread_id": thread}})
    ]
    return sorted(found, key=lambda item: item[:2])


@pytest.mark.parametrize("case", ONE_OF_EACH, ids=lambda case: case.scenario.name)
def test_every_scenario_comes_over_and_goes_back(case: Case, sqlite_path: str) -> None:
    source, back = InMemorySaver(), InMemorySaver()
    run(case, source)
    with LedgerSaver(sqlite_path) as saver:
        moved = transfer(source, saver)
        assert moved.threads == len(threads_of(source)) == len(threads_of(saver))
        assert saver.rejected_writes() == []
        transfer(saver, back)
        for thread in threads_of(source):
            assert seen(saver, thread) == seen(source, thread) == seen(back, thread)


class State(TypedDict):
    items: Annotated[list[str], operator.add]


def asking(saver: Saver) -> Any:
    def ask(state: State) -> Any:
        return {"items": [interrupt("what?")]}

    inner = StateGraph(State).add_node("ask", ask).add_edge(START, "ask").compile()
    builder = StateGraph(State).add_node("first", lambda state: {"items": ["x" * 3000]}).add_node("inner", inner)
    return builder.add_edge(START, "first").add_edge("first", "inner").compile(checkpointer=saver)


def test_a_pending_interrupt_is_answered_where_it_has_come_to(official: Saver, backend: Backend) -> None:
    config: Any = {"configurable": {"thread_id": "t"}}
    asking(official).invoke({"items": ["begin"]}, config)
    with LedgerSaver(backend.url) as saver:
        assert transfer(official, saver).checkpoints == len([*official.list(config)])
        assert saver.recover("t").interrupts[0].value == "what?"
        there = asking(saver).invoke(Command(resume="that"), config)
        assert there == asking(official).invoke(Command(resume="that"), config)
        assert there["items"][-1] == "that"
        back = InMemorySaver()
        assert transfer(saver, back).threads == 1  # a task has written before the move and after it
        assert asking(back).get_state(config).values == there


def test_a_transfer_that_was_stopped_is_made_again(official: Saver, backend: Backend) -> None:
    for thread in ("a", "b", "c"):
        asking(official).invoke({"items": [thread]}, {"configurable": {"thread_id": thread}})
    done: list[str] = []

    def stop(thread: str, count: int) -> None:
        done.append(thread)
        if len(done) == 2:
            raise KeyboardInterrupt

    with LedgerSaver(backend.url) as saver:
        with pytest.raises(KeyboardInterrupt):
            transfer(official, saver, progress=stop)
        before = saver.stats()
        assert transfer(official, saver).threads == 3
        assert transfer(official, saver).threads == 3
        assert saver.stats().threads == 3 > before.threads
        assert saver.stats().checkpoints == len([*official.list(None)])


def test_the_order_of_keys_that_postgres_does_not_keep(sqlite_path: str, fresh_postgres_url: Callable[[], str]) -> None:
    """PostgresSaver stores checkpoints and their metadata as JSONB, which sorts keys."""
    config: Any = {"configurable": {"thread_id": "t"}, "metadata": {"zebra": {"b": [{"d": 1, "c": 2}]}, "aa": 2.5}}
    for source in (LedgerSaver(sqlite_path), InMemorySaver()):
        asking(source).invoke({"items": ["begin"]}, config)
        with PostgresSaver.from_conn_string(fresh_postgres_url()) as target:
            target.setup()
            moved = transfer(source, target)
            assert moved.checkpoints == len([*source.list(config)])
            assert transfer(source, target) == moved
            assert asking(target).invoke(Command(resume="that"), config)["items"][-1] == "that"
        if isinstance(source, LedgerSaver):
            source.close()
    one, other = {"a": 1, "b": {"c": 1, "d": 2}}, {"a": 1, "b": {"d": 2, "c": 1}}
    assert not same(InMemorySaver(), one, other), "what is in a channel comes over in its order"


def test_more_comes_over_later(official: Saver, backend: Backend) -> None:
    config: Any = {"configurable": {"thread_id": "t"}}
    with LedgerSaver(backend.url) as saver:
        asking(official).invoke({"items": ["begin"]}, config)
        transfer(official, saver)
        asking(official).invoke(Command(resume="that"), config)
        transfer(official, saver, ["t"])
        assert asking(saver).get_state(config).values == asking(official).get_state(config).values


def test_what_does_not_come_over_as_it_was_is_found_out(sqlite_path: str) -> None:
    source = InMemorySaver()
    config: Any = {"configurable": {"thread_id": "t"}}
    asking(source).invoke({"items": ["begin"]}, config)

    class Forgetful(InMemorySaver):
        def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
            changed = copy.deepcopy(checkpoint)
            for value in changed["channel_values"].values():
                if isinstance(value, list):
                    value.append("more")
            return super().put(config, changed, metadata, new_versions)

    with pytest.raises(NotTransferred, match=r"thread 't'.*another channel 'items'"):
        transfer(source, Forgetful())
    with pytest.raises(InvalidInput, match="no checkpoint of thread 'nobody'"):
        transfer(source, InMemorySaver(), ["nobody"])


@dataclass
class Order:
    number: int
    lines: tuple[str, ...]


class Shop(TypedDict):
    orders: Annotated[list[Order], operator.add]
    tags: set[str]


def shop(saver: Saver) -> Any:
    def sell(state: Shop) -> Any:
        number = len(state["orders"])
        return {"orders": [Order(number, ("line " * 400, interrupt(f"sell {number}?")))], "tags": {"sold", str(number)}}

    return StateGraph(Shop).add_node("sell", sell).add_edge(START, "sell").compile(checkpointer=saver)


def test_the_command_line_moves_what_it_does_not_know(
    tmp_path: Any, backend: Backend, fresh_postgres_url: Callable[[], str]
) -> None:
    """Objects of an application's own types come over from the other database and go back, and the command line never
    makes one."""
    kind = "postgres" if backend.kind == "sqlite" else "sqlite"
    names = [str(tmp_path / f"{n}.db") if kind == "sqlite" else fresh_postgres_url() for n in ("from", "to")]
    saver_of: Any = SqliteSaver if kind == "sqlite" else PostgresSaver
    config: Any = {"configurable": {"thread_id": "t"}}
    with saver_of.from_conn_string(names[0]) as official:
        official.setup()
        shop(official).invoke({"orders": [], "tags": {"new"}}, config)
        for answer in range(6):
            shop(official).invoke(Command(resume=str(answer)), config)
            shop(official).invoke({"orders": [], "tags": {"again"}}, config)
        expected = shop(official).get_state(config).values
    command = [sys.executable, "-m", "langgraph_ledger"]
    for part in (["import", "--from", names[0]], ["import", "--from", names[0]], ["export", "--to", names[1]]):
        done = subprocess.run([*command, *part, "--url", backend.url], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout[:27]) == (0, "moved and compared: 1 threa"), done.stderr
    with LedgerSaver(backend.url) as saver, saver_of.from_conn_string(names[1]) as official:
        for there in (saver, official):
            assert shop(there).get_state(config).values == expected
            assert type(expected["orders"][0]) is Order
            assert shop(there).invoke(Command(resume="last"), config)["orders"][-1].lines[1] == "last"
        assert saver.stats().bytes_stored < saver.stats().bytes_of_states / 2, "chunks are shared as always"


def test_what_is_no_database_of_a_saver(tmp_path: Any) -> None:
    (tmp_path / "text").write_text("no database at all, and long enough to be looked at " * 20)
    sqlite3.connect(tmp_path / "empty.db").execute("CREATE TABLE other (x)").connection.close()
    for name in ("text", "empty.db", "nothing.db"):
        found = CliRunner().invoke(app, ["import", "--from", str(tmp_path / name), "--url", str(tmp_path / "l.db")])
        assert found.exit_code == 2, found.output
    assert not (tmp_path / "l.db").exists()


def test_ids_say_nothing_of_a_ledgers_order(tmp_path: Any) -> None:
    """The latest stays the latest; a session that has no checkpoint yet is passed over; what is in use is refused."""
    with LedgerSaver(tmp_path / "a.db") as source, LedgerSaver(tmp_path / "b.db") as target:
        place = at("t")
        for number in range(8, 12):
            place = save(Flavoured(source, None), place, str(number), {"n": 1})
        source.set_ttl("t", None)
        with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
            connection.execute(
                "INSERT INTO sessions (session_id, status, started_at, last_active_at)"
                " SELECT 'empty', status, started_at, last_active_at FROM sessions"
            )
            connection.commit()
        assert transfer(source, target).threads == 1
        assert target.get_tuple(at("t")).checkpoint["id"] == "11"  # type: ignore[union-attr]
        with pytest.raises(NotTransferred, match="another checkpoint for the latest"):
            transfer(source, InMemorySaver())
        save(Flavoured(target, None), target.get_tuple(at("t")).config, "99")  # type: ignore[union-attr]
        with pytest.raises(InvalidInput, match="has checkpoint 99, which the source does not have"):
            transfer(source, target)


def test_a_child_whose_id_sorts_before_its_parents(four: Flavoured, backend: Backend) -> None:
    """As when a thread has gone on where a clock is behind: it comes over in the order of its ids."""
    source = InMemorySaver()
    for step, (parent, made) in enumerate(itertools.pairwise([None, "1", "9", "5", "a"])):
        values, versions = ({} if parent else {"x": "seed"}), {"x": str(step)}
        source.put(at("t", parent), checkpoint(str(made), values, versions), {"step": step}, versions)
        source.put_writes(at("t", made), [("x", made)], "task")
    transfer(source, four.saver)
    line = ["a", "5", "9", "1"]
    assert four.call("ancestors", at("t")) == line
    asked = {"config": at("t"), "channels": ["x"]}
    history = source.get_delta_channel_history(**asked)
    assert (history["x"].get("seed"), [value for *_, value in history["x"]["writes"]]) == ("seed", ["1", "9", "5"])
    assert four.call("get_delta_channel_history", **asked) == history
    four.call("copy_thread", "t", "copy", checkpoint_id="5")
    assert four.call("ancestors", at("copy")) == line[1:]

    query(backend, "UPDATE checkpoint_log SET parent_checkpoint_id = '5' WHERE checkpoint_id = '1'")
    assert four.call("ancestors", at("t")) == line, "a circle ends where it is closed"
    with pytest.raises(ValueNotRestorable, match="in a circle"):
        four.call("get_delta_channel_history", config=at("t"), channels=["y"])


def test_the_source_is_only_read(tmp_path: Any, sqlite_path: str) -> None:
    file = tmp_path / "official.db"
    with SqliteSaver.from_conn_string(str(file)) as official:
        asking(official).invoke({"items": ["begin"]}, {"configurable": {"thread_id": "t"}})
    before = file.read_bytes()
    connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True, check_same_thread=False)
    with closing(connection), LedgerSaver(sqlite_path) as saver:
        transfer(SqliteSaver(connection), saver)
    assert file.read_bytes() == before
