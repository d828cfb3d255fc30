"""What somebody alters with SQL is found, and where; what a saver does on purpose is not taken for that."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.types import Overwrite
from psycopg.types.json import Jsonb
from typer.testing import CliRunner

from langgraph_ledger import LedgerSaver, StateConflict
from langgraph_ledger.chains import EXPLAINED, NO_DIGEST, Link, breaks, continued, exact, genesis, normal, of_entry
from langgraph_ledger.cli.app import app
from langgraph_ledger.errors import InvalidInput
from langgraph_ledger.operations.retention import Summary, copy_session
from langgraph_ledger.records import now, to_json
from langgraph_ledger.transfers import transfer
from langgraph_ledger.vault import open_stamp
from tests.direct import at, query, save, shared_backend
from tests.four_ways import Backend, Flavoured
from tests.golden.ledgers import VERSIONS, restore, unpack
from tests.recovery.stage import agent, call, made, same

backend = shared_backend
KEY = b"a key for tests."


def fill(saver: LedgerSaver, thread: str) -> None:
    """A bit of everything: calls side by side, a subgraph, pending writes, a refused write, and a run after it."""
    four = Flavoured(saver, None)
    graph = agent(saver, [made(four, same)], [call("x" * 2000, "c1"), call("y" * 2000, "c2")])
    four.invoke(graph, {"messages": ["hello"]}, at(thread))
    where = at(thread, ns="sub")
    for number in (1, 2, 3):
        long = [f"{n} long words " * 100 for n in range(60 + number)]
        where = save(four, where, f"s{number}", {"long": long, "n": 1e23})
    four.put_writes(where, [("long", ["z" * 4000]), ("n", 2)], "task", "path")
    stale = four.get_tuple(at(thread)).config
    four.invoke(graph, {"messages": Overwrite(["again"])}, at(thread))
    with pytest.raises(StateConflict):
        save(four, stale, "late")
    four.update_state(graph, at(thread), {"messages": ["after it"]})


@pytest.fixture(scope="module")
def filled(backend: Backend) -> Iterator[LedgerSaver]:
    """Two threads that nothing has happened to."""
    with LedgerSaver(backend.url) as saver:
        for thread in ("t", "u"):
            fill(saver, thread)
        assert saver.verify(None) == []
        yield saver


def found(saver: LedgerSaver, thread: str | None = "t") -> list[tuple[str, str]]:
    return [(f.where, f.what) for f in saver.verify(thread) if not f.harmless]


# --- behind the saver's back


def columns_of(backend: Backend, table: str) -> list[str]:
    if backend.kind == "sqlite":
        return [row[1] for row in query(backend, f"PRAGMA table_info({table})")]
    asked = "SELECT column_name FROM information_schema.columns WHERE table_name = ? ORDER BY ordinal_position"
    return [name for (name,) in query(backend, asked, table)]


def rows_of(backend: Backend, table: str) -> list[dict[str, Any]]:
    columns = columns_of(backend, table)
    rows = sorted(query(backend, f"SELECT {', '.join(columns)} FROM {table}"), key=repr)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def replace(backend: Backend, table: str, rows: Sequence[dict[str, Any]]) -> None:
    """Makes a table hold these rows."""
    columns = columns_of(backend, table)
    values = [[Jsonb(v) if isinstance(v, (dict, list)) else v for v in (row[c] for c in columns)] for row in rows]
    if backend.kind == "sqlite":
        import sqlite3

        with sqlite3.connect(backend.url) as connection:
            connection.execute(f"DELETE FROM {table}")
            connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", values)
        connection.close()
        return
    with psycopg.connect(backend.url) as pg:
        pg.execute(f"DELETE FROM {table}")  # type: ignore[arg-type]
        into = f"INSERT INTO {table} OVERRIDING SYSTEM VALUE VALUES ({', '.join(['%s'] * len(columns))})"
        pg.cursor().executemany(into, values)  # type: ignore[arg-type]


@contextmanager
def altered(backend: Backend, table: str, change: Callable[[list[dict[str, Any]]], Any]) -> Iterator[None]:
    """The table with its rows changed; afterwards it is as it was."""
    before = rows_of(backend, table)
    rows = [dict(row) for row in before]
    change(rows)
    replace(backend, table, rows)
    try:
        yield
    finally:
        replace(backend, table, before)


def another(value: Any, column: str) -> Any:
    """A value that differs as little as one can."""
    if column.endswith("_at") and isinstance(value, str):
        return (datetime.fromisoformat(value) + timedelta(seconds=1)).isoformat()
    if column in ("payload", "state", "metadata") and isinstance(value, str):
        return json.dumps({**json.loads(value), "forged": 1})
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, datetime):
        return value + timedelta(seconds=1)
    if isinstance(value, int):
        return value + 100
    if isinstance(value, bytes):
        return value[:-1] + bytes([value[-1] ^ 1])
    return {**value, "forged": 1} if isinstance(value, dict) else f"{value}x"


WORKING = {
    "agent_state_ledger": {"version", "writer", "owner", "updated_at", "deleted_through"},
    "checkpoint_log": {"seq"},
    "agent_memory": set[str](),
    "pending_writes": set[str](),
}
"""Columns that change with every claim, and are no evidence; and the number, which is tried out below."""
INSTEAD = {"checkpoint_id": "x", "parent_checkpoint_id": "x", "root_checkpoint_id": "x", "run_id": "x", "task_id": "x",
           "call_id": "x", "attempt_id": "x",
           "chain": bytes(32), "deleted_at": "2030-01-01T00:00:00+00:00"}  # fmt: skip
"""What is put where there was nothing."""


@pytest.mark.parametrize("table", list(WORKING))
def test_every_changed_column_is_found(filled: LedgerSaver, backend: Backend, table: str) -> None:
    """Of each row of a thread each column in turn; and the finding is about that row."""
    columns = [c for c in columns_of(backend, table) if c not in WORKING[table]]
    rows = rows_of(backend, table)
    mine = [i for i, row in enumerate(rows) if row["session_id"] == "t"]
    tried: dict[str, int] = dict.fromkeys(columns, 0)
    for column in columns:
        some = [i for i in mine if rows[i][column] is not None] or mine
        for i in some[:: max(1, len(some) // 4)]:
            value = rows[i][column]
            new = another(value, column) if value is not None else INSTEAD.get(column)
            if new is None or tried[column] >= 4:
                continue
            tried[column] += 1
            with altered(backend, table, lambda rows, i=i, c=column, new=new: rows[i].update({c: new})):  # type: ignore[misc]
                wrong = found(filled, None)
                assert wrong, (column, value, new)
                if table == "checkpoint_log" and column not in ("session_id", "agent_id", "memory_ids", "chain"):
                    assert any(f"entry {rows[i]['seq']} of" in where for where, _ in wrong), (column, wrong)
    assert [column for column, times in tried.items() if not times] == []
    assert found(filled) == []


def log(rows: Sequence[dict[str, Any]], agent_id: str = "", thread: str = "t") -> list[dict[str, Any]]:
    """A namespace's entries in their order, but for those that no chain holds yet."""
    entries = [row for row in rows if (row["session_id"], row["agent_id"]) == (thread, agent_id)]
    entries.sort(key=lambda row: row["seq"])
    last = max(i for i, row in enumerate(entries) if row["chain"] is not None)
    return entries[: last + 1]


@pytest.mark.parametrize("agent_id", ["", "sub"])
def test_every_removed_entry_is_found(filled: LedgerSaver, backend: Backend, agent_id: str) -> None:
    entries = log(rows_of(backend, "checkpoint_log"), agent_id)
    assert len(entries) >= 3
    kinds = set()
    for i, entry in enumerate(entries):
        kinds.add(entry["checkpoint_type"])
        with altered(backend, "checkpoint_log", lambda rows, e=entry: rows.remove(e)):  # type: ignore[misc]
            wrong = found(filled)
            following = next((e["seq"] for e in entries[i + 1 :] if e["chain"] is not None), None)
            if following is not None:
                words = [what for where, what in wrong if f"entry {following} of" in where]
                assert any("was removed" in what for what in words), (entry["checkpoint_type"], wrong)
            else:
                assert any("latest checkpoint" in what for _, what in wrong), wrong
    assert agent_id or kinds == {"checkpoint", "tool_call_started", "tool_call_completed", "write_rejected"}


def test_the_end_of_a_log_cut_off_with_the_head_moved_back_is_found(filled: LedgerSaver, backend: Backend) -> None:
    *_, before, last = log(rows_of(backend, "checkpoint_log"), "sub")

    def cut(rows: list[dict[str, Any]]) -> None:
        rows.remove(last)

    def move(rows: list[dict[str, Any]]) -> None:
        (head,) = (row for row in rows if (row["session_id"], row["agent_id"]) == ("t", "sub"))
        head["checkpoint_id"] = before["checkpoint_id"]

    with altered(backend, "checkpoint_log", cut), altered(backend, "agent_state_ledger", move):
        assert ("namespace 'sub'", "its state was changed: the digest does not match") in found(filled)


def forged(row: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """An entry whose digest is right, as anybody can make it who has no key to care about."""
    made = {**row, **changes}
    payload = made["payload"] if isinstance(made["payload"], str) else to_json(made["payload"])
    when = made["created_at"]
    when = when if isinstance(when, str) else when.astimezone(UTC).isoformat(timespec="microseconds")
    names = ("agent_id", "checkpoint_type", "checkpoint_id", "parent_checkpoint_id", "root_checkpoint_id", "run_id",
             "task_id", "call_id", "attempt_id")  # fmt: skip
    facts = [made[name] for name in names]
    made["digest"] = of_entry(open_stamp, *facts, normal(payload), made["state_bytes"], made["body"], when)
    return made


def test_an_inserted_entry_is_found(filled: LedgerSaver, backend: Backend) -> None:
    """With a digest that is right, and in its place a number that is free."""
    rows = rows_of(backend, "checkpoint_log")
    for row in rows:
        row["seq"] *= 10  # so that there is room
    with altered(backend, "checkpoint_log", lambda table: table.__setitem__(slice(None), rows)):
        assert found(filled) == []
    (end,) = (
        e
        for e in log(rows)
        if e["checkpoint_type"] == "tool_call_completed" and e["call_id"] == "c1" and e["seq"] < log(rows)[8]["seq"]
    )
    false = forged(end, seq=end["seq"] + 1, attempt_id="forged")
    for digest in (false["digest"], None):
        with altered(
            backend, "checkpoint_log", lambda t, d=digest: t.__setitem__(slice(None), [*rows, {**false, "digest": d}])
        ):  # type: ignore[misc]
            assert any(f"entry {false['seq']} before it was inserted" in what for _, what in found(filled))
    checkpoint, after = log(rows, "sub")[:2]
    false = forged(checkpoint, seq=checkpoint["seq"] + 1, checkpoint_id="forged")
    false["chain"] = continued(checkpoint["chain"], (), false["digest"])
    with altered(backend, "checkpoint_log", lambda t: t.__setitem__(slice(None), [*rows, false])):
        where = f"entry {after['seq']} of its log, namespace 'sub'"
        assert (where, f"it was made right after entry {checkpoint['seq']}: what stands between them was inserted") in (
            found(filled)
        )


def swap(rows: list[dict[str, Any]], one: dict[str, Any], other: dict[str, Any], *columns: str) -> None:
    first, second = (next(row for row in rows if row == wanted) for wanted in (one, other))
    for column in columns:
        first[column], second[column] = second[column], first[column]


def test_reordered_entries_are_found(filled: LedgerSaver, backend: Backend) -> None:
    rows = rows_of(backend, "checkpoint_log")
    starts = [e for e in log(rows) if e["checkpoint_type"] == "tool_call_started"][:2]
    numbers = sorted(e["seq"] for e in starts)
    with altered(backend, "checkpoint_log", lambda t: swap(t, *starts, "seq")):
        assert [what for _, what in found(filled)] == [
            f"the entries {numbers[0]} and {numbers[1]} before it were reordered"
        ]
    first, second, _ = log(rows, "sub")
    with altered(backend, "checkpoint_log", lambda t: swap(t, first, second, "seq")):
        assert any("it was reordered" in what for _, what in found(filled))


def test_swapped_rows_are_found(filled: LedgerSaver, backend: Backend) -> None:
    """Between threads, and between numbers: what they say, and not where they stand."""
    rows = rows_of(backend, "checkpoint_log")
    here, there = log(rows, "sub")[1], log(rows, "sub", "u")[1]
    with altered(backend, "checkpoint_log", lambda t: swap(t, here, there, "session_id", "seq")):
        assert found(filled, "t")
        assert found(filled, "u")
    one, other = (
        e
        for e in log(rows)
        if e["call_id"] in ("c1", "c2")
        and e["checkpoint_type"] == "tool_call_completed"
        and e["seq"] < log(rows)[8]["seq"]
    )
    what = ("call_id", "attempt_id", "payload", "body", "memory_ids", "task_id", "created_at")
    with altered(backend, "checkpoint_log", lambda t: swap(t, one, other, *what)):
        wrong = found(filled)
        assert any(f"it was swapped: it says what entry {other['seq']} said" == what for _, what in wrong), wrong
    writes = [
        row for row in rows_of(backend, "pending_writes") if row["session_id"] == "t" and row["task_id"] == "task"
    ]
    with altered(backend, "pending_writes", lambda t: swap(t, *writes, "place", "memory_ids")):
        assert found(filled)


def test_removed_and_inserted_rows_of_other_tables_are_found(filled: LedgerSaver, backend: Backend) -> None:
    heads = [row for row in rows_of(backend, "agent_state_ledger") if row["session_id"] == "t"]
    for head in heads:
        with altered(backend, "agent_state_ledger", lambda t, h=head: t.remove(h)):  # type: ignore[misc]
            assert (f"namespace {head['agent_id']!r}", "its row in agent_state_ledger is missing") in found(filled)
        with altered(backend, "agent_state_ledger", lambda t, h=head: t[t.index(h)].update(version=0)):  # type: ignore[misc]
            assert any("its version is 0" in what for _, what in found(filled))
    write = next(
        row for row in rows_of(backend, "pending_writes") if row["task_id"] == "task" and row["session_id"] == "t"
    )
    with altered(backend, "pending_writes", lambda t: t.remove(write)):
        assert any("of the 2 writes that it gave at once, 1 were removed" in what for _, what in found(filled))
    with altered(backend, "pending_writes", lambda t: t.append({**write, "task_id": "forged"})):
        assert any("forged" in where for where, _ in found(filled))
    session = next(row for row in rows_of(backend, "sessions") if row["session_id"] == "t")
    with altered(backend, "sessions", lambda t: t.remove(session)):
        assert found(filled)
    with altered(backend, "sessions", lambda t: t.append({**session, "session_id": "forged"})):
        assert ("namespace ''", "its row in agent_state_ledger is missing") in found(filled, None)
    assert found(filled, None) == []


# --- what a saver does on purpose


def lawful(saver: LedgerSaver, other: LedgerSaver) -> Iterator[tuple[str, str]]:
    """What may happen to a thread, one after another; which, and to which thread."""
    four = Flavoured(saver, None)
    graph = agent(saver, [made(four, same)], [call("x", "c1")])
    fill(saver, "l")
    yield "filled", "l"
    saver.copy_thread("l", "copy")
    yield "copied", "copy"
    four.invoke(graph, {"messages": ["more"]}, at("copy"))
    yield "the copy goes on", "copy"
    saver.copy_thread("l", "last", last=1)
    yield "copied in part", "last"
    saver.prune(["copy"])
    yield "pruned", "copy"
    four.invoke(graph, {"messages": ["more"]}, at("copy"))
    saver.prune(["copy"], keep_last=2)
    yield "went on and pruned again", "copy"
    saver.copy_thread("copy", "copy of what was pruned")
    yield "copied after a prune", "copy of what was pruned"
    history = [found.config for found in four.list(at("l")) if found.config["configurable"]["checkpoint_ns"] == ""]
    four.update_state(graph, history[2], {"messages": ["a fork"]})
    four.invoke(graph, None, history[3])
    yield "forked", "l"
    run = at("l")
    run["metadata"] = {"run_id": "a run"}
    four.invoke(graph, {"messages": ["of a run"]}, run)
    saver.delete_for_runs(["a run"])
    yield "a run deleted", "l"
    four.invoke(graph, {"messages": ["after it"]}, at("l"))
    yield "went on", "l"
    transfer(saver, other, thread_ids=["l"])
    yield "moved elsewhere", "l"
    saver.delete_thread("l")
    yield "deleted", "l"
    four.invoke(graph, {"messages": ["anew"]}, at("l"))
    yield "begun anew", "l"


@pytest.mark.parametrize("options", [{}, {"flush": "important"}, {"on_conflict": "report"}, {"chain_log": False}])
def test_nothing_that_is_done_on_purpose_is_found(fresh: Callable[[], str], options: dict[str, Any]) -> None:
    with LedgerSaver(fresh(), **options) as saver, LedgerSaver(fresh()) as other:
        heads: list[Any] = []
        steps = lawful(saver, other) if "on_conflict" not in options else reported(saver)
        for what, thread in steps:
            assert [f for f in saver.verify(None) if not f.harmless] == [], what
            assert [f for f in other.verify(None) if not f.harmless] == [], what
            differing = saver.verify(None, against=heads)
            assert [f for f in differing if not f.harmless] == [], what
            overtaken = [f.what for f in differing if f.thread_id == thread and not f.where.startswith("memory")]
            if what in ("pruned", "went on and pruned again") and options.get("chain_log", True):
                assert saver.verify(thread).pruned == 1
                assert "entries removed" in saver.history(thread)._repr_html_()
                assert "from thread l" in saver.history(thread)._repr_html_()
            if what == "went on and pruned again" and options.get("chain_log", True):
                assert any("pruned since" in words for words in overtaken), overtaken
            if what in ("deleted", "begun anew") and options.get("chain_log", True):
                assert overtaken
                assert set(overtaken) == {"the thread was deleted since"}
            heads += saver.log_heads()
        assert saver.verify(None).unchained == 0 or options.get("chain_log") is False


def reported(saver: LedgerSaver) -> Iterator[tuple[str, str]]:
    four = Flavoured(saver, None)
    where = save(four, at("r"), "1")
    stale = four.get_tuple(at("r")).config
    save(four, where, "2")
    save(four, stale, "3")
    yield "reported", "r"
    assert [entry.payload["accepted"] for entry in saver.rejected_writes("r")] == [True]


@pytest.fixture(params=["sqlite", "postgres"])
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Gives the URL of an empty database."""
    if request.param == "postgres":
        return request.getfixturevalue("fresh_postgres_url")
    names = iter("abcdef")
    return lambda: str(tmp_path / f"{next(names)}.db")


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_ledger_from_before_goes_on(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    """Its entries have no digests; the first one that has takes them in, so that from then on none can be removed."""
    if kind == "sqlite":
        url = unpack(1, "plain", tmp_path / "golden.db")
    else:
        url = restore(1, "plain", request.getfixturevalue("fresh_postgres_url")())
    assert 1 in VERSIONS
    old = Backend(kind, url)
    with LedgerSaver(url) as saver:
        saver.setup()
        assert saver.verify(None) == []
        assert saver.log_heads() == []
        threads = [session.session_id for session in saver.sessions(limit=100)]
        grown = []
        for thread in threads:
            four = Flavoured(saver, None)
            latest = four.get_tuple(at(thread))
            if latest is not None:
                save(four, latest.config, "zz")
                grown.append(thread)
        assert grown
        assert [f for f in saver.verify(None) if not f.harmless] == []
        assert saver.verify(None).unchained
        ((oldest,),) = query(
            old, "SELECT MIN(seq) FROM checkpoint_log WHERE session_id = ? AND agent_id = ''", grown[0]
        )
        query(old, "DELETE FROM checkpoint_log WHERE seq = ?", oldest)
        assert any("was removed" in what for _, what in found(saver, grown[0]))


def test_chains_with_gaps(fresh: Callable[[], str]) -> None:
    """Savers with and without `chain_log` on one thread: what has no digest is held as being there."""
    url = fresh()
    with LedgerSaver(url) as chained, LedgerSaver(url, chain_log=False) as plain:
        for number in range(9):
            four = Flavoured((chained, plain, plain)[number % 3], None)
            latest = four.get_tuple(at("t"))
            save(four, latest.config if latest else at("t"), f"{number}", {"n": number})
        save(Flavoured(chained, None), four.get_tuple(at("t")).config, "9")
        assert found(chained) == []
        assert chained.verify("t").unchained == 6


# --- heads, and a log that was written anew


def written_anew(rows: list[dict[str, Any]], agent_id: str = "sub", thread: str = "t") -> None:
    """What who can write to the database can do if nothing has a key: a changed entry, and all digests in order."""
    chain = genesis(thread, agent_id)
    for row in log(rows, agent_id, thread):
        row.update(forged(row, run_id="forged"))
        row["chain"] = chain = continued(chain, (), row["digest"])


def test_a_head_that_was_kept_shows_a_log_that_was_written_anew(filled: LedgerSaver, backend: Backend) -> None:
    heads = json.loads(json.dumps(filled.log_heads()))
    assert {head["thread_id"] for head in heads} == {"t", "u"}
    assert filled.log_heads("t") == [head for head in heads if head["thread_id"] == "t"]
    assert filled.verify(None, against=heads) == []
    with altered(backend, "checkpoint_log", written_anew):
        assert [where for where, _ in found(filled)] == ["namespace 'sub'"]  # its state goes with another entry
        (wrong,) = (f for f in filled.verify("t", against=heads) if "another than the head's" in f.what)
        last = log(rows_of(backend, "checkpoint_log"), "sub")[-1]["seq"]
        assert wrong.where == f"entry {last} of its log, namespace 'sub'"
    with altered(backend, "checkpoint_log", lambda rows: rows.__delitem__(slice(None))):
        gone = filled.verify("t", against=heads)
        assert any("it was removed: the head names it" in f.what for f in gone)
    missing = [{**head, "thread_id": "nobody"} for head in heads[:1]]
    (lost,) = filled.verify(None, against=missing)
    assert (lost.thread_id, lost.harmless) == ("nobody", False)
    for wrong_heads in ("text", [1], [{"thread_id": "t"}], {"thread_id": "t"}):
        with pytest.raises(InvalidInput):
            filled.verify("t", against=wrong_heads)  # type: ignore[arg-type]


def test_a_forged_deletion_excuses_nothing_that_is_there(filled: LedgerSaver, backend: Backend) -> None:
    heads = filled.log_heads("t")

    def forge(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            row["deleted_through"] = 10**6

    with altered(backend, "checkpoint_log", written_anew), altered(backend, "agent_state_ledger", forge):
        assert any("another than the head's" in f.what for f in filled.verify("t", against=heads) if not f.harmless)


def test_no_number_stands_for_two_entries(fresh: Callable[[], str]) -> None:
    """Whatever is deleted, by whatever way the thread goes on: what comes later has a higher number."""
    url = fresh()
    place = Backend("postgres" if url.startswith("postgres") else "sqlite", url)
    with LedgerSaver(url) as saver:
        four = Flavoured(saver, None)
        heads: list[Any] = []
        used = [0]

        def grown(name: str, run: str = "") -> Any:
            four.get_tuple(at("t"))
            where = save(four, at("t"), f"{name}.1", {}, {"run_id": run})
            return save(four, where, f"{name}.2", {}, {"run_id": run})

        def check(*, anew: bool = True) -> None:
            """All entries have higher numbers than those before, or if the thread only goes on, the last one has."""
            numbers = [n for (n,) in query(place, "SELECT seq FROM checkpoint_log WHERE session_id = 't' ORDER BY seq")]
            assert (numbers[0] if anew else numbers[-1]) > max(used)
            used.extend(numbers)
            assert [f for f in saver.verify("t", against=heads) if not f.harmless] == []
            heads.extend(saver.log_heads("t"))

        save(four, at("source"), "1")
        stale = grown("a")
        check()
        saver.delete_thread("t")
        grown("b")
        check()
        saver.delete_thread("t")
        with pytest.raises(StateConflict):
            save(four, stale, "late")
        check()
        saver.delete_thread("t")
        saver.copy_thread("source", "t")
        check()
        grown("c", "r")
        check(anew=False)
        saver.delete_for_runs(["r"])
        check(anew=False)


def test_a_thread_that_loses_all_its_runs_says_so(fresh: Callable[[], str]) -> None:
    with LedgerSaver(fresh()) as saver:
        four = Flavoured(saver, None)
        save(four, save(four, at("t"), "1", {}, {"run_id": "r"}), "2", {}, {"run_id": "r"})
        save(four, at("t", ns="sub"), "3", {}, {"run_id": "r"})
        heads = saver.log_heads()
        assert {head["checkpoint_ns"] for head in heads} == {"", "sub"}
        saver.delete_for_runs(["r"])
        found = saver.verify("t", against=heads)
        assert [("pruned since" in f.what, f.harmless) for f in found] == [(True, True)] * 2
        assert (four.get_tuple(at("t")), found.pruned) == (None, 1)
        save(four, at("t"), "4")
        saver.copy_thread("t", "copy")
        heads += saver.log_heads()
        assert [f for f in saver.verify(None, against=heads) if not f.harmless] == []


def test_a_copy_without_a_chain_onto_what_was_deleted(fresh: Callable[[], str]) -> None:
    url = fresh()
    with LedgerSaver(url) as chained, LedgerSaver(url, chain_log=False) as plain:
        where = at("source")
        for number in range(5):
            where = save(Flavoured(chained, None), where, f"{number}")
        save(Flavoured(chained, None), at("target"), "1")
        chained.delete_thread("target")
        plain.copy_thread("source", "target")
        save(Flavoured(chained, None), Flavoured(chained, None).get_tuple(at("target")).config, "9")
        assert found(chained, None) == []


def test_what_lost_its_digest_is_counted(filled: LedgerSaver, backend: Backend) -> None:
    """A write's digest may be missing for lawful reasons, so that is counted; an entry with a chain always has one."""
    assert filled.verify("t").unchained == 0

    def strip(rows: list[dict[str, Any]]) -> int:
        mine = [row for row in rows if row["session_id"] == "t"]
        for row in mine:
            row["digest"] = None
        return len(mine)

    with altered(backend, "pending_writes", strip):
        assert filled.verify("t").unchained == strip(rows_of(backend, "pending_writes")) > 2
    last = log(rows_of(backend, "checkpoint_log"), "sub")[-2:]

    def without(rows: list[dict[str, Any]]) -> None:
        (row,) = (row for row in rows if row["seq"] == last[1]["seq"])
        row.update(digest=None, payload="{}" if backend.kind == "sqlite" else {})
        row["chain"] = continued(last[0]["chain"], (), NO_DIGEST)

    with altered(backend, "checkpoint_log", without):
        where = f"entry {last[1]['seq']} of its log, namespace 'sub'"
        assert (where, "its digest was removed: no saver makes a chain without one") in found(filled)
        assert filled.verify("t").unchained == 1


def test_the_marks_of_a_copy_take_one_round_trip() -> None:
    """However many namespaces there are."""
    ends = [("", 1, 1, None), ("a", 1, 2, None), ("b", 1, 3, None)]
    answers: dict[str, Any] = {"lock_session": [(1,)], "copy_ledger": [("",)], "read_log_ends": ends}
    steps = copy_session("s", "t", "token", now(), lambda *_: Summary(frozenset(), frozenset()), stamp=open_stamp)
    running = steps.steps()
    sent = [next(running)]
    with suppress(StopIteration):
        while True:
            sent.append(running.send([answers.get(one.name, []) for one in sent[-1].statements]))
    assert [one.name for one in sent[-1].statements] == ["insert_mark"] * 3


def test_with_a_key_nobody_else_can_write_it_anew(fresh: Callable[[], str]) -> None:
    url = fresh()
    place = Backend("postgres" if url.startswith("postgres") else "sqlite", url)
    with LedgerSaver(url, serde=EncryptedSerializer.from_pycryptodome_aes(key=KEY)) as saver:
        fill(saver, "t")
        assert found(saver) == []
        saver.prune(["t"], keep_last=3)
        assert found(saver) == []
        with altered(place, "checkpoint_log", written_anew):
            wrong = found(saver)
            assert sum("it was not written with this key" in what for _, what in wrong) == 3, wrong
        with LedgerSaver(url) as keyless:  # who looks after the ledger need not have the key
            keyless.delete_thread("nobody")
            save(Flavoured(keyless, None), at("plain"), "1")
        assert {f.thread_id for f in saver.verify(None)} == {"plain"}, "what was not encrypted is said"


def test_on_the_command_line(filled: LedgerSaver, backend: Backend, tmp_path: Path) -> None:
    run = lambda *words: CliRunner().invoke(app, [*words, "--url", backend.url])  # noqa: E731
    kept = tmp_path / "heads.json"
    assert run("heads", "--out", str(kept)).exit_code == 0
    assert json.loads(run("heads").stdout) == json.loads(kept.read_text()) == filled.log_heads()
    assert run("verify", "--against", str(kept)).exit_code == 0
    with altered(backend, "checkpoint_log", written_anew):
        said = run("verify", "t", "--against", str(kept))
        assert said.exit_code == 3
        assert "another than the head's" in " ".join(said.output.split())
    assert run("heads", "--out", str(tmp_path)).exit_code == 1
    kept.write_text("no JSON")
    assert run("verify", "--against", str(kept)).exit_code == 1


# --- the pieces


@pytest.mark.parametrize(
    "number", [1e16, 1e22, 1e23, -1e300, 1.7976931348623157e308, -0.0, 0.1, 1.0, 5e-324, 1e-7, 1, 10**20]
)
def test_numbers_as_both_databases_give_them_back(filled: LedgerSaver, backend: Backend, number: float) -> None:
    text = to_json({"b": [number], "a": "e+ -0.0 é"})
    if backend.kind == "sqlite":
        assert normal(text) == exact(text)
        return
    ((given,),) = query(backend, "SELECT CAST(CAST(? AS jsonb) AS text)", text)
    assert normal(given) == exact(text)


def test_a_chain_of_many_entries_between_two_seals() -> None:
    digests = [open_stamp(bytes([number])) for number in range(9)]
    links = [Link(number, "tool_call_started", digest, None) for number, digest in enumerate(digests)]
    links.append(Link(9, "checkpoint", b"own", continued(b"first", digests, b"own")))
    assert breaks(b"first", links) == []
    assert "entry 100 before it" in breaks(b"first", [*links[:4], Link(100, "x", b"false", None), *links[4:]])[0].what
    assert "was removed" in breaks(b"first", [*links[:4], *links[5:]])[0].what
    assert "the entries 8 and 1" in breaks(b"first", [links[0], links[8], *links[2:8], links[1], links[9]])[0].what


def test_a_log_of_which_all_is_altered() -> None:
    """Each entry is found; what has happened is tried out for a few of them, or it would be for all pairs."""
    links = [Link(number, "checkpoint", b"altered", b"chain %d" % number) for number in range(5000)]
    found = breaks(b"first", links)
    assert [one.seq for one in found] == list(range(5000))
    assert [one.what for one in found[EXPLAINED:]] == ["the chain does not hold"] * (5000 - EXPLAINED)
