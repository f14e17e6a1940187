"""A number of every pair of hosts as a cell, darker where it is slower: two panels of one sheet."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from netbench.matrix import KINDS, Kind, Matrix
from netbench.page import Page, ink
from netbench.units import about_bytes, three_digits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: More hosts have no room for a number in each cell, nor for the name of each.
_MOST_WRITTEN = 32

#: Names of hosts are cut to this.
_LONG_NAME = 22


def draw_heat_maps(page: Page, matrix: Matrix, rate: str) -> Figure:
    """Latency and bandwidth beside each other; ``rate`` is one of metrics.RATES."""
    names = _names(matrix)
    size = min(13.0, 230 / min(len(names), _MOST_WRITTEN))
    left, right = page.grid(len(KINDS))
    for axes, kind in zip((left, right), KINDS, strict=True):
        _draw(page, axes, matrix, kind, rate)
        _label(axes, names, size)
    right.tick_params(labelleft=False)
    figure = page.finished()
    width, height = figure.get_size_inches()
    inches = max(map(len, names)) * size * 0.62 / 72  # of a letter of the font, about
    figure.subplots_adjust(left=0.03 + inches / width, right=0.97, bottom=0.045 + inches / height, wspace=0.08)
    return figure


def _draw(page: Page, axes: Axes, matrix: Matrix, kind: Kind, rate: str) -> None:
    """One number of every pair; of a pair that was measured in one order it stands on both sides of the diagonal."""
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Rectangle
    from numpy import full, isnan, nan, nanmax, nanmin

    unit, factor = _unit(matrix, kind, rate)
    places = {rank: place for place, rank in enumerate(matrix.ranks)}
    values, slow = full((len(places), len(places)), nan), {one.pair.ranks for one in matrix.slow(kind)}
    framed = set()
    both_ways = {pair.ranks for pair in matrix.pairs}
    for pair in matrix.pairs:
        row, column = (places[rank] for rank in pair.ranks)
        mirrored = [] if pair.ranks[::-1] in both_ways else [(column, row)]
        for cell in [(row, column), *mirrored]:
            if kind.name in pair.readings:
                values[cell] = pair.readings[kind.name].value * factor
            if pair.ranks in slow:
                framed.add(cell)
    if isnan(values).all():
        axes.text(0.5, 0.5, "no pair has a number", transform=axes.transAxes, ha="center", va="center")
        axes.set_xlim(-0.5, len(places) - 0.5)
        axes.set_ylim(len(places) - 0.5, -0.5)
        return
    usual = (matrix.usual(kind) or nan) * factor
    # What is nearly alike must look so.
    low, high = nanmin([0.8 * usual, nanmin(values)]), nanmax([1.2 * usual, nanmax(values)])
    shades = [ink(1), ink(0.5)] if kind.lower_is_better else [ink(0.5), ink(1)]  # text stays readable on all of it
    greys = LinearSegmentedColormap.from_list("light", shades)
    image = axes.imshow(values, cmap=greys, vmin=low, vmax=high, aspect="auto")
    if len(places) <= _MOST_WRITTEN:
        cells = [(row, column) for row in range(len(places)) for column in range(len(places))]
        texts = {cell: "none" if isnan(values[cell]) else three_digits(values[cell]) for cell in cells}
        texts |= {(place, place): "-" for place in range(len(places))}
        fontsize = min(14, 400 / len(places) / max(map(len, texts.values())))
        for (row, column), text in texts.items():
            axes.text(column, row, text, fontsize=fontsize, ha="center", va="center")
    for row, column in framed:
        corner = (column - 0.46, row - 0.46)
        axes.add_patch(Rectangle(corner, 0.92, 0.92, fill=False, edgecolor=ink(), linewidth=1.6))
    axes.set_title(f"{kind.name} of {about_bytes(matrix.sizes[kind.name])}", fontsize=13, pad=4)
    page.figure.colorbar(image, ax=axes, label=f"{kind.name} ({unit})", pad=0.02)


def _unit(matrix: Matrix, kind: Kind, rate: str) -> tuple[str, float]:
    """The unit in which the numbers are short enough for a cell, and how many make a second, or a bit per second."""
    unit = kind.metric.unit(rate)
    known = [pair.readings[kind.name].value for pair in matrix.pairs if kind.name in pair.readings]
    if kind.lower_is_better:
        return ("ms", 1e3) if known and min(known) >= 1e-3 else (unit.name, unit.factor)
    if known and max(known) * unit.factor / 8 < 1:
        return f"M{unit.name[1:]}", unit.factor / 8 * 1e3
    return unit.name, unit.factor / 8


def _label(axes: Axes, names: Sequence[str], size: float) -> None:
    every = math.ceil(len(names) / _MOST_WRITTEN)
    axes.set_xticks(range(0, len(names), every), names[::every], fontsize=size, rotation=90)
    axes.set_yticks(range(0, len(names), every), names[::every], fontsize=size)
    axes.grid(False)


def _names(matrix: Matrix) -> list[str]:
    """The hosts' names without their domains, cut where they are long."""
    names = [matrix.name(rank) for rank in matrix.ranks]
    hosts = [name.split(".")[0] for name in names]
    names = hosts if len(set(hosts)) == len(names) else names
    return [name if len(name) <= _LONG_NAME else f"{name[: _LONG_NAME - 9]}...{name[-6:]}" for name in names]
