"""The SQL of both databases: named queries and numbered migrations, read from the files beside this module.

A query file is a list of `-- name: ...` headings, each followed by one statement. Parameters are written `:name`
everywhere. `{schema}` stands for the qualifier of our tables ("" or `"name".`), `{guard}` for the condition that the
writer of this transaction still holds the session's root row, and other braces for a `-- fragment: ...`. Both
dialects have the same names with the same parameters; a test compares them.

A table of Postgres's migrations that ends in `{by_session}` is partitioned where that is asked for. The option is known
where the tables are made, and not to whoever brings them up to date later: what a later migration does to such a table
must be possible with one that has partitions too (columns and indexes are, storage parameters are not).
"""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

from langgraph_ledger.errors import InvalidInput
from langgraph_ledger.statements import Migration

DialectName = Literal["sqlite", "postgres"]

MOST_PARTITIONS = 128
"""All are made in one transaction, which locks each with its indexes: a server has room for some thousands of locks."""

_HEADING = re.compile(r"^-- ((?:name|fragment): \w+)\n", re.MULTILINE)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)\b")
_ARRAY = re.compile(r"(?<![:\w]):([a-z_]+)::[a-z]+\[\]")
_BY_SESSION = re.compile(r"CREATE TABLE \{schema\}(\w+) \(.*\)\{by_session\}", re.DOTALL)
_PARAMETERS = re.compile(r"ALTER TABLE \{schema\}(\w+) (SET \(.*\))", re.DOTALL)
_GUARD = (
    "EXISTS (SELECT 1 FROM {schema}agent_state_ledger g"
    " WHERE g.session_id = :session_id AND g.agent_id = '' AND g.writer = :writer)"
)


@dataclass(slots=True, eq=False, repr=False)
class Dialect:
    """All SQL for one database, ready to send: texts by name, and the migrations in order."""

    name: DialectName
    texts: dict[str, str]
    parameters: dict[str, frozenset[str]]
    arrays: dict[str, frozenset[str]]
    """Parameters that take a column of values, so that one statement stores many rows."""
    migrations: tuple[Migration, ...]


@cache
def load(name: DialectName, schema: str | None = None, partitions: int | None = None) -> Dialect:
    """The SQL of a dialect, its tables qualified by `schema` if one is given. `partitions` is in how many of them the
    migrations make the large tables."""
    folder = resources.files(__package__) / name
    qualifier = '"' + schema.replace('"', '""') + '".' if schema else ""
    queries = dict(_queries((folder / "queries.sql").read_text("utf-8")))
    raw = {k.removeprefix("name: "): v for k, v in queries.items() if k.startswith("name: ")}
    fragments = {k.removeprefix("fragment: "): v for k, v in queries.items() if k.startswith("fragment: ")}
    migrations = []
    for file in sorted((folder / "migrations").iterdir(), key=lambda f: f.name):
        number, _, title = file.name.removesuffix(".sql").partition("_")
        steps = _split(file.read_text("utf-8"))
        if partitions:
            steps = _partitioned(steps, partitions)
        statements = {f"migration_{number}_{i:02}": s for i, s in enumerate(steps, 1)}
        raw.update(statements)
        migrations.append(Migration(int(number), title, tuple(statements)))
    create = f"CREATE SCHEMA IF NOT EXISTS {qualifier.removesuffix('.')}" if schema else "SELECT 1"
    shared = {**fragments, "guard": _GUARD}
    filled = {name: _fill(text, shared) for name, text in raw.items()}
    parameters = {k: frozenset(_PARAMETER.findall(v)) for k, v in filled.items()}
    arrays = {k: frozenset(_ARRAY.findall(v)) for k, v in filled.items()}
    by_session = " PARTITION BY HASH (session_id)" if partitions else ""
    names = {
        "schema": qualifier,
        "create_schema": create,
        "schema_literal": qualifier.replace("'", "''"),
        "by_session": by_session,
    }
    if name == "postgres":  # the names come last: they may hold what looks like a parameter
        filled = {k: _for_psycopg(v, arrays[k]) for k, v in filled.items()}
        names = {k: v.replace("%", "%%") for k, v in names.items()}
    texts = {k: _fill(v, names) for k, v in filled.items()}
    return Dialect(name, texts, parameters, arrays, tuple(migrations))


def checked_partitions(count: int | None) -> int | None:
    """A number of partitions that somebody asked for, or None. Raises InvalidInput if it is none that can be had."""
    if count is not None and (type(count) is not int or not 2 <= count <= MOST_PARTITIONS):
        raise InvalidInput(f"partitions={count!r}: expected a number from 2 to {MOST_PARTITIONS}")
    return count


def script(name: DialectName, schema: str | None = None, partitions: int | None = None) -> str:
    """All that makes the tables of an empty database, in one transaction, for whoever carries it out by hand."""
    dialect = load(name, schema, partitions)
    statements = ["BEGIN", *([dialect.texts["create_schema"]] if schema else ()), dialect.texts["create_migrations"]]
    into = dialect.texts["record_migration"].partition("(")[0]
    for migration in dialect.migrations:
        facts = f"({migration.number}, '{migration.name}', CURRENT_TIMESTAMP)"
        statements += [dialect.texts[statement] for statement in migration.statements]
        statements.append(f"{into}(number, name, applied_at) VALUES {facts}")
    made = "".join(f"{statement};\n\n" for statement in [*statements, "COMMIT"])
    return made.replace("%%", "%") if name == "postgres" else made


def _fill(text: str, replacements: dict[str, str]) -> str:
    for _ in range(3):  # fragments stand within fragments
        for name, replacement in replacements.items():
            text = text.replace("{" + name + "}", replacement)
    return text


def _queries(text: str) -> list[tuple[str, str]]:
    parts = _HEADING.split(text)
    return [(name, body.strip().removesuffix(";")) for name, body in zip(parts[1::2], parts[2::2], strict=True)]


def _split(script: str) -> list[str]:
    """The statements of a script; ";" alone does not end one (it may stand in a string or a trigger)."""
    statements, current = [], ""
    for line in script.splitlines(keepends=True):
        current += line
        if current.strip() and sqlite3.complete_statement(current):
            statements.append(current.strip().removesuffix(";"))
            current = ""
    if current.strip():
        raise ValueError(f"a migration ends in the middle of a statement: {current.strip()[:80]}")
    return statements


def _partitioned(statements: list[str], count: int) -> list[str]:
    """The statements of a migration, with the partitions of its large tables.

    Columns, indexes and how a column is stored are handed down by Postgres. Storage parameters are not: they are those
    of each partition.
    """
    made, tables = [], set()
    for statement in statements:
        if table := _BY_SESSION.search(statement):
            tables.add(table[1])
            made.append(statement)
            made += (
                f"CREATE TABLE {{schema}}{table[1]}_p{i} PARTITION OF {{schema}}{table[1]}"
                f" FOR VALUES WITH (MODULUS {count}, REMAINDER {i})"
                for i in range(count)
            )
        elif (setting := _PARAMETERS.search(statement)) and setting[1] in tables:
            made += (f"ALTER TABLE {{schema}}{setting[1]}_p{i} {setting[2]}" for i in range(count))
        else:
            made.append(statement)
    return made


def _for_psycopg(text: str, arrays: frozenset[str]) -> str:
    """psycopg's placeholders. Arrays that are rows to be stored travel as they are: it would make text of them."""
    as_they_are = arrays if "FROM unnest(:" in text else frozenset()

    def placeholder(found: re.Match[str]) -> str:
        return f"%({found[1]}){'b' if found[1] in as_they_are else 's'}"

    return _PARAMETER.sub(placeholder, text.replace("%", "%%"))
