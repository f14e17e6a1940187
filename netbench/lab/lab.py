"""A lab as its user has it: up for the length of a ``with`` block, or until ``down``."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from netbench.errors import LaunchError
from netbench.lab.host import HostAddress
from netbench.lab.roster import LabEntry, Roster
from netbench.lab.spec import LabSpec

#: Making 64 hosts takes a few seconds; a machine that needs longer than this is not going to make it.
_START_LIMIT_S = 60.0

#: The holder gives processes in the lab two seconds.
_END_LIMIT_S = 15.0


class Lab:
    """The hosts of ``spec``, in a process of their own that ends with the block or with this process.

    ::

        with Lab(LabSpec.parse("4x200mbit")) as lab:
            subprocess.run(lab.switch.command(["torchrun", "--master-addr", lab.switch.address, ...]))

    and in rank r: ``hosts[r % len(hosts)].enter()`` before it opens a socket. This process itself stays outside.
    Raises LaunchError, saying what is missing and how to get it, where the kernel allows no lab.
    """

    def __init__(self, spec: LabSpec) -> None:
        self.spec = spec
        self._holder: subprocess.Popen[str] | None = None
        self._entry: LabEntry | None = None

    def __enter__(self) -> Self:
        self._holder = _start_holder(self.spec, stay=False)
        try:
            self._entry = _await_entry(self._holder)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Takes the lab down, with every process that still runs in it. May be called again."""
        holder, self._holder, self._entry = self._holder, None, None
        if holder is None:
            return
        assert holder.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            holder.stdin.close()
        try:
            holder.wait(_END_LIMIT_S)
        except BaseException:
            # Also after Ctrl-C here: without its holder the lab is gone all the same.
            holder.kill()
            holder.wait()
            raise
        finally:
            _close_pipes(holder)

    @property
    def entry(self) -> LabEntry:
        assert self._entry is not None, "the lab is not up"
        return self._entry

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def switch(self) -> HostAddress:
        """Where torchrun runs; its address is the rendezvous, which every host can reach."""
        return self.entry.switch

    @property
    def hosts(self) -> tuple[HostAddress, ...]:
        return self.entry.hosts


@dataclass(frozen=True)
class Capability:
    """Whether this machine can make a lab: ``way`` is ``root`` or ``user namespace``, or None with the refusal."""

    way: str | None
    refusal: str | None = None


def capability(spec: LabSpec) -> Capability:
    """Finds out by making the lab and taking it down again, which takes well under a second."""
    try:
        with Lab(spec) as lab:
            return Capability(lab.entry.way)
    except LaunchError as error:
        return Capability(None, str(error))


def up(spec: LabSpec) -> LabEntry:
    """Makes a lab that stays after this process has ended, until ``down``."""
    holder = _start_holder(spec, stay=True)
    try:
        return _await_entry(holder)
    except BaseException:
        holder.terminate()
        holder.wait()
        raise
    finally:
        _close_pipes(holder)


def down(name: str) -> None:
    """Takes a lab down, with every process that still runs in it. Raises UsageError when there is none of this name."""
    roster = Roster()
    holder = roster.find(name).holder
    try:
        process = os.pidfd_open(holder)
    except ProcessLookupError:
        return
    try:
        # The lock proves that the holder lives, so the descriptor is the holder's and not a later process's.
        if not roster.is_up(name):
            return
        signal.pidfd_send_signal(process, signal.SIGTERM)
        if not select.select([process], [], [], _END_LIMIT_S)[0]:
            signal.pidfd_send_signal(process, signal.SIGKILL)
            select.select([process], [], [], _END_LIMIT_S)
    finally:
        os.close(process)
    roster.entries()


def list_labs() -> list[LabEntry]:
    """The labs of this user that are up, those of running sweeps included."""
    return Roster().entries()


def exec_in(name: str, host: str, argv: Sequence[str]) -> int:
    """Runs ``argv`` in a host of a lab (or in its ``switch``) with this process's streams; gives its exit code.

    128 + n stands for an end by signal n, as in a shell. Raises UsageError when there is no such lab or host.
    """
    command = Roster().find(name).host(host).command(argv)
    with subprocess.Popen(command) as process:
        while True:
            try:
                code = process.wait()
            except KeyboardInterrupt:
                # The terminal has sent it to the command as well, which decides what it means.
                continue
            return code if code >= 0 else 128 - code


def _start_holder(spec: LabSpec, stay: bool) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "netbench.lab.holder", str(spec), *(["--stay"] if stay else [])],
        stdin=subprocess.DEVNULL if stay else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a Ctrl-C in the terminal reaches the owner alone
    )


def _close_pipes(holder: subprocess.Popen[str]) -> None:
    for stream in (holder.stdout, holder.stderr):
        if stream is not None:
            stream.close()


def _await_entry(holder: subprocess.Popen[str]) -> LabEntry:
    """The holder's one line. Raises LaunchError with its complaint when there is none."""
    assert holder.stdout is not None
    assert holder.stderr is not None
    deadline = time.monotonic() + _START_LIMIT_S
    while not select.select([holder.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
        if time.monotonic() >= deadline:
            raise LaunchError(f"the lab was not up after {_START_LIMIT_S:.0f} s; waited for process {holder.pid}")
    line = holder.stdout.readline()
    if line.endswith("\n"):
        return LabEntry.from_json(line)
    complaint = holder.stderr.read().strip()
    raise LaunchError(complaint or f"the lab's process ended with exit code {holder.wait()} and said nothing")
