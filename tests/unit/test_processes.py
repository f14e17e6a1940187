"""A process ends with the one that started it, even if that ended before it could say so to the kernel."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import psutil
import pytest

DIE = """
import os, signal, sys, time
from netbench.processes import die_with_parent
die_with_parent(signal.SIGKILL, {parent})
print("lives on", flush=True)
time.sleep({sleep_s})
"""

#: Starts DIE, says its process id once that has spoken, and is killed.
PARENT = """
import os, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_ends_with_its_parent() -> None:
    child = DIE.format(parent="os.getppid()", sleep_s=60)
    with subprocess.Popen([sys.executable, "-c", PARENT, child], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert parent.wait(20) == -signal.SIGKILL
    deadline = time.monotonic() + 5
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, f"process {pid} lives on"
        time.sleep(0.02)


@pytest.mark.parametrize("parent", ["1 << 22", "os.getppid() + 1"])
def test_a_process_whose_parent_has_ended_before_ends_at_once(parent: str) -> None:
    program = [sys.executable, "-c", DIE.format(parent=parent, sleep_s=0)]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=20, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout == ""


def test_a_process_with_its_parent_lives_on() -> None:
    program = [sys.executable, "-c", DIE.format(parent="os.getppid()", sleep_s=0)]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=20, check=False)
    assert (ended.returncode, ended.stdout.strip()) == (0, "lives on")
