"""Counting what is stored, and giving room back to the file system."""

from __future__ import annotations

from dataclasses import dataclass, fields

from langgraph_ledger import legible, markup
from langgraph_ledger.statements import Access, Operation, Statement, Steps, batch

COMPACTIONS = 6


@dataclass(frozen=True, slots=True)
class Stats:
    """What a thread, or the whole ledger, takes.

    `bytes_stored` is content as stored (packed); `bytes_plain` the same content unpacked; `bytes_of_states` what all
    checkpoints would take if each held its state whole, and `bytes_live` what the latest ones would. `bytes_on_disk`
    is everything, indexes and free room included, and only known for the whole ledger.
    """

    threads: int
    checkpoints: int
    pending_writes: int
    chunks: int
    bytes_stored: int
    bytes_plain: int
    bytes_of_states: int
    bytes_live: int
    versions: int
    conflicts: int
    bytes_on_disk: int | None

    @property
    def compression_ratio(self) -> float | None:
        """Unpacked to packed bytes of chunks and everything else; None if nothing is stored."""
        return self.bytes_plain / self.bytes_stored if self.bytes_stored else None

    @property
    def dedupe_ratio(self) -> float | None:
        """How many times the states of all checkpoints, held whole, exceed what is held; None if nothing is."""
        return self.bytes_of_states / self.bytes_plain if self.bytes_plain else None

    def lines(self) -> list[tuple[str, str]]:
        """The figures, as pairs of a name and a text."""
        figures = {field.name: getattr(self, field.name) for field in fields(self)}
        figures |= {"compression_ratio": self.compression_ratio, "dedupe_ratio": self.dedupe_ratio}
        return [(name.replace("_", " "), _figure(name, value)) for name, value in figures.items() if value is not None]

    def __str__(self) -> str:
        return legible.facts(self.lines())

    _repr_pretty_ = legible.as_text

    def _repr_html_(self) -> str:
        return markup.page("what is stored", markup.facts(self.lines()))


def _figure(name: str, value: float) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    return legible.size(value) if name.startswith("bytes") else str(value)


def read_stats(session_id: str | None) -> Operation[Stats]:
    """The figures of one session or of all."""

    def steps() -> Steps[Stats]:
        figures, size = yield batch(
            Statement("stats", {"session_id": session_id}), Statement("size_on_disk"), last=True
        )
        threads, checkpoints, writes, chunks, bodies, places, content, plain, states, live, versions, conflicts = (
            int(n) for n in figures[0]
        )
        return Stats(
            threads=threads,
            checkpoints=checkpoints,
            pending_writes=writes,
            chunks=chunks,
            bytes_stored=bodies + places + content,
            bytes_plain=bodies + places + plain,
            bytes_of_states=states,
            bytes_live=live,
            versions=versions,
            conflicts=conflicts,
            bytes_on_disk=int(size[0][0]) if session_id is None else None,
        )

    return Operation("stats", Access.READ, steps)


def compact() -> Operation[int]:
    """Rewrites the tables without their free room; returns the bytes given back. Not in a transaction."""

    def steps() -> Steps[int]:
        (before,) = yield batch(Statement("size_on_disk"))
        for number in range(1, COMPACTIONS + 1):
            yield batch(Statement(f"compact_{number}"))
        (after,) = yield batch(Statement("size_on_disk"))
        return int(before[0][0]) - int(after[0][0])

    return Operation("compact", Access.MAINTENANCE, steps)
