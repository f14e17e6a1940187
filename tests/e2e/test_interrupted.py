"""Whatever happens to a sweep, finished cases stay, the rest can go on, and no process is left behind."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import Program, only_run

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


def test_a_killed_sweep_leaves_no_process_and_goes_on_with_what_is_missing(netbench: Netbench, tmp_path: Path) -> None:
    killed = netbench("sweep", *SLOW, "--out", str(tmp_path))
    killed.wait_until(lambda: len(finished(tmp_path)) >= 2, "a second finished case")
    killed.send(signal.SIGKILL)
    assert killed.end() == -signal.SIGKILL
    assert killed.left_behind() == []
    folder = only_run(tmp_path)
    kept = times_of_writing(folder)
    assert 2 <= len(kept) < CASES

    shown = netbench("show", str(folder.path), "--format", "json")
    assert shown.end() == 0
    unfinished = [row["case_id"] for row in json.loads(shown.out) if "unfinished" in row["verdicts"]]
    assert len(unfinished) == CASES - len(kept)  # of which the first rounds are there
    assert not {Path(name).stem for name in kept} & set(unfinished)

    resumed = netbench("sweep", "--resume", str(folder.path))
    assert resumed.end() == 0, resumed.err
    assert len(folder.finished()) == CASES
    assert len(started_cases(folder, 2)) == CASES - len(kept)
    assert not set(started_cases(folder, 2)) & {Path(name).stem for name in kept}
    assert {name: time for name, time in times_of_writing(folder).items() if name in kept} == kept
    assert folder.read_manifest().status == "finished"
    assert not list(folder.partial_file("").parent.iterdir())


def test_ctrl_c_ends_everything_in_order_and_says_how_to_go_on(netbench: Netbench, tmp_path: Path) -> None:
    program = netbench("sweep", *SLOW, "--out", str(tmp_path))
    program.wait_until(lambda: len(finished(tmp_path)) >= 1, "a finished case")
    program.send(signal.SIGINT)
    assert program.end() == Exit.INTERRUPTED == 130
    assert program.left_behind() == []
    folder = only_run(tmp_path)
    assert f"netbench sweep --resume {folder.path}" in program.err
    assert "Traceback" not in program.err
    rows = [line for line in program.out.splitlines() if line.startswith(" allreduce")]
    assert len(rows) == len(folder.measured()) == CASES  # all had their first rounds, and what was measured is shown
    manifest = folder.read_manifest()
    assert manifest.status == "interrupted"
    assert [launch.reason for launch in manifest.launches] == ["stopped by SIGINT"]


def under_way(out: Path) -> str | None:
    """The case that has been started and is not on disk yet, once at least one is."""
    folder = only_run(out)
    left = [case for case in started_cases(folder, 1) if case not in folder.finished()]
    return left[0] if left else None


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (signal.SIGKILL, "rank 1 on {host} (pid {pid}) was ended by SIGKILL"),
        (signal.SIGSTOP, "rank 1 on {host} (pid {pid}) has been stopped"),
    ],
    ids=["killed", "stopped"],
)
def test_a_rank_that_is_lost_costs_its_case_and_no_other(
    sent: signal.Signals, reason: str, netbench: Netbench, tmp_path: Path
) -> None:
    program = netbench("sweep", *SLOW, "--timeout", "5s", "--out", str(tmp_path))
    program.wait_until(lambda: len(finished(tmp_path)) >= 1 and under_way(tmp_path) is not None, "a case under way")
    lost = program.workers()[1]
    lost.send_signal(sent)
    assert program.end() == Exit.CASE_FAILED
    assert program.left_behind() == []
    folder = only_run(tmp_path)
    [failure] = folder.read_manifest().failures
    assert failure.reason.startswith(reason.format(pid=lost.pid, host=socket.gethostname()))
    assert failure.case_id in program.err
    assert "Traceback" not in program.err
    assert len(folder.finished()) == CASES - 1
    assert failure.case_id not in folder.finished()
    assert [launch.number for launch in folder.read_manifest().launches] == [1, 2]


#: Python reads this file when it starts. Rank 1 of the workers gets an all_gather that damages what it gathered.
DAMAGE = """
import os, sys
if "netbench.worker" in sys.orig_argv and os.environ.get("RANK") == "1":
    from netbench import modes

    right = modes.AllGather.steps

    def steps(self, lane, buffers, part):
        def damage():
            buffers.outputs[0][3] += 1
            return []

        return [*right(self, lane, buffers, part), damage]

    modes.AllGather.steps = steps
"""


def test_wrong_data_is_a_result_without_a_bandwidth_and_an_exit_code(netbench: Netbench, tmp_path: Path) -> None:
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "sitecustomize.py").write_text(DAMAGE)
    out = tmp_path / "results"
    axes = ["--modes", "all_gather,allreduce", "--backends", "gloo", "--streams", "1", "--world-sizes", "2"]
    program = netbench(
        *("sweep", *axes, "--sizes", "4KB", "--iterations", "3", "--rounds", "1", "--out", str(out)),
        PYTHONPATH=str(tmp_path / "python"),
    )
    assert program.end() == Exit.CASE_FAILED
    wrong, right = "all_gather-gloo-k1-n2-4KB", "allreduce-gloo-k1-n2-4KB"
    assert f"{wrong}: wrong: 2 elements were wrong" in program.err  # one before timing, one after
    assert f"{right}: " not in program.err
    folder = only_run(out)
    assert folder.finished() == {wrong, right}

    shown = netbench("show", str(folder.path), "--format", "json")
    assert shown.end() == 0
    rows = {row["case_id"]: row for row in json.loads(shown.out)}
    assert (rows[wrong]["status"], rows[wrong]["wrong_elements"], rows[wrong]["algbw_gbit_s"]) == ("wrong", 2, None)
    assert (rows[right]["status"], rows[right]["wrong_elements"]) == ("ok", 0)
    assert rows[right]["algbw_gbit_s"] > 0
