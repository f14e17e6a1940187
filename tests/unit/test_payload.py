"""The data that is sent: exact in every dtype, and wrong wherever something went wrong."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from netbench.model import DTYPES
from netbench.modes import Expected
from netbench.payload import POISON, Payload

ELEMENTS = 200_000  # more than the payload handles at once, and several of its periods


def inputs(payload: Payload, dtype: torch.dtype, elements: int = ELEMENTS) -> list[torch.Tensor]:
    made = [torch.empty(elements, dtype=dtype) for _ in range(payload.world_size)]
    for rank, tensor in enumerate(made):
        payload.fill(tensor, rank)
    return made


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("world_size", [1, 2, 3, 8, 17, 60, 61, 64])
def test_the_sum_over_all_ranks_is_exact_in_every_dtype(dtype: str, world_size: int) -> None:
    payload = Payload(world_size, round=0)
    kind = getattr(torch, dtype)
    total = torch.zeros(2000, dtype=kind)
    exact = torch.zeros(2000, dtype=torch.int64)
    for tensor in inputs(payload, kind, 2000):
        total += tensor
        exact += tensor.to(torch.int64)
    assert torch.equal(total.to(torch.int64), exact)
    assert payload.count_wrong(Expected(total, 0, range(world_size))) == 0
    assert len(torch.unique(exact)) > 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_poison_stays_in_every_dtype_and_no_pattern_or_sum_has_its_value(dtype: str) -> None:
    poison = torch.full((1,), POISON, dtype=getattr(torch, dtype))
    assert int(poison) == POISON
    for world_size in range(1, 65):
        assert 0 <= max(Payload(world_size, 0).values) * world_size < POISON


@pytest.mark.parametrize("world_size", [1, 2, 7, 64])
def test_an_output_that_nothing_was_written_to_is_wrong_throughout(world_size: int) -> None:
    untouched = torch.full((ELEMENTS,), POISON, dtype=torch.float32)
    for ranks in ([0], range(world_size)):
        assert Payload(world_size, 0).count_wrong(Expected(untouched, 0, ranks)) == ELEMENTS


def mostly_wrong(payload: Payload, view: torch.Tensor, start: int, ranks: list[int] | range) -> bool:
    """At least a third of the elements: two values at random agree in half of all places."""
    return payload.count_wrong(Expected(view, start, ranks)) > len(view) / 3


@pytest.mark.parametrize("world_size", [2, 8, 25, 45, 64])
def test_the_part_of_another_rank_is_wrong(world_size: int) -> None:
    payload = Payload(world_size, 0)
    sent = inputs(payload, torch.float32, 5000)
    for rank in range(world_size):
        assert payload.count_wrong(Expected(sent[rank], 0, [rank])) == 0
        for other in range(rank):
            assert mostly_wrong(payload, sent[rank], 0, [other])


@pytest.mark.parametrize("world_size", [2, 8, 25, 45, 64])
def test_what_was_left_from_the_round_before_is_wrong(world_size: int) -> None:
    stale = inputs(Payload(world_size, 0), torch.float32, 5000)
    for rank in range(world_size):
        assert mostly_wrong(Payload(world_size, 1), stale[rank], 0, [rank])


@pytest.mark.parametrize("shift", [1, 2, 7, 1021, 4096, 65536, 131072])
def test_a_shifted_part_is_wrong(shift: int) -> None:
    payload = Payload(2, 0)
    mine = inputs(payload, torch.float32)[0]
    assert mostly_wrong(payload, mine[shift:], 0, [0])


@pytest.mark.parametrize("world_size", [2, 3, 8, 60])
def test_a_sum_without_one_rank_is_wrong_even_in_a_single_element(world_size: int) -> None:
    payload = Payload(world_size, 0)
    sent = inputs(payload, torch.int32, 1)
    for missing in range(world_size):
        total = sum((part for rank, part in enumerate(sent) if rank != missing), torch.zeros(1, dtype=torch.int32))
        assert payload.count_wrong(Expected(total, 0, range(world_size))) == 1


@settings(max_examples=50, deadline=None)
@given(st.integers(0, ELEMENTS - 1), st.sets(st.integers(0, ELEMENTS - 1), min_size=1, max_size=20))
def test_every_wrong_element_is_counted_and_no_other(start: int, places: set[int]) -> None:
    payload = Payload(3, 1)
    whole = inputs(payload, torch.int64)[2]
    whole[sorted(places)] += 1
    expected = Expected(whole[start:], start, [2])
    assert payload.count_wrong(expected) == sum(place >= start for place in places)


def test_an_empty_view_has_nothing_wrong() -> None:
    assert Payload(2, 0).count_wrong(Expected(torch.empty(0), 5, [0])) == 0


def test_not_a_number_is_wrong() -> None:
    payload = Payload(2, 0)
    mine = inputs(payload, torch.float32, 10)[0]
    mine[3] = float("nan")
    assert payload.count_wrong(Expected(mine, 0, [0])) == 1
