"""What ``netbench fit`` and ``netbench predict`` answer with: rows of numbers, their texts, and figures of a fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from netbench.curves import Bound
from netbench.listing import Row
from netbench.metrics import DEFAULT_RATE, RATES
from netbench.model import streams_text
from netbench.page import THEMES, Material, Page, groups, ink, joined, plain_number, save, styles
from netbench.predictions import Prediction, Predictions, Series, Step
from netbench.record import make_own_folder
from netbench.units import about_seconds, format_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from netbench.summary import Run


def fit_rows(predictions: Predictions, rate: str = DEFAULT_RATE) -> list[Row]:
    """One row for each stretch of each series; sizes are tensor bytes, betas are bus bandwidth.

    ``error`` is the root mean square of the cases' relative errors, ``worst_error`` the largest, of the case of
    ``worst_tensor_bytes``.
    """
    return [row for series in predictions.series for row in _stretches(series, rate)]


def _stretches(series: Series, rate: str) -> Iterator[Row]:
    curve, unit = series.curve, RATES[rate]
    ratios = series.time_s / curve(series.size)
    worst = int(np.argmax(np.abs(np.log(ratios))))
    ends = [series.size[0], *curve.bends, series.size[-1]]
    for beta, low, high in zip(curve.betas, ends, ends[1:], strict=False):
        yield {
            **{name: getattr(series, name) for name in Series.KEY},
            "sizes": len(series.size),
            "from_tensor_bytes": round(low / series.bus_ratio),
            "to_tensor_bytes": round(high / series.bus_ratio),
            **_bound("alpha", curve.alpha_s, "_us", 1e6),
            **_bound("beta", beta, unit.suffix, unit.factor),
            "alpha_seen": curve.alpha_s.seen,
            "beta_seen": beta.seen,
            "error": curve.spread,
            "worst_error": float(ratios[worst] - 1),
            "worst_tensor_bytes": int(series.cases["tensor_bytes"].iloc[worst]),
        }


def _bound(name: str, bound: Bound, suffix: str, factor: float) -> dict[str, float | None]:
    ends = {"": bound.value, "_low": bound.low, "_high": bound.high}
    return {f"{name}{end}{suffix}": None if value is None else value * factor for end, value in ends.items()}


def fit_texts(row: Row, rate: str = DEFAULT_RATE) -> Mapping[str, str]:
    suffix = RATES[rate].suffix
    alpha_ends = [row["alpha_low_us"], row["alpha_high_us"]]
    beta_ends = [row[f"beta_low{suffix}"], row[f"beta_high{suffix}"]]
    return {
        **_series_texts(row),
        "from": format_bytes(row["from_tensor_bytes"]),
        "to": format_bytes(row["to_tensor_bytes"]),
        "alpha": about_seconds(row["alpha_us"] / 1e6) if row["alpha_seen"] else "not seen",
        "its 95 %": "" if None in alpha_ends else " to ".join(about_seconds(end / 1e6) for end in alpha_ends),
        f"beta ({rate})": f"{row[f'beta{suffix}']:.3g}" if row["beta_seen"] else "flat",
        "its 95 % ": "" if None in beta_ends else f"{beta_ends[0]:.3g} to {beta_ends[1]:.3g}",
        "error": f"{row['error']:.1%}",
        "worst": f"{row['worst_error']:+.0%} at {format_bytes(row['worst_tensor_bytes'])}",
    }


def _series_texts(row: Row) -> dict[str, str]:
    texts = {"mode": row["mode"], "backend": row["backend"], "K": streams_text(row["streams"])}
    return texts | {"N": str(row["world_size"])} | ({"variant": row["variant"]} if row["variant"] else {})


def hindsight(predictions: Predictions) -> list[str]:
    """How wrong the run would have been about its own ends, had it not measured them: lines for people."""
    lines = []
    if steps := predictions.size_steps:
        lines.append(f"the largest size of each series, from sizes up to a quarter of it: {_off(steps)}")
    for world_size in sorted({step.series.world_size for step in predictions.world_steps}):
        steps = [step for step in predictions.world_steps if step.series.world_size == world_size]
        lines.append(f"N={world_size}, from smaller world sizes: {_off(steps)}")
    return [f"it would have predicted {line}" for line in lines]


def _off(steps: Sequence[Step]) -> str:
    worst = max(steps, key=lambda step: abs(np.log(step.ratio)))
    median = float(np.median([abs(step.ratio - 1) for step in steps]))
    where = f"{worst.series.name}, {format_bytes(worst.tensor_bytes)}"
    return f"{median:.0%} off (median of {len(steps)}); worst: {worst.ratio:.2f} times the predicted time ({where})"


def prediction_row(prediction: Prediction) -> Row:
    row: dict[str, Any] = asdict(prediction)
    return row | {"beyond": list(prediction.beyond), "interpolates": not prediction.beyond}


def prediction_texts(row: Row) -> Mapping[str, str]:
    ends = [row["low_s"], row["high_s"]]
    return {
        **_series_texts(row),
        "tensor": format_bytes(row["tensor_bytes"]),
        "time": about_seconds(row["time_s"]),
        "its 90 %": "unknown" if None in ends else " to ".join(map(about_seconds, ends)),
        "": f"EXTRAPOLATED: {'; '.join(row['beyond'])}" if row["beyond"] else "interpolated",
    }


def write_fit(run: Run, predictions: Predictions, theme: str = "print") -> list[Path]:
    """Draws a fit as PNG and SVG into the run's ``plots``. Raises StorageError."""
    folder = run.folder.plots
    make_own_folder(folder)
    return [path for name, figure in draw_fit(run, predictions, theme) for path in save(figure, folder, name, theme)]


def draw_fit(run: Run, predictions: Predictions, theme: str = "print") -> Iterator[tuple[str, Figure]]:
    """Two figures for each mode: the cases with the curves and their 90 % bands, and what is left between the two."""
    from matplotlib import rc_context

    for (mode, variant), many in _by_mode(predictions).items():
        for draw in (_curves, _residuals):
            with rc_context(THEMES[theme].style):
                page = draw(run, predictions, mode, many)
            yield joined(f"fit{draw.__name__}", mode, variant), page


def _by_mode(predictions: Predictions) -> dict[tuple[str, str], list[Series]]:
    found: dict[tuple[str, str], list[Series]] = {}
    for series in predictions.series:
        found.setdefault((series.mode, series.variant), []).append(series)
    return found


def _curves(run: Run, predictions: Predictions, mode: str, many: Sequence[Series]) -> Figure:
    cases = pd.concat([series.cases for series in many])
    page = Page(Material(run, cases), cases, f"{mode}: fitted time", "line: alpha + bytes/beta\nband: 90 % of cases")
    looks = styles(key for key, _ in groups(cases, "backend", "streams"))
    for axes, panel in page.panels(cases):
        for series in _in_panel(many, panel):
            look = looks[series.backend, series.streams]
            tensor = np.geomspace(series.cases["tensor_bytes"].min(), series.cases["tensor_bytes"].max(), 120)
            size = tensor * series.bus_ratio
            time_s = series.curve(size)
            off = np.exp(predictions.reach * np.array([series.scatter(one) for one in size]))
            page.line(
                axes,
                list(tensor),
                pd.Series(time_s),
                _label(series),
                look | {"marker": None},
                [pd.Series(time_s / off), pd.Series(time_s * off)],
            )
            axes.plot(series.cases["tensor_bytes"], series.time_s, **look | {"linestyle": "none"})
    page.sizes(cases["tensor_bytes"], "tensor per rank (bytes)")
    page.heights("time of one iteration (seconds)", about_seconds)
    return page.finished()


def _residuals(run: Run, predictions: Predictions, mode: str, many: Sequence[Series]) -> Figure:
    cases = pd.concat([series.cases for series in many])
    page = Page(Material(run, cases), cases, f"{mode}: what the fit leaves", "measured median / fitted time")
    looks = styles(key for key, _ in groups(cases, "backend", "streams"))
    for axes, panel in page.panels(cases):
        axes.axhline(1, color=ink(0.4), linewidth=1)
        for series in _in_panel(many, panel):
            ratio = pd.Series(series.time_s / series.curve(series.size))
            page.line(axes, series.cases["tensor_bytes"], ratio, _label(series), looks[series.backend, series.streams])
    page.sizes(cases["tensor_bytes"], "tensor per rank (bytes)")
    page.heights("measured / fitted (ratio)", plain_number)
    return page.finished()


def _in_panel(many: Sequence[Series], panel: pd.DataFrame) -> list[Series]:
    return [series for series in many if series.world_size == panel["world_size"].iloc[0]]


def _label(series: Series) -> str:
    streams = streams_text(series.streams)
    return f"{series.backend}, {streams} stream{'' if streams == '1' else 's'}"
