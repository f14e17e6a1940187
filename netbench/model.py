"""The nouns that every part of netbench speaks of: a case, a skip, and the three byte counts of a size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from netbench.foreign import file_name
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

#: The most ranks whose smallest values still have an exact sum; more of them could not be checked.
EXACT_RANKS = {"int8": 120, "uint8": 255, "bfloat16": 256}

#: What ``--sizes-of`` may fix; docs/metrics.md defines each.
SIZE_KINDS = ("tensor", "message", "transmit")


#: How memory that was freed is kept, and the settings of glibc's malloc that make it so. ``keep`` has one arena that
#: neither maps large blocks anew nor gives memory back, so that a buffer made for every call faults its pages once.
MALLOCS: dict[str, dict[str, str]] = {
    "default": {},
    "keep": {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)},
}


#: The stream count of a case whose backend chooses for each message.
AUTO = 0

#: The least and the most that a case's numbers can be: more than anybody measures, and far from where int64 ends.
_RANGES = {
    "streams": (AUTO, 2**16),
    "world_size": (1, 2**16),
    "chunks": (1, 2**16),
    "entry_delay_us": (0, 10**9),
    "timeline_us": (0, 10**9),
    "tensor_bytes": (1, 2**52),
    "message_bytes": (1, 2**62),
    "transmit_bytes": (0, 2**62),
}


def streams_text(streams: int) -> str:
    """``4``, or ``auto``."""
    return "auto" if streams == AUTO else str(streams)


def pair_ranks(pair: str) -> tuple[int, int]:
    """The two ranks of a pair such as ``1-3``. Raises ValueError, saying what would be right."""
    first, separator, second = pair.partition("-")
    if not (separator and first.isdecimal() and second.isdecimal() and int(first) != int(second)):
        raise ValueError(f"{pair!r} is not a pair; write two ranks as 0-1, or all, or none")
    return int(first), int(second)


def members(world_size: int, pair: str = "") -> Sequence[int]:
    """The ranks of a launch between which a case's operation runs, in the order of their places in it."""
    return pair_ranks(pair) if pair else range(world_size)


@dataclass(frozen=True, kw_only=True)
class Point:
    """A point of a sweep but for its size.

    ``chunks`` is how many operations carry each lane's part, one behind the other; ``entry_delay_us`` is how much later
    than the others the last rank begins; ``malloc`` is one of MALLOCS; ``timeline_us`` is how often the interface's
    counters are read meanwhile, 0 for never; ``pair``, such as ``1-3``, names the two ranks between which alone the
    operation runs, whatever the world size.
    """

    mode: str
    backend: str
    streams: int
    world_size: int
    dtype: str
    chunks: int = 1
    entry_delay_us: int = 0
    malloc: str = "default"
    timeline_us: int = 0
    pair: str = ""

    @property
    def members(self) -> Sequence[int]:
        return members(self.world_size, self.pair)

    def id_with(self, size: str) -> str:
        """``all_gather-parallel_gloo-k4-n2-1MiB``; what is not as usual is named at the end."""
        parts = [self.mode, self.backend, f"k{streams_text(self.streams)}", f"n{self.world_size}", size, self.variant]
        return "-".join(part for part in parts if part)

    @property
    def variant(self) -> str:
        """What is not as usual, such as ``bfloat16-c2``; cases of different variants are never compared unsaid."""
        parts = []
        if self.dtype != "float32":
            parts.append(self.dtype)
        if self.chunks != 1:
            parts.append(f"c{self.chunks}")
        if self.entry_delay_us:
            parts.append(f"late{self.entry_delay_us}us")
        if self.malloc != "default":
            parts.append(f"malloc_{self.malloc}")
        if self.timeline_us:
            parts.append(f"timeline{self.timeline_us}us")
        if self.pair:
            parts.append(f"pair{self.pair}")
        return "-".join(parts)

    @property
    def is_usual(self) -> bool:
        """Whether nothing but mode, backend, streams, world size, dtype and size sets it apart."""
        usual = (1, 0, "default", 0, "")
        return (self.chunks, self.entry_delay_us, self.malloc, self.timeline_us, self.pair) == usual


@dataclass(frozen=True, kw_only=True)
class Case(Point):
    """One point of a sweep that can be measured.

    ``tensor_bytes`` is what each rank passes in, ``message_bytes`` is S and ``transmit_bytes`` is T (rounded down
    to a whole byte). All three are the exact bytes used, whatever size was asked for.

    Raises ValueError where a word could not be a part of a file's name, or a number is out of all range: cases also
    come from files that anyone may have written.
    """

    tensor_bytes: int
    message_bytes: int
    transmit_bytes: int

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype {str(self.dtype)[:40]!r} is none of {', '.join(DTYPES)}")
        for word in (self.mode, self.backend, self.malloc, *([self.pair] if self.pair != "" else [])):
            file_name(word)
        if any(not 0 <= rank < 2**16 for rank in self.members):
            raise ValueError(f"pair {self.pair} names ranks that no launch has")
        for name, (least, most) in _RANGES.items():
            number = getattr(self, name)
            if type(number) is not int or not least <= number <= most:
                raise ValueError(f"{name} is {str(number)[:40]}, not a whole number from {least} to {most}")

    @property
    def elements(self) -> int:
        return self.tensor_bytes // DTYPES[self.dtype]

    @property
    def id(self) -> str:
        """Stable and readable, the same in logs, file names, tests and ``--only``."""
        return self.id_with(format_bytes(self.tensor_bytes))


@dataclass(frozen=True)
class Skip:
    """One point of a sweep that is not measured, and why."""

    id: str
    reason: str


def split(elements: int, most: int, block: int, start: int = 0) -> list[slice]:
    """Cuts ``elements`` from ``start`` on into at most ``most`` contiguous parts of a multiple of ``block`` each.

    Parts differ by at most one block; there are fewer when there are fewer blocks.
    """
    blocks = elements // block
    used = min(most, blocks)
    parts = []
    for index in range(used):
        stop = start + block * (blocks // used + (index < blocks % used))
        parts.append(slice(start, stop))
        start = stop
    return parts


def whole_elements(requested_bytes: int, ratio: Fraction, itemsize: int, block: int) -> int:
    """The most elements whose bytes times ``ratio`` do not exceed ``requested_bytes``, in whole blocks."""
    return int(Fraction(requested_bytes) / ratio / itemsize) // block * block
