"""How the kernel schedules Gloo's I/O threads, each of which serves the connections of one group.

Gloo locks a connection while it writes to it, in the thread that sends. Bytes that come meanwhile wake the I/O thread,
which may run at once in place of that very thread; it cannot have the lock, polls in a busy loop until its time slice
has ended, 4 ms on many kernels, and only then the other one goes on to release it. Batch scheduling ends this: such a
thread waits for a core instead of taking one from a thread that runs. It needs no privilege.

Between two ranks of one host bytes go fastest where a stream's threads of both ranks share a core, whose cache holds
them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def batch_threads() -> Iterator[None]:
    """The threads that this one starts inside are scheduled as batch; whoever has chosen another policy keeps it."""
    if not hasattr(os, "SCHED_BATCH") or os.sched_getscheduler(0) != os.SCHED_OTHER:
        yield
        return
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # threads inherit it
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def cores() -> list[int]:
    """Those on which this process may run, in order; none where the kernel does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


@contextmanager
def threads_on(core: int | None) -> Iterator[None]:
    """This thread, and the threads that it starts inside, run on that core; None changes nothing."""
    if core is None:
        yield
        return
    usual = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, usual)
