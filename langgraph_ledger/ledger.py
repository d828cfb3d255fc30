"""What all views of one saver share: the driver, the runs, where values were last stored, and the schema's state."""

from __future__ import annotations

import os
import socket
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Literal

from langgraph_ledger.drivers.transact import Driver
from langgraph_ledger.errors import SaverClosed
from langgraph_ledger.flow import Flow
from langgraph_ledger.memory import Ref
from langgraph_ledger.operations.schema import check_schema, create_schema, missing_schema
from langgraph_ledger.records import to_json
from langgraph_ledger.runs import Runs

PLACED = 1024
"""How many checkpoints' value places are remembered; the others are serialised again."""

OnConflict = Literal["raise", "report"]
OnBusy = Literal["take_over", "refuse"]

Places = Mapping[str, tuple[Any, Ref]]
"""Channel to (version, where its value is)."""


class Ledger:
    """One database as one saver sees it."""

    def __init__(
        self, driver: Driver, name: str, *, on_conflict: OnConflict, on_busy: OnBusy, owner_timeout: float
    ) -> None:
        self.driver, self.name = driver, name
        self.on_conflict, self.on_busy, self.owner_timeout = on_conflict, on_busy, owner_timeout
        self.runs = Runs()
        self._ready = False
        self._closed = False
        self._lock = threading.Lock()
        self._places: OrderedDict[tuple[str, str, str], Places] = OrderedDict()
        self._owner: tuple[int, str] | None = None

    def ready(self) -> Flow[None]:
        """Makes sure that the tables are there. Costs nothing once they are known to be."""
        if self._closed:
            raise SaverClosed(f"the saver on {self.name} was closed; make a new LedgerSaver to go on")
        if self._ready:
            return
        complete = yield check_schema(self.driver.migrations)
        if not complete:
            if self.driver.read_only:
                raise missing_schema(self.name)
            yield create_schema(self.driver.migrations)
        self._ready = True

    def placed(self, session_id: str, agent_id: str, checkpoint_id: str | None) -> Places:
        """Where the values of a checkpoint are, as far as this process remembers."""
        with self._lock:
            return self._places.get((session_id, agent_id, str(checkpoint_id)), {})

    def remember_places(self, session_id: str, agent_id: str, checkpoint_id: str, places: Places) -> None:
        with self._lock:
            self._places[session_id, agent_id, str(checkpoint_id)] = places
            self._places.move_to_end((session_id, agent_id, str(checkpoint_id)))
            while len(self._places) > PLACED:
                self._places.popitem(last=False)

    def owner(self) -> str:
        """Who this process is, as JSON, for the root row of a thread that it takes."""
        if self._owner is None or self._owner[0] != os.getpid():
            pid = os.getpid()
            self._owner = (pid, to_json({"host": socket.gethostname(), "pid": pid, "started": process_start(pid)}))
        return self._owner[1]

    def close(self) -> None:
        self._closed = True
        self.driver.close()

    async def aclose(self) -> None:
        self._closed = True
        await self.driver.aclose()


def process_start(pid: int) -> int | None:
    """When a process began, in clock ticks since boot, to tell it from a later one with the same number.

    None where the system does not say (or there is no such process).
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return int(file.read().rsplit(")", 1)[1].split()[19])
    except (OSError, IndexError, ValueError):
        return None
