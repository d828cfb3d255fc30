"""A pytest plugin that leaves tests out, so that a cell of the matrix takes minutes.

    python -m pytest -p tests.matrix.sample --database postgres    what needs a Postgres server; "sqlite": the rest
    python -m pytest -p tests.matrix.sample --each-file 5          five test functions of each file, in one case each

The cases take turns: of a file's first test the first case runs, of its second test the second one, and so on. So the
databases and the flavours alternate.
"""

import math
from collections import defaultdict

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--database", choices=["sqlite", "postgres"])
    parser.addoption("--each-file", type=int, metavar="TESTS")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    database, each_file = config.getoption("--database"), config.getoption("--each-file")
    kept = [item for item in items if database in (None, "postgres" if needs_postgres(item) else "sqlite")]
    if each_file:
        kept = sample(kept, each_file)
    left_out = set(items) - set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = kept


def sample(items: list[pytest.Item], each_file: int) -> list[pytest.Item]:
    """So many test functions of each file, from all over it, in one case each."""
    files: dict[str, dict[str, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        function = item.nodeid.partition("[")[0]
        files[function.partition("::")[0]][function].append(item)
    kept = []
    for functions in files.values():
        chosen = list(functions.values())[:: math.ceil(len(functions) / each_file)]
        kept += [cases[turn % len(cases)] for turn, cases in enumerate(chosen)]
    return kept


def needs_postgres(item: pytest.Item) -> bool:
    return "postgres" in item.nodeid or "postgres_url" in getattr(item, "fixturenames", ())
