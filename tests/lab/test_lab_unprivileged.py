"""Without root a lab lives in a user namespace; where that is closed, one message says which setting closes it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path

import pytest

import netbench
from netbench.lab import LabSpec, capability

pytestmark = [pytest.mark.lab, pytest.mark.timeout(60)]

USE = """
import subprocess, sys
from netbench.lab import Lab, LabSpec, down, exec_in, list_labs, up
with Lab(LabSpec.parse("2x100mbit,flow=10mbit")) as lab:
    print(lab.entry.way, flush=True)
    subprocess.run(lab.hosts[1].command(["ip", "-4", "-br", "address", "show", "lab0"]), check=True)
    # A worker of torchrun: in the user namespace already, and about to enter a host.
    command = lab.hosts[0].command(["ip", "-4", "-br", "address", "show", "lab0"])
    subprocess.run(lab.switch.command(command), check=True)
entry = up(LabSpec.parse("2x100mbit"))
print(exec_in(entry.name, "host0", ["sh", "-c", "exit 7"]), flush=True)
down(entry.name)
print(list_labs(), flush=True)
"""

TRY = """
import os, tempfile
from netbench.lab import LabSpec, capability
with tempfile.TemporaryDirectory() as os.environ["XDG_RUNTIME_DIR"]:
    print(capability(LabSpec.parse("1x100mbit")).refusal)
"""


@cache
def _nobody() -> tuple[dict[str, object], str]:
    """How to start a process without privileges, and a Python that it may run; skips where there is none."""
    if os.geteuid() != 0:
        return {}, sys.executable
    path = os.pathsep.join([str(Path(netbench.__file__).parents[1]), sysconfig.get_path("purelib")])
    # It writes no bytecode: the folders are not its own.
    start: dict[str, object] = {
        "user": 65534,
        "group": 65534,
        "extra_groups": [],
        "cwd": "/",
        "env": {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
    }
    check = "import sys, pyroute2, netbench.lab; sys.exit(sys.version_info < (3, 11))"
    for python in (sys.executable, shutil.which("python3", path="/usr/bin:/usr/local/bin")):
        try:
            if python and subprocess.run([python, "-c", check], **start, capture_output=True).returncode == 0:  # type: ignore[call-overload]
                return start, python
        except OSError:
            continue
    pytest.skip("an unprivileged user can run no Python here that has netbench and pyroute2")


def unprivileged(code: str, *wrapper: str) -> list[str]:
    start, python = _nobody()
    done = subprocess.run([*wrapper, python, "-c", code], **start, capture_output=True, text=True, timeout=50)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    lines: list[str] = done.stdout.splitlines()
    return lines


def test_everything_works_in_a_user_namespace() -> None:
    refusal = unprivileged(TRY)
    if refusal != ["None"]:
        pytest.skip(refusal[0])
    way, second_host, first_host, code, left = unprivileged(USE)
    assert way == "user namespace"
    assert "198.18.0.2/24" in second_host
    assert "198.18.0.1/24" in first_host
    assert (code, left) == ("7", "[]")


@pytest.mark.parametrize("setting", ["user.max_net_namespaces", "user.max_user_namespaces"])
def test_a_closed_setting_is_named(setting: str) -> None:
    # A user namespace has settings of its own, so the machine's stay as they are.
    close = ["unshare", "--user", "--map-root-user", "sh", "-c"]
    if subprocess.run([*close, "true"], capture_output=True).returncode != 0:
        pytest.skip("no user namespace can be made here, in which the setting could be closed")
    shut = f'echo 0 > /proc/sys/{setting.replace(".", "/")} && exec "$@"'
    (refusal,) = unprivileged(TRY, *close, shut, "sh", "setpriv", "--bounding-set=-sys_admin")
    assert refusal.startswith("a lab needs network namespaces: this process has no CAP_SYS_ADMIN, and the way")
    assert f"the setting {setting} is 0; allow it with 'sudo sysctl -w {setting}=1024'" in refusal


def test_root_without_its_capabilities_is_refused_with_the_reason() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to take its capabilities away")
    command = ["setpriv", "--bounding-set=-all", sys.executable, "-c", TRY]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    assert "has no CAP_SYS_ADMIN and no CAP_NET_ADMIN" in done.stdout
    assert "root may make one only with CAP_SETFCAP" in done.stdout
    assert capability(LabSpec.parse("1x100mbit")).refusal is None
