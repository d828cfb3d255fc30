"""What stands between a saver and Postgres: a pooler is noticed, and nothing is asked of it that it does not do."""

import struct
from collections.abc import Callable, Iterator

import psycopg
import pytest

from langgraph_ledger import LedgerSaver, StateConflict
from tests.direct import at, save
from tests.four_ways import Flavoured
from tests.proxy import Proxy

FreshUrl = Callable[[], str]


def _anothers(kind: bytes, body: bytes) -> bytes:
    """The server's greeting with another backend's number in it, as poolers give it."""
    return struct.pack("!I", 1_000_000_007) + body[4:] if kind == b"K" else body


@pytest.fixture
def pooled(fresh_postgres_url: FreshUrl) -> Iterator[FreshUrl]:
    """Makes URLs of empty databases that are reached through a proxy with a pooler's greeting."""
    proxies: list[Proxy] = []

    def make() -> str:
        proxies.append(Proxy(fresh_postgres_url(), _anothers))
        return proxies[-1].url

    yield make
    for proxy in proxies:
        proxy.close()


def thresholds(saver: LedgerSaver) -> tuple[int | None, bool]:
    with saver._ledger.driver._own_pool().connection() as connection:  # type: ignore[attr-defined]
        return connection.prepare_threshold, connection.is_direct


def two_writers(saver: LedgerSaver) -> None:
    """Enough of the same that statements would be prepared, and a conflict."""
    four = Flavoured(saver, None)
    start = save(four, at("t"), "0", {"n": 0})
    for number in range(1, 9):
        start = save(four, start, str(number), {"n": number, "words": ["word"] * 500})
        four.put_writes(start, [("n", number)], f"task {number}")
    first, second = (saver.get_tuple(at("t")) for _ in range(2))
    assert first is not None
    assert second is not None
    save(four, first.config, "9", {"n": 9})
    with pytest.raises(StateConflict):
        save(four, second.config, "10", {"n": 10})
    assert [item.checkpoint["id"] for item in saver.list(at("t"))] == [str(n) for n in range(9, -1, -1)]


def test_a_server_that_answers_itself_keeps_plans(fresh_postgres_url: FreshUrl) -> None:
    with LedgerSaver(fresh_postgres_url(), max_size=1) as saver:  # one connection, which is looked into
        two_writers(saver)
        threshold, direct = thresholds(saver)
        assert threshold is not None
        assert direct
        with saver._ledger.driver._own_pool().connection() as connection:  # type: ignore[attr-defined]
            kept = connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
        assert kept[0] > 0


def test_a_pooler_is_asked_to_keep_nothing(pooled: FreshUrl) -> None:
    with LedgerSaver(pooled()) as saver:
        two_writers(saver)
        assert thresholds(saver) == (None, False)


@pytest.mark.parametrize("setting", ["default_transaction_isolation = 'serializable'"])
def test_a_server_with_other_defaults_is_told_how_to_begin(fresh_postgres_url: FreshUrl, setting: str) -> None:
    url = fresh_postgres_url()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET {setting}")
    with LedgerSaver(url) as saver:
        two_writers(saver)
        assert thresholds(saver) == (None, False)


def test_who_says_how_to_prepare_is_obeyed(fresh_postgres_url: FreshUrl) -> None:
    with LedgerSaver(fresh_postgres_url(), connection_kwargs={"prepare_threshold": None}) as saver:
        two_writers(saver)
        assert thresholds(saver) == (None, False)
