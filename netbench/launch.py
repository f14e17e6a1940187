"""Starting the workers of one launch: one class a launcher, which turns a job into running ranks.

A launcher only knows how to start and name them; following, timing out and ending them is the sweep's business.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import ClassVar

from netbench.errors import LaunchError
from netbench.job import Job
from netbench.model import MALLOCS
from netbench.processes import die_with_parent
from netbench.record import RunFolder, write_atomically
from netbench.registry import Registry


class Launcher:
    """Shared by all launchers: the job goes into a file, the command into a process with its output in the log."""

    name: ClassVar[str]

    def command(self, job: Job, address: str) -> list[str]:
        """The program and its arguments that start all ranks of ``job``, meeting at this host's ``address``."""
        raise NotImplementedError

    def start(self, job: Job, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Starts the ranks. Raises LaunchError when the program cannot be run, StorageError on a full disk."""
        folder = RunFolder(job.run_folder)
        write_atomically(folder.job(job.launch), job.model_dump_json(indent=1).encode())
        # torchrun would set this to 1 on its own; said here, it is recorded like any other choice.
        environment = {"OMP_NUM_THREADS": "1", **os.environ, **MALLOCS[job.malloc]}
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
    """torchrun on this host, one process a rank; its rendezvous listens on loopback, or inside the lab."""

    name = "local"

    def command(self, job: Job, address: str) -> list[str]:
        return [
            sys.executable,
            *("-m", "torch.distributed.run"),
            *("--nnodes", "1"),
            *("--nproc-per-node", str(job.world_size)),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{address}:0", "--local-addr", address),
            # In a lab's namespace torchrun would not know the address for its own by the host's name.
            *("--rdzv-conf", "is_host=true"),
            *("--rdzv-id", f"{job.run_id}-{job.launch}"),
            *("--max-restarts", "0"),
            *("-m", "netbench.worker", str(RunFolder(job.run_folder).job(job.launch))),
        ]
