"""Times of iterations, and what a set of them says.

Everything here is about time; bandwidth is derived from these numbers afterwards, never averaged itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import ceil
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Nanoseconds = NDArray[np.int64]


def headline_ns(duration_ns: Nanoseconds) -> Nanoseconds:
    """The time of each iteration: that of its slowest rank. ``duration_ns`` has shape (ranks, iterations).

    A collective is over when its last rank is done. Rank 0 alone reads 15 to 43 % too fast on a busy machine, and a
    mean over ranks hides the one that all of them wait for.
    """
    slowest: Nanoseconds = duration_ns.max(axis=0)
    return slowest


class Statistics(NamedTuple):
    """What the headline times of one case say; null where there are too few of them to say it."""

    iterations: int
    median_ns: float
    low_ns: float | None  # the 95 % confidence interval of the median
    high_ns: float | None
    mean_ns: float
    min_ns: float
    p25_ns: float
    p75_ns: float
    p95_ns: float | None
    p99_ns: float | None
    max_ns: float


def describe(times_ns: Nanoseconds) -> Statistics:
    """``times_ns`` are headline times, at least one."""
    ordered = np.sort(times_ns)
    count = len(ordered)
    interval = median_interval(count)
    p25, median, p75, p95, p99 = (quantile(ordered, share) for share in (0.25, 0.5, 0.75, 0.95, 0.99))
    return Statistics(
        iterations=count,
        median_ns=median,
        low_ns=float(ordered[interval[0]]) if interval else None,
        high_ns=float(ordered[interval[1]]) if interval else None,
        mean_ns=float(ordered.mean()),
        min_ns=float(ordered[0]),
        p25_ns=p25,
        p75_ns=p75,
        p95_ns=p95 if count >= samples_for(0.95) else None,
        p99_ns=p99 if count >= samples_for(0.99) else None,
        max_ns=float(ordered[-1]),
    )


def quantile(ordered: NDArray[Any], share: float) -> float:
    """numpy's own, linear between two samples, of samples that are sorted already: a tenth of its cost."""
    place = share * (len(ordered) - 1)
    below = int(place)
    low = float(ordered[below])
    return low if below == place else low + (place - below) * (float(ordered[below + 1]) - low)


def median(values: NDArray[Any]) -> float:
    """numpy's own, of numbers in any order without a NaN: a third of its cost where there are hundreds."""
    half = len(values) // 2
    ordered = np.sort(values)
    return float(ordered[half]) if len(values) % 2 else (float(ordered[half - 1]) + float(ordered[half])) / 2


@cache
def median_interval(count: int, confidence: float = 0.95) -> tuple[int, int] | None:
    """Which two of ``count`` ordered samples (from 0) enclose the median with ``confidence``; None if none do.

    Each sample lies below the median with probability 1/2, so the number that do is binomial, whatever the
    distribution of the samples. Below 6 samples even the extremes do not give 95 %.
    """
    # Imported on first use, and not scipy.stats: that costs more than all else that a small run needs.
    from scipy.special import bdtr, bdtrik

    tail = (1 - confidence) / 2
    rank = ceil(bdtrik(tail, count, 0.5))
    if rank > 0 and bdtr(rank - 1, count, 0.5) >= tail:  # rounding has brought it one too high
        rank -= 1
    return (rank - 1, count - rank) if rank >= 1 else None


@cache
def samples_for(quantile: float, confidence: float = 0.95) -> int:
    """How many samples it takes until the largest exceeds the quantile: 59 for p95, 299 for p99."""
    count = 1
    while quantile**count > 1 - confidence:
        count += 1
    return count


class Estimate(NamedTuple):
    """A number made from several medians, with its 95 % interval; null where there are too few iterations for one."""

    value: float
    low: float | None
    high: float | None

    def is_above(self, line: float) -> bool:
        """Whether all of the interval is."""
        return self.low is not None and self.low > line

    def is_below(self, line: float) -> bool:
        return self.high is not None and self.high < line


#: How often the samples are drawn anew for an interval.
_DRAWS = 2000

#: Below this the median itself has no interval either.
_LEAST_SAMPLES = 6

#: From here on medians are drawn instead of the samples that they are medians of, which takes a hundredth of the time.
_MANY_SAMPLES = 100


def estimate(function: Callable[..., Any], *times: NDArray[Any]) -> Estimate:
    """``function`` of the medians of several sets of times, such as their ratio, with its interval by bootstrap.

    ``function`` takes and returns numbers or arrays of them. The draws are always the same, so is the interval.
    """
    value = float(function(*(float(np.median(one)) for one in times)))
    if min(map(len, times)) < _LEAST_SAMPLES:
        return Estimate(value, None, None)
    if min(map(len, times)) >= _MANY_SAMPLES:
        random = np.random.default_rng(0)
        low, high = np.quantile(function(*(_drawn_medians(one, random) for one in times)), (0.025, 0.975)).tolist()
        return Estimate(value, low, high)
    from scipy.stats import bootstrap

    interval = bootstrap(
        times,
        lambda *drawn, axis: function(*(np.median(one, axis=axis) for one in drawn)),
        n_resamples=_DRAWS,
        method="percentile",
        vectorized=True,
        random_state=np.random.default_rng(0),
    ).confidence_interval
    return Estimate(value, float(interval.low), float(interval.high))


def _drawn_medians(times: NDArray[Any], random: np.random.Generator) -> NDArray[Any]:
    """Medians of samples drawn anew from ``times``.

    Drawing n of n with replacement is drawing n uniform places in the ordered samples, and the median of n uniform
    numbers has a Beta distribution.
    """
    ordered, half = np.sort(times), (len(times) + 1) / 2
    places = random.beta(half, half, _DRAWS) * len(times)
    medians: NDArray[Any] = ordered[places.astype(np.int64)]
    return medians
