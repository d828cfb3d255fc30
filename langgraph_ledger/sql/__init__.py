"""The SQL of both databases: named queries and numbered migrations, read from the files beside this module.

A query file is a list of `-- name: ...` headings, each followed by one statement. Parameters are written `:name`
everywhere. `{schema}` stands for the qualifier of our tables ("" or `"name".`), `{guard}` for the condition that the
writer of this transaction still holds the session's root row, and other braces for a `-- fragment: ...`. Both
dialects have the same names with the same parameters; a test compares them.
"""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

from langgraph_ledger.statements import Migration

DialectName = Literal["sqlite", "postgres"]

_HEADING = re.compile(r"^-- ((?:name|fragment): \w+)\n", re.MULTILINE)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)\b")
_ARRAY = re.compile(r"(?<![:\w]):([a-z_]+)::[a-z]+\[\]")
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
def load(name: DialectName, schema: str | None = None) -> Dialect:
    """The SQL of a dialect, its tables qualified by `schema` if one is given."""
    folder = resources.files(__package__) / name
    qualifier = '"' + schema.replace('"', '""') + '".' if schema else ""
    queries = dict(_queries((folder / "queries.sql").read_text("utf-8")))
    raw = {k.removeprefix("name: "): v for k, v in queries.items() if k.startswith("name: ")}
    fragments = {k.removeprefix("fragment: "): v for k, v in queries.items() if k.startswith("fragment: ")}
    migrations = []
    for file in sorted((folder / "migrations").iterdir(), key=lambda f: f.name):
        number, _, title = file.name.removesuffix(".sql").partition("_")
        statements = {f"migration_{number}_{i:02}": s for i, s in enumerate(_split(file.read_text("utf-8")), 1)}
        raw.update(statements)
        migrations.append(Migration(int(number), title, tuple(statements)))
    create = f"CREATE SCHEMA IF NOT EXISTS {qualifier.removesuffix('.')}" if schema else "SELECT 1"
    shared = {**fragments, "guard": _GUARD}
    filled = {name: _fill(text, shared) for name, text in raw.items()}
    parameters = {k: frozenset(_PARAMETER.findall(v)) for k, v in filled.items()}
    arrays = {k: frozenset(_ARRAY.findall(v)) for k, v in filled.items()}
    names = {"schema": qualifier, "create_schema": create, "schema_literal": qualifier.replace("'", "''")}
    if name == "postgres":  # the names come last: they may hold what looks like a parameter
        filled = {k: _for_psycopg(v, arrays[k]) for k, v in filled.items()}
        names = {k: v.replace("%", "%%") for k, v in names.items()}
    texts = {k: _fill(v, names) for k, v in filled.items()}
    return Dialect(name, texts, parameters, arrays, tuple(migrations))


def script(name: DialectName, schema: str | None = None) -> str:
    """All that makes the tables of an empty database, in one transaction, for whoever carries it out by hand."""
    dialect = load(name, schema)
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


def _for_psycopg(text: str, arrays: frozenset[str]) -> str:
    """psycopg's placeholders. Arrays that are rows to be stored travel as they are: it would make text of them."""
    as_they_are = arrays if "FROM unnest(:" in text else frozenset()

    def placeholder(found: re.Match[str]) -> str:
        return f"%({found[1]}){'b' if found[1] in as_they_are else 's'}"

    return _PARAMETER.sub(placeholder, text.replace("%", "%%"))
