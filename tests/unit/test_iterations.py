"""What iterations say beyond their times, on samples whose answer is known; statistics against scipy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from netbench.iterations import Iterations, find, first_ratio, trend, two_modes


def rows(duration_ns: list[list[int]], **columns: list[list[int]]) -> dict[str, np.ndarray]:
    """Rows as in a sample file, from arrays of shape (ranks, iterations)."""
    table = np.array(duration_ns)
    ranks, count = table.shape
    flat = {name: np.array(column).ravel() for name, column in columns.items()}
    return {
        "rank": np.repeat(np.arange(ranks), count),
        "iteration": np.tile(np.arange(count), ranks),
        "duration_ns": table.ravel(),
    } | flat


def test_the_order_of_rows_does_not_matter() -> None:
    columns = rows([[1, 2, 3], [6, 5, 4]])
    shuffled = np.random.default_rng(0).permutation(6)
    found = Iterations.of({name: column[shuffled] for name, column in columns.items()}, {})
    assert found.duration_ns.tolist() == [[1, 2, 3], [6, 5, 4]]
    assert found.times_ns.tolist() == [6, 5, 4]


def test_ranks_without_the_same_iterations_are_refused() -> None:
    columns = rows([[1, 2], [3, 4]])
    columns["iteration"] = np.array([0, 1, 0, 2])
    with pytest.raises(ValueError, match="not the same iterations"):
        Iterations.of(columns, {})


def test_the_straggler_is_the_rank_that_is_slowest_most_often() -> None:
    found = find(Iterations.of(rows([[10, 10, 10, 99], [20, 20, 20, 10]]), {}))
    assert (found.slowest_rank, found.slowest_rank_share) == (1, 0.75)
    assert found.rank_spread == 0.5


def test_entry_skew_is_on_one_clock() -> None:
    # Rank 1's clock runs 1000 behind, and it begins 30 after rank 0.
    columns = rows([[5, 5, 5], [5, 5, 5]], start_ns=[[100, 200, 300], [-870, -770, -670]])
    assert find(Iterations.of(columns, {1: 1000})).entry_skew_ns == 30


def test_launches_are_told_apart_from_what_varies_within() -> None:
    columns = rows([[100, 100, 100, 150, 150, 150]], launch=[[1, 1, 1, 2, 2, 2]])
    found = find(Iterations.of(columns, {}))
    assert (found.launches, found.within_launch_spread) == (2, 0)
    assert found.between_launch_spread == pytest.approx(50 / 125)
    assert [block.tolist() for block in Iterations.of(columns, {}).blocks()] == [[100] * 3, [150] * 3]
    assert find(Iterations.of(rows([[100, 100]]), {})).between_launch_spread is None


def test_costs_are_means_over_ranks_and_iterations() -> None:
    columns = rows(
        [[1, 1], [1, 1]],
        cpu_user_ns=[[10, 20], [30, 40]],
        cpu_system_ns=[[1, 1], [1, 1]],
        minor_faults=[[0, 4], [0, 0]],
    )
    found = find(Iterations.of(columns, {}))
    assert (found.cpu_ns, found.minor_faults, found.voluntary_switches) == (26, 1, None)


def test_the_first_iteration_stands_out_only_above_all_that_follow() -> None:
    assert first_ratio([np.array([50, 10, 10, 25, 10, 10, 10])]) == 2
    assert first_ratio([np.array([50, 10])]) is None


def test_a_trend_is_scipy_s_rank_test_of_the_thirds() -> None:
    random = np.random.default_rng(1)
    times = (1e6 * (1 + np.linspace(0, 0.4, 60) + random.normal(0, 0.02, 60))).astype(int)
    found = trend(times)
    assert found.trend == pytest.approx(0.23, abs=0.03)
    assert found.trend_p == scipy.stats.mannwhitneyu(times[:20], times[-20:], method="asymptotic").pvalue < 1e-6


@pytest.mark.parametrize(
    ("draw", "low", "high"),
    [
        (lambda random: random.normal(1e6, 1e4, 4000), 2.5, 2.8),  # sqrt(2/pi) from the centre, sd sqrt(1 - 2/pi)
        (lambda random: random.uniform(1e6, 1.01e6, 4000), 3.4, 3.6),  # 2 sqrt(3)
        (lambda random: 1e6 * random.lognormal(0, 0.5, 4000), 2.5, 2.8),  # normal again, in logarithms
        (lambda random: random.permutation(np.r_[random.normal(1e6, 1e4, 30), random.normal(1.5e6, 1e4, 20)]), 30, 70),
    ],
    ids=["normal", "uniform", "lognormal", "two"],
)
def test_two_modes_are_farther_apart_than_halves_of_one(draw: object, low: float, high: float) -> None:
    found = two_modes(draw(np.random.default_rng(2)).astype(int))  # type: ignore[operator]
    assert low < found.modes_apart < high


def test_modes_have_their_medians_and_shares() -> None:
    found = two_modes(np.array([10, 11, 12, 30, 31, 32, 33, 34]))
    assert (found.fast_mode_ns, found.slow_mode_ns, found.slow_mode_share) == (11, 32, 5 / 8)
    assert two_modes(np.full(20, 7)).modes_apart is None


def test_one_heap_is_never_taken_for_two() -> None:
    random = np.random.default_rng(3)
    heaps = [random.gamma(shape, 1e5, 40) for shape in (1, 2, 5, 50) for _ in range(500)]
    apart = [two_modes(heap.astype(int) + 10_000) for heap in heaps]
    false = [m for m in apart if m.modes_apart >= 6 and 0.1 <= m.slow_mode_share <= 0.9]
    assert len(false) / len(apart) < 0.005


def test_a_small_trend_is_not_tested() -> None:
    assert trend(np.full(30, 1000)) == (0, None)
