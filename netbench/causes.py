"""Why a launch ended early: what torchrun, the ranks and the kernel say of it, and what to do."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from netbench.foreign import parse_json
from netbench.job import Job
from netbench.nodes import Node, UnderWay
from netbench.record import RunFolder

#: What a rank says that has lost its peer; the peer's own reason is the cause.
_CONSEQUENCES = re.compile(r"Connection closed|Connection reset|Broken pipe|Application timeout caused pair closure")

_NO_MEMORY = re.compile(r"MemoryError|can't allocate memory|Cannot allocate memory")
_MEMORY_ADVICE = "take smaller --sizes, fewer --world-sizes or fewer --streams"


class Causes:
    """Looks at one launch, from its start on: at this host's processes, and at what other hosts have sent of theirs."""

    def __init__(self, job: Job, launched: UnderWay) -> None:
        self._job = job
        self._folder = RunFolder(job.run_folder)
        self._launched = launched
        #: On which host each rank runs, once that is known; in a lab it is at once.
        self.hosts = {rank: host.name for rank, host in enumerate(job.lab_hosts)}
        #: Whose an address is that stands in an error.
        self._addresses = {host.address: host.name for host in job.lab_hosts}
        self._ended_for_memory = _ended_for_memory()

    def learn_hosts(self, environment: Iterable[dict[str, Any]]) -> None:
        """What the workers tell of the hosts that they are on."""
        for host in environment:
            self.hosts |= dict.fromkeys(host["ranks"], host["host"])
            self._addresses |= dict.fromkeys(host.get("interface", {}).get("addresses", ()), host["host"])

    def stopped(self) -> list[str]:
        """The processes of the launch that something has stopped, in words."""
        return [
            f"{'torchrun' if rank is None else self._rank(rank, pid)} has been stopped, by SIGSTOP or a debugger"
            for rank, pid, status in self._processes()
            if status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
        ]

    def why(self) -> str:
        """The first to be found: a host that is gone, a process that is stopped, or that a signal ended, a rank's
        error, a log's end."""
        if losses := self._launched.losses:
            return "; ".join(losses)
        if stopped := self.stopped():
            return "; ".join(stopped)
        if killed := [text for node in self._launched.nodes for text in self._killed(node)]:
            return "; ".join(killed)
        if reports := self._reports():
            cause = min(reports, key=lambda report: (bool(_CONSEQUENCES.search(report["error"])), report["at"]))
            error = self._with_hosts(one_line(cause["error"]))
            reason = f"{self._rank(cause['rank'], host=cause['host'])}: {error}"
            if _NO_MEMORY.search(cause["error"]):
                return f"{reason}; memory ran out: {_MEMORY_ADVICE}"
            silent = [*self._silent({report["rank"] for report in reports})]
            return f"{reason}; nothing was heard of {', '.join(silent)}" if silent else reason
        failed = next((node for node in self._launched.nodes if node.poll()), self._launched.nodes[0])
        last = [line for line in failed.log().splitlines() if line.strip()][-3:]
        return f"the workers ended with exit code {failed.poll()}: {one_line(' / '.join(last))}"

    def storage(self) -> str | None:
        """What could not be written, where that ended a rank: another launch would fare no better."""
        for report in self._reports():
            if report["error"].startswith("StorageError: "):
                return f"{self._rank(report['rank'], host=report['host'])}: {report['error'].partition(': ')[2]}"
        # With a full disk there may be no report, and only what torchrun's log had room for.
        logs = "\n".join(node.log() for node in self._launched.nodes)
        told = re.search(r"\bStorageError: (.+)", logs)
        return told[1] if told else None

    def _reports(self) -> list[dict[str, Any]]:
        """What the ranks that ended early have said of it."""
        reports = []
        for path in self._folder.rank_errors(self._job.launch):
            with suppress(OSError, ValueError):
                report = parse_json(path.read_bytes())
                kinds: dict[str, type] = {"rank": int, "host": str, "error": str, "at": float}
                if isinstance(report, dict) and all(isinstance(report.get(name), kinds[name]) for name in kinds):
                    reports.append(report)
        return reports

    def _killed(self, node: Node) -> Iterator[str]:
        """Whom a signal ended, other than by torchrun's own clearing up after the first to end."""
        code, log = node.poll(), node.log()
        if code is not None and code < 0:
            pid = f" (pid {node.pid})" if node.pid else f" on {node.seat.host}"
            yield f"torchrun{pid} was ended by {signal.Signals(-code).name}"
        _, _, root = log.rpartition("Root Cause")
        pattern = r"host\s*:\s*(\S+)\n\s*rank\s*:\s*\d+ \(local_rank: (\d+)\)\n\s*exitcode\s*:\s*-(\d+) \(pid: (\d+)\)"
        first = {match[4] for match in re.finditer(pattern, root)}
        for _, local_rank, number, pid in dict.fromkeys(re.findall(pattern, log)):
            name = signal.Signals(int(number)).name
            if name == "SIGTERM" and pid not in first:
                continue
            rank = self._launched.rank(node, int(local_rank))
            ended = f"{self._rank(rank, int(pid), node.seat.host)} was ended by {name}"
            if name == "SIGKILL" and _ended_for_memory() > self._ended_for_memory:
                ended += f": the kernel does that when memory runs out, and did; {_MEMORY_ADVICE}"
            elif name == "SIGKILL":
                ended += ": by someone, or by a limit on memory (the kernel's log says which)"
            yield ended

    def _silent(self, heard: set[int]) -> Iterator[str]:
        """The ranks that are still there, and have not said that they lost their peers."""
        for rank, pid, status in self._processes():
            if rank is not None and rank not in heard:
                yield f"{self._rank(rank, pid)}, state {status}"

    def _processes(self) -> Iterator[tuple[int | None, int, str]]:
        """Every torchrun (None) and every rank that is there, with its process id and its state."""
        for node in self._launched.nodes:
            for process in node.processes():
                local = process.local_rank
                yield None if local is None else self._launched.rank(node, local), process.pid, process.status

    def _with_hosts(self, error: str) -> str:
        """The error with the name of its host behind each address, where there is more than one host."""
        if len({*self.hosts.values()}) < 2 or not self._addresses:
            return error
        known = "|".join(re.escape(address) for address in self._addresses)
        return re.sub(
            rf"(?<![\w.:])\[?({known})\b(?!\.)\]?(:\d+)?",
            lambda match: f"{match[0]} ({self._addresses[match[1]]})",
            error,
        )

    def _rank(self, rank: int, pid: int | None = None, host: str | None = None) -> str:
        host = self.hosts.get(rank) or host or socket.gethostname()
        return f"rank {rank} on {host}" + (f" (pid {pid})" if pid else "")


def one_line(text: str) -> str:
    return " ".join(text.split())[:500]


def _ended_for_memory() -> int:
    """How many processes this machine's kernel has ended because memory ran out, cgroups' limits included."""
    try:
        found = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0
