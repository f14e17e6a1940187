"""A host that takes part in a sweep which another one leads: it starts its ranks when it is told to.

It ends its ranks when the leader is gone, so nothing is left behind on any host, however the leader ends.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import netbench
from netbench.demands import allow_open_files
from netbench.endpoint import parse_endpoint
from netbench.errors import Exit, LaunchError, NetbenchError, UsageError
from netbench.interfaces import choose
from netbench.job import Job
from netbench.line import Gone, Line, NoAnswer
from netbench.nodes import Hello, LocalNode, Seat, Welcome
from netbench.record import RunFolder
from netbench.signals import stopping

#: What the schedulers call the number of a task's node, in the order in which they are looked for.
_NODE_RANKS = ("SLURM_NODEID", "PET_NODE_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "JOB_COMPLETION_INDEX")

#: A leader whose port is closed is waited for this long before it has been met, and after; seconds.
_PATIENCE_S = 3.0

#: How often the news of leader and ranks are looked for, seconds.
_POLL_S = 0.25

#: How much of a launch's log the leader is sent, from its end.
_LOG_BYTES = 64 << 10


class Member:
    """This host's part. ``interface``, ``subnet`` are this host's own choice where the leader's would not fit."""

    def __init__(
        self, endpoint: str, node_rank: int | None, interface: str | None, subnet: str | None, name: str | None = None
    ) -> None:
        """Raises UsageError when ``endpoint`` is not HOST:PORT."""
        try:
            self._host, self._port = parse_endpoint(endpoint)
        except ValueError as error:
            raise UsageError(str(error)) from None
        self._node_rank = node_rank
        self._interface = interface
        self._subnet = subnet
        self._name = name or os.environ.get("SLURMD_NODENAME") or socket.gethostname()

    def run(self, limit_s: float) -> int:
        """Takes part until the leader says that the sweep has ended; gives the leader's exit code.

        Raises LaunchError when the leader cannot be found within ``limit_s``, does not want this host, or has gone.
        """
        with stopping():
            met = False
            while True:
                line = self._connect(_PATIENCE_S if met else limit_s, limit_s)
                met = True
                with line:
                    try:
                        return self._take_part(line, limit_s)
                    except Gone as gone:
                        print(f"the leader at {self._place} has gone: {gone}", file=sys.stderr, flush=True)

    @property
    def _place(self) -> str:
        return f"{self._host} port {self._port}"

    def _connect(self, refused_limit_s: float, limit_s: float) -> Line:
        """``refused_limit_s`` is how long a closed port is believed to open yet."""
        begun = time.monotonic()
        told = False
        while True:
            try:
                return Line(socket.create_connection((self._host, self._port), timeout=2.0))
            except socket.gaierror as error:
                raise UsageError(
                    f"--rdzv-endpoint: {socket.gethostname()} finds no address for {self._host!r} ({error.strerror}); "
                    "give an address instead of the name"
                ) from None
            except OSError as error:
                waited_s = time.monotonic() - begun
                patience_s = refused_limit_s if isinstance(error, ConnectionRefusedError) else limit_s
                if waited_s > patience_s:
                    raise LaunchError(
                        f"{socket.gethostname()}: nobody leads a sweep at {self._place} ({error.strerror or error}); "
                        f"waited {waited_s:.0f} s. Is node 0 started, and does its port let this host in?"
                    ) from None
            if not told:
                print(f"waiting for node 0 at {self._place}", file=sys.stderr, flush=True)
                told = True
            time.sleep(_POLL_S)

    def _take_part(self, line: Line, limit_s: float) -> int:
        line.tell(**Hello(netbench=netbench.__version__, host=self._name, node_rank=self._node_rank).model_dump())
        answer = self._answer(line, limit_s)
        if "refused" in answer:
            raise LaunchError(f"node 0 at {self._place} does not take this host: {answer['refused']}")
        try:
            welcome = Welcome.model_validate(answer.get("welcome"))
        except ValidationError:
            raise LaunchError(f"what answers at {self._place} is no netbench that leads a sweep") from None
        self._node_rank = welcome.node_rank
        try:
            chosen = choose(
                self._interface or (None if self._subnet else welcome.interface),
                self._subnet or welcome.subnet,
                self._host,
                os.environ,
            )
            node = LocalNode(welcome.node_rank, Seat.here(self._name, chosen))
        except (NetbenchError, OSError) as error:
            line.tell(cannot=str(error))
            raise
        line.tell(ready=node.seat.model_dump())
        print(
            f"node {node.rank} of the sweep at {self._place}: {node.seat.host}, {chosen.interface} {chosen.address} "
            f"({chosen.why})",
            file=sys.stderr,
            flush=True,
        )
        with tempfile.TemporaryDirectory(prefix="netbench-") as scratch:
            return _Service(line, node, Path(scratch)).run()

    def _answer(self, line: Line, limit_s: float) -> dict[str, Any]:
        """What node 0 says to our hello: nothing as long as it has all of its nodes, until one of them is gone."""
        try:
            return line.await_message(_PATIENCE_S, "an answer")
        except NoAnswer:
            print(f"the sweep at {self._place} is under way with others; waiting for a place", file=sys.stderr)
        try:
            return line.await_message(limit_s, "an answer")
        except NoAnswer:
            raise LaunchError(
                f"the sweep at {self._place} had no place for this host within {limit_s:.0f} s; is its --nnodes right?"
            ) from None


class _Service:
    """Follows the leader's orders over one connection."""

    def __init__(self, line: Line, node: LocalNode, scratch: Path) -> None:
        self._line = line
        self._node = node
        self._scratch = scratch
        self._job: Job | None = None

    def run(self) -> int:
        """Raises Gone when the leader is; the ranks are ended in any case."""
        try:
            while True:
                for message in self._line.hear(_POLL_S):
                    if "bye" in message:
                        return self._leave(message["bye"])
                    if "launch" in message:
                        self._start(Job.model_validate(message["launch"]), message["endpoint"])
                    if "look" in message:
                        self._line.tell(seen=[process.model_dump() for process in self._node.processes()])
                    if "stop" in message:
                        self._node.end()
                if self._job and (code := self._node.poll()) is not None:
                    self._report(self._job, code)
        finally:
            self._node.end()

    def _start(self, job: Job, endpoint: str) -> None:
        # Rank 0 writes the record, so its folder must be the leader's own; the others only log.
        folder = RunFolder(job.run_folder if self._node.rank == 0 else self._scratch)
        self._job = job.model_copy(update={"run_folder": folder.path})
        try:
            if self._node.rank == 0 and not folder.logs.is_dir():
                raise LaunchError(
                    f"{self._node.seat.host} has no folder {folder.path}, where rank 0 is to write the record; run "
                    "netbench there, or put --out on a file system that both hosts have"
                )
            folder.logs.mkdir(exist_ok=True)
            allow_open_files(job.cases)
            self._node.start(self._job, endpoint)
            print(f"launch {job.launch}: {job.ranks_per_node} of its ranks here", file=sys.stderr, flush=True)
        except (NetbenchError, OSError) as error:
            self._line.tell(ended=int(Exit.LAUNCH), log=str(error))
            self._job = None

    def _report(self, job: Job, code: int) -> None:
        folder = RunFolder(job.run_folder)
        reports: list[Any] = []
        for path in folder.rank_errors(job.launch):
            with suppress(OSError, ValueError):
                reports.append(json.loads(path.read_text(encoding="utf-8")))
        log = folder.log(job.launch, job.node_rank).read_bytes()[-_LOG_BYTES:].decode(errors="replace")
        self._job = None
        self._line.tell(ended=code, log=log, reports=reports)

    def _leave(self, how: dict[str, Any]) -> int:
        print(f"the sweep has ended: {how['text']}", file=sys.stderr, flush=True)
        return int(how["code"])


def node_rank_here() -> int | None:
    """This task's number among its scheduler's nodes, where one says."""
    for name in _NODE_RANKS:
        if (value := os.environ.get(name, "")).isdecimal():
            return int(value)
    return None
