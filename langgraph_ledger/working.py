"""Working context: channels whose values are kept apart from what is durable, in their latest version only.

A checkpoint names those that had a value and their versions. A value is shown with a checkpoint only if it is of that
very version, so that an old checkpoint never shows a newer one; where there is none, the channel is as if it had never
been written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import ormsgpack

from langgraph_ledger import ids
from langgraph_ledger.codecs import Compression, compress, expand
from langgraph_ledger.errors import InvalidInput, NotALedger, TypeNotAllowed
from langgraph_ledger.flow import Flow
from langgraph_ledger.ledger import Ledger
from langgraph_ledger.memory import dump
from langgraph_ledger.operations.working import (
    WorkingRow,
    create_working,
    delete_working,
    read_working,
    write_working,
)
from langgraph_ledger.records import now
from langgraph_ledger.restoring import load
from langgraph_ledger.vault import Vault

WORKING_KEY = "__working__"
"""Where a stored checkpoint names the working channels that had a value."""

ROOM = 64
"""Bytes that a value takes in its row besides its own."""

Place = Callable[[str], str]
"""Names the place of a detail for an error message."""

_RESERVED = ("__", "branch:", "join:")


def checked(channels: Collection[str]) -> frozenset[str]:
    """The names of working channels, or `InvalidInput`."""
    if isinstance(channels, str) or not isinstance(channels, Collection):
        raise InvalidInput(f"working_channels={channels!r}: expected a set of channel names")
    for name in channels:
        if not isinstance(name, str):
            raise InvalidInput(f"working_channels: {name!r} is no channel's name")
        ids.clean(name, "channel")
        if name.startswith(_RESERVED):
            raise InvalidInput(f"working_channels: {name!r} is LangGraph's own, and what runs next depends on it")
    return frozenset(channels)


def refuse_unfit(channels: Collection[str], checkpoint: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """Raises `InvalidInput` for a working channel without which a graph could not go on."""
    if not channels:
        return
    for node, seen in (checkpoint.get("versions_seen") or {}).items():
        if not node.startswith("__") and (found := sorted(set(channels).intersection(seen))):
            raise InvalidInput(f"working channel {found[0]!r} triggers node {node!r}, which would not run without it")
    if found := sorted(set(channels).intersection(metadata.get("counters_since_delta_snapshot") or ())):
        raise InvalidInput(f"working channel {found[0]!r} is a DeltaChannel, which is rebuilt from all of its history")
    if metadata.get("source") == "input":
        _refuse_input(channels, checkpoint)


def _refuse_input(channels: Collection[str], checkpoint: Mapping[str, Any]) -> None:
    given = (checkpoint.get("channel_values") or {}).get("__start__")
    names = set(given) if isinstance(given, Mapping) else getattr(given, "model_fields_set", None)
    if names is None:
        names = {name for name in channels if getattr(given, name, None) is not None}
    if found := sorted(names.intersection(channels)):
        raise InvalidInput(f"working channel {found[0]!r} carries input: what a caller has given must not be lost")


class Kept:
    """The working values of one put or put_writes on their way."""

    def __init__(self, vault: Vault, agent_id: str, compression: Compression) -> None:
        self.vault, self.agent_id, self.compression = vault, agent_id, compression
        self.rows: list[WorkingRow] = []

    def add(
        self, channel: str, version: str, value: Any, where: Any, task_id: str = "", idx: int = 0, path: str = ""
    ) -> None:
        """Encodes a value as it is now."""
        plain = ormsgpack.packb(list(dump(self.vault.serde, value, where, self.vault.limit)))
        encoding, data = compress("b", plain, self.compression)
        row = WorkingRow(self.agent_id, channel, version, task_id, idx, path, encoding, data)
        row.content = self.vault.seal(data, _label(row))
        self.rows.append(row)


def _label(row: WorkingRow) -> str:
    return f"working/{row.agent_id}/{row.channel}/{row.version}/{row.task_id}/{row.idx}"


def _value(vault: Vault, row: WorkingRow, where: Place) -> Any:
    packed = vault.unseal(row.content, _label(row))
    encoding, data = ormsgpack.unpackb(expand(row.encoding, packed, vault.limit + ROOM)[1])
    return load(vault.serde, encoding, data, lambda: where(f", working channel {row.channel!r}"))


def values_of(
    vault: Vault,
    agent_id: str,
    names: Sequence[str],
    versions: Mapping[str, Any],
    rows: Sequence[WorkingRow],
    where: Place,
) -> dict[str, Any]:
    """The values that a checkpoint's working channels had, of those that are still there and whole."""
    found: dict[str, Any] = {}
    for row in rows:
        mine = row.agent_id == agent_id and not row.task_id and row.channel in names
        if mine and row.version == str(versions.get(row.channel)):
            _try_value(found, row.channel, partial(_value, vault, row, where))
    return found


def writes_of(
    vault: Vault, agent_id: str, checkpoint_id: str, rows: Sequence[WorkingRow], where: Place
) -> list[tuple[str, str, Any]]:
    """What tasks have written to working channels after a checkpoint."""
    mine = [r for r in rows if r.agent_id == agent_id and r.task_id and r.version == checkpoint_id]
    found: list[tuple[str, str, Any]] = []
    for row in sorted(mine, key=lambda r: (r.task_path, r.task_id, r.idx)):
        value: dict[str, Any] = {}
        _try_value(value, row.channel, partial(_value, vault, row, where))
        found += [(row.task_id, channel, value) for channel, value in value.items()]
    return found


def _try_value(found: dict[str, Any], channel: str, value: Any) -> None:
    try:
        found[channel] = value()
    except TypeNotAllowed:  # it is there, and another saver would give it
        raise
    except Exception:  # an unsynced file may hold anything after a power cut: then the value is lost
        return


# --- flows


def fetch(ledger: Ledger, session_id: str) -> Flow[Sequence[WorkingRow]]:
    """What is kept of a session; nothing, for a saver without working channels."""
    if not ledger.working_channels:
        return ()
    if not ledger.driver.read_only:
        yield from _ready(ledger)
    elif not ledger.side_exists:
        return ()
    try:
        rows: Sequence[WorkingRow] = yield read_working(session_id)
    except NotALedger:  # an unsynced file after a power cut; the driver has removed it
        ledger.working_ready = False
        return ()
    return rows


def keep(
    ledger: Ledger, session_id: str, agent_id: str, checkpoint_id: str | None, rows: Sequence[WorkingRow]
) -> Flow[None]:
    """Keeps values, once what they belong to is stored."""
    if ledger.working_channels and (rows or checkpoint_id is not None):
        yield from _ready(ledger)
        yield write_working(session_id, agent_id, checkpoint_id, rows, now())


def forget(ledger: Ledger, session_id: str) -> Flow[None]:
    """Deletes what is kept of a session, by whatever saver."""
    if ledger.working_channels or ledger.side_exists:
        yield from _ready(ledger)
        yield delete_working(session_id)


def _ready(ledger: Ledger) -> Flow[None]:
    if not ledger.working_ready:
        try:
            yield create_working()
        except NotALedger:
            yield create_working()  # anew: the driver has removed what could not be used
        ledger.working_ready = True
