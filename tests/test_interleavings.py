"""Every pair of write operations, through every interleaving of their statements, on both databases.

What a schedule leaves (every row of every table but the sequence numbers, and what each operation returned) must be
what one of the serial orders leaves. On top of that: of two runs that read the same version exactly one is accepted,
parts of one run never refuse each other, nothing is half written, and nobody waits for ever.

Which schedules are run: the tree of choices "whose statement is next", to its leaves. A lane that waits for the other
one's lock cannot go on in the database either, so a schedule that would step it is the same as one that does not. On
SQLite a writer's BEGIN IMMEDIATE takes the only lock there is. On Postgres BEGIN and the statement behind it are one
step: in READ COMMITTED a BEGIN takes no lock and no snapshot, so it commutes with everything the other lane does. Trees
with more than `MANY` leaves are reduced: schedules that only swap statements which commute are left out (see
`Schedules`). `test_what_is_left_out_shows_nothing_new` tries out that both lose nothing.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from langgraph_ledger.sql import Dialect
from tests.arena import Arena
from tests.four_ways import Backend
from tests.interleaving import Connection, Lane
from tests.postgres_server import create_database, drop_database
from tests.rivals import (
    AFTER_DELETE,
    BLIND,
    CALL_BELOW,
    CROSSED,
    FIRST_BELOW,
    HOLDER,
    NEW,
    ON_EMPTIED,
    PURGE,
    RIVALS,
    SAME_RUN,
    TWICE,
    UPKEEP,
    Kind,
)

ELSEWHERE = {name: kind for name, kind in UPKEEP.items() if name != "copy from"}
KINDS: dict[str, dict[str, Kind]] = {
    "existing": {**RIVALS, **HOLDER, **BLIND, **UPKEEP},
    "nothing": {**NEW, **ELSEWHERE},
    "deleted": {**AFTER_DELETE, **ELSEWHERE},
    "expired": {**AFTER_DELETE, **ELSEWHERE, "purge": PURGE},
    "emptied": {**ON_EMPTIED, **ELSEWHERE},
}
PAIRS = [
    (seed, left, right)
    for seed, kinds in KINDS.items()
    for left, right in itertools.combinations_with_replacement(kinds, 2)
    if not (seed == "nothing" and {left, right} <= set(UPKEEP) - {"copy to"})  # neither has anything to do
    and not (seed == "expired" and right != "purge")  # the others do not care how long ago it was deleted
]
PAIRS += [("existing", left, right) for left, right in itertools.combinations_with_replacement(SAME_RUN, 2)]
EVERY = {seed: {**kinds, **SAME_RUN} for seed, kinds in KINDS.items()}
MANY = 60
CLAIMS = {*RIVALS, "new put", "new nested put", "fresh put", "put on emptied"}


def rivals(left: str, right: str) -> bool:
    """Whether exactly one of them may be accepted: runs of their own that read the same version."""
    return {left, right} <= CLAIMS or (left in CLAIMS and right == "holder's put")


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def arena(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    if request.param == "sqlite":
        found = Arena(Backend("sqlite", str(tmp_path_factory.mktemp("arena") / "ledger.db")))
        yield found
        found.close()
        return
    server = request.getfixturevalue("postgres_url")
    url = create_database(server)
    found = Arena(Backend("postgres", url))
    yield found
    found.close()
    drop_database(server, url)


@pytest.fixture(scope="module")
def connections(arena: Arena) -> Iterator[list[Connection]]:
    both = [arena.connect(arena.dialect), arena.connect(arena.dialect)]
    yield both
    for connection in both:
        connection.close()


def serial(arena: Arena, seed: str, pair: Sequence[Kind], connections: Sequence[Connection]) -> list[Any]:
    """What the serial orders leave."""
    found = []
    for chosen, _, left, wrong in arena.all_schedules(seed, pair, connections, whole=True):
        assert not wrong, (chosen, wrong)
        found.append(left)
    return found


def wrong_in(names: tuple[str, str], lanes: Sequence[Lane]) -> list[str]:
    """What the two operations may not have returned together."""
    accepted = [all(outcome.startswith("ok") for outcome in lane.outcomes) for lane in lanes]
    if rivals(*names) and sum(accepted) != 1:
        return [f"{sum(accepted)} of two rivals were accepted"]
    if (set(names) <= set(HOLDER) or set(names) <= set(SAME_RUN)) and not all(accepted):
        return ["a run refused itself"]
    return []


def violations(
    arena: Arena, seed: str, names: tuple[str, str], connections: Sequence[Connection], expected: Sequence[Any]
) -> tuple[int, list[str]]:
    """How many schedules there are, and what is wrong with the first of those that leave what no serial order does."""
    pair = [EVERY[seed][name] for name in names]
    for reduce in (False, True):
        count = 0
        for schedule, lanes, left, wrong in arena.all_schedules(seed, pair, connections, reduce=reduce):
            count += 1
            wrong = [*wrong, *wrong_in(names, lanes)]
            if left not in expected:
                wrong.append(f"no serial order leaves this: {left}")
            if wrong:
                return count, [f"schedule {schedule}: {reason}" for reason in wrong]
            if not reduce and count == MANY:
                break
        else:
            break
    return count, []


@pytest.mark.parametrize(("seed", "left", "right"), PAIRS)
def test_every_pair(arena: Arena, connections: list[Connection], seed: str, left: str, right: str) -> None:
    pair = [EVERY[seed][name] for name in (left, right)]
    expected = serial(arena, seed, pair, connections)
    count, found = violations(arena, seed, (left, right), connections, expected)
    assert not found, "\n".join(found)
    assert count >= 2


@contextmanager
def two_connections(arena: Arena, dialect: Dialect, **options: Any) -> Iterator[list[Connection]]:
    both = [arena.connect(dialect, **options), arena.connect(dialect, **options)]
    try:
        yield both
    finally:
        for connection in both:
            connection.close()


CLAIM = (r"l\.version = (:read_version|%\(read_version\)s)", "1 = 1")
GUARD = (r"EXISTS \(SELECT 1 FROM agent_state_ledger g WHERE .*?writer = (:writer|%\(writer\)s)\)", "1 = 1")


@pytest.mark.parametrize(
    ("taken_away", "replacement", "left", "right", "on_sqlite"),
    [
        pytest.param(*CLAIM, "put", "put", True, id="version check, two puts"),
        pytest.param(*CLAIM, "put", "put_writes", True, id="version check, put and put_writes"),
        pytest.param(*CLAIM, "put_writes", "nested put", True, id="version check, put_writes and nested put"),
        pytest.param(*GUARD, "put", "put", True, id="guard"),
        pytest.param("FOR SHARE", "", "put", "holder's put_writes", False, id="lock of the owner's put_writes"),
        pytest.param("FOR UPDATE", "", "put of an old value", "prune", False, id="lock of prune"),
    ],
)
def test_it_is_seen_when_a_check_is_taken_away(
    arena: Arena,
    connections: list[Connection],
    taken_away: str,
    replacement: str,
    left: str,
    right: str,
    on_sqlite: bool,
) -> None:
    """The same schedules and the same judgement find the damage that each of these checks prevents."""
    if not (arena.on_postgres or on_sqlite):
        pytest.skip("SQLite has one lock, which BEGIN IMMEDIATE takes")
    texts = {name: re.sub(taken_away, replacement, text) for name, text in arena.dialect.texts.items()}
    assert texts != arena.dialect.texts
    expected = serial(arena, "existing", [EVERY["existing"][left], EVERY["existing"][right]], connections)
    with two_connections(arena, dataclasses.replace(arena.dialect, texts=texts)) as weakened:
        _, found = violations(arena, "existing", (left, right), weakened, expected)
    assert found


def test_a_put_that_is_sent_twice_is_stored_once(arena: Arena, connections: list[Connection]) -> None:
    for schedule, lanes, (_, rows), wrong in arena.all_schedules("existing", [TWICE, TWICE], connections):
        assert not wrong, (schedule, wrong)
        assert sorted(lane.outcomes[0][:9] for lane in lanes) == ["Duplicate", "ok 3"]
        assert sum(row["checkpoint_id"] == "twice" for row in rows["checkpoint_log"]) == 1


def test_branches_that_save_the_same_values_do_not_block_each_other_for_ever(
    arena: Arena, connections: list[Connection]
) -> None:
    for schedule, lanes, _, wrong in arena.all_schedules("existing", [CROSSED, CROSSED], connections, reduce=True):
        assert not wrong, (schedule, wrong)
        assert all(lane.outcomes[0].startswith("ok") for lane in lanes)


@pytest.mark.parametrize(
    ("left", "right"), [("put", "put"), ("put", "put_writes"), ("holder's put_writes", "log"), ("copy from", "log")]
)
def test_what_is_left_out_shows_nothing_new(arena: Arena, left: str, right: str) -> None:
    """The reduced tree reaches all that the full one does; so does the full one with BEGIN as a step of its own.

    With the checks taken away, which makes the outcomes many.
    """
    pair = [EVERY["existing"][left], EVERY["existing"][right]]
    texts = {k: re.sub("FOR (SHARE|UPDATE)", "", re.sub(*GUARD, v)) for k, v in arena.dialect.texts.items()}
    dialect = dataclasses.replace(arena.dialect, texts=texts)
    reached, counts = [], []
    for reduce, merge_begin in ((True, True), (False, True), (False, False))[: 3 if arena.on_postgres else 2]:
        with two_connections(arena, dialect, **({"merge_begin": merge_begin} if arena.on_postgres else {})) as both:
            found = [(repr(x[2]), *x[3]) for x in arena.all_schedules("existing", pair, both, reduce=reduce)]
        counts.append(len(found))
        reached.append(set(found))
    assert all(one == reached[0] for one in reached)
    assert counts == sorted(counts)


def test_statements_that_share_no_lock_meet_in_every_order(arena: Arena, connections: list[Connection]) -> None:
    """The number of schedules is known where nobody waits: the ways to merge two lists."""
    pair = [HOLDER["holder's put_writes"]] * 2
    found = [len(lanes[0].names) for _, lanes, _, _ in arena.all_schedules("existing", pair, connections)]
    steps = found[0] - 1  # BEGIN and the statement behind it are one
    assert len(found) == (math.comb(2 * steps, steps) if arena.on_postgres else 2 * found[0])


def test_a_call_in_a_subgraph_and_its_first_checkpoint(arena: Arena, connections: list[Connection]) -> None:
    """There is no row yet that both could lock, and still the chain of the namespace holds."""
    pair, count = [FIRST_BELOW, CALL_BELOW], 0
    for schedule, lanes, _, wrong in arena.all_schedules("existing", pair, connections, reduce=True):
        assert not wrong, (schedule, wrong)
        assert all(lane.outcomes[0].startswith("ok") for lane in lanes)
        count += 1
    assert count >= 2
    if not arena.on_postgres:
        return
    texts = {**arena.dialect.texts, "share_namespace": "SELECT %(session_id)s, %(agent_id)s"}
    with two_connections(arena, dataclasses.replace(arena.dialect, texts=texts)) as weakened:
        found = arena.all_schedules("existing", pair, weakened)
        assert any(wrong for *_, wrong in found), "it is not seen when the lock is taken away"
