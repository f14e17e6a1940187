"""What this process's TCP connections really carried, read from the kernel without root.

Source: ``struct tcp_info`` in Linux' ``include/uapi/linux/tcp.h``; ``tcpi_bytes_sent`` needs Linux 4.19.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

_RECEIVED_AT, _SENT_AT, _RETRANSMITTED_BYTES_AT, _RETRANSMITS_AT = 128, 200, 208, 100
_RTT_AT, _WINDOW_AT, _LEAST_RTT_AT = 68, 80, 148
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


def paths(descriptors: Iterable[int]) -> dict[str, Any]:
    """How these connections fare now: smoothed and least round-trip time in us (medians over them), the largest
    congestion window in segments, and the congestion controls at work. Null where the kernel does not tell."""
    rtt, least, windows, controls = [], [], [], set()
    for descriptor in descriptors:
        with _Borrowed(descriptor) as connection:
            try:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 512)
                control = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            except OSError:
                continue
        if len(info) >= _STRUCT_BYTES:
            rtt.append(_u32(info, _RTT_AT))
            least.append(_u32(info, _LEAST_RTT_AT))
            windows.append(_u32(info, _WINDOW_AT))
            controls.add(control.rstrip(b"\0").decode())
    return {
        "rtt_us": median(rtt) if rtt else None,
        "least_rtt_us": median(least) if least else None,
        "congestion_window": max(windows, default=None),
        "congestion_control": ", ".join(sorted(controls)) or None,
    }


def use_congestion_control(descriptors: Iterable[int], name: str) -> None:
    """Raises OSError when the kernel does not have it, or does not allow it."""
    for descriptor in descriptors:
        with _Borrowed(descriptor) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())


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
        retransmits += _u32(info, _RETRANSMITS_AT)
    return Traffic(sent, received, retransmits)


def waiting(descriptors: Iterable[int]) -> dict[str, int]:
    """By the peer's address, the bytes that these connections have been given and the peer has not yet taken.

    Raises OSError when one of them is no longer open.
    """
    found: dict[str, int] = {}
    for descriptor in descriptors:
        with _Borrowed(descriptor) as connection:
            [queued] = struct.unpack("=i", fcntl.ioctl(descriptor, termios.TIOCOUTQ, b"\0" * 4))
            if queued:
                peer = connection.getpeername()[0]
                found[peer] = found.get(peer, 0) + queued
    return found


def _u32(info: bytes, offset: int) -> int:
    return int(struct.unpack_from("=I", info, offset)[0])


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
