"""Where the code that is running stands: the config of the node around it, and the saver of its graph."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from langchain_core.runnables.config import var_child_runnable_config

from langgraph_ledger.drivers.transact import Driver
from langgraph_ledger.errors import InvalidInput, WrongFlavour
from langgraph_ledger.flow import Flow, adrive, drive, holds_up_loop
from langgraph_ledger.ledger import Ledger


def here() -> tuple[Mapping[str, Any], Any]:
    """The `configurable` of the node in which this code runs, and the LedgerSaver of its graph, or None."""
    conf = (var_child_runnable_config.get() or {}).get("configurable") or {}
    saver = conf.get("__pregel_checkpointer")
    known = isinstance(getattr(saver, "_ledger", None), Ledger) and conf.get("thread_id") is not None
    return conf, saver if known else None


def must_be_here(what: str) -> tuple[Mapping[str, Any], Any]:
    """`here`, or `InvalidInput` where there is no graph with a LedgerSaver around."""
    conf, saver = here()
    if saver is None:
        raise InvalidInput(
            f"{what} works inside of a node, of a graph that was compiled with a LedgerSaver and runs with a thread_id"
        )
    return conf, saver


def is_sent() -> bool:
    """Whether the task in which this code runs was made by a `Send`: it has a call, where a node would have all."""
    path = ((var_child_runnable_config.get() or {}).get("metadata") or {}).get("langgraph_path") or ()
    return "__pregel_push" in path


def run_flow(ledger: Ledger, flow: Flow[Any]) -> Any:
    """Carries out a flow on this thread; where the connection belongs to an event loop, there, unless this code holds
    it up."""
    if out_of_reach(ledger):
        flow.close()
        raise WrongFlavour(
            "synchronous code in an asynchronous node holds up the event loop that its saver needs just now: use"
            " the asynchronous form"
        )
    loop = ledger.loop() if ledger.driver.needs_loop else None
    if loop is None or loop.is_closed():
        before = holds_up_loop.set(asyncio._get_running_loop() is not None)
        try:
            return drive(flow, ledger.driver)
        finally:
            holds_up_loop.reset(before)
    return asyncio.run_coroutine_threadsafe(_coroutine(flow, ledger.driver), loop).result()


async def _coroutine(flow: Flow[Any], driver: Driver) -> Any:
    return await adrive(flow, driver)


def out_of_reach(ledger: Ledger) -> bool:
    """Whether this code holds up the very loop that the ledger's connection belongs to."""
    return ledger.driver.needs_loop and asyncio._get_running_loop() is not None
