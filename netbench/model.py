"""The nouns that every part of netbench speaks of: a case, a skip, and the three byte counts of a size."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from netbench.units import format_bytes

#: Bytes of one element. Gloo takes all of these; their names are torch's.
DTYPES = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "int64": 8,
}

#: What ``--sizes-of`` may fix; docs/metrics.md defines each.
SIZE_KINDS = ("tensor", "message", "transmit")


@dataclass(frozen=True)
class Case:
    """One point of a sweep that can be measured.

    ``tensor_bytes`` is what each rank passes in, ``message_bytes`` is S and ``transmit_bytes`` is T (rounded down
    to a whole byte). All three are the exact bytes used, whatever size was asked for.
    """

    mode: str
    backend: str
    streams: int
    world_size: int
    dtype: str
    tensor_bytes: int
    message_bytes: int
    transmit_bytes: int

    @property
    def elements(self) -> int:
        return self.tensor_bytes // DTYPES[self.dtype]

    @property
    def id(self) -> str:
        """Stable and readable, the same in logs, file names, tests and ``--only``."""
        return case_id(
            self.mode,
            self.backend,
            self.streams,
            self.world_size,
            self.dtype,
            format_bytes(self.tensor_bytes),
        )


@dataclass(frozen=True)
class Skip:
    """One point of a sweep that is not measured, and why."""

    id: str
    reason: str


def case_id(mode: str, backend: str, streams: int, world_size: int, dtype: str, size: str) -> str:
    """``all_gather-parallel_gloo-k4-n2-1MiB``; a dtype other than float32 is named at the end."""
    parts = [mode, backend, f"k{streams}", f"n{world_size}", size]
    return "-".join(parts if dtype == "float32" else [*parts, dtype])


def split(elements: int, streams: int, block: int) -> list[slice]:
    """Cuts ``elements`` into at most ``streams`` contiguous parts whose lengths are multiples of ``block``.

    Parts differ by at most one block; there are fewer parts than streams when there are fewer blocks.
    """
    blocks = elements // block
    used = min(streams, blocks)
    parts, start = [], 0
    for index in range(used):
        stop = start + block * (blocks // used + (index < blocks % used))
        parts.append(slice(start, stop))
        start = stop
    return parts


def whole_elements(requested_bytes: int, ratio: Fraction, itemsize: int, block: int) -> int:
    """The most elements whose bytes times ``ratio`` do not exceed ``requested_bytes``, in whole blocks."""
    return int(Fraction(requested_bytes) / ratio / itemsize) // block * block
