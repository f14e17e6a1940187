"""A rank is killed, stopped, out of memory or raises, at every moment of a launch: it costs one case and no other."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from programs import Program, only_run

from faults import sabotage
from faults.cells import AT_START, IN_A_CASE, Cell
from netbench.errors import Exit
from netbench.record import Failure, RunFolder

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

Netbench = Callable[..., Program]

AXES = ["--modes", "allreduce", "--backends", "gloo", "--streams", "1", "--world-sizes", "2"]
SHORT = ["--iterations", "3", "--warmup", "2", "--rounds", "1", "--timeout", "2s"]


def sizes(count: int) -> str:
    return ",".join(str(4096 + 4 * index) for index in range(count))


@contextmanager
def little_memory() -> Iterator[str]:
    """A cgroup that holds 64 MiB; an empty path where none can be made."""
    for controller, limit in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        folder = Path("/sys/fs/cgroup", controller, f"netbench-test-{os.getpid()}")
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / limit).write_text(str(64 << 20))
        except OSError:
            folder.rmdir()
            continue
        try:
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


def chosen(soak: bool, cgroup: str) -> list[Cell]:
    return [cell for cell in IN_A_CASE if cell.soak == soak and (cgroup or cell.fault != "over its cgroup")]


@pytest.fixture(scope="module")
def struck() -> Iterator[Struck]:
    with tempfile.TemporaryDirectory() as folder, little_memory() as cgroup:
        yield strike(chosen(False, cgroup), Path(folder), cgroup)


@pytest.mark.parametrize("cell", [cell for cell in IN_A_CASE if not cell.soak], ids=lambda cell: cell.name)
def test_the_message_names_rank_host_case_and_cause(cell: Cell, struck: Struck) -> None:
    if cell not in struck.launch:
        pytest.skip("no cgroup with a limit on memory can be made here")
    failure = struck.failure(cell)
    assert cell.fits(failure.reason), failure.reason
    assert f"{failure.case_id}  failed: {failure.reason}" in struck.program.err  # at once
    assert f"{failure.case_id}: failed: {failure.reason}" in struck.program.err  # and in the end


def test_every_other_case_is_finished_and_nothing_half_written_is_left(struck: Struck) -> None:
    lost = {failure.case_id for failure in struck.manifest.failures}
    assert len(lost) == len(struck.launch)
    assert struck.folder.finished() == {case.id for case in struck.manifest.cases} - lost
    assert [path.name for path in struck.folder.path.rglob("*.tmp")] == []
    assert struck.manifest.status == "failed"


def test_the_end_says_how_to_go_on_and_leaves_no_process(struck: Struck) -> None:
    assert struck.code == Exit.CASE_FAILED
    assert struck.left == []
    assert f"try again what failed: netbench sweep --resume {struck.folder.path}" in struck.program.err
    assert str(struck.folder.logs) in struck.program.err
    assert "Traceback" not in struck.program.err


@pytest.mark.parametrize("cell", [cell for cell in AT_START if not cell.soak], ids=lambda cell: cell.name)
def test_a_rank_that_is_lost_before_the_first_case_ends_the_sweep(
    cell: Cell, netbench: Netbench, tmp_path: Path
) -> None:
    plan: sabotage.Plan = {1: (cell.fault, cell.moment, cell.rank or 0, "")}
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
