"""A Postgres that is there and says no: each time an error that says whose turn it is, and nothing is stored."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import psycopg
import psycopg_pool
import pytest

from langgraph_ledger import LedgerSaver
from langgraph_ledger.errors import DatabaseError, DatabaseUnavailable, ReadOnlyLedger, ThreadLocked
from tests.crash_scenarios import SCENARIOS, Actor, put
from tests.direct import at, save
from tests.four_ways import Flavoured

Options = Callable[..., Flavoured]


@pytest.fixture
def url(fresh_postgres_url: Callable[[], str]) -> str:
    found = fresh_postgres_url()
    with LedgerSaver(found) as saver:
        saver.setup()
    return found


@pytest.fixture
def owner(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def under(url: str, flavour: str) -> Iterator[Options]:
    """Opens savers whose sessions begin with settings of the server's."""
    opened: list[Flavoured] = []
    runner = asyncio.Runner() if flavour == "async" else None

    def open_one(*settings: str, **options: Any) -> Flavoured:
        given = {"options": " ".join(f"-c {setting}" for setting in settings)}
        opened.append(Flavoured(LedgerSaver(url, connection_kwargs=given, **options), runner))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()
    if runner is not None:
        runner.close()


def stored(url: str) -> list[str]:
    with LedgerSaver(url) as saver:
        return [found.checkpoint["id"] for found in saver.list(None)]


def test_read_only_by_default(under: Options, url: str) -> None:
    """As hosts set it when a disk is full. It is not overruled."""
    save(under(), at("thread"), "1")
    four = under("default_transaction_read_only=on")
    assert four.get_tuple(at("thread")).checkpoint["id"] == "1"
    with pytest.raises(ReadOnlyLedger, match=r"put: .*default_transaction_read_only is on"):
        save(four, at("thread", "1"), "2")
    with pytest.raises(ReadOnlyLedger, match="read_only=True"):
        under("default_transaction_read_only=on", schema="elsewhere").get_tuple(at("thread"))
    assert stored(url) == ["1"]


@pytest.mark.parametrize("setting", ["statement_timeout", "lock_timeout"])
def test_a_limit_of_the_servers(under: Options, owner: psycopg.Connection[Any], url: str, setting: str) -> None:
    four = under(f"{setting}=2000", max_size=1)  # long enough for a save that nobody keeps waiting
    save(four, at("thread"), "1")
    with owner.transaction():
        owner.execute("LOCK TABLE agent_state_ledger")
        with pytest.raises(DatabaseUnavailable, match=rf"put: .*{setting}") as caught:
            save(four, at("thread", "1"), "2")
    assert not isinstance(caught.value, ThreadLocked), "nobody holds up a loop here"
    save(four, at("thread", "1"), "2")
    assert stored(url) == ["2", "1"]


def until_ended(owner: psycopg.Connection[Any], pids: list[int]) -> None:
    """Waits until the server has ended these backends."""
    deadline = time.monotonic() + 60
    while owner.execute("SELECT 1 FROM pg_stat_activity WHERE pid = ANY(%s)", [pids]).fetchall():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def backends(owner: psycopg.Connection[Any]) -> list[int]:
    """Of the savers of this test's database."""
    rows = owner.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'langgraph_ledger'"
    )
    return [pid for (pid,) in rows.fetchall()]


def test_connections_that_the_server_ends_for_idling(under: Options, owner: psycopg.Connection[Any], url: str) -> None:
    """Whoever calls next does not notice, however many of the pool there were."""
    four = under("idle_session_timeout=300", min_size=3, max_size=3)
    four.saver._driver.trace = lambda event, statement: None  # not as a pipeline: after one, servers do not look at it
    place = at("thread")
    for number in range(3):
        place = save(four, place, str(number))
        assert four.get_tuple(at("thread")).checkpoint["id"] == str(number)
        until_ended(owner, backends(owner))
    assert stored(url) == ["2", "1", "0"]


def test_transactions_that_the_server_ends_for_idling(under: Options, owner: psycopg.Connection[Any], url: str) -> None:
    """A process that stands still within a transaction finds it gone, and carries it out anew."""
    four = under("idle_in_transaction_session_timeout=300", max_size=1)
    save(four, at("thread"), "1")
    driver, stood = four.saver._driver, list[str]()

    def stand_still(event: str, statement: str) -> None:
        if event == "after" and statement == "insert_checkpoint" and not stood:
            stood.append(statement)
            until_ended(owner, backends(owner))

    driver.trace = stand_still
    save(four, at("thread", "1"), "2")
    assert stood
    assert stored(url) == ["2", "1"]
    assert four.call("rejected_writes") == []


@pytest.mark.parametrize("code", ["serialization_failure", "deadlock_detected"])
def test_a_clash_is_tried_again(under: Options, owner: psycopg.Connection[Any], url: str, code: str) -> None:
    owner.execute("CREATE SEQUENCE clashes")
    owner.execute(
        "CREATE FUNCTION clash() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF nextval('clashes') <= 3 THEN"
        f" RAISE EXCEPTION 'a clash' USING ERRCODE = '{code}'; END IF; RETURN NEW; END $$"
    )
    owner.execute("CREATE TRIGGER clash BEFORE INSERT ON checkpoint_log FOR EACH ROW EXECUTE FUNCTION clash()")
    four = under()
    save(four, at("thread"), "1")
    assert owner.execute("SELECT last_value FROM clashes").fetchone() == (4,)
    owner.execute("ALTER SEQUENCE clashes INCREMENT BY -1 MINVALUE -100")
    with pytest.raises(DatabaseUnavailable, match="a clash"):
        save(four, at("thread", "1"), "2")
    assert owner.execute("SELECT last_value FROM clashes").fetchone() == (0,), "four times in all"
    assert stored(url) == ["1"]


@pytest.fixture(params=["own", "own, asynchronous", "a connection", "a pool"])
def impatient(request: pytest.FixtureRequest, url: str) -> Iterator[Flavoured]:
    """A saver that has one connection, on which nobody waits for a lock for long."""
    settings = {"options": "-c lock_timeout=30"}
    options: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        given: Any = url
        if request.param == "a connection":
            given = stack.enter_context(psycopg.connect(url, autocommit=True, **settings))
        elif request.param == "a pool":
            pool = psycopg_pool.ConnectionPool(url, min_size=1, max_size=1, kwargs={"autocommit": True, **settings})
            given = stack.enter_context(pool)
        else:
            options = {"max_size": 1, "connection_kwargs": settings}
        runner = stack.enter_context(asyncio.Runner()) if request.param == "own, asynchronous" else None
        four = Flavoured(LedgerSaver(given, **options), runner)
        stack.callback(four.close)
        yield four


def test_a_put_that_fails_leaves_no_statement_half_prepared(
    owner: psycopg.Connection[Any], url: str, impatient: Flavoured
) -> None:
    """Whenever it comes: what is sent behind it is skipped, and psycopg may take that for prepared all the same."""
    owner.execute("CREATE SEQUENCE turns")
    owner.execute(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN IF nextval('turns') % 2 = 0 THEN RAISE EXCEPTION 'not now'; END IF; RETURN NEW; END $$"
    )
    owner.execute("CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON sessions FOR EACH ROW EXECUTE FUNCTION fail()")
    for number in range(12):
        save(impatient, at(f"kept {number}"), "1", {"n": [number] * 9})
        with pytest.raises(DatabaseError, match="not now"):
            save(impatient, at(f"lost {number}"), "1", {"n": [number] * 9})
    assert stored(url) == ["1"] * 12


@pytest.mark.parametrize("good", [1, 3])
def test_task_writes_that_fail_leave_no_statement_half_prepared(
    owner: psycopg.Connection[Any], impatient: Flavoured, good: int
) -> None:
    place = save(impatient, at("t"), "1")
    for number in range(9):
        with owner.transaction():
            owner.execute("SELECT 1 FROM agent_state_ledger FOR UPDATE")
            with pytest.raises(DatabaseUnavailable, match="lock_timeout"):
                impatient.put_writes(place, [("n", [number] * 9)], f"lost {number}")
        for more in range(good):
            impatient.put_writes(place, [("n", [number] * 9)], f"kept {number} {more}")
    tasks = {task for task, _, _ in impatient.get_tuple(at("t")).pending_writes}
    assert tasks == {f"kept {number} {more}" for number in range(9) for more in range(good)}


# --- rights


@pytest.fixture
def role(owner: psycopg.Connection[Any]) -> Iterator[str]:
    name = f"ledger_{uuid4().hex}"
    owner.execute(f"CREATE ROLE {name}")
    yield name
    owner.execute(f"DROP OWNED BY {name}")
    owner.execute(f"DROP ROLE {name}")


def test_a_role_without_rights(under: Options, owner: psycopg.Connection[Any], role: str) -> None:
    under(schema="own").call("setup")
    four = under(f"role={role}", schema="own")
    asked = [lambda: four.get_tuple(at("t")), lambda: save(four, at("t"), "1"), lambda: four.call("setup")]
    for ask in asked:
        with pytest.raises(ReadOnlyLedger, match=r"permission denied for schema own.*GRANT the role USAGE"):
            ask()
    owner.execute(f"GRANT USAGE ON SCHEMA own TO {role}")
    for ask in asked:
        with pytest.raises(ReadOnlyLedger, match=r"permission denied for table ledger_migrations.*SELECT, INSERT"):
            ask()
    owner.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA own TO {role}")
    assert four.get_tuple(at("t")) is None
    with pytest.raises(ReadOnlyLedger, match=r"permission denied for table agent_state_ledger.*GRANT"):
        save(four, at("t"), "1")
    other = under(f"role={role}", schema="new")
    with pytest.raises(ReadOnlyLedger, match=r"permission denied for database.*may create them run setup\(\) once"):
        other.get_tuple(at("t"))


def test_a_role_with_the_rights_that_the_error_names(under: Options, owner: psycopg.Connection[Any], role: str) -> None:
    """It needs no right to create anything once the tables are there."""
    under(schema="own").call("setup")
    owner.execute(f"GRANT USAGE ON SCHEMA own TO {role}")
    owner.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA own TO {role}")
    four = under(f"role={role}", schema="own", working_channels={"larger"})
    four.call("setup")
    for name, scenario in SCENARIOS.items():
        if name != "many":
            actor = Actor(four, name)
            for step in (*scenario.ready, *scenario.calls):
                step(actor)
    four.call("set_ttl", "put_writes", None)
    four.call("sweep")
    assert {
        finding.what for name in SCENARIOS for finding in four.call("verify", name) if not finding.harmless
    } == set()
    assert len(four.call("rejected_writes")) == 1
    put(1)(Actor(four, "last"))
