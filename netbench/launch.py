"""Starting the workers of one launch: one class a launcher, which turns a job into running ranks.

A launcher only knows how to start and name them; following, timing out and ending them is the sweep's business.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

from netbench.errors import LaunchError
from netbench.job import Job
from netbench.processes import die_with_parent
from netbench.record import RunFolder, write_atomically
from netbench.registry import Registry


class Launcher:
    """Shared by all launchers: the job goes into a file, the command into a process with its output in the log."""

    name: ClassVar[str]

    def command(self, job: Job, job_file: Path) -> list[str]:
        """The program and its arguments that start all ranks of ``job``."""
        raise NotImplementedError

    def start(self, job: Job) -> subprocess.Popen[bytes]:
        """Starts the ranks. Raises LaunchError when the program cannot be run, StorageError on a full disk."""
        folder = RunFolder(job.run_folder)
        job_file = folder.job(job.launch)
        write_atomically(job_file, job.model_dump_json(indent=1).encode())
        command = self.command(job, job_file)
        # torchrun would set this to 1 on its own; said here, it is recorded like any other choice.
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        try:
            with folder.log(job.launch).open("ab") as log:
                return subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,  # Ctrl-C reaches us alone, and we end them in order
                    preexec_fn=_end_with_us,
                )
        except OSError as error:
            raise LaunchError(f"{command[0]}: cannot be started: {error.strerror}") from None


LAUNCHERS: Registry[Launcher] = Registry("launcher")


def _launcher(cls: type[Launcher]) -> type[Launcher]:
    LAUNCHERS.add(cls())
    return cls


def _end_with_us() -> None:
    die_with_parent(signal.SIGTERM)


@_launcher
class Local(Launcher):
    """torchrun on this host, one process a rank, with its rendezvous on loopback."""

    name = "local"

    def command(self, job: Job, job_file: Path) -> list[str]:
        return [
            sys.executable,
            *("-m", "torch.distributed.run"),
            *("--nnodes", "1"),
            *("--nproc-per-node", str(job.world_size)),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"),
            *("--rdzv-id", f"{job.run_id}-{job.launch}"),
            *("--max-restarts", "0"),
            *("-m", "netbench.worker", str(job_file)),
        ]
