"""What is run: one class a mode, holding its formulas, its buffers, how it is issued, and what must come out.

A mode issues itself on one *lane* (a process group, and the tag that its point-to-point messages carry) and
returns the Works without waiting, so any mode runs over any backend. Everything here works on plain objects; torch
is imported by whoever calls ``buffers``.

S (``message_bytes``) and T (``transmit_bytes``) are given as multiples of the tensor that each rank passes in.
The bus factors are those of nccl-tests' PERFORMANCE.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from netbench.model import Case, Point, members
from netbench.registry import Registry

if TYPE_CHECKING:
    import torch

#: Starts one part of an operation and returns its unfinished Works (anything with ``wait(timeout)``).
Step = Callable[[], Sequence[Any]]


@dataclass(frozen=True)
class Lane:
    """One stream: a process group, and the tag that point-to-point messages on it carry."""

    group: Any
    tag: int = 0

    @property
    def rank(self) -> int:
        return int(self.group.rank())

    @property
    def world_size(self) -> int:
        return int(self.group.size())


@dataclass(frozen=True)
class Buffers:
    """A rank's tensors for one case, one-dimensional and contiguous.

    ``outputs`` is empty where the mode works in place.
    """

    input: torch.Tensor
    outputs: Sequence[torch.Tensor] = ()


class Expected(NamedTuple):
    """``view[i]`` must equal the sum over ``ranks`` of their input patterns at index ``start + i``."""

    view: torch.Tensor
    start: int
    ranks: Sequence[int]


class Mode:
    """Shared defaults; a mode overrides what differs."""

    name: ClassVar[str]
    min_world_size: ClassVar[int] = 1
    #: Made of send and recv between two ranks alone, so that its formulas are the same for every world size.
    pairwise: ClassVar[bool] = False
    #: How often S passes in one iteration: 2 for a ping-pong, so algbw = messages * S / t.
    messages: ClassVar[int] = 1
    #: The input is overwritten by a sum, so timed iterations run on zeros, which cannot overflow.
    accumulates: ClassVar[bool] = False

    def message_ratio(self, world_size: int) -> Fraction:
        """S as a multiple of tensor_bytes."""
        return Fraction(1)

    def transmit_ratio(self, world_size: int) -> Fraction:
        """T as a multiple of tensor_bytes; 0 where nothing is transmitted."""
        return Fraction(1 if world_size > 1 else 0)

    def ratio(self, kind: str, world_size: int) -> Fraction:
        """The byte count of this kind (``tensor``, ``message`` or ``transmit``) as a multiple of tensor_bytes."""
        ratios = {
            "tensor": lambda n: Fraction(1),
            "message": self.message_ratio,
            "transmit": self.transmit_ratio,
        }
        return ratios[kind](world_size)

    def bus_factor(self, world_size: int) -> Fraction:
        """busbw over algbw."""
        return Fraction(1)

    def block(self, world_size: int) -> int:
        """The tensor's elements come in multiples of this."""
        return 1

    def participants(self, world_size: int) -> range:
        """Of the ranks between which it runs, those that take part; the others neither send nor wait."""
        return range(world_size)

    def memory_ratio(self, world_size: int) -> Fraction:
        """Memory that one rank needs, as a multiple of tensor_bytes: its buffers and Gloo's own copies."""
        raise NotImplementedError

    def buffers(self, make: Callable[[int], torch.Tensor], elements: int, world_size: int) -> Buffers:
        """A rank's tensors for ``elements`` input elements; ``make(n)`` gives a tensor of n elements."""
        raise NotImplementedError

    def steps(self, lane: Lane, buffers: Buffers, part: slice) -> list[Step]:
        """How this rank runs ``part`` of the tensor on one lane: each step starts when the one before has ended."""
        raise NotImplementedError

    def expected(self, buffers: Buffers, rank: int, world_size: int, parts: Sequence[slice]) -> Iterator[Expected]:
        """What this rank's buffers must hold after the operation, given the parts that the lanes carried."""
        raise NotImplementedError


#: The field writes both; netbench's own word is the one without the underscore.
MODES: Registry[Mode] = Registry("mode", aliases={"all_reduce": "allreduce", "allgather": "all_gather"})


def participants(mode: str, world_size: int, pair: str = "") -> list[int]:
    """The ranks of a launch that take part in a case; the others neither send nor wait."""
    among = members(world_size, pair)
    return [among[place] for place in MODES[mode].participants(len(among))]


def sized(point: Point, tensor_bytes: int) -> Case:
    """The case of ``point`` in which each rank passes in ``tensor_bytes``; S and T follow by the mode's formulas."""
    mode = MODES[point.mode]
    return Case(
        **asdict(point),
        tensor_bytes=tensor_bytes,
        message_bytes=int(tensor_bytes * mode.message_ratio(point.world_size)),
        transmit_bytes=int(tensor_bytes * mode.transmit_ratio(point.world_size)),
    )


def _mode(cls: type[Mode]) -> type[Mode]:
    MODES.add(cls())
    return cls


@_mode
class SendRecv(Mode):
    """Ping-pong between ranks 0 and 1; one iteration is there and back, so algbw = 2 S/t and latency = t/2."""

    name = "send_recv"
    min_world_size = 2
    pairwise = True
    messages = 2

    def participants(self, world_size: int) -> range:
        return range(2)

    def memory_ratio(self, world_size: int) -> Fraction:
        return Fraction(2)

    def buffers(self, make: Callable[[int], torch.Tensor], elements: int, world_size: int) -> Buffers:
        return Buffers(make(elements), [make(elements)])

    def steps(self, lane: Lane, buffers: Buffers, part: slice) -> list[Step]:
        group, peer, tag = lane.group, 1 - lane.rank, lane.tag
        there, back = [buffers.input[part]], [buffers.outputs[0][part]]
        if lane.rank == 0:
            return [lambda: [group.recv(back, peer, tag), group.send(there, peer, tag)]]
        return [lambda: [group.recv(back, peer, tag)], lambda: [group.send(there, peer, tag)]]

    def expected(self, buffers: Buffers, rank: int, world_size: int, parts: Sequence[slice]) -> Iterator[Expected]:
        yield Expected(buffers.outputs[0], 0, [1 - rank])


@_mode
class Send(SendRecv):
    """Rank 0 sends to rank 1, one way; the slower of the two is the receiver, so t ends with the data's arrival."""

    name = "send"
    messages = 1

    def steps(self, lane: Lane, buffers: Buffers, part: slice) -> list[Step]:
        group, peer, tag = lane.group, 1 - lane.rank, lane.tag
        if lane.rank == 0:
            return [lambda: [group.send([buffers.input[part]], peer, tag)]]
        return [lambda: [group.recv([buffers.outputs[0][part]], peer, tag)]]

    def expected(self, buffers: Buffers, rank: int, world_size: int, parts: Sequence[slice]) -> Iterator[Expected]:
        if rank == 1:
            yield Expected(buffers.outputs[0], 0, [0])


@_mode
class Exchange(Mode):
    """Ranks 2i and 2i+1 send to each other at once, receives posted first; a last odd rank takes no part."""

    name = "exchange"
    min_world_size = 2
    pairwise = True
    receives_first: ClassVar[bool] = True

    def participants(self, world_size: int) -> range:
        return range(world_size // 2 * 2)

    def memory_ratio(self, world_size: int) -> Fraction:
        return Fraction(2)

    def buffers(self, make: Callable[[int], torch.Tensor], elements: int, world_size: int) -> Buffers:
        return Buffers(make(elements), [make(elements)])

    def steps(self, lane: Lane, buffers: Buffers, part: slice) -> list[Step]:
        group, peer, tag = lane.group, lane.rank ^ 1, lane.tag
        mine, theirs = [buffers.input[part]], [buffers.outputs[0][part]]
        if self.receives_first:
            return [lambda: [group.recv(theirs, peer, tag), group.send(mine, peer, tag)]]
        return [lambda: [group.send(mine, peer, tag), group.recv(theirs, peer, tag)]]

    def expected(self, buffers: Buffers, rank: int, world_size: int, parts: Sequence[slice]) -> Iterator[Expected]:
        yield Expected(buffers.outputs[0], 0, [rank ^ 1])


@_mode
class ExchangeSendsFirst(Exchange):
    """An exchange that posts its sends first, as Gloo's all_gather and all_to_all do; shows head-of-line blocking."""

    name = "exchange_sends_first"
    receives_first = False


@_mode
class AllGather(Mode):
    """Every rank ends with every rank's tensor; S is the gathered whole."""

    name = "all_gather"

    def message_ratio(self, world_size: int) -> Fraction:
        return Fraction(world_size)

    def transmit_ratio(self, world_size: int) -> Fraction:
        return Fraction(world_size - 1)

    def bus_factor(self, world_size: int) -> Fraction:
        return Fraction(world_size - 1, world_size)

    def memory_ratio(self, world_size: int) -> Fraction:
        return Fraction(1 + 2 * world_size)  # input, outputs, and Gloo's flat copy of the outputs

    def buffers(self, make: Callable[[int], torch.Tensor], elements: int, world_size: int) -> Buffers:
        return Buffers(make(elements), [make(elements) for _ in range(world_size)])

    def steps(self, lane: Lane, buffers: Buffers, part: slice) -> list[Step]:
        outputs, mine = [[output[part] for output in buffers.outputs]], [buffers.input[part]]
        return [lambda: [lane.group.allgather(outputs, mine)]]

    def expected(self, buffers: Buffers, rank: int, world_size: int, parts: Sequence[slice]) -> Iterator[Expected]:
        for source, output in enumerate(buffers.outputs):
            yield Expected(output, 0, [source])


@_mode
class AllReduce(Mode):
    """Every rank ends with the element-wise sum over all ranks, in place."""

    name = "allreduce"
    accumulates = True

    def transmit_ratio(self, world_size: int) -> Fraction:
        return Fraction(2 * (world_size - 1), world_size)

    def bus_factor(self, world_size: int) -> Fraction:
        return Fraction(2 * (world_size - 1), world_size)

    def memory_ratio(self, world_size: int) -> Fraction:
        return Fraction(2)  # the tensor, and Gloo's receive segments, which are smaller

    def buffers(self, make: Callable[[int], torch.Tensor], elements: int, world_size: int) -> Buffers:
        return Buffers(make(elements))

    def steps(self, lane: Lane, buffers: Buffers, part: slice) -> list[Step]:
        tensors = [buffers.input[part]]
        return [lambda: [lane.group.allreduce(tensors)]]

    def expected(self, buffers: Buffers, rank: int, world_size: int, parts: Sequence[slice]) -> Iterator[Expected]:
        yield Expected(buffers.input, 0, range(world_size))


@_mode
class ReduceScatter(Mode):
    """Each rank ends with its block of the element-wise sum; Gloo runs an allreduce and sends twice T."""

    name = "reduce_scatter"

    def transmit_ratio(self, world_size: int) -> Fraction:
        return Fraction(world_size - 1, world_size)

    def bus_factor(self, world_size: int) -> Fraction:
        return Fraction(world_size - 1, world_size)

    def block(self, world_size: int) -> int:
        return world_size

    def memory_ratio(self, world_size: int) -> Fraction:
        return Fraction(2) + Fraction(1, world_size)  # input, Gloo's flat copy of it, output

    def buffers(self, make: Callable[[int], torch.Tensor], elements: int, world_size: int) -> Buffers:
        return Buffers(make(elements), [make(elements // world_size)])

    def steps(self, lane: Lane, buffers: Buffers, part: slice) -> list[Step]:
        n = lane.world_size
        outputs = [buffers.outputs[0][part.start // n : part.stop // n]]
        blocks = [list(buffers.input[part].chunk(n))]
        return [lambda: [lane.group.reduce_scatter(outputs, blocks)]]

    def expected(self, buffers: Buffers, rank: int, world_size: int, parts: Sequence[slice]) -> Iterator[Expected]:
        for part in parts:
            view = buffers.outputs[0][part.start // world_size : part.stop // world_size]
            yield Expected(view, part.start + rank * len(view), range(world_size))


@_mode
class Broadcast(Mode):
    """Every rank ends with rank 0's tensor; T is what rank 0 sends by the ideal algorithm."""

    name = "broadcast"

    def memory_ratio(self, world_size: int) -> Fraction:
        return Fraction(1)

    def buffers(self, make: Callable[[int], torch.Tensor], elements: int, world_size: int) -> Buffers:
        return Buffers(make(elements))

    def steps(self, lane: Lane, buffers: Buffers, part: slice) -> list[Step]:
        tensor = buffers.input[part]
        return [lambda: [lane.group.broadcast(tensor, 0)]]

    def expected(self, buffers: Buffers, rank: int, world_size: int, parts: Sequence[slice]) -> Iterator[Expected]:
        yield Expected(buffers.input, 0, [0])


@_mode
class AllToAll(Mode):
    """Each rank sends a different block of its tensor to every rank; S is the whole input of one rank."""

    name = "all_to_all"

    def transmit_ratio(self, world_size: int) -> Fraction:
        return Fraction(world_size - 1, world_size)

    def bus_factor(self, world_size: int) -> Fraction:
        return Fraction(world_size - 1, world_size)

    def block(self, world_size: int) -> int:
        return world_size

    def memory_ratio(self, world_size: int) -> Fraction:
        return Fraction(2)

    def buffers(self, make: Callable[[int], torch.Tensor], elements: int, world_size: int) -> Buffers:
        return Buffers(make(elements), [make(elements)])

    def steps(self, lane: Lane, buffers: Buffers, part: slice) -> list[Step]:
        output, mine = buffers.outputs[0][part], buffers.input[part]
        return [lambda: [lane.group.alltoall_base(output, mine, [], [])]]

    def expected(self, buffers: Buffers, rank: int, world_size: int, parts: Sequence[slice]) -> Iterator[Expected]:
        for part in parts:
            size = (part.stop - part.start) // world_size
            for source in range(world_size):
                view = buffers.outputs[0][part.start + source * size : part.start + (source + 1) * size]
                yield Expected(view, part.start + rank * size, [source])


@_mode
class GatherCopies(Mode):
    """The copies in memory that Gloo's all_gather makes, on every rank at once, without sending anything."""

    name = "gather_copies"

    def message_ratio(self, world_size: int) -> Fraction:
        return Fraction(world_size)

    def transmit_ratio(self, world_size: int) -> Fraction:
        return Fraction(0)

    def bus_factor(self, world_size: int) -> Fraction:
        return Fraction(0)

    def memory_ratio(self, world_size: int) -> Fraction:
        return Fraction(1 + 2 * world_size)

    def buffers(self, make: Callable[[int], torch.Tensor], elements: int, world_size: int) -> Buffers:
        flat = make(world_size * elements)
        return Buffers(make(elements), [*(make(elements) for _ in range(world_size)), flat])

    def steps(self, lane: Lane, buffers: Buffers, part: slice) -> list[Step]:
        *outputs, flat = buffers.outputs
        gathered, mine = flat.view(len(outputs), -1)[:, part], lane.rank

        def copy() -> Sequence[Any]:
            gathered[mine].copy_(buffers.input[part])
            for rank, output in enumerate(outputs):
                output[part].copy_(gathered[rank])
            return []

        return [copy]

    def expected(self, buffers: Buffers, rank: int, world_size: int, parts: Sequence[slice]) -> Iterator[Expected]:
        yield Expected(buffers.outputs[rank], 0, [rank])
