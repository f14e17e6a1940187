"""What the iterations of a case say beyond the distribution of their times: who was slow, when, and at what cost.

All of it becomes columns of a summary, so that a verdict only has to set a number against a threshold, and anyone can
see the number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from netbench.statistics import Nanoseconds, headline_ns, median, quantile

#: Columns of the samples that are read for it, where the record has them; the first records have neither the launch,
#: nor the round, nor the switches.
COLUMNS = (
    "rank",
    "iteration",
    "duration_ns",
    "start_ns",
    "launch",
    "round",
    "cpu_user_ns",
    "cpu_system_ns",
    "minor_faults",
    "voluntary_switches",
    "involuntary_switches",
)

#: With fewer iterations than this nothing is said of their order or shape.
_LEAST = 12

#: The test of a trend takes longer than all else that is read from a case.
_SMALL_TREND = 0.05


@dataclass(frozen=True)
class Iterations:
    """A case's timed iterations, each array of shape (ranks, iterations) in order of rank and iteration.

    ``start_ns`` is on rank 0's clock. ``launch`` and ``round`` have shape (iterations,).
    """

    ranks: tuple[int, ...]
    duration_ns: Nanoseconds
    start_ns: Nanoseconds
    launch: NDArray[np.int64]
    round: NDArray[np.int64]
    #: Of each counter that the record has, by the name of its column.
    counters: Mapping[str, NDArray[np.int64]]

    @classmethod
    def of(cls, columns: Mapping[str, NDArray[np.int64]], offsets_ns: Mapping[int, int]) -> Iterations:
        """From the timed rows of a sample file, in any order; ``offsets_ns`` is to be added to a rank's clock.

        Raises ValueError where a rank lacks an iteration.
        """
        ranks, iteration = columns["rank"], columns["iteration"]
        count = 1 + int(np.count_nonzero(ranks[1:] != ranks[:-1]))
        each = len(ranks) // count
        in_order = len(ranks) == count * each and (np.diff(iteration[:each]) > 0).all()
        if not in_order or (iteration.reshape(count, each) != iteration[:each]).any():  # not as they are written
            order = np.lexsort((iteration, ranks))
            columns = {name: column[order] for name, column in columns.items()}
            count = len(np.unique(ranks))
            if len(ranks) % count:
                raise ValueError(f"{len(ranks)} rows of {count} ranks")
        table = {name: column.reshape(count, -1) for name, column in columns.items()}
        ranks = table["rank"][:, 0]
        if (table["rank"] != ranks[:, None]).any() or (table["iteration"] != table["iteration"][:1]).any():
            raise ValueError("the ranks have not the same iterations")
        offsets = np.array([offsets_ns.get(int(rank), 0) for rank in ranks], np.int64)
        zeros = np.zeros_like(table["duration_ns"])
        return cls(
            ranks=tuple(map(int, ranks)),
            duration_ns=table["duration_ns"],
            start_ns=table.get("start_ns", zeros) + offsets[:, None],
            launch=table.get("launch", zeros)[0],
            round=table.get("round", zeros)[0],
            counters={name: table[name] for name in COLUMNS[6:] if name in table},
        )

    @cached_property
    def times_ns(self) -> Nanoseconds:
        """The headline time of each iteration, that of its slowest rank."""
        return headline_ns(self.duration_ns)

    def blocks(self) -> list[Nanoseconds]:
        """The headline times of each launch or, where there was one, of each round: what varies on its own."""
        launches = self.launches()
        return launches if len(launches) > 1 else self._by(self.round)

    def launches(self) -> list[Nanoseconds]:
        """The headline times of each launch."""
        return self._by(self.launch)

    def _by(self, label: NDArray[np.int64]) -> list[Nanoseconds]:
        if (label == label[0]).all():
            return [self.times_ns]
        return [self.times_ns[label == one] for one in np.unique(label)]


@dataclass(frozen=True)
class Findings:
    """A summary's columns from ``Iterations``; null where there is too little to say it. docs/metrics.md has each."""

    slowest_rank: int | None = None
    slowest_rank_share: float | None = None
    rank_spread: float | None = None
    entry_skew_ns: float | None = None
    launches: int | None = None
    within_launch_spread: float | None = None
    between_launch_spread: float | None = None
    first_ratio: float | None = None
    trend: float | None = None
    trend_p: float | None = None
    modes_apart: float | None = None
    fast_mode_ns: float | None = None
    slow_mode_ns: float | None = None
    slow_mode_share: float | None = None
    cpu_ns: float | None = None
    minor_faults: float | None = None
    voluntary_switches: float | None = None
    involuntary_switches: float | None = None


#: Of Findings, the whole numbers.
WHOLE = ("slowest_rank", "launches")
NAMES = tuple(field.name for field in fields(Findings))


def find(iterations: Iterations) -> Findings:
    """Everything that the iterations of a case say."""
    times_ns, launches = iterations.times_ns, iterations.launches()
    found: dict[str, Any] = dict(_among_ranks(iterations)) | dict(_among_launches(launches))
    if len(times_ns) >= _LEAST:
        found["first_ratio"] = first_ratio(launches)
        found |= trend(times_ns)._asdict()
        found |= two_modes(times_ns)._asdict()
    means = {name: float(counter.mean()) for name, counter in iterations.counters.items()}
    if "cpu_user_ns" in means and "cpu_system_ns" in means:
        found["cpu_ns"] = means.pop("cpu_user_ns") + means.pop("cpu_system_ns")
    found |= {name: value for name, value in means.items() if name in NAMES}
    return Findings(**found)


def _among_ranks(iterations: Iterations) -> Iterator[tuple[str, Any]]:
    duration_ns = iterations.duration_ns
    if len(iterations.ranks) < 2:
        return
    slowest = np.bincount(duration_ns.argmax(axis=0), minlength=len(iterations.ranks))
    yield "slowest_rank", iterations.ranks[int(slowest.argmax())]
    yield "slowest_rank_share", float(slowest.max() / slowest.sum())
    high = np.maximum(duration_ns.max(axis=0), 1)
    yield "rank_spread", median((high - duration_ns.min(axis=0)) / high)
    if iterations.start_ns.any():
        yield "entry_skew_ns", median(np.ptp(iterations.start_ns, axis=0))


def _among_launches(launches: list[Nanoseconds]) -> Iterator[tuple[str, Any]]:
    launches = [np.sort(times) for times in launches]
    medians = np.array([quantile(times, 0.5) for times in launches])
    widths = np.array([quantile(times, 0.75) - quantile(times, 0.25) for times in launches])
    yield "launches", len(launches)
    yield "within_launch_spread", float(np.mean(widths / medians))
    if len(launches) > 1:
        yield "between_launch_spread", float(np.ptp(medians)) / median(medians)


def first_ratio(launches: list[Nanoseconds]) -> float | None:
    """The first timed iteration over the largest of the next ten: median over the launches; null where one is short."""
    if min(map(len, launches)) < 6:
        return None
    return median(np.array([times[0] / times[1:11].max() for times in launches]))


class Trend(NamedTuple):
    """``trend``: the median of the last third of the iterations over that of the first, less 1; ``trend_p``: the chance
    of such a difference, or a larger one, if the order meant nothing (Mann-Whitney); null where it is below 5 %, since
    nobody asks."""

    trend: float
    trend_p: float | None


def trend(times_ns: Nanoseconds) -> Trend:
    from scipy.stats import mannwhitneyu

    third = len(times_ns) // 3
    first, last = times_ns[:third], times_ns[-third:]
    change = median(last) / median(first) - 1
    if abs(change) < _SMALL_TREND:
        return Trend(change, None)
    return Trend(change, float(mannwhitneyu(first, last, method="asymptotic").pvalue))


class Modes(NamedTuple):
    """The times cut in two where that leaves the least variance of their logarithms (Otsu 1979).

    ``modes_apart`` is the distance of the two means over the root mean square of the two standard deviations
    (Ashman's D, 1994). The halves of one bell-shaped heap have 2.6 of it, and of a flat one 3.5.
    """

    modes_apart: float | None
    fast_mode_ns: float | None
    slow_mode_ns: float | None
    slow_mode_share: float | None


def two_modes(times_ns: Nanoseconds) -> Modes:
    ordered = np.sort(times_ns)
    logs = np.log(np.maximum(ordered, 1).astype(float))
    count = len(logs)
    below = np.arange(1, count)
    sums = np.cumsum(logs)[:-1]
    means = sums / below, (logs.sum() - sums) / (count - below)
    between = below * (count - below) * (means[1] - means[0]) ** 2
    cut = int(between.argmax()) + 1
    low, high = logs[:cut], logs[cut:]
    width = float(np.sqrt((low.var() + high.var()) / 2))
    distance = float(high.mean() - low.mean())
    if ordered[0] == ordered[-1]:
        return Modes(None, None, None, None)
    apart = distance / max(width, 1e-3)  # a clock of nanoseconds makes heaps without any width
    return Modes(apart, quantile(ordered[:cut], 0.5), quantile(ordered[cut:], 0.5), (count - cut) / count)
