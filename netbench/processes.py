"""Processes that must not outlive the one that started them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import psutil

from netbench.errors import LaunchError, StorageError

_PR_SET_PDEATHSIG = 1


#: What torchrun's ranks are told of its process id, so that one which starts too late to see it end knows.
TORCHRUN_PID = "TORCHRUN_PID"


def die_with_parent(signal_number: signal.Signals, parent: int | None = None) -> None:
    """Has the kernel send ``signal_number`` to this process when its parent ends, however it ends.

    With the id of the ``parent`` it is sent at once where that has ended before.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal_number), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal_number)


def start(command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Starts a program that ends with this one, however this one does; its output is added to ``log``.

    Raises LaunchError when it cannot be run, StorageError when the log cannot be written.
    """
    try:
        output = log.open("ab")
    except OSError as error:
        raise StorageError(f"{log}: cannot be written: {error.strerror}") from None
    with output:
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches us alone, and we end them in order
                preexec_fn=partial(die_with_parent, signal.SIGTERM, os.getpid()),
            )
        except OSError as error:
            raise LaunchError(f"{command[0]}: cannot be started: {error.strerror}") from None


def end(process: subprocess.Popen[bytes], grace_s: float = 2.0) -> None:
    """Ends ``process`` and all that it started, by id: asks first, and kills after ``grace_s``."""
    try:
        started = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        started = []
    if process.poll() is None:
        process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace_s)
    if process.poll() is None:
        process.kill()
    deadline = time.monotonic() + 1.0
    for child in started:
        with contextlib.suppress(psutil.Error):
            child.wait(max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    process.wait()
