"""What SQLite asks the disk to do, recorded, and the disks that a power cut could leave.

A process that imports this records every write, sync, truncation and deletion of SQLite's own files, in their order:
a VFS that does what the default one does and notes it. `disks` replays such a record up to a moment and says what may
be on the disk then: what was synced, and of what was written since any part, torn or whole.
"""

import ctypes
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_int64, _pointer = ctypes.c_int64, ctypes.c_void_p
_METHODS = 1 + 18
"""Of sqlite3_io_methods of version 3: its version, which takes a pointer's room, and its functions."""
SECTOR = 512


@dataclass(frozen=True)
class Event:
    """Something that was asked of the disk, or ("ack") said to whoever saves."""

    what: str
    file: str = ""
    offset: int = 0
    data: bytes = b""


class _Vfs(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_int), ("size", ctypes.c_int), ("longest", ctypes.c_int), ("next", _pointer),
        ("name", ctypes.c_char_p), ("data", _pointer), ("open", _pointer), ("delete", _pointer),
        ("rest", _pointer * 16),
    )  # fmt: skip


# names as addresses: SQLite keeps them, and a copy of Python's would be gone
_OPEN = ctypes.CFUNCTYPE(ctypes.c_int, _pointer, _pointer, _pointer, ctypes.c_int, _pointer)
_DELETE = ctypes.CFUNCTYPE(ctypes.c_int, _pointer, _pointer, ctypes.c_int)
_WRITE = ctypes.CFUNCTYPE(ctypes.c_int, _pointer, _pointer, ctypes.c_int, _int64)
_TRUNCATE = ctypes.CFUNCTYPE(ctypes.c_int, _pointer, _int64)
_SYNC = ctypes.CFUNCTYPE(ctypes.c_int, _pointer, ctypes.c_int)
_kept: list[Any] = []


def library() -> ctypes.CDLL | None:
    """The SQLite that Python's `sqlite3` uses, or None where it cannot be reached from here."""
    import _sqlite3

    try:
        found = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
        found.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
    except (OSError, AttributeError):
        return None
    return found


def record(events: list[Event]) -> None:
    """From now on everything that SQLite's connections of this process ask of the disk is noted."""
    sqlite = library()
    assert sqlite is not None
    original = sqlite.sqlite3_vfs_find(None).contents
    vfs = _Vfs.from_buffer_copy(original)
    names: dict[int, str] = {}
    methods: dict[int, Any] = {}

    def opened(this: int, name: int | None, file: int, flags: int, out: int) -> int:
        code = _OPEN(original.open)(this, name, file, flags, out)
        table = ctypes.cast(file, ctypes.POINTER(_pointer))
        if code == 0 and table[0] and name is not None:
            names[file] = Path(ctypes.string_at(name).decode()).name
            if table[0] not in methods:
                methods[table[0]] = _noting(table[0], names, events)
            table[0] = ctypes.addressof(methods[table[0]])
        return code

    def deleted(this: int, name: int, sync: int) -> int:
        code = _DELETE(original.delete)(this, name, sync)
        events.append(Event("delete", Path(ctypes.string_at(name).decode()).name))
        return code

    vfs.name = b"recording"
    callbacks = _OPEN(opened), _DELETE(deleted)
    vfs.open, vfs.delete = (ctypes.cast(callback, _pointer) for callback in callbacks)
    _kept.extend((vfs, callbacks, methods))
    assert sqlite.sqlite3_vfs_register(ctypes.byref(vfs), 1) == 0


def _noting(table: int, names: dict[int, str], events: list[Event]) -> Any:
    """A file's methods, of which those that change something are noted before they are carried out."""
    made = (_pointer * _METHODS).from_buffer_copy((_pointer * _METHODS).from_address(table))
    # iVersion, xClose, xRead, xWrite, xTruncate, xSync, ...
    write, truncate, sync = _WRITE(made[3]), _TRUNCATE(made[4]), _SYNC(made[5])

    def writes(file: int, data: int, size: int, offset: int) -> int:
        events.append(Event("write", names[file], offset, ctypes.string_at(data, size)))
        return write(file, data, size, offset)

    def truncates(file: int, size: int) -> int:
        events.append(Event("truncate", names[file], size))
        return truncate(file, size)

    def syncs(file: int, flags: int) -> int:
        code = sync(file, flags)
        events.append(Event("sync", names[file]))
        return code

    callbacks = _WRITE(writes), _TRUNCATE(truncates), _SYNC(syncs)
    for place, callback in zip((3, 4, 5), callbacks, strict=True):
        made[place] = ctypes.cast(callback, _pointer).value
    _kept.append((made, callbacks))
    return made


# --- what may be left


class _Disk:
    """Files as they are for sure, and what was asked of each since it was synced."""

    def __init__(self) -> None:
        self.synced: dict[str, bytes] = {}
        self.since: dict[str, list[Event]] = {}

    def take(self, event: Event) -> None:
        if event.what == "delete":
            self.synced.pop(event.file, None)
            self.since.pop(event.file, None)
        elif event.what == "sync":
            self.synced[event.file] = self.with_all(event.file)
            self.since[event.file] = []
        elif event.what != "ack":
            self.since.setdefault(event.file, []).append(event)

    def with_all(self, file: str) -> bytes:
        return _applied(self.synced.get(file, b""), self.since.get(file, []))

    def left(self, chance: random.Random | None) -> dict[str, bytes]:
        """Of what was not synced nothing is there; or, by chance, any part of it."""
        files = self.synced.keys() | self.since.keys()
        if chance is None:
            return {file: self.synced.get(file, b"") for file in files}
        return {file: _applied(self.synced.get(file, b""), _some(self.since.get(file, []), chance)) for file in files}


def _applied(data: bytes, events: Sequence[Event]) -> bytes:
    found = bytearray(data)
    for event in events:
        if event.what == "truncate":
            del found[event.offset :]
            continue
        found.extend(bytes(max(0, event.offset - len(found))))
        found[event.offset : event.offset + len(event.data)] = event.data
    return bytes(found)


def _some(events: Sequence[Event], chance: random.Random) -> Iterator[Event]:
    """Any of the writes, any sectors of them, in any order."""
    pieces: list[Event] = []
    for event in events:
        if event.what == "truncate":
            pieces.append(event)
            continue
        for start in range(0, len(event.data), SECTOR):
            pieces.append(Event("write", event.file, event.offset + start, event.data[start : start + SECTOR]))
    share = chance.random()
    return iter([piece for piece in pieces if chance.random() < share])


@dataclass(frozen=True)
class Left:
    """What a cut at one moment left: `kind` says of what."""

    moment: int
    kind: str
    acknowledged: tuple[str, ...]
    files: dict[str, bytes]


def disks(events: Sequence[Event], seed: int) -> Iterator[Left]:
    """Moment by moment: the files as after the death of the process ("killed"), or after a power cut, with nothing of
    what was not synced ("bare") or with any part of it ("torn"). Which of them alternates."""
    disk, acknowledged, chance = _Disk(), list[str](), random.Random(seed)
    for moment, event in enumerate(events):
        disk.take(event)
        if event.what == "ack":
            acknowledged.append(event.file)
            continue
        told, sync = tuple(acknowledged), event.what == "sync"
        if sync or moment % 2:
            everything = {file: disk.with_all(file) for file in disk.synced.keys() | disk.since.keys()}
            yield Left(moment, "killed", told, everything)
        if not sync and moment % 2 == 0:
            yield Left(moment, "torn", told, disk.left(chance))
        if sync or moment % 8 == 0:  # it does not change in between
            yield Left(moment, "bare", told, disk.left(None))
