"""Talk between the ranks beside the measured traffic."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from threads import World

from netbench.backends import gloo_group
from netbench.control import Control


@pytest.fixture(scope="module")
def controls(world: Callable[[int], World]) -> list[Control]:
    three = world(3)
    return three.run(lambda rank: Control(gloo_group(three.wiring(rank, "control"), "control"), three.timeout_s))


def test_every_rank_learns_every_ranks_fact_in_order(controls: list[Control], world: Callable[[int], World]) -> None:
    facts: list[Any] = [{"host": "älpha", "free": 2**40}, None, {"text": "much longer than the others " * 50}]
    told = world(3).run(lambda rank: controls[rank].tell_all(facts[rank]))
    assert told == [facts, facts, facts]


def test_samples_are_gathered_on_rank_0_alone(controls: list[Control], world: Callable[[int], World]) -> None:
    arrays = [np.arange(12, dtype=np.int64).reshape(4, 3) + 2**62 * (rank == 2) + rank for rank in range(3)]
    gathered = world(3).run(lambda rank: controls[rank].gather(arrays[rank]))
    assert gathered[1:] == [[], []]
    for mine, arrived in zip(arrays, gathered[0], strict=True):
        assert arrived.dtype == np.int64
        assert np.array_equal(mine, arrived)


def test_samples_of_a_column_of_another_array_are_gathered_too(
    controls: list[Control], world: Callable[[int], World]
) -> None:
    whole = np.arange(20, dtype=np.int64).reshape(4, 5)
    gathered = world(3).run(lambda rank: controls[rank].gather(whole[:, ::2]))
    assert all(np.array_equal(array, whole[:, ::2]) for array in gathered[0])


def test_all_ranks_follow_rank_0(controls: list[Control], world: Callable[[int], World]) -> None:
    assert world(3).run(lambda rank: controls[rank].follow_root([rank + 5, 2**40 - rank])) == [[5, 2**40]] * 3


def test_not_a_number_is_not_told(controls: list[Control]) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        controls[0].tell_all(float("nan"))


def test_two_ranks_meet_without_the_third_and_neither_goes_ahead(
    controls: list[Control], world: Callable[[int], World]
) -> None:
    at: dict[str, float] = {}

    def meet(rank: int) -> None:
        if rank == 1:
            return  # a barrier of all would wait for it
        if rank == 2:
            time.sleep(0.2)
            at["second came"] = time.monotonic()
        controls[rank].meet_peer(2 - rank)
        at[f"rank {rank} went"] = time.monotonic()

    for _ in range(3):
        world(3).run(meet)
        assert min(at["rank 0 went"], at["rank 2 went"]) >= at["second came"]
    told = world(3).run(lambda rank: controls[rank].tell_all(rank))  # the group is as it was
    assert told == [[0, 1, 2]] * 3
