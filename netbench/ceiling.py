"""The most payload that a run's link can carry: by the rate that the user names, the lab's, or the interface's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from netbench.framing import QUEUE_BYTES, WIRE_BYTES, Framing
from netbench.record import Manifest
from netbench.units import about_rate

#: Drivers say this where they do not know.
_UNKNOWN_MBIT_S = 65535


@dataclass(frozen=True)
class Ceiling:
    """``payload_bit_s`` is ``line_bit_s`` less all headers; ``source`` says whose rate that is."""

    line_bit_s: float
    framing: Framing
    source: str

    @property
    def payload_bit_s(self) -> float:
        return self.line_bit_s * float(self.framing.payload_share)

    def __str__(self) -> str:
        """``9.41 Gbit/s of payload: --line-rate 10 Gbit/s, 1448 of 1538 B a packet``."""
        payload, line = about_rate(self.payload_bit_s), about_rate(self.line_bit_s)
        return f"{payload} of payload: {self.source} {line}, {self.framing}"


def ceiling(manifest: Manifest, line_bit_s: float | None = None) -> Ceiling | None:
    """The ceiling of one rank's link; None where nobody knows its rate.

    A rate that the user names comes first, then the lab's, then the speed of the hosts' slowest interface. A virtual
    interface, which has no driver, names a speed that means nothing.
    """
    interfaces = [host["interface"] for host in manifest.environment if host.get("interface")]
    if manifest.lab is not None:
        framing = _framing(manifest, interfaces, QUEUE_BYTES)
        if line_bit_s is None:
            return Ceiling(manifest.lab.rate_bit_s, framing, "the lab's link of")
    else:
        framing = _framing(manifest, interfaces, WIRE_BYTES)
    if line_bit_s is not None:
        return Ceiling(line_bit_s, framing, "--line-rate")
    speeds = [interface["speed_mbit_per_s"] for interface in interfaces if _tells_speed(interface)]
    if not speeds or len(speeds) < len(interfaces):
        return None
    return Ceiling(min(speeds) * 1e6, framing, "the interface's speed of")


def _tells_speed(interface: dict[str, Any]) -> bool:
    speed = interface.get("speed_mbit_per_s")
    return bool(interface.get("driver") and speed and 0 < speed < _UNKNOWN_MBIT_S)


def _framing(manifest: Manifest, interfaces: list[dict[str, Any]], link_bytes: int) -> Framing:
    mtu_bytes = min((i["mtu_bytes"] for i in interfaces if i.get("mtu_bytes")), default=1500)
    addresses = [address for interface in interfaces for address in interface.get("addresses", [])]
    version = 6 if addresses and all(":" in address for address in addresses) else 4
    return Framing(mtu_bytes, link_bytes, version, all(known != "0" for known in _timestamps(manifest)))


def _timestamps(manifest: Manifest) -> Iterator[str | None]:
    for host in manifest.environment:
        yield (host.get("sysctls") or {}).get("ipv4.tcp_timestamps")
