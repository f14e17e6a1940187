"""The ratio of two medians with its interval, a rank test, and the correction for asking it of many cases.

Iterations of one launch have more in common with each other than with those of another: which core a thread got, how
memory lies, what the neighbours did. So launches are a random factor, and where there was one launch, its rounds over
the cases are. The bootstrap draws iterations; what the groups' medians differ by beyond that is a variance of its own,
by which the interval is widened, with Student's t for how little a few groups tell of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from netbench.iterations import Iterations
from netbench.statistics import Estimate, median_interval

Floats = NDArray[np.float64]

_DRAWS = 2000
_CONFIDENCE = 0.95

#: Samples drawn at once, so that memory stays bounded.
_AT_ONCE = 2_000_000


@dataclass(frozen=True)
class Blocks:
    """Times of a case in ns, in groups that were taken apart from each other; ``unit`` names what a group is."""

    groups: tuple[Floats, ...]
    unit: str

    @classmethod
    def of(cls, iterations: Iterations) -> Blocks:
        """Of a case's headline times: by launch where there are several, else by round."""
        groups = tuple(np.asarray(group, float) for group in iterations.blocks())
        return cls(groups, "launch" if len(iterations.launches()) > 1 else "round")

    @property
    def times_ns(self) -> Floats:
        return np.concatenate(self.groups)

    @property
    def median_ns(self) -> float:
        return float(np.median(self.times_ns))

    def __str__(self) -> str:
        """``3 launches``."""
        several = {"launch": "launches", "round": "rounds"}[self.unit]
        return f"{len(self.groups)} {several if len(self.groups) > 1 else self.unit}"

    def excess(self) -> float:
        """Variance of the log median that comes from the groups: theirs beyond what their own iterations explain."""
        groups = [group for group in self.groups if len(group) > 1]
        if len(groups) < 2:
            return 0.0
        random = np.random.default_rng(0)
        within = float(np.mean([_log_medians(group, random).var() for group in groups]))
        between = float(np.var([np.log(np.median(group)) for group in groups], ddof=1))
        return max(0.0, between - within) / len(groups)


def _log_medians(times_ns: Floats, random: np.random.Generator) -> Floats:
    """Logarithms of the medians of ``_DRAWS`` samples of as many, drawn anew.

    Their distances from the middle are those of the median from what it estimates: drawing n of n with replacement
    varies less than the population does, by (n - 1)/n, which is mended.
    """
    count = len(times_ns)
    drawn = []
    for start in range(0, _DRAWS, step := max(1, _AT_ONCE // count)):
        places = random.integers(count, size=(min(step, _DRAWS - start), count))
        drawn.append(np.median(times_ns[places], axis=1))
    middle = np.log(np.median(times_ns))
    logs: Floats = middle + (np.log(np.concatenate(drawn)) - middle) * np.sqrt(count / (count - 1))
    return logs


def ratio(base: Blocks, other: Blocks) -> Estimate:
    """Median time of ``other`` over that of ``base``, with its 95 % interval; none below 6 iterations."""
    value = other.median_ns / base.median_ns
    sides = (base, other)
    if any(median_interval(len(side.times_ns)) is None for side in sides):
        return Estimate(value, None, None)
    from scipy.stats import norm, t

    random = np.random.default_rng(0)  # the same samples give the same interval
    before, after = (_log_medians(side.times_ns, random) for side in sides)
    low, high = np.quantile(after - before, [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2]) - np.log(value)
    drawn, excesses = float(before.var() + after.var()), [side.excess() for side in sides]
    whole = drawn + sum(excesses)
    wider = np.sqrt(whole / drawn) if drawn else 1.0
    # How many freedoms the sum of the variances has, by Welch and Satterthwaite.
    pieces = [(logs.var(), len(side.times_ns)) for logs, side in zip((before, after), sides, strict=True)]
    pieces += [(excess, len(side.groups)) for excess, side in zip(excesses, sides, strict=True) if excess]
    weight = sum(variance**2 / (count - 1) for variance, count in pieces)
    freedom = whole**2 / weight if weight else np.inf
    wider *= t.ppf((1 + _CONFIDENCE) / 2, freedom) / norm.ppf((1 + _CONFIDENCE) / 2)
    return Estimate(value, float(value * np.exp(low * wider)), float(value * np.exp(high * wider)))


def rank_test(base: Blocks, other: Blocks) -> float:
    """The chance of ranks as far apart as these, or farther, if both were the same (Mann-Whitney, two-sided)."""
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(base.times_ns, other.times_ns).pvalue)


def holm(chances: Sequence[float]) -> list[float]:
    """Adjusted so that any at all is below 5 % by accident in no more than 5 % of comparisons (Holm 1979)."""
    order = np.argsort(chances, kind="stable")
    count = len(order)
    scaled = np.asarray(chances)[order] * (count - np.arange(count))
    adjusted = np.empty(count)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(scaled))
    return [float(one) for one in adjusted]
