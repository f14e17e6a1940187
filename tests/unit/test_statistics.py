"""Headline times and order statistics, against numbers worked out by hand and against simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from netbench import statistics
from netbench.statistics import describe, headline_ns, median, median_interval, quantile, samples_for


def test_an_iteration_takes_as_long_as_its_slowest_rank() -> None:
    assert headline_ns(np.array([[10, 50, 10], [20, 10, 10]])).tolist() == [20, 50, 10]


@settings(deadline=None)  # the first call imports scipy
@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=400))
def test_statistics_are_ordered(times: list[int]) -> None:
    found = describe(np.array(times))
    assert found.iterations == len(times)
    assert found.median_ns == pytest.approx(float(np.median(times)))
    known = [found.min_ns, found.p25_ns, found.median_ns, found.p75_ns, found.p95_ns, found.p99_ns, found.max_ns]
    numbers = [number for number in known if number is not None]
    assert numbers == sorted(numbers)
    if found.low_ns is not None and found.high_ns is not None:
        assert found.min_ns <= found.low_ns <= found.median_ns <= found.high_ns <= found.max_ns


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, None), (5, None), (6, (0, 5)), (8, (0, 7)), (9, (1, 7)), (10, (1, 8)), (20, (5, 14)), (100, (39, 60))],
)
def test_median_interval_against_the_table_of_the_sign_test(count: int, expected: tuple[int, int] | None) -> None:
    assert median_interval(count) == expected


@settings(deadline=None)
@given(st.integers(6, 500))
def test_the_interval_is_the_narrowest_that_covers(count: int) -> None:
    interval = median_interval(count)
    assert interval is not None
    low, high = interval
    assert low + high == count - 1

    def coverage(first: int) -> float:
        return 1 - 2 * sum(math.comb(count, below) for below in range(first + 1)) / 2**count

    assert coverage(low) >= 0.95
    assert coverage(low + 1) < 0.95


@pytest.mark.parametrize("count", [6, 20, 61])
def test_the_interval_covers_the_true_median_of_skewed_samples(count: int) -> None:
    samples = np.random.default_rng(1).lognormal(0, 1, (4000, count)) * 1e6
    interval = median_interval(count)
    assert interval is not None
    ordered = np.sort(samples, axis=1)
    share = ((ordered[:, interval[0]] <= 1e6) & (ordered[:, interval[1]] >= 1e6)).mean()
    assert 0.94 < share < 0.99


def test_far_percentiles_are_left_blank_until_there_are_samples_for_them() -> None:
    assert (samples_for(0.95), samples_for(0.99)) == (59, 299)
    blank = {count: describe(np.arange(1, count + 1)) for count in (58, 59, 298, 299)}
    assert [found.p95_ns is None for found in blank.values()] == [True, False, False, False]
    assert [found.p99_ns is None for found in blank.values()] == [True, True, True, False]


def test_an_interval_from_drawn_medians_is_that_of_drawn_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are many samples the medians are drawn themselves; both ways agree to a fraction of the width."""
    random = np.random.default_rng(1)
    slow, fast = random.gamma(2, 1.0, 400) + 3, random.gamma(2, 1.0, 301) + 2
    drawn = statistics.estimate(lambda one, other: one / other, slow, fast)
    monkeypatch.setattr(statistics, "_MANY_SAMPLES", 10_000)
    bootstrapped = statistics.estimate(lambda one, other: one / other, slow, fast)
    assert drawn.value == bootstrapped.value
    width = bootstrapped.high - bootstrapped.low
    assert drawn.low == pytest.approx(bootstrapped.low, abs=0.1 * width)
    assert drawn.high == pytest.approx(bootstrapped.high, abs=0.1 * width)


@pytest.mark.parametrize("count", [6, 7, 10, 12, 30, 101])
@pytest.mark.parametrize("draw", ["exponential", "lognormal", "normal"])
def test_the_interval_of_a_median_holds_it_in_95_of_100(count: int, draw: str) -> None:
    tries = 2000
    samples = np.sort(getattr(np.random.default_rng(count), draw)(size=(tries, count)), axis=1)
    low, high = median_interval(count)
    median = {"exponential": np.log(2), "lognormal": 1.0, "normal": 0.0}[draw]
    held = ((samples[:, low] <= median) & (median <= samples[:, high])).sum()
    # By the binomial's closed form it is at least 95 %; fewer than this has a chance below one in ten thousand.
    assert held >= binom.ppf(1e-4, tries, 0.95)


@given(
    st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=50), st.sampled_from([0.25, 0.5, 0.75, 0.95, 0.99])
)
def test_a_quantile_of_sorted_samples_is_numpys(samples: list[int], share: float) -> None:
    assert quantile(np.sort(samples), share) == pytest.approx(float(np.quantile(samples, share)), rel=1e-12)


def test_median_interval_is_by_the_binomial_distribution() -> None:
    counts = [*range(1, 3000), 10**5, 10**6, 10**6 + 1]
    ranks = binom.ppf(0.025, counts, 0.5).astype(int)
    for count, rank in zip(counts, ranks.tolist(), strict=True):
        assert median_interval.__wrapped__(count) == ((rank - 1, count - rank) if rank else None)


@given(st.lists(st.integers(1, 2**61) | st.floats(0, 1), min_size=1, max_size=30))
def test_median_is_numpys(values: list[float]) -> None:
    for array in (np.array(values), np.array([int(value) for value in values])):
        assert median(array) == np.median(array)
