"""Plots made of characters, for people on ssh: bandwidth against size, one plot for each mode and world size."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from netbench.metrics import METRICS
from netbench.model import streams_text
from netbench.page import Material, drawable, groups
from netbench.units import about_bytes

if TYPE_CHECKING:
    import pandas as pd

    from netbench.summary import Run

_MARKERS = "ox+*#@%&"
_ROWS = 22


def write_terminal(runs: Sequence[Run], rate: str, file: TextIO, width: int | None = None) -> None:
    """Draws the runs into the same plots, as wide as the terminal or ``width`` columns; coloured on a terminal."""
    width = min(width or shutil.get_terminal_size((100, 24)).columns, 140)
    colourless = not file.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") in ("dumb", "unknown")
    column = METRICS["busbw"].column(rate=rate)
    if len(runs) > 1:
        material = Material.overlaid(runs, rate)
    else:
        material = Material(runs[0], drawable(runs[0].summaries(rate)), rate)
    known = material.cases[material.cases[column].notna()]
    for (mode, variant, ranks), cases in groups(known, "mode", "variant", "world_size"):
        title = ", ".join(part for part in (mode, f"{ranks} ranks", variant, f"bus bandwidth in {rate}") if part)
        file.write(_plot(title, cases, column, width, colourless) + "\n")


def _plot(title: str, cases: pd.DataFrame, column: str, width: int, colourless: bool) -> str:
    """One plot on logarithmic axes; the lines' names stand below it, where they cover nothing."""
    import plotext

    figure = plotext.figure
    figure.clear()
    if colourless:
        figure.theme("colorless")
    figure.plot_size(width, _ROWS)
    figure.title(title)
    names = []
    for place, ((backend, streams), line) in enumerate(groups(cases, "backend", "streams")):
        marker = _MARKERS[place % len(_MARKERS)]
        x = [math.log2(size) for size in line["tensor_bytes"]]
        y = [math.log10(height) for height in line[column]]
        figure.draw(figure.signal(x, y, marker=marker).lines())
        names.append(f"{marker} {backend}, K={streams_text(streams)}")
    low, high = math.log2(cases["tensor_bytes"].min()), math.log2(cases["tensor_bytes"].max())
    step = max(1, math.ceil((high - low) / max(1, width // 14)))
    ticks: list[float] = list(range(math.ceil(low), math.floor(high) + 1, step)) or [low]
    figure.ruler("x").ticks(ticks, [about_bytes(2.0**tick) for tick in ticks])
    bottom, top = math.log10(cases[column].min()), math.log10(cases[column].max())
    digits = (1, 2, 5) if top - bottom < 2.2 else (1,)
    powers = range(math.floor(bottom), math.ceil(top) + 1)
    heights = [digit * 10.0**power for power in powers for digit in digits]
    inside = [height for height in heights if bottom <= math.log10(height) <= top] or [10**top]
    figure.ruler("y").ticks([math.log10(height) for height in inside], [f"{height:g}" for height in inside])
    if low == high:  # a single size; plotext warns of an axis without a length, in colour
        low, high = low - 0.5, high + 0.5
    figure.ruler("x").lim(low, high)
    figure.ruler("y").lim(bottom - 0.05, top + 0.05)
    figure.label("tensor per rank (bytes)")
    lines = figure.build().string(colourless).splitlines()
    return "\n".join([*(line.rstrip() for line in lines), *(f"  {name}" for name in names), ""])
