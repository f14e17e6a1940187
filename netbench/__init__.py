"""netbench: what torch.distributed really gets out of a network over TCP, and why."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from netbench.summary import Run

__version__ = "0.1.0"


def load(path: str | os.PathLike[str]) -> list[Run]:
    """The runs at or below ``path``, for a notebook or a script: ``[run] = netbench.load("results/<run>")``.

    ``run.summaries()`` is a pandas table with one row a case, ``run.samples()`` every sample.
    """
    from netbench import summary  # pandas is loaded by those who read

    return summary.load(path)
