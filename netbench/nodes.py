"""The hosts that a sweep runs on: this one, and others that have joined it over a connection of their own.

A node starts torchrun for its share of a launch and says how that ended. Node 0 has rank 0, which writes the record.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, Self

import psutil
from pydantic import BaseModel, ValidationError

import netbench
from netbench import torchrun
from netbench.endpoint import format_endpoint
from netbench.errors import LaunchError, UsageError
from netbench.interfaces import Choice
from netbench.job import Job
from netbench.lab import HostAddress
from netbench.line import Gone, Line
from netbench.processes import end
from netbench.record import RunFolder

#: Once one node's ranks have ended badly, the others have this long to end too, seconds.
_BROKEN_S = 5.0

#: A joined node has ended its ranks within this time of being asked to, seconds.
_END_LIMIT_S = 5.0

#: A joined node says so soon what its processes do, and is not asked again sooner, seconds.
_LOOK_LIMIT_S = 2.0

#: A handshake that takes longer is no netbench's, seconds.
_HELLO_LIMIT_S = 10.0


class Hello(BaseModel):
    """What a host says first; ``node_rank`` is null where any will do."""

    netbench: str
    host: str
    node_rank: int | None = None


class Welcome(BaseModel):
    """What a host that takes part is told: which node it is, and what its groups are to be bound to."""

    node_rank: int
    interface: str | None
    subnet: str | None


class Seat(BaseModel):
    """What a node says when it is ready: its host's name, where its groups are bound, and a port that was free."""

    host: str
    interface: str
    address: str
    store_port: int

    @classmethod
    def here(cls, host: str, chosen: Choice) -> Self:
        with closing(_listener(chosen.address, 0)) as probe:
            return cls(host=host, interface=chosen.interface, address=chosen.address, store_port=probe.getsockname()[1])


class Process(BaseModel):
    """One process of a launch: torchrun, or a rank by its number on its host. ``status`` is psutil's word."""

    local_rank: int | None
    pid: int
    status: str


class Node:
    """A host as the sweep has it. ``start``, then ``poll`` until it gives an exit code, or ``end``."""

    def __init__(self, rank: int, seat: Seat) -> None:
        self.rank = rank
        self.seat = seat
        self._job: Job | None = None
        #: What the last launch was started by here.
        self.command: list[str] = []

    def start(self, job: Job, endpoint: str) -> None:
        """Starts this node's ranks of a launch, which meet at ``endpoint``."""
        raise NotImplementedError

    def poll(self) -> int | None:
        """The exit code of this node's share of the launch; None while it is under way."""
        raise NotImplementedError

    def end(self) -> None:
        """Ends its ranks, if there are any; returns when they are gone or cannot be told from here."""
        raise NotImplementedError

    @property
    def loss(self) -> str | None:
        """Why this node is no longer there; None as long as it is."""
        return None

    @property
    def pid(self) -> int | None:
        """The process id of its torchrun, where that is a process of this host."""
        return None

    def processes(self) -> list[Process]:
        """Its torchrun and its ranks, as far as they are there and it answers."""
        return []

    def log(self) -> str:
        """What torchrun and the ranks of the last launch wrote, as far as it is here."""
        if self._job is None:
            return ""
        path = RunFolder(self._job.run_folder).log(self._job.launch, self.rank)
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


class LocalNode(Node):
    """This host, or a lab's switch on it."""

    def __init__(self, rank: int, seat: Seat, inside: HostAddress | None = None) -> None:
        super().__init__(rank, seat)
        self._inside = inside
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, job: Job, endpoint: str) -> None:
        self._job = job
        self.command = torchrun.command(job, endpoint)
        if self._inside:
            self.command = self._inside.command(self.command)
        self._process = torchrun.start(job, self.command)

    def poll(self) -> int | None:
        return self._process.poll() if self._process else 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def processes(self) -> list[Process]:
        return [*_processes(self._process.pid)] if self._process and self._process.poll() is None else []

    def wait(self, limit_s: float) -> None:
        """Returns when its ranks have ended, after ``limit_s`` at the latest."""
        if self._process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(limit_s)

    def end(self) -> None:
        # What has ended took its ranks along, and its id may be somebody else's by now.
        if self._process and self._process.poll() is None:
            end(self._process)


class JoinedNode(Node):
    """Another host, on which ``netbench join`` runs."""

    def __init__(self, rank: int, seat: Seat, line: Line) -> None:
        super().__init__(rank, seat)
        self._line = line
        self._ended: int | None = 0
        self._loss: str | None = None
        self._processes: list[Process] | None = None
        self._looked_at = -_LOOK_LIMIT_S

    @property
    def loss(self) -> str | None:
        return self._loss

    def start(self, job: Job, endpoint: str) -> None:
        self._job, self._ended = job, None
        self.command = torchrun.command(job, endpoint)
        self._tell(launch=job.model_dump(mode="json"), endpoint=endpoint)

    def poll(self) -> int | None:
        self._hear(0.0)
        return self._ended

    def end(self) -> None:
        if self._ended is None:
            self._tell(stop=True)
        deadline = time.monotonic() + _END_LIMIT_S
        while self._ended is None and (left := deadline - time.monotonic()) > 0:
            self._hear(left)

    def processes(self) -> list[Process]:
        # Asked again and again while a launch is in doubt.
        if time.monotonic() - self._looked_at < _LOOK_LIMIT_S:
            return self._processes or []
        self._looked_at, self._processes = time.monotonic(), None
        self._tell(look=True)
        deadline = time.monotonic() + _LOOK_LIMIT_S
        while self._processes is None and self._loss is None and (left := deadline - time.monotonic()) > 0:
            self._hear(left)
        return self._processes or []

    def leave(self, **message: Any) -> None:
        """The sweep has ended; ``message`` tells the node how."""
        self._tell(bye=message)
        self._line.close()

    def _tell(self, **message: Any) -> None:
        if self._loss is not None:
            return  # its line is closed, and why is known
        try:
            self._line.tell(**message)
        except Gone as gone:
            self._lose(gone)

    def _hear(self, limit_s: float) -> None:
        if self._loss is not None:
            return
        try:
            for message in self._line.hear(limit_s):
                if isinstance(code := message.get("ended"), int):
                    self._keep(message)
                    self._ended = code
                if isinstance(seen := message.get("seen"), list):
                    self._processes = [Process.model_validate(one) for one in seen]
        except Gone as gone:
            self._lose(gone)
        except ValidationError:
            self._lose(Gone("it does not speak as netbench does"))

    def _lose(self, gone: Gone) -> None:
        self._line.close()
        self._loss = f"node {self.rank} ({self.seat.host}, {self.seat.address}) has gone: {gone}"
        self._ended = self._ended or 1

    def _keep(self, message: dict[str, Any]) -> None:
        """Puts what the node knows of its ranks' end where that of this host's is."""
        assert self._job is not None
        if self.rank == 0:
            return  # it has written into this very folder, and more than the end that it sends
        folder, launch = RunFolder(self._job.run_folder), self._job.launch
        with contextlib.suppress(OSError, KeyError, TypeError, ValueError):
            folder.log(launch, self.rank).write_text(str(message.get("log", "")), encoding="utf-8")
            for report in message.get("reports", []):
                folder.rank_error(launch, int(report["rank"])).write_text(json.dumps(report), encoding="utf-8")


class UnderWay:
    """A launch that has been started on all nodes."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self._broken_at: float | None = None

    def poll(self) -> int | None:
        """The worst exit code once all nodes have ended, or had time to after one has ended badly."""
        codes = [node.poll() for node in self.nodes]
        bad = [code for code in codes if code]
        if bad and self._broken_at is None:
            self._broken_at = time.monotonic()
        if None not in codes or (self._broken_at and time.monotonic() - self._broken_at > _BROKEN_S):
            return bad[0] if bad else 0
        return None

    def rank(self, node: Node, local_rank: int) -> int:
        """The rank of a process by its place on its node, as Job.rank has it."""
        return local_rank * len(self.nodes) + node.rank

    @property
    def losses(self) -> list[str]:
        return [node.loss for node in self.nodes if node.loss]

    def wait(self, limit_s: float) -> None:
        """Returns when something may have happened, after ``limit_s`` at the latest."""
        match self.nodes:
            case [LocalNode() as only]:
                only.wait(limit_s)
            case _:
                time.sleep(limit_s)

    def end(self) -> None:
        for node in self.nodes:
            node.end()


class Reception:
    """Where the other hosts of a sweep come to: a port at one address of this host."""

    def __init__(self, address: str, port: int) -> None:
        """Raises UsageError when the port is taken or the address is not this host's."""
        try:
            self._listener = _listener(address, port)
        except OSError as error:
            raise UsageError(
                f"{socket.gethostname()}: cannot wait for the other hosts at {address} port {port}: {error.strerror}; "
                "choose another port by --rdzv-endpoint"
            ) from None
        self.address = address
        self.port: int = self._listener.getsockname()[1]

    @property
    def endpoint(self) -> str:
        return format_endpoint(self.address, self.port)

    def close(self) -> None:
        self._listener.close()

    def gather(
        self, missing: set[int], offer: Callable[[int], Welcome], limit_s: float, still: Callable[[], str | None]
    ) -> Iterator[JoinedNode]:
        """The nodes of ``missing`` as they come. ``still`` may say why waiting for more is in vain.

        Raises LaunchError, naming who is missing, or the host that cannot take part and why.
        """
        missing = set(missing)
        deadline = time.monotonic() + limit_s
        while missing:
            if reason := still():
                raise LaunchError(reason)
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"node {', '.join(map(str, sorted(missing)))} did not come to {self.address} port {self.port} "
                    f"within {limit_s:.0f} s; start netbench join {self.endpoint} there, or wait longer by "
                    "--join-timeout"
                )
            if select.select([self._listener], [], [], 0.25)[0]:
                connection, _ = self._listener.accept()
                if node := self._receive(Line(connection), missing, offer):
                    missing.discard(node.rank)
                    yield node

    def _receive(self, line: Line, missing: set[int], offer: Callable[[int], Welcome]) -> JoinedNode | None:
        """The node behind a connection; None when it is none of ours, or went away before it was ready."""
        try:
            hello = Hello.model_validate(line.await_message(_HELLO_LIMIT_S, "a hello"))
            rank = min(missing) if hello.node_rank is None else hello.node_rank
            if hello.netbench != netbench.__version__:
                reason = (
                    f"{hello.host} ({line.peer}) has netbench {hello.netbench}, {socket.gethostname()} has "
                    f"{netbench.__version__}; install the same on all hosts"
                )
                line.tell(refused=reason)
                raise LaunchError(reason)
            if rank not in missing:
                line.tell(refused=f"node {rank} is not missing here; those are: {sorted(missing)}")
                line.close()
                return None
            line.tell(welcome=offer(rank).model_dump())
            answer = line.await_message(_HELLO_LIMIT_S, "an answer")
            if "cannot" in answer:
                raise LaunchError(f"node {rank}, {hello.host} ({line.peer}): {answer['cannot']}")
            return JoinedNode(rank, Seat.model_validate(answer.get("ready")), line)
        except (Gone, ValidationError):
            line.close()
            return None
        except LaunchError:
            line.close()
            raise


def _processes(torchrun: int) -> Iterator[Process]:
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(torchrun)
        yield Process(local_rank=None, pid=parent.pid, status=parent.status())
        for child in parent.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                rank = child.environ().get("LOCAL_RANK", "")
                if rank.isdecimal() and "netbench.worker" in child.cmdline():
                    yield Process(local_rank=int(rank), pid=child.pid, status=child.status())


def _listener(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=1024)
