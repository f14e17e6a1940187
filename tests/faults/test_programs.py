"""The program itself is stopped or killed, or torchrun is: what is finished stays, and nothing is left running."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import Program, only_run

from faults.cells import PROGRAM_STOPPED, Cell, cell
from netbench.errors import Exit
from netbench.record import RunFolder

pytestmark = pytest.mark.e2e

Netbench = Callable[..., Program]

#: Six cases of about half a second each, which leaves time to disturb them.
SLOW = [
    *("--modes", "allreduce", "--backends", "gloo", "--streams", "1", "--world-sizes", "2"),
    *("--sizes", "4KiB:128KiB:x2", "--iterations", "4", "--warmup", "1", "--pause", "100ms"),
]
CASES = 6


def finished(out: Path) -> set[str]:
    return only_run(out).finished() if any(out.glob("*/samples")) else set()


def times_of_writing(folder: RunFolder) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.samples.glob("*.parquet")}


def started_cases(folder: RunFolder, launch: int) -> list[str]:
    told = [json.loads(line) for line in folder.events(launch).read_text().splitlines()]
    return [event["case_id"] for event in told if event["event"] == "started"]


def is_under_way(out: Path) -> bool:
    """Whether a case has been started that is not on disk, once at least one is."""
    return len(finished(out)) >= 1 and bool(set(started_cases(only_run(out), 1)) - finished(out))


def stopped_within_a_case(program: Program, out: Path) -> bool:
    """Whether its ranks stand still within a case: between two of them there would be none to fail."""
    if not is_under_way(out) or len(ranks := program.workers()) != 2:
        return False
    for rank in ranks.values():
        rank.suspend()
    if is_under_way(out):
        return True
    for rank in ranks.values():
        rank.resume()
    return False


@pytest.mark.parametrize("struck", PROGRAM_STOPPED, ids=lambda cell: cell.name)
def test_a_signal_ends_everything_in_order_and_says_how_to_go_on(
    struck: Cell, netbench: Netbench, tmp_path: Path
) -> None:
    sent = signal.Signals[struck.fault.partition(" ")[0]]
    program = netbench("sweep", *SLOW, "--out", str(tmp_path))
    if struck.moment == "start-up":
        program.wait_until(lambda: len(program.workers()) == 2, "two workers")
    else:
        program.wait_until(lambda: len(finished(tmp_path)) >= 1, "a finished case")
    program.send(sent)
    assert program.end() == struck.exit
    assert program.left_behind() == []
    assert struck.fits(program.err), program.err
    folder = only_run(tmp_path)
    assert f"netbench sweep --resume {folder.path}" in program.err
    assert "Traceback" not in program.err
    rows = [line for line in program.out.splitlines() if line.startswith(" allreduce")]
    assert len(rows) == len(folder.measured()) == (0 if struck.moment == "start-up" else CASES)
    manifest = folder.read_manifest()
    assert manifest.status == "interrupted"
    assert [launch.reason for launch in manifest.launches] == [f"stopped by {sent.name}"]
    assert [path.name for path in folder.path.rglob("*.tmp")] == []


def test_torchrun_is_killed_then_the_program_and_a_resumed_run_has_everything(
    netbench: Netbench, tmp_path: Path
) -> None:
    torchrun_killed, program_killed = cell("SIGKILL to torchrun", "timing"), cell("SIGKILL to the program", "timing")
    program = netbench("sweep", *SLOW, "--out", str(tmp_path))
    program.wait_until(lambda: stopped_within_a_case(program, tmp_path), "a case under way")
    [torchrun] = {process.parent() for process in program.workers().values()}
    assert torchrun is not None
    torchrun.kill()
    folder = only_run(tmp_path)
    program.wait_until(lambda: folder.read_manifest().failures, "a failure")
    [failure] = folder.read_manifest().failures
    assert torchrun_killed.fits(failure.reason), failure.reason

    # The rest goes on in a second launch, in the middle of which the program itself is killed.
    program.wait_until(lambda: len(finished(tmp_path)) >= 3, "a third finished case")
    program.send(signal.SIGKILL)
    assert program.end() == -signal.SIGKILL == program_killed.exit
    assert program.left_behind() == []
    kept = times_of_writing(folder)
    assert 3 <= len(kept) < CASES
    assert {failure.case_id} & {Path(name).stem for name in kept} == set()

    shown = netbench("show", str(folder.path), "--format", "json")
    assert shown.end() == Exit.DONE
    rows = json.loads(shown.out)
    unfinished = [row["case_id"] for row in rows if "unfinished" in (row["verdicts"] or "")]
    assert len(unfinished) == CASES - len(kept) - 1  # of which the first rounds are there; one more has failed
    assert not {Path(name).stem for name in kept} & set(unfinished)

    resumed = netbench("sweep", "--resume", str(folder.path))
    assert resumed.end() == Exit.DONE, resumed.err
    assert len(folder.finished()) == CASES
    assert set(started_cases(folder, 3)) == {case.id for case in folder.read_manifest().cases} - {
        Path(name).stem for name in kept
    }
    assert {name: time for name, time in times_of_writing(folder).items() if name in kept} == kept
    manifest = folder.read_manifest()
    assert (manifest.status, manifest.failures) == ("finished", [])
    assert not list(folder.partial_file("").parent.iterdir())
