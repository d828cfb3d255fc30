"""What cannot be done is refused with an error of our own that says what, where and what to do; nothing is written."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from langgraph_ledger import (
    LedgerSaver,
    amodify,
    aretry_on_conflict,
    errors,
    expect,
    modify,
    retry_on_conflict,
)
from langgraph_ledger.ids import LIMITS
from tests.direct import at, checkpoint, contents, save, shared_backend
from tests.four_ways import Backend, Flavoured

backend = shared_backend

WRONG_TYPES: list[Any] = [True, False, 1.5, b"bytes", ["a"], {"a": 1}, object()]
WRONG_TEXTS = {"holds a NUL": "a\0b", "lone surrogate": "a\ud800b"}
DEAD = "postgresql://postgres@127.0.0.1:1/nowhere"


@contextmanager
def refused(backend: Backend, kind: type[errors.LedgerError], *words: str) -> Iterator[None]:
    """The block raises exactly this error, its message has these words, and no table has changed."""
    before = contents(backend)
    with pytest.raises(kind) as caught:
        yield
    assert type(caught.value) is kind
    for word in words:
        assert word in str(caught.value)
    assert contents(backend) == before


def all_refuse(calls: list[Callable[[], Any]], *words: str) -> None:
    for number, call in enumerate(calls):
        with pytest.raises(errors.InvalidInput) as caught:
            call()
        assert any(word in str(caught.value) for word in words), (number, str(caught.value))


def with_thread(four: Flavoured, thread: Any) -> list[Callable[[], Any]]:
    """Every method that takes a thread id, called with this one."""
    return [
        lambda: four.get_tuple(at(thread)),
        lambda: four.list(at(thread)),
        lambda: four.put(at(thread), checkpoint("1"), {}, {}),
        lambda: four.put_writes(at(thread, "1"), [("a", 1)], "task"),
        lambda: four.call("get_delta_channel_history", config=at(thread), channels=["a"]),
        lambda: four.call("ancestors", at(thread)),
        lambda: four.call("delete_thread", thread),
        lambda: four.call("copy_thread", thread, "target"),
        lambda: four.call("copy_thread", "source", thread),
        lambda: four.call("prune", ["other", thread]),
        lambda: four.call("prune", [thread], strategy="delete"),
        lambda: four.call("history", thread),
        lambda: four.call("rejected_writes", thread),
    ]


def with_other_ids(four: Flavoured, wrong: Any) -> list[Callable[[], Any]]:
    """Every other id that a caller may give, as this one."""
    thread = str(uuid4())
    return [
        lambda: four.get_tuple(at(thread, ns=wrong)),
        lambda: four.list(at(thread, ns=wrong)),
        lambda: four.put(at(thread, ns=wrong), checkpoint("1"), {}, {}),
        lambda: four.put_writes(at(thread, "1", ns=wrong), [("a", 1)], "task"),
        lambda: four.get_tuple(at(thread, wrong)),
        lambda: four.list(at(thread), before=at(thread, wrong)),
        lambda: four.put(at(thread, wrong), checkpoint("1"), {}, {}),
        lambda: four.put(at(thread), {**checkpoint("1"), "id": wrong}, {}, {}),
        lambda: four.put_writes(at(thread, wrong), [("a", 1)], "task"),
        lambda: four.put_writes(at(thread, "1"), [("a", 1)], wrong),
        lambda: four.put(at(thread), checkpoint("1"), {"run_id": wrong}, {}),
        lambda: four.call("delete_for_runs", [wrong]),
    ]


def test_ids_of_another_type(four: Flavoured, backend: Backend) -> None:
    four.call("setup")
    before = contents(backend)
    for wrong in WRONG_TYPES:
        all_refuse(with_thread(four, wrong), f"thread_id must be a str, int or UUID, not {type(wrong).__name__}")
        if wrong and type(wrong) is not object:
            all_refuse(with_other_ids(four, wrong), f"must be a str, int or UUID, not {type(wrong).__name__}")
    assert contents(backend) == before


def test_falsy_ids_of_another_type(four: Flavoured) -> None:
    for wrong in (False, 0.0, b"", [], {}):
        all_refuse([lambda w=wrong: four.get_tuple(at("t", ns=w)), lambda w=wrong: four.get_tuple(at("t", w))], "must")


def test_missing_ids(four: Flavoured, backend: Backend) -> None:
    four.call("setup")
    before = contents(backend)
    all_refuse(with_thread(four, None)[:6], "has no thread_id")
    all_refuse(with_thread(four, ""), "thread_id must not be empty")
    all_refuse([lambda: four.put_writes(at("t", "1"), [("a", 1)], "")], "task_id must not be empty")
    all_refuse([lambda: four.put(at("t"), {**checkpoint("1"), "id": ""}, {}, {})], "checkpoint_id must not be empty")
    all_refuse(with_thread(four, None)[6:-1], "thread_id must be a str, int or UUID, not NoneType")
    all_refuse([lambda: four.put_writes(at("t"), [("a", 1)], "task")], "needs the checkpoint_id")
    all_refuse([lambda: four.put(at("t"), {**checkpoint("1"), "id": None}, {}, {})], "checkpoint_id must be")
    for config in ({}, {"configurable": None}, None, "thread"):
        all_refuse([lambda c=config: four.get_tuple(c)], "config must be a mapping")
    assert contents(backend) == before


@pytest.mark.parametrize("words", WRONG_TEXTS)
def test_ids_that_are_no_text(four: Flavoured, backend: Backend, words: str) -> None:
    four.call("setup")
    before = contents(backend)
    all_refuse(with_thread(four, WRONG_TEXTS[words]), words)
    all_refuse(with_other_ids(four, WRONG_TEXTS[words]), words)
    assert contents(backend) == before


HOSTILE = [
    "'", '"', "`", "''", "'; DROP TABLE sessions; --", "/* */", "--", ";", "%", "_", "*", "?", "$1", ":session_id",
    "{schema}", "%s", "%(id)s", "\\", "\\'", "a/b", "../../etc/passwd", "a|b", "a:b", "[0]", "$.a", "$[*]", "{}", "[",
    "null", "NULL", "0", "-1", "true", " ", "a b", "a", "A", "é", "e\u0301", "東京", "\u202e", "\n", "\t\r", "\x7f",
    "__root__", "\U0010ffff",
]  # fmt: skip


def test_names_that_mean_something_elsewhere(four: Flavoured, backend: Backend) -> None:
    """As a thread, namespace, checkpoint, task, path, channel, metadata key, run or call: names, and no more."""
    prefix = uuid4().hex  # so that the other tests' threads are not in the way
    threads = [prefix + name for name in HOSTILE]
    for name, thread in zip(HOSTILE, threads, strict=True):
        metadata = {"source": "loop", "run_id": prefix + name, name: name}
        for ns in ("", name):
            save(four, at(thread, ns=ns), name, {name: name, "same": ns}, metadata)
            four.put_writes(at(thread, name, ns=ns), [(name, name)], name, name)
    for name, thread in zip(HOSTILE, threads, strict=True):
        for ns in ("", name):
            found = four.get_tuple(at(thread, name, ns=ns))
            assert found.checkpoint["channel_values"] == {name: name, "same": ns}
            assert found.pending_writes == [(name, name, name)]
            assert found.config["configurable"] == {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": name}
            assert [t.config for t in four.list(at(thread, ns=ns), filter={name: name})] == [found.config]
        assert four.call("ancestors", at(thread)) == [name]
        assert four.call("get_delta_channel_history", config=at(thread), channels=[name])[name].get("seed") is None
        assert {e.checkpoint_id for e in four.call("history", thread)} == {name}
        assert four.call("find_calls", thread, name) == []
        four.call("recover", thread)
        assert four.call("verify", thread) == []
    assert {s.session_id for s in four.call("sessions")} >= set(threads)
    for name, thread in zip(HOSTILE, threads, strict=True):
        four.call("copy_thread", thread, f"{thread} copied")
        assert four.get_tuple(at(f"{thread} copied", ns=name)).checkpoint["id"] == name
    half = len(threads) // 2
    for thread in threads[:half]:
        four.call("delete_thread", thread)
    four.call("delete_for_runs", threads[half:-1])
    left = [t for name in threads for t in (name, f"{name} copied") if four.get_tuple(at(t)) is not None]
    assert left == [*(f"{thread} copied" for thread in threads[:half]), threads[-1], f"{threads[-1]} copied"]


@pytest.mark.parametrize("what", LIMITS)
def test_ids_over_the_limit(four: Flavoured, backend: Backend, what: str) -> None:
    def write(thread: str, *args: Any) -> None:
        save(four, at(thread), "1")
        four.put_writes(at(thread, "1"), *args)

    def calls(value: str) -> Callable[[], Any]:
        thread = str(uuid4())
        return {
            "thread_id": lambda: save(four, at(value), "1"),
            "checkpoint_ns": lambda: save(four, at(thread, ns=value), "1"),
            "checkpoint_id": lambda: save(four, at(thread), value),
            "task_id": lambda: write(thread, [("a", 1)], value),
            "run_id": lambda: save(four, at(thread), "1", metadata={"run_id": value}),
            "task_path": lambda: write(thread, [("a", 1)], "task", value),
            "channel": lambda: write(thread, [(value, 1)], "task"),
        }[what]

    limit = LIMITS[what]
    calls(("é" + uuid4().hex).ljust(limit - 1, "x"))()
    too_long = calls(("é" + uuid4().hex).ljust(limit, "x"))
    if what in ("task_id", "task_path", "channel"):
        with pytest.raises(errors.InvalidInput, match=f"{what} is {limit + 1:,} bytes long, more than the {limit:,}"):
            too_long()
        return
    with refused(backend, errors.InvalidInput, f"{what} is {limit + 1:,} bytes long, more than the {limit:,}"):
        too_long()


@pytest.mark.parametrize("wrong", [*WRONG_TEXTS.values(), 1.5, None], ids=["NUL", "surrogate", "float", "None"])
def test_task_paths_and_channel_names_that_are_no_text(four: Flavoured, backend: Backend, wrong: Any) -> None:
    thread = str(uuid4())
    save(four, at(thread), "1")
    before = contents(backend)
    for call in (
        lambda: four.put_writes(at(thread, "1"), [("a", 1)], "task", wrong),
        lambda: four.put_writes(at(thread, "1"), [(wrong, 1)], "task"),
        lambda: four.put(at(thread, "1"), checkpoint("2", {wrong: 1}), {}, {wrong: "1"}),
    ):
        with pytest.raises((errors.InvalidInput, errors.ValueNotStorable)):
            call()
    assert contents(backend) == before


def test_arguments(four: Flavoured, backend: Backend) -> None:
    thread = str(uuid4())
    save(four, at(thread), "1")
    before = contents(backend)
    for limit in (-1, 1.5, "3", True, object()):
        all_refuse([lambda n=limit: four.list(at(thread), limit=n)], "expected a number of items, zero or more")
        all_refuse([lambda n=limit: four.call("sessions", limit=n)], "expected a number of items, zero or more")
    for strategy in ("keep_last", "", None, "KEEP_LATEST"):
        all_refuse([lambda s=strategy: four.call("prune", [thread], strategy=s)], "keep_latest, delete")
    all_refuse([lambda: four.call("prune", thread)], "thread_ids must be a sequence of ids, not one string")
    all_refuse([lambda: four.call("delete_for_runs", thread)], "run_ids must be a sequence of ids, not one string")
    all_refuse([lambda: four.call("sessions", "done")], "active, paused, completed, failed")
    all_refuse([lambda: four.list(at(thread), filter=[("a", 1)])], "filter must be a mapping")
    all_refuse([lambda: four.call("copy_thread", thread, thread)], "to itself")
    assert contents(backend) == before
    assert four.list(at(thread), limit=0) == []


def test_a_limit_beyond_64_bits(four: Flavoured) -> None:
    assert len(four.call("sessions", limit=2**64)) >= 0


def test_a_checkpoint_that_exists(four: Flavoured, backend: Backend) -> None:
    """The same again is nothing new; another one under the same id is refused."""
    thread = str(uuid4())
    one = checkpoint("1", {"a": 1, "nan": float("nan"), "large": "x" * 2000})
    four.put(at(thread), one, {"step": 1}, one["channel_versions"])
    before = contents(backend)
    four.put(at(thread), one, {"step": 1}, one["channel_versions"])
    assert contents(backend) == before
    other = {**one, "channel_values": {**one["channel_values"], "large": "y" * 2000}}
    for changed, metadata in ((other, {"step": 1}), (one, {"step": 2}), ({**one, "ts": "2000"}, {"step": 1})):
        with refused(backend, errors.CheckpointExists, thread, "'1'", "was not stored"):
            four.put(at(thread), changed, metadata, one["channel_versions"])


def test_writes_to_an_unknown_checkpoint(four: Flavoured, backend: Backend) -> None:
    """Whoever holds the thread, or has read it, is not disturbed by writes that came to nothing."""
    thread, ghost = str(uuid4()), str(uuid4())
    save(four, at(thread), "1")
    holder = save(four, four.get_tuple(at(thread)).config, "2")
    for where in (at(ghost, "9"), at(thread, "9", ns="sub")):
        with refused(backend, errors.UnknownCheckpoint, where["configurable"]["thread_id"], "put the checkpoint first"):
            four.put_writes(where, [("a", 1)], "task")
    save(four, holder, "3")


def test_after_close(four: Flavoured) -> None:
    thread = str(uuid4())
    save(four, at(thread), "1")
    four.close()
    for call in (
        *with_thread(four, thread),
        lambda: four.call("setup"),
        lambda: four.call("delete_for_runs", ["run"]),
        lambda: four.call("sessions"),
        lambda: four.call("rejected_writes"),
    ):
        with pytest.raises(errors.SaverClosed, match="was closed; make a new LedgerSaver"):
            call()
    four.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"on_conflict": "ignore"}, "'raise' or 'report'"),
        ({"on_busy": "wait"}, "'take_over' or 'refuse'"),
        ({"synchronous": "SOMETIMES"}, "OFF, NORMAL, FULL, EXTRA"),
        ({"busy_timeout": -1}, "seconds, zero or more"),
        ({"schema": "s"}, "schema= has no meaning for a SQLite path"),
        ({"max_size": 3}, "max_size= has no meaning for a SQLite path"),
        ({"connection_kwargs": {}}, "connection_kwargs= has no meaning for a SQLite path"),
    ],
)
def test_options_of_sqlite(tmp_path: Path, options: Any, words: str) -> None:
    with pytest.raises(errors.InvalidInput, match=words):
        LedgerSaver(tmp_path / "x.db", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"synchronous": "OFF"}, "synchronous= has no meaning for a Postgres URL"),
        ({"busy_timeout": 3}, "busy_timeout= has no meaning for a Postgres URL"),
        ({"schema": ""}, "1 to 63 bytes"),
        ({"schema": "x" * 64}, "1 to 63 bytes"),
        ({"schema": "a\0b"}, "1 to 63 bytes"),
        ({"min_size": 5, "max_size": 2}, "min_size <= max_size"),
        ({"max_size": 0}, "max >= 1"),
    ],
)
def test_options_of_postgres(options: Any, words: str) -> None:
    with pytest.raises(errors.InvalidInput, match=words):
        LedgerSaver(DEAD, **options)


@pytest.mark.parametrize(
    "target", ["mysql://host/db", "redis://host", "http://x", "", "a\0b", b"bytes", 7, None, object()]
)
def test_targets(target: Any) -> None:
    with pytest.raises(errors.InvalidInput, match=r"SQLite path"):
        LedgerSaver(target)


def test_a_password_is_in_no_message() -> None:
    saver = LedgerSaver("postgresql://user:hunter2@127.0.0.1:1/db", timeout=0.2)
    assert "hunter2" not in repr(saver)
    with saver, pytest.raises(errors.DatabaseUnavailable) as caught:
        saver.get_tuple(at("t"))
    assert "hunter2" not in str(caught.value)


# --- helpers for conflicts, where nothing would notice a conflict


class Wrapper(BaseCheckpointSaver[str]):
    """A saver that hides another one, as a server's may."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.get_tuple, self.put, self.put_writes = inner.get_tuple, inner.put, inner.put_writes
        self.get_next_version = inner.get_next_version


def test_helpers_need_a_saver_that_knows_of_conflicts(four: Flavoured) -> None:
    builder = StateGraph(MessagesState).add_node("act", lambda state: {"messages": ["done"]}).add_edge(START, "act")
    given, config = {"messages": ["go"]}, at("t")
    with pytest.raises(errors.InvalidInput, match=r"get_state\(config\)"):
        expect(config)
    helpers: Any = (aretry_on_conflict, amodify) if four.is_async else (retry_on_conflict, modify)

    def helped(saver: Any, helper: Any, wanted: Any) -> Any:
        found = helper(builder.compile(checkpointer=saver), config, wanted)
        return four.runner.run(found) if four.runner else found

    retry = lambda graph, config, given: helpers[0](graph, given, config)  # noqa: E731
    for saver, name in ((InMemorySaver(), "a InMemorySaver"), (None, "None"), (False, "False")):
        for helper, wanted in ((retry, given), (helpers[1], lambda snapshot: given)):
            with pytest.raises(errors.InvalidInput, match=f"checkpointer is {name}, not a LedgerSaver"):
                helped(saver, helper, wanted)
    assert helped(four.saver, retry, given)["messages"][-1].content == "done"
    if not four.is_async:
        with pytest.warns(RuntimeWarning, match="a Wrapper, not a LedgerSaver"):
            assert helped(Wrapper(four.saver), helpers[1], lambda snapshot: given)


def test_a_graph_in_a_node_of_another_one_may_have_its_saver() -> None:
    builder = StateGraph(MessagesState).add_node("act", lambda state: {"messages": ["done"]}).add_edge(START, "act")
    inner = builder.compile()

    def outer(state: MessagesState, config: RunnableConfig) -> Any:
        return retry_on_conflict(inner, {"messages": ["go"]}, config)

    graph = StateGraph(MessagesState).add_node("outer", outer).add_edge(START, "outer").compile()
    with pytest.warns(RuntimeWarning, match="checkpointer is None"):
        assert graph.invoke({"messages": []}, at("t"))["messages"][-1].content == "done"
