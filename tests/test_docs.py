"""What the documents show is run, what they link to exists, and what they quote from the code is in the code."""

import ast
import inspect
import os
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import langgraph_ledger
from docs import generate
from langgraph_ledger import LedgerSaver, server, sql
from langgraph_ledger.drivers.opening import _POSTGRES_ONLY, _SQLITE_ONLY
from langgraph_ledger.drivers.postgres import PostgresDriver
from langgraph_ledger.drivers.sqlite import SqliteDriver
from tests.strict_python import PYTHON
from tests.test_demo import COMMAND

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
POSTGRES_URL = "postgresql://user:password@localhost/agents"
"""The URL that the documents show; a real server's takes its place."""

GIVEN = """\
import operator; from typing import Annotated, TypedDict; from langgraph.graph import START, StateGraph
State = TypedDict("State", {"messages": Annotated[list, operator.add]})
builder = StateGraph(State).add_sequence([("reply", lambda state: {"messages": ["hi"]})]).add_edge(START, "reply")
del operator, Annotated, TypedDict, START, StateGraph, State
"""
"""What a reader has before the first block: "`builder` is the `StateGraph` you have"."""

BETWEEN = "--- the next block ---"
LGLEDGER = ("lgledger ", "export LANGGRAPH_LEDGER_URL=", "export LANGGRAPH_AES_KEY=")

every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.relative_to(ROOT)))


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the line that its text begins at, and whether it follows on a block."""

    language: str
    text: str
    line: int
    follows: bool


@cache
def read(document: Path) -> str:
    return document.read_text("utf-8")


@cache
def blocks(document: Path) -> tuple[Block, ...]:
    return tuple(_blocks(read(document)))


def _blocks(text: str) -> Iterator[Block]:
    language: str | None = None
    body: list[str] = []
    start, follows = 0, False
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if language is not None:
            if line.rstrip() == "```":
                yield Block(language, "".join(body), start, follows)
                language, follows = None, True
            else:
                body.append(line)
        elif line.startswith("```"):
            language, body, start = line.removeprefix("```").strip(), [], number + 1
        elif line.strip():
            follows = False
    assert language is None, f"the block at line {start} has no end"


def of(document: Path, language: str) -> list[Block]:
    return [block for block in blocks(document) if block.language == language]


def is_lgledger(block: Block) -> bool:
    """Whether it is nothing but lines of lgledger, which are run like Python."""
    return block.language == "sh" and all(line.startswith(LGLEDGER) for line in block.text.splitlines())


def runnable(document: Path) -> list[Block]:
    return [block for block in blocks(document) if block.language == "python" or is_lgledger(block)]


@cache
def prose(document: Path) -> str:
    """The document without its blocks."""
    return re.sub(r"^```.*?^```$", "", read(document), flags=re.MULTILINE | re.DOTALL)


# --- code


@every_document
def test_every_block_says_what_it_is(document: Path) -> None:
    """Python and lgledger are run, sh and sql are compared with what they quote, text after what is run is what it
    prints."""
    assert {block.language for block in blocks(document)} <= {"python", "sh", "sql", "text"}


def script(document: Path) -> str:
    """What is run of the document as Python, each line with the number that it has in the document."""
    lines: list[str] = [""] * (read(document).count("\n") + 1)
    lines[0] = f"exec({GIVEN!r})"
    for block in runnable(document):
        text = block.text.splitlines()
        if block.language == "sh":
            text = [f"__import__('tests.command_line').command_line.run({line!r})" for line in text]
        lines[block.line - 1 : block.line - 1 + len(text)] = text
        lines[block.line - 1 + len(text)] = f"print({BETWEEN!r})"
    return "\n".join(lines)


def outputs(document: Path) -> list[str | None]:
    """What each block that is run is said to print, None if nothing is said."""
    found: list[str | None] = []
    for block in blocks(document):
        if block.language == "python" or is_lgledger(block):
            found.append(None)
        elif block.language == "text" and block.follows and found and found[-1] is None:
            found[-1] = block.text
    return found


WITH_CODE = [document for document in DOCUMENTS if runnable(document)]


@pytest.mark.parametrize("document", WITH_CODE, ids=lambda d: str(d.relative_to(ROOT)))
def test_code_does_what_is_said(document: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """All blocks of a document, one after another, in one process and one empty folder; warnings are errors."""
    code = script(document)
    if POSTGRES_URL in code:
        create: Callable[[], str] = request.getfixturevalue("fresh_postgres_url")
        code = code.replace(POSTGRES_URL, create())
    path = tmp_path / f"{document.stem}.py"
    path.write_text(code, "utf-8")
    folder = tmp_path / "empty"
    folder.mkdir()
    ended = subprocess.run(
        [*PYTHON, path],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    printed = ended.stdout.split(f"{BETWEEN}\n")
    assert printed.pop() == ""
    for block, said, seen in zip(runnable(document), outputs(document), printed, strict=True):
        if said is not None or block.language == "python":  # of a command it may be left open what it prints
            assert seen == (said or ""), f"{document.name}, line {block.line}"


PUBLIC = {module.__name__: module.__all__ for module in (langgraph_ledger, server)}


def test_only_public_names_are_shown() -> None:
    for document in DOCUMENTS:
        for block in of(document, "python"):
            for node in ast.walk(ast.parse(block.text)):
                if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("langgraph_ledger"):
                    shown = {name.name for name in node.names}
                    assert shown <= set(PUBLIC.get(node.module, ())), node.module


def test_the_first_screen_shows_the_four_lines_and_the_two_commands() -> None:
    first = "".join(read(ROOT / "README.md").splitlines(keepends=True)[:30])
    four, commands, *_ = _blocks(first)
    assert four.language == "python"
    assert len(four.text.splitlines()) == 4
    assert commands.language == "sh"
    assert len(commands.text.splitlines()) == 2


def test_commands_are_those_that_are_run() -> None:
    """The tests' command is CI's, word for word; the demo's is the one that its own tests start."""
    shown = [block for document in DOCUMENTS for block in of(document, "sh") if not is_lgledger(block)]
    lines = [line for block in shown for line in block.text.splitlines()]
    commands = {command.strip() for line in lines for command in line.split("&&")}
    extras = tomllib.loads(read(ROOT / "pyproject.toml"))["project"]["optional-dependencies"]
    installs = {command for command in commands if " pip install " in command}
    for install in installs:
        match = re.fullmatch(r"python -m pip install -e '\.\[([\w,]+)\]'", install)
        assert match
        assert set(match[1].split(",")) <= set(extras)
    ci = read(ROOT / ".ci" / "run").splitlines()
    demo = " ".join(["python", *COMMAND[1:]])
    assert commands - installs == {demo, "python -m pytest"}
    assert "python -m pip install -e '.[test]' && python -m pytest" in lines
    assert "python -m pip install -e '.[cli]' && " + demo in lines
    assert {"python -m pip install -e '.[test]'", "python -m pytest"} <= set(ci)


# --- what is made from the code, and what is quoted


@pytest.mark.parametrize("name", generate.PAGES)
def test_pages_made_from_the_code_are_up_to_date(name: str) -> None:
    """`python -m docs.generate` writes them."""
    assert read(ROOT / "docs" / name) == generate.PAGES[name]()


def test_the_options_are_those_there_are() -> None:
    """The README's table: every option of LedgerSaver, for which database, with its default."""
    (table,) = re.findall(r"(?:^\| `\w+` \| (?:both|SQLite|Postgres) \|.*\n)+", read(ROOT / "README.md"), re.MULTILINE)
    rows = re.findall(r"^\| `(\w+)` \| (both|SQLite|Postgres) \| (.*?) \|", table, re.MULTILINE)
    parameters = inspect.signature(LedgerSaver.__init__).parameters
    assert {name for name, *_ in rows} == set(parameters) - {"self", "target"}
    for name, database, default in rows:
        expected = "SQLite" if name in _SQLITE_ONLY else "Postgres" if name in _POSTGRES_ONLY else "both"
        assert database == expected, name
        driver = {"SQLite": SqliteDriver, "Postgres": PostgresDriver}.get(database)
        value = inspect.signature(driver.__init__).parameters[name].default if driver else parameters[name].default
        if value is not None:
            assert default == f"`{value!r}`".replace("'", '"'), name


@every_document
def test_quoted_queries_are_the_code(document: Path) -> None:
    """A sql block that begins with a query's name is that query, in SQLite's dialect."""
    queries = (ROOT / "langgraph_ledger" / "sql" / "sqlite" / "queries.sql").read_text("utf-8")
    for block in of(document, "sql"):
        if block.text.startswith("-- name: "):
            assert block.text.strip() in queries, f"{document.name}, line {block.line}"


def test_the_design_names_every_table_and_every_module() -> None:
    design = read(ROOT / "docs" / "design.md")
    statements = [
        text for name, text in sql.load("sqlite").texts.items() if name.startswith(("migration_", "create_migrations"))
    ]
    tables = {m for text in statements for m in re.findall(r"CREATE TABLE (?:IF NOT EXISTS )?(\w+)", text)}
    assert tables
    assert {table for table in tables if f"`{table}`" not in design} == set()

    (shape,) = re.findall(r"```text\nlanggraph_ledger/\n(.*?)```", design, re.DOTALL)
    named = {line.split()[0] for line in shape.splitlines() if line.strip()}
    package = ROOT / "langgraph_ledger"
    there = {
        f"{path.relative_to(package)}/" if path.is_dir() else str(path.relative_to(package))
        for path in [
            *package.glob("*"),
            *(p for name in ("operations", "drivers", "cli") for p in package.glob(f"{name}/*.py")),
        ]
        if path.name != "__pycache__" and not (path.name == "__init__.py" and path.parent != package)
    }
    assert {name if name in there else name.removeprefix("/") for name in named} == there


# --- links

LINK = re.compile(r"\[([^\]\[]*(?:\[[^\]]*\][^\]\[]*)*)\]\(([^)\s]+)\)")
TEST = re.compile(r"`?(test_\w+\.py|[\w/]+/test_\w+\.py)::(\w+)`?")


@cache
def anchors(document: Path) -> frozenset[str]:
    """The anchors of a document's headings, made as GitHub makes them."""
    found: list[str] = []
    for heading in re.findall(r"^#+ +(.*?)\s*$", prose(document), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found.append(f"{anchor}-{found.count(anchor)}" if anchor in found else anchor)
    return frozenset(found)


@cache
def names_in(path: Path) -> frozenset[str]:
    """The names of a file's test functions, and of its classes."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return frozenset(node.name for node in ast.walk(ast.parse(read(path))) if isinstance(node, kinds))


@every_document
def test_every_link_leads_somewhere(document: Path) -> None:
    broken = []
    for _, target in LINK.findall(prose(document)):
        if re.match(r"[a-z]+:", target):
            continue
        place, _, anchor = target.partition("#")
        path = (document.parent / place).resolve() if place else document
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(target)
    assert broken == []


@every_document
def test_every_test_that_is_named_exists(document: Path) -> None:
    missing = []
    for text, target in LINK.findall(prose(document)):
        if match := TEST.fullmatch(text):
            path = (document.parent / target).resolve()
            if path.name != Path(match[1]).name or not path.exists() or match[2] not in names_in(path):
                missing.append(text)
    assert missing == []
    unlinked = TEST.findall(LINK.sub("", prose(document)))
    assert unlinked == [], "a test is named without a link"


def test_every_promise_has_a_test_and_a_limit() -> None:
    text = read(ROOT / "docs" / "guarantees.md")
    _, *promises = re.split(r"^## +", text, flags=re.MULTILINE)
    assert promises
    for promise in promises:
        title = promise.splitlines()[0]
        assert "**It does not promise**" in promise, title
        assert any(TEST.fullmatch(name) for name, _ in LINK.findall(promise)), title
