"""Writes the pages that are made from the code: schema.md from the migrations, cli.md from the commands.

    python -m docs.generate            write them
    python -m docs.generate --check    only say which of them are not up to date; exits with 1 then

What a table or a column is for is said once, by a comment in SQLite's statements: at the end of the line on which the
table, column, index or view begins. SQLite keeps these comments, so that a database explains itself.
"""

import argparse
import re
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal

from typer.cli import get_docs_for_click
from typer.core import TyperGroup
from typer.main import get_command

from langgraph_ledger import sql
from langgraph_ledger.cli.app import app

DOCS = Path(__file__).parent
MADE = "<!-- Made by `python -m docs.generate`: edit the code, not this page. -->"

SCHEMA = """\
# The tables

The same tables and columns in SQLite and Postgres, from migrations with the same numbers. They are made on first use;
`lgledger schema --ddl` prints the statements ([operating.md](operating.md#a-role-that-may-not-create-tables)).
[design.md](design.md#tables) says why they are as they are.

You are welcome to read them with SQL. Write to them through `LedgerSaver` only: it alone checks versions. The columns
`state`, `payload` and `metadata` are copies for reading; the exact values are in `body`, `place` and `agent_memory`.

On Postgres the text columns of keys have the collation `"C"`, and `schema=` puts all of it in a schema of yours. On
SQLite `working_context` is in a file of its own, `<path>-working`. With `partitions=N` the tables `checkpoint_log`,
`agent_memory` and `pending_writes` have partitions `..._p0` to `..._pN-1` on Postgres ([sizing.md](sizing.md))."""

CLI = """\
# The command line

`lgledger`, or `python -m langgraph_ledger`, comes with the extra `cli`.

{about}"""


# --- the tables


def schema_page() -> str:
    """Every table with its columns, keys and indexes in both databases."""
    with closing(sqlite3.connect(":memory:")) as connection:
        for text in _tables_of("sqlite"):
            connection.execute(text)
        made = connection.execute(
            "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE sql IS NOT NULL"
        ).fetchall()
        parts = [_table(connection, name, text) for kind, name, _, text in made if kind == "table"]
    postgres = "\n".join(_tables_of("postgres"))
    for kind, name, table, text in made:
        if kind == "index":
            only = "" if re.search(rf"INDEX {name}\b", postgres) else ", on SQLite"
            parts[[part.startswith(f"## {table}\n") for part in parts].index(True)] += f"\n- {_index(name, text, only)}"
    views = [f"## {name}\n\nA view: {_purpose(text)}." for kind, name, _, text in made if kind == "view"]
    return "\n\n".join([MADE, SCHEMA, *parts, *views]) + "\n"


def _tables_of(dialect: Literal["sqlite", "postgres"]) -> list[str]:
    texts = sql.load(dialect).texts
    return [text for name, text in texts.items() if name == "create_migrations" or name.startswith("migration_")]


def _table(connection: sqlite3.Connection, name: str, text: str) -> str:
    begin = re.compile(rf"CREATE (UNLOGGED )?TABLE (IF NOT EXISTS )?{name} \(")
    (postgres,) = (other for other in _tables_of("postgres") if begin.search(other))
    types = dict(re.findall(r"^    ([a-z_]+) +([A-Z]+(?: PRECISION)?)\b", postgres, re.MULTILINE))
    types |= dict(re.findall(rf"ALTER TABLE {name} ADD COLUMN ([a-z_]+) ([A-Z]+)", "\n".join(_tables_of("postgres"))))
    later = "\n".join(_tables_of("sqlite"))
    columns = connection.execute(f"PRAGMA table_info({name})").fetchall()
    assert set(types) == {column[1] for column in columns}, f"{name} has other columns on Postgres"
    what = _purpose(text)
    unlogged = " On Postgres it is `UNLOGGED`." if "CREATE UNLOGGED" in postgres else ""
    lines = [f"## {name}", "", f"{what[0].upper()}{what[1:]}.{unlogged}", ""]
    lines += ["| column | SQLite | Postgres | |", "| --- | --- | --- | --- |"]
    for _, column, kind, required, *_ in columns:
        found = re.search(rf"^    {column} .*?-- (.*)$", text, re.MULTILINE) or re.search(
            rf"^ALTER TABLE {name} -- (.*)\n    ADD COLUMN {column} ", later, re.MULTILINE
        )
        assert found, f"{name}.{column}: no comment in SQLite's migrations says what it is for"
        null = "" if required else ", or NULL"
        lines.append(f"| `{column}` | {kind}{null} | {types[column]}{null} | {_cell(found[1])} |")
    here, there = _key(text), _key(postgres)
    return "\n".join([*lines, "", f"- Key: `{here}`" + (f"; on Postgres `{there}`" if here != there else "")])


def _key(text: str) -> str:
    found = re.search(r"^    PRIMARY KEY \((.*)\)|^    (\w+) .*PRIMARY KEY", text, re.MULTILINE)
    assert found
    return found[1] or found[2]


def _index(name: str, text: str, only: str) -> str:
    on = re.sub(r"\s+", " ", text.partition(" ON ")[2])
    columns = on[on.index("(") + 1 :].replace(")", "", 1)
    unique = ", unique" if text.startswith("CREATE UNIQUE") else ""
    return f"`{name}`{unique}{only}: `{columns}` ({_purpose(text)})"


def _purpose(text: str) -> str:
    """The comment at the end of a statement's first line."""
    first = text.splitlines()[0]
    _, mark, purpose = first.partition(" -- ")
    assert mark, f"no comment says what this is for: {first}"
    return purpose


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


# --- the commands


def cli_page() -> str:
    """The commands by panel, then what Typer says of each."""
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    context = group.context_class(group, info_name="lgledger")
    about, *commands = re.split(r"^(?=## )", get_docs_for_click(obj=group, ctx=context, name="lgledger"), flags=re.M)
    _, _, about = about.partition("\n\n")
    about = about.partition("**Usage**")[0].strip().partition("\n\n")[2]
    return "\n\n".join([MADE, CLI.format(about=about), *_panels(group), *map(_command, commands)]) + "\n"


def _panels(group: TyperGroup) -> Iterator[str]:
    panels: dict[str, list[str]] = {}
    for name, command in group.commands.items():
        first = re.split(r"(?<=\.)\s", command.help or "")[0]
        panels.setdefault(getattr(command, "rich_help_panel", None) or "", []).append(
            f"| [`{name}`](#lgledger-{name}) | {_cell(first)} |"
        )
    for panel, rows in panels.items():
        yield "\n".join([f"**{panel}**", "", "| | |", "| --- | --- |", *rows])


def _command(text: str) -> str:
    text = text.replace("```console\n$ ", "```text\n").replace("* `--help`: Show this message and exit.\n", "")
    return text.replace("\n* ", "\n- ").strip()


# --- writing them

PAGES = {"schema.md": schema_page, "cli.md": cli_page}


def main() -> int:
    """Writes the pages, or says which are not what they should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if a page is not up to date")
    check = parser.parse_args().check
    old = 0
    for name, page in PAGES.items():
        path, text = DOCS / name, page()
        if path.exists() and path.read_text("utf-8") == text:
            continue
        old += 1
        print(f"docs/{name} is not up to date: python -m docs.generate" if check else f"docs/{name}")
        if not check:
            path.write_text(text, "utf-8")
    return 1 if check and old else 0


if __name__ == "__main__":
    sys.exit(main())
