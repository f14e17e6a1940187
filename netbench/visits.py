"""What rank 0 has gathered of a case so far: over several rounds, and over several launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from netbench.model import Case
from netbench.record import MEASURED, RunFolder
from netbench.samples import read_partial
from netbench.statistics import Nanoseconds
from netbench.surroundings import Surroundings

_ITERATION, _WARMUP, _LAUNCH, _ROUND, DURATION = (
    MEASURED.index(name) for name in ("iteration", "warmup", "launch", "round", "duration_ns")
)

#: Facts of a rank that are counted over all visits; of the others the last visit's stands.
_SUMMED = (
    "wrong_elements",
    "wire_sent_bytes",
    "wire_received_bytes",
    "retransmits",
    *(field.name for field in fields(Surroundings)),
)


class Visits:
    """The samples of each participating rank, int64 of shape (iterations, len(MEASURED)), and its facts."""

    def __init__(self) -> None:
        self.visits = 0
        self.samples: dict[int, np.ndarray] = {}
        self.ranks: list[dict[str, Any]] = []
        self.times_ns: Nanoseconds = np.empty(0, np.int64)

    @classmethod
    def read(cls, folder: RunFolder, case: Case) -> Visits:
        """What an earlier launch has left on disk, if anything."""
        visits = cls()
        if (partial := read_partial(folder, case)) is not None:
            samples, facts = partial
            visits.samples = dict(samples)
            visits.ranks, visits.visits = facts["ranks"], facts["visits"]
            visits.times_ns = visits.slowest_ns()
        return visits

    def add_times(self, batches: Sequence[np.ndarray]) -> None:
        """Takes a batch's durations of every participating rank into ``times_ns``, the headline times so far."""
        slowest = np.max([batch[:, 0] for batch in batches], axis=0)
        self.times_ns = np.concatenate([self.times_ns, slowest])

    def add(self, launch: int, round: int, gathered: Sequence[np.ndarray], ranks: Sequence[dict[str, Any]]) -> None:
        """Takes a whole visit in. ``gathered`` has an array for each rank of the world, ``ranks`` those taking part."""
        for facts in ranks:
            rank = facts["rank"]
            new = gathered[rank].copy()
            new[:, _LAUNCH], new[:, _ROUND] = launch, round
            before = self.samples.get(rank, np.empty((0, len(MEASURED)), np.int64))
            # Iterations are numbered through within each phase, warm-up and timed.
            for phase in (0, 1):
                mine = new[:, _WARMUP] == phase
                new[mine, _ITERATION] = np.count_nonzero(before[:, _WARMUP] == phase) + np.arange(mine.sum())
            self.samples[rank] = np.concatenate([before, new])
        earlier = {facts["rank"]: facts for facts in self.ranks}
        self.ranks = [_merged(earlier.get(facts["rank"]), facts) for facts in ranks]
        self.visits += 1
        self.times_ns = self.slowest_ns()

    def slowest_ns(self) -> Nanoseconds:
        """The headline time of each timed iteration: that of its slowest rank."""
        timed = [samples[samples[:, _WARMUP] == 0, DURATION] for samples in self.samples.values()]
        slowest: Nanoseconds = np.max(timed, axis=0)
        return slowest


def _merged(earlier: dict[str, Any] | None, latest: dict[str, Any]) -> dict[str, Any]:
    if earlier is None:
        return latest
    merged = dict(latest)
    for name in _SUMMED:
        before, now = earlier.get(name), latest.get(name)
        merged[name] = None if before is None or now is None else before + now
    return merged
