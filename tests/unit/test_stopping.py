"""When a case has been measured enough."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netbench.stopping import CAP, FLOOR, StopRule, is_precise

STEADY = np.full(40, 1_000_000)


def rule(iterations: int | None = None, rounds: int = 3, budget_s: float = 3.0, precision: float = 0.05) -> StopRule:
    return StopRule(iterations, rounds, budget_s, precision)


@given(iterations=st.integers(1, 10_000), rounds=st.integers(1, 50))
def test_an_exact_number_is_shared_out_over_the_rounds_to_the_last_one(iterations: int, rounds: int) -> None:
    shares = [rule(iterations, rounds).first(round) for round in range(rounds)]
    assert sum(shares) == iterations
    assert max(shares) - min(shares) <= 1


def test_an_exact_number_is_never_exceeded() -> None:
    assert rule(iterations=7).next(STEADY[:2], 2, 0.0) == (0, "iterations")


@pytest.mark.parametrize("rounds", [1, 2, 3, 10, 20])
def test_every_round_has_its_share_of_the_floor(rounds: int) -> None:
    assert rounds * rule(rounds=rounds).first(0) >= FLOOR


def test_steady_times_need_no_more_than_the_floor() -> None:
    assert rule().next(STEADY[:12], 4, 0.004) == (0, "precision")


def test_five_samples_are_never_precise() -> None:
    assert not is_precise(STEADY[:5], 0.05)


def test_unsteady_times_go_on_until_the_share_of_the_budget_is_spent() -> None:
    unsteady = np.array([1_000_000, 2_000_000] * 20)
    more, reason = rule().next(unsteady, 10, 0.5)  # 0.05 s each, 0.5 s of a round's 1 s are left
    assert (more, reason) == (5, "")
    assert rule().next(unsteady, 10, 0.98) == (0, "budget")
    assert rule().next(unsteady, 10, 99.0) == (0, "budget")


def test_no_more_are_asked_for_than_the_budget_pays() -> None:
    unsteady = np.array([1_000_000, 2_000_000] * 20)
    assert rule().next(unsteady, 10, 0.8).more == 2  # 0.08 s each, 0.2 s left


def test_there_is_a_cap() -> None:
    unsteady = np.array([1_000_000, 2_000_000] * (CAP // 2))
    assert rule(budget_s=1e9).next(unsteady, 10, 0.001) == (0, "cap")
    assert rule(budget_s=1e9).next(unsteady[:-1], 1000, 0.001).more == 1


@given(st.lists(st.integers(1, 10**12), min_size=6, max_size=60), st.floats(0.001, 0.5))
def test_precise_means_that_both_ends_of_the_interval_are_near_the_median(times: list[int], precision: float) -> None:
    from netbench.statistics import describe

    said = describe(np.array(times))
    assert said.low_ns is not None
    assert said.high_ns is not None
    near = max(said.median_ns - said.low_ns, said.high_ns - said.median_ns) <= precision * said.median_ns
    assert is_precise(np.array(times), precision) == near
