"""How many iterations a case gets: an exact number, or as many as it takes until its median is known well enough.

Rank 0 decides, from the slowest-rank times, and tells the others; so ranks never disagree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from netbench.statistics import Nanoseconds, median_interval

#: With fewer timed iterations than this nothing is said about a case; more than the cap tells nothing new.
FLOOR, CAP = 10, 2000


class Decision(NamedTuple):
    """How many iterations follow; 0 ends the visit, and ``reason`` says why: precision, budget, iterations or cap."""

    more: int
    reason: str


@dataclass(frozen=True)
class StopRule:
    """For one case in one launch, which visits it in ``rounds`` rounds.

    ``iterations`` makes the number exact. Otherwise a visit ends when the 95 % confidence interval of the median over
    all iterations so far lies within ``precision`` (a share) of it, or when the visit's share of ``budget_s`` seconds
    is spent; but not before its share of FLOOR, so that every round has a say.
    """

    iterations: int | None
    rounds: int
    budget_s: float
    precision: float

    @property
    def is_exact(self) -> bool:
        return self.iterations is not None

    def first(self, round: int) -> int:
        """Iterations at the beginning of a visit: all of them where the number is exact."""
        if self.iterations is not None:
            return self.iterations // self.rounds + (round < self.iterations % self.rounds)
        return math.ceil(FLOOR / self.rounds)

    def next(self, times_ns: Nanoseconds, visit_count: int, visit_s: float) -> Decision:
        """What follows after ``visit_count`` iterations in ``visit_s`` seconds; ``times_ns`` are all of the case's."""
        if self.is_exact:
            return Decision(0, "iterations")
        if is_precise(times_ns, self.precision):
            return Decision(0, "precision")
        if len(times_ns) >= CAP:
            return Decision(0, "cap")
        left_s = self.budget_s / self.rounds - visit_s
        affordable = int(left_s / (visit_s / visit_count))
        if affordable < 1:
            return Decision(0, "budget")
        # Half as many again as there are: an interval shrinks with the root of its samples, so smaller steps only ask.
        return Decision(min(max(2, visit_count // 2), affordable, CAP - len(times_ns)), "")


def is_precise(times_ns: Nanoseconds, precision: float) -> bool:
    """Whether both ends of the median's 95 % confidence interval are within ``precision`` (a share) of it."""
    interval = median_interval(len(times_ns))
    if interval is None:
        return False
    ordered = np.sort(times_ns)
    median = float(np.median(ordered))
    reach = max(median - ordered[interval[0]], ordered[interval[1]] - median)
    return bool(reach <= precision * median)
