"""No line of the fault matrix is there without a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.cells import AT_START, GROUPS, IN_A_CASE, PROGRAM_STOPPED, Cell
from netbench.errors import Exit

#: Those that one parametrised test goes through.
LISTED = [*AT_START, *IN_A_CASE, *PROGRAM_STOPPED]
SOURCES = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parents[1].glob("*/test_*.py"))


@pytest.mark.parametrize(
    "cell", [cell for cells in GROUPS.values() for cell in cells if cell not in LISTED], ids=lambda cell: cell.name
)
def test_a_test_names_the_cell(cell: Cell) -> None:
    assert (f"def {cell.test}(" if cell.test else f'cell("{cell.fault}"') in SOURCES


def test_names_are_unique() -> None:
    names = [cell.name for cells in GROUPS.values() for cell in cells]
    assert len(names) == len(set(names))


def test_a_message_fits_with_anything_in_its_gaps_and_in_any_layout() -> None:
    one = Cell("fault", "moment", Exit.DONE, "rank {} on {}: gone", "")
    assert one.fits("rank 1 on alpha: gone")
    assert one.fits("netbench: rank 1 on\n  alpha: gone\nmore")
    assert not one.fits("rank 1 on alpha: there")
