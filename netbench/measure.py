"""The measurement itself: a barrier, then one operation, timed on every rank; and the check of the data around it."""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import zip_longest
from typing import Any

import numpy as np

from netbench.backends import Lanes
from netbench.modes import Buffers, Mode, Step
from netbench.payload import POISON, Payload
from netbench.record import MEASURED

#: What MEASURED has after ``duration_ns``, of this process, over all of its threads.
Usage = tuple[int, int, int, int, int]


def time_iterations(
    count: int,
    warmup: bool,
    barrier: Callable[[], None],
    operation: Callable[[], None],
    *,
    clock: Callable[[], int] = time.monotonic_ns,
    usage: Callable[[], Any] | None = None,
    used: Callable[[Any, Any], Usage] | None = None,
    between: Callable[[], None] = lambda: None,
) -> np.ndarray:
    """Runs ``count`` iterations and returns int64 of shape (count, len(MEASURED)), launch and round left at 0.

    Between the two clock readings stands the operation and nothing else. ``between`` is called after each iteration,
    outside of them: pauses and signs of life belong there.
    """
    usage, used = usage or process_usage, used or used_between
    samples = np.full((count, len(MEASURED)), -1, np.int64)
    gc.collect()
    gc.disable()
    try:
        for index in range(count):
            barrier()
            before = usage()
            start = clock()
            operation()
            stop = clock()
            after = usage()
            samples[index] = (index, warmup, 0, 0, start, stop - start, *used(before, after))
            between()
    finally:
        gc.enable()
    return samples


def process_usage() -> Any:
    """What the whole process has used so far, Gloo's own threads included. It stands between a barrier and the clock,
    so it is the bare call, and ``used_between`` makes numbers of it afterwards."""
    return resource.getrusage(resource.RUSAGE_SELF)


def used_between(early: Any, late: Any) -> Usage:
    """CPU time, page faults and context switches from one reading to the next."""
    return (
        round((late.ru_utime - early.ru_utime) * 1e9),
        round((late.ru_stime - early.ru_stime) * 1e9),
        late.ru_minflt - early.ru_minflt,
        late.ru_nvcsw - early.ru_nvcsw,
        late.ru_nivcsw - early.ru_nivcsw,
    )


def make_operation(
    mode: Mode, lanes: Lanes, buffers: Buffers, parts: Sequence[Sequence[slice]], timeout_s: float
) -> Callable[[], None]:
    """One run of ``mode`` over all lanes: each carries its chunks, and all are under way before any is waited for.

    Raises RuntimeError when it has not ended after ``timeout_s``, a limit for the whole operation, not for each lane.
    """
    by_chunk = [
        mode.steps(lane, buffers, chunk) for lane, chunks in zip(lanes.lanes, parts, strict=False) for chunk in chunks
    ]
    steps: list[list[Step]] = [[s for s in row if s is not None] for row in zip_longest(*by_chunk)]
    synchronize = lanes.synchronize

    limit = timedelta(seconds=timeout_s)

    def operation() -> None:
        begun = time.monotonic()
        for starts in steps:
            works = [work for start in starts for work in start()]
            if len(works) == 1 and starts is steps[0]:
                works[0].wait(limit)  # plain Gloo's usual case: no arithmetic between the clock readings
            else:
                wait_all(works, begun + timeout_s)
        if synchronize is not None:
            synchronize()

    return operation


def wait_all(works: Sequence[Any], deadline: float) -> None:
    """Waits for every Work until ``deadline`` on the monotonic clock, then raises the first error, if any."""
    first: RuntimeError | None = None
    for work in works:
        # Zero would mean no limit to torch.
        left = max(deadline - time.monotonic(), 0.001)
        try:
            work.wait(timedelta(seconds=left))
        except RuntimeError as error:
            first = first or error
    if first is not None:
        raise first


def count_wrong(
    mode: Mode,
    buffers: Buffers,
    parts: Sequence[slice],
    rank: int,
    payload: Payload,
    run_once: Callable[[], None],
) -> int:
    """Runs the operation once, untimed, on known data, and counts this rank's wrong elements."""
    payload.fill(buffers.input, rank)
    for output in buffers.outputs:
        output.fill_(POISON)
    run_once()
    checks = mode.expected(buffers, rank, payload.world_size, parts)
    return sum(payload.count_wrong(expected) for expected in checks)
