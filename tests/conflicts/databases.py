"""One database for all the tests of a module, each of which has a thread of its own in it."""

from collections.abc import Iterator

import pytest

from tests.four_ways import Backend
from tests.postgres_server import create_database, drop_database


def shared_database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    """What a fixture with the parameters "sqlite" and "postgres" yields."""
    if request.param == "sqlite":
        yield Backend("sqlite", str(tmp_path_factory.mktemp("ledger") / "shared.db"))
        return
    server = request.getfixturevalue("postgres_url")
    url = create_database(server)
    yield Backend("postgres", url)
    drop_database(server, url)
