"""Interfaces of real hosts: what is chosen there, and what is said where it cannot be."""

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

CHOOSE = """
import json, os, sys
from dataclasses import asdict
from netbench.errors import UsageError
from netbench.interfaces import Host, choose
try:
    print(json.dumps(asdict(choose(*json.loads(sys.argv[1]), os.environ, host=Host("alpha")))))
except UsageError as error:
    sys.exit(str(error))
"""


@pytest.fixture
def hosts() -> Iterator[tuple[HostAddress, ...]]:
    with Lab(LabSpec.parse("2x100mbit")) as lab:
        yield lab.hosts


def run(host: HostAddress, *argv: str) -> None:
    subprocess.run(host.command(argv), check=True, timeout=20)


def ask(
    host: HostAddress,
    name: str | None = None,
    subnet: str | None = None,
    peer: str | None = None,
    wrap: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    argv = [*wrap, sys.executable, "-c", CHOOSE, json.dumps([name, subnet, peer])]
    return subprocess.run(host.command(argv), capture_output=True, text=True, timeout=30, check=False)


def chosen(ended: subprocess.CompletedProcess[str]) -> tuple[str, str, str]:
    assert ended.returncode == 0, ended.stderr
    choice = json.loads(ended.stdout)
    return choice["interface"], choice["address"], choice["why"]


def refused(ended: subprocess.CompletedProcess[str]) -> str:
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "Traceback" not in ended.stderr
    return ended.stderr


def test_each_host_chooses_its_own_by_the_route_to_the_master_and_by_the_subnet(
    hosts: tuple[HostAddress, ...],
) -> None:
    for host in hosts:
        route = chosen(ask(host, peer=hosts[0].address))
        assert route == ("lab0", host.address, f"the route to {hosts[0].address}")
        subnet = chosen(ask(host, subnet="198.18.0.0/24"))
        assert subnet == ("lab0", host.address, "--subnet 198.18.0.0/24")


def test_hosts_whose_interfaces_have_different_names_are_chosen_by_subnet_and_by_route(
    hosts: tuple[HostAddress, ...],
) -> None:
    renamed = hosts[1]
    for argv in ("set lab0 down", "set lab0 name net7", "set net7 up"):
        run(renamed, "ip", "link", *argv.split())
    run(renamed, "ip", "route", "replace", "198.18.0.0/24", "dev", "net7", "src", renamed.address)
    assert [chosen(ask(host, subnet="198.18.0.0/24"))[0] for host in hosts] == ["lab0", "net7"]
    assert [chosen(ask(host, peer=hosts[0].address))[0] for host in hosts] == ["lab0", "net7"]
    message = refused(ask(renamed, name="lab0"))
    assert message.startswith("--interface: alpha has no interface 'lab0'")
    assert f"net7 {renamed.address}" in message


def test_a_second_network_is_told_from_the_first(hosts: tuple[HostAddress, ...]) -> None:
    host = hosts[0]
    run(host, "ip", "link", "add", "back0", "type", "veth", "peer", "name", "back1")
    run(host, "ip", "addr", "add", "10.7.0.1/16", "dev", "back0")
    assert "'back0' of alpha is down; bring it up (ip link set back0 up)" in refused(ask(host, name="back0"))
    assert "'back0' of alpha is down" in refused(ask(host, subnet="10.7.0.0/16"))
    run(host, "ip", "link", "set", "back0", "up")
    assert "'back0' of alpha is up but has no carrier" in refused(ask(host, name="back0"))
    run(host, "ip", "link", "set", "back1", "up")
    assert chosen(ask(host, subnet="10.7.0.0/16"))[:2] == ("back0", "10.7.0.1")
    assert chosen(ask(host, peer="10.7.3.4"))[:2] == ("back0", "10.7.0.1")
    assert chosen(ask(host, peer=hosts[1].address))[:2] == ("lab0", host.address)


def test_an_ipv6_peer_has_the_ipv6_address_chosen_and_otherwise_ipv4_is(hosts: tuple[HostAddress, ...]) -> None:
    host = hosts[0]
    run(host, "ip", "-6", "addr", "add", "fd00:7::1/64", "dev", "lab0", "nodad")
    assert chosen(ask(host, name="lab0"))[1] == host.address
    assert chosen(ask(host, name="lab0", peer="fd00:7::2"))[1] == "fd00:7::1"
    assert chosen(ask(host, peer="fd00:7::2")) == ("lab0", "fd00:7::1", "the route to fd00:7::2")
    assert chosen(ask(host, subnet="fd00:7::/32"))[:2] == ("lab0", "fd00:7::1")
    assert chosen(ask(host, name="lab0", subnet="fd00:7::/64"))[1] == "fd00:7::1"


def test_an_interface_with_nothing_but_its_links_own_address_is_refused(hosts: tuple[HostAddress, ...]) -> None:
    host = hosts[0]
    run(host, "ip", "-6", "addr", "add", "fe80::77/64", "dev", "lab0", "nodad")
    run(host, "ip", "-4", "addr", "flush", "dev", "lab0")
    message = refused(ask(host, name="lab0"))
    assert "'lab0' of alpha has only fe80::" in message
    assert "good on its own link alone" in message


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("lab1", ["alpha has no interface 'lab1'; did you mean 'lab0'?", "lab0 198.18.0.1"]),
        ("^lo", ["'^lo' on alpha excludes interfaces", "name one, as GLOO_SOCKET_IFNAME=lab0"]),
    ],
)
def test_a_bad_variable_is_named_with_what_would_be_good(
    value: str, words: list[str], hosts: tuple[HostAddress, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", value)
    message = refused(ask(hosts[0]))
    assert message.startswith("GLOO_SOCKET_IFNAME: ")
    assert [word for word in words if word not in message] == []
    assert chosen(ask(hosts[0], name="lab0"))[0] == "lab0"


def test_a_host_without_a_route_to_the_master_says_so(hosts: tuple[HostAddress, ...]) -> None:
    message = refused(ask(hosts[1], peer="203.0.113.9"))
    assert "alpha has no route to '203.0.113.9' (203.0.113.9: Network is unreachable)" in message
    assert "ip route get 203.0.113.9" in message


def test_names_work_from_the_hosts_file_and_one_that_means_loopback_is_refused(
    hosts: tuple[HostAddress, ...], tmp_path: Path
) -> None:
    lines = f"127.0.0.1 localhost\n127.0.1.1 alpha\n{hosts[1].address} beta\n"
    wrap = with_names(tmp_path, lines, [])
    assert chosen(ask(hosts[0], peer="beta", wrap=wrap)) == (
        "lab0",
        hosts[0].address,
        f"the route to beta ({hosts[1].address})",
    )
    message = refused(ask(hosts[0], peer="alpha", wrap=wrap))
    assert "'alpha' resolves to 127.0.1.1 on alpha, which is loopback" in message
    assert f"give the address instead of the name (those of alpha: lab0 {hosts[0].address})" in message


def test_without_dns_a_name_is_refused_and_an_address_is_asked_for(
    hosts: tuple[HostAddress, ...], tmp_path: Path
) -> None:
    message = refused(ask(hosts[0], peer="node0.example", wrap=with_names(tmp_path, "127.0.0.1 localhost\n", [])))
    assert "alpha finds no address for 'node0.example' (Temporary failure in name resolution)" in message
    assert "give an address instead of the name" in message
