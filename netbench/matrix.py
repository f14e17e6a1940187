"""Every pair of hosts of a run: latency by its smallest message, bandwidth by its largest, and the pairs that are slow.

What is usual is the median over the ranks of each one's own median pair. A plain median over all pairs would follow a
single slow host among three or four, which is in two of three pairs, or in half of six.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from statistics import median_high, median_low
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from netbench.errors import UsageError
from netbench.foreign import printable
from netbench.metrics import METRICS
from netbench.model import Point, pair_ranks, streams_text
from netbench.units import about_bytes, about_rate, about_seconds, three_digits

if TYPE_CHECKING:
    from netbench.listing import Listing, Row
    from netbench.model import Case
    from netbench.summary import Run

#: A pair is slow when it is surely worse than what is usual by more than this share.
SLOW_MARGIN = 0.2

#: With fewer pairs there is nothing that could be called usual.
_LEAST_PAIRS = 3

#: More slow pairs than this are counted, not listed.
_MOST_LISTED = 10

#: Verdicts which say that others were at work.
_DOUBTS = ("noisy_cpu", "foreign_traffic", "oversubscribed")


@dataclass(frozen=True)
class Reading:
    """One number of one pair, in s or bit/s, with its 95 % interval, null where there are too few iterations."""

    case_id: str
    value: float
    low: float | None
    high: float | None
    retransmits: int | None = None
    #: Which verdicts say that others were at work meanwhile, and whether one says that the number is not well known.
    doubts: Sequence[str] = ()
    is_vague: bool = False


@dataclass(frozen=True)
class Pair:
    """Two ranks as they were named in the case, the first first; ``reason`` says why a number is missing."""

    ranks: tuple[int, int]
    readings: dict[str, Reading]
    reason: str = ""


@dataclass(frozen=True)
class Slow:
    """A pair that looks slow; ``off`` is by which share its number lies above or below what is usual."""

    pair: Pair
    off: float
    is_sure: bool


class Kind:
    """What is measured of a pair: ``latency``, of which less is better, or ``bandwidth``."""

    def __init__(self, name: str, metric: str, factor: float, better: str) -> None:
        self.name = name
        self.metric = METRICS[metric]
        self._factor = factor
        self.lower_is_better = better == "lower"

    def shown(self, value: float) -> str:
        return about_seconds(value) if self.lower_is_better else about_rate(value)

    def reading(self, row: Row) -> Reading:
        """Of a row of a run's summaries."""

        def number(end: str = "") -> float | None:
            value = row[self.metric.column(end)]
            return None if value != value else float(value) / self.metric.unit().factor * self._factor

        verdicts = (row["verdicts"] or "").split(", ")
        value, count = number(), row["retransmits"]
        assert value is not None
        return Reading(
            row["case_id"],
            value,
            number("low"),
            number("high"),
            None if count != count or count is None else int(count),
            [name for name in _DOUBTS if name in verdicts],
            "few_samples" in verdicts,
        )

    def scaled(self, value: float, times: float) -> float:
        """What it would be, had everything taken so many times as long."""
        return value * times if self.lower_is_better else value / times

    def median(self, values: Sequence[float]) -> float:
        """Of an even number of them, the better one of the two in the middle."""
        return (median_low if self.lower_is_better else median_high)(values)

    def off(self, value: float, usual: float) -> float:
        """The share by which a value is worse than usual; negative where it is better."""
        return value / usual - 1 if self.lower_is_better else 1 - value / usual

    def best_end(self, reading: Reading) -> float | None:
        """The end of the interval that is nearest to being as usual."""
        return reading.low if self.lower_is_better else reading.high


LATENCY = Kind("latency", "latency", 1, "lower")
BANDWIDTH = Kind("bandwidth", "algbw", 8, "higher")
KINDS = (LATENCY, BANDWIDTH)


@dataclass(frozen=True)
class Matrix:
    """The pairs of a run that differ by nothing but who they are; ``example`` is what they have in common."""

    run: Run
    example: Point
    names: dict[int, str]
    #: The tensor of each kind's cases.
    sizes: dict[str, int]
    pairs: list[Pair]
    margin: float

    @property
    def title(self) -> str:
        one = self.example
        parts = [one.mode, one.backend, f"K={streams_text(one.streams)}", f"N={one.world_size}", one.variant]
        return ", ".join(part for part in parts if part)

    @property
    def case_ids(self) -> list[str]:
        """Of the cases that are in it."""
        return [case.id for case in self.run.manifest.cases if case.pair and _without_pair(case) == self.example]

    @property
    def ranks(self) -> list[int]:
        return sorted({rank for pair in self.pairs for rank in pair.ranks})

    def name(self, rank: int) -> str:
        """What a rank is called: its host, or its number too where several are on one."""
        host = self.names.get(rank, "")
        if host and list(self.names.values()).count(host) == 1:
            return host
        return f"rank {rank}{f' on {host}' if host else ''}"

    def pair_name(self, pair: Pair) -> str:
        return " - ".join(map(self.name, pair.ranks))

    def usual(self, kind: Kind) -> float | None:
        """The median over the ranks of each one's median pair, in s or bit/s; None where there are too few pairs."""
        return self._usual[kind.name]

    @cached_property
    def _usual(self) -> dict[str, float | None]:
        return {kind.name: self._find_usual(kind) for kind in KINDS}

    def _find_usual(self, kind: Kind) -> float | None:
        known = [pair for pair in self.pairs if kind.name in pair.readings]
        if len(known) < _LEAST_PAIRS:
            return None
        own = [[pair.readings[kind.name].value for pair in known if rank in pair.ranks] for rank in self.ranks]
        return kind.median([kind.median(values) for values in own if values])

    def slow(self, kind: Kind) -> list[Slow]:
        """Pairs of which all of the interval, and every round, is worse than usual by more than the margin.

        Where others were at work, the number must also be well known: no verdict ``few_samples``.
        """
        return [one for one in self._worse[kind.name] if one.is_sure]

    def doubtful(self, kind: Kind) -> list[Slow]:
        """Pairs that look slow, and whose interval or rounds leave it open."""
        return [one for one in self._worse[kind.name] if not one.is_sure]

    def count_slow(self) -> int:
        """How many pairs are slow in one way or the other."""
        return len({one.pair.ranks for kind in KINDS for one in self.slow(kind)})

    @cached_property
    def _worse(self) -> dict[str, list[Slow]]:
        return {kind.name: sorted(self._find_worse(kind), key=lambda one: -one.off) for kind in KINDS}

    def _find_worse(self, kind: Kind) -> Iterator[Slow]:
        usual = self.usual(kind)
        for pair in self.pairs:
            reading = pair.readings.get(kind.name)
            if usual is not None and reading is not None and kind.off(reading.value, usual) > self.margin:
                ends = [kind.best_end(reading), *self._of_rounds(kind, reading)]
                is_sure = all(end is not None and kind.off(end, usual) > self.margin for end in ends)
                is_sure = is_sure and not (reading.doubts and reading.is_vague)
                yield Slow(pair, kind.off(reading.value, usual), is_sure)

    def _of_rounds(self, kind: Kind, reading: Reading) -> list[float]:
        """What the pair reads in each round by itself (or launch, where there are several).

        A burst of other work falls into one of them, and the interval takes it for many independent iterations.
        """
        rounds = [float(np.median(times)) for times in self.run.iterations(reading.case_id).blocks()]
        whole = float(np.median(self.run.times(reading.case_id)))
        return [kind.scaled(reading.value, one / whole) for one in rounds]

    def culprits(self, slow: Sequence[Slow]) -> list[str]:
        """Who is in every slow pair, if that tells anything; else those whose every pair is slow."""
        if len(slow) < 2:
            return []  # a cable has two ends
        for known in (self.names, {rank: self.name(rank) for rank in self.ranks}):
            # Several ranks of one host are one suspect; a host that is in all pairs is none.
            among, others = (
                set[str].intersection(*({known.get(rank, "") for rank in pair.ranks} for pair in pairs))
                for pairs in ([one.pair for one in slow], self.pairs)
            )
            if shared := among - others - {""}:
                return [f"{name} is in every slow pair" for name in sorted(shared)]
        pairs = {id(one.pair) for one in slow}
        return [
            f"every pair of {self.name(rank)} is slow"
            for rank in self.ranks
            if all(id(pair) in pairs for pair in self.pairs if rank in pair.ranks)
        ]


def matrices(run: Run, margin: float = SLOW_MARGIN) -> list[Matrix]:
    """A matrix for each mode, backend, stream count, world size and variant that has cases between pairs.

    Raises UsageError when the run has none.
    """
    cases = {case.id: case for case in run.manifest.cases}
    groups: dict[Point, list[dict[str, Any]]] = {}
    for row in run.summaries().to_dict("records"):
        case = cases.get(row["case_id"])
        if case is not None and case.pair:
            groups.setdefault(_without_pair(case), []).append({str(name): value for name, value in row.items()})
    if not groups:
        raise UsageError(
            f"{run.folder.path}: has no cases between pairs; netbench matrix without a run measures them, "
            "and so does netbench sweep --pairs all"
        )
    names = _names(run)
    return [_matrix(run, example, rows, names, margin) for example, rows in groups.items()]


def _without_pair(case: Case) -> Point:
    """What a pair's case has in common with those of other pairs and sizes."""
    axes = {field.name: getattr(case, field.name) for field in fields(Point)}
    return Point(**axes | {"pair": ""})


def _matrix(run: Run, example: Point, rows: list[dict[str, Any]], names: dict[int, str], margin: float) -> Matrix:
    tensors = [int(row["tensor_bytes"]) for row in rows]
    sizes = {LATENCY.name: min(tensors), BANDWIDTH.name: max(tensors)}
    pairs = []
    for pair in dict.fromkeys(row["pair"] for row in rows):
        mine = [row for row in rows if row["pair"] == pair]
        readings = {
            kind.name: kind.reading(row)
            for kind in KINDS
            for row in mine
            if row["tensor_bytes"] == sizes[kind.name] and row["status"] == "ok"
        }
        reasons = dict.fromkeys(f"{row['status']}: {row['reason']}" for row in mine if row["status"] != "ok")
        pairs.append(Pair(pair_ranks(pair), readings, "; ".join(reasons)))
    return Matrix(run, example, names, sizes, pairs, margin)


def _names(run: Run) -> dict[int, str]:
    """The host of each rank."""
    found = {rank: str(host["host"]) for host in run.manifest.environment for rank in host.get("ranks", [])}
    told = run.ranks()[["rank", "host"]].dropna().drop_duplicates("rank")
    return {int(row["rank"]): str(row["host"]) for row in told.to_dict("records")} | found


def write_matrices(found: Sequence[Matrix], listing: Listing, file: TextIO, aside: TextIO) -> None:
    """The pairs of each matrix, and what is found of them: behind the table for people, else ``aside`` of the data."""
    if listing.name == "table":
        for matrix in found:
            print(matrix.title, file=file)
            listing.write(rows(matrix), texts, file)
            print(*lines(matrix), sep="\n", file=file)
        return
    listing.write([row for matrix in found for row in rows(matrix)], texts, file)
    for matrix in found:
        print(matrix.title, *lines(matrix), sep="\n", file=aside)


def rows(matrix: Matrix) -> list[dict[str, Any]]:
    """One row a pair, with all that is known of it."""
    one, run = matrix.example, matrix.run
    slow = {kind.name: {one.pair.ranks for one in matrix.slow(kind)} for kind in KINDS}
    found = []
    for pair in matrix.pairs:
        first, second = pair.ranks
        row: dict[str, Any] = {
            "run_id": run.id,
            "mode": one.mode,
            "backend": one.backend,
            "streams": streams_text(one.streams),
            "world_size": one.world_size,
            "variant": one.variant,
            "rank_a": first,
            "rank_b": second,
            "host_a": matrix.names.get(first),
            "host_b": matrix.names.get(second),
        }
        for kind, suffix, factor in ((LATENCY, "_us", 1e6), (BANDWIDTH, "_gbit_s", 1e-9)):
            reading, usual = pair.readings.get(kind.name), matrix.usual(kind)
            values = (reading.value, reading.low, reading.high) if reading else (None, None, None)
            for end, value in zip(("", "_low", "_high"), values, strict=True):
                row[f"{kind.name}{end}{suffix}"] = None if value is None else value * factor
            row[f"{kind.name}_usual{suffix}"] = None if usual is None else usual * factor
            row[f"{kind.name}_bytes"] = matrix.sizes[kind.name]
        large = pair.readings.get(BANDWIDTH.name)
        row["retransmits"] = large.retransmits if large else None
        row["slow"] = [name for name, ranks in slow.items() if pair.ranks in ranks]
        row["reason"] = pair.reason
        found.append(row)
    return found


def texts(row: Row) -> dict[str, str]:
    """The main numbers of a pair for people."""

    def shown(name: str) -> str:
        return "" if row[name] is None else three_digits(row[name])

    told = {
        "ranks": f"{row['rank_a']}-{row['rank_b']}",
        "host A": row["host_a"] or "",
        "host B": row["host_b"] or "",
        "latency us": shown("latency_us"),
        "from": shown("latency_low_us"),
        "to": shown("latency_high_us"),
        "Gbit/s": shown("bandwidth_gbit_s"),
        "from ": shown("bandwidth_low_gbit_s"),  # two columns of one heading
        "to ": shown("bandwidth_high_gbit_s"),
        "resent": shown("retransmits"),
        "slow": "both" if len(row["slow"]) > 1 else "".join(row["slow"]),
    }
    return told | ({"status": printable(row["reason"])} if row["reason"] else {})


def lines(matrix: Matrix) -> Iterator[str]:
    """What is usual and which pairs are slow, by how much, and who they have in common."""
    for kind in KINDS:
        usual, slow = matrix.usual(kind), matrix.slow(kind)
        known = sum(kind.name in pair.readings for pair in matrix.pairs)
        head = f"{kind.name} at {about_bytes(matrix.sizes[kind.name])}"
        if usual is None:
            count = f"{known} pair{'' if known == 1 else 's'}"
            yield f"{head}: nothing can be said of {count}; it takes {_LEAST_PAIRS} to tell which is slow"
            continue
        way = "above" if kind.lower_is_better else "below"
        yield (
            f"{head}: usual is {kind.shown(usual)}; {len(slow)} of {known} pairs are slow, "
            f"surely more than {matrix.margin:.0%} {way}{':' if slow else ''}"
        )
        for one in slow[:_MOST_LISTED]:
            reading = one.pair.readings[kind.name]
            doubts = f"; doubtful: {', '.join(reading.doubts)}" if reading.doubts else ""
            yield f"  {matrix.pair_name(one.pair)}: {kind.shown(reading.value)}, {one.off:.0%} {way}{doubts}"
        if len(slow) > _MOST_LISTED:
            yield f"  and {len(slow) - _MOST_LISTED} more"
        for text in matrix.culprits(slow):
            yield f"  {text}: look at its cable, its port and its CPU"
        if doubtful := matrix.doubtful(kind):
            listed = ", ".join(matrix.pair_name(one.pair) for one in doubtful[:_MOST_LISTED])
            more = " ..." if len(doubtful) > _MOST_LISTED else ""
            yield f"  look slow, but not surely so; a larger --budget would tell: {listed}{more}"
