"""When a case has been measured enough."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netbench.stopping import CAP, FLOOR, REASONS, StopRule, reach_of

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
    assert reach_of(STEADY[:5]) is None
    assert rule().next(STEADY[:5], 5, 0.005).more == 2


def test_unsteady_times_go_on_until_the_share_of_the_budget_is_spent() -> None:
    unsteady = np.array([1_000_000, 2_000_000] * 20)
    # 0.05 s each, and 0.5 s of a round's 1 s are left: so many pay, though more are wanted.
    assert rule().next(unsteady, 10, 0.5) == (10, "")
    assert rule().next(unsteady, 10, 0.98) == (0, "budget")
    assert rule().next(unsteady, 10, 99.0) == (0, "budget")


def test_no_more_are_asked_for_than_the_budget_pays() -> None:
    unsteady = np.array([1_000_000, 2_000_000] * 20)
    assert rule().next(unsteady, 10, 0.8).more == 2  # 0.08 s each, 0.2 s left


def test_there_is_a_cap() -> None:
    unsteady = np.array([1_000_000, 2_000_000] * (CAP // 2))
    assert rule(budget_s=1e9).next(unsteady, 10, 0.001) == (0, "cap")
    assert rule(budget_s=1e9).next(unsteady[:-1], 1000, 0.001).more == 1


@given(st.lists(st.integers(1, 10**12), min_size=6, max_size=60))
def test_the_reach_is_that_of_the_intervals_farther_end(times: list[int]) -> None:
    from netbench.statistics import describe

    said = describe(np.array(times))
    assert said.low_ns is not None
    assert said.high_ns is not None
    reach = max(said.median_ns - said.low_ns, said.high_ns - said.median_ns) / said.median_ns
    assert reach_of(np.array(times)) == pytest.approx(reach)


def test_as_many_are_asked_for_as_should_do() -> None:
    spread = np.linspace(900_000, 1_100_000, 40).astype(int)  # the interval reaches about 3 % beyond
    reach = reach_of(spread)
    assert reach is not None
    asked = rule(precision=reach / 1.2, budget_s=1e9).next(spread, 4, 0.004).more
    assert asked == int(40 * (1.2**2 - 1))  # the reach shrinks with the root of the samples


def test_no_step_is_more_than_doubling_or_less_than_half_of_the_visit() -> None:
    spread = np.linspace(500_000, 1_500_000, 40).astype(int)
    assert rule(precision=0.001, budget_s=1e9).next(spread, 4, 0.004).more == 80
    reach = reach_of(spread)
    assert reach is not None
    assert rule(precision=reach * 0.999, budget_s=1e9).next(spread, 30, 0.004).more == 15


def test_every_reason_can_be_told() -> None:
    assert {"precision", "budget", "cap", "iterations", ""} == set(REASONS)
