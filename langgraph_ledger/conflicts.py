"""What a refused write says, and the ways to answer it: retry, expect, modify.

`StateConflict` is a RuntimeError, which LangGraph's default RetryPolicy does not retry inside a run (the run's state
is stale, a retry within it could not succeed), and no GraphBubbleUp, which its executors would swallow.
"""

from __future__ import annotations

import asyncio
import random
import time
import warnings
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables.config import var_child_runnable_config

from langgraph_ledger.errors import InvalidInput, LedgerError

LONGEST_PAUSE = 1.0
"""Seconds that a retry waits at most before it begins again."""
EXPECT_KEY = "__langgraph_ledger_expect"
"""Key of `configurable` under which `expect()` states what its caller has read."""


class StateConflict(LedgerError, RuntimeError):
    """Another run has written to the thread since this one read it; nothing of this write was kept.

    The run is fenced: each of its later writes raises again. Facts: `session_id` (the thread), `agent_id` (the
    namespace), `operation`, `version_read` and `version_found`, `checkpoint_read` and `checkpoint_found`, `writer`
    (this run's fence token) and `winner` (the token found), `committed` (whether this run had stored anything before
    it was refused) and `last_committed` (the root checkpoint it stored last). The idea is the version column of
    Patterns of Enterprise Application Architecture's Optimistic Offline Lock.
    """

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.session_id: str = facts.get("session_id", "")
        self.agent_id: str = facts.get("agent_id", "")
        self.operation: str = facts.get("operation", "")
        self.version_read: int | None = facts.get("version_read")
        self.version_found: int | None = facts.get("version_found")
        self.checkpoint_read: str | None = facts.get("checkpoint_read")
        self.checkpoint_found: str | None = facts.get("checkpoint_found")
        self.writer: str = facts.get("writer", "")
        self.winner: str | None = facts.get("winner")
        self.committed: bool = facts.get("committed", False)
        self.last_committed: str | None = facts.get("last_committed")
        self._facts = facts

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), str(self), self._facts))

    def again(self) -> StateConflict:
        """The same refusal for a later call: a fresh exception, so that tracebacks do not pile up."""
        return type(self)(str(self), **self._facts)


class SessionBusy(StateConflict):
    """With `on_busy="refuse"`: the thread's owner is alive and at work, so a new run may not take over."""


def _rebuild(kind: type[StateConflict], message: str, facts: dict[str, Any]) -> StateConflict:
    return kind(message, **facts)


def expect(snapshot: Any) -> dict[str, Any]:
    """A config that makes the next write count on `snapshot` still being what the thread holds.

    `graph.update_state(expect(snapshot), values)` raises `StateConflict` if anything was written to the thread since
    `snapshot = graph.get_state(config)`. A snapshot whose config went through JSON has lost its version; then its
    checkpoint has to be the thread's latest. Only a `LedgerSaver` looks at it: with any other checkpointer the write is
    an ordinary one.
    """
    if not isinstance(getattr(snapshot, "config", None), Mapping):
        raise InvalidInput(f"expect() needs a snapshot, as graph.get_state(config) gives it, not {snapshot!r:.80}")
    conf = dict(snapshot.config.get("configurable") or {})
    checkpoint_id = conf.get("checkpoint_id")
    run = getattr(checkpoint_id, "run", None)
    if run is not None:
        conf[EXPECT_KEY] = {"version": run.read_version}
    else:
        conf[EXPECT_KEY] = {"checkpoint_id": checkpoint_id}
    return {**snapshot.config, "configurable": conf}


def _check_saver(graph: Any, what: str) -> Any:
    """The graph's checkpointer: a LedgerSaver, since no other one knows of conflicts.

    One that may hold a LedgerSaver inside, such as a server's, is let through with a warning, and so is a graph that
    runs in a node of another one, whose saver it takes over.
    """
    saver = getattr(graph, "checkpointer", None)
    if hasattr(saver, "ancestors"):
        return saver
    found = f"a {type(saver).__qualname__}" if saver else repr(saver)
    told = f"{what}: the graph's checkpointer is {found}, not a LedgerSaver: it lets conflicts through unnoticed"
    is_root = hasattr(graph, "checkpointer") and not var_child_runnable_config.get()
    if type(saver).__module__.startswith("langgraph.checkpoint.") or (not saver and is_root):
        raise InvalidInput(f"{told}. Compile the graph with checkpointer=LedgerSaver(...)")
    warnings.warn(told, RuntimeWarning, stacklevel=3)
    return saver


def _updates(
    snapshot_of: Callable[[], Any], fn: Callable[[Any], Any], write: Callable[[Any, Any], Any], attempts: int
) -> Generator[Any, Any, Any]:
    """Read, think, update, over again as long as somebody else was first. Yields what may have to be awaited."""
    if attempts < 1:
        raise InvalidInput(f"attempts={attempts}: expected at least 1")
    for attempt in range(1, attempts + 1):
        snapshot = yield snapshot_of()
        values = yield fn(snapshot)
        try:
            return (yield write(expect(snapshot), values))
        except StateConflict:
            if attempt == attempts:
                raise
    raise AssertionError("unreachable")


def modify(
    graph: Any, config: Mapping[str, Any], fn: Callable[[Any], Any], *, as_node: str | None = None, attempts: int = 10
) -> Any:
    """Reads the state, calls `fn(snapshot)`, writes what it returned; reads again if somebody was faster.

    Returns the config of the new checkpoint. Raises `StateConflict` after `attempts` tries, `InvalidInput` if the
    graph's checkpointer is no `LedgerSaver`.
    """
    _check_saver(graph, "modify()")
    return run_steps(
        _updates(
            lambda: graph.get_state(config), fn, lambda c, values: graph.update_state(c, values, as_node), attempts
        )
    )


async def amodify(
    graph: Any,
    config: Mapping[str, Any],
    fn: Callable[[Any], Any],
    *,
    as_node: str | None = None,
    attempts: int = 10,
) -> Any:
    """`modify`, asynchronously; `fn` may be a plain or an async function."""
    _check_saver(graph, "amodify()")
    return await run_steps_async(
        _updates(
            lambda: graph.aget_state(config), fn, lambda c, values: graph.aupdate_state(c, values, as_node), attempts
        )
    )


@dataclass(slots=True, eq=False, repr=False)
class _Thread:
    """How a retry runs the graph and looks at its thread; each call may return something to be awaited."""

    invoke: Callable[[Any], Any]
    ancestors: Callable[[], Any]
    read: Callable[[str], Any]
    pause: Callable[[float], Any]


def _runs(thread: _Thread, given: Any, config: Mapping[str, Any], attempts: int) -> Generator[Any, Any, Any]:
    """Runs a graph until no other run is in the way, adding the input once and only once."""
    if attempts < 1:
        raise InvalidInput(f"attempts={attempts}: expected at least 1")
    if (config.get("configurable") or {}).get("checkpoint_id"):
        raise InvalidInput("a retry starts from the thread's latest state: config must not name a checkpoint_id")
    pending = given
    stored: list[str] = []
    for attempt in range(1, attempts + 1):
        begun = time.monotonic()
        try:
            return (yield thread.invoke(pending))
        except StateConflict as conflict:
            if attempt == attempts or _is_used_up(given, conflict):
                raise
            if conflict.last_committed is not None:
                stored.append(conflict.last_committed)
        # By chance, for as long as such a run takes, then ever longer: of many on one thread, all of which begin again
        # at once, hardly one would get through.
        yield thread.pause(random.uniform(0, min(LONGEST_PAUSE, (time.monotonic() - begun) * 2 ** min(attempt, 10))))
        pending = None if (yield from _is_added(thread, stored)) else given
    raise AssertionError("unreachable")


def _is_used_up(given: Any, conflict: StateConflict) -> bool:
    """Whether the input must not be given again.

    A thread whose owner is at work will not be free at once. An answer to an interrupt belongs to that interrupt,
    which the winner has consumed. An update that was stored as task writes, on a checkpoint of somebody else's, has
    been taken up by the winner.
    """
    if isinstance(conflict, SessionBusy) or getattr(given, "resume", None) is not None:
        return True
    is_command = hasattr(given, "update") and hasattr(given, "goto")
    return is_command and conflict.committed and conflict.last_committed is None


def _is_added(thread: _Thread, stored: list[str]) -> Generator[Any, Any, bool]:
    """Whether the thread's state holds what these checkpoints of the refused run have added.

    It does if the latest checkpoint descends from one of them; but input is only applied by the step after it, and
    another run's input or update in between drops it.
    """
    line = list((yield thread.ancestors())) if stored else []
    for checkpoint_id in stored:
        if checkpoint_id not in line:
            continue
        place = line.index(checkpoint_id)
        if place == 0 or (yield thread.read(checkpoint_id)).metadata.get("source") != "input":
            return True
        if (yield thread.read(line[place - 1])).metadata.get("source") == "loop":
            return True
    return False


def retry_on_conflict(
    graph: Any, input: Any, config: Mapping[str, Any], *, attempts: int = 5, **invoke_options: Any
) -> Any:
    """`graph.invoke`, again from the fresh state if another run was first. The input is added once and only once.

    If the refused run had already stored its input, and the winner built on it, the retry continues from there
    instead of adding the input again. Before each retry it waits, by chance, for up to as long as the refused run has
    taken, then ever longer, but no more than a second. Not retried are a `Command(resume=...)`, whose interrupt is
    gone, another command that the winner has taken up, and anything on a busy thread. `StateConflict` is raised then,
    and after `attempts` tries; `InvalidInput` if the graph's checkpointer is no `LedgerSaver`.
    """
    saver, place = _check_saver(graph, "retry_on_conflict()"), {**config["configurable"], "checkpoint_ns": ""}
    thread = _Thread(
        lambda value: graph.invoke(value, config, **invoke_options),
        lambda: saver.ancestors({"configurable": place}),
        lambda checkpoint_id: saver.get_tuple({"configurable": {**place, "checkpoint_id": checkpoint_id}}),
        time.sleep,
    )
    return run_steps(_runs(thread, input, config, attempts))


async def aretry_on_conflict(
    graph: Any, input: Any, config: Mapping[str, Any], *, attempts: int = 5, **invoke_options: Any
) -> Any:
    """`retry_on_conflict` with `graph.ainvoke`."""
    saver, place = _check_saver(graph, "aretry_on_conflict()"), {**config["configurable"], "checkpoint_ns": ""}
    thread = _Thread(
        lambda value: graph.ainvoke(value, config, **invoke_options),
        lambda: saver.aancestors({"configurable": place}),
        lambda checkpoint_id: saver.aget_tuple({"configurable": {**place, "checkpoint_id": checkpoint_id}}),
        asyncio.sleep,
    )
    return await run_steps_async(_runs(thread, input, config, attempts))


def run_steps(steps: Generator[Any, Any, Any]) -> Any:
    """Runs a helper whose steps are results already. An error at a step is raised before the step is yielded."""
    try:
        answer = next(steps)
        while True:
            answer = steps.send(answer)
    except StopIteration as stop:
        return stop.value


async def run_steps_async(steps: Generator[Any, Any, Any]) -> Any:
    """Runs a helper whose steps may be awaitables; errors of awaiting are thrown back into it."""
    try:
        step = next(steps)
        while True:
            try:
                answer = await step if isinstance(step, Awaitable) else step
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as stop:
        return stop.value
