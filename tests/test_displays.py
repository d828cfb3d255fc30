"""What a notebook and a terminal show: all that is there, cut where it is long, and nothing that was stored acts."""

import importlib
import inspect
import pkgutil
import re
import sqlite3
import unicodedata
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import StructuredTool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt
from typer.testing import CliRunner

import langgraph_ledger
from langgraph_ledger import LedgerSaver, LogEntry, StateConflict, audit, hold
from langgraph_ledger.branches import Descent, lanes, outline
from langgraph_ledger.cli.app import app
from langgraph_ledger.listings import History, Rejected, Sessions
from tests.direct import at, save
from tests.four_ways import Flavoured

HOSTILE = (
    "<script>alert('1')</script>\"><img src=x onerror=alert(1)> [bold red]x[/] ]]> &lt;"
    "\x1b[2J\x1b]0;t\x07\x08\x9b31m\x85 \u202egnp.exe\u2066 \u200b\u2028\ufeff\U000e0041 \r\nthread: forged\t'--"
)
"""Tags, attributes, markup of rich, terminal escapes, writing that turns round, characters that are not seen, lines."""
THREAD = f"t {HOSTILE}"
NODE = HOSTILE.replace(":", ";")  # LangGraph keeps ":" and "|" for itself
TAGS = {"div", "style", "table", "thead", "tbody", "tr", "th", "td", "span", "pre", "b", "details", "summary"}
TAGS |= {"svg", "path", "circle", "g", "text", "title"}
ATTRIBUTES = {"class", "xmlns", "role", "aria-label", "width", "height", "fill", "d", "stroke", "stroke-width"}
ATTRIBUTES |= {"stroke-dasharray", "x", "y", "cx", "cy", "r", "opacity", "font-weight"}


def look_up(query: str) -> str:
    """Look something up."""
    with hold(f"file:{HOSTILE}"):
        raise ValueError(HOSTILE)


def ask(state: MessagesState) -> Any:
    interrupt(HOSTILE)


def agent(saver: Any) -> Any:
    """A graph of hostile names: a subgraph, a tool that fails, a question."""
    tools = ToolNode([StructuredTool.from_function(look_up, name=HOSTILE)], handle_tool_errors=True)
    call = AIMessage(HOSTILE, tool_calls=[{"name": HOSTILE, "args": {"query": HOSTILE}, "id": HOSTILE}])
    inner = StateGraph(MessagesState).add_sequence([(NODE, lambda state: {"messages": [call]})]).add_edge(START, NODE)
    builder = StateGraph(MessagesState)
    builder.add_sequence([(NODE, inner.compile()), (f"{NODE} tools", tools), (f"{NODE} ask", ask)])
    return builder.add_edge(START, NODE).compile(checkpointer=saver)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A ledger of hostile text: a thread that waits, with a fork, a refused write, a failed call and damaged rows."""
    path = str(tmp_path_factory.mktemp("hostile") / "ledger.db")
    config: Any = {"configurable": {"thread_id": THREAD}, "metadata": {f"n {HOSTILE}": HOSTILE}}
    with LedgerSaver(path) as saver:
        graph = agent(saver)
        graph.invoke({"messages": [HumanMessage(HOSTILE)]}, config)
        oldest = [*graph.get_state_history(config)][-1]
        graph.update_state(oldest.config, {"messages": [HOSTILE]}, as_node=NODE)
        first, second = (saver.get_tuple(at(THREAD)) for _ in range(2))
        save(Flavoured(saver, None), first.config, "9")  # type: ignore[union-attr]
        with pytest.raises(StateConflict):
            save(Flavoured(saver, None), second.config, "10")  # type: ignore[union-attr]
        saver.copy_thread(THREAD, f"copy {THREAD}")
    with closing(sqlite3.connect(path)) as connection, connection:
        damaged = "UPDATE checkpoint_log SET body = x'00' WHERE session_id = ? AND checkpoint_type = 'checkpoint'"
        connection.execute(damaged, (f"copy {THREAD}",))
    return path


class Page(HTMLParser):
    """What a page is made of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: set[str] = set()
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes |= {name for name, _ in attrs}
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def steering(text: str) -> set[str]:
    """The characters of a text that may act on whoever shows it."""
    return {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c != "\n"}


def displays(saver: LedgerSaver) -> dict[str, Any]:
    """One of everything that shows itself, by its class."""
    history = saver.history(THREAD)
    ids = [entry.checkpoint_id for entry in history if entry.checkpoint_type == "checkpoint" and not entry.agent_id]
    shown = [saver, saver.sessions(), saver.sessions()[-1], history, saver.rejected_writes(), saver.stats()]
    shown += [saver.diff(THREAD, str(ids[0])), saver.recover(THREAD), audit(agent(saver))]
    return {type(one).__name__: one for one in shown}


def test_nothing_stored_acts_in_a_notebook(hostile: str) -> None:
    with LedgerSaver(hostile) as saver:
        shown = displays(saver)
    modules = [
        importlib.import_module(name)
        for _, name, _ in pkgutil.walk_packages(langgraph_ledger.__path__, "langgraph_ledger.")
        if not name.endswith("__main__")
    ]
    classes = {c for module in modules for _, c in inspect.getmembers(module, inspect.isclass)}
    assert {c.__name__ for c in classes if "_repr_html_" in vars(c)} == set(shown), "every display is looked at"
    for name, one in shown.items():
        page = Page(one._repr_html_())
        assert set(page.tags) <= TAGS, name
        assert page.attributes <= ATTRIBUTES, name
        assert steering(one._repr_html_()) == set(), name
        if name not in ("Stats", "LedgerSaver"):
            assert "<script>alert('1')</script>\"><img" in page.text, f"{name} shows what was stored as it is"
        if name != "LedgerSaver":
            assert steering(str(one)) == set(), name
            assert not any(line.startswith("thread: forged") for line in str(one).splitlines()), name


def commands(hostile: str, folder: Path) -> dict[str, list[list[str]]]:
    """What is run of every command, where hostile text is stored or given."""
    with LedgerSaver(hostile, read_only=True) as saver:
        ids = [str(e.checkpoint_id) for e in saver.history(THREAD) if e.checkpoint_type == "checkpoint"]
    return {
        "sessions": [[], ["--where", f"n {HOSTILE}={HOSTILE}"]],
        "show": [[THREAD], [THREAD, "--at", HOSTILE], [f"copy {THREAD}"]],
        "history": [[THREAD], [HOSTILE]],
        "diff": [[THREAD, ids[0]], [THREAD, HOSTILE]],
        "log": [[THREAD], [THREAD, "--calls"]],
        "conflicts": [[], [THREAD]],
        "audit": [["hostile_app:graph"], [f"hostile_app:{HOSTILE}"]],
        "recover": [[THREAD], []],
        "resolve": [[THREAD, HOSTILE, "--happened"]],
        "release": [[THREAD, f"file:{HOSTILE}"]],
        "stats": [[], [THREAD]],
        "verify": [[], [THREAD]],
        "heads": [[], [THREAD]],
        "prune": [[THREAD], [f"copy {THREAD}"]],
        "sweep": [[]],
        "compact": [[]],
        "copy": [[THREAD, THREAD], [THREAD, f"another {THREAD}"], [HOSTILE, "c"]],
        "delete": [[THREAD], [HOSTILE]],
        "schema": [[]],
        "import": [["--from", str(folder / "out.db"), THREAD], ["--from", str(folder / "out.db")]],
        "export": [["--to", str(folder / "out.db"), THREAD], ["--to", str(folder / "out.db"), HOSTILE]],
    }


def test_nothing_stored_acts_in_a_terminal(hostile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hostile_app.py").write_text("from tests.test_displays import agent\ngraph = agent(None)\n")
    monkeypatch.chdir(tmp_path)
    given = commands(hostile, tmp_path)
    there = {command.name or command.callback.__name__ for command in app.registered_commands}  # type: ignore[union-attr]
    assert set(given) == there - {"demo"}, "every command is run; what the demo stores is its own"
    told = ""
    for command in ("export", *(name for name in given if name != "export")):
        for arguments in given[command]:
            for options in ([], ["--json"]) if command not in ("copy", "delete", "schema") else ([],):
                place = [] if command == "audit" else ["--url", hostile]
                found = CliRunner().invoke(app, [command, *options, *place, *arguments])
                assert isinstance(found.exception, SystemExit | None), (command, arguments, found.exception)
                assert steering(found.output) == set(), (command, arguments)
                assert not re.search("^ *thread: forged", found.output, re.MULTILINE), (command, arguments)
                told += found.output
    assert told.count("<script>alert('1')</script>\"><img src=x onerror=alert(1)> [bold red]x[/]") > 20


@pytest.mark.parametrize(
    "target",
    [
        "postgresql://ann:s3cret@nowhere.invalid/agents?application_name=x",
        "postgresql://ann:s3cret@p4rt@nowhere.invalid/agents",
        "postgresql://nowhere.invalid/agents?user=ann&password=s3cret&connect_timeout=1",
        "host=nowhere.invalid user=ann password='s3cret p4rt' dbname=agents",
    ],
)
def test_a_saver_shows_itself_without_a_connection_or_a_password(target: str) -> None:
    saver = LedgerSaver(target, schema="agents", connection_kwargs={"sslpassword": "s3cret"})
    for shown in (repr(saver), saver._repr_html_()):
        assert "nowhere.invalid" in shown
        assert "s3cret" not in shown
        assert "p4rt" not in shown
    saver.close()


def test_a_saver_shows_what_it_was_told(tmp_path: Path) -> None:
    with LedgerSaver(tmp_path / "l.db", on_conflict="report", flush="important", working_channels={"pad"}) as saver:
        text = Page(saver._repr_html_()).text
        assert "report" in text
        assert "important: the steps since" in text
        assert "pad" in text
        assert "not looked at yet" in text
        assert [*tmp_path.iterdir()] == []
        saver.setup()
        assert "up to date" in saver._repr_html_()
    assert "make a new LedgerSaver" in saver._repr_html_()


def test_a_history_is_drawn(hostile: str) -> None:
    with LedgerSaver(hostile) as saver:
        history = saver.history(THREAD)
        head = saver.get_tuple(at(THREAD))
    kinds = Counter(entry.checkpoint_type for entry in history)
    page = history._repr_html_()
    assert page.count('r="4.5"') == kinds["checkpoint"]
    assert page.count('r="7.5"') == 1, "the head has a ring"
    assert page.count("m0 -8l-8 8") == kinds["write_rejected"] == 1
    assert page.count("stroke-dasharray") == 2, "the way into the subgraph, and to what was refused"
    assert head is not None
    assert history.head == head.checkpoint["id"]
    (current,) = [text for text in str(history).splitlines() if text.endswith("head")]
    assert history.head in current
    assert "1 refused write" in page
    assert isinstance(history[1:], History)


def entry(seq: int, kind: str, parent: str | None, agent: str = "", **payload: Any) -> LogEntry:
    made = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    return LogEntry(seq, "t", agent, kind, f"c{seq}", parent, None, None, payload, made)


def test_a_checkpoint_of_a_subgraph_is_no_head() -> None:
    """Whatever its id is."""
    history = History([entry(1, "checkpoint", None), entry(1, "checkpoint", None, "a:1")], "t", "c1")
    assert str(history).count("  head") == 1


@st.composite
def logs(draw: Callable[..., Any]) -> list[LogEntry]:
    """Logs of forks, refused writes, subgraphs, pruned parents, parents that come later or never end."""
    found: list[LogEntry] = []
    for seq in range(draw(st.integers(1, 25))):
        kind = draw(st.sampled_from(["checkpoint", "checkpoint", "checkpoint", "write_rejected", "tool_call_started"]))
        agent_id = draw(st.sampled_from(["", "", "a:1", "a:1|b:2"]))
        around = [e.checkpoint_id for e in found if e.checkpoint_type == "checkpoint" and e.agent_id == agent_id]
        parent = draw(st.sampled_from([*around[-3:], *around[-3:], "pruned", f"c{seq}", f"c{seq + 1}", None]))
        roots = [e.checkpoint_id for e in found if e.checkpoint_type == "checkpoint" and not e.agent_id]
        above = {"parents": {"": draw(st.sampled_from([roots[-1], f"c{seq + 1}"]))}} if agent_id and roots else {}
        found.append(entry(seq, kind, parent, agent_id, checkpoint_read=parent, **above))
    return found


@given(logs())
@settings(max_examples=60, deadline=None)
def test_no_line_of_a_drawing_hides_another(entries: list[LogEntry]) -> None:
    descent = Descent(entries)
    found = lanes(descent)
    assert sorted(place for lane in found for place in lane.places) == [*range(len(descent.entries))]
    taken: set[tuple[int, int]] = set()
    for lane in found:
        first = lane.places[0] if lane.origin is None else lane.origin + 1
        rows = {(lane.column, row) for row in range(first, lane.places[-1] + 1)}
        assert not rows & taken
        taken |= rows
    told = [one for _, one in outline(descent) if isinstance(one, LogEntry)]
    assert sorted(one.seq for one in told) == sorted(one.seq for one in descent.entries)
    page = Page(History(entries, "t", "c0")._repr_html_())
    assert page.tags["circle"] + page.tags["path"] >= len(descent.entries)


def test_long_lists_are_cut_and_say_so() -> None:
    one = langgraph_ledger.Session("t", "active", {"long": "x" * 1000}, *[datetime(2026, 1, 2, tzinfo=UTC)] * 2)
    sessions = Sessions(replace(one, session_id=f"t {i} " + "y" * 1000) for i in range(250))
    rejected = Rejected(entry(i, "write_rejected", None, operation=f"put{i}") for i in range(250))
    history = History([entry(i, "checkpoint", f"c{i - 1}", step=i) for i in range(250)], "t", "c249")
    for found, note, rows in (
        (sessions, "… and 150 more, which are not shown", 101),
        (rejected, "the first 150 of 250 are not shown", 101),
        (history, "the first 150 of 250 are not shown", 101),
    ):
        page = Page(found._repr_html_())
        assert note in page.text
        assert page.tags["tr"] == rows
        assert note in str(found)
        assert len(str(found).splitlines()) <= 103
        assert len(found._repr_html_()) < 150_000
    assert "no threads" in str(Sessions())
    for nothing in (Sessions(), Rejected(), History()):
        assert Page(nothing._repr_html_()).text


def test_many_forks_in_one_another() -> None:
    """Deeper than Python recurses."""
    entries = [entry(0, "checkpoint", None, step=0)]
    for i in range(1, 4000, 2):
        entries += [entry(i, "checkpoint", f"c{i - 1}"), entry(i + 1, "checkpoint", f"c{i - 1}")]
    assert len(list(outline(Descent(entries[:3000])))) == 3000
    assert len(lanes(Descent(entries))) == 2001
