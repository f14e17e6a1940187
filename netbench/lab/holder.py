"""The process that a lab lives in: ``python -m netbench.lab.holder SPEC [--stay]``.

It takes a network of its own, builds the lab there, writes the lab's entry as one line of JSON and then waits: for
the end of its standard input, which comes when its owner closes it or dies, or with ``--stay`` for SIGTERM. Its end
is the lab's end, since nothing else keeps the namespaces; processes that still run in them are ended first.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from netbench.errors import NetbenchError, UsageError
from netbench.lab.host import HostAddress
from netbench.lab.network import Host, build
from netbench.lab.privilege import Machine, take_network
from netbench.lab.roster import LabEntry, Place, Roster
from netbench.lab.spec import LabSpec

#: Processes in the lab have this long to end by themselves.
_GRACE_S = 2.0

#: A killed process is gone at once, unless the kernel is busy with it; the lab does not wait for that for ever.
_KILL_LIMIT_S = 5.0


def hold(spec: LabSpec, stay: bool) -> None:
    owner = None if stay else os.getppid()
    place = Roster().claim()
    try:
        way = take_network(Machine())
        switch, hosts = build(spec)
        entry = _entry(place, spec, way, owner, switch, hosts)
        place.write(entry)
        try:
            _report(entry)
            _wait(stay)
        finally:
            # A second signal must not cut the clearing short.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            # Nobody can come in any more, and the namespaces' numbers stay theirs until all who did have ended.
            kept = _hide([host.network for host in (switch, *hosts)])
            _end_residents({_identity(descriptor) for descriptor in kept})
    finally:
        place.leave()


def _entry(place: Place, spec: LabSpec, way: str, owner: int | None, switch: Host, hosts: list[Host]) -> LabEntry:
    process = f"/proc/{os.getpid()}"
    user = f"{process}/ns/user" if way == "user namespace" else None

    def address(host: Host) -> HostAddress:
        return HostAddress(host.name, host.address, host.interface, f"{process}/fd/{host.network}", user)

    return LabEntry(
        name=place.name,
        spec=str(spec),
        way=way,
        holder=os.getpid(),
        owner=owner,
        switch=address(switch),
        hosts=tuple(map(address, hosts)),
    )


def _report(entry: LabEntry) -> None:
    print(entry.to_json(), flush=True)
    # Whoever started a lab that stays goes away; its pipes and its working folder are not ours to keep.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
    os.chdir("/")


def _wait(stay: bool) -> None:
    if stay:
        while True:
            signal.pause()
    sys.stdin.buffer.read()


def _hide(descriptors: list[int]) -> list[int]:
    """Moves descriptors to other numbers, so that the paths by which the namespaces were known end."""
    kept = [os.dup(descriptor) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    return kept


def _end_residents(networks: set[tuple[int, int]]) -> None:
    """Asks all processes in these namespaces to end, and ends those that do not."""
    for kind, limit_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _KILL_LIMIT_S)):
        deadline = time.monotonic() + limit_s
        asked: set[int] = set()
        # Every round looks anew, so that what a dying process has started is found too.
        while (residents := _residents(networks)) and time.monotonic() < deadline:
            for pid in residents - asked:
                _signal(pid, kind, networks)
            asked |= residents
            time.sleep(0.02)


def _residents(networks: set[tuple[int, int]]) -> set[int]:
    pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())
    return {pid for pid in pids if pid != os.getpid() and _is_in(pid, networks)}


def _is_in(pid: int, networks: set[tuple[int, int]]) -> bool:
    with contextlib.suppress(OSError):  # it has ended, or it is another user's
        return _identity(f"/proc/{pid}/ns/net") in networks
    return False


def _identity(namespace: str | int) -> tuple[int, int]:
    status = os.stat(namespace)  # noqa: PTH116 (a descriptor, too)
    return status.st_dev, status.st_ino


def _signal(pid: int, kind: signal.Signals, networks: set[tuple[int, int]]) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.pidfd_open(pid)
        try:
            # Only now does the number stand for one process for good.
            if _is_in(pid, networks):
                signal.pidfd_send_signal(descriptor, kind)
        finally:
            os.close(descriptor)


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    # Ctrl-C in a terminal is the owner's business; it closes our standard input when it is done.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    try:
        hold(LabSpec.parse(sys.argv[1]), stay="--stay" in sys.argv[2:])
    except ValueError as error:
        sys.exit(UsageError(str(error)).exit_code)
    except NetbenchError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
