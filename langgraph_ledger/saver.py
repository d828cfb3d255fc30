"""LangGraph's checkpoint-saver interface on top of the ledger: each method synchronous and asynchronous.

No SQL and no locks here: what a method does is a flow (`writing.py`, `reading.py`, `operations/`), written once.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Collection, Generator, Iterator, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_ledger import (
    codecs,
    ids,
    legible,
    markup,
    policies,
    reading,
    recovery,
    retention,
    tool_log,
    working,
    writing,
)
from langgraph_ledger.call_records import CallRecord, find_calls
from langgraph_ledger.calls import call_id_of
from langgraph_ledger.codecs import VALUE_LIMIT, Compression
from langgraph_ledger.drivers.opening import open_driver
from langgraph_ledger.errors import InvalidInput, LedgerError
from langgraph_ledger.flow import Flow, adrive, drive
from langgraph_ledger.flushing import flush as flush_queue
from langgraph_ledger.ledger import Ledger, OnBusy, OnConflict, Redact
from langgraph_ledger.lifecycle import settle, shut_down
from langgraph_ledger.listings import History, Rejected, Sessions
from langgraph_ledger.operations.listing import lineage
from langgraph_ledger.operations.maintenance import Stats, compact, read_stats
from langgraph_ledger.operations.schema import check_schema
from langgraph_ledger.operations.sessions import read_log, read_rejected, read_sessions
from langgraph_ledger.pages import Pages, checked_limit
from langgraph_ledger.policies import Flush
from langgraph_ledger.recovery import Recovery
from langgraph_ledger.retention import Freed, Selection
from langgraph_ledger.runs import next_version
from langgraph_ledger.statements import Operation

if TYPE_CHECKING:
    from langgraph_ledger.comparing import Diff
    from langgraph_ledger.verification import Findings

T = TypeVar("T")


class LedgerSaver(BaseCheckpointSaver[str]):
    """Saves LangGraph state in SQLite or Postgres, and refuses to write over what a run has not read.

    Args:
        target: a SQLite path, ":memory:", a Postgres URL, or a connection or pool that you already have (psycopg,
            sqlite3, aiosqlite).
        serde: how values are serialised; LangGraph's JsonPlusSerializer unless given.
        schema: Postgres schema for the tables; created if missing. `search_path` is never touched.
        partitions: in how many partitions, by session, the three large tables are made where they are made by this
            saver: 2 to 128. Tables that are there already must have as many; left out, they may have any.
        synchronous: SQLite's setting of that name; "FULL" survives power loss.
        busy_timeout: seconds to wait for another process that is writing to the SQLite file.
        min_size, max_size, timeout, max_idle, max_lifetime, connection_kwargs: of the Postgres pool, as in
            psycopg_pool; `timeout` is how many seconds to wait for a connection.
        answer_timeout: seconds that a Postgres server may be silent while it is asked something. Then the connection is
            given up and the call made once more on a new one; no connection of yours is bounded by it.
        read_only: never writes, not even the tables.
        compression: "lz4", "zstd" (smaller, slower; an extra) or "none"; what is stored says how to read it.
        value_limit: bytes that a value may take when serialised. A larger one is refused when it is saved, and never
            unpacked when it is read.
        on_conflict: "raise" refuses a write whose run has been overtaken; "report" logs it and lets it through.
        on_busy: "take_over" lets a new run begin at any time; "refuse" does not while the thread's owner is alive
            and at work. `owner_timeout` is after how many seconds without a write an owner counts as gone where its
            process cannot be looked up (on another host, or in this very process).
        log_tools: whether tool calls of graphs with this saver are put on record, each before it is made and before
            its end is told. `log_limit`: arguments and results of more bytes than this are described, not kept.
            `redact`: called with the tool's name, "arguments", "result" or "error", and the value; what it returns
            is kept instead (it must not change the value itself).
        flush: when what a run writes is committed. "always": each save before it returns. `Batched(...)`: together,
            when enough has come or time is up. "important": new input, interrupts, tool calls, errors and the end of a
            run at once, the steps in between along with them; a function of a `Transition` says itself what is
            important. `configurable["ledger_flush"]` names another policy for one call of a graph. The end of a run is
            always committed before its caller gets the result.
        working_channels: channels that are safe to lose: only their latest value is kept, apart from what is durable.
            After a crash they may be as if they had never been written.
        chain_log: whether what is stored gets digests, and the log a chain over them, so that `verify` finds what was
            changed, removed, inserted or reordered behind the saver's back.
        ttl: how long threads begun through this saver may be idle before `sweep()` deletes them; None: for ever.

    The constructor does no I/O. The tables are created on first use, by any method. One object serves synchronous
    and asynchronous callers, several threads, event loops one after another, and forked children.
    """

    def __init__(
        self,
        target: Any,
        *,
        serde: SerializerProtocol | None = None,
        schema: str | None = None,
        partitions: int | None = None,
        synchronous: str | None = None,
        busy_timeout: float | None = None,
        min_size: int | None = None,
        max_size: int | None = None,
        timeout: float | None = None,
        answer_timeout: float | None = None,
        max_idle: float | None = None,
        max_lifetime: float | None = None,
        connection_kwargs: Mapping[str, Any] | None = None,
        read_only: bool = False,
        compression: Compression = "lz4",
        value_limit: int = VALUE_LIMIT,
        on_conflict: OnConflict = "raise",
        on_busy: OnBusy = "take_over",
        owner_timeout: float = 60.0,
        ttl: timedelta | None = None,
        log_tools: bool = True,
        log_limit: int = 1_000_000,
        redact: Redact | None = None,
        flush: Flush = "always",
        working_channels: Collection[str] = (),
        chain_log: bool = True,
    ) -> None:
        super().__init__(serde=serde)
        if isinstance(log_limit, bool) or not isinstance(log_limit, int) or log_limit < 0:
            raise InvalidInput(f"log_limit={log_limit!r}: expected a number of bytes, zero or more")
        if isinstance(value_limit, bool) or not isinstance(value_limit, int) or value_limit < 1:
            raise InvalidInput(f"value_limit={value_limit!r}: expected a number of bytes, at least 1")
        if redact is not None and not callable(redact):
            raise InvalidInput(f"redact={redact!r}: expected a function of tool name, kind of value, and value")
        if on_conflict not in ("raise", "report"):
            raise InvalidInput(f"on_conflict={on_conflict!r}: expected 'raise' or 'report'")
        if on_busy not in ("take_over", "refuse"):
            raise InvalidInput(f"on_busy={on_busy!r}: expected 'take_over' or 'refuse'")
        driver, name = open_driver(
            target,
            read_only=read_only,
            schema=schema,
            partitions=partitions,
            synchronous=synchronous,
            busy_timeout=busy_timeout,
            min_size=min_size,
            max_size=max_size,
            timeout=timeout,
            answer_timeout=answer_timeout,
            max_idle=max_idle,
            max_lifetime=max_lifetime,
            connection_kwargs=dict(connection_kwargs) if connection_kwargs is not None else None,
        )
        self._ledger = Ledger(
            driver,
            name,
            on_conflict=on_conflict,
            on_busy=on_busy,
            owner_timeout=owner_timeout,
            compression=codecs.check(compression),
            ttl_seconds=retention.ttl_seconds(ttl),
            log_tools=bool(log_tools) and not read_only,
            log_limit=log_limit,
            redact=redact,
            flush=policies.checked(flush),
            working_channels=working.checked(working_channels),
            value_limit=value_limit,
            chain_log=bool(chain_log),
        )
        if self._ledger.log_tools or self._ledger.flush is not None:
            tool_log.register()

    @classmethod
    def from_conn_string(
        cls, conn_string: str, *, pipeline: bool = False, serde: SerializerProtocol | None = None, **options: Any
    ) -> Self:
        """Drop-in for the official savers' method: use it in `with`, `async with`, or as the saver itself.

        `pipeline` is accepted for compatibility and changes nothing: what can travel together does so anyway.
        """
        return cls(conn_string, serde=serde, **options)

    @property
    def _driver(self) -> Any:
        return self._ledger.driver

    def __repr__(self) -> str:
        return f"LedgerSaver({self._ledger.name})"

    def _repr_html_(self) -> str:
        return markup.page(legible.short(f"LedgerSaver({self._ledger.name})"), markup.facts(self._ledger.settings()))

    # --- opening and closing

    def setup(self) -> _Setup:
        """Creates the tables or brings them up to date; nothing once that is done, and never required.

        What it returns may be awaited, so that code written for the asynchronous official savers works too.
        """
        return _Setup(self)

    async def asetup(self) -> None:
        """`setup`, asynchronously."""
        await self._arun(self._ledger.ready())

    def is_up_to_date(self) -> bool:
        """Whether the tables are there as this version of the package wants them. Creates nothing."""
        return self._run(self._up_to_date())

    async def ais_up_to_date(self) -> bool:
        """`is_up_to_date`, asynchronously."""
        return await self._arun(self._up_to_date())

    def _up_to_date(self) -> Flow[bool]:
        driver = self._ledger.driver
        complete: bool = yield check_schema(driver.migrations, driver.partitions)
        return complete

    def is_encrypted(self) -> bool:
        """Whether a saver with an `EncryptedSerializer` has used this ledger, if only to read, unless it is read-only.

        Raises `ValueNotRestorable` if this saver has one too, with another key.
        """
        return self._run(self._ledger.is_encrypted(self.serde))

    async def ais_encrypted(self) -> bool:
        """`is_encrypted`, asynchronously."""
        return await self._arun(self._ledger.is_encrypted(self.serde))

    def close(self) -> None:
        """Commits what waits, and closes the connections that this saver opened. One of yours stays open.

        What this process was still working on is marked as shut down, so that it is not taken for a crash.
        """
        try:
            self._run(flush_queue(self._ledger.queue))
        finally:
            if self._ledger.unfinished and not self._ledger.driver.needs_loop:
                with contextlib.suppress(LedgerError):
                    self._run(shut_down(self._ledger))
            self._ledger.close()

    async def aclose(self) -> None:
        """`close`, and the connections of the running event loop too."""
        try:
            await self._arun(flush_queue(self._ledger.queue))
        finally:
            if self._ledger.unfinished:
                with contextlib.suppress(LedgerError):
                    await self._arun(shut_down(self._ledger))
            await self._ledger.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> BaseCheckpointSaver[str]:
        """A view of this saver whose serializer restores these types too; connections and runs are shared."""
        return super().with_allowlist(extra_allowlist)

    # --- driving

    def _run(self, flow: Flow[T]) -> T:
        return drive(flow, self._ledger.driver)

    async def _arun(self, flow: Flow[T]) -> T:
        if self._ledger.driver.needs_loop:
            self._ledger.loop = weakref.ref(asyncio.get_running_loop())
        return await adrive(flow, self._ledger.driver)

    def _simply(self, operation: Operation[T]) -> Flow[T]:
        yield from self._ledger.ready()
        result: T = yield operation
        return result

    # --- reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that `config` names, or the thread's latest; None if there is none."""
        return self._run(reading.get_tuple(self._ledger, self.serde, config))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """`get_tuple`, asynchronously."""
        return await self._arun(reading.get_tuple(self._ledger, self.serde, config, asynchronous=True))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, newest first; pages are fetched whole, so saving while listing works.

        Args:
            config: the thread (and namespace, and checkpoint) to list; None lists every thread.
            filter: metadata that must be equal, compared as Python values.
            before: only checkpoints older than this one.
            limit: at most so many.
        """
        return self._pages(Pages(self._ledger, self.serde, config, filter, before, limit))

    def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """`list`, asynchronously."""
        return self._apages(Pages(self._ledger, self.serde, config, filter, before, limit))

    def _pages(self, pages: Pages) -> Iterator[CheckpointTuple]:
        while not pages.ended:
            yield from self._run(pages.next())

    async def _apages(self, pages: Pages) -> AsyncIterator[CheckpointTuple]:
        while not pages.ended:
            for item in await self._arun(pages.next()):
                yield item

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What each `DeltaChannel` is rebuilt from: writes along the parent chain, and the value it starts from."""
        if not channels:
            return {}
        return self._run(reading.delta_history(self._ledger, self.serde, config, channels))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """`get_delta_channel_history`, asynchronously."""
        if not channels:
            return {}
        return await self._arun(reading.delta_history(self._ledger, self.serde, config, channels))

    # --- writing

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Stores a checkpoint; raises `StateConflict` if the thread has moved on since this run read it."""
        return self._run(writing.put(self._ledger, self.serde, config, checkpoint, metadata, new_versions))

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """`put`, asynchronously."""
        return await self._arun(writing.put(self._ledger, self.serde, config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Stores what a task wrote, or keeps it until the put of its checkpoint; same check as `put`."""
        self._run(writing.put_writes(self._ledger, self.serde, config, writes, task_id, task_path))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """`put_writes`, asynchronously."""
        await self._arun(writing.put_writes(self._ledger, self.serde, config, writes, task_id, task_path))

    def flush(self) -> None:
        """Commits what waits to be committed. With `flush="always"` nothing does."""
        self._run(self._ledger.ready())

    async def aflush(self) -> None:
        """`flush`, asynchronously."""
        await self._arun(self._ledger.ready())

    def get_next_version(self, current: str | None, channel: None = None) -> str:
        """The channel version after `current`. Raises `StateConflict` if its run has been fenced."""
        return cast("str", next_version(self._ledger.runs, current))

    # --- retention

    def delete_thread(self, thread_id: str) -> None:
        """Deletes all of a thread; runs that had read it are refused from then on."""
        self._run(retention.delete_thread(self._ledger, thread_id))

    async def adelete_thread(self, thread_id: str) -> None:
        """`delete_thread`, asynchronously."""
        await self._arun(retention.delete_thread(self._ledger, thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Deletes the checkpoints whose metadata has one of these `run_id`s, in every thread.

        A `DeltaChannel` that was last stored whole before such a run loses what the run added to it.
        """
        self._run(retention.delete_for_runs(self._ledger, self.serde, run_ids))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """`delete_for_runs`, asynchronously."""
        await self._arun(retention.delete_for_runs(self._ledger, self.serde, run_ids))

    def copy_thread(
        self,
        source_thread_id: str,
        target_thread_id: str,
        *,
        last: int | None = None,
        checkpoint_id: str | None = None,
    ) -> None:
        """Copies a thread to one that holds no checkpoints. An unknown source copies nothing.

        Args:
            source_thread_id: the thread to copy; it is not changed.
            target_thread_id: the thread to make.
            last: only so many of each namespace's latest checkpoints (1: the head alone), and what they need.
            checkpoint_id: only what led up to this root checkpoint, which becomes the copy's latest.
        """
        self._run(
            retention.copy_thread(self._ledger, self.serde, source_thread_id, target_thread_id, last, checkpoint_id)
        )

    async def acopy_thread(
        self,
        source_thread_id: str,
        target_thread_id: str,
        *,
        last: int | None = None,
        checkpoint_id: str | None = None,
    ) -> None:
        """`copy_thread`, asynchronously."""
        await self._arun(
            retention.copy_thread(self._ledger, self.serde, source_thread_id, target_thread_id, last, checkpoint_id)
        )

    def prune(  # type: ignore[override]
        self,
        thread_ids: Sequence[str] | None,
        *,
        strategy: str = "keep_latest",
        keep_last: int = 1,
        older_than: timedelta | None = None,
        status: str | None = None,
        dry_run: bool = False,
    ) -> Freed:
        """Drops old checkpoints; returns what that freed.

        Args:
            thread_ids: the threads to prune; None for all.
            strategy: "keep_latest" keeps each namespace's latest checkpoints, the ancestors that their delta channels
                are rebuilt from, and of the namespaces of single subgraph calls those that belong to a kept root
                checkpoint; "delete" deletes the threads.
            keep_last: how many checkpoints of each namespace to keep.
            older_than: touch only checkpoints (with "delete": threads last active) longer ago than this.
            status: only threads with this status.
            dry_run: change nothing, only say what would be freed.

        Each thread is pruned in a transaction of its own, and runs may go on with it meanwhile.
        """
        chosen = Selection(thread_ids, strategy, keep_last, older_than, status, dry_run)
        return self._run(retention.prune(self._ledger, self.serde, chosen))

    async def aprune(  # type: ignore[override]
        self,
        thread_ids: Sequence[str] | None,
        *,
        strategy: str = "keep_latest",
        keep_last: int = 1,
        older_than: timedelta | None = None,
        status: str | None = None,
        dry_run: bool = False,
    ) -> Freed:
        """`prune`, asynchronously."""
        chosen = Selection(thread_ids, strategy, keep_last, older_than, status, dry_run)
        return await self._arun(retention.prune(self._ledger, self.serde, chosen))

    def set_ttl(self, thread_id: str, ttl: timedelta | None) -> None:
        """Sets how long a thread may be idle before `sweep()` deletes it; None: for ever."""
        self._run(retention.set_ttl(self._ledger, thread_id, ttl))

    async def aset_ttl(self, thread_id: str, ttl: timedelta | None) -> None:
        """`set_ttl`, asynchronously."""
        await self._arun(retention.set_ttl(self._ledger, thread_id, ttl))

    def sweep(self, *, dry_run: bool = False) -> Freed:
        """Deletes the threads that have been idle for longer than their time to live."""
        return self._run(retention.sweep(self._ledger, dry_run))

    async def asweep(self, *, dry_run: bool = False) -> Freed:
        """`sweep`, asynchronously."""
        return await self._arun(retention.sweep(self._ledger, dry_run))

    def compact(self) -> int:
        """Gives free room back to the file system; returns how many bytes.

        Rewrites the file (SQLite's VACUUM) or the tables (Postgres's VACUUM FULL), which waits for running
        transactions and makes writers wait until it is done.
        """
        return self._run(self._simply(compact()))

    async def acompact(self) -> int:
        """`compact`, asynchronously."""
        return await self._arun(self._simply(compact()))

    # --- what the ledger knows

    def stats(self, thread_id: str | None = None) -> Stats:
        """Rows, bytes, ratios, versions and conflicts of one thread or of the whole ledger."""
        return self._run(self._simply(self._stats(thread_id)))

    async def astats(self, thread_id: str | None = None) -> Stats:
        """`stats`, asynchronously."""
        return await self._arun(self._simply(self._stats(thread_id)))

    @staticmethod
    def _stats(thread_id: str | None) -> Operation[Stats]:
        return read_stats(None if thread_id is None else ids.clean(thread_id, "thread_id"))

    def sessions(self, status: str | None = None, *, limit: int = 1000) -> Sessions:
        """Threads and where they are in their life, the most recently active first."""
        return self._run(self._sessions(status, limit))

    async def asessions(self, status: str | None = None, *, limit: int = 1000) -> Sessions:
        """`sessions`, asynchronously."""
        return await self._arun(self._sessions(status, limit))

    def _sessions(self, status: str | None, limit: int) -> Flow[Sessions]:
        retention.check_status(status)
        operation = read_sessions(status, checked_limit(limit))
        return self._settled(operation)

    def _settled(self, operation: Operation[T]) -> Flow[T]:
        yield from self._ledger.ready()
        yield from settle(self._ledger)
        result: T = yield operation
        return result

    def recover(self, thread_id: str) -> Recovery:
        """What was in flight on a thread: where it stands, what is open, what nobody knows. Changes nothing."""
        return self._run(recovery.recover(self._ledger, self.serde, thread_id))

    async def arecover(self, thread_id: str) -> Recovery:
        """`recover`, asynchronously."""
        return await self._arun(recovery.recover(self._ledger, self.serde, thread_id))

    def recoverable(self, *, idle: timedelta | None = None) -> Sessions:
        """The sessions that a crash left behind: at work, while whoever worked on them is gone.

        On this host the process is looked up. One on another host counts as gone when its session has been idle for
        `idle`, or if that is None for `owner_timeout`.
        """
        return self._run(recovery.recoverable(self._ledger, idle))

    async def arecoverable(self, *, idle: timedelta | None = None) -> Sessions:
        """`recoverable`, asynchronously."""
        return await self._arun(recovery.recoverable(self._ledger, idle))

    def unresolved(self, *, idle: timedelta | None = None) -> Sequence[Recovery]:
        """The reports (`recover`) on all threads that need a person, as `lgledger recover` lists them.

        They are those that are `recoverable`, which `idle` is about, and others with an unknown call or something held.
        """
        return self._run(recovery.unresolved(self._ledger, self.serde, idle))

    async def aunresolved(self, *, idle: timedelta | None = None) -> Sequence[Recovery]:
        """`unresolved`, asynchronously."""
        return await self._arun(recovery.unresolved(self._ledger, self.serde, idle))

    def resolve_call(
        self,
        thread_id: str,
        call_id: str,
        *,
        happened: bool,
        result: Any = recovery.NOT_GIVEN,
        task_id: str | None = None,
    ) -> None:
        """Puts on record what was found out about a call of which it is not known whether it happened.

        Args:
            thread_id: the thread.
            call_id: the call, as `recover` names it: a tool call's id.
            happened: whether it did. If it did not, it is made when the run goes on.
            result: what it returned, for a guarded run to go on with: best the tool's message, and None if it returned
                nothing. Needed if it happened, and only then.
            task_id: the task that made it, needed only if several have one of that name.

        Raises `InvalidInput` if nothing is open about such a call.
        """
        self._run(recovery.resolve_call(self._ledger, self.serde, thread_id, call_id, happened, result, task_id))

    async def aresolve_call(
        self,
        thread_id: str,
        call_id: str,
        *,
        happened: bool,
        result: Any = recovery.NOT_GIVEN,
        task_id: str | None = None,
    ) -> None:
        """`resolve_call`, asynchronously."""
        await self._arun(recovery.resolve_call(self._ledger, self.serde, thread_id, call_id, happened, result, task_id))

    def release_hold(self, thread_id: str, resource: str, *, hold_id: str | None = None) -> int:
        """Puts on record that what was left held has been dealt with; returns how many holds that were.

        `hold_id` names one of several holds on the resource, as `recover` shows it.
        """
        return self._run(recovery.release(self._ledger, self.serde, thread_id, resource, hold_id))

    async def arelease_hold(self, thread_id: str, resource: str, *, hold_id: str | None = None) -> int:
        """`release_hold`, asynchronously."""
        return await self._arun(recovery.release(self._ledger, self.serde, thread_id, resource, hold_id))

    def find_calls(self, thread_id: str, call_id: str) -> Sequence[CallRecord]:
        """The calls of this name on a thread, with what came of each: one for each task that made one."""
        return self._run(self._calls(thread_id, call_id))

    async def afind_calls(self, thread_id: str, call_id: str) -> Sequence[CallRecord]:
        """`find_calls`, asynchronously."""
        return await self._arun(self._calls(thread_id, call_id))

    def _calls(self, thread_id: str, call_id: str) -> Flow[Sequence[CallRecord]]:
        return find_calls(self._ledger, self.serde, ids.clean(thread_id, "thread_id"), call_id_of(call_id))

    def verify(self, thread_id: str | None, *, against: Sequence[Mapping[str, Any]] | None = None) -> Findings:
        """What of a thread's rows is not as it was stored: changed, removed, inserted or moved ones. Reads all of it.

        With None that is said of every thread, and, on SQLite, of the structure of the file; all of it is read. The
        `threads` of the list is how many threads were looked at, `pruned` of how many a prune has removed something.

        Args:
            thread_id: the thread; None for all.
            against: what `log_heads` gave at an earlier time, kept where whoever can write to this database cannot:
                it shows what was altered along with its digests. What was pruned or deleted since is `harmless`.
        """
        return self._run(self._verification(thread_id, against))

    async def averify(self, thread_id: str | None, *, against: Sequence[Mapping[str, Any]] | None = None) -> Findings:
        """`verify`, asynchronously."""
        return await self._arun(self._verification(thread_id, against))

    def _verification(self, thread_id: str | None, against: Sequence[Mapping[str, Any]] | None) -> Flow[Findings]:
        from langgraph_ledger import verification

        return verification.verify(self._ledger, self.serde, thread_id, against)

    def log_heads(self, thread_id: str | None = None) -> Sequence[dict[str, Any]]:
        """The ends of a thread's chains, or of all threads', as plain data: keep them elsewhere, for `verify` later.

        One for each namespace: `thread_id`, `checkpoint_ns`, the `seq` of the entry of the log and its `chain` in
        hexadecimal, which stands for everything that the log has up to this entry.
        """
        return self._run(self._log_heads(thread_id))

    async def alog_heads(self, thread_id: str | None = None) -> Sequence[dict[str, Any]]:
        """`log_heads`, asynchronously."""
        return await self._arun(self._log_heads(thread_id))

    def _log_heads(self, thread_id: str | None) -> Flow[Sequence[dict[str, Any]]]:
        from langgraph_ledger import verification

        return verification.log_heads(self._ledger, thread_id)

    def history(self, thread_id: str) -> History:
        """A thread's log, oldest first: checkpoints, calls and rejected writes, of every namespace.

        Printed, or shown in a notebook, it is a drawing of how the checkpoints descend from one another.
        """
        return self._run(self._simply(read_log(ids.clean(thread_id, "thread_id"))))

    async def ahistory(self, thread_id: str) -> History:
        """`history`, asynchronously."""
        return await self._arun(self._simply(read_log(ids.clean(thread_id, "thread_id"))))

    def diff(self, thread_id: str, before: str, after: str | None = None, *, checkpoint_ns: str = "") -> Diff:
        """What differs between two checkpoints of a thread: the values of their channels, as data.

        Args:
            thread_id: the thread.
            before: the id of a checkpoint.
            after: the id of another one; None for the latest.
            checkpoint_ns: the subgraph's namespace that both belong to; "" for the root graph.

        Nothing of the values is imported or constructed, except by a serializer of another format than LangGraph's.
        Raises `UnknownCheckpoint` if one of them is not there.
        """
        from langgraph_ledger import comparing

        reading = comparing.read_pair(self._ledger, self.serde, thread_id, before, after, checkpoint_ns)
        return comparing.compare(self._run(reading))

    async def adiff(self, thread_id: str, before: str, after: str | None = None, *, checkpoint_ns: str = "") -> Diff:
        """`diff`, asynchronously: values are compared in a thread, so that large ones do not hold up the event loop."""
        from langgraph_ledger import comparing

        reading = comparing.read_pair(self._ledger, self.serde, thread_id, before, after, checkpoint_ns)
        return await asyncio.to_thread(comparing.compare, await self._arun(reading))

    def rejected_writes(self, thread_id: str | None = None) -> Rejected:
        """The writes that were refused (or, with `on_conflict="report"`, reported), oldest first."""
        return self._run(self._simply(self._rejected(thread_id)))

    async def arejected_writes(self, thread_id: str | None = None) -> Rejected:
        """`rejected_writes`, asynchronously."""
        return await self._arun(self._simply(self._rejected(thread_id)))

    @staticmethod
    def _rejected(thread_id: str | None) -> Operation[Rejected]:
        return read_rejected(None if thread_id is None else ids.clean(thread_id, "thread_id"))

    def ancestors(self, config: RunnableConfig) -> Sequence[str]:
        """The ids of a namespace's latest checkpoint and of all it descends from, newest first."""
        return self._run(self._simply(self._lineage(config)))

    async def aancestors(self, config: RunnableConfig) -> Sequence[str]:
        """`ancestors`, asynchronously."""
        return await self._arun(self._simply(self._lineage(config)))

    @staticmethod
    def _lineage(config: RunnableConfig) -> Operation[Sequence[str]]:
        conf = ids.configurable(config)
        return lineage(ids.thread_of(conf), ids.namespace_of(conf))


class _Setup:
    """What `setup()` returns: done already where that is possible, and awaitable everywhere."""

    def __init__(self, saver: LedgerSaver) -> None:
        self._saver = saver
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            saver._run(saver._ledger.ready())

    def __await__(self) -> Generator[Any, None, None]:
        return self._saver.asetup().__await__()
