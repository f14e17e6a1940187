"""What is derived from a case's time: one function a metric, so that a new metric also appears for old runs.

A metric takes the table of cases and a time in seconds for each of them, and returns seconds, bytes per second or
a plain number; ``evaluate`` turns that into the units shown. The same function gives the value at the median and at
both ends of its confidence interval.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from netbench.modes import MODES, Mode
from netbench.registry import Registry

if TYPE_CHECKING:
    import pandas as pd

Better = Literal["higher", "lower", "neither"]


@dataclass(frozen=True)
class Unit:
    """``name`` is what people read, ``suffix`` ends a column's name, ``factor`` is how many make the SI unit.

    ``si`` is the SI unit in words, as it ends a name where units are always SI.
    """

    name: str
    suffix: str
    factor: float
    si: str


TIME = Unit("us", "_us", 1e6, "_seconds")
PER_SECOND = Unit("1/s", "_per_s", 1.0, "_per_second")
PLAIN = Unit("", "", 1.0, "")
PER_GB = Unit("s/GB", "_s_per_gb", 1e9, "_seconds_per_byte")

DEFAULT_RATE = "Gbit/s"

#: What ``--rate`` may say. Always decimal.
RATES: Registry[Unit] = Registry("rate")
RATES.add(Unit(DEFAULT_RATE, "_gbit_s", 8e-9, "_bytes_per_second"))
RATES.add(Unit("GB/s", "_gbyte_s", 1e-9, "_bytes_per_second"))


class Metric:
    """A function of cases and their times, with what a reader has to know to compare two values."""

    def __init__(
        self,
        function: Callable[[pd.DataFrame, pd.Series[float]], pd.Series[float]],
        label: str,
        unit: Unit | None,
        better: Better,
        interval: bool,
    ) -> None:
        self.name: str = function.__name__
        self.__doc__ = function.__doc__
        self._function = function
        self.label = label
        self.better = better
        #: Whether the metric follows from the time alone, so that it has a confidence interval.
        self.interval = interval
        self._unit = unit

    def __call__(self, cases: pd.DataFrame, time_s: pd.Series[float]) -> pd.Series[float]:
        """In SI units: seconds, bytes per second or a plain number."""
        return self._function(cases, time_s).astype("float64")

    def unit(self, rate: str = DEFAULT_RATE) -> Unit:
        """The unit shown, given which of RATES rates are shown in."""
        return self._unit or RATES[rate]

    def column(self, end: str = "", rate: str = DEFAULT_RATE) -> str:
        """The name of its column: of the value, or of the ``low`` or ``high`` end of its interval."""
        return f"{self.name}{'_' if end else ''}{end}{self.unit(rate).suffix}"


METRICS: Registry[Metric] = Registry("metric")


def _metric(
    label: str, unit: Unit | None, better: Better, interval: bool = True
) -> Callable[[Callable[[pd.DataFrame, pd.Series[float]], pd.Series[float]]], Metric]:
    """Registers a function as a metric; a unit of None stands for a rate."""
    return lambda function: METRICS.add(Metric(function, label, unit, better, interval))


def evaluate(cases: pd.DataFrame, rate: str = DEFAULT_RATE) -> pd.DataFrame:
    """The columns of every metric for ``cases``, which have the columns of a run's summaries. Same index."""
    import pandas as pd

    times = {end: cases[f"{name}_ns"] / 1e9 for end, name in (("", "median"), ("low", "low"), ("high", "high"))}
    columns: dict[str, pd.Series[float]] = {}
    for metric in METRICS.values():
        factor = metric.unit(rate).factor
        columns[metric.column(rate=rate)] = metric(cases, times[""]) * factor
        if metric.interval:
            ends = pd.DataFrame({end: metric(cases, times[end]) for end in ("low", "high")})
            # The longest time gives the lowest bandwidth.
            columns[metric.column("low", rate)] = ends.min(axis=1, skipna=False) * factor
            columns[metric.column("high", rate)] = ends.max(axis=1, skipna=False) * factor
    return pd.DataFrame(columns, index=cases.index)


def _by_mode(cases: pd.DataFrame, number: Callable[[Mode, int], Fraction | int]) -> pd.Series[float]:
    """A number of each case's mode and world size."""
    import pandas as pd

    keys = list(zip(cases["mode"], cases["world_size"], strict=True))
    known = {key: float(number(MODES[key[0]], int(key[1]))) for key in set(keys)}
    return pd.Series([known[key] for key in keys], index=cases.index, dtype="float64")


@_metric("time", TIME, "lower")
def time(cases: pd.DataFrame, time_s: pd.Series[float]) -> pd.Series[float]:
    """Median over the iterations of the slowest rank's time: t."""
    return time_s


@_metric("latency", TIME, "lower")
def latency(cases: pd.DataFrame, time_s: pd.Series[float]) -> pd.Series[float]:
    """Time of one operation; for the ping-pong of send_recv, of one way: t/2."""
    return time_s / _by_mode(cases, lambda mode, _: mode.messages)


@_metric("algorithm bandwidth", None, "higher")
def algbw(cases: pd.DataFrame, time_s: pd.Series[float]) -> pd.Series[float]:
    """Message bytes over time: S/t; 2S/t for the ping-pong of send_recv."""
    return cases["message_bytes"] * _by_mode(cases, lambda mode, _: mode.messages) / time_s


@_metric("bus bandwidth", None, "higher")
def busbw(cases: pd.DataFrame, time_s: pd.Series[float]) -> pd.Series[float]:
    """algbw times the mode's bus factor: comparable with the link, whatever N; null where nothing is sent."""
    factor = _by_mode(cases, lambda mode, world_size: mode.bus_factor(world_size))
    return (algbw(cases, time_s) * factor).where(cases["transmit_bytes"] > 0)


@_metric("iterations per second", PER_SECOND, "higher")
def iteration_rate(cases: pd.DataFrame, time_s: pd.Series[float]) -> pd.Series[float]:
    """Operations per second, back to back: 1/t."""
    return 1 / time_s


@_metric("wire bandwidth", None, "higher")
def wirebw(cases: pd.DataFrame, time_s: pd.Series[float]) -> pd.Series[float]:
    """Payload bytes that the busiest rank's sockets really sent in one iteration, over time."""
    return _sent_bytes(cases) / time_s


@_metric("traffic ratio", PLAIN, "lower", interval=False)
def traffic_ratio(cases: pd.DataFrame, time_s: pd.Series[float]) -> pd.Series[float]:
    """Payload bytes that the busiest rank's sockets really sent in one iteration, over T; 1 is ideal."""
    return _sent_bytes(cases) / cases["transmit_bytes"].where(cases["transmit_bytes"] > 0)


@_metric("spread", PLAIN, "lower", interval=False)
def spread(cases: pd.DataFrame, time_s: pd.Series[float]) -> pd.Series[float]:
    """Width of the middle half of the iterations over their median: (p75 - p25)/t."""
    return (cases["p75_ns"] - cases["p25_ns"]) / 1e9 / time_s


@_metric("share of the ceiling", PLAIN, "higher")
def ceiling_share(cases: pd.DataFrame, time_s: pd.Series[float]) -> pd.Series[float]:
    """busbw over the payload that the link can carry; null where the link's rate is not known."""
    return busbw(cases, time_s) * 8 / cases["ceiling_bit_s"]


@_metric("CPU time", PER_GB, "lower", interval=False)
def cpu(cases: pd.DataFrame, time_s: pd.Series[float]) -> pd.Series[float]:
    """CPU time of a rank, all its threads, over the bytes T that it has to send: mean over ranks and iterations."""
    return cases["cpu_ns"] / 1e9 / cases["transmit_bytes"].where(cases["transmit_bytes"] > 0)


def _sent_bytes(cases: pd.DataFrame) -> pd.Series[float]:
    return cases["wire_sent_bytes"].astype("float64") / cases["iterations"].astype("float64")
