"""From a measured run to a tuning table: which schedule and how many streams are fastest, and what that gains.

A choice is what a backend did: plain gloo and split_gloo run Gloo's own schedule on one and on K streams, parallel_gloo
says what it chose. Each is set against plain gloo's one stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from netbench.errors import UsageError
from netbench.model import Case
from netbench.statistics import Estimate, estimate
from netbench.tuning import (
    MOST_CHUNKS,
    MOST_STREAMS,
    SCHEDULES,
    WORTHWHILE,
    Choice,
    Measurement,
    TuningTable,
    build_table,
    fastest,
)
from netbench.units import about_bytes

if TYPE_CHECKING:
    from netbench.summary import Run

_PLAIN = Choice("gloo")


@dataclass(frozen=True)
class Finding:
    """The best choice at one point, and how many times faster it is than plain Gloo on one stream."""

    operation: str
    world_size: int
    tensor_bytes: int
    choice: Choice
    gain: Estimate

    @property
    def point(self) -> tuple[str, int, int]:
        return self.operation, self.world_size, self.tensor_bytes

    @property
    def is_gain(self) -> bool:
        """Whether it is worth having, and its whole interval says that it is there."""
        return self.choice != _PLAIN and self.gain.value >= WORTHWHILE and (self.gain.low or 0) > 1


def measurements(run: Run) -> Iterator[Measurement]:
    """What a run says of choices, one for each at each point, whichever backends made it.

    Cases of other backends, and any that are not as usual, say nothing.
    """
    cases = {case.id: case for case in run.manifest.cases}
    table = run.summaries()
    durations: dict[tuple[str, int, int, Choice], list[int]] = {}
    for case_id in table.loc[table["status"] == "ok", "case_id"]:
        case = cases.get(case_id)
        if case is None:  # samples without a place in the manifest, which somebody else has put there
            continue
        if case.mode in SCHEDULES and case.is_usual and case.world_size > 1 and (choice := _choice(run, case)):
            key = (case.mode, case.world_size, case.tensor_bytes, choice)
            durations.setdefault(key, []).extend(int(time) for time in run.times(case_id))
    for key, times in durations.items():
        yield Measurement(*key, tuple(times))


def _choice(run: Run, case: Case) -> Choice | None:
    facts = run.facts(case.id)
    streams, schedule = facts.get("parts"), facts.get("schedule")
    if not streams or streams > MOST_STREAMS:
        return None
    if case.backend in ("gloo", "split_gloo"):
        return Choice("gloo", streams)
    if case.backend == "parallel_gloo" and schedule in SCHEDULES[case.mode]:
        return Choice(schedule, streams, min(MOST_CHUNKS, facts.get("schedule_chunks") or 1))
    return None


def tune(run: Run) -> tuple[TuningTable, list[Finding]]:
    """The table, and what it gains at each measured point. Raises UsageError when the run has nothing to tune by."""
    found = list(measurements(run))
    if not any(one.choice == _PLAIN for one in found):
        raise UsageError(f"{run.folder.path}: has no case of plain gloo to compare with; netbench tune measures them")
    findings = list(_findings(found))
    # Noise finds a winner everywhere; only a clear one may displace plain Gloo.
    clear = {finding.point for finding in findings if finding.is_gain}
    kept = [one for one in found if one.choice == _PLAIN or one[:3] in clear]
    return build_table(kept, f"{run.network} ({', '.join(run.hosts)})"), findings


def _findings(found: Sequence[Measurement]) -> Iterator[Finding]:
    points: dict[tuple[str, int, int], list[Measurement]] = {}
    for one in found:
        points.setdefault(one[:3], []).append(one)
    for (operation, world_size, tensor_bytes), candidates in points.items():
        times = {one.choice: np.array(one.durations_ns) for one in candidates}
        if _PLAIN in times:
            best = fastest(candidates)
            gain = estimate(lambda plain, tuned: plain / tuned, times[_PLAIN], times[best])
            yield Finding(operation, world_size, tensor_bytes, best, gain)


def lines(findings: Sequence[Finding]) -> Iterator[str]:
    """The findings as text, a line each under a heading, and what to make of them."""
    headings = f"{'operation':<15} {'N':>3} {'tensor':>9}  {'schedule':<9} {'streams':>7} {'chunks':>6}"
    yield f"{headings}  times as fast as plain gloo, 95 % interval"
    for one in findings:
        gain, choice = one.gain, one.choice
        interval = f"[{gain.low:.2f}, {gain.high:.2f}]" if gain.low is not None else "[too few iterations]"
        said = f"{gain.value:.2f} {interval}" if one.is_gain else f"{gain.value:.2f} {interval}, no clear gain"
        yield (
            f"{one.operation:<15} {one.world_size:>3} {about_bytes(one.tensor_bytes):>9}  {choice.schedule:<9} "
            f"{choice.streams:>7} {choice.chunks:>6}  {said}"
        )
    gains = [one for one in findings if one.is_gain]
    if not gains:
        yield "Nothing is gained here: plain Gloo on one stream is as good as anything that was tried."
    elif all(one.choice.streams == 1 for one in gains):
        yield "More streams gain nothing here; what is gained comes from the order of sends and receives."
