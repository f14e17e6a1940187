"""netbench: what torch.distributed really gets out of a network over TCP, and why."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from netbench.summary import Run

__version__ = "0.1.0"


def load(path: str | os.PathLike[str]) -> list[Run]:
    """The runs at or below ``path``, for a notebook or a script: ``[run] = netbench.load("results/<run>")``.

    ``run.summaries()`` is a pandas table with one row a case, ``run.samples()`` every sample.
    """
    from netbench import summary  # pandas is loaded by those who read

    return summary.load(path)


def draw(runs: Run | Sequence[Run], *names: str, rate: str = "Gbit/s", theme: str = "print") -> dict[str, Figure]:
    """Figures of a run by name, as matplotlib's own, to be changed and saved: ``draw(run)["bandwidth-allreduce"]``.

    ``names`` are those of ``netbench list``, all by default. Several runs come overlaid, in the figures that allow it,
    with the runs' names in the legend. ``theme`` is print or dark.
    """
    from netbench.figures import FIGURES, draw, draw_overlay

    if isinstance(runs, Sequence):
        return dict(draw_overlay(runs, rate, theme))
    return dict(draw(runs, rate, names or tuple(FIGURES), theme=theme))
