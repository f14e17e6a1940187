"""The kernel's namespaces: making an unnamed one, and moving this process into another.

None of them has a name under /run: a namespace lives as long as a process is in it or a descriptor is open, and the
kernel takes down its links, queues and packet filters with it. So a lab cannot outlive its processes.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

USER = 0x10000000  # CLONE_NEWUSER
NETWORK = 0x40000000  # CLONE_NEWNET

# Python has os.unshare and os.setns from 3.12 on; netbench runs on 3.11 too.
_libc = ctypes.CDLL(None, use_errno=True)


def unshare(kinds: int) -> None:
    """Moves this thread into new namespaces of these kinds. Raises OSError."""
    if _libc.unshare(ctypes.c_int(kinds)) != 0:
        _raise_errno()


def enter(path: str, kind: int) -> None:
    """Moves this thread, and the threads it starts from now on, into the namespace at ``path``. Raises OSError.

    A user namespace can be entered only by a process of one thread.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        enter_open(descriptor, kind)
    finally:
        os.close(descriptor)


def enter_open(descriptor: int, kind: int) -> None:
    """As ``enter``, by an open descriptor."""
    if _libc.setns(ctypes.c_int(descriptor), ctypes.c_int(kind)) != 0:
        _raise_errno()


def open_own_network() -> int:
    """A descriptor of this thread's network namespace, which keeps it alive."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY)


def become_root_inside(user_id: int, group_id: int) -> None:
    """Makes this process root of the user namespace it has just made; outside it stays who it was. Raises OSError."""
    # An unprivileged process may map its group only after giving up setgroups.
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user_id} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group_id} 1")


def _raise_errno() -> None:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))
