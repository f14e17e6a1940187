"""The machine is not as it should be: ports taken, another sweep, few files, no shared memory, a clock set back."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from programs import Program, only_run

from faults import sabotage
from faults.cells import cell
from netbench.record import RunFolder

pytestmark = pytest.mark.e2e

Netbench = Callable[..., Program]

SMALL = [
    *("--modes", "allreduce", "--backends", "gloo", "--streams", "1", "--world-sizes", "2"),
    *("--sizes", "4KiB:16KiB:x2", "--iterations", "6", "--rounds", "1"),
]
CASES = 3

#: Where torch's programs meet if nobody says where.
USUAL_PORTS = (29400, 29500)


@pytest.fixture
def usual_ports_taken() -> Iterator[None]:
    with ExitStack() as servers:
        for port in USUAL_PORTS:
            try:
                servers.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue  # taken by somebody else, which is as good
        yield


def test_two_sweeps_at_once_go_into_one_folder(usual_ports_taken: None, netbench: Netbench, tmp_path: Path) -> None:
    wanted = cell("two sweeps at once, into one folder; the usual ports taken", "start-up")
    programs = [netbench("sweep", *SMALL, "--out", str(tmp_path)) for _ in range(2)]
    for program in programs:
        program.note_until_end()
        assert program.end() == wanted.exit, program.err
        assert program.left_behind() == []
    runs = [RunFolder(path) for path in tmp_path.iterdir()]
    assert len(runs) == 2
    for run in runs:
        assert len(run.finished()) == CASES
        assert run.read_manifest().status == "finished"


def test_a_low_limit_of_open_files_is_named_before_anything_is_started(netbench: Netbench, tmp_path: Path) -> None:
    wanted = cell("a limit of 64 open files", "before anything is started")
    if shutil.which("prlimit") is None:
        pytest.skip("there is no prlimit")
    typed = ["sweep", *SMALL, "--backends", "split_gloo", "--streams", "20", "--out", str(tmp_path)]
    program = netbench(*typed, prefix=["prlimit", "--nofile=64:64"])
    assert program.end() == wanted.exit
    assert wanted.fits(program.err), program.err
    assert "starting" not in program.err
    assert "Traceback" not in program.err
    folder = only_run(tmp_path)
    assert folder.read_manifest().launches == []

    # What the user may do about it without root, the program does: the soft limit is raised as far as needed.
    resumed = netbench("sweep", "--resume", str(folder.path), prefix=["prlimit", "--nofile=64:4096"])
    assert resumed.end() == 0, resumed.err
    assert len(folder.finished()) == CASES
    [host] = folder.read_manifest().environment
    assert 64 < host["open_files_limit"] < 4096


#: Becomes the program in a mount namespace of its own, where nothing can be put into /dev/shm.
WITHOUT_SHM = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o ro,size=4k none /dev/shm && exec "$@"', "sh"]


def test_no_shared_memory_is_needed(netbench: Netbench, tmp_path: Path) -> None:
    wanted = cell("a /dev/shm that cannot be written", "start-up")
    tried = subprocess.run([*WITHOUT_SHM, "touch", "/dev/shm/x"], capture_output=True, text=True, check=False)
    if "Read-only file system" not in tried.stderr:
        pytest.skip(f"no mount namespace with another /dev/shm can be made here: {tried.stderr.strip()}")
    program = netbench("sweep", *SMALL, "--out", str(tmp_path), prefix=WITHOUT_SHM)
    assert program.end() == wanted.exit, program.err
    assert len(only_run(tmp_path).finished()) == CASES


#: In the program, in torchrun and in the ranks: two seconds after its start the clock is put back by an hour.
BACK = """
import datetime, sys, time

begun, right = time.monotonic(), time.time


def back():
    return right() - 3600 * (time.monotonic() - begun > 2)


class Back(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(back(), tz)


time.time = back
time.time_ns = lambda: int(back() * 1e9)
if sys.orig_argv[1:3] == ["-m", "netbench"]:
    import netbench.sweep

    netbench.sweep.datetime = Back
"""


def test_a_clock_that_is_set_back_spoils_no_duration(netbench: Netbench, tmp_path: Path) -> None:
    wanted = cell("the clock is set back by an hour", "timing")
    out = tmp_path / "results"
    program = netbench("sweep", *SMALL, "--out", str(out), **sabotage.site(tmp_path / "python", BACK))
    assert program.end() == wanted.exit, program.err
    folder = only_run(out)
    manifest = folder.read_manifest()
    assert manifest.ended_at is not None
    assert (manifest.ended_at - manifest.started_at).total_seconds() < -3000  # it has been set back
    assert len(folder.finished()) == CASES
    shown = netbench("show", str(folder.path), "--format", "json")
    assert shown.end() == 0
    for row in json.loads(shown.out):
        assert row["status"] == "ok"
        assert 0 < row["time_us"] < 60e6
    for command in ("runs", "report"):
        again = netbench(command, str(folder.path if command == "report" else out))
        assert again.end() == 0, again.err
