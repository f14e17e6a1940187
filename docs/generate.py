"""Fills the tables of the documentation from the registries, between their markers.

Run it after adding a mode, a metric or a figure; a test fails while the tables are stale:

    python docs/generate.py
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from pathlib import Path

from netbench.doctor import CHECKS
from netbench.errors import Exit
from netbench.figures import FIGURES
from netbench.importers import TOOLS
from netbench.metrics import METRICS, RATES
from netbench.modes import MODES
from netbench.registry import one_line
from netbench.statistics import median_interval, samples_for
from netbench.tables import FORMATS
from netbench.verdicts import VERDICTS

FOLDER = Path(__file__).parent

sys.path.append(str(FOLDER.parent / "tests"))
from faults.cells import GROUPS, Cell  # noqa: E402


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def modes() -> str:
    """Formulas as their values at two and four ranks, since a mode holds functions, not text."""

    def values(function: Callable[[int], Fraction]) -> list[Fraction]:
        return [function(world_size) for world_size in (2, 4)]

    rows = [
        [
            f"`{name}`",
            *values(mode.message_ratio),
            *values(mode.bus_factor),
            *values(mode.transmit_ratio),
            mode.messages,
            one_line(mode),
        ]
        for name, mode in MODES.items()
    ]
    headings = ["S, N=2", "S, N=4", "bus factor, N=2", "N=4", "T, N=2", "T, N=4", "messages"]
    return table(["mode", *headings, "what it does"], rows)


def metrics() -> str:
    rows = []
    for name, metric in METRICS.items():
        columns = " or ".join(dict.fromkeys(f"`{metric.column(rate=rate)}`" for rate in RATES))
        units = " or ".join(dict.fromkeys(metric.unit(rate).name for rate in RATES)) or "ratio"
        rows.append([f"`{name}`", metric.label, units, metric.better, columns, one_line(metric)])
    return table(["metric", "label", "unit", "better", "column", "definition"], rows)


def statistics() -> str:
    least = next(count for count in range(1, 100) if median_interval(count))
    rows = [
        ["median, quartiles, mean, smallest, largest", 1],
        ["95 % confidence interval of the median", least],
        ["p95", samples_for(0.95)],
        ["p99", samples_for(0.99)],
    ]
    return table(["statistic", "needs so many timed iterations"], rows)


def figures() -> str:
    return table(["figure", "what it shows"], [[f"`{name}`", one_line(figure)] for name, figure in FIGURES.items()])


def formats() -> str:
    return table(["format", "what it prints"], [[f"`{name}`", one_line(format)] for name, format in FORMATS.items()])


def tools() -> str:
    return table(["tool", "what is read"], [[f"`{name}`", one_line(tool)] for name, tool in TOOLS.items()])


def verdicts() -> str:
    rows = [[f"`{name}`", verdict.mark, one_line(verdict)] for name, verdict in VERDICTS.items()]
    return table(["verdict", "mark", "what was found"], rows)


def checks() -> str:
    return table(["check", "what it looks for"], [[f"`{name}`", one_line(one)] for name, one in CHECKS.items()])


def exits() -> str:
    return table(["code", "meaning"], [[int(code), code.meaning] for code in Exit])


def faults() -> str:
    """The tests' own list, so that what stands there has been seen."""

    def code(cell: Cell) -> str:
        return str(int(cell.exit)) if cell.exit >= 0 else f"none ({signal.Signals(-cell.exit).name})"

    rows = []
    for group, cells in GROUPS.items():
        rows.append([f"**{group}**", *[""] * 6])
        for cell in cells:
            message = f"`{cell.message.replace('{}', '…')}`" if cell.message else ""
            rank = "" if cell.rank is None else cell.rank
            tested = "`make soak`" if cell.soak else "every commit"
            rows.append([cell.fault, cell.moment, rank, code(cell), message, cell.left, tested])
    return table(["fault", "moment", "rank", "exit code", "message", "what is left", "tested by"], rows)


TABLES = {
    function.__name__: function
    for function in (modes, metrics, statistics, figures, formats, tools, verdicts, checks, exits, faults)
}

_MARKED = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str) -> str:
    """``text`` with every marked table made anew."""
    return _MARKED.sub(lambda match: f"{match[1]}{TABLES[match[2]]()}\n{match[3]}", text)


def main() -> None:
    for path in sorted(FOLDER.glob("*.md")):
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
