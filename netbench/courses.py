"""The course of one iteration: how fast a rank's interface sent and received over its time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from netbench.summary import Run

#: A direction is busy while it carries more than this part of the most that any direction carries in the iteration.
_BUSY = 0.3

#: An iteration is looked at in so many windows, unless the counters were read less often.
_WINDOWS = 60

#: Shown before the start and after the end, as a part of the iteration.
_MARGIN = 0.02


@dataclass(frozen=True)
class Course:
    """One rank's interface during one iteration that begins at 0 and takes ``duration_s`` until the last rank is done.

    ``at_s`` are the middles of equal windows, a little more than the iteration; the rates in bit/s count headers too.
    """

    rank: int
    iteration: int
    duration_s: float
    at_s: NDArray[np.float64]
    sent_bit_s: NDArray[np.float64]
    received_bit_s: NDArray[np.float64]

    @property
    def phases(self) -> dict[str, float]:
        """Parts of the iteration's time in which the rank only sends, does both, or only receives."""
        during = (self.at_s > 0) & (self.at_s < self.duration_s)
        line = _BUSY * max(self.sent_bit_s.max(), self.received_bit_s.max())
        sends, receives = self.sent_bit_s[during] > line, self.received_bit_s[during] > line
        found = {"sends only": sends & ~receives, "both": sends & receives, "receives only": receives & ~sends}
        return {phase: float(when.mean()) for phase, when in found.items()}


def courses(run: Run, case_id: str) -> list[Course]:
    """Each rank's course of the iteration whose time is nearest to the median; empty for a case without a timeline."""
    readings = run.timeline(case_id)
    samples = run.samples()
    samples = samples[(samples["case_id"] == case_id) & (samples["phase"] == "timed")]
    if readings.empty or samples.empty:
        return []
    times = run.times(case_id)
    typical = int(np.argmin(np.abs(times - np.median(times))))
    iteration = int(np.sort(samples["iteration"].unique())[typical])
    found = []
    for rank, own in readings.groupby("rank", sort=True):
        sample = samples[(samples["iteration"] == iteration) & (samples["rank"] == rank)]
        if len(sample) == 1 and len(own) > 2:
            start_ns = int(sample["start_ns"].iloc[0])
            found.append(_course(int(own["rank"].iloc[0]), iteration, start_ns, float(times[typical]) / 1e9, own))
    return found


def _course(rank: int, iteration: int, start_ns: int, duration_s: float, readings: pd.DataFrame) -> Course:
    at_s = (readings["at_ns"].to_numpy() - start_ns) / 1e9
    window_s = max(duration_s / _WINDOWS, 2 * float(np.median(np.diff(at_s))))
    edges = np.arange(-_MARGIN * duration_s, (1 + _MARGIN) * duration_s + window_s, window_s)
    rates = [
        np.diff(np.interp(edges, at_s, readings[name].to_numpy())) * 8 / window_s
        for name in ("sent_bytes", "received_bytes")
    ]
    return Course(rank, iteration, duration_s, (edges[1:] + edges[:-1]) / 2, rates[0], rates[1])
