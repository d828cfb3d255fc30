"""Whether samples are flat. What savers remember is bounded, so at first it grows: the first third of a soak warms up.

Of memory, and of what the garbage collector counts, the median of the last third must not be more than a small part
above that of the third before it. Descriptors, threads and tasks must not exceed, in the last third, the most that
there were in the third before it. Pools of threads and of connections must stay within their limits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import linear_regression, median

from benchmarks.soak.samples import Sample

COUNTED = ("descriptors", "threads", "tasks")
"""What there are few of, so that one more is one too many."""
MEASURED = {"memory": 0.03, "objects": 0.03, "ledger_objects": 0.05, "remembered": 0.05}
"""What varies with the load of the moment, and by how much of itself it may be higher."""
FEWEST = 9
"""Samples that a verdict needs."""


@dataclass(frozen=True)
class Finding:
    """One figure: before and after, and whether it stays where it is."""

    name: str
    before: float
    after: float
    flat: bool
    slope: float
    """By how much it rises in an hour, as a line through both thirds has it."""


def verdict(samples: Sequence[Sample], limits: Mapping[str, int]) -> list[Finding]:
    """A finding for each figure; `limits` are those of pools."""
    if len(samples) < FEWEST:
        raise ValueError(f"{len(samples)} samples are too few for a verdict: {FEWEST} are needed")
    third = len(samples) // 3
    before, after = samples[-2 * third : -third], samples[-third:]
    return [_finding(name, before, after, limits) for name in (*COUNTED, *limits, *MEASURED)]


def _finding(name: str, before: Sequence[Sample], after: Sequence[Sample], limits: Mapping[str, int]) -> Finding:
    earlier, later = ([float(getattr(sample, name)) for sample in part] for part in (before, after))
    hours = [sample.seconds / 3600 for sample in (*before, *after)]
    slope = linear_regression(hours, [*earlier, *later]).slope
    if name not in MEASURED:
        return Finding(name, max(earlier), max(later), max(later) <= limits.get(name, max(earlier)), slope)
    low, high = median(earlier), median(later)
    return Finding(name, low, high, high <= low * (1 + MEASURED[name]), slope)
