"""The Slurm launcher in a real allocation of two nodes that are separate hosts."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from programs import LIMIT_S, only_run
from slurm_cluster import Cluster, missing

from netbench.errors import Exit
from netbench.lab import LabSpec, capability

pytestmark = pytest.mark.lab

SWEEP = [sys.executable, "-m", "netbench", "sweep", "--launcher", "slurm"]
SMALL = [
    *("--modes", "all_gather", "--backends", "gloo", "--streams", "1", "--world-sizes", "2"),
    *("--sizes", "64KiB", "--iterations", "4", "--rounds", "1", "--join-timeout", "60s"),
]

Run = Callable[[Sequence[str]], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def at_controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs a command beside the controller of a cluster of two nodes, as on a login node."""
    if absent := missing():
        pytest.skip(f"Slurm is not installed here: {', '.join(absent)}")
    if reason := capability(LabSpec.parse("2x200mbit")).refusal:
        pytest.skip(reason)
    with Cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield lambda command: subprocess.run(
            cluster.at_controller(command),
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
            env=cluster.environment,
        )


def check_record(out: Path) -> None:
    folder = only_run(out)
    manifest = folder.read_manifest()
    assert manifest.status == "finished"
    assert folder.finished() == {"all_gather-gloo-k1-n2-64KiB"}
    assert [(entry["host"], entry["ranks"]) for entry in manifest.environment] == [("n1", [0]), ("n2", [1])]


def test_a_batch_job_measures_between_its_nodes(at_controller: Run, tmp_path: Path) -> None:
    out, log = tmp_path / "results", tmp_path / "job.log"
    job = shlex.join([*SWEEP, *SMALL, "--out", str(out)])
    done = at_controller(["sbatch", "--nodes=2", "--wait", f"--output={log}", f"--wrap={job}"])
    assert done.returncode == Exit.DONE, log.read_text()
    assert "starting 2 ranks on 2 hosts" in log.read_text()
    check_record(out)


def test_an_allocation_is_led_from_a_host_that_is_no_node_of_it(at_controller: Run, tmp_path: Path) -> None:
    done = at_controller(["salloc", "--nodes=2", *SWEEP, *SMALL, "--out", str(tmp_path)])
    assert done.returncode == Exit.DONE, done.stderr
    check_record(tmp_path)
    [log] = tmp_path.glob("*/logs/nodes.log")
    assert log.read_text().count("the sweep has ended: well") == 2


def test_what_would_be_started_is_printed(at_controller: Run) -> None:
    done = at_controller(["salloc", "--nodes=2", *SWEEP, *SMALL, "--print-launch"])
    srun, *torchruns = done.stdout.splitlines()
    assert srun.startswith("srun --nodes=2 --ntasks=2 --ntasks-per-node=1 ")
    assert " -m netbench join 198.18.0." in srun
    assert [line.partition(":")[0] for line in torchruns] == ["node 0", "node 1"]
    assert all("--rdzv-endpoint NODE0:STORE" in line for line in torchruns)


def test_tasks_that_would_each_measure_their_own_host_are_refused(at_controller: Run, tmp_path: Path) -> None:
    alone = [word for word in SWEEP if word not in ("--launcher", "slurm")]
    done = at_controller(["srun", "--nodes=2", "--ntasks=2", *alone, *SMALL, "--out", str(tmp_path)])
    assert done.returncode == Exit.USAGE
    assert "SLURM_STEP_NUM_TASKS=2: Slurm has started 2 of this command" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_more_nodes_than_there_are_is_a_mistake(at_controller: Run) -> None:
    done = at_controller(["salloc", "--nodes=1", *SWEEP, *SMALL, "--nnodes", "2"])
    assert done.returncode == Exit.USAGE
    assert "--nnodes: the allocation has 1 nodes, not 2" in done.stderr
