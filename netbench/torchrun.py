"""torchrun on one host: the command that starts this host's ranks of a launch, and the process that it becomes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from netbench import processes
from netbench.job import Job
from netbench.model import MALLOCS
from netbench.record import RunFolder, write_atomically


def command(job: Job, endpoint: str) -> list[str]:
    """The program and its arguments; all nodes meet at ``endpoint``, which is an address and port of node 0."""
    return [
        sys.executable,
        *("-m", "torch.distributed.run"),
        *("--nnodes", str(job.nodes)),
        *("--nproc-per-node", str(job.ranks_per_node)),
        *("--rdzv-backend", "netbench", "--rdzv-endpoint", endpoint, "--rdzv-conf", f"node_rank={job.node_rank}"),
        *("--rdzv-id", f"{job.run_id}-{job.launch}"),
        *("--max-restarts", "0"),
        *("-m", "netbench.worker", str(RunFolder(job.run_folder).job(job.launch))),
    ]


def start(job: Job, typed: Sequence[str]) -> subprocess.Popen[bytes]:
    """Puts the job where the command says it is, and starts the ranks with their output in the launch's log.

    Raises LaunchError when the program cannot be run, StorageError where job or log cannot be written.
    """
    folder = RunFolder(job.run_folder)
    write_atomically(folder.job(job.launch), job.model_dump_json(indent=1).encode())
    # torchrun would set this to 1 on its own; said here, it is recorded like any other choice.
    environment = {"OMP_NUM_THREADS": "1", **os.environ, **MALLOCS[job.malloc]}
    return processes.start(typed, folder.log(job.launch, job.node_rank), environment)
