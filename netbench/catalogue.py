"""Everything that has a name, with a line each: what ``netbench list`` prints and the documentation's tables hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from netbench.backends import BACKENDS
from netbench.config import presets, question
from netbench.doctor import CHECKS
from netbench.experiments import EXPERIMENTS
from netbench.figures import FIGURES
from netbench.importers import TOOLS
from netbench.launch import LAUNCHERS
from netbench.metrics import METRICS
from netbench.modes import MODES
from netbench.registry import Registry, one_line
from netbench.tables import FORMATS
from netbench.verdicts import VERDICTS

REGISTRIES: Mapping[str, Registry[Any]] = {
    "modes": MODES,
    "backends": BACKENDS,
    "metrics": METRICS,
    "figures": FIGURES,
    "verdicts": VERDICTS,
    "formats": FORMATS,
    "launchers": LAUNCHERS,
    "tools": TOOLS,
    "experiments": EXPERIMENTS,
    "checks": CHECKS,
}


def sections() -> dict[str, dict[str, str]]:
    """Section title -> name -> one line, presets last."""
    listed = {title: {name: one_line(registry[name]) for name in registry} for title, registry in REGISTRIES.items()}
    return listed | {"presets": {name: question(path) for name, path in presets().items()}}
