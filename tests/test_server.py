"""The checkpointer for LangGraph's server: loaded, entered and wrapped as langgraph-api 0.16 does it."""

import asyncio
import importlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from langgraph_ledger import LedgerSaver, StateConflict
from langgraph_ledger.errors import InvalidInput, SaverClosed
from tests.direct import query
from tests.four_ways import Backend

PATH = "langgraph_ledger.server.checkpointer"
"""As `langgraph.json` names it."""
ASKED_FOR = (
    "aput",
    "aput_writes",
    "aget_tuple",
    "alist",
    "adelete_thread",
    "adelete_for_runs",
    "acopy_thread",
    "aprune",
)
"""What the server looks for in the class of the saver."""


class Wrapper(BaseCheckpointSaver[str]):
    """What the server puts around a saver: asynchronous methods alone, and versions of its own counting."""

    def __init__(self, inner: BaseCheckpointSaver[str]) -> None:
        super().__init__(serde=inner.serde)
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def aget_tuple(self, config: Any) -> CheckpointTuple | None:
        return await self._inner.aget_tuple(config)

    async def alist(self, config: Any, **options: Any) -> AsyncIterator[CheckpointTuple]:
        async for item in self._inner.alist(config, **options):
            yield item

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        return await self._inner.aput(config, checkpoint, {**metadata, "run_id": "the server's"}, new_versions)

    async def aput_writes(self, *args: Any) -> None:
        await self._inner.aput_writes(*args)

    def get_next_version(self, current: str | None, channel: None) -> str:
        return f"{int((current or '0').split('.')[0]) + 1:032}.0000000000000001"


def loaded() -> Any:
    module, _, name = PATH.rpartition(".")
    value = importlib.import_module(module).__dict__[name]
    assert callable(value)
    return value()


@tool
def look(what: str) -> str:
    """Look at something."""
    return what


def plan(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage("", tool_calls=[{"name": "look", "args": {"what": "it"}, "id": "call"}])]}


builder = StateGraph(MessagesState).add_sequence([("plan", plan), ("tools", ToolNode([look]))]).add_edge(START, "plan")


def test_a_graph_of_the_server(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Conflicts are found and tools are on record through the wrapper; leaving the block closes the saver."""
    monkeypatch.setenv("LANGGRAPH_LEDGER_URL", backend.url)
    config: Any = {"configurable": {"thread_id": "1"}}

    async def serve() -> LedgerSaver:
        async with loaded() as saver:
            assert isinstance(saver, LedgerSaver)
            assert await saver.ais_up_to_date()
            for name in ASKED_FOR:
                assert getattr(LedgerSaver, name) is not getattr(BaseCheckpointSaver, name)
            graph = builder.compile(checkpointer=Wrapper(saver))
            slow = graph.astream({"messages": ["slow"]}, config, durability="sync")
            await anext(slow)
            await builder.compile(checkpointer=Wrapper(saver)).ainvoke({"messages": ["fast"]}, config)
            with pytest.raises(StateConflict):
                _ = [part async for part in slow]
            kinds = [entry.checkpoint_type for entry in await saver.ahistory("1")]
            assert kinds.count("tool_call_completed") == 1
            assert "write_rejected" in kinds
            await saver.adelete_for_runs(["the server's"])
            assert await saver.aget_tuple(config) is None
            return saver

    saver = asyncio.run(serve())
    with pytest.raises(SaverClosed):
        saver.get_tuple(config)


@pytest.mark.parametrize(("schema", "found"), [("graphs", "graphs"), ("", "public")])
def test_the_schema(
    fresh_postgres_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch, schema: str, found: str
) -> None:
    """The tables are made where the environment says; an empty variable says nothing."""
    url = fresh_postgres_url()
    monkeypatch.setenv("LANGGRAPH_LEDGER_URL", url)
    monkeypatch.setenv("LANGGRAPH_LEDGER_SCHEMA", schema)

    async def serve() -> None:
        async with loaded() as saver:
            assert await saver.ais_up_to_date()

    asyncio.run(serve())
    tables = "SELECT table_schema FROM information_schema.tables WHERE table_name = 'checkpoint_log'"
    assert query(Backend("postgres", url), tables) == [(found,)]


def test_without_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LANGGRAPH_LEDGER_URL", raising=False)

    async def serve() -> None:
        async with loaded():
            pass

    with pytest.raises(InvalidInput, match="LANGGRAPH_LEDGER_URL is not set"):
        asyncio.run(serve())
