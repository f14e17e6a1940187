"""Every mode over every backend moves the right values, whatever the size; and a broken one is found out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from threads import World

from netbench.backends import BACKENDS, Lanes, tensor_maker
from netbench.config import SweepConfig
from netbench.measure import count_wrong, make_operation
from netbench.model import DTYPES, Case, split
from netbench.modes import MODES, AllGather, AllReduce, Broadcast, Buffers, Exchange, Lane, Mode, SendRecv, Step
from netbench.payload import Payload
from netbench.plan import make_plan

STREAMS = [1, 3, "auto"]
CHUNKS = [1, 2]

#: In blocks of the mode: a single one, fewer than streams, one more than divides evenly, and a prime number.
BLOCKS = (1, 2, 7, 10007)

EVERYTHING = SweepConfig(
    modes=list(MODES), backends=list(BACKENDS), streams=STREAMS, world_sizes=[2, 3, 5], chunks=CHUNKS, sizes=["1MiB"]
)

#: Whatever a plan does not refuse must work.
CASES = make_plan(EVERYTHING).cases


def wrong_elements(
    world: World,
    mode: Mode,
    lanes: Sequence[Lanes],
    blocks: int,
    dtype: str = "float32",
    chunks: int = 1,
    rounds: int = 2,
) -> list[int]:
    """How many wrong elements each rank that takes part has after running ``mode``."""
    n = world.world_size
    elements = blocks * mode.block(n)

    def rank_body(rank: int) -> int:
        if rank not in mode.participants(n):
            return 0
        block = mode.block(n)
        parts = [
            split(part.stop - part.start, chunks, block, part.start)
            for part in split(elements, len(lanes[rank].lanes), block)
        ]
        pieces = [chunk for part in parts for chunk in part]
        buffers = mode.buffers(tensor_maker("cpu", dtype), elements, n)
        operation = make_operation(mode, lanes[rank], buffers, parts, world.timeout_s)
        return sum(count_wrong(mode, buffers, pieces, rank, Payload(n, round), operation) for round in range(rounds))

    return world.run(rank_body)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_every_rank_ends_with_the_right_values(case: Case, opened: Callable[..., Any]) -> None:
    world, lanes, _ = opened(case.backend, case.streams, case.world_size)
    for blocks in BLOCKS:
        wrong = wrong_elements(world, MODES[case.mode], lanes, blocks, chunks=case.chunks)
        assert wrong == [0] * case.world_size, f"{blocks} blocks"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_moves_every_dtype(mode: str, dtype: str, opened: Callable[..., Any]) -> None:
    world, lanes, _ = opened("parallel_gloo", 3, 2)
    assert wrong_elements(world, MODES[mode], lanes, 1001, dtype) == [0, 0]


@pytest.mark.parametrize("mode", MODES)
def test_a_part_beyond_one_mebibyte_arrives_whole(mode: str, opened: Callable[..., Any]) -> None:
    world, lanes, _ = opened("gloo", 1, 3)
    assert wrong_elements(world, MODES[mode], lanes, 500_009, rounds=1) == [0] * 3


@pytest.mark.parametrize(
    ("backend", "streams"),
    sorted({(c.backend, c.streams) for c in CASES if c.world_size == 3 and c.backend != "parallel_gloo"}),
)
def test_a_backend_opens_a_lane_for_each_stream_with_connections_of_its_own(
    backend: str, streams: int, opened: Callable[..., Any]
) -> None:
    _, lanes, connections = opened(backend, streams, 3)
    assert [len(one.lanes) for one in lanes] == [streams] * 3
    both_ways = 2 if backend == "one_way_gloo" else 1
    assert len(connections) == 3 * 2 * streams * both_ways  # an end on each rank for each of two peers


@pytest.mark.parametrize("streams", [1, 3])
def test_the_parallel_group_is_one_lane_over_as_many_connections(streams: int, opened: Callable[..., Any]) -> None:
    _, lanes, connections = opened("parallel_gloo", streams, 3)
    assert [len(one.lanes) for one in lanes] == [1] * 3
    assert len(connections) >= 3 * 2 * streams


class LosesAPart(AllGather):
    """Its last lane does nothing."""

    def steps(self, lane: Lane, buffers: Buffers, part: slice) -> list[Step]:
        return [] if part.start > 0 else super().steps(lane, buffers, part)


class SwapsRanks(AllGather):
    """Puts the parts into the wrong ranks' places."""

    def steps(self, lane: Lane, buffers: Buffers, part: slice) -> list[Step]:
        return super().steps(lane, replace(buffers, outputs=buffers.outputs[::-1]), part)


class ForgetsToReduce(AllReduce):
    """Leaves every rank with its own input."""

    def steps(self, lane: Lane, buffers: Buffers, part: slice) -> list[Step]:
        return []


class SumsTwice(AllReduce):
    """Ends with twice the sum."""

    def steps(self, lane: Lane, buffers: Buffers, part: slice) -> list[Step]:
        def double() -> list[Any]:
            buffers.input[part] *= 2
            return []

        return [*super().steps(lane, buffers, part), double]


class SpreadsTheWrongRoot(Broadcast):
    """Sends rank 1's tensor."""

    def steps(self, lane: Lane, buffers: Buffers, part: slice) -> list[Step]:
        return [lambda: [lane.group.broadcast(buffers.input[part], 1)]]


class ShiftsByOne(Exchange):
    """Writes the message an element too early, as a wrong offset would."""

    def steps(self, lane: Lane, buffers: Buffers, part: slice) -> list[Step]:
        def shift() -> list[Any]:
            buffers.outputs[0][part] = buffers.outputs[0][part].roll(-1)
            return []

        return [*super().steps(lane, buffers, part), shift]


class DamagesOneElement(SendRecv):
    """Only the last element of the answer is wrong."""

    def steps(self, lane: Lane, buffers: Buffers, part: slice) -> list[Step]:
        def damage() -> list[Any]:
            if lane.rank == 0:
                buffers.outputs[0][-1] += 1
            return []

        return [*super().steps(lane, buffers, part), damage]


BROKEN = [
    LosesAPart,
    SwapsRanks,
    ForgetsToReduce,
    SumsTwice,
    SpreadsTheWrongRoot,
    ShiftsByOne,
    DamagesOneElement,
]


@pytest.mark.parametrize("broken_mode", BROKEN)
def test_a_broken_mode_is_found_out(broken_mode: type[Mode], opened: Callable[..., Any]) -> None:
    world, lanes, _ = opened("multi_device_gloo", 3, 2)
    assert max(wrong_elements(world, broken_mode(), lanes, 1000)) > 0


def test_a_single_wrong_element_is_counted_as_one(opened: Callable[..., Any]) -> None:
    world, lanes, _ = opened("gloo", 1, 2)
    assert wrong_elements(world, DamagesOneElement(), lanes, 1000, rounds=1) == [1, 0]


def test_a_lane_that_connects_ranks_in_another_order_is_found_out(opened: Callable[..., Any]) -> None:
    world, lanes, _ = opened("split_gloo", 3, 2)
    crossed = [lanes[0], replace(lanes[1], lanes=lanes[1].lanes[::-1])]
    assert max(wrong_elements(world, MODES["exchange"], crossed, 999)) > 0
