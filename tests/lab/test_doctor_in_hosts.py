"""The doctor in real hosts that are ill in known ways."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from etc import with_names

from netbench.lab import HostAddress, Lab, LabSpec

pytestmark = pytest.mark.lab


@pytest.fixture
def hosts() -> Iterator[tuple[HostAddress, ...]]:
    with Lab(LabSpec.parse("2x100mbit")) as lab:
        yield lab.hosts


def run(host: HostAddress, words: str) -> None:
    subprocess.run(host.command(words.split()), check=True, timeout=20)


def examine(
    host: HostAddress, *options: str, wrap: Sequence[str] = (), code: int = 0
) -> dict[str, list[tuple[str, str]]]:
    """Check -> level and text of its findings."""
    argv = [*wrap, sys.executable, "-m", "netbench", "doctor", "--format", "json", *options]
    ended = subprocess.run(host.command(argv), capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == code, ended.stderr + ended.stdout
    found: dict[str, list[tuple[str, str]]] = {}
    for row in json.loads(ended.stdout):
        found.setdefault(row["check"], []).append((row["level"], f"{row['seen']} | {row['advice']}"))
    return found


def test_hosts_that_can_meet_are_well(hosts: tuple[HostAddress, ...]) -> None:
    endpoint = f"{hosts[0].address}:29400"
    master, other = (examine(host, "--rdzv-endpoint", endpoint) for host in hosts)
    for host, found in zip(hosts, (master, other), strict=True):
        [(level, text)] = found["interface"]
        assert level == "ok"
        assert f"lab0 {host.address} (the route to {hosts[0].address}), MTU 1500 bytes" in text
        assert found["mtu"] == [("ok", "1500 bytes on lab0 | ")]
        assert found["firewall"][0][0] == "note"
    assert master["rendezvous"] == [("ok", f"{hosts[0].address} port 29400 is this host's and free to listen on | ")]
    [(level, text)] = other["rendezvous"]
    assert level == "ok"
    assert f"is another host's and reached from {hosts[1].address}; nothing listens there yet" in text


def test_a_port_that_another_host_listens_on_is_noticed(hosts: tuple[HostAddress, ...]) -> None:
    program = "import socket, sys; s = socket.create_server((sys.argv[1], 29400)); print('up', flush=True); input()"
    server = subprocess.Popen(
        hosts[0].command([sys.executable, "-c", program, hosts[0].address]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == "up\n"
        endpoint = f"{hosts[0].address}:29400"
        [(level, text)] = examine(hosts[1], "--rdzv-endpoint", endpoint)["rendezvous"]
        assert level == "note"
        assert "something listens there already" in text
        [(level, text)] = examine(hosts[0], "--rdzv-endpoint", endpoint, code=1)["rendezvous"]
        assert level == "problem"
        assert "Address already in use" in text
    finally:
        server.communicate("\n", timeout=20)


def test_a_host_without_a_route_has_a_problem(hosts: tuple[HostAddress, ...]) -> None:
    run(hosts[1], "ip route flush table main")
    found = examine(hosts[1], "--rdzv-endpoint", f"{hosts[0].address}:29400", code=1)
    assert found["interface"][0][0] == "problem"
    [(level, text)] = found["rendezvous"]
    assert level == "problem"
    assert "no route to it (Network is unreachable)" in text
    # By its name the interface is found all the same, and the rendezvous is still out of reach.
    found = examine(hosts[1], "--interface", "lab0", "--rdzv-endpoint", f"{hosts[0].address}:29400", code=1)
    assert found["interface"][0][0] == "ok"
    assert found["rendezvous"][0][0] == "problem"


def test_a_host_that_is_away_is_a_warning(hosts: tuple[HostAddress, ...]) -> None:
    run(hosts[0], "ip link set lab0 down")
    [(level, text)] = examine(hosts[1], "--rdzv-endpoint", f"{hosts[0].address}:29400")["rendezvous"]
    assert level == "warning"
    assert f"cannot be connected to from {hosts[1].address}: no answer within 2 s" in text or "No route to host" in text
    # And the one that is away: its address is not its own any more as far as routes go.
    found = examine(hosts[0], "--subnet", "198.18.0.0/24", code=1)
    assert "'lab0' of" in found["interface"][0][1]
    assert "is down" in found["interface"][0][1]
    assert (
        "note",
        f"lab0 {hosts[0].address} (down) | has an address and carries nothing; bring it up if it is to be used",
    ) in found["interfaces"]


@pytest.mark.parametrize(
    ("mtu", "level", "words"), [(9000, "note", "large ones hang"), (1400, "note", "tunnel"), (1000, "warning", "1280")]
)
def test_an_odd_mtu_is_noticed(mtu: int, level: str, words: str, hosts: tuple[HostAddress, ...]) -> None:
    run(hosts[0], f"ip link set lab0 mtu {mtu}")
    [found] = examine(hosts[0], "--interface", "lab0")["mtu"]
    assert found[0] == level
    assert f"{mtu} bytes on lab0" in found[1]
    assert words in found[1]


def test_settings_of_tcp_are_the_hosts_own(hosts: tuple[HostAddress, ...]) -> None:
    settings = ("net.ipv4.tcp_window_scaling=0", "net.ipv4.tcp_slow_start_after_idle=0")
    subprocess.run(hosts[0].command(["sysctl", "-qw", *settings]), check=True, timeout=20)
    levels = [{text.partition(" | ")[0]: level for level, text in examine(host)["tcp"]} for host in hosts]
    assert levels[0] | {"tcp_window_scaling is 0": "warning", "tcp_slow_start_after_idle is 0": "note"} == levels[0]
    assert "tcp_window_scaling is 0" not in levels[1]


def test_a_rendezvous_by_a_name_that_is_loopback_is_a_problem(hosts: tuple[HostAddress, ...], tmp_path: Path) -> None:
    wrap = with_names(tmp_path, f"127.0.0.1 localhost\n127.0.1.1 node0\n{hosts[0].address} node1\n", [])
    [(level, text)] = examine(hosts[0], "--rdzv-endpoint", "node0:29400", wrap=wrap, code=1)["rendezvous"]
    assert level == "problem"
    assert "'node0' resolves to 127.0.1.1" in text
    assert f"lab0 {hosts[0].address}" in text
    [(level, text)] = examine(hosts[0], "--rdzv-endpoint", "node1:29400", wrap=wrap)["rendezvous"]
    assert (level, text) == ("ok", f"node1 ({hosts[0].address}) port 29400 is this host's and free to listen on | ")


def test_without_dns_the_rendezvous_by_name_is_a_problem(hosts: tuple[HostAddress, ...], tmp_path: Path) -> None:
    wrap = with_names(tmp_path, "127.0.0.1 localhost\n", [])
    found = examine(hosts[0], "--interface", "lab0", "--rdzv-endpoint", "node0.example", wrap=wrap, code=1)
    [(level, text)] = found["rendezvous"]
    assert level == "problem"
    assert "finds no address for 'node0.example' (Temporary failure in name resolution)" in text
    assert found["hostname"][0][0] == "warning"


def test_ipv6_is_examined_as_ipv4_is(hosts: tuple[HostAddress, ...]) -> None:
    endpoint = "[fd00:7::1]:29400"
    [(level, text)] = examine(hosts[1], "--interface", "lab0", "--rdzv-endpoint", endpoint, code=1)["ip_versions"]
    assert level == "warning"
    assert "lab0 has IPv4, the rendezvous IPv6" in text
    for number, host in enumerate(hosts, start=1):
        run(host, f"ip -6 addr add fd00:7::{number}/64 dev lab0 nodad")
    master, other = (examine(host, "--rdzv-endpoint", endpoint) for host in hosts)
    assert master["rendezvous"] == [("ok", "fd00:7::1 port 29400 is this host's and free to listen on | ")]
    assert "is another host's and reached from fd00:7::2" in other["rendezvous"][0][1]
    assert other["ip_versions"] == [("ok", "lab0 has IPv4 and IPv6 | ")]
