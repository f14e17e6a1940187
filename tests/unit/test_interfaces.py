"""Which interface and address is chosen, and what is said where there is none, on hosts made up for it."""

from __future__ import annotations

import socket
from collections import namedtuple
from collections.abc import Mapping
from ipaddress import ip_address

import psutil
import pytest

from netbench.errors import UsageError
from netbench.interfaces import Address, Choice, Host, Interface, choose


def interface(name: str, *addresses: str, up: bool = True, carrier: bool = True, loopback: bool = False) -> Interface:
    return Interface(name, tuple(map(ip_address, addresses)), up=up, running=up and carrier, loopback=loopback)


LO = interface("lo", "127.0.0.1", "::1", loopback=True)
ETH0 = interface("eth0", "10.1.0.5", "fe80::1%eth0")
ETH1 = interface("eth1", "fe80::2%eth1", "2001:db8::5", "192.168.7.5", "192.168.8.5")
IB0 = interface("ib0", "172.16.0.5", up=False)
ETH2 = interface("eth2", "172.17.0.5", carrier=False)
BARE = interface("dummy0")
LOCAL6 = interface("tun0", "fe80::9%tun0")
LOCAL4 = interface("usb0", "169.254.1.5", "fe80::8%usb0")


class FakeHost(Host):
    """``names`` is its resolver, ``routes`` what it sends from to each address."""

    def __init__(
        self,
        *table: Interface,
        names: Mapping[str, list[str] | OSError] | None = None,
        routes: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__("alpha")
        self._table = {one.name: one for one in table or (LO, ETH0, ETH1, IB0, ETH2, BARE, LOCAL6, LOCAL4)}
        self._names = names or {}
        self._routes = routes or {}

    def interfaces(self) -> dict[str, Interface]:
        return self._table

    def resolve(self, name: str) -> list[Address]:
        answer = self._names.get(name, socket.gaierror(socket.EAI_NONAME, "Name or service not known"))
        if isinstance(answer, OSError):
            raise answer
        return [ip_address(one) for one in answer]

    def source(self, address: Address) -> Address:
        if str(address) not in self._routes:
            raise OSError(101, "Network is unreachable")
        return ip_address(self._routes[str(address)])


ROUTED = FakeHost(
    names={
        "beta": ["10.1.0.9"],
        "both": ["2001:db8::9", "10.1.0.9"],
        "only6": ["2001:db8::9"],
        "alpha": ["127.0.1.1"],
        "mixed": ["127.0.1.1", "10.1.0.5"],
        "localhost": ["::1", "127.0.0.1"],
        "silent": socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
        "nowhere": ["203.0.113.1"],
        "mdns": ["fe80::77"],
    },
    routes={"10.1.0.9": "10.1.0.5", "2001:db8::9": "2001:db8::5", "10.1.0.5": "10.1.0.5", "127.0.0.1": "127.0.0.1"},
)


@pytest.mark.parametrize(
    ("name", "subnet", "variable", "peer", "chosen"),
    [
        # What comes first decides, and the rest is not even looked at.
        ("eth0", None, "nonsense", "nonsense", Choice("eth0", "10.1.0.5", "--interface")),
        (None, "10.1.0.0/16", "nonsense", "nonsense", Choice("eth0", "10.1.0.5", "--subnet 10.1.0.0/16")),
        (None, None, "eth1", "nonsense", Choice("eth1", "192.168.7.5", "GLOO_SOCKET_IFNAME")),
        (None, None, "", "beta", Choice("eth0", "10.1.0.5", "the route to beta (10.1.0.9)")),
        (None, None, "", None, Choice("lo", "127.0.0.1", "loopback, since none was asked for")),
        # An interface with several addresses: IPv4 unless the peer's is IPv6, and never the link's own.
        ("eth1", None, "", None, Choice("eth1", "192.168.7.5", "--interface")),
        ("eth1", None, "", "2001:db8::9", Choice("eth1", "2001:db8::5", "--interface")),
        ("eth0", None, "", "2001:db8::9", Choice("eth0", "10.1.0.5", "--interface")),
        ("usb0", None, "", None, Choice("usb0", "169.254.1.5", "--interface")),
        # An interface and a subnet: the address of the one within the other.
        ("eth1", "192.168.8.0/24", "", None, Choice("eth1", "192.168.8.5", "--interface and --subnet 192.168.8.0/24")),
        ("eth1", "2001:db8::/32", "", None, Choice("eth1", "2001:db8::5", "--interface and --subnet 2001:db8::/32")),
        # Subnets: with bits of a host, of one address, of several interfaces, of loopback.
        (None, "192.168.8.77/16", "", None, Choice("eth1", "192.168.7.5", "--subnet 192.168.0.0/16")),
        (None, "192.168.8.5", "", None, Choice("eth1", "192.168.8.5", "--subnet 192.168.8.5/32")),
        (None, "2001:db8::/64", "", None, Choice("eth1", "2001:db8::5", "--subnet 2001:db8::/64")),
        (
            None,
            "128.0.0.0/1",
            "",
            None,
            Choice("eth1", "192.168.7.5", "--subnet 128.0.0.0/1, the first of eth1, usb0"),
        ),
        (None, "127.0.0.0/8", "", None, Choice("lo", "127.0.0.1", "--subnet 127.0.0.0/8")),
        # The variable may hold several names.
        (None, None, "eth1,eth0", None, Choice("eth1", "192.168.7.5", "the first of GLOO_SOCKET_IFNAME=eth1,eth0")),
        # Routes: to an address, to a name with both kinds, to oneself.
        (None, None, "", "10.1.0.9", Choice("eth0", "10.1.0.5", "the route to 10.1.0.9")),
        (None, None, "", "[2001:db8::9]", Choice("eth1", "2001:db8::5", "the route to [2001:db8::9] (2001:db8::9)")),
        (None, None, "", "both", Choice("eth0", "10.1.0.5", "the route to both (10.1.0.9)")),
        (None, None, "", "only6", Choice("eth1", "2001:db8::5", "the route to only6 (2001:db8::9)")),
        (None, None, "", "mixed", Choice("eth0", "10.1.0.5", "the route to mixed (10.1.0.5)")),
        (None, None, "", "localhost", Choice("lo", "127.0.0.1", "the route to localhost (127.0.0.1)")),
        (None, None, "", "127.0.0.1", Choice("lo", "127.0.0.1", "the route to 127.0.0.1")),
    ],
)
def test_what_is_asked_for_first_decides(
    name: str | None, subnet: str | None, variable: str, peer: str | None, chosen: Choice
) -> None:
    assert choose(name, subnet, peer, {"GLOO_SOCKET_IFNAME": variable}, host=ROUTED) == chosen


@pytest.mark.parametrize(
    ("name", "subnet", "variable", "peer", "place", "words"),
    [
        ("eth9", None, "", None, "--interface", ["alpha has no interface 'eth9'; did you mean 'eth", "eth0 10.1.0.5"]),
        (
            "ib0",
            None,
            "",
            None,
            "--interface",
            ["'ib0' of alpha is down", "ip link set ib0 up", "ib0 172.16.0.5 (down)"],
        ),
        ("eth2", None, "", None, "--interface", ["'eth2' of alpha is up but has no carrier", "(no carrier)"]),
        ("dummy0", None, "", None, "--interface", ["'dummy0' of alpha has no IP address", "ip addr add"]),
        ("tun0", None, "", None, "--interface", ["only fe80::9%tun0", "good on its own link alone"]),
        ("eth0", "192.168.7.0/24", "", None, "--subnet", ["'eth0' of alpha has no address in 192.168.7.0/24"]),
        (None, "10.9.0.0/16", "", None, "--subnet", ["alpha has no address in 10.9.0.0/16", "eth0 10.1.0.5"]),
        (None, "172.16.0.0/16", "", None, "--subnet", ["172.16.0.0/16", "'ib0' of alpha is down"]),
        (None, "fe80::/10", "", None, "--subnet", ["good on its own link alone", "a subnet that is routed"]),
        (None, "10.1.0.0/33", "", None, "--subnet", ["'10.1.0.0/33' is not a subnet", "write it as 10.1.0.0/16"]),
        (None, "", "", None, "--subnet", ["'' is not a subnet"]),
        (None, None, "eth7", None, "GLOO_SOCKET_IFNAME", ["alpha has no interface 'eth7'", "eth0 10.1.0.5"]),
        (None, None, "^lo", None, "GLOO_SOCKET_IFNAME", ["'^lo' on alpha", "GLOO_SOCKET_IFNAME=eth0"]),
        (None, None, "ib0,eth0", None, "GLOO_SOCKET_IFNAME", ["'ib0' of alpha is down"]),
        (None, None, "", "gamma", "--rdzv-endpoint", ["alpha finds no address for 'gamma'", "an address instead of"]),
        (
            None,
            None,
            "",
            "silent",
            "--rdzv-endpoint",
            ["'silent' (Temporary failure in name resolution)", "/etc/hosts"],
        ),
        (
            None,
            None,
            "",
            "alpha",
            "--rdzv-endpoint",
            [
                "'alpha' resolves to 127.0.1.1 on alpha, which is loopback",
                "(those of alpha: eth0 10.1.0.5",
                "correct /etc/hosts",
            ],
        ),
        (
            None,
            None,
            "",
            "nowhere",
            "--rdzv-endpoint",
            ["no route to 'nowhere' (203.0.113.1: Network is unreachable)", "ip route get 203.0.113.1"],
        ),
        (None, None, "", "mdns", "--rdzv-endpoint", ["'mdns' is fe80::77 on alpha", "address of one link only"]),
        (None, None, "", "0.0.0.0", "--rdzv-endpoint", ["every address of a host", "the host of rank 0"]),
    ],
)
def test_what_does_not_fit_is_refused_with_what_there_is(
    name: str | None, subnet: str | None, variable: str, peer: str | None, place: str, words: list[str]
) -> None:
    with pytest.raises(UsageError) as refused:
        choose(name, subnet, peer, {"GLOO_SOCKET_IFNAME": variable}, host=ROUTED)
    assert str(refused.value).startswith(f"{place}: ")
    assert [word for word in words if word not in str(refused.value)] == []
    seen = str(refused.value).partition("; ")[0]
    assert seen.count("(") == seen.count(")"), "doctor cuts the message here, into what was seen and the advice"


def test_messages_name_the_place_that_a_value_came_from() -> None:
    with pytest.raises(
        UsageError, match=r"^x.toml: sweep.interface: alpha has no interface 'eht0'; did you mean 'eth0'"
    ):
        choose("eht0", None, None, {}, host=ROUTED, name_from="x.toml: sweep.interface")
    with pytest.raises(UsageError, match=r"^--hosts: alpha finds no address"):
        choose(None, None, "gamma", {}, host=ROUTED, peer_from="--hosts")


def test_a_host_whose_loopback_is_down_or_missing_says_so() -> None:
    with pytest.raises(UsageError, match=r"'lo' of alpha is down; bring it up \(ip link set lo up\)"):
        choose(None, None, None, {}, host=FakeHost(interface("lo", up=False, loopback=True), ETH0))
    with pytest.raises(UsageError, match="alpha has no loopback interface"):
        choose(None, None, None, {}, host=FakeHost(ETH0))


def test_a_source_that_belongs_to_no_interface_is_no_route() -> None:
    host = FakeHost(LO, ETH0, routes={"10.1.0.9": "10.77.0.1"})
    with pytest.raises(UsageError, match=r"10\.1\.0\.9: would be sent from 10\.77\.0\.1, which no interface has"):
        choose(None, None, "10.1.0.9", {}, host=host)


@pytest.mark.parametrize("name", ["a" * 70, "a..b", "", "ä" * 64])
def test_a_name_that_cannot_be_one_is_refused_by_the_real_resolver(name: str) -> None:
    with pytest.raises(UsageError, match="give an address instead of the name"):
        choose(None, None, name, {})


Stats = namedtuple("Stats", "isup mtu speed flags")
Reading = namedtuple("Reading", "family address")


def test_the_machines_table_joins_labels_to_their_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = {
        "lo": [Reading(socket.AF_INET, "127.0.0.1")],
        "eth0": [Reading(socket.AF_INET, "10.0.0.1"), Reading(socket.AF_INET6, "fe80::1%eth0"), Reading(17, "aa:bb")],
        "eth0:1": [Reading(socket.AF_INET, "10.0.0.2")],
        "eth1": [],
    }
    stats = {
        "lo": Stats(True, 65536, 0, "up,loopback,running"),
        "eth0": Stats(True, 9000, 10000, "up,running"),
        "eth1": Stats(False, 1500, 0, "up,broadcast"),
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: addresses)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: stats)
    lo, eth0, eth1 = Host().interfaces().values()
    assert lo == Interface("lo", (ip_address("127.0.0.1"),), mtu_bytes=65536, loopback=True)
    assert [str(one) for one in eth0.addresses] == ["10.0.0.1", "fe80::1%eth0", "10.0.0.2"]
    assert (eth0.mtu_bytes, eth0.speed_mbit_s, eth0.loopback) == (9000, 10000, False)
    assert (eth1.up, eth1.running, str(eth1)) == (True, False, "eth1 without an address (no carrier)")


def test_this_machine_sends_to_itself_over_an_interface_of_its_own() -> None:
    chosen = choose(None, None, "127.0.0.1", {})
    assert chosen.address == "127.0.0.1"
    assert chosen.interface in Host().interfaces()
