"""How the hosts of a sweep come together: one class a launcher, which says how many there are and what starts them.

However they come, each runs ``netbench join`` (or is this host) and then starts torchrun for its own ranks. The sweep
follows, times out and ends launches the same way for all.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from netbench.endpoint import parse_endpoint
from netbench.errors import UsageError
from netbench.interfaces import Address, Choice, Host, reachable
from netbench.registry import Registry

if TYPE_CHECKING:
    from netbench.config import SweepConfig


@dataclass(frozen=True)
class Starter:
    """A command that starts ``netbench join`` for the nodes ``ranks``; it runs as long as they do."""

    ranks: frozenset[int]
    command: Sequence[str]


class Launcher:
    """Shared defaults; a launcher overrides what differs."""

    name: ClassVar[str]

    def nodes(self, config: SweepConfig) -> int:
        """How many hosts take part. Raises UsageError when the configuration or the surroundings do not fit."""
        raise NotImplementedError

    def leads_and_works(self, config: SweepConfig) -> bool:
        """Whether this host is node 0, and not only the one that the others are started from."""
        return True

    def peer(self, config: SweepConfig) -> str | None:
        """The address or name of another host, so that the interface towards it can be found; None for none."""
        raise NotImplementedError

    def meeting(self, config: SweepConfig, chosen: Choice) -> tuple[str, int]:
        """The address and port of this host that the others come to; port 0 is any free one."""
        return chosen.address, parse_endpoint(config.rdzv_endpoint)[1] if config.rdzv_endpoint else 0

    def starters(self, config: SweepConfig, endpoint: str) -> list[Starter]:
        """What brings the other hosts to ``endpoint``; nothing where their users do."""
        return []


LAUNCHERS: Registry[Launcher] = Registry("launcher")


def _launcher(cls: type[Launcher]) -> type[Launcher]:
    LAUNCHERS.add(cls())
    return cls


def ranks_per_node(config: SweepConfig, nodes: int, world_size: int) -> int:
    """How many ranks each of ``nodes`` hosts has where ``world_size`` are wanted: one host as many as it takes."""
    return config.nproc_per_node or (world_size if nodes == 1 else 1)


def join_command(config: SweepConfig, endpoint: str, *more: str) -> list[str]:
    return [config.remote_python or sys.executable, "-m", "netbench", "join", endpoint, *more]


@_launcher
class Local(Launcher):
    """This host alone, or with --nnodes also those on which you start netbench yourself."""

    name = "local"

    def nodes(self, config: SweepConfig) -> int:
        count = config.nnodes or 1
        if config.hosts:
            raise UsageError("--hosts: is for --launcher ssh, which starts netbench there")
        if count > 1 and config.rdzv_endpoint is None:
            raise UsageError(
                f"--nnodes: {count} hosts need a place to meet; give --rdzv-endpoint HOST:PORT, an address of node 0's "
                "host that the others reach"
            )
        return count

    def peer(self, config: SweepConfig) -> str | None:
        if config.rdzv_endpoint is None or (config.nnodes or 1) == 1:
            return None
        name, _ = parse_endpoint(config.rdzv_endpoint)
        if config.interface or config.subnet:
            return name  # only decides between IPv4 and IPv6
        here = Host()
        addresses = reachable(name, here, "--rdzv-endpoint")
        if not _own(addresses):
            raise UsageError(
                f"--rdzv-endpoint: {name!r} ({', '.join(map(str, addresses))}) is not this host, {here.name}; node 0 "
                "runs where the others are to come to, so start it there, or give an address of this host"
            )
        return name

    def meeting(self, config: SweepConfig, chosen: Choice) -> tuple[str, int]:
        assert config.rdzv_endpoint is not None
        name, port = parse_endpoint(config.rdzv_endpoint)
        try:
            own = _own(reachable(name, Host(), "--rdzv-endpoint"))
        except UsageError:
            own = []  # it means something else here than on other hosts; the interface has been chosen all the same
        return (str(own[0]) if own else chosen.address), port


@_launcher
class Ssh(Launcher):
    """The hosts of --hosts, started through your ssh; the first one, best this host, has rank 0 and the record."""

    name = "ssh"

    def nodes(self, config: SweepConfig) -> int:
        count = len(_named(config))
        if config.nnodes not in (None, count):
            raise UsageError(f"--nnodes: {config.nnodes} is not the count of --hosts, {count}; leave it out")
        return count

    def leads_and_works(self, config: SweepConfig) -> bool:
        return _is_here(_named(config)[0])

    def peer(self, config: SweepConfig) -> str | None:
        others = [host for host in _named(config) if not _is_here(host)]
        return _ssh_address(others[0]) if others else None

    def starters(self, config: SweepConfig, endpoint: str) -> list[Starter]:
        begin = int(self.leads_and_works(config))
        return [
            Starter(
                frozenset([rank]),
                [
                    # No terminal is there to ask for a password; a dead host is to be noticed.
                    *("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"),
                    *("-o", "ServerAliveInterval=3", "-o", "ServerAliveCountMax=3", host, "--"),
                    shlex.join(join_command(config, endpoint, "--node-rank", str(rank), "--host-name", host)),
                ],
            )
            for rank, host in enumerate(_named(config))
            if rank >= begin
        ]


@_launcher
class Slurm(Launcher):
    """The nodes of the Slurm allocation that this runs in, through srun."""

    name = "slurm"

    def nodes(self, config: SweepConfig) -> int:
        if "SLURM_JOB_ID" not in os.environ:
            raise UsageError(
                "--launcher slurm: this is not inside of an allocation (no SLURM_JOB_ID); begin with sbatch or salloc"
            )
        allocated = len(_slurm_nodes())
        if config.nnodes is not None and config.nnodes > allocated:
            raise UsageError(f"--nnodes: the allocation has {allocated} nodes, not {config.nnodes}")
        return config.nnodes or allocated

    def leads_and_works(self, config: SweepConfig) -> bool:
        return False

    def peer(self, config: SweepConfig) -> str | None:
        names = _slurm_nodes()
        others = [name for name in names if name != os.environ.get("SLURMD_NODENAME")]
        return _slurm_address((others or names)[0])

    def starters(self, config: SweepConfig, endpoint: str) -> list[Starter]:
        count = self.nodes(config)
        return [
            Starter(
                frozenset(range(count)),
                [
                    *("srun", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"),
                    # A step gets the CPUs of one task, and shares them with the step that this runs in.
                    *("--overlap", "--cpu-bind=none", "--kill-on-bad-exit=0", "--input=none"),
                    *join_command(config, endpoint),
                ],
            )
        ]


def _own(addresses: Iterable[Address]) -> list[Address]:
    """Those that are this host's."""
    here = {address for one in Host().interfaces().values() for address in one.addresses}
    return [address for address in addresses if address in here]


def _named(config: SweepConfig) -> list[str]:
    if not config.hosts:
        raise UsageError("--launcher ssh: needs --hosts, as --hosts host0,host1")
    return config.hosts


def _is_here(host: str) -> bool:
    """Whether a name, as ssh takes it, is this host's."""
    name = host.rpartition("@")[2]
    if name in ("localhost", socket.gethostname(), socket.getfqdn()):
        return True
    own = {str(address) for one in Host().interfaces().values() for address in one.addresses}
    return _ssh_address(host) in own


def _ssh_address(host: str) -> str:
    """What ssh's own configuration makes of a host's name."""
    try:
        told = subprocess.run(["ssh", "-G", host], capture_output=True, text=True, timeout=10, check=False).stdout
    except FileNotFoundError:
        raise UsageError("--launcher ssh: there is no ssh on this host; install an OpenSSH client") from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"--hosts: ssh -G {host} did not answer within 10 s") from None
    match = re.search(r"^hostname (\S+)", told, re.MULTILINE)
    return match[1] if match else host.rpartition("@")[2]


def _slurm_nodes() -> list[str]:
    return _scontrol("show", "hostnames", os.environ.get("SLURM_JOB_NODELIST", "")).split()


def _slurm_address(node: str) -> str:
    match = re.search(r"NodeAddr=(\S+)", _scontrol("--oneliner", "show", "node", node))
    return match[1] if match else node


def _scontrol(*arguments: str) -> str:
    try:
        done = subprocess.run(["scontrol", *arguments], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", "") or error
        raise UsageError(f"--launcher slurm: scontrol {' '.join(arguments)}: {str(detail).strip()}") from None
    return done.stdout


#: What says that this process is one of several that a scheduler started, each of which would run a sweep of its own.
_TASKS = {"SLURM_STEP_NUM_TASKS": "Slurm", "OMPI_COMM_WORLD_SIZE": "MPI", "PMI_SIZE": "MPI", "WORLD_SIZE": "a launcher"}


def check_alone(config: SweepConfig) -> None:
    """Raises UsageError when a scheduler has started several of this command, and nothing says that they are one."""
    if (config.nnodes or 1) > 1:
        return
    for name, whose in _TASKS.items():
        if (value := os.environ.get(name, "")).isdecimal() and int(value) > 1:
            raise UsageError(
                f"{name}={value}: {whose} has started {value} of this command, and each would measure its own host "
                "alone; start one, with --launcher slurm or ssh, or say that they belong together: --nnodes "
                f"{value} --rdzv-endpoint HOST:PORT"
            )
