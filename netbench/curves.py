"""Time against bytes as a curve: a latency, and a bandwidth for each stretch of sizes that needs one of its own.

T = alpha + bytes / beta is what a link without surprises does. Real ones have protocols that change with the size,
caches and buckets, so a curve may bend: it stays continuous and never falls, and each bend must pay for itself by the
Bayesian information criterion. Errors are relative: what matters at 10 us must not be lost beside 10 s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

#: More bends than two explain noise.
_MOST_BENDS = 2

#: A stretch with fewer sizes than this has no bandwidth to speak of.
_LEAST_SIZES = 3

#: A part of the time that is less than this of every case's is not seen.
_SEEN = 0.1

#: Relative errors from here on count ever less: one case that went wrong must not bend the curve. 10 %.
_OUTLYING = 0.1


@dataclass(frozen=True)
class Bound:
    """A fitted number with its 95 % interval, null where the sizes do not determine it.

    ``seen`` tells whether it makes a tenth of the time of any case; what does not is hardly more than a bound.
    """

    value: float
    low: float | None
    high: float | None
    seen: bool = True


@dataclass(frozen=True)
class Curve:
    """``alpha_s``: time of an empty message, s. ``betas``: bytes/s on each stretch. ``bends``: bytes between stretches.


    ``spread`` is the root mean square of the relative errors; ``bic`` of this curve, lower is better.
    """

    alpha_s: Bound
    betas: tuple[Bound, ...]
    bends: tuple[float, ...]
    spread: float
    bic: float

    def __call__(self, size: ArrayLike) -> Floats:
        """The time in s at so many bytes."""
        slopes = np.array([1 / beta.value for beta in self.betas])
        time: Floats = self.alpha_s.value + _stretches(np.asarray(size, float), self.bends) @ slopes
        return time


def fit(size: Floats, time_s: Floats) -> Curve:
    """The curve through cases of ``size`` bytes, any order, that took ``time_s``; both positive, at least two sizes."""
    order = np.argsort(size, kind="stable")
    size, time_s = size[order], time_s[order]
    start, bends, bic = min(_candidates(size, time_s), key=lambda candidate: candidate[2])
    design = _design(size, bends)
    from scipy.optimize import least_squares

    # A part of the time below this cannot be seen in any case.
    floor = 1e-3 * np.min(time_s[:, None] / np.maximum(design, 1e-3), axis=0)
    found = least_squares(
        lambda logs: np.log(design @ np.exp(logs)) - np.log(time_s),
        np.log(np.maximum(start, 2 * floor)),
        jac=lambda logs: design * np.exp(logs) / (design @ np.exp(logs))[:, None],
        bounds=(np.log(floor), np.inf),
        loss="soft_l1",
        f_scale=_OUTLYING,
    )
    errors = np.log(design @ np.exp(found.x)) - np.log(time_s)
    share = np.max(design * np.exp(found.x) / (design @ np.exp(found.x))[:, None], axis=0)
    alpha, *slopes = _bounds(found.x, found.jac, errors, share >= _SEEN)
    betas = tuple(_inverse(slope) for slope in slopes)
    return Curve(alpha, betas, bends, float(np.sqrt(np.mean(errors**2))), bic)


def _candidates(size: Floats, time_s: Floats) -> Iterator[tuple[Floats, tuple[float, ...], float]]:
    """Coefficients, bends and BIC of each way to bend, the straight line first."""
    from scipy.optimize import nnls

    sizes = np.unique(size)
    for count in range(_MOST_BENDS + 1):
        for places in combinations(range(1, len(sizes) - 1), count):
            # A bend is at a size, which then belongs to both stretches.
            if count and min(np.diff([-1, *places, len(sizes)])) < _LEAST_SIZES:
                continue
            bends = tuple(float(sizes[place]) for place in places)
            design = _design(size, bends)
            found, _ = nnls(design / time_s[:, None], np.ones(len(size)))
            errors = np.log(np.maximum(design @ found, 1e-12)) - np.log(time_s)
            # An alpha, a beta for each stretch, a place for each bend; never better than clocks are.
            numbers = 2 + 2 * count
            bic = len(size) * np.log(np.mean(errors**2) + 1e-6) + numbers * np.log(len(size))
            yield found, bends, float(bic)


def _design(size: Floats, bends: Sequence[float]) -> Floats:
    return np.column_stack([np.ones(len(size)), _stretches(size, bends)])


def _stretches(size: Floats, bends: Sequence[float]) -> Floats:
    """How many of the bytes lie in each stretch; one more axis at the end."""
    low, high = np.array([0.0, *bends]), np.array([*bends, np.inf])
    bytes_within: Floats = np.clip(size[..., None], low, high) - low
    return bytes_within


def _bounds(logs: Floats, jacobian: Floats, errors: Floats, seen: NDArray[np.bool_]) -> list[Bound]:
    """Intervals of exp(logs) from the curvature at the minimum; none for what is not seen or spans a factor of 10^4."""
    from scipy.stats import t

    spare = len(errors) - len(logs)
    widths = np.full(len(logs), np.inf)
    if spare:
        variance = np.sum(errors**2) / spare
        widths = t.ppf(0.975, spare) * np.sqrt(np.diag(np.linalg.pinv(jacobian.T @ jacobian)) * variance)
    return [
        Bound(float(np.exp(one)), float(np.exp(one - width)), float(np.exp(one + width)))
        if part and width < np.log(100)
        else Bound(float(np.exp(one)), None, None, bool(part))
        for one, width, part in zip(logs, widths, seen, strict=True)
    ]


def _inverse(slope: Bound) -> Bound:
    if slope.low is None or slope.high is None:
        return Bound(1 / slope.value, None, None, slope.seen)
    return Bound(1 / slope.value, 1 / slope.high, 1 / slope.low)
