"""The matrix of versions reads what the project says, and its page shows what it has found."""

import json
import re

from tests.matrix.__main__ import PAGE, RESULTS, table
from tests.matrix.cells import CELLS, lower_bounds


def test_what_is_needed_at_run_time_has_a_lower_bound() -> None:
    bounds = lower_bounds()
    assert len(bounds) > 10
    assert [bound for bound in bounds if not re.fullmatch(r"[\w-]+==\d[\d.]*", bound)] == []


def test_the_page_shows_the_results() -> None:
    results = json.loads(RESULTS.read_text("utf-8"))
    assert results.keys() <= {cell.name for cell in CELLS}
    assert table(results) in PAGE.read_text("utf-8")


def test_each_result_says_how_large_its_sample_was() -> None:
    results = json.loads(RESULTS.read_text("utf-8"))
    ran = [name for name, outcome in results.items() if "passed" in outcome["result"]]
    assert ran
    for name in ran:
        (row,) = re.findall(rf"^\| {re.escape(name)} \|.*$", PAGE.read_text("utf-8"), flags=re.MULTILINE)
        assert re.fullmatch(r"[1-9]\d*|all", row.split(" | ")[-3])
