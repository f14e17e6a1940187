"""A real Slurm of a few nodes, each in a lab's host with an address of its own; all of its files in one folder."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from netbench.lab import HostAddress, Lab, LabSpec

PROGRAMS = ("munged", "mungekey", "slurmctld", "slurmd", "srun", "salloc", "sinfo")

#: A daemon that is not up after this long is not going to be, seconds.
_START_LIMIT_S = 30.0


def missing() -> list[str]:
    """Which of the programs this machine lacks."""
    return [name for name in PROGRAMS if not _where(name)]


class Cluster:
    """``nodes`` node daemons n1, n2, ... and a controller at the lab's switch, within a ``with`` block."""

    def __init__(self, folder: Path, nodes: int = 2) -> None:
        self._folder = folder
        self._lab = Lab(LabSpec.parse(f"{nodes}x200mbit"))
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._lab.__enter__()
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._daemons.clear()
        # Steps and batch scripts have parents of their own; the lab ends whatever still runs in it.
        self._lab.close()

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self._folder / "slurm.conf")}

    def at_controller(self, command: Sequence[str]) -> list[str]:
        """The command line that runs ``command`` beside the controller, as on a login node."""
        return self._lab.switch.command(command)

    def _start(self) -> None:
        key = self._folder / "munge.key"
        subprocess.run([_where("mungekey"), "--create", f"--keyfile={key}"], check=True, timeout=30)
        self._daemon("munged", self._lab.switch, "--foreground", "--force", "--key-file", key, "--socket", self._munge,
                     *("--log-file", self._folder / "munged.log", "--pid-file", self._folder / "munged.pid"),
                     *("--seed-file", self._folder / "munged.seed"))  # fmt: skip
        self._until(self._munge.exists, "munged's socket")
        (self._folder / "slurm.conf").write_text(self._configuration())
        self._daemon("slurmctld", self._lab.switch, "-D")
        for number, host in enumerate(self._lab.hosts, 1):
            self._daemon("slurmd", host, "-D", "-N", f"n{number}")
        self._until(self._is_idle, "idle nodes")

    @property
    def _munge(self) -> Path:
        return self._folder / "munge.socket"

    def _configuration(self) -> str:
        name = socket.gethostname().partition(".")[0]
        folder = self._folder
        (folder / "state").mkdir()
        nodes = [
            f"NodeName=n{number} NodeHostname={name} NodeAddr={host.address} Port=17000 CPUs=2 State=UNKNOWN"
            for number, host in enumerate(self._lab.hosts, 1)
        ]
        lines = [
            "ClusterName=netbench",
            f"SlurmctldHost={name}({self._lab.switch.address})",
            *("SlurmUser=root", "SlurmdUser=root", f"AuthInfo=socket={self._munge}"),
            *("ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "MpiDefault=none"),
            *("SelectType=select/cons_tres", "SelectTypeParameters=CR_Core"),
            *("AccountingStorageType=accounting_storage/none", "JobAcctGatherType=jobacct_gather/none"),
            *(f"StateSaveLocation={folder}/state", f"SlurmdSpoolDir={folder}/spool-%n"),
            *(f"SlurmctldPidFile={folder}/ctld.pid", f"SlurmdPidFile={folder}/slurmd-%n.pid"),
            *(f"SlurmctldLogFile={folder}/ctld.log", f"SlurmdLogFile={folder}/slurmd-%n.log"),
            *("ReturnToService=2", "SlurmdTimeout=60", "KillWait=5"),
            *nodes,
            "PartitionName=main Nodes=ALL Default=YES State=UP OverSubscribe=YES MaxTime=10",
        ]
        return "\n".join(lines) + "\n"

    def _daemon(self, program: str, host: HostAddress, *arguments: str | Path) -> None:
        with (self._folder / f"{program}.out").open("ab") as log:
            command = host.command([_where(program), *map(str, arguments)])
            self._daemons.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment)
            )

    def _is_idle(self) -> bool:
        asked = subprocess.run(
            self.at_controller([_where("sinfo"), "--noheader", "--Node", "--format=%T"]),
            capture_output=True, text=True, timeout=30, env=self.environment, check=False,
        )  # fmt: skip
        return asked.stdout.split() == ["idle"] * len(self._lab.hosts)

    def _until(self, true: object, what: str) -> None:
        deadline = time.monotonic() + _START_LIMIT_S
        while not true():  # type: ignore[operator]
            ended = [daemon.args for daemon in self._daemons if daemon.poll() is not None]
            assert not ended, f"{ended} ended before {what}: {self._logs()}"
            assert time.monotonic() < deadline, f"no {what} within {_START_LIMIT_S} s: {self._logs()}"
            time.sleep(0.2)

    def _logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in self._folder.glob("*.[lo]*"))


def _where(name: str) -> str:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin") or ""
