"""Sweeps by the real program, with real torchrun workers on loopback. A launch takes seconds, so there are few."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from netbench.record import RunFolder

#: A wait that takes longer than this has failed, seconds.
LIMIT_S = 120.0


class Program:
    """One ``netbench`` command under way, and everything that it started."""

    def __init__(self, *typed: str, prefix: Sequence[str] = (), **environment: str) -> None:
        # What ``prefix`` is, as ``prlimit`` or ``unshare``, becomes the program, so that its process id stays.
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "netbench", *typed],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self.pid = self._process.pid
        self.out = self.err = ""
        self._started: dict[int, psutil.Process] = {}

    def wait_until(self, true: Callable[[], bool], what: str) -> None:
        """Returns as soon as ``true()``, which must come about while the program runs."""
        deadline = time.monotonic() + LIMIT_S
        while not true():
            assert time.monotonic() < deadline, f"{what} did not happen within {LIMIT_S} s"
            assert self._process.poll() is None, f"the program ended before {what}: {self._process.communicate()}"
            time.sleep(0.05)

    def send(self, signal_number: int) -> None:
        self.note_started()
        self._process.send_signal(signal_number)

    def note_started(self) -> list[psutil.Process]:
        """All processes below this one, now."""
        try:
            below = psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            below = []
        self._started |= {process.pid: process for process in below}
        return below

    def workers(self) -> dict[int, psutil.Process]:
        """The ranks under way: those children of torchrun that run the worker."""
        found = {}
        for process in self.note_started():
            try:
                if "netbench.worker" in process.cmdline() and (rank := process.environ().get("RANK")):
                    found[int(rank)] = process
            except psutil.Error:
                continue
        return found

    def note_until_end(self, limit_s: float = LIMIT_S) -> None:
        """Looks again and again which processes there are, so that ``left_behind`` knows all of them."""
        deadline = time.monotonic() + limit_s
        while self._process.poll() is None:
            assert time.monotonic() < deadline, f"the program did not end within {limit_s} s"
            self.note_started()
            time.sleep(0.2)

    def end(self) -> int:
        """Waits for the program's end and returns its exit code."""
        self.out, self.err = self._process.communicate(timeout=LIMIT_S)
        return self._process.returncode

    def left_behind(self) -> list[int]:
        """Which of the processes seen so far are still running, after a moment to end."""
        _, alive = psutil.wait_procs(list(self._started.values()), timeout=5)
        return [process.pid for process in alive if process.status() != psutil.STATUS_ZOMBIE]

    def kill(self) -> None:
        self.note_started()
        for process in self._started.values():
            if process.is_running():
                process.kill()
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate(timeout=LIMIT_S)


def only_run(out: Path) -> RunFolder:
    [path] = [found for found in out.iterdir() if found.is_dir()]
    return RunFolder(path)
