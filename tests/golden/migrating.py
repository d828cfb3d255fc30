"""A migration that no version has: what a saver of the next version would find missing."""

from dataclasses import replace
from typing import Any

from langgraph_ledger.statements import Migration

STATEMENTS = {
    "migration_next_01": "ALTER TABLE sessions ADD COLUMN colour TEXT",
    "migration_next_02": "UPDATE sessions SET colour = 'green'",
    "migration_next_03": "CREATE TABLE colours (name TEXT NOT NULL PRIMARY KEY)",
}


def of_the_next_version(saver: Any) -> Any:
    """The saver, which knows one migration more."""
    dialect = saver._driver._dialect
    number = dialect.migrations[-1].number + 1
    nothing = dict.fromkeys(STATEMENTS, frozenset[str]())
    saver._driver._dialect = replace(
        dialect,
        texts={**dialect.texts, **STATEMENTS},
        parameters={**dialect.parameters, **nothing},
        arrays={**dialect.arrays, **nothing},
        migrations=(*dialect.migrations, Migration(number, "next", tuple(STATEMENTS))),
    )
    return saver
