"""What ``netbench compare`` prints: one function a format, each writing comparisons to a stream."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from netbench.compare.comparison import VERDICTS, Comparison, Pair
from netbench.registry import Registry
from netbench.units import about_seconds

if TYPE_CHECKING:
    from rich.table import Table

_Write = Callable[["Sequence[Comparison]", TextIO], None]

_STYLES = {"slower": "bold red", "faster": "green", "same": "", "inconclusive": "dim", "not compared": "dim"}

_HEADINGS = ("case", "baseline", "now", "ratio", "from", "to", "p", "verdict")


class Format:
    """``write(comparisons, file)``."""

    def __init__(self, name: str, write: _Write) -> None:
        self.name = name
        self.write = write
        self.__doc__ = write.__doc__


FORMATS: Registry[Format] = Registry("format of comparisons")


def _format(write: _Write) -> _Write:
    FORMATS.add(Format(write.__name__.rstrip("_"), write))  # json is the module
    return write


@_format
def table(comparisons: Sequence[Comparison], file: TextIO) -> None:
    """For people: what differs between the runs, then every case."""
    from rich.console import Console

    console = Console(file=file) if file.isatty() else Console(file=file, width=400)
    for comparison in comparisons:
        for line in _head(comparison):
            console.print(line, markup=False, highlight=False)
        console.print(_drawn(comparison))
        for line in _foot(comparison):
            console.print(line, markup=False, highlight=False, style="dim")


@_format
def markdown(comparisons: Sequence[Comparison], file: TextIO) -> None:
    """The same, to paste into an issue."""
    for comparison in comparisons:
        title, *lines = _head(comparison)
        file.write(f"**{title}**\n\n" + "".join(f"* {line.strip()}\n" for line in lines) + "\n")
        rules = ["---", *["---:"] * (len(_HEADINGS) - 2), "---"]
        for cells in (_HEADINGS, rules, *map(_cells, comparison.pairs)):
            file.write("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
        file.write("\n" + "".join(f"* {line}\n" for line in _foot(comparison)) + "\n")


@_format
def csv(comparisons: Sequence[Comparison], file: TextIO) -> None:
    """Every case of every comparison under one heading; the differences are in the other formats."""
    import pandas as pd

    rows = [row for comparison in comparisons for row in _rows(comparison)]
    pd.DataFrame(rows).to_csv(file, index=False, lineterminator="\n")


@_format
def json_(comparisons: Sequence[Comparison], file: TextIO) -> None:
    """A list of comparisons, each with its runs, differences and cases; what is unknown is null."""
    documents = [
        {
            "base": comparison.base.id,
            "other": comparison.other.id,
            "margin": comparison.margin,
            "differences": [difference._asdict() for difference in comparison.differences],
            "counts": {verdict: comparison.count(verdict) for verdict in VERDICTS},
            "cases": list(_rows(comparison)),
        }
        for comparison in comparisons
    ]
    json.dump(documents, file, indent=1, allow_nan=False)
    file.write("\n")


def _rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    for pair in comparison.pairs:
        ratio = pair.ratio
        yield {
            "base_run": comparison.base.id,
            "run": comparison.other.id,
            "case_id": pair.case_id,
            "verdict": pair.verdict,
            "reason": pair.reason or None,
            "base_median_ns": pair.base_ns,
            "median_ns": pair.other_ns,
            "ratio": ratio.value if ratio else None,
            "ratio_low": ratio.low if ratio else None,
            "ratio_high": ratio.high if ratio else None,
            "p": pair.p,
            "p_adjusted": pair.p_adjusted,
            "blocks": pair.blocks or None,
        }


def _head(comparison: Comparison) -> Iterator[str]:
    yield f"{comparison.other.id} against {comparison.base.id}"
    if not comparison.differences:
        yield "  network, environment and settings are the same"
    for what, base, other in comparison.differences:
        yield f"  differs: {what}: {base or 'nothing'} -> {other or 'nothing'}"


def _foot(comparison: Comparison) -> Iterator[str]:
    counts = (f"{count} {verdict}" for verdict in VERDICTS if (count := comparison.count(verdict)))
    yield ", ".join(counts)
    blocks = dict.fromkeys(pair.blocks for pair in comparison.pairs if pair.blocks)
    yield "ratio: of median times, above 1 is slower; from, to: its 95 % interval" + (
        f", over {'; '.join(blocks)} (baseline, now)" if blocks else ""
    )
    yield f"p: rank test (Mann-Whitney), adjusted for all cases (Holm); margin: {comparison.margin:.0%}"


def _cells(pair: Pair) -> list[str]:
    def seconds(ns: float | None) -> str:
        return "" if ns is None else about_seconds(ns / 1e9)

    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.3f}"

    ratio, p = pair.ratio, pair.p_adjusted
    return [
        pair.case_id,
        seconds(pair.base_ns),
        seconds(pair.other_ns),
        number(ratio.value if ratio else None),
        number(ratio.low if ratio else None),
        number(ratio.high if ratio else None),
        "" if p is None else f"{p:.2g}" if p >= 1e-4 else f"1e{math.ceil(math.log10(p)) if p else -300}",
        pair.verdict + (f": {pair.reason}" if pair.reason else ""),
    ]


def _drawn(comparison: Comparison) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in _HEADINGS:
        words = name in ("case", "verdict")
        drawn.add_column(name, justify="left" if words else "right", no_wrap=not words, overflow="fold")
    for pair in comparison.pairs:
        drawn.add_row(*map(Text, _cells(pair)), style=_STYLES[pair.verdict])
    return drawn
