"""How much of a link's rate is payload: the share that is left of a full packet when its headers are taken off.

The one place for MTU and header arithmetic: the lab's ceiling and that of a real link differ only in what the link's
rate counts beside the IP packet.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

#: What a rate counts beside the IP packet. The kernel's queues count the Ethernet header; a real wire also carries
#: preamble (8), checksum (4) and the gap between packets (12); loopback counts its 14 bytes of Ethernet header too.
QUEUE_BYTES = 14
WIRE_BYTES = 38

_IP_BYTES = {4: 20, 6: 40}
_TCP_BYTES = 20
_TIMESTAMP_BYTES = 12  # an option in every segment, which Linux sends unless told otherwise


@dataclass(frozen=True)
class Framing:
    """Full TCP packets on a link of ``mtu_bytes``, with ``link_bytes`` around each."""

    mtu_bytes: int = 1500
    link_bytes: int = WIRE_BYTES
    ip_version: int = 4
    timestamps: bool = True

    @property
    def header_bytes(self) -> int:
        """Of IP and TCP, in each packet."""
        return _IP_BYTES[self.ip_version] + _TCP_BYTES + self.timestamps * _TIMESTAMP_BYTES

    @property
    def payload_bytes(self) -> int:
        """In each packet."""
        return self.mtu_bytes - self.header_bytes

    @property
    def payload_share(self) -> Fraction:
        """TCP payload over what the link's rate counts, in full packets: 1448/1538 on Ethernet."""
        return Fraction(self.payload_bytes, self.mtu_bytes + self.link_bytes)

    def __str__(self) -> str:
        """``1448 of 1538 B a packet``."""
        return f"{self.payload_bytes} of {self.mtu_bytes + self.link_bytes} B a packet"
