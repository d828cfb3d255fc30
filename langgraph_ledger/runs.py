"""Who is writing: the run, its fence token, and how the run's identity travels through LangGraph.

A run is one root invocation on one thread. LangGraph hands a saver nothing that names it, so three things do:

- the strings that a read hands out (checkpoint ids, channel versions) are `Marked`: equal to the plain string,
  carrying the run. LangGraph hands them back when the run writes;
- ids that the run itself made are remembered with it;
- the `RunControl` object that LangGraph (1.2 and later) makes for each root invocation and shows to every graph
  below it names the run where neither helps: a subgraph that starts before its parent's checkpoint is saved.

Nothing here knows SQL.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from langgraph_ledger.conflicts import StateConflict
from langgraph_ledger.errors import LedgerError

REMEMBERED = 10_000
"""How many ids and live invocations a saver remembers; older ones are forgotten first."""

Place = tuple[str, str]
"""Where a checkpoint is within its thread: (namespace, checkpoint id)."""


@dataclass(slots=True, eq=False, repr=False)
class Waiting:
    """Writes on their way: where they belong, their rows, and the future of whoever waits for them."""

    place: Place
    rows: Sequence[Any]
    memory: Sequence[Any]
    used: set[bytes]
    working: Sequence[Any] = ()
    """Rows for the working context, to be kept once the others are stored."""
    stored: Future[None] = field(default_factory=Future)

    def settle(self, error: BaseException | None = None) -> None:
        """Tells whoever waits that the writes are stored, or why they are not."""
        if not self.stored.done():
            self.stored.set_exception(error) if error is not None else self.stored.set_result(None)


RECENT = 8
"""How many puts of each namespace a run knows to have begun."""
_ENDED: Future[None] = Future()
"""In place of the futures of puts that have ended."""
_ENDED.set_result(None)

COMPANY = 8
"""When so many writes of a run wait for a commit, it is time for one."""


class Run:
    """One root invocation on one thread (or one read outside of any), as far as this process knows it."""

    __slots__ = (
        "abreast",
        "answered",
        "began",
        "blind",
        "busy",
        "checkpoint_read",
        "claimed",
        "control",
        "expected",
        "fenced",
        "guarded",
        "held",
        "invocation",
        "last_committed",
        "lines",
        "lock",
        "lost",
        "namespaces",
        "puts",
        "queued",
        "read_version",
        "runs",
        "session_id",
        "token",
        "touched",
        "waiting",
        "watched",
    )

    def __init__(
        self, runs: Runs, session_id: str, read_version: int | None, checkpoint_read: str | None = None
    ) -> None:
        self.runs, self.session_id, self.token = runs, session_id, uuid4().hex
        self.read_version, self.checkpoint_read = read_version, checkpoint_read
        self.blind = read_version is None
        self.claimed = self.began = False
        self.watched = self.queued = False
        """Whether the end of this run will be told, and whether anything of it has waited to be committed."""
        self.lost: LedgerError | None = None
        """Why changes of this run that were queued are not stored."""
        self.fenced: StateConflict | None = None
        self.busy: StateConflict | None = None
        self.last_committed: str | None = None
        self.touched: tuple[str | None, float] = (None, 0.0)
        self.control: Any = None
        self.invocation: Callable[[], Any] = _nobody
        self.lock = threading.Lock()
        self.namespaces: set[str] = set()
        """Of nested graphs that keep checkpoints: each reads when it begins."""
        self.expected: dict[Place, Future[None]] = {}
        self.puts: dict[str, dict[str, Future[None]]] = {}
        self.held: dict[Place, list[Waiting]] = {}
        self.waiting: list[Waiting] = []
        self.answered: dict[str, tuple[str, str | None]] = {}
        """Attempts at calls in an earlier run, and the one task of this run that each answers."""
        self.guarded: dict[tuple[str | None, Any], int] = {}
        """Calls of this run that a guard was asked about, by task and id, and what tells each from others."""
        self.lines: dict[Any, Future[None]] = {}
        """Of those who stand in line for something, the last one in each."""
        self.abreast: dict[Any, Any] = {}
        """Guarded calls that are being made side by side, by where they are made."""

    @property
    def committed(self) -> bool:
        """Whether anything of this run is stored."""
        return self.claimed

    def check(self) -> None:
        """Raises if the run was refused before: fencing is sticky."""
        if self.fenced is not None:
            raise self.fenced.again()
        if self.lost is not None:
            raise type(self.lost)(*self.lost.args) from self.lost

    def fence(self, refusal: StateConflict) -> None:
        """Notes that the run was refused. LangGraph puts none of its checkpoints any more: nobody may wait for one."""
        self.fenced = refusal
        with self.lock:
            expected, self.expected = self.expected, {}
        for begun in expected.values():
            begun.set_result(None)

    def begin_put(self, place: Place) -> tuple[Future[None], list[Waiting]]:
        """Announces a put; returns what to resolve when it has ended, and the writes that go along with it: those
        that came before their checkpoint, and those that wait for a commit."""
        ended: Future[None] = Future()
        with self.lock:
            puts = self.puts.setdefault(place[0], {})
            puts[place[1]] = ended
            if len(puts) > RECENT:
                del puts[next(iter(puts))]
            company, expected = self._with_company(place), self.expected.pop(place, None)
        if expected is not None:
            expected.set_result(None)
        return ended, company

    def end_put(self, place: Place, ended: Future[None]) -> None:
        """Tells who waits for a put that it has ended. A future is much to remember for each put of a run."""
        ended.set_result(None)
        with self.lock:
            if (puts := self.puts[place[0]]).get(place[1]) is ended:  # or it was put again meanwhile
                puts[place[1]] = _ENDED

    def expect_put(self, place: Place) -> Future[None]:
        """Resolved when the put of a checkpoint begins, or never will."""
        with self.lock:
            if self.fenced is None and self._put_of(place) is None:
                return self.expected.setdefault(place, Future())
        return _ENDED

    def _with_company(self, place: Place) -> list[Waiting]:
        taken, self.waiting = self.waiting, []
        return self.held.pop(place, []) + taken

    def join(self, writes: Waiting) -> bool | None:
        """Adds writes to those that wait for a commit.

        True says that there are enough for one now, and the caller sees to it. False: they are the first, and the
        caller sees to it when nobody else has after a moment. None: somebody else will.
        """
        with self.lock:
            self.waiting.append(writes)
            if len(self.waiting) >= COMPANY:
                return True
            return False if len(self.waiting) == 1 else None

    def take(self) -> list[Waiting]:
        """The writes that wait, which are the caller's to store from now on."""
        with self.lock:
            taken, self.waiting = self.waiting, []
            return taken

    def put_of(self, place: Place) -> Future[None] | None:
        """The put of a checkpoint that this run has begun, if it has."""
        with self.lock:
            return self._put_of(place)

    def _put_of(self, place: Place) -> Future[None] | None:
        return self.puts.get(place[0], {}).get(place[1])

    def hold(self, writes: Waiting) -> Future[None] | None:
        """Keeps writes until their checkpoint is put; if that has begun meanwhile, returns the put to wait for."""
        with self.lock:
            if (put := self._put_of(writes.place)) is not None:
                return put
            self.held.setdefault(writes.place, []).append(writes)
            return None


class Marked(str):
    """A string that carries the run which read it. Everywhere else it is that string."""

    run: Run | None

    def __new__(cls, value: str = "", run: Run | None = None) -> Marked:
        self = super().__new__(cls, value)
        self.run = run
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (str, (str(self),))


_new_thread: ContextVar[Run | None] = ContextVar("langgraph_ledger_new_thread", default=None)
"""The run that read a thread without versions in this context: there was nothing that could be marked."""


def _nobody() -> None:
    """The invocation of a run that has none."""


def _writer_of(conf: Mapping[str, Any]) -> Any:
    return getattr(conf.get("__pregel_runtime"), "stream_writer", None)


def _seen_by(conf: Mapping[str, Any]) -> Callable[[], Any]:
    """A weak reference to what LangGraph makes anew for each root invocation: the function that streams write with.

    Neither the runtime nor its control can be referred to weakly, and the address of one that is gone is used again.
    """
    try:
        return weakref.ref(_writer_of(conf))
    except TypeError:
        return _nobody


def _is_of(run: Run, conf: Mapping[str, Any]) -> bool:
    """Whether a root graph's config belongs to the invocation that began a run."""
    writer = _writer_of(conf)
    return writer is not None and run.invocation() is writer


class Runs:
    """What one saver remembers of runs. Thread-safe; bounded."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._makers: OrderedDict[tuple[str, str, str], Run] = OrderedDict()
        self._live: OrderedDict[tuple[int, str], Run] = OrderedDict()

    def _carried(self, value: Any, session_id: str) -> Run | None:
        """The run that a string carries, if it is one of this saver and this thread."""
        run = value.run if isinstance(value, Marked) else None
        return run if run is not None and run.runs is self and run.session_id == session_id else None

    def reading(self, conf: Mapping[str, Any], session_id: str) -> Run | None:
        """The run on whose behalf this read happens, if it has begun already."""
        if conf.get("__pregel_task_id"):
            parent = (conf.get("checkpoint_map") or {}).get("")
            found = self._carried(parent, session_id) or self.maker(session_id, "", parent)
            return found or self._by_control(conf, session_id)
        run = self._by_control(conf, session_id)
        # a control that its owner uses for one run after another does not make them one
        return run if run is not None and _is_of(run, conf) else None

    def begin(self, conf: Mapping[str, Any], run: Run) -> Run:
        """Registers a run that has just read; returns it, or the one that another call registered meanwhile."""
        runtime = conf.get("__pregel_runtime")
        control = getattr(runtime, "control", None)
        if control is None:
            return run
        with self._lock:
            key = (id(control), run.session_id)
            found = self._live.get(key)
            nested = bool(conf.get("__pregel_task_id"))
            if found is not None and (nested or _is_of(found, conf)):
                return found
            run.control = control  # kept alive, so that its id stays its own
            run.invocation = _nobody if nested else _seen_by(conf)
            self._live[key] = run
            self._forget(self._live)
            return run

    def writing(self, conf: Mapping[str, Any], session_id: str, checkpoint: Mapping[str, Any] | None) -> Run | None:
        """The run that writes with this config, or None for a writer that never read."""
        if conf.get("__pregel_task_id") and (run := self.reading(conf, session_id)) is not None:
            return run
        parent = conf.get("checkpoint_id")
        namespace = conf.get("checkpoint_ns") or ""
        run = self._carried(parent, session_id) or self.maker(session_id, namespace, parent)
        if run is None:
            run = self._by_control(conf, session_id)
        if run is None and checkpoint is not None:
            versions = checkpoint.get("channel_versions") or {}
            run = next((r for v in versions.values() if (r := self._carried(v, session_id)) is not None), None)
        if run is None and not parent:
            fresh = self.announced()
            run = fresh if fresh is not None and fresh.session_id == session_id else None
        return run

    def announced(self) -> Run | None:
        """The run that last read a thread without versions in this context, through this saver."""
        run = _new_thread.get()
        return run if run is not None and run.runs is self else None

    def remember(self, run: Run, namespace: str, checkpoint_id: str) -> None:
        """Notes that `run` makes this checkpoint."""
        with self._lock:
            self._makers[run.session_id, namespace, str(checkpoint_id)] = run
            self._forget(self._makers)

    def made(self, session_id: str, namespace: str, checkpoint_id: str) -> bool:
        """Whether this saver has put that checkpoint, as far as it remembers."""
        return self.maker(session_id, namespace, checkpoint_id) is not None

    def maker(self, session_id: str, namespace: str, checkpoint_id: Any) -> Run | None:
        """The run of this process that has put that checkpoint, as far as is remembered."""
        if not checkpoint_id:
            return None
        with self._lock:
            return self._makers.get((session_id, namespace, str(checkpoint_id)))

    def _by_control(self, conf: Mapping[str, Any], session_id: str) -> Run | None:
        control = getattr(conf.get("__pregel_runtime"), "control", None)
        if control is None:
            return None
        with self._lock:
            key = (id(control), session_id)
            run = self._live.get(key)
            if run is not None:
                self._live.move_to_end(key)
            return run

    @staticmethod
    def _forget(entries: OrderedDict[Any, Run]) -> None:
        while len(entries) > REMEMBERED:
            entries.popitem(last=False)


def announce(run: Run | None) -> None:
    """Says which run has just read a thread without versions in this context."""
    _new_thread.set(run)


def next_version(runs: Runs, current: Any) -> Any:
    """The channel version after `current`, carrying its run. Raises if that run has been fenced.

    Versions are fixed-width so that they compare as text; the tail tells branches of different runs apart.
    """
    if isinstance(current, int):
        return current + 1
    if isinstance(current, float):
        return float(int(current) + 1)
    run = current.run if isinstance(current, Marked) else None
    if current is None:
        run = runs.announced()
    if run is not None:
        run.check()
    number = 1 if current is None else int(current.split(".", 1)[0]) + 1
    return Marked(f"{number:010}.{run.token[:6] if run is not None else '000000'}", run)
