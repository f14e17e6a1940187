"""The product of the axes as a value: cases to measure, and skips with their reasons. Nothing is started here."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import product

from netbench.backends import BACKENDS
from netbench.config import SweepConfig
from netbench.errors import UsageError, did_you_mean
from netbench.lab.spec import LabSpec
from netbench.model import DTYPES, Case, Skip, case_id, whole_elements
from netbench.modes import MODES
from netbench.units import format_bytes


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

    def without(self, skips: Iterable[Skip]) -> Plan:
        """The plan with some of its cases turned into skips."""
        added = {skip.id: skip for skip in skips}
        return Plan(tuple(case for case in self.cases if case.id not in added), (*self.skips, *added.values()))

    def shuffled(self, seed: int) -> Plan:
        """The cases in a random order fixed by ``seed``, so that drift of the machine does not follow an axis."""
        return replace(self, cases=tuple(random.Random(seed).sample(self.cases, len(self.cases))))


def make_plan(config: SweepConfig) -> Plan:
    """Every point of ``config``'s axes in reading order, as a case or as a skip with its reason."""
    cases: dict[str, Case] = {}
    skips: list[Skip] = []
    lab = LabSpec.parse(config.lab) if config.lab else None
    # In rising order, of several sizes that become the same bytes the exact one comes first and is the case.
    sizes = sorted(config.sizes)
    points = product(config.modes, config.world_sizes, config.backends, config.streams, config.dtypes, sizes)
    for mode_name, world_size, backend, streams, dtype, size in points:
        outcome = _point(mode_name, world_size, backend, streams, dtype, size, config.sizes_of)
        if isinstance(outcome, Case) and lab and world_size > lab.hosts:
            outcome = Skip(outcome.id, f"the lab {lab} has no host for each of {world_size} ranks")
        if isinstance(outcome, Case) and outcome.id in cases:
            asked = case_id(mode_name, backend, streams, world_size, dtype, _asked(size, config.sizes_of))
            outcome = Skip(asked, f"the same bytes as {outcome.id}")
        if isinstance(outcome, Case):
            cases[outcome.id] = outcome
        else:
            skips.append(outcome)
    return Plan(tuple(cases.values()), tuple(skips))


def _point(
    mode_name: str, world_size: int, backend: str, streams: int, dtype: str, size: int, sizes_of: str
) -> Case | Skip:
    mode, itemsize = MODES[mode_name], DTYPES[dtype]
    asked = case_id(mode_name, backend, streams, world_size, dtype, _asked(size, sizes_of))
    if world_size < mode.min_world_size:
        return Skip(asked, f"{mode_name} needs {mode.min_world_size} ranks, not {world_size}")
    if refusal := BACKENDS[backend].refusal(streams, world_size):
        return Skip(asked, refusal)
    ratio = mode.ratio(sizes_of, world_size)
    if ratio == 0:
        return Skip(asked, f"{mode_name} between {world_size} ranks transmits nothing")
    block = mode.block(world_size)
    elements = whole_elements(size, ratio, itemsize, block)
    if elements == 0:
        least = format_bytes(math.ceil(block * itemsize * ratio))
        return Skip(asked, f"{format_bytes(size)} is less than the least size, {least} of {dtype}")
    tensor_bytes = elements * itemsize
    return Case(
        mode=mode_name,
        backend=backend,
        streams=streams,
        world_size=world_size,
        dtype=dtype,
        tensor_bytes=tensor_bytes,
        message_bytes=int(tensor_bytes * mode.message_ratio(world_size)),
        transmit_bytes=int(tensor_bytes * mode.transmit_ratio(world_size)),
    )


def _asked(size: int, sizes_of: str) -> str:
    return format_bytes(size) if sizes_of == "tensor" else f"{sizes_of}={format_bytes(size)}"
