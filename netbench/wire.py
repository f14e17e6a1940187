"""What this process's TCP connections really carried, read from the kernel without root.

Source: ``struct tcp_info`` in Linux' ``include/uapi/linux/tcp.h``; ``tcpi_bytes_sent`` needs Linux 4.19.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_RECEIVED_AT, _SENT_AT, _RETRANSMITTED_BYTES_AT, _RETRANSMITS_AT = 128, 200, 208, 100
_STRUCT_BYTES = 216


@dataclass(frozen=True)
class Traffic:
    """Totals over some connections: payload bytes, without retransmitted ones, and retransmitted segments."""

    sent_bytes: int
    received_bytes: int
    retransmits: int

    def __sub__(self, earlier: Traffic) -> Traffic:
        return Traffic(
            self.sent_bytes - earlier.sent_bytes,
            self.received_bytes - earlier.received_bytes,
            self.retransmits - earlier.retransmits,
        )


def connections() -> frozenset[int]:
    """File descriptors of this process's connected TCP sockets."""
    return frozenset(fd for fd in (int(path.name) for path in Path("/proc/self/fd").iterdir()) if _is_connected_tcp(fd))


def traffic(descriptors: Iterable[int]) -> Traffic | None:
    """What these connections have carried since they were opened; None where the kernel does not tell."""
    sent = received = retransmits = 0
    for descriptor in descriptors:
        with _Borrowed(descriptor) as connection:
            try:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 512)
            except OSError:
                return None
        if len(info) < _STRUCT_BYTES:
            return None
        sent += _u64(info, _SENT_AT) - _u64(info, _RETRANSMITTED_BYTES_AT)
        received += _u64(info, _RECEIVED_AT)
        retransmits += struct.unpack_from("=I", info, _RETRANSMITS_AT)[0]
    return Traffic(sent, received, retransmits)


def _u64(info: bytes, offset: int) -> int:
    return int(struct.unpack_from("=Q", info, offset)[0])


class _Borrowed:
    """A socket object over a descriptor that somebody else owns, and that stays open afterwards."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)

    def __enter__(self) -> socket.socket:
        return self._socket

    def __exit__(self, *_: object) -> None:
        self._socket.detach()


def _is_connected_tcp(descriptor: int) -> bool:
    try:
        if not str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("socket:"):
            return False
        with _Borrowed(descriptor) as candidate:
            if candidate.family not in (socket.AF_INET, socket.AF_INET6) or candidate.type != socket.SOCK_STREAM:
                return False
            candidate.getpeername()
    except OSError:
        return False
    return True
