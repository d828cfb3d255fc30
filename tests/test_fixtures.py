"""The ground the other tests stand on: a real server that keeps what it promised, and databases of one's own."""

from collections.abc import Callable

import psycopg
import pytest


def setting(connection: psycopg.Connection, name: str) -> str:
    row = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
    assert row
    return row[0]


def test_the_server_is_as_durable_as_in_production(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        durability = {name: setting(connection, name) for name in ("fsync", "synchronous_commit", "full_page_writes")}
        assert durability == {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
        assert int(setting(connection, "max_connections")) >= 200


def test_databases_are_isolated(fresh_postgres_url: Callable[[], str]) -> None:
    one, other = fresh_postgres_url(), fresh_postgres_url()
    with psycopg.connect(one) as connection:
        connection.execute("CREATE TABLE here (id int)")
    with psycopg.connect(other) as connection, pytest.raises(psycopg.errors.UndefinedTable):
        connection.execute("SELECT * FROM here")
