"""The ratio of two medians with its interval, a rank test, and the correction for asking it of many cases.

Iterations of one launch have more in common with each other than with those of another: which core a thread got, how
memory lies, what the neighbours did. So a launch is drawn as a whole, then iterations within it (the bootstrap in two
stages of Davison and Hinkley, 1997), and where there was one launch, each of its rounds over the cases. A few of them
tell little of how such groups differ; their interval is widened as Student's t widens that of few samples.
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

    def log_medians(self, random: np.random.Generator) -> Floats:
        """Logarithms of the medians of ``_DRAWS`` samples drawn anew: whole groups, then times within each."""
        sizes = np.array([len(group) for group in self.groups])
        count = len(sizes)
        table = np.zeros((count, sizes.max()))
        for row, group in enumerate(self.groups):
            table[row, : len(group)] = group
        each = -(-int(sizes.sum()) // count)
        drawn = []
        for start in range(0, _DRAWS, step := max(1, _AT_ONCE // (count * each))):
            draws = min(step, _DRAWS - start)
            groups = random.integers(count, size=(draws, count)) if count > 1 else np.zeros((draws, 1), int)
            places = (random.random((draws, count, each)) * sizes[groups][:, :, None]).astype(int)
            drawn.append(np.median(table[groups[:, :, None], places], axis=(1, 2)))
        logs: Floats = np.log(np.concatenate(drawn))
        return logs


def ratio(base: Blocks, other: Blocks) -> Estimate:
    """Median time of ``other`` over that of ``base``, with its 95 % interval; none below 6 iterations."""
    value = other.median_ns / base.median_ns
    if any(median_interval(len(side.times_ns)) is None for side in (base, other)):
        return Estimate(value, None, None)
    from scipy.stats import norm, t

    random = np.random.default_rng(0)  # the same samples give the same interval
    off, variances, freedoms = [], [], []
    for side in (base, other):
        groups = len(side.groups)
        independent = groups if groups > 1 else len(side.times_ns)
        # Drawing n of n with replacement varies less than the population does, by (n - 1)/n.
        off.append((side.log_medians(random) - np.log(side.median_ns)) * np.sqrt(independent / (independent - 1)))
        variances.append(float(off[-1].var()))
        freedoms.append(independent - 1)
    differences = off[1] - off[0]
    low, high = np.quantile(differences, [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
    weight = sum(variance**2 / freedom for variance, freedom in zip(variances, freedoms, strict=True))
    freedom = sum(variances) ** 2 / weight if weight else np.inf  # Welch and Satterthwaite
    wider = t.ppf((1 + _CONFIDENCE) / 2, freedom) / norm.ppf((1 + _CONFIDENCE) / 2)
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
