"""The two halves of netbench meet only at the record: what each may import, read from the sources."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import netbench

PACKAGE = Path(netbench.__file__).parent

SOURCES = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in sorted(PACKAGE.rglob("*.py"))}

#: Modules and packages that read records. The rest measures, but for those that offer both halves to the user.
READERS = {
    "metrics",
    "comparisons",
    "summary",
    "tables",
    "figures",
    "importers",
    "courses",
    "explain",
    "curves",
    "predictions",
    "report",
    "fits",
    "terminal",
    "page",
    "tune",
    "iterations",
    "interference",
    "ceiling",
    "verdicts",
    "compare",
    "requirements",
    "matrix",
    "heatmaps",
}
READING = {name for name in SOURCES if name.split(".")[0] in READERS}
BOTH = {"__init__", "__main__", "cli", "catalogue", "statistics"}
MEASURING = set(SOURCES) - READING - BOTH


def imported(path: Path, anywhere: bool) -> set[str]:
    """Modules imported at the top of a file, or anywhere in it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = ast.walk(tree) if anywhere else iter(tree.body)
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def packages(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("module", sorted(READING))
def test_reading_never_imports_torch(module: str) -> None:
    assert "torch" not in packages(imported(SOURCES[module], anywhere=True))


@pytest.mark.parametrize("module", sorted(MEASURING))
def test_measuring_never_imports_what_reads(module: str) -> None:
    names = imported(SOURCES[module], anywhere=True)
    assert not packages(names) & {"pandas", "matplotlib", "scipy"}
    assert not names & {f"netbench.{name}" for name in READING}


@pytest.mark.parametrize("module", ["metrics", "tables", "figures", "verdicts"])
def test_registries_can_be_listed_without_the_heavy_packages(module: str) -> None:
    assert not packages(imported(SOURCES[module], anywhere=False)) & {"pandas", "numpy", "matplotlib", "scipy", "rich"}
