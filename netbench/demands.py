"""What one launch demands of this host's limits, known before it is started and without torch."""

from __future__ import annotations

import resource
from collections.abc import Iterable

from netbench import limits
from netbench.backends import BACKENDS
from netbench.errors import LaunchError
from netbench.model import Case

#: What a rank has open beside its groups: Python, torch, the store, its log, the record.
_OTHER_DESCRIPTORS = 48


def open_files(cases: Iterable[Case]) -> int:
    """How many open files the busiest rank of a launch with these cases needs, since groups stay open to its end."""
    cases = list(cases)
    lanes = {(case.backend, case.streams, tuple(case.members)) for case in cases}
    worlds = {case.world_size for case in cases}
    largest = max(worlds)

    def groups(rank: int) -> int:
        own = sum(BACKENDS[name].descriptors(k, len(members)) for name, k, members in lanes if rank in members)
        # One group for control in each world, and one for all of the launch.
        return own + sum(limits.descriptors(1, size) for size in [*worlds, largest] if rank < size)

    return _OTHER_DESCRIPTORS + max(map(groups, range(largest)))


def allow_open_files(cases: Iterable[Case]) -> None:
    """Lets this process, and those that it starts, have as many as they need, as far as its hard limit goes.

    Raises LaunchError beyond that.
    """
    needed = open_files(cases)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise LaunchError(
            f"a rank of this sweep needs up to {needed} open files, and the limit here is {hard}: raise it, as by "
            f"ulimit -n {needed}, or take fewer --streams, --backends or --world-sizes"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
