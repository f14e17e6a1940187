"""What streams cost in threads and descriptors, and whether this process may have as many."""

from __future__ import annotations

import resource
import threading
from pathlib import Path

from netbench.errors import LaunchError

#: What each stream costs: Gloo's I/O thread, its two worker threads and, from the first large message on, one that
#: sends; and its descriptors beside one per peer.
THREADS_PER_STREAM = 4
DESCRIPTORS_PER_STREAM = 5

#: How many are opened where the number is chosen for each message.
STREAMS_TO_CHOOSE_FROM = 16


def descriptors(streams: int, world_size: int) -> int:
    """Of each of ``world_size`` ranks."""
    return streams * (DESCRIPTORS_PER_STREAM + world_size - 1)


def threads(streams: int) -> int:
    """Of each rank."""
    return streams * THREADS_PER_STREAM


def check_limits(streams: int, world_size: int) -> None:
    """Raises LaunchError when this process may not have as many descriptors or threads as ``streams`` need."""
    needed = descriptors(streams, world_size)
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = sum(1 for _ in Path("/proc/self/fd").iterdir()) if Path("/proc/self/fd").is_dir() else 0
    if most != resource.RLIM_INFINITY and used + needed > most:
        raise LaunchError(
            f"{streams} streams between {world_size} ranks need {needed} descriptors; {used} of {most} are in "
            f"use: take fewer streams, or raise the limit with ulimit -n {used + needed}"
        )
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if most != resource.RLIM_INFINITY and threading.active_count() + threads(streams) > most:
        raise LaunchError(
            f"{streams} streams need {threads(streams)} threads and the limit of this user is {most}: take fewer "
            "streams, or raise the limit with ulimit -u"
        )
