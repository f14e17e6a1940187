"""The nodes of a sweep under way: brought together before the first launch, and again when one has gone."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from netbench import torchrun
from netbench.config import SweepConfig
from netbench.endpoint import format_endpoint
from netbench.errors import Exit, LaunchError, NetbenchError
from netbench.interfaces import Choice, choose
from netbench.job import Job
from netbench.lab import Lab
from netbench.launch import LAUNCHERS, Launcher, Starter, join_command, ranks_per_node
from netbench.nodes import JoinedNode, LocalNode, Node, Reception, Seat, UnderWay, Welcome
from netbench.processes import end, start
from netbench.record import RunFolder

#: Once they know that the sweep has ended, those who started hosts have this long to follow, seconds.
_LEAVE_LIMIT_S = 5.0


class Crew:
    """All nodes, node 0 first, within a ``with`` block; with the block the others are told how the sweep ended."""

    def __init__(self, config: SweepConfig, launcher: Launcher, folder: RunFolder, lab: Lab | None) -> None:
        self._config = config
        self._launcher = launcher
        self._folder = folder
        self._lab = lab
        self._count = launcher.nodes(config)
        self._nodes: dict[int, Node] = {}
        self._starters: list[tuple[Starter, subprocess.Popen[bytes] | None]] = []
        self._reception: Reception | None = None
        #: How the sweep ends, for the other hosts, unless an error says it.
        self.ending: tuple[str, Exit] = "well", Exit.DONE
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        """Raises UsageError when this host's part cannot be made."""
        if self._lab:
            switch = self._lab.switch
            seat = Seat(host=socket.gethostname(), interface=switch.interface, address=switch.address, store_port=0)
            self._nodes[0] = LocalNode(0, seat, switch)
            return self
        chosen = choose(self._config.interface, self._config.subnet, self._launcher.peer(self._config), os.environ)
        if self._launcher.leads_and_works(self._config):
            self._nodes[0] = LocalNode(0, Seat.here(socket.gethostname(), chosen))
        if self._count > len(self._nodes):
            self._reception = Reception(*self._launcher.meeting(self._config, chosen))
            self._closing.callback(self._reception.close)
            starters = self._launcher.starters(self._config, self._reception.endpoint)
            self._starters = [(starter, None) for starter in starters]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        text, code = self.ending
        if isinstance(error, NetbenchError):
            text, code = str(error), error.exit_code
        text += f"; the record is on {socket.gethostname()}: {self._folder.path.absolute()}"
        for node in self._nodes.values():
            node.end()
            if isinstance(node, JoinedNode):
                node.leave(text=text, code=int(code))
        leaving = time.monotonic() + _LEAVE_LIMIT_S
        for _, process in self._starters:
            if process is not None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, leaving - time.monotonic()))
                if process.poll() is None:
                    end(process)
        self._closing.close()

    def assemble(self, waiting: Callable[[str], None]) -> list[Node]:
        """Every node, after those that are missing have come. ``waiting`` is told whom is waited for.

        Raises LaunchError, naming who is missing, or the host that cannot take part and why.
        """
        lost = [node.loss for node in self._nodes.values() if node.loss]
        self._nodes = {rank: node for rank, node in self._nodes.items() if not node.loss}
        missing = set(range(self._count)) - set(self._nodes)
        if missing:
            assert self._reception is not None
            self._start(missing)

            place = self._reception.endpoint

            def still() -> str | None:
                absent = missing - set(self._nodes)
                waiting(f"waiting at {place} for node {', '.join(map(str, sorted(absent)))}")
                return self._vain(absent)

            try:
                for node in self._reception.gather(missing, self._offer, self._config.join_timeout, still):
                    self._nodes[node.rank] = node
            except LaunchError as error:
                raise LaunchError("; ".join([*lost, str(error)])) from None
        return [self._nodes[rank] for rank in range(self._count)]

    def start(self, job: Job, nodes: list[Node]) -> UnderWay:
        """Starts a launch on all of them; ``job`` is the copy that knows no node yet."""
        first = nodes[0].seat
        meeting = format_endpoint(first.address, first.store_port if self._count > 1 else 0)
        jobs = seated(job, nodes)
        for node, own in zip(nodes, jobs, strict=True):
            node.start(own, meeting)
        return UnderWay(nodes)

    def ranks_per_node(self, world_size: int) -> int:
        """How many ranks each node has in a launch whose largest case has ``world_size``."""
        return ranks_per_node(self._config, self._count, world_size)

    def _offer(self, rank: int) -> Welcome:
        return Welcome(node_rank=rank, interface=self._config.interface, subnet=self._config.subnet)

    def _start(self, missing: set[int]) -> None:
        for index, (starter, process) in enumerate(self._starters):
            if starter.ranks & missing and (process is None or process.poll() is not None):
                self._starters[index] = starter, start(starter.command, self._folder.nodes_log)

    def _vain(self, absent: set[int]) -> str | None:
        for starter, process in self._starters:
            if starter.ranks & absent and process is not None and process.poll():
                log = self._folder.nodes_log.read_text(encoding="utf-8", errors="replace")
                last = [line for line in log.splitlines() if line.strip()][-2:]
                return (
                    f"{' '.join(starter.command)} ended with exit code {process.returncode} before node "
                    f"{', '.join(map(str, sorted(absent)))} was here: {' / '.join(last)}"
                )
        return None


def launch_commands(config: SweepConfig, world_size: int) -> list[str]:
    """What a sweep would start, a command a line: what brings the other hosts, or you do there, and torchrun on each.

    RUN is its folder, PORT one that is free here, STORE one that is free on node 0, and NODE0 node 0's address, where
    these are known no sooner.
    """
    launcher = LAUNCHERS[config.launcher]
    count = launcher.nodes(config)
    if config.lab:
        chosen = Choice("lo", "SWITCH", "the lab's switch")
    else:
        chosen = choose(config.interface, config.subnet, launcher.peer(config), os.environ)
    place, port = launcher.meeting(config, chosen) if count > 1 else ("", 0)
    address = chosen.address if launcher.leads_and_works(config) else "NODE0"
    starters = launcher.starters(config, f"{place}:{port or 'PORT'}")
    lines = [shlex.join(starter.command) for starter in starters]
    by_hand = set(range(int(launcher.leads_and_works(config)), count)).difference(*(one.ranks for one in starters))
    for rank in sorted(by_hand):
        lines.append(shlex.join(join_command(config, format_endpoint(place, port), "--node-rank", str(rank))))
    for rank in range(count):
        job = Job(
            run_id="RUN",
            launch=1,
            run_folder=Path("RUN"),
            cases=[],
            iterations=None,
            warmup=0,
            pause_s=0,
            timeout_s=0,
            nodes=count,
            node_rank=rank,
            ranks_per_node=ranks_per_node(config, count, world_size),
        )
        meeting = f"{address}:{0 if count == 1 else 'STORE'}"
        lines.append(f"node {rank}: {shlex.join(torchrun.command(job, meeting))}")
    return lines


def seated(job: Job, nodes: Sequence[Node]) -> list[Job]:
    """The copy of ``job`` for each node. Hosts that call themselves the same are told apart by their addresses."""
    names = Counter(node.seat.host for node in nodes)
    jobs = []
    for node in nodes:
        seat = node.seat
        name = seat.host if names[seat.host] == 1 else f"{seat.host}({seat.address})"
        where = {"interface": seat.interface, "address": seat.address, "host": name}
        jobs.append(job.model_copy(update={"nodes": len(nodes), "node_rank": node.rank, **where}))
    return jobs
