"""What all views of one saver share: the driver, the runs, where values were last stored, and the schema's state."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from langgraph.checkpoint.serde.base import CipherProtocol, SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from langgraph_ledger.chains import Stamp
from langgraph_ledger.codecs import VALUE_LIMIT, Compression
from langgraph_ledger.drivers.transact import Driver
from langgraph_ledger.errors import SaverClosed, ValueNotRestorable
from langgraph_ledger.flow import Flow
from langgraph_ledger.flushing import Queue, flush
from langgraph_ledger.images import Images
from langgraph_ledger.operations.schema import check_schema, create_schema, missing_schema
from langgraph_ledger.operations.secrets import add_secret, read_secrets
from langgraph_ledger.places import Place
from langgraph_ledger.policies import Batched, described_loss
from langgraph_ledger.records import to_json
from langgraph_ledger.runs import REMEMBERED, Run, Runs
from langgraph_ledger.vault import CipherVault, PlainVault, Vault, decrypt, encrypt, open_stamp

REMEMBERED_IDS = 500_000
"""How many references to chunks a saver remembers, over all checkpoints; the oldest checkpoints go first."""

OnConflict = Literal["raise", "report"]
OnBusy = Literal["take_over", "refuse"]

Redact = Callable[[str, str, Any], Any]
"""What the log keeps of a value: (the tool's name, "arguments", "result" or "error", the value) to what to keep."""


@dataclass(slots=True, eq=False, repr=False)
class Placed:
    """One channel of a checkpoint as this process knows it: version, where the value is, every chunk under it, and
    how large it is when serialised."""

    version: Any
    place: Place
    used: frozenset[bytes]
    size: int


NO_SECRET = b"nothing was ever written with a cipher"
"""In place of the secret where a reader finds none: whoever writes first makes one."""


@dataclass(slots=True, eq=False, repr=False)
class Known:
    """What this process knows of a stored checkpoint; `written` are the chunks of its pending writes, `deltas` the
    delta channels without a value, which are rebuilt from its ancestors."""

    channels: Mapping[str, Placed]
    written: set[bytes] = field(default_factory=set)
    deltas: frozenset[str] = frozenset()

    @property
    def ids(self) -> set[bytes]:
        """Chunks that exist as long as the checkpoint does."""
        return self.written.union(*(placed.used for placed in self.channels.values()))

    @property
    def weight(self) -> int:
        return 8 + sum(8 + len(placed.used) for placed in self.channels.values())


NOTHING_KNOWN = Known({})


class Ledger:
    """One database as one saver sees it."""

    def __init__(
        self,
        driver: Driver,
        name: str,
        *,
        on_conflict: OnConflict,
        on_busy: OnBusy,
        owner_timeout: float,
        compression: Compression,
        ttl_seconds: float | None,
        log_tools: bool = True,
        log_limit: int = 1_000_000,
        redact: Redact | None = None,
        flush: Batched | None = None,
        working_channels: frozenset[str] = frozenset(),
        value_limit: int = VALUE_LIMIT,
        chain_log: bool = True,
    ) -> None:
        self.driver, self.name = driver, name
        self.on_conflict, self.on_busy, self.owner_timeout = on_conflict, on_busy, owner_timeout
        self.compression, self.ttl_seconds = compression, ttl_seconds
        self.log_tools, self.log_limit, self.redact = log_tools, log_limit, redact
        self.value_limit = value_limit
        self.chain_log = chain_log
        self._stamp: Stamp = open_stamp
        self.runs = Runs()
        self.flush, self.queue = flush, Queue(driver)
        self.working_channels, self.working_ready = working_channels, False
        self.loop: Callable[[], asyncio.AbstractEventLoop | None] = lambda: None
        """The event loop that this saver was last used in, as long as it is there."""
        self.late: deque[tuple[Run, bool, BaseException | None]] = deque()
        """Runs whose end is to be put on record by the next call that may do so."""
        self._open: OrderedDict[str, tuple[int, Run]] = OrderedDict()
        self._ready = False
        self._closed = False
        self._lock = threading.Lock()
        self._images = Images()
        self._secrets: list[tuple[CipherProtocol, bytes, Images]] = []
        self._known: OrderedDict[tuple[str, str, str], Known] = OrderedDict()
        self._weight = 0
        self._owner: tuple[int, str] | None = None

    def ready(self, *, adding: bool = False) -> Flow[None]:
        """Makes sure that the tables are there, which costs nothing once they are known to be, and that what waits is
        committed, unless it is only to be added to."""
        if self._closed:
            raise SaverClosed(f"the saver on {self.name} was closed; make a new LedgerSaver to go on")
        if self.queue.entries and not adding:
            yield from flush(self.queue)
        if self._ready:
            return
        complete = yield check_schema(self.driver.migrations, self.driver.partitions)
        if not complete:
            if self.driver.read_only:
                raise missing_schema(self.name)
            yield create_schema(self.driver.migrations, self.driver.partitions)
        self._ready = True

    @property
    def stamp(self) -> Stamp | None:
        """Makes the digests of rows, keyed if the serializer of the last call has a cipher; None if they have none."""
        return self._stamp if self.chain_log else None

    def vault(self, serde: SerializerProtocol, *, adding: bool = False) -> Flow[Vault]:
        """How this ledger's bytes are sealed with a serializer; first what `ready` does."""
        found = yield from self._vault(serde, adding)
        self._stamp = found.stamp
        return found

    def _vault(self, serde: SerializerProtocol, adding: bool) -> Flow[Vault]:
        yield from self.ready(adding=adding)
        if not isinstance(serde, EncryptedSerializer):
            return PlainVault(serde, self._images, self.value_limit)
        for cipher, secret, images in self._secrets:
            if cipher is serde.cipher:
                return CipherVault(serde.serde, cipher, secret, images, self.value_limit)
        secret, images = (yield from self._secret(serde.cipher)), Images()
        if secret is not NO_SECRET:
            self._secrets.append((serde.cipher, secret, images))
        return CipherVault(serde.serde, serde.cipher, secret, images, self.value_limit)

    def is_encrypted(self, serde: SerializerProtocol) -> Flow[bool]:
        """Whether anything was written with a cipher; ValueNotRestorable if a serializer has another one."""
        yield from self.ready()
        stored = yield read_secrets()
        if stored and isinstance(serde, EncryptedSerializer) and _opened(serde.cipher, stored) is None:
            raise self._another_key()
        return bool(stored)

    def _another_key(self) -> ValueNotRestorable:
        return ValueNotRestorable(f"{self.name} was encrypted with another key than this saver's")

    def _secret(self, cipher: CipherProtocol) -> Flow[bytes]:
        """The secret that keys chunk ids, stored encrypted: the one that this cipher can read, or a new one."""
        stored = yield read_secrets()
        if (opened := _opened(cipher, stored)) is not None:
            return opened
        if self.driver.read_only:
            if not stored:
                return NO_SECRET
            raise self._another_key()
        secret = os.urandom(32)
        yield add_secret(encrypt(cipher, secret))
        # of several that were made at once, all use the first that their cipher can read
        return (yield from self._secret(cipher))

    def known(self, session_id: str, agent_id: str, checkpoint_id: str | None) -> Known:
        """What this process knows of a checkpoint in the ledger; nothing, perhaps."""
        with self._lock:
            return self._known.get((session_id, agent_id, str(checkpoint_id)), NOTHING_KNOWN)

    def remember(self, session_id: str, agent_id: str, checkpoint_id: str, known: Known) -> None:
        """Notes what has been read or stored."""
        key = (session_id, agent_id, str(checkpoint_id))
        with self._lock:
            if (before := self._known.pop(key, None)) is not None:
                self._weight -= before.weight
                known.written |= before.written
            self._known[key] = known
            self._weight += known.weight
            while self._weight > REMEMBERED_IDS and len(self._known) > 1:
                self._weight -= self._known.popitem(last=False)[1].weight

    def forget(self, session_id: str) -> None:
        """Drops what is known of a session, of which something has been removed."""
        with self._lock:
            for key in [key for key in self._known if key[0] == session_id]:
                self._weight -= self._known.pop(key).weight

    def remember_written(self, session_id: str, agent_id: str, checkpoint_id: str, used: set[bytes]) -> None:
        """Notes the chunks of writes that have been stored on a checkpoint."""
        with self._lock:
            known = self._known.get((session_id, agent_id, checkpoint_id))
            if known is not None and len(known.written) < REMEMBERED_IDS // 100:
                known.written |= used

    def settings(self) -> list[tuple[str, str]]:
        """What this saver was told, as pairs of a name and a text. Looks at no database."""
        version = self.driver.migrations[-1].number
        found = {
            "tables": f"version {version}, {'up to date' if self._ready else 'not looked at yet'}",
            "on_conflict": self.on_conflict,
            "on_busy": self.on_busy,
            "flush": ": ".join(described_loss(self.flush)),
            "compression": self.compression,
            "working_channels": ", ".join(sorted(self.working_channels)),
            "log_tools": "tool calls are put on record" if self.log_tools else "tool calls are not put on record",
            "chain_log": "rows have digests" if self.chain_log else "rows have no digests",
            "read_only": "nothing is ever written" if self.driver.read_only else "",
            "closed": "make a new LedgerSaver to go on" if self._closed else "",
        }
        return [(name, text) for name, text in found.items() if text]

    @property
    def side_exists(self) -> bool:
        """Whether what is safe to lose is, or may be, kept apart from the database's own tables."""
        path = getattr(self.driver, "side_path", None)
        return path is not None and os.path.exists(path)

    def begun(self, run: Run) -> None:
        """Notes a run of a root graph in this process."""
        with self._lock:
            self._open[run.token] = (os.getpid(), run)
            while len(self._open) > REMEMBERED:
                self._open.popitem(last=False)

    def ended(self, run: Run) -> None:
        with self._lock:
            self._open.pop(run.token, None)

    @property
    def unfinished(self) -> bool:
        """Whether there may be something to put on record before this saver is closed."""
        return bool(self.late) or (not self._closed and bool(self.open_runs()))

    def open_runs(self) -> list[Run]:
        """Runs of this process that have begun and not ended, as far as it knows."""
        with self._lock:
            return [run for pid, run in self._open.values() if pid == os.getpid()]

    def owner(self) -> str:
        """Who this process is, as JSON, for the root row of a thread that it takes."""
        if self._owner is None or self._owner[0] != os.getpid():
            pid = os.getpid()
            self._owner = (pid, to_json({"host": socket.gethostname(), "pid": pid, "started": process_start(pid)}))
        return self._owner[1]

    def close(self) -> None:
        self._close()
        self.driver.close()

    async def aclose(self) -> None:
        self._close()
        await self.driver.aclose()

    def _close(self) -> None:
        self._closed = True
        if self.queue.entries:  # their flush has just failed, and whoever closes is told
            self.queue.drop(SaverClosed("the saver was closed while changes of this run could not be committed"))


def process_start(pid: int) -> int | None:
    """When a process began, in clock ticks since boot, to tell it from a later one with the same number.

    None where the system does not say (or there is no such process).
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return int(file.read().rsplit(")", 1)[1].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def _opened(cipher: CipherProtocol, stored: Sequence[bytes]) -> bytes | None:
    """The first of the secrets that a cipher can read."""
    for sealed in stored:
        with contextlib.suppress(ValueError):
            return decrypt(cipher, sealed)
    return None
