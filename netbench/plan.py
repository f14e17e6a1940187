"""The product of the axes as a value: cases to measure, and skips with their reasons. Nothing is started here."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import combinations, product

from netbench.backends import BACKENDS
from netbench.config import SweepConfig
from netbench.errors import UsageError, did_you_mean
from netbench.lab.spec import LabSpec
from netbench.launch import LAUNCHERS, ranks_per_node
from netbench.model import AUTO, DTYPES, EXACT_RANKS, Case, Point, Skip, whole_elements
from netbench.modes import MODES, sized
from netbench.units import format_bytes

#: More points than this are a mistake: a launch takes tens of milliseconds for each, and planning them takes memory.
_MOST_POINTS = 100_000


@dataclass(frozen=True)
class Plan:
    """Every point of the product, once: either a case or a skip."""

    cases: tuple[Case, ...]
    skips: tuple[Skip, ...]

    @property
    def world_size(self) -> int:
        """Ranks that one launch needs for all cases."""
        return max((case.world_size for case in self.cases), default=0)

    def only(self, pattern: str) -> Plan:
        """The cases and skips whose id is, or matches, ``pattern``. Raises UsageError when there is none."""
        cases = tuple(case for case in self.cases if fnmatchcase(case.id, pattern))
        skips = tuple(skip for skip in self.skips if fnmatchcase(skip.id, pattern))
        if not cases and not skips:
            known = [case.id for case in self.cases] + [skip.id for skip in self.skips]
            raise UsageError(
                f"--only: {pattern!r} matches none of the {len(known)} cases{did_you_mean(pattern, known)}"
            )
        return Plan(cases, skips)

    def and_also(self, other: Plan) -> Plan:
        """This plan and what ``other`` has beside it."""
        cases = {case.id: case for case in (*self.cases, *other.cases)}
        skips = {skip.id: skip for skip in (*self.skips, *other.skips) if skip.id not in cases}
        return Plan(tuple(cases.values()), tuple(skips.values()))

    def without(self, skips: Iterable[Skip]) -> Plan:
        """The plan with some of its cases turned into skips."""
        added = {skip.id: skip for skip in skips}
        return Plan(tuple(case for case in self.cases if case.id not in added), (*self.skips, *added.values()))

    def shuffled(self, seed: int) -> Plan:
        """The cases in a random order fixed by ``seed``, so that drift of the machine does not follow an axis."""
        return replace(self, cases=tuple(random.Random(seed).sample(self.cases, len(self.cases))))


def make_plan(config: SweepConfig) -> Plan:
    """Every point of ``config``'s axes in reading order, as a case or as a skip with its reason.

    Raises UsageError where there are more than anybody could run.
    """
    axes = ("modes", "world_sizes", "backends", "streams", "dtypes", "chunks", "entry_delays", "mallocs", "timelines")
    count = math.prod(len(getattr(config, axis)) for axis in (*axes, "sizes"))
    if count > _MOST_POINTS:
        raise UsageError(f"the axes have {count} points, more than {_MOST_POINTS}; leave out values of some of them")
    lab = LabSpec.parse(config.lab) if config.lab else None
    nodes = LAUNCHERS[config.launcher].nodes(config)
    cases: dict[str, Case] = {}
    skips: list[Skip] = []
    # In rising order, of several sizes that become the same bytes the exact one comes first and is the case.
    for point, size in product(_points(config), sorted(config.sizes)):
        asked = point.id_with(
            format_bytes(size) if config.sizes_of == "tensor" else f"{config.sizes_of}={format_bytes(size)}"
        )
        outcome = (
            _refusal(point, lab, config.interface)
            or _crowded(point, config, nodes)
            or _case(point, size, config.sizes_of)
        )
        if isinstance(outcome, Case) and outcome.id in cases:
            outcome = f"the same bytes as {outcome.id}"
        if isinstance(outcome, Case):
            cases[outcome.id] = outcome
        else:
            skips.append(Skip(asked, outcome))
    return Plan(tuple(cases.values()), tuple(skips))


def _points(config: SweepConfig) -> Iterator[Point]:
    """The product of all axes but the sizes; an axis of Point is a key of SweepConfig in the plural."""
    for mode, world_size in product(config.modes, config.world_sizes):
        for pair, backend, streams, dtype, chunks, delay, malloc, timeline in product(
            _pairs(config, world_size),
            config.backends,
            config.streams,
            config.dtypes,
            config.chunks,
            config.entry_delays,
            config.mallocs,
            config.timelines,
        ):
            yield Point(
                mode=mode,
                backend=backend,
                streams=streams,
                world_size=world_size,
                dtype=dtype,
                chunks=chunks,
                entry_delay_us=round(delay * 1e6),
                malloc=malloc,
                timeline_us=round(timeline * 1e6),
                pair=pair,
            )


def _pairs(config: SweepConfig, world_size: int) -> Iterable[str]:
    """What ``config.pairs`` means among so many ranks, each pair once."""
    named = {"none": [""], "all": [f"{first}-{second}" for first, second in combinations(range(world_size), 2)]}
    return dict.fromkeys(pair for item in config.pairs for pair in named.get(item, [item]))


def _refusal(point: Point, lab: LabSpec | None, interface: str | None) -> str | None:
    """Why a point cannot be measured at any size; None where it can."""
    mode = MODES[point.mode]
    if point.pair and not mode.pairwise:
        return f"{mode.name} is not made of two ranks; a pair takes {', '.join(_pairwise())}"
    if max(point.members) >= point.world_size:
        return f"there is no rank {max(point.members)} among {point.world_size}"
    if point.world_size < mode.min_world_size:
        return f"{mode.name} needs {mode.min_world_size} ranks, not {point.world_size}"
    if lab and point.world_size > lab.hosts:
        return f"the lab {lab} has no host for each of {point.world_size} ranks"
    if point.timeline_us and not lab and interface in (None, "lo"):
        return "a timeline of loopback says nothing: whatever is sent there is received there at once"
    if point.world_size > EXACT_RANKS.get(point.dtype, point.world_size):
        return f"sums of {point.dtype} over {point.world_size} ranks are not exact, so they could not be checked"
    if point.streams == AUTO and not BACKENDS[point.backend].chooses_streams:
        return f"{point.backend} cannot choose the stream count by itself; give it a number"
    return BACKENDS[point.backend].refusal(mode, point.streams, len(point.members))


def _pairwise() -> list[str]:
    return [name for name, mode in MODES.items() if mode.pairwise]


def _crowded(point: Point, config: SweepConfig, nodes: int) -> str | None:
    """Why the hosts have no rank for all of a point's; one host has as many as it takes, unless told otherwise."""
    each = ranks_per_node(config, nodes, point.world_size)
    if point.world_size <= nodes * each:
        return None
    return f"{nodes} hosts with {each} ranks each have no {point.world_size} ranks; see --nproc-per-node"


def _case(point: Point, size: int, sizes_of: str) -> Case | str:
    """The case of ``point`` nearest below ``size`` bytes of the kind named, or why there is none."""
    mode, itemsize, world_size = MODES[point.mode], DTYPES[point.dtype], point.world_size
    ratio = mode.ratio(sizes_of, world_size)
    if ratio == 0:
        return f"{mode.name} between {world_size} ranks transmits nothing"
    block = mode.block(world_size)
    elements = whole_elements(size, ratio, itemsize, block)
    if elements == 0:
        least = format_bytes(math.ceil(block * itemsize * ratio))
        return f"{format_bytes(size)} is less than the least size, {least} of {point.dtype}"
    return sized(point, elements * itemsize)
