"""Which interface and address of this host the groups are bound to, and why."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import psutil

from netbench.errors import UsageError, did_you_mean

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_VARIABLE = "GLOO_SOCKET_IFNAME"


@dataclass(frozen=True)
class Choice:
    """``address`` is one of the interface's; ``why`` says what decided, as ``the route to host0``."""

    interface: str
    address: str
    why: str


@dataclass(frozen=True)
class Interface:
    """``up`` is what the administrator says; ``running`` is that there also is a carrier. Speed as the driver says."""

    name: str
    addresses: tuple[Address, ...]
    up: bool = True
    running: bool = True
    mtu_bytes: int | None = None
    speed_mbit_s: int | None = None
    loopback: bool = False

    def __str__(self) -> str:
        state = "" if self.running else " (no carrier)" if self.up else " (down)"
        return f"{self.name} {' '.join(map(str, self.addresses)) or 'without an address'}{state}"


class Host:
    """What is asked of this host; a test puts another in its place."""

    def __init__(self, name: str | None = None) -> None:
        self.name = name or socket.gethostname()

    def interfaces(self) -> dict[str, Interface]:
        """Those of this process's network namespace, by name."""
        stats = psutil.net_if_stats()
        addresses: dict[str, list[Address]] = {name: [] for name in stats}
        for label, found in psutil.net_if_addrs().items():
            # An address may have a label of its own, as eth0:1; it is eth0's all the same.
            name = label if label in stats else label.partition(":")[0]
            addresses.setdefault(name, []).extend(
                ipaddress.ip_address(one.address) for one in found if one.family in (socket.AF_INET, socket.AF_INET6)
            )
        table = {}
        for name, its in addresses.items():
            told = stats.get(name)
            flags = told.flags.split(",") if told else []
            table[name] = Interface(
                name,
                tuple(its),
                up=bool(told and (told.isup or "up" in flags)),
                running=bool(told and told.isup),
                mtu_bytes=told.mtu if told else None,
                speed_mbit_s=told.speed or None if told else None,
                loopback="loopback" in flags,
            )
        return table

    def resolve(self, name: str) -> list[Address]:
        """The addresses of a name, in the resolver's order. Raises OSError, or UnicodeError where it cannot be one."""
        answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(ipaddress.ip_address(place[0]) for *_, place in answers))

    def source(self, address: Address) -> Address:
        """The address of ours that would send to ``address``; no packet is sent. Raises OSError without a route."""
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))  # connecting a datagram socket only looks up the route
            return ipaddress.ip_address(probe.getsockname()[0])


def choose(
    name: str | None,
    subnet: str | None,
    peer: str | None,
    environ: Mapping[str, str],
    *,
    host: Host | None = None,
    name_from: str = "--interface",
    subnet_from: str = "--subnet",
    peer_from: str = "--rdzv-endpoint",
) -> Choice:
    """By ``name``, else by ``subnet``, else by GLOO_SOCKET_IFNAME, else by the route to ``peer``, else loopback.

    ``peer`` is the address or the name of the host that all meet at, without a port; an IPv6 address there has an IPv6
    address of ours preferred, otherwise IPv4 is. ``..._from`` are the options or keys that the values come from, for
    messages. Raises UsageError when this host has nothing that fits, with what it has and the way out.
    """
    host = host or Host()
    table = host.interfaces()
    network = None if subnet is None else _network(subnet, subnet_from)
    prefers = 6 if isinstance(_literal(peer), IPv6Address) else 4
    variable = environ.get(_VARIABLE, "").strip()
    if name is not None:
        chosen = _named(host, table, name, name_from)
        if network is None:
            return Choice(chosen.name, str(_best(host, table, chosen, prefers, name_from)), name_from)
        return _within(host, [chosen], network, prefers, subnet_from, name_from)
    if network is not None:
        return _within(host, list(table.values()), network, prefers, subnet_from)
    if variable:
        first = _first_of_variable(host, table, variable)
        chosen = _named(host, table, first, _VARIABLE)
        why = _VARIABLE if first == variable else f"the first of {_VARIABLE}={variable}"
        return Choice(chosen.name, str(_best(host, table, chosen, prefers, _VARIABLE)), why)
    if peer is not None:
        return _by_route(host, table, peer, peer_from)
    return _loopback(host, table, prefers)


def reachable(peer: str, host: Host, place: str) -> list[Address]:
    """The addresses that ``peer``, an address or a name, stands for, IPv4 first.

    Raises UsageError where there is none that other hosts could mean by it; ``localhost`` is left to mean itself.
    """
    literal = _literal(peer)
    addresses = [literal] if literal is not None else _resolved(peer, host, place)
    usable = [one for one in addresses if not (one.version == 6 and one.is_link_local)]
    if not usable:
        raise UsageError(
            f"{place}: {peer!r} is {addresses[0]} on {host.name}, an address of one link only, which is another on "
            "each host; give an address that all hosts reach"
        )
    if any(one.is_unspecified for one in usable):
        raise UsageError(
            f"{place}: {peer!r} is every address of a host, and none to connect to; give the address of the host of "
            "rank 0"
        )
    return sorted(usable, key=lambda one: one.version)


def _resolved(peer: str, host: Host, place: str) -> list[Address]:
    try:
        addresses = host.resolve(peer)
    except (OSError, UnicodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise UsageError(
            f"{place}: {host.name} finds no address for {peer!r} ({reason}); give an address instead of the name, or "
            f"add the name to /etc/hosts on {host.name}"
        ) from None
    if peer.rstrip(".").lower() == "localhost":
        return addresses
    outside = [one for one in addresses if not one.is_loopback]
    if not outside:
        told = " ".join(map(str, addresses))
        raise UsageError(
            f"{place}: {peer!r} resolves to {told} on {host.name}, which is loopback: no other host reaches it there "
            "(a line of /etc/hosts does this, on Debian and Ubuntu 127.0.1.1 for a machine's own name); "
            f"{_own_addresses(host)}, or correct /etc/hosts on {host.name}"
        )
    return outside


def _own_addresses(host: Host) -> str:
    """The advice to give an address; if the name is this host's own, it is one of these."""
    own = [
        f"{one.name} {address}"
        for one in host.interfaces().values()
        for address in one.addresses
        if one.running and not address.is_loopback and not address.is_link_local
    ]
    told = f" (those of {host.name}: {', '.join(own)})" if own else ""
    return f"give the address instead of the name{told}"


def _literal(peer: str | None) -> Address | None:
    try:
        return ipaddress.ip_address((peer or "").removeprefix("[").removesuffix("]"))
    except ValueError:
        return None


def _network(text: str, place: str) -> Network:
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError as error:
        raise UsageError(f"{place}: {text!r} is not a subnet ({error}); write it as 10.1.0.0/16 or fd00::/64") from None


def _first_of_variable(host: Host, table: Mapping[str, Interface], value: str) -> str:
    if value.startswith("^"):
        fitting = [name for name, one in table.items() if one.running and not one.loopback]
        raise UsageError(
            f"{_VARIABLE}: {value!r} on {host.name} excludes interfaces, which NCCL understands and Gloo does not: it "
            f"would look for an interface of that very name; name one, as {_VARIABLE}={(fitting or ['eth0'])[0]}"
            f"{_has(host, table.values())}"
        )
    return value.split(",")[0].strip()


def _named(host: Host, table: Mapping[str, Interface], name: str, place: str) -> Interface:
    if name not in table:
        raise UsageError(
            f"{place}: {host.name} has no interface {name!r}{did_you_mean(name, table)}{_has(host, table.values())}"
        )
    _check_up(host, table.values(), table[name], place)
    return table[name]


def _check_up(host: Host, known: Iterable[Interface], one: Interface, place: str) -> None:
    if one.running:
        return
    if one.up:
        raise UsageError(
            f"{place}: {one.name!r} of {host.name} is up but has no carrier: check its cable, or the other end of a "
            f"virtual one; or choose another{_has(host, known)}"
        )
    raise UsageError(
        f"{place}: {one.name!r} of {host.name} is down; bring it up (ip link set {one.name} up) or choose another"
        f"{_has(host, known)}"
    )


def _best(host: Host, table: Mapping[str, Interface], one: Interface, prefers: int, place: str) -> Address:
    found = _preferred(one.addresses, prefers)
    if found is not None:
        return found
    if one.addresses:
        raise UsageError(
            f"{place}: {one.name!r} of {host.name} has only {' '.join(map(str, one.addresses))}, which is good on its "
            "own link alone: other hosts would have to add an interface of theirs to it; give it another address or "
            f"choose another interface{_has(host, table.values())}"
        )
    raise UsageError(
        f"{place}: {one.name!r} of {host.name} has no IP address; give it one (ip addr add ADDRESS/LENGTH dev "
        f"{one.name}) or choose another{_has(host, table.values())}"
    )


def _preferred(addresses: Iterable[Address], version: int) -> Address | None:
    """Link-local only if there is nothing else, and never IPv6's: it needs an interface of the host that uses it."""
    usable = [one for one in addresses if not (one.version == 6 and one.is_link_local)]
    return min(usable, key=lambda one: (one.is_link_local, one.version != version), default=None)


def _within(
    host: Host, among: list[Interface], network: Network, prefers: int, place: str, named_by: str = ""
) -> Choice:
    """The address inside ``network`` of the first interface that is up and has one."""
    inside = {
        one: tuple(address for address in one.addresses if address.version == network.version and address in network)
        for one in among
    }
    fitting = [one for one in among if inside[one]]
    if not fitting:
        whose = f"{among[0].name!r} of {host.name}" if named_by else host.name
        raise UsageError(f"{place}: {whose} has no address in {network}; choose another subnet{_has(host, among)}")
    ready = [one for one in fitting if one.running]
    if not ready:
        _check_up(host, among, fitting[0], f"{place}: {network}")
    first = ready[0]
    address = _preferred(inside[first], prefers)
    if address is None:
        raise UsageError(
            f"{place}: {network}: {first.name!r} of {host.name} has only {inside[first][0]} there, which is good on "
            f"its own link alone; take a subnet that is routed{_has(host, among)}"
        )
    others = f", the first of {', '.join(one.name for one in ready)}" if len(ready) > 1 else ""
    return Choice(first.name, str(address), f"{named_by and named_by + ' and '}{place} {network}{others}")


def _by_route(host: Host, table: Mapping[str, Interface], peer: str, place: str) -> Choice:
    addresses = reachable(peer, host, place)
    refusals = []
    for address in addresses:
        try:
            source = host.source(address)
        except OSError as error:
            refusals.append(f"{address}: {error.strerror or error}")
            continue
        owner = next((one for one in table.values() if source in map(_unscoped, one.addresses)), None)
        if owner is not None:
            shown = peer if peer == str(address) else f"{peer} ({address})"
            return Choice(owner.name, str(source), f"the route to {shown}")
        refusals.append(f"{address}: would be sent from {source}, which no interface has")
    raise UsageError(
        f"{place}: {host.name} has no route to {peer!r} ({', '.join(refusals)}); give an address that it reaches, or "
        f"repair its routes (ip route get {addresses[0]}){_has(host, table.values())}"
    )


def _loopback(host: Host, table: Mapping[str, Interface], prefers: int) -> Choice:
    one = next((one for one in table.values() if one.loopback), None)
    if one is None:
        raise UsageError(
            f"--interface: {host.name} has no loopback interface; name another{_has(host, table.values())}"
        )
    _check_up(host, table.values(), one, "--interface")
    return Choice(one.name, str(_best(host, table, one, prefers, "--interface")), "loopback, since none was asked for")


def _unscoped(address: Address) -> Address:
    """Without the interface that an IPv6 address of a link has behind a per cent sign."""
    return ipaddress.ip_address(int(address)) if address.version == 4 else IPv6Address(int(address))


def _has(host: Host, known: Iterable[Interface]) -> str:
    told = ", ".join(map(str, known))
    return f" ({host.name} has: {told})" if told else f" ({host.name} has none)"
