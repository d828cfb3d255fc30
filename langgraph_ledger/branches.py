"""How a thread's checkpoints descend from one another: the tree that a terminal and a notebook draw.

It is told by the log alone: checkpoints under their parents, subgraphs beside what called them, refused writes at what
their run had last stored or read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from langgraph_ledger import legible
from langgraph_ledger.records import LogEntry

CHECKPOINT, REJECTED = "checkpoint", "write_rejected"

_Places = dict[tuple[str, str | None], int]


class Descent:
    """Entries of a log by their places, each behind what it comes from, in the order of the log otherwise.

    `parents` are the places of what they follow; `origins` those and, for a subgraph's beginning, the place of the
    checkpoint in whose next step it began. None: that is not known, or nothing.
    """

    def __init__(self, entries: Sequence[LogEntry]) -> None:
        found = [entry for entry in entries if entry.checkpoint_type in (CHECKPOINT, REJECTED)]
        origins = [parent if parent is not None else caller for parent, caller in _links(found)]
        self.entries = [found[place] for place in _sorted(origins)]
        self.parents: list[int | None] = []
        self.origins: list[int | None] = []
        for place, link in enumerate(_links(self.entries)):
            parent, caller = (end if end is not None and end < place else None for end in link)
            self.parents.append(parent)
            self.origins.append(caller if parent is None else parent)

    def is_refused(self, place: int) -> bool:
        return not _is_checkpoint(self.entries[place])


def _links(entries: Sequence[LogEntry]) -> list[tuple[int | None, int | None]]:
    """For each entry the places of its parent and of what called its graph."""
    places = {(e.agent_id, e.checkpoint_id): i for i, e in enumerate(entries) if _is_checkpoint(e)}
    return [(_parent(entry, places), _caller(entry, places)) for entry in entries]


def _parent(entry: LogEntry, places: _Places) -> int | None:
    if _is_checkpoint(entry):
        return places.get((entry.agent_id, entry.parent_checkpoint_id))
    read = (entry.payload.get("last_committed"), entry.payload.get("checkpoint_read"))
    ids = [i for i in read if isinstance(i, str)]
    found = (places.get((namespace, i)) for i in ids for namespace in (entry.agent_id, ""))
    return next((place for place in found if place is not None), None)


def _caller(entry: LogEntry, places: _Places) -> int | None:
    above = entry.payload.get("parents")
    if not isinstance(above, dict) or not above:
        return None
    innermost = max(above, key=len)
    caller = above[innermost]
    return places.get((innermost, caller)) if isinstance(caller, str) else None


def _sorted(origins: Sequence[int | None]) -> Iterable[int]:
    """Under durability "async" a subgraph may store its first checkpoint before the one that called it is stored."""
    found: dict[int, None] = {}
    for place in range(len(origins)):
        waiting: dict[int, None] = {}
        origin: int | None = place
        while origin is not None and origin not in found and origin not in waiting:
            waiting[origin] = None
            origin = origins[origin]
        found |= dict.fromkeys(reversed(waiting))
    return found


def _is_checkpoint(entry: LogEntry) -> bool:
    return entry.checkpoint_type == CHECKPOINT


@dataclass(frozen=True, slots=True)
class Lane:
    """Entries that follow one another, by their places, and the place of what they come from, if it is known.

    `column` is where the lane is drawn: no two lanes of a column share a row. `called` says that it is a subgraph's
    beginning.
    """

    places: Sequence[int]
    origin: int | None
    called: bool
    column: int


def lanes(descent: Descent) -> list[Lane]:
    """The entries as lanes. Of several children of a checkpoint the first one stays in its parent's lane."""
    chains: list[list[int]] = []
    chain_of: dict[int, list[int]] = {}
    for place, parent in enumerate(descent.parents):
        chain = None if parent is None or descent.is_refused(place) else chain_of[parent]
        if chain is None or chain[-1] != parent:
            chain = []
            chains.append(chain)
        chain.append(place)
        chain_of[place] = chain
    found: list[Lane] = []
    taken: list[int] = []  # by column: the last row that is
    for chain in chains:
        origin = descent.origins[chain[0]]
        top = chain[0] if origin is None else origin
        column = next((i for i, row in enumerate(taken) if row <= top), len(taken))
        taken[column : column + 1] = [chain[-1]]
        found.append(Lane(chain, origin, origin is not None and origin != descent.parents[chain[0]], column))
    return found


def outline(descent: Descent) -> Iterator[tuple[str, LogEntry | str]]:
    """The tree as lines: what is drawn before each, and the entry, or the name of the subgraph that begins there.

    A line of descent stays on one level: only forks and subgraphs go deeper.
    """
    below: dict[int | None, list[int]] = {}
    for place, parent in enumerate(descent.parents):
        below.setdefault(parent, []).append(place)
    roots: dict[str, list[int]] = {}
    for place in below.get(None, ()):
        roots.setdefault(descent.entries[place].agent_id, []).append(place)
    subgraphs = [namespace for namespace in roots if namespace]
    yield from _levels(descent, below, roots.get("", []), "", bool(subgraphs))
    for namespace in subgraphs:
        more = namespace != subgraphs[-1]
        yield ("├── " if more else "└── "), f"subgraph {legible.short(namespace)}"
        yield from _levels(descent, below, roots[namespace], "│   " if more else "    ", False)


def _levels(
    descent: Descent, below: dict[int | None, list[int]], first: Sequence[int], before: str, more: bool
) -> Iterator[tuple[str, LogEntry]]:
    """Lines of one namespace, without recursion: a thread may be forked more often than Python likes to recurse."""
    waiting = [(place, before, more or place != first[-1], False) for place in reversed(first)]
    while waiting:
        place, before, more, is_branch = waiting.pop()
        children = below.get(place, [])
        going_on = [child for child in children if not descent.is_refused(child)]
        straight = len(going_on) == 1 and not is_branch
        yield before + ("├── " if more or straight else "└── "), descent.entries[place]
        if straight:  # what was refused here is no branch that goes on
            waiting.append((going_on[0], before, more, False))
            children = [child for child in children if descent.is_refused(child)]
        inner = before + ("│   " if more or straight else "    ")
        waiting += [(child, inner, child != children[-1], len(going_on) > 1) for child in reversed(children)]
