"""The ssh launcher, with a real sshd in each host."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from programs import only_run

from netbench.errors import Exit
from netbench.lab import HostAddress

if TYPE_CHECKING:
    from conftest import Hosts

pytestmark = pytest.mark.lab

SMALL = [
    *("--modes", "all_gather", "--backends", "gloo", "--streams", "1", "--world-sizes", "2"),
    *("--sizes", "64KiB", "--iterations", "4", "--rounds", "1", "--join-timeout", "60s"),
]


class Daemons:
    """An sshd in each of some hosts, and an ``ssh`` that finds them by the names that they are given."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []
        for name in ("host", "user"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True, timeout=30
            )
        shutil.copy(folder / "user.pub", folder / "authorized")
        (folder / "bin").mkdir()
        wrapper = folder / "bin" / "ssh"
        wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
        wrapper.chmod(0o755)
        self.path = f"{folder}/bin:{os.environ['PATH']}"

    def start(self, name: str, host: HostAddress) -> None:
        with (self._folder / "config").open("a") as config:
            config.write(
                f"Host {name}\n  HostName {host.address}\n  Port 2222\n  IdentityFile {self._folder}/user\n"
                f"  UserKnownHostsFile {self._folder}/known\n  StrictHostKeyChecking accept-new\n"
            )
        options = {
            **{"Port": "2222", "ListenAddress": host.address, "HostKey": f"{self._folder}/host"},
            **{"AuthorizedKeysFile": f"{self._folder}/authorized", "PidFile": "none", "UsePAM": "no"},
            **{"StrictModes": "no", "PermitRootLogin": "yes", "PermitUserEnvironment": "no", "SetEnv": _python_path()},
        }
        settings = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        log = (self._folder / "sshd.log").open("ab")
        with log:
            command = host.command([_sshd(), "-D", "-e", "-f", "/dev/null", *settings])
            self._daemons.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def await_all(self) -> None:
        deadline = time.monotonic() + 20
        while (self._folder / "sshd.log").read_text().count("Server listening") < len(self._daemons):
            assert time.monotonic() < deadline, (self._folder / "sshd.log").read_text()
            time.sleep(0.05)

    def end(self) -> None:
        for daemon in self._daemons:
            daemon.terminate()
            daemon.wait(10)


def _sshd() -> str:
    return shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin") or ""


def _python_path() -> str:
    return f"PYTHONPATH={os.environ['PYTHONPATH']}"


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Daemons]:
    if not _sshd():
        pytest.skip("there is no sshd here")
    if os.geteuid() != 0:
        pytest.skip("sshd changes to a user, and so needs root")
    Path("/run/sshd").mkdir(exist_ok=True)
    folder = tmp_path / "ssh"
    folder.mkdir()
    daemons = Daemons(folder)
    yield daemons
    daemons.end()


def served(hosts: Callable[[str], Hosts], daemons: Daemons) -> Hosts:
    """Two hosts that ssh reaches as alpha and beta."""
    two = hosts("2x200mbit")
    daemons.start("alpha", two[0])
    daemons.start("beta", two[1])
    daemons.await_all()
    return two


def test_one_command_starts_netbench_on_all_hosts(
    hosts: Callable[[str], Hosts], daemons: Daemons, tmp_path: Path
) -> None:
    two = served(hosts, daemons)
    out = tmp_path / "results"
    options = ["--launcher", "ssh", "--hosts", "alpha,beta", "--out", str(out)]
    leader = two.netbench(0, "sweep", *SMALL, *options, PATH=daemons.path)
    assert leader.end() == Exit.DONE, leader.err
    folder = only_run(out)
    # alpha is the host that it was started on, so only beta is one of ssh's.
    [_, beta] = folder.read_manifest().environment
    assert (beta["host"], beta["address"], beta["ranks"]) == ("beta", two[1].address, [1])
    assert folder.finished() == {"all_gather-gloo-k1-n2-64KiB"}
    assert "the sweep has ended: well" in folder.nodes_log.read_text()
    assert leader.left_behind() == []


def test_a_host_that_ssh_does_not_let_in_is_named_at_once(
    hosts: Callable[[str], Hosts], daemons: Daemons, tmp_path: Path
) -> None:
    two = served(hosts, daemons)
    (tmp_path / "ssh" / "authorized").write_text("")
    options = ["--launcher", "ssh", "--hosts", "alpha,beta", "--out", str(tmp_path / "results")]
    leader = two.netbench(0, "sweep", *SMALL, *options, PATH=daemons.path)
    assert leader.end() == Exit.LAUNCH
    assert "before node 1 was here: " in leader.err
    assert "Permission denied (publickey" in leader.err
    assert leader.left_behind() == []
