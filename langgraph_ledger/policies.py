"""When what a run writes is committed: the policies, what they are told of each transition, and what each may lose."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME

from langgraph_ledger.errors import InvalidInput

FLUSH_KEY = "ledger_flush"
"""Key of `configurable` under which one call of a graph names another policy than its saver's."""

MAX_CHANGES = 1000
"""How many checkpoints "important" lets wait."""

_NULL_TASK = "00000000-0000-0000-0000-000000000000"
"""The task on whose behalf LangGraph writes what a `Command` brings from outside."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One thing that a run does and that is to be stored, as a predicate of yours sees it.

    `kind` is "checkpoint" or "writes" (what a task wrote: then `task_id` names it). `checkpoint_ns` is the namespace,
    "" for the root graph; `channels` are those that changed. `step` and `source` are a checkpoint's, as in LangGraph's
    metadata. `ends` says that the run stops here: nothing is next, a question waits for an answer, or an error that
    nobody handles.
    """

    kind: Literal["checkpoint", "writes"]
    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    channels: tuple[str, ...]
    ends: bool
    step: int | None = None
    source: str | None = None
    task_id: str | None = None

    @property
    def important(self) -> bool:
        """New input, an interrupt or its answer, an error, the end of a run: what a crash must not lose."""
        if self.ends:
            return True
        if self.kind == "writes":
            return self.task_id == _NULL_TASK or not {INTERRUPT, ERROR, RESUME}.isdisjoint(self.channels)
        return self.checkpoint_ns == "" and self.source != "loop"


Predicate = Callable[[Transition], bool]


@dataclass(frozen=True, slots=True)
class Batched:
    """Changes are queued in order and committed together. A change is a checkpoint, with what tasks wrote before it.

    Args:
        max_changes: how many checkpoints are committed together, at most.
        max_delay: after how many seconds a change is committed that has not been so far; None: time does not count.
        commit_when: called with each `Transition`; if it returns true, that is committed at once, together with all
            that waits. It must be quick and change nothing.
    """

    max_changes: int = 20
    max_delay: float | None = 0.2
    commit_when: Predicate | None = None

    def __post_init__(self) -> None:
        if isinstance(self.max_changes, bool) or not isinstance(self.max_changes, int) or self.max_changes < 1:
            raise InvalidInput(f"max_changes={self.max_changes!r}: expected a whole number, 1 or more")
        delay = self.max_delay
        if delay is not None and not (_is_number(delay) and math.isfinite(delay) and delay >= 0):
            raise InvalidInput(f"max_delay={delay!r}: expected seconds, zero or more, or None")
        if self.commit_when is not None and not callable(self.commit_when):
            raise InvalidInput(f"commit_when={self.commit_when!r}: expected a function of a Transition")

    def at_once(self, transition: Transition) -> bool:
        """Whether this transition is committed now, with all that waits. The end of a run always is."""
        return transition.ends or (self.commit_when is not None and bool(self.commit_when(transition)))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


Flush = Literal["always", "important"] | Batched | Predicate


def _important(transition: Transition) -> bool:
    return transition.important


IMPORTANT = Batched(MAX_CHANGES, None, _important)


def checked(flush: Any, name: str = "flush") -> Batched | None:
    """The policy that somebody chose; None: each write is committed before it returns."""
    if flush == "always":
        return None
    if flush == "important":
        return IMPORTANT
    if isinstance(flush, Batched):
        return flush
    if callable(flush) and not isinstance(flush, type):
        return Batched(MAX_CHANGES, None, flush)
    raise InvalidInput(f"{name}={flush!r}: expected 'always', 'important', Batched(...) or a function of a Transition")


def chosen(conf: Mapping[str, Any], default: Batched | None) -> Batched | None:
    """The policy of a call: the one in its config, or else the saver's."""
    own = conf.get(FLUSH_KEY)
    return default if own is None else checked(own, f"configurable[{FLUSH_KEY!r}]")


def described_loss(policy: Batched | None) -> tuple[str, str]:
    """A policy's name, and what of acknowledged transitions a crash may lose under it."""
    if policy is None:
        return "always", "each save is committed before it returns: nothing is lost"
    if policy is IMPORTANT:
        return "important", (
            "the steps since the last new input, interrupt, tool call, error or end of a run:"
            f" at most {MAX_CHANGES} checkpoints, and none of what is important"
        )
    since = [f"the last {policy.max_changes} checkpoints"]
    if policy.max_delay is not None:
        since.append(f"those of the last {policy.max_delay * 1000:g} ms and one commit, whichever is less")
    return "batched", " or ".join(since) + "; nothing of a run that has ended"
