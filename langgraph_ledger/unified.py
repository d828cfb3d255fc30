"""What differs between two texts, as `diff -u` writes it, with a bound on the work. Of checkpoints nothing is known
here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import Match, SequenceMatcher
from itertools import takewhile
from operator import eq

CONTEXT_LINES = 2
MOST_WORK = 3_000_000
"""Pairs of lines to look at: about half a second. What `difflib` takes grows with the square of the lines at least."""


def unified(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    """The lines of hunks, each under its `@@`: nothing if there is no difference.

    Large texts that differ in very many places may have lines taken away and added again that both have.
    """
    for group in _Matcher(old, new).get_grouped_opcodes(CONTEXT_LINES):
        (_, old_begin, _, new_begin, _), (_, _, old_end, _, new_end) = group[0], group[-1]
        yield f"@@ -{_span(old_begin, old_end)} +{_span(new_begin, new_end)} @@"
        for what, old_begin, old_end, new_begin, new_end in group:
            if what == "equal":
                yield from (f" {line}" for line in old[old_begin:old_end])
                continue
            yield from (f"-{line}" for line in old[old_begin:old_end])
            yield from (f"+{line}" for line in new[new_begin:new_end])


def _span(begin: int, end: int) -> str:
    count = end - begin
    return f"{begin + 1}" if count == 1 else f"{begin + 1 if count else begin},{count}"


class _Matcher(SequenceMatcher[str]):
    """Looks for no more than common beginnings and ends where it has done as much as it may."""

    b2j: Mapping[str, Sequence[int]]  # where each line is in the new text, less those that are everywhere

    def __init__(self, old: Sequence[str], new: Sequence[str]) -> None:
        super().__init__(None, old, new)
        self.old, self.new, self.left = old, new, MOST_WORK

    def find_longest_match(self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None) -> Match:
        old, new = self.old[alo:ahi], self.new[blo:bhi]
        work = len(old) + sum(len(self.b2j.get(line, ())) for line in old)
        if work <= self.left:
            self.left -= work
            return super().find_longest_match(alo, ahi, blo, bhi)
        if count := _alike(old, new):
            return Match(alo, blo, count)
        count = _alike(old[::-1], new[::-1])
        return Match(alo + len(old) - count, blo + len(new) - count, count)


def _alike(old: Sequence[str], new: Sequence[str]) -> int:
    """How many lines both begin with."""
    return sum(1 for _ in takewhile(bool, map(eq, old, new)))
