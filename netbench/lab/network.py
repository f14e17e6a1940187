"""Makes the links of a lab: a switch in the namespace of the caller, and hosts around it.

::

    switch namespace                          one namespace per host
    switch0 (bridge, has an address)
       |-- port0 ---------------------------- lab0   host0
       |-- port1 ---------------------------- lab0   host1
             down: [netem, then] tbf          up: tbf, or htb with a class per flow

Both ends of a link are limited: ``lab0`` what its host sends, ``portN`` what its host receives. Every host calls its
interface ``lab0``, so one name serves all ranks. The namespaces are the lab's own, so names and addresses can be the
same in every lab.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.nftables.main import NFTables

from netbench.errors import LaunchError
from netbench.lab import namespaces
from netbench.lab.spec import MTU_BYTES, LabSpec, burst_bytes

HOST_INTERFACE = "lab0"
SWITCH_INTERFACE = "switch0"

# RFC 2544 sets 198.18.0.0/15 aside for benchmarks, so no address here is that of a real host.
_NETWORK = "198.18.0.0"
_PREFIX_LENGTH = 24
_SWITCH_ADDRESS = "198.18.0.254"

#: A switch's queue in front of a host; what does not fit is lost, as in a real one.
_SWITCH_QUEUE_S = 0.05
_LEAST_SWITCH_QUEUE_BYTES = 256 * 1024

#: A host loses nothing of its own: TCP keeps what each socket has queued far below this.
_HOST_QUEUE_BYTES = 64 * 1024 * 1024

#: Linux's default. Pinned, so that a lab is the same on all machines: BBR, some machines' default, gives way to its
#: own probing and leaves up to a third of a link unused when both directions are busy.
_CONGESTION_CONTROL = "cubic"
_LINK_SCOPE = 253
_NO_PREFIX_ROUTE = 0x200  # IFA_F_NOPREFIXROUTE: the address brings no route, since ours says more

# Handles of queues and classes, written 1:0, 1:1 and so on by tc.
_ROOT = 0x10000
_LINK_CLASS = 0x10001
_REST_CLASS = 0x10002  # what belongs to no connection: ARP
_FIRST_FLOW_CLASS = 0x10100
_NETEM_CHILD = 0x20000

#: Connections numbered before the classes are used a second time; more than a host has busy at once.
_FLOW_CLASSES = 128


@dataclass(frozen=True)
class Host:
    """A host, or the switch, as its maker sees it: ``network`` is an open descriptor that keeps its namespace alive."""

    name: str
    address: str
    interface: str
    network: int


def build(spec: LabSpec) -> tuple[Host, list[Host]]:
    """Makes the switch in this thread's network namespace and every host in a new one.

    Raises LaunchError naming what the kernel lacks. Whatever was made is gone when the descriptors are closed and
    this namespace ends.
    """
    switch = Host("switch", _SWITCH_ADDRESS, SWITCH_INTERFACE, namespaces.open_own_network())
    with IPRoute() as link:
        with _needs("a bridge", "bridge"):
            link.link("add", ifname=SWITCH_INTERFACE, kind="bridge", mtu=MTU_BYTES)
        bridge = _up(link, SWITCH_INTERFACE)
        _give_address(link, bridge, _SWITCH_ADDRESS)
        _up(link, "lo")
        return switch, [_add_host(spec, index, link, bridge, switch.network) for index in range(spec.hosts)]


def _add_host(spec: LabSpec, index: int, switch: Any, bridge: int, here: int) -> Host:
    namespaces.unshare(namespaces.NETWORK)
    try:
        host = Host(f"host{index}", f"198.18.0.{index + 1}", HOST_INTERFACE, namespaces.open_own_network())
        port = f"port{index}"
        with _needs("a virtual Ethernet link", "veth"):
            switch.link(
                "add",
                ifname=port,
                kind="veth",
                mtu=MTU_BYTES,
                peer={"ifname": HOST_INTERFACE, "mtu": MTU_BYTES, "net_ns_fd": host.network},
            )
        down = switch.link_lookup(ifname=port)[0]
        switch.link("set", index=down, master=bridge)
        _limit_down(switch, down, spec)
        _up(switch, port)
        with IPRoute() as inside:  # a netlink socket speaks for the namespace in which it was opened
            _up(inside, "lo")
            up = _up(inside, HOST_INTERFACE)
            _limit_up(inside, up, spec)
            _give_address(inside, up, host.address)
        return host
    finally:
        namespaces.enter_open(here, namespaces.NETWORK)


def _up(link: Any, interface: str) -> int:
    index = int(link.link_lookup(ifname=interface)[0])
    link.link("set", index=index, state="up")
    return index


def _give_address(link: Any, index: int, address: str) -> None:
    link.addr("add", index=index, address=address, prefixlen=_PREFIX_LENGTH, IFA_FLAGS=_NO_PREFIX_ROUTE)
    route = {"dst": f"{_NETWORK}/{_PREFIX_LENGTH}", "oif": index, "prefsrc": address, "scope": _LINK_SCOPE}
    try:
        link.route("add", **route, metrics={"cc_algo": _CONGESTION_CONTROL})
    except NetlinkError:
        # A kernel without it: the lab is as good, and the sockets tell what they use.
        link.route("add", **route)


def _limit_up(host: Any, index: int, spec: LabSpec) -> None:
    """What a host sends: never more than the link, nor more than the cap of each connection."""
    slowest = spec.flow_bit_s or spec.rate_bit_s
    # TCP hands down packets of up to 64 KiB to be cut by the interface. Larger than the bucket they would be cut in
    # front of it, at some cost; larger than half of it they would leave in clumps.
    host.link("set", index=index, gso_max_size=min(64 * 1024, burst_bytes(slowest) // 2))
    if spec.flow_bit_s is None:
        _add_bucket(host, index, spec.rate_bit_s, _HOST_QUEUE_BYTES)
    else:
        _add_flow_classes(host, index, spec.rate_bit_s, spec.flow_bit_s)
        _number_connections()


def _limit_down(switch: Any, port: int, spec: LabSpec) -> None:
    queue_bytes = max(_LEAST_SWITCH_QUEUE_BYTES, int(spec.rate_bit_s / 8 * _SWITCH_QUEUE_S))
    if not spec.delay_us and not spec.loss_ppm:
        _add_bucket(switch, port, spec.rate_bit_s, queue_bytes)
        return
    # Delay sits at the receiving end: at the sending one it would hide the queue from TCP's own limit on what a
    # socket may have queued. Its limit counts packets; it only has to hold what is under way, with room to spare.
    under_way = 2 * spec.hosts * spec.rate_bit_s * spec.delay_us // (8 * 10**6) // MTU_BYTES
    with _needs("delay and loss", "sch_netem"):
        switch.tc(
            "add",
            "netem",
            port,
            handle=_ROOT,
            delay=spec.delay_us,
            loss=spec.loss_ppm / 10_000,
            limit=1000 + under_way,
        )
    _add_bucket(switch, port, spec.rate_bit_s, queue_bytes, parent=_LINK_CLASS, handle=_NETEM_CHILD)


def _add_bucket(link: Any, index: int, rate_bit_s: int, queue_bytes: int, **place: int) -> None:
    """A token bucket as the interface's queue, or at ``place`` within it."""
    with _needs("a token bucket", "sch_tbf"):
        link.tc(
            "add",
            "tbf",
            index,
            rate=rate_bit_s // 8,
            burst=burst_bytes(rate_bit_s),
            limit=queue_bytes,
            **(place or {"handle": _ROOT}),
        )


def _add_flow_classes(link: Any, index: int, rate_bit_s: int, flow_bit_s: int) -> None:
    """Queues of which each takes one connection, at most ``flow_bit_s`` each and ``rate_bit_s`` together."""

    def add_class(handle: int, parent: int, least_bit_s: int, most_bit_s: int) -> None:
        burst = burst_bytes(most_bit_s)
        # Shares are dealt in turns of one packet; the kernel's own choice would follow from the tiny least rate.
        rates = {"rate": max(1, least_bit_s // 8), "ceil": most_bit_s // 8, "burst": burst, "cburst": burst}
        link.tc("add-class", "htb", index, handle, parent=parent, quantum=MTU_BYTES, **rates)

    with _needs("classes of traffic", "sch_htb"):
        link.tc("add", "htb", index, _ROOT, default=_REST_CLASS & 0xFFFF)
        add_class(_LINK_CLASS, _ROOT, rate_bit_s, rate_bit_s)
        # A class may always send at its least rate, so all of these together must stay below the link's.
        least = min(flow_bit_s, rate_bit_s // (2 * _FLOW_CLASSES))
        add_class(_REST_CLASS, _LINK_CLASS, least, rate_bit_s)
        for number in range(_FLOW_CLASSES):
            add_class(_FIRST_FLOW_CLASS + number, _LINK_CLASS, least, flow_bit_s)


def _number_connections() -> None:
    """Gives each connection of this namespace the next flow class.

    As nft writes it, where the mark of a connection is the handle of its class::

        ct mark 0 ct mark set numgen inc mod 128 offset 0x10100
        meta priority set ct mark

    The first rule asks for a missing mark, not for a new connection: the first packet that a server sends belongs
    to a connection that is no longer new.
    """
    register, mark, priority = 8, 3, 2  # NFT_REG32_00, NFT_CT_MARK, NFT_META_PRIORITY
    number = [
        _expression("ct", "CT", DREG=register, KEY=mark),
        _expression("cmp", "CMP", SREG=register, OP=0, DATA={"attrs": [("NFTA_DATA_VALUE", bytes(4))]}),
        _expression("numgen", "NG", DREG=register, TYPE=0, MODULUS=_FLOW_CLASSES, OFFSET=_FIRST_FLOW_CLASS),
        _expression("ct", "CT", SREG=register, KEY=mark),
    ]
    classify = [
        _expression("ct", "CT", DREG=register, KEY=mark),
        _expression("meta", "META", SREG=register, KEY=priority),
    ]
    with _needs("a cap per flow", "nf_tables, nft_numgen, nft_ct"), NFTables(nfgen_family=socket.AF_INET) as nft:
        nft.table("add", name="netbench")
        nft.chain("add", table="netbench", name="flows", hook="output", type="filter", policy=1)
        for rule in (number, classify):
            nft.rule("add", table="netbench", chain="flows", expressions=[rule])
        # Commands are not answered, so what the kernel refused shows only in what is there.
        if len(nft.get_rules()) != 2:
            raise NetlinkError(errno.EOPNOTSUPP, "the rules were not accepted")


def _expression(name: str, prefix: str, **attributes: object) -> dict[str, object]:
    data = [(f"NFTA_{prefix}_{key}", value) for key, value in attributes.items()]
    return {"attrs": [("NFTA_EXPR_NAME", name), ("NFTA_EXPR_DATA", {"attrs": data})]}


@contextmanager
def _needs(what: str, modules: str) -> Iterator[None]:
    """Turns the kernel's refusal into a message that names the module behind it."""
    try:
        yield
    except (NetlinkError, OSError) as error:
        code = (error.code if isinstance(error, NetlinkError) else error.errno) or errno.EIO
        if code in (errno.EPERM, errno.EACCES):
            remedy = "it needs the capability CAP_NET_ADMIN"
        else:
            load = f"'sudo modprobe -a {modules.replace(',', '')}'"
            remedy = f"it needs the kernel module {modules}: load it with {load}, or use a kernel that has it"
        # An unknown kind of queue is reported as a file that does not exist, which would only puzzle.
        reason = "not known to this kernel" if code in (errno.ENOENT, errno.EOPNOTSUPP) else os.strerror(code)
        raise LaunchError(f"the lab cannot have {what}: {reason}; {remedy}") from None
