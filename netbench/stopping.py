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
        reach = reach_of(times_ns)
        if reach is not None and reach <= self.precision:
            return Decision(0, "precision")
        if len(times_ns) >= CAP:
            return Decision(0, "cap")
        left_s = self.budget_s / self.rounds - visit_s
        affordable = int(left_s / (visit_s / visit_count))
        if affordable < 1:
            return Decision(0, "budget")
        return Decision(min(self._step(len(times_ns), reach, visit_count), affordable, CAP - len(times_ns)), "")

    def _step(self, count: int, reach: float | None, visit_count: int) -> int:
        """As many as should do: an interval shrinks with the root of its samples. To ask costs several messages, so
        half as many again as the visit has at least; to overshoot costs time, so twice as many as there are at most."""
        wanted = 0.0 if reach is None else count * ((reach / self.precision) ** 2 - 1)
        return int(min(max(wanted, visit_count / 2, 2), max(2 * count, 4)))


def reach_of(times_ns: Nanoseconds) -> float | None:
    """How far the farther end of the median's 95 % confidence interval is from it, as a share of it.

    None where there are too few times for an interval.
    """
    interval = median_interval(len(times_ns))
    if interval is None:
        return None
    ordered = np.sort(times_ns)
    median = float(np.median(ordered))
    return float(max(median - ordered[interval[0]], ordered[interval[1]] - median)) / median


#: Why a visit has no more iterations; a decision goes round as its reason's place in here.
REASONS = ("", "precision", "budget", "cap", "iterations")
