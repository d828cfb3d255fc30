"""LangGraph's own contract for savers: every test of `langgraph-checkpoint-conformance`, none left out."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import ALL_CAPABILITIES

from langgraph_ledger import LedgerSaver
from tests.four_ways import Backend

TESTS = 81
"""How many tests version 0.0.2 has, base and extended capabilities together."""


class ThroughSync(BaseCheckpointSaver[str]):
    """The asynchronous interface, which is all that the suite calls, on a saver's synchronous methods."""

    def __init__(self, saver: LedgerSaver) -> None:
        super().__init__(serde=saver.serde)
        self.saver = saver

    def get_next_version(self, current: str | None, channel: None) -> str:
        return self.saver.get_next_version(current, channel)

    async def aget_tuple(self, config: Any) -> Any:
        return self.saver.get_tuple(config)

    async def alist(self, config: Any, **options: Any) -> AsyncIterator[Any]:
        for found in self.saver.list(config, **options):
            yield found

    async def aput(self, *args: Any) -> Any:
        return self.saver.put(*args)

    async def aput_writes(self, *args: Any, **kwargs: Any) -> None:
        self.saver.put_writes(*args, **kwargs)

    async def adelete_thread(self, *args: Any, **kwargs: Any) -> None:
        self.saver.delete_thread(*args, **kwargs)

    async def adelete_for_runs(self, *args: Any, **kwargs: Any) -> None:
        self.saver.delete_for_runs(*args, **kwargs)

    async def acopy_thread(self, *args: Any, **kwargs: Any) -> None:
        self.saver.copy_thread(*args, **kwargs)

    async def aprune(self, *args: Any, **kwargs: Any) -> None:
        self.saver.prune(*args, **kwargs)


def test_every_conformance_test_passes(backend: Backend, flavour: str) -> None:
    """One database for all capabilities: as in production, nothing that other tests left may be seen."""

    @checkpointer_test(name=f"LedgerSaver {backend.kind} {flavour}")
    async def registered() -> AsyncGenerator[BaseCheckpointSaver[Any], None]:
        async with LedgerSaver(backend.url) as saver:
            yield saver if flavour == "async" else ThroughSync(saver)

    report = asyncio.run(validate(registered))
    results = report.results
    assert [failure for result in results.values() for failure in result.failures] == []
    assert set(results) == {capability.value for capability in ALL_CAPABILITIES}
    assert all(result.detected and result.passed for result in results.values())
    assert sum(result.tests_skipped for result in results.values()) == 0
    assert sum(result.tests_passed for result in results.values()) == TESTS
