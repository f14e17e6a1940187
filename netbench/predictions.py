"""What a run says about cases that it does not hold: curves through its cases, and how far to trust them.

Cases that differ by their size alone are a *series*, and each series has a curve (see curves) of the median time
against its bus bytes, which are the bytes that busbw counts, so that 1/slope is a bus bandwidth whatever N.

The 90 % interval of a prediction is not that of the curve but that of one more case. It comes from what would have
happened: a third of the cases of each series is predicted from the others, in turn, and each error is held against the
scatter around it (errors of its neighbours, and the spread of their iterations). How many times that scatter the errors
were is the same scale for quiet and noisy sizes, so all series of the run count together, and the interval reaches as
far as it takes to hold 90 % of cases, with 95 % confidence. Nothing is assumed of the distribution.

Beyond the sizes or world sizes of a run there are no neighbours. There it is asked how wrong such a step would have
been within the run, and the interval grows by as much with each octave.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from netbench.curves import Curve, Floats, fit
from netbench.errors import UsageError
from netbench.model import streams_text
from netbench.modes import MODES
from netbench.units import format_bytes

if TYPE_CHECKING:
    from netbench.summary import Run

COVERAGE = 0.90

#: Fewer sizes than this make no curve that could be wrong.
_LEAST_SIZES = 4

#: How many parts the cases of a series are dealt into, so that each part is predicted from the others.
_FOLDS = 3

#: A neighbour so many octaves off counts 1/e.
_OCTAVES = 3.0

#: No machine repeats itself better than this (relative).
_LEAST_SCATTER = 0.005


@dataclass(frozen=True)
class Prediction:
    """Time in s of one operation of ``tensor_bytes``: the median of a case's iterations, and its 90 % interval.

    ``beyond`` names each way in which the run holds nothing like it; empty where it interpolates. The interval is null
    where the run has no way to tell how wrong such a step is.
    """

    mode: str
    backend: str
    streams: int
    world_size: int
    variant: str
    tensor_bytes: int
    time_s: float
    low_s: float | None
    high_s: float | None
    beyond: tuple[str, ...]


class Series:
    """Cases that differ by their size alone, at least four sizes of them, and the curve through them."""

    #: What the cases have in common.
    KEY = ("mode", "backend", "streams", "world_size", "variant")

    def __init__(self, cases: pd.DataFrame) -> None:
        first = cases.iloc[0]
        self.mode, self.backend, self.variant = str(first["mode"]), str(first["backend"]), str(first["variant"])
        self.streams, self.world_size = int(first["streams"]), int(first["world_size"])
        self.cases = cases.sort_values("tensor_bytes", kind="stable")
        self.bus_ratio = bus_ratio(self.mode, self.world_size)
        self.size = self.cases["tensor_bytes"].to_numpy(float) * self.bus_ratio
        self.time_s = self.cases["median_ns"].to_numpy(float) / 1e9
        self._spread = _spread(self.cases)
        self._fold: NDArray[np.int64] = np.arange(len(self.size)) % _FOLDS

    @property
    def name(self) -> str:
        """``all_gather, gloo, K=1, N=2``."""
        parts = [self.mode, self.backend, f"K={streams_text(self.streams)}", f"N={self.world_size}", self.variant]
        return ", ".join(part for part in parts if part)

    @cached_property
    def curve(self) -> Curve:
        return fit(self.size, self.time_s)

    @cached_property
    def errors(self) -> Floats:
        """Of each case, the logarithm of its time over what the other thirds of the series would have predicted."""
        errors = np.empty(len(self.size))
        for fold in range(_FOLDS):
            held, rest = self._fold == fold, self._fold != fold
            errors[held] = np.log(self.time_s[held] / fit(self.size[rest], self.time_s[rest])(self.size[held]))
        return errors

    def scatter(self, size: float, without: int | None = None) -> float:
        """How far cases of about ``size`` bus bytes lie off, as a logarithm: root mean square, near cases first.

        ``without`` leaves out one of the thirds.
        """
        weights = np.exp(-np.abs(np.log2(self.size / size)) / _OCTAVES)
        squares = self.errors**2 + self._spread**2
        kept = np.ones(len(squares), bool) if without is None else self._fold != without
        return float(np.sqrt(np.average(squares[kept], weights=weights[kept]) + _LEAST_SCATTER**2))

    @cached_property
    def scores(self) -> Floats:
        """Errors in multiples of the scatter around them, of the inner cases, which lie between others."""
        inner = range(1, len(self.size) - 1)
        return np.array([self.errors[one] / self.scatter(self.size[one], self._fold[one]) for one in inner])


@dataclass(frozen=True)
class Step:
    """A step out of a part of the run, to a case that the run holds all the same.

    ``ratio`` is the time of the case of ``tensor_bytes`` over what the part would have predicted, ``octaves`` how far
    out of the part the case lies, and ``scatter`` what lies around it in its series.
    """

    series: Series
    tensor_bytes: int
    ratio: float
    octaves: float
    scatter: float

    @property
    def score(self) -> float:
        """The error in multiples of the scatter, for each octave."""
        return float(abs(np.log(self.ratio)) / self.scatter / self.octaves)


class Predictions:
    """All series of a run. Raises UsageError when it has none."""

    def __init__(self, cases: pd.DataFrame, run_id: str) -> None:
        """``cases`` are a run's summaries, or part of them."""
        self.run_id = run_id
        known = cases[cases["status"] == "ok"]
        groups = [group for _, group in known.groupby(list(Series.KEY), sort=False)]
        self.series = [Series(group) for group in groups if group["tensor_bytes"].nunique() >= _LEAST_SIZES]
        if not self.series:
            raise UsageError(
                f"{run_id}: has no series to fit, which takes cases that differ by their size alone, "
                f"at least {_LEAST_SIZES} sizes of them that are ok"
            )

    @classmethod
    def of(cls, run: Run) -> Predictions:
        return cls(run.summaries(), run.id)

    def predict(
        self, mode: str, world_size: int, tensor_bytes: int, backend: str | None = None, streams: int | None = None
    ) -> list[Prediction]:
        """For each backend, stream count and variant that the run has of ``mode``. Raises UsageError if it has none."""
        found = [
            self._predicted(group, world_size, tensor_bytes)
            for group in self._groups
            if group[0].mode == mode and backend in (None, group[0].backend) and streams in (None, group[0].streams)
        ]
        if not found:
            wanted = [
                mode,
                *([backend] if backend else []),
                *([] if streams is None else [f"K={streams_text(streams)}"]),
            ]
            known = dict.fromkeys(f"{one.mode}, {one.backend}, K={streams_text(one.streams)}" for one in self.series)
            raise UsageError(f"{self.run_id}: has no series of {', '.join(wanted)}; it has {'; '.join(known)}")
        return found

    @cached_property
    def reach(self) -> float:
        """How many times the scatter around it a case is off at most, in 90 % of cases."""
        return _bound(np.concatenate([series.scores for series in self.series]))

    @cached_property
    def size_steps(self) -> list[Step]:
        """How wrong each series would have been about its largest size, had it ended at a quarter of that."""
        return [step for series in self.series if (step := _size_step(series))]

    @cached_property
    def world_steps(self) -> list[Step]:
        """How wrong the run would have been about its largest world sizes, had it not had them."""
        return [step for group in self._groups if len(group) > 1 for step in _world_steps(group)]

    @cached_property
    def _groups(self) -> list[list[Series]]:
        """Series that differ by their world size alone, in order of it."""
        groups: dict[tuple[str, str, int, str], list[Series]] = {}
        for series in self.series:
            groups.setdefault((series.mode, series.backend, series.streams, series.variant), []).append(series)
        return [sorted(group, key=lambda series: series.world_size) for group in groups.values()]

    def _predicted(self, group: Sequence[Series], world_size: int, tensor_bytes: int) -> Prediction:
        size = tensor_bytes * bus_ratio(group[0].mode, world_size)
        time_s, nearest = _across(group, world_size, size)
        reach: float | None = self.reach
        beyond = []
        if octaves := _octaves_outside(size, nearest.size):
            which, edge = ("largest", nearest.size[-1]) if size > nearest.size[-1] else ("smallest", nearest.size[0])
            measured = format_bytes(round(edge / nearest.bus_ratio))
            beyond.append(
                f"{size / edge:.3g} times the bytes of the {which} size of N={nearest.world_size}, {measured} per rank"
            )
            reach = _further(reach, octaves, self.size_steps)
        known = [series.world_size for series in group]
        if world_size not in known:
            where = "above" if world_size > known[-1] else "below" if world_size < known[0] else "between"
            beyond.append(f"N={world_size} is {where} the world sizes measured, {', '.join(map(str, known))}")
            reach = _further(reach, abs(float(np.log2(world_size / nearest.world_size))), self.world_steps)
        off = None if reach is None else float(np.exp(reach * nearest.scatter(size)))
        return Prediction(
            mode=nearest.mode,
            backend=nearest.backend,
            streams=nearest.streams,
            world_size=world_size,
            variant=nearest.variant,
            tensor_bytes=tensor_bytes,
            time_s=time_s,
            low_s=None if off is None else time_s / off,
            high_s=None if off is None else time_s * off,
            beyond=tuple(beyond),
        )


def bus_ratio(mode: str, world_size: int) -> float:
    """Bus bytes of one tensor byte: those that busbw counts; where nothing is sent, those that are copied."""
    formulas = MODES[mode]
    message = formulas.messages * formulas.message_ratio(world_size)
    return float(message * (formulas.bus_factor(world_size) or 1))


def _spread(cases: pd.DataFrame) -> Floats:
    """How far a case's iterations lie around their median, as a logarithm; 0 where nobody tells."""
    median = cases["median_ns"].to_numpy(float)
    quartiles = [np.log(cases[name].to_numpy(float) / median) for name in ("p25_ns", "p75_ns")]
    spread: Floats = np.nan_to_num(np.sqrt(np.mean(np.square(quartiles), axis=0)))
    return spread


def _across(group: Sequence[Series], world_size: int, size: float) -> tuple[float, Series]:
    """The time in s at a world size that may not be among the ``group``'s, and the series it was made from.

    Above the largest, the latency goes on growing by its steps and the bandwidth stays; two ranks do not help to tell
    how it grows where there are others, since they share one connection. Between two world sizes the curves are mixed.
    """
    nearest = min(group, key=lambda series: abs(np.log(series.world_size / world_size)))
    below = [series for series in group if series.world_size < world_size]
    above = [series for series in group if series.world_size > world_size]
    if nearest.world_size == world_size or not below:
        return float(nearest.curve(size)), nearest
    if above:
        one, two = below[-1], above[0]
        share = np.log(world_size / one.world_size) / np.log(two.world_size / one.world_size)
        return float(one.curve(size) ** (1 - share) * two.curve(size) ** share), nearest
    first = next(series for series in below if series.world_size > 2 or len(below) < 3)
    steps = nearest.world_size - first.world_size
    growth = (nearest.curve.alpha_s.value - first.curve.alpha_s.value) / steps if steps else 0.0
    return float(nearest.curve(size)) + max(0.0, growth) * (world_size - nearest.world_size), nearest


def _size_step(series: Series) -> Step | None:
    """To the largest size, from those up to a quarter of it."""
    small = series.size <= series.size[-1] / 4
    if len(np.unique(series.size[small])) < _LEAST_SIZES:
        return None
    last = series.size[-1]
    ratio = float(series.time_s[-1] / fit(series.size[small], series.time_s[small])(last))
    octaves = float(np.log2(last / series.size[small][-1]))
    return Step(series, int(series.cases["tensor_bytes"].iloc[-1]), ratio, octaves, series.scatter(last))


def _world_steps(group: Sequence[Series]) -> Iterator[Step]:
    """To each case of the largest world size, from the smaller ones."""
    *smaller, largest = group
    for tensor_bytes, size, time_s in zip(largest.cases["tensor_bytes"], largest.size, largest.time_s, strict=True):
        predicted, base = _across(smaller, largest.world_size, size)
        if not _octaves_outside(size, base.size):
            octaves = float(np.log2(largest.world_size / base.world_size))
            yield Step(largest, int(tensor_bytes), float(time_s / predicted), octaves, largest.scatter(size))


def _octaves_outside(size: float, sizes: Floats) -> float:
    return float(max(0.0, np.log2(size / sizes[-1]), np.log2(sizes[0] / size)))


def _further(reach: float | None, octaves: float, steps: Sequence[Step]) -> float | None:
    """How many times the scatter to reach, so many octaves out; null where the run has no such step to learn from."""
    if reach is None or not steps:
        return None
    return reach + octaves * _bound(np.array([step.score for step in steps]))


def _bound(errors: Floats) -> float:
    """What 90 % of ``errors`` stay within, with 95 % confidence; the largest where there are too few to say it."""
    from scipy.stats import binom

    ordered = np.sort(np.abs(errors))
    place = int(binom.ppf(0.95, len(ordered), COVERAGE))
    return float(ordered[min(place, len(ordered) - 1)])
