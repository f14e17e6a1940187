"""A comparison as a picture: a row a case, its ratio with the interval, and the margin that does not matter."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from netbench.compare.comparison import Comparison, Pair
from netbench.page import THEMES, ink, make_folder, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: More rows than this cannot be read; the rest goes on another sheet.
_ROWS = 30

#: Distinct without colour.
_MARKERS = {"slower": ">", "faster": "<", "same": "o", "inconclusive": "|"}


def write_forests(comparisons: Sequence[Comparison], folder: Path, theme: str = "print") -> list[Path]:
    """Draws each comparison as PNG and SVG into ``folder``. Raises StorageError."""
    from matplotlib import rc_context

    make_folder(folder)
    with rc_context(THEMES[theme].style):
        return [
            path for one in comparisons for name, figure in forests(one) for path in save(figure, folder, name, theme)
        ]


def forests(comparison: Comparison) -> Iterator[tuple[str, Figure]]:
    """The sheets of a comparison with their names; none where nothing could be compared."""
    pairs = [pair for pair in comparison.pairs if pair.ratio is not None]
    sheets = math.ceil(len(pairs) / _ROWS)
    for sheet in range(sheets):
        part = pairs[sheet * _ROWS : (sheet + 1) * _ROWS]
        suffix = f"-{sheet + 1}" if sheets > 1 else ""
        yield f"compare-{comparison.base.id}-{comparison.other.id}{suffix}", _forest(comparison, part)


def _forest(comparison: Comparison, pairs: Sequence[Pair]) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    height = max(3.6, 2.3 + 0.3 * len(pairs))
    figure = Figure(figsize=(12.8, height))
    axes = figure.add_subplot()
    margin = 1 + comparison.margin
    axes.axvspan(1 / margin, margin, color=ink(0.9), linewidth=0)
    axes.axvline(1, color=ink(0.4), linewidth=1)
    ends = [1 / margin, margin]
    for row, pair in enumerate(pairs):
        assert pair.ratio is not None
        sure = pair.verdict in ("slower", "faster")
        colour = ink(0.0 if sure else 0.5)
        if pair.ratio.low is not None and pair.ratio.high is not None:
            axes.plot([pair.ratio.low, pair.ratio.high], [row, row], color=colour, linewidth=3 if sure else 1.5)
        marker = _MARKERS[pair.verdict]
        axes.plot(pair.ratio.value, row, marker=marker, color=colour, markersize=10 if sure else 7, linestyle="none")
        ends += [end for end in pair.ratio if end is not None]
    low, high = min(ends) / 1.05, max(ends) * 1.05
    ticks = [tick for tick in _TICKS if low <= tick <= high]
    axes.set(xscale="log", xlim=(low, high), ylim=(len(pairs) - 0.4, -0.6))
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{tick:g}" for tick in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yticks(range(len(pairs)), [pair.case_id for pair in pairs], fontsize=10)
    right = axes.twinx()
    right.set(ylim=axes.get_ylim())
    right.set_yticks(range(len(pairs)), [pair.verdict for pair in pairs], fontsize=10)
    for side in (axes, right):
        side.tick_params(axis="y", length=0)
        side.spines["left"].set_visible(False)
    right.grid(False)
    axes.set_xlabel("time / time of the baseline (ratio of medians, 95 % interval); right of 1 is slower")
    figure.text(0.012, 1 - 0.2 / height, "Against the baseline", fontsize=19, fontweight="bold", va="top")
    lines = f"{comparison.other.id} against {comparison.base.id} · grey: the margin of {comparison.margin:.0%}"
    if comparison.differences:
        lines += f" · differences of environment or settings: {len(comparison.differences)}"
    figure.text(0.012, 1 - 0.62 / height, lines, fontsize=11, va="top")
    figure.subplots_adjust(left=0.31, right=0.9, top=1 - 1.0 / height, bottom=0.75 / height)
    return figure


#: Ratios worth a label, so that neighbours do not touch whatever the range.
_TICKS = (
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.3,
    0.5,
    0.7,
    0.8,
    0.9,
    0.95,
    1,
    1.05,
    1.1,
    1.2,
    1.3,
    1.5,
    2,
    3,
    5,
    10,
    20,
    50,
    100,
)
