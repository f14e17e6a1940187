"""A rank is killed, stopped, out of memory or raises, at every moment of a launch: it costs one case and no other."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from programs import Program, only_run

from faults import sabotage
from faults.cells import AT_START, IN_A_CASE, Cell
from netbench.errors import Exit
from netbench.record import Failure, RunFolder

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

Netbench = Callable[..., Program]

AXES = ["--modes", "allreduce", "--backends", "gloo", "--streams", "1", "--world-sizes", "2"]
OVER_CGROUP = "over its cgroup"
SHORT = ["--iterations", "3", "--warmup", "2", "--rounds", "1", "--timeout", "4s"]


def sizes(count: int) -> str:
    return ",".join(str(4096 + 4 * index) for index in range(count))


@contextmanager
def little_memory() -> Iterator[str]:
    """A cgroup that holds 64 MiB; an empty path where none can be made."""
    for controller, limit in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        try:
            folder = Path(tempfile.mkdtemp(prefix="netbench-test-", dir=Path("/sys/fs/cgroup", controller)))
        except OSError:
            continue
        if not (folder / limit).is_file():  # no controller of memory, or no cgroups at all
            folder.rmdir()
            continue
        try:
            (folder / limit).write_text(str(64 << 20))
            yield str(folder)
        finally:
            folder.rmdir()
        return
    yield ""


class Struck:
    """One sweep whose launches are struck by one cell after another, and what came of each."""

    def __init__(self, cells: list[Cell], program: Program, out: Path, code: int, left: list[int]) -> None:
        self.program, self.code, self.left = program, code, left
        self.folder: RunFolder = only_run(out)
        self.manifest = self.folder.read_manifest()
        self.launch = {cell: number for number, cell in enumerate(cells, start=1)}

    def failure(self, cell: Cell) -> Failure:
        [failure] = [failure for failure in self.manifest.failures if failure.launch == self.launch[cell]]
        return failure


def strike(cells: list[Cell], folder: Path, cgroup: str) -> Struck:
    """A sweep of two cases for each launch that is struck, and a last one for a launch that is not."""
    plan = {n: (cell.fault, cell.moment, cell.rank or 0, cgroup) for n, cell in enumerate(cells, start=1)}
    environment = sabotage.environment(folder / "python", plan)
    out = folder / "results"
    typed = ["sweep", *AXES, *SHORT, "--sizes", sizes(2 * len(cells) + 1), "--out", str(out)]
    program = Program(*typed, **environment)
    try:
        program.note_until_end()
        return Struck(cells, program, out, program.end(), program.left_behind())
    finally:
        program.kill()


def marked(cells: list[Cell]) -> list[Any]:
    return [pytest.param(cell, id=cell.name, marks=[pytest.mark.soak] if cell.soak else []) for cell in cells]


#: The cells of every commit in one sweep, and those of ``make soak`` in another.
BOTH = [pytest.param(False, id="often"), pytest.param(True, id="seldom", marks=pytest.mark.soak)]

Strike = Callable[[bool], Struck]


@pytest.fixture(scope="module")
def struck() -> Iterator[Strike]:
    """``struck(soak)`` is the sweep that was struck by the cells of every commit, or by those of ``make soak``."""
    with tempfile.TemporaryDirectory() as folder, little_memory() as cgroup:

        @cache
        def find(soak: bool) -> Struck:
            cells = [cell for cell in IN_A_CASE if cell.soak == soak and (cgroup or cell.fault != OVER_CGROUP)]
            return strike(cells, Path(folder, str(soak)), cgroup)

        yield find


@pytest.mark.parametrize("cell", marked(IN_A_CASE))
def test_the_message_names_rank_host_case_and_cause(cell: Cell, struck: Strike) -> None:
    sweep = struck(cell.soak)
    if cell not in sweep.launch:
        pytest.skip("no cgroup with a limit on memory can be made here")
    failure = sweep.failure(cell)
    assert cell.fits(failure.reason), failure.reason
    assert f"{failure.case_id}  failed: {failure.reason}" in sweep.program.err  # at once
    assert f"{failure.case_id}: failed: {failure.reason}" in sweep.program.err  # and in the end


@pytest.mark.parametrize("soak", BOTH)
def test_every_other_case_is_finished_and_nothing_half_written_is_left(soak: bool, struck: Strike) -> None:
    sweep = struck(soak)
    lost = {failure.case_id for failure in sweep.manifest.failures}
    assert len(lost) == len(sweep.launch)
    assert sweep.folder.finished() == {case.id for case in sweep.manifest.cases} - lost
    assert [path.name for path in sweep.folder.path.rglob("*.tmp")] == []
    assert sweep.manifest.status == "failed"


@pytest.mark.parametrize("soak", BOTH)
def test_the_end_says_how_to_go_on_and_leaves_no_process(soak: bool, struck: Strike) -> None:
    sweep = struck(soak)
    assert {sweep.code} == {cell.exit for cell in sweep.launch}
    assert sweep.left == []
    assert f"try again what failed: netbench sweep --resume {sweep.folder.path}" in sweep.program.err
    assert str(sweep.folder.logs) in sweep.program.err
    assert "Traceback" not in sweep.program.err


@pytest.mark.parametrize("cell", marked(AT_START))
def test_a_rank_that_is_lost_before_the_first_case_ends_the_sweep(
    cell: Cell, netbench: Netbench, tmp_path: Path
) -> None:
    with little_memory() as cgroup:
        if cell.fault == OVER_CGROUP and not cgroup:
            pytest.skip("no cgroup with a limit on memory can be made here")
        plan: sabotage.Plan = {1: (cell.fault, cell.moment, cell.rank or 0, cgroup)}
        environment = sabotage.environment(tmp_path / "python", plan)
        out = tmp_path / "results"
        program = netbench("sweep", *AXES, *SHORT, "--sizes", sizes(2), "--out", str(out), **environment)
        program.note_until_end()
        assert program.end() == cell.exit
        assert program.left_behind() == []
    assert cell.fits(program.err), program.err
    folder = only_run(out)
    assert f"Its output is in {folder.log(1)}" in program.err
    assert f"go on with: netbench sweep --resume {folder.path}" in program.err
    assert "Traceback" not in program.err
    manifest = folder.read_manifest()
    assert (manifest.status, manifest.failures, folder.finished()) == ("failed", [], set())

    # The second launch is not struck.
    if cell.fault == "killed":
        resumed = netbench("sweep", "--resume", str(folder.path), **environment)
        assert resumed.end() == Exit.DONE, resumed.err
        assert len(folder.finished()) == 2
        shown = netbench("show", str(folder.path), "--format", "json")
        assert shown.end() == Exit.DONE
        assert [row["status"] for row in json.loads(shown.out)] == ["ok", "ok"]
