"""Which stream carries what: seen by streams that only take note."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from netbench.schedules import Scratch, Senders, Wire, allreduce_by_blocks, direct, ring_peers

N = 4


class Noting:
    """A stream that is told of messages, none of which ever leaves; each rank's are told apart by ``rank``."""

    def __init__(self, rank: int, index: int, seen: set[tuple[int, int, int]]) -> None:
        self.rank, self.index, self.seen = rank, index, seen

    def send(self, tensors: Any, peer: int, tag: int) -> object:
        self.seen.add((self.index, self.rank, peer))
        return object()

    def recv(self, tensors: Any, peer: int, tag: int) -> object:
        self.seen.add((self.index, peer, self.rank))
        return object()


def carried(schedule: str, streams: int, simplex: bool) -> set[tuple[int, int, int]]:
    """(stream, from rank, to rank) of every message of one operation between four ranks."""
    seen: set[tuple[int, int, int]] = set()
    for rank in range(N):
        wire = Wire(
            [Noting(rank, index, seen) for index in range(streams)], rank, N, 7, ring_peers(rank, N), Scratch(),
            Senders(streams), simplex,
        )  # fmt: skip
        if schedule == "direct":
            steps = direct(wire, [torch.zeros(64) for _ in range(N)], [torch.zeros(64)] * N)
        else:
            steps = allreduce_by_blocks(wire, torch.zeros(64), torch.Tensor.add_, chunks=4)
        assert len(list(steps)) > 0
    return seen


@pytest.mark.parametrize("schedule", ["direct", "allreduce"])
@pytest.mark.parametrize("streams", [2, 3, 4])
def test_simplex_streams_carry_one_direction_each(schedule: str, streams: int) -> None:
    seen = carried(schedule, streams, simplex=True)
    assert {(source, target) for _, source, target in seen} == {(a, b) for a in range(N) for b in range(N) if a != b}
    for stream, source, target in seen:
        assert (source < target) is (stream % 2 == 0)
        assert (stream, target, source) not in seen
    assert {stream for stream, _, _ in seen} == set(range(streams))


@pytest.mark.parametrize("schedule", ["direct", "allreduce"])
@pytest.mark.parametrize(("streams", "simplex"), [(1, True), (2, False)])
def test_other_streams_carry_both(schedule: str, streams: int, simplex: bool) -> None:
    seen = carried(schedule, streams, simplex)
    assert all((stream, target, source) in seen for stream, source, target in seen)
