"""Curves through points that were made from known ones."""

from __future__ import annotations

import numpy as np
import pytest

from netbench.curves import fit

SIZES = 2.0 ** np.arange(10, 26)


def noisy(time_s: np.ndarray, share: float = 0.02, seed: int = 0) -> np.ndarray:
    return time_s * np.exp(np.random.default_rng(seed).normal(0, share, len(time_s)))


def test_latency_and_bandwidth_come_back_within_their_intervals() -> None:
    alphas, betas = [], []
    for seed in range(60):
        curve = fit(SIZES, noisy(100e-6 + SIZES / 1e9, seed=seed))
        alpha, beta = curve.alpha_s, curve.betas[-1]
        assert alpha.value == pytest.approx(100e-6, rel=0.1)
        assert beta.value == pytest.approx(1e9, rel=0.1)
        assert 0.005 < curve.spread < 0.04
        if not curve.bends:
            alphas.append(alpha.low < 100e-6 < alpha.high)
            betas.append(beta.low < 1e9 < beta.high)
    assert len(alphas) >= 40
    assert np.mean(alphas) >= 0.88
    assert np.mean(betas) >= 0.88


def test_a_curve_bends_where_the_data_does_and_stays_continuous() -> None:
    knee = 2.0**17
    true = 50e-6 + np.minimum(SIZES, knee) / 4e9 + np.maximum(0, SIZES - knee) / 5e8
    curve = fit(SIZES, noisy(true))
    assert min(abs(np.log2(bend / knee)) for bend in curve.bends) < 1
    assert curve(SIZES) == pytest.approx(true, rel=0.1)
    assert curve.betas[0].value > 6 * curve.betas[-1].value
    near = curve([curve.bends[-1] * 0.9999, curve.bends[-1] * 1.0001])
    assert near[1] == pytest.approx(near[0], rel=1e-3)


def test_noise_does_not_bend_it() -> None:
    bent = sum(
        bool(fit(SIZES, t).bends)
        for t in (
            (100e-6 + SIZES / 1e9) * np.exp(np.random.default_rng(seed).normal(0, 0.1, len(SIZES)))
            for seed in range(30)
        )
    )
    assert bent <= 5


def test_one_case_that_went_wrong_does_not_move_it() -> None:
    time_s = noisy(100e-6 + SIZES / 1e9)
    time_s[8] *= 5
    assert fit(SIZES, time_s).betas[-1].value == pytest.approx(1e9, rel=0.1)


def test_it_never_falls_and_is_never_negative() -> None:
    random = np.random.default_rng(1)
    for _ in range(30):
        curve = fit(SIZES, np.exp(random.normal(-8, 1, len(SIZES))))
        heights = curve(np.geomspace(1, 1e9, 200))
        assert heights[0] > 0
        assert (np.diff(heights) >= 0).all()


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_few_sizes_make_a_line_without_intervals_that_they_cannot_give(count: int) -> None:
    curve = fit(SIZES[:count], 100e-6 + SIZES[:count] / 1e9)
    assert len(curve.betas) == 1
    assert curve(SIZES[0]) == pytest.approx(100e-6 + SIZES[0] / 1e9, rel=0.01)
    if count == 2:
        assert (curve.alpha_s.low, curve.alpha_s.high) == (None, None)


def test_the_unit_of_size_and_time_does_not_matter() -> None:
    time_s = noisy(100e-6 + SIZES / 1e9)
    one, other = fit(SIZES, time_s), fit(SIZES * 1000, time_s * 1e6)
    assert other.alpha_s.value == pytest.approx(one.alpha_s.value * 1e6, rel=1e-3)
    assert other.betas[0].value == pytest.approx(one.betas[0].value / 1000, rel=1e-3)
