"""A lab comes up, can be used, and is gone afterwards, whatever happened in between."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from netbench.errors import LaunchError, UsageError
from netbench.lab import HostAddress, Lab, LabSpec, capability, down, exec_in, list_labs, up

pytestmark = [pytest.mark.lab, pytest.mark.timeout(60)]

SMALL = LabSpec.parse("2x100mbit")

#: An owner that makes a lab, leaves a process in one of its hosts, says where, and waits.
OWNER = """
import json, subprocess, sys, time
from netbench.lab import Lab, LabSpec
with Lab(LabSpec.parse("2x100mbit")) as lab:
    inside = subprocess.Popen(lab.hosts[1].command(["sleep", "1000"]))
    print(json.dumps([lab.entry.holder, inside.pid, lab.hosts[1].network]), flush=True)
    time.sleep(1000)
"""


def run(host: HostAddress, *argv: str) -> str:
    return subprocess.run(host.command(argv), capture_output=True, text=True, check=True, timeout=20).stdout


def network(path: str) -> int:
    """The namespace's number, which no other has while it lives."""
    return Path(path).stat().st_ino


def networks_in_use() -> set[int]:
    """The numbers of all network namespaces that a process is in or holds open."""
    found = set()
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                found |= {network(str(process / "ns/net"))}
                found |= {
                    link.stat().st_ino for link in (process / "fd").iterdir() if str(link.readlink()).startswith("net:")
                }
            except OSError:
                continue
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_hosts_see_each_other_and_the_switch_and_nothing_else() -> None:
    with Lab(LabSpec.parse("3x100mbit")) as lab:
        assert [host.name for host in lab.hosts] == ["host0", "host1", "host2"]
        assert len({network(host.network) for host in (*lab.hosts, lab.switch)}) == 4
        for host in lab.hosts:
            addresses = run(host, "ip", "-4", "-br", "address")
            assert addresses.split()[:1] == ["lo"]
            assert f"{host.address}/24" in addresses
            assert "default" not in run(host, "ip", "route")


def test_connections_from_a_host_reach_the_rendezvous(traffic: Path) -> None:
    with Lab(SMALL) as lab:
        command = [sys.executable, str(traffic), "listen", lab.switch.address, "0", "1000", "1", "1"]
        with subprocess.Popen(lab.switch.command(command), stdout=subprocess.DEVNULL) as server:
            run(lab.hosts[1], sys.executable, str(traffic), "connect", lab.switch.address, "1000", "0", "1", "1")
            assert server.wait(20) == 0


def test_both_ends_of_a_link_are_limited() -> None:
    with Lab(LabSpec.parse("2x200mbit")) as lab:
        assert "tbf 1: dev lab0 root refcnt 3 rate 200Mbit" in run(lab.hosts[0], "tc", "qdisc")
        assert "tbf 1: dev port0 root refcnt 3 rate 200Mbit" in run(lab.switch, "tc", "qdisc")


def test_the_congestion_control_does_not_depend_on_the_machine() -> None:
    if "cubic" not in Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split():
        pytest.skip("this kernel has not loaded the congestion control cubic")
    with Lab(SMALL) as lab:
        assert "congctl cubic" in run(lab.hosts[0], "ip", "route")


def test_a_host_travels_as_json_and_is_entered_by_a_worker() -> None:
    code = (
        "import json, socket, sys; from netbench.lab import HostAddress;"
        "HostAddress(**json.loads(sys.argv[1])).enter(); print(socket.if_nameindex())"
    )
    with Lab(SMALL) as lab:
        description = lab.hosts[0].command([])[3]
        assert HostAddress(**json.loads(description)) == lab.hosts[0]
        # As torchrun's workers are: children of a process in the switch.
        assert "lab0" in run(lab.switch, sys.executable, "-c", code, description)


def test_this_process_stays_where_it_was() -> None:
    before = network("/proc/self/ns/net"), socket.if_nameindex()
    with Lab(SMALL):
        assert (network("/proc/self/ns/net"), socket.if_nameindex()) == before
    assert (network("/proc/self/ns/net"), socket.if_nameindex()) == before


def test_an_exception_takes_the_lab_down(eventually: Callable[[Callable[[], bool], str], None]) -> None:
    def fail(lab: Lab) -> None:
        seen.extend((network(lab.hosts[0].network), lab.entry.holder))
        raise RuntimeError("in the middle")

    seen: list[int] = []
    with pytest.raises(RuntimeError, match="in the middle"), Lab(SMALL) as lab:
        fail(lab)
    number, holder = seen
    assert not alive(holder)
    assert list_labs() == []
    eventually(lambda: number not in networks_in_use(), "the host's namespace is still in use")


def test_closing_twice_is_closing_once() -> None:
    lab = Lab(SMALL)
    with lab:
        lab.close()
    lab.close()
    assert list_labs() == []


def test_a_process_left_in_the_lab_ends_with_it() -> None:
    with Lab(SMALL) as lab:
        left = subprocess.Popen(lab.hosts[0].command(["sleep", "1000"]))
        stubborn = subprocess.Popen(
            lab.hosts[1].command(["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]), start_new_session=True
        )
        where = network(lab.hosts[0].network), network(lab.hosts[1].network)
        deadline = time.monotonic() + 10
        while (network(f"/proc/{left.pid}/ns/net"), network(f"/proc/{stubborn.pid}/ns/net")) != where:
            assert time.monotonic() < deadline
        time.sleep(0.2)  # for the trap
    assert left.wait(5) == -signal.SIGTERM
    assert stubborn.wait(5) == -signal.SIGKILL


def test_two_labs_have_the_same_addresses_and_never_meet(traffic: Path) -> None:
    with Lab(SMALL) as first, Lab(LabSpec.parse("3x50mbit")) as second:
        assert [lab.name for lab in list_labs()] == [first.name, second.name] == ["lab1", "lab2"]
        assert first.hosts[0].address == second.hosts[0].address
        servers = [
            subprocess.Popen(
                lab.hosts[0].command(
                    [sys.executable, str(traffic), "listen", lab.hosts[0].address, "0", count, "1", "1"]
                ),
                stdout=subprocess.DEVNULL,
            )
            for lab, count in ((first, "1000"), (second, "2000"))
        ]
        for lab, count in ((second, "2000"), (first, "1000")):
            run(lab.hosts[1], sys.executable, str(traffic), "connect", lab.hosts[0].address, count, "0", "1", "1")
        assert [server.wait(20) for server in servers] == [0, 0]
        first.close()
        assert [lab.name for lab in list_labs()] == ["lab2"]
        assert list_labs()[0].spec == "3x50mbit"
        run(second.hosts[2], "true")


@pytest.mark.parametrize("attempt", range(3))
def test_a_killed_owner_leaves_nothing(attempt: int, eventually: Callable[[Callable[[], bool], str], None]) -> None:
    before = socket.if_nameindex()
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        holder, inside, path = json.loads(owner.stdout.readline())
        number = network(path)
        eventually(lambda: network(f"/proc/{inside}/ns/net") == number, "the process never entered its host")
        assert list_labs()[0].owner == owner.pid
        owner.kill()
    eventually(lambda: not alive(holder) and not alive(inside), "processes of the lab are still there")
    eventually(lambda: number not in networks_in_use(), "the host's namespace is still in use")
    assert list_labs() == []
    assert socket.if_nameindex() == before


def test_an_owner_killed_while_the_lab_comes_up_leaves_nothing(
    eventually: Callable[[Callable[[], bool], str], None],
) -> None:
    before = networks_in_use()
    for delay_s in (0.05, 0.15, 0.25):
        with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.DEVNULL) as owner:
            time.sleep(delay_s)
            owner.kill()
    eventually(lambda: networks_in_use() <= before, "a namespace is still in use")
    assert list_labs() == []


def test_a_killed_holder_is_a_lab_that_is_gone() -> None:
    with Lab(SMALL) as lab:
        host = lab.hosts[0]
        os.kill(lab.entry.holder, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while list_labs() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert list_labs() == []
        with pytest.raises(LaunchError, match=r"host0 \(198\.18\.0\.1\) is gone: its lab has been taken down"):
            host.enter()


def test_a_lab_stays_until_it_is_taken_down(capfd: pytest.CaptureFixture[str]) -> None:
    entry = up(SMALL)
    try:
        assert entry.owner is None
        assert list_labs() == [entry]
        assert exec_in(entry.name, "host1", ["sh", "-c", "ip -4 -br address show lab0; exit 7"]) == 7
        assert "198.18.0.2/24" in capfd.readouterr().out
        assert exec_in(entry.name, "switch", ["sh", "-c", "kill -TERM $$"]) == 128 + signal.SIGTERM
        assert exec_in(entry.name, "host0", ["no-such-command"]) == UsageError.exit_code
        assert "no-such-command: cannot be run: No such file or directory" in capfd.readouterr().err
        with pytest.raises(UsageError, match="has no host 'host9'"):
            exec_in(entry.name, "host9", ["true"])
    finally:
        down(entry.name)
    assert list_labs() == []
    assert not alive(entry.holder)
    with pytest.raises(UsageError, match=f"there is no lab '{entry.name}'"):
        down(entry.name)


def test_eight_hosts_come_and_go_in_three_seconds() -> None:
    begun = time.monotonic()
    with Lab(LabSpec.parse("8x100mbit,flow=10mbit")) as lab:
        assert len(lab.hosts) == 8
    assert time.monotonic() - begun < 3


@pytest.mark.parametrize("option", ["delay=5ms", "loss=1%", "delay=5ms,loss=0.1%"])
def test_delay_and_loss_work_or_name_the_module(option: str) -> None:
    spec = LabSpec.parse(f"2x100mbit,{option}")
    if refusal := capability(spec).refusal:
        assert (
            "the lab cannot have delay and loss: not known to this kernel; it needs the kernel module sch_netem"
            in refusal
        )
        return
    with Lab(spec) as lab:
        queues = run(lab.switch, "tc", "qdisc")
    assert "netem 1: dev port0 root" in queues
    assert ("delay 5ms" in queues) == ("delay" in option)
    assert ("loss" in queues) == ("loss" in option)
    assert "tbf 2: dev port0 parent 1:1 rate 100Mbit" in queues


def test_what_the_machine_can_do_is_told_by_doing_it() -> None:
    found = capability(SMALL)
    assert found.way in ("root", "user namespace")
    assert found.refusal is None
    assert list_labs() == []
