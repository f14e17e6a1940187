"""Which schedule and how many streams suit a message: the built-in rules, and tables measured on one network.

A message is described by its operation, the bytes that each rank passes in and the world size. Everything here is
arithmetic on those, so that every rank comes to the same choice without asking the others; torch is not needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Literal, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from netbench.errors import UsageError, did_you_mean
from netbench.record import write_atomically

#: The schedules of each operation; ``gloo`` is Gloo's own, run on one part of the tensor per stream.
SCHEDULES: Mapping[str, tuple[str, ...]] = {
    "send_recv": ("gloo",),
    "allreduce": ("gloo", "simplex"),
    "all_gather": ("gloo", "direct", "simplex", "ring"),
    "reduce_scatter": ("gloo", "direct", "simplex"),
    "all_to_all": ("gloo", "direct", "simplex"),
    "broadcast": ("gloo",),
    "reduce": ("gloo",),
    "gather": ("gloo", "direct"),
    "scatter": ("gloo", "direct"),
}

KIB, MIB = 1024, 1024**2

#: What a table may ask for.
MOST_STREAMS, MOST_CHUNKS = 512, 4096


class Choice(NamedTuple):
    """How one message is sent: by which schedule, on how many streams, and in how many pieces per block.

    ``chunks`` only matters to schedules of several steps: pieces let one step begin before the last has ended.
    """

    schedule: str
    streams: int = 1
    chunks: int = 1


class Policy(Protocol):
    """Anything that chooses; it must depend on nothing that differs between ranks."""

    def choose(self, operation: str, tensor_bytes: int, world_size: int) -> Choice: ...


@dataclass(frozen=True)
class BuiltIn:
    """The rules for a network of which is known whether several streams are faster than one. They are where each flow
    is capped and where one thread cannot feed the network card.

    Where they are not, ``fast`` says whether it moves bytes about as fast as a core copies them, as loopback does, so
    that what costs is how Gloo's threads get in one another's way; and ``large_streams`` how many streams are fastest
    there for a large message in one direction.
    """

    streams: int
    streams_pay: bool
    fast: bool = False
    large_streams: int = 1

    #: From here on a message is large.
    LARGE_BYTES = 18 * MIB

    #: Below this a second stream costs more in system calls than it brings.
    MIN_PART_BYTES = 96 * KIB

    def choose(self, operation: str, tensor_bytes: int, world_size: int) -> Choice:
        choice = _one_stream(operation, tensor_bytes, world_size)
        if self.streams_pay:
            return _widened(choice, operation, tensor_bytes, world_size, self.streams, self.MIN_PART_BYTES)
        if not self.fast or self.streams == 1:
            return choice
        if operation == "send_recv" and tensor_bytes >= self.LARGE_BYTES:
            return choice._replace(streams=min(self.large_streams, self.streams))
        several = min(self.streams, self.large_streams if self.large_streams > 1 else 4)
        return _simplex(operation, tensor_bytes, world_size, several) or choice


def _simplex(operation: str, tensor_bytes: int, world_size: int, several: int) -> Choice | None:
    """Streams of one direction each, where they are faster on a path that copying limits; measured up to 4 ranks.

    ``several`` is how many streams a large allreduce is cut over.
    """
    one_each_way = Choice("simplex", 2)
    if operation == "all_gather" and world_size <= 4 and tensor_bytes >= 32 * KIB:
        return one_each_way
    if operation == "allreduce" and world_size <= 4 and tensor_bytes >= 32 * KIB:
        if world_size > 2:
            return None if 2 * MIB <= tensor_bytes < 12 * MIB else one_each_way
        if tensor_bytes >= 24 * MIB:
            return Choice("gloo", several, several)  # each stream has a thread that adds
        return Choice("simplex", 2, max(1, min(4, tensor_bytes // (4 * MIB))))  # adds a piece while the next one comes
    if operation == "reduce_scatter" and tensor_bytes >= 32 * KIB:
        return one_each_way
    if operation == "all_to_all":
        return one_each_way if tensor_bytes // world_size >= 1.5 * MIB else Choice("gloo")
    return None


@dataclass(frozen=True)
class Fixed:
    """Every message on all streams, whatever its size; ``schedule`` None keeps the built-in schedules."""

    streams: int
    schedule: str | None = None

    def choose(self, operation: str, tensor_bytes: int, world_size: int) -> Choice:
        choice = _one_stream(operation, tensor_bytes, world_size)
        if self.schedule in SCHEDULES[operation]:
            choice = choice._replace(schedule=self.schedule)
        return _widened(choice, operation, tensor_bytes, world_size, self.streams, 1)


def _one_stream(operation: str, tensor_bytes: int, world_size: int) -> Choice:
    """What is best on one stream, by measurement (docs/parallel.md); a few bytes are left to Gloo's own loop in C++."""
    if operation == "all_gather" and tensor_bytes > 256 * KIB:
        if world_size <= 2:
            return Choice("direct")
        # A second piece hides the latency between steps; more of them cost a busy CPU more than they hide.
        return Choice("ring", 1, max(1, min(2, tensor_bytes // MIB)))
    if operation == "reduce_scatter" and tensor_bytes >= 4 * KIB:
        return Choice("direct")
    if operation == "all_to_all" and tensor_bytes > MIB:
        return Choice("direct")
    if operation in ("gather", "scatter"):
        return Choice("direct")
    return Choice("gloo")


def _widened(
    choice: Choice, operation: str, tensor_bytes: int, world_size: int, streams: int, min_part_bytes: int
) -> Choice:
    """``choice`` on as many of ``streams`` as have ``min_part_bytes`` to carry."""
    blocks = world_size if operation in ("reduce_scatter", "all_to_all") else 1
    used = max(1, min(streams, tensor_bytes // blocks // min_part_bytes))
    return choice._replace(streams=used, chunks=max(choice.chunks, used))


class Rule(BaseModel):
    """The choice for messages of up to ``up_to_bytes``; None has no upper end."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    up_to_bytes: int | None = Field(ge=0)
    schedule: str
    streams: int = Field(ge=1, le=MOST_STREAMS)
    chunks: int = Field(1, ge=1, le=MOST_CHUNKS)


class Tuned(BaseModel):
    """The rules of one operation at one world size, smallest messages first."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    operation: str
    world_size: int = Field(ge=2)
    rules: list[Rule] = Field(min_length=1)

    @model_validator(mode="after")
    def _sound(self) -> Tuned:
        if self.operation not in SCHEDULES:
            raise ValueError(f"{self.operation!r} is not an operation{did_you_mean(self.operation, SCHEDULES)}")
        for rule in self.rules:
            if rule.schedule not in SCHEDULES[self.operation]:
                known = ", ".join(SCHEDULES[self.operation])
                raise ValueError(f"{self.operation} has no schedule {rule.schedule!r} (known: {known})")
        ends = [rule.up_to_bytes for rule in self.rules]
        if ends[-1] is not None or None in ends[:-1]:
            raise ValueError(f"{self.operation}: only the last rule, and always the last, has up_to_bytes null")
        finite = [end for end in ends if end is not None]
        if finite != sorted(set(finite)):
            raise ValueError(f"{self.operation}: up_to_bytes must grow from rule to rule, not {finite}")
        return self


class TuningTable(BaseModel):
    """What was found to be fastest on one network; a JSON file that any program can load.

    A world size that is not in the table takes the nearest one that is; an operation that is not in it keeps the
    built-in rule.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    network: str = Field("", max_length=500)
    entries: list[Tuned]

    @property
    def streams(self) -> int:
        """The most streams that any rule uses: what a group has to open."""
        return max((rule.streams for entry in self.entries for rule in entry.rules), default=1)

    def choose(self, operation: str, tensor_bytes: int, world_size: int) -> Choice:
        tuned = [entry for entry in self.entries if entry.operation == operation]
        if not tuned:
            return _one_stream(operation, tensor_bytes, world_size)
        entry = min(tuned, key=lambda entry: (abs(entry.world_size - world_size), entry.world_size))
        for rule in entry.rules:
            if rule.up_to_bytes is None or tensor_bytes <= rule.up_to_bytes:
                return Choice(rule.schedule, rule.streams, rule.chunks)
        raise AssertionError("the last rule has no upper end")


def read_table(path: Path) -> TuningTable:
    """Raises UsageError, naming the file and the place in it, when it is not a tuning table."""
    try:
        return TuningTable.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(step) for step in first["loc"])
        raise UsageError(f"{path}: {place or 'the table'}: {first['msg']}; netbench tune writes a new one") from None
    except ValueError as error:
        raise UsageError(f"{path}: is not JSON: {error}; netbench tune writes a new one") from None


def write_table(path: Path, table: TuningTable) -> None:
    """Raises StorageError, naming the file, when it cannot be written."""
    write_atomically(path, table.model_dump_json(indent=2).encode() + b"\n")


class Measurement(NamedTuple):
    """The durations of one choice at one point, each that of the slowest rank."""

    operation: str
    world_size: int
    tensor_bytes: int
    choice: Choice
    durations_ns: tuple[int, ...]


#: A choice has to be this much faster before it displaces a simpler one.
WORTHWHILE = 1.03


def build_table(measurements: Iterable[Measurement], network: str = "") -> TuningTable:
    """The table whose rules take, at every measured size, the choice of least median.

    Fewer streams are kept unless more gain at least 3 %. Between two measured sizes the border lies at their
    geometric mean; beyond the largest, its choice holds on.
    """
    points: dict[tuple[str, int, int], list[Measurement]] = {}
    for found in measurements:
        points.setdefault((found.operation, found.world_size, found.tensor_bytes), []).append(found)
    entries = []
    for (operation, world_size), sizes in groupby(sorted(points), key=lambda key: key[:2]):
        best = [(size, fastest(points[operation, world_size, size])) for _, _, size in sizes]
        entries.append(Tuned(operation=operation, world_size=world_size, rules=_rules(best)))
    return TuningTable(network=network, entries=entries)


def fastest(candidates: Iterable[Measurement]) -> Choice:
    """The choice of least median duration, the one with fewest streams and chunks among those within 3 % of it."""
    medians = {found.choice: median(found.durations_ns) for found in candidates}
    least = min(medians.values())
    near = [choice for choice, duration in medians.items() if duration <= least * WORTHWHILE]
    return min(near, key=lambda choice: (choice.streams, choice.chunks, medians[choice]))


def _rules(best: list[tuple[int, Choice]]) -> list[Rule]:
    rules = []
    for (size, choice), following in zip(best, [*best[1:], None], strict=True):
        if following is not None and following[1] == choice:
            continue
        border = None if following is None else int((size * following[0]) ** 0.5)
        rules.append(Rule(up_to_bytes=border, schedule=choice.schedule, streams=choice.streams, chunks=choice.chunks))
    return rules
