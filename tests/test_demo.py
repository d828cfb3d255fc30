"""The demo as users run it: a process of its own, judged by its exit code, its output and what it leaves behind."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from langgraph_ledger import LedgerSaver, cli
from langgraph_ledger.demo.journal import Event, acknowledged_and_run_again, in_flight, run_again
from langgraph_ledger.demo.tickets import TICKETS, build_graph
from langgraph_ledger.demo.worker import Orders
from tests.four_ways import Backend

ROOT = Path(__file__).parent.parent
COMMAND = [sys.executable, "-m", "langgraph_ledger", "demo"]


def environment(temporary: Path, *paths: Path) -> dict[str, str]:
    """The demo's files go to `temporary`; modules are found in the checkout and in `paths`."""
    places = os.pathsep.join(str(path) for path in (*paths, ROOT))
    # wide enough that no row of a table is broken, whatever width the tests' own output has
    return {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": places, "COLUMNS": "140"}


def run(temporary: Path, *arguments: str, paths: tuple[Path, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], env=environment(temporary, *paths), capture_output=True, text=True, timeout=600
    )


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


def test_it_shows_what_it_promises(backend: Backend, temporary: Path) -> None:
    ended = run(temporary, "--url", backend.url)
    said = ended.stdout
    assert ended.returncode == 0, said + ended.stderr
    assert re.search(r"All \d+ checks passed", said)
    assert "FAILED" not in said
    assert (
        "worker 1 is killed in ticket 2 while check_order runs (step 2; already saved in this step: look_up_cu" in said
    )
    assert "worker 2 is killed in ticket 3 while issue_refund runs" in said
    assert "worker 2 resumes ticket 2 at: tools" in said
    assert "24 steps ran: the 22 of an undisturbed run, and 2 again" in said
    assert len(re.findall(r"ticket \d, step \d .* \d+\.\d .* \d+\.\d ", said)) == 2
    assert len(re.findall(r"worker [AB] gets StateConflict", said)) == 1
    assert "write_rejected" in said
    assert "\x1b" not in said
    assert list(temporary.iterdir()) == []
    with LedgerSaver(backend.url) as saver:
        assert list(saver.list(None)) == []


def test_without_a_url_it_leaves_nothing(temporary: Path) -> None:
    ended = run(temporary)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_keep_leaves_the_threads_to_look_at(temporary: Path, sqlite_path: str) -> None:
    ended = run(temporary, "--url", sqlite_path, "--keep")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    with LedgerSaver(sqlite_path) as saver:
        threads = {found.config["configurable"]["thread_id"] for found in saver.list(None)}
        assert len(threads) == 4
        assert len(saver.rejected_writes()) >= 1


# What a saver must not do, and the claim that must then fail. Each is loaded into the demo and into its workers.
BROKEN = {
    "loses acknowledged results": (
        "LedgerSaver.put_writes = lambda self, config, writes, task_id, task_path='': None",
        "Not true: no step whose result had been acknowledged ran again. Found: look_up_customer",
    ),
    "loses acknowledged checkpoints": (
        "put = LedgerSaver.put\n"
        "def lossy(self, config, checkpoint, metadata, versions):\n"
        "    if metadata['step'] < 2: return put(self, config, checkpoint, metadata, versions)\n"
        "    return {'configurable': {**config['configurable'], 'checkpoint_id': checkpoint['id']}}\n"
        "LedgerSaver.put = lossy\n",
        "FAILED",
    ),
    "accepts both answers": (
        "init = LedgerSaver.__init__\nLedgerSaver.__init__ = lambda self, url: init(self, url, on_conflict='report')\n",
        "Not true: one worker won and the other got StateConflict. Found: 2 answered, 0 refused",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_saver_is_found_out(fault: str, temporary: Path, tmp_path: Path) -> None:
    code, claim = BROKEN[fault]
    (tmp_path / "sitecustomize.py").write_text(f"from langgraph_ledger import LedgerSaver\n{code}")
    ended = run(temporary, paths=(tmp_path,))
    assert claim in ended.stdout, ended.stdout + ended.stderr
    assert ended.returncode == 1
    assert list(temporary.iterdir()) == []


def gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    # A dead child whose new parent has not collected it yet.
    status = Path(f"/proc/{process}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_no_worker_outlives_the_demo(number: signal.Signals, code: int, temporary: Path) -> None:
    def hear() -> None:
        signal.signal(number, signal.SIG_DFL)  # a shell has what it runs in the background ignore SIGINT

    options = {"stdout": subprocess.PIPE, "text": True, "preexec_fn": hear if number != signal.SIGKILL else None}
    with subprocess.Popen(COMMAND, env=environment(temporary), **options) as demo:
        assert demo.stdout is not None
        heard = ""
        for line in demo.stdout:
            heard += line
            if "begins ticket 1" in line:
                break
        worker = int(re.findall(r"worker 1 \(process (\d+)\)", heard)[0])
        demo.send_signal(number)
        demo.stdout.read()
    assert demo.returncode == code
    deadline = time.monotonic() + 10
    while not gone(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert gone(worker)
    if number is not signal.SIGKILL:
        assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    "url",
    [
        ":memory:",
        "postgresql://somebody:secret@127.0.0.1:1/nowhere?connect_timeout=2",
        "/nowhere/at/all.db",
    ],
)
def test_a_database_that_will_not_do_is_one_clear_line(url: str, temporary: Path) -> None:
    ended = run(temporary, "--url", url)
    assert ended.returncode == 1
    assert len(re.findall("FAILED", ended.stdout)) == 1
    assert "Traceback" not in ended.stdout + ended.stderr
    assert "secret" not in ended.stdout + ended.stderr
    assert list(temporary.iterdir()) == []


def test_without_typer_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = cli.importlib.util.find_spec
    monkeypatch.setattr(cli.importlib.util, "find_spec", lambda name: None if name == "typer" else find(name))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err.splitlines() == [cli.MISSING]
    assert "pip install 'langgraph-checkpoint-ledger[cli]'" in cli.MISSING


def event(what: str, task: str = "", step: int | None = None, thread: str = "t") -> Event:
    return Event(what, "worker 1", thread=thread, task=task, step=step, name=task)


def test_the_journal_knows_what_was_in_flight() -> None:
    events = [
        event("began", "one", 1),
        event("saved", "one"),
        event("began", "two", 2),
        event("checkpoint", step=1),
        event("checkpoint", step=2, thread="another"),
    ]
    assert [e.task for e in in_flight(events)] == ["two"]
    events += [event("began", "two", 2)]
    assert [e.task for e in run_again(events)] == ["two"]
    assert acknowledged_and_run_again(events) == []


@pytest.mark.parametrize("acknowledgement", [event("saved", "one"), event("checkpoint", step=1)])
def test_the_journal_tells_on_a_saver_that_forgets(acknowledgement: Event) -> None:
    events = [event("began", "one", 1), acknowledgement, event("began", "one", 1)]
    assert [e.task for e in acknowledged_and_run_again(events)] == ["one"]


class Dying(LedgerSaver):
    """A saver whose process dies before it stores the checkpoint of step 2, all of whose writes are stored."""

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        if metadata["step"] == 2:
            raise OSError("the process is gone")
        return super().put(config, checkpoint, metadata, new_versions)


class Nobody:
    """A desk that takes no notice."""

    def step(self, name: str) -> None: ...

    def effect(self, name: str, call_id: str) -> None: ...


def test_a_ticket_is_not_over_when_all_tasks_of_a_step_have_written(sqlite_path: str, tmp_path: Path) -> None:
    """LangGraph leaves such tasks out of `next`, with every saver."""
    config: Any = {"configurable": {"thread_id": "ticket"}}
    with Dying(sqlite_path) as saver:
        graph = build_graph(Nobody(), saver, signature="the first worker")
        with pytest.raises(OSError, match="gone"):
            graph.invoke({"messages": [HumanMessage(TICKETS[0].text)]}, config, durability="sync")
        assert graph.get_state(config).next == ()
    orders = Orders("second", sqlite_path, str(tmp_path / "journal"), [("ticket", TICKETS[0].text)])
    worker = subprocess.Popen(
        [sys.executable, "-m", "langgraph_ledger.demo.worker"],
        env=environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with worker:  # its standard input stays open until it has finished: a worker goes with its parent
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(orders.line())
        worker.stdin.flush()
        said = [Event.parse(line).what for line in worker.stdout]
    assert worker.returncode == 0
    assert "resumed" in said
    with LedgerSaver(sqlite_path) as saver:
        found = saver.get_tuple(config)
        assert found is not None
        assert "Signed, " in found.checkpoint["channel_values"]["messages"][-1].content
