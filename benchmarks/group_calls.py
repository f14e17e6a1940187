"""What ParallelProcessGroup adds to a call that it hands to Gloo as it is: small messages, without a network.

A group of one rank moves nothing, so what is timed is the call and its wait, on one CPU: on two, a group's worker
stays on its caller's CPU or on the other one, by chance, which makes 7 us. Alternating turns of 200 calls on plain
Gloo and on ours; printed are the medians in us, and by how much the turns of a pair differ, with a 95 % interval.

    python benchmarks/group_calls.py
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch
from torch._C._distributed_c10d import HashStore, PrefixStore, ProcessGroupGloo

from netbench.process_group import ParallelOptions, ParallelProcessGroup
from netbench.statistics import median_interval

TURNS, CALLS = 101, 200


def main() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    store, group_type = HashStore(), ProcessGroupGloo
    options: Any = group_type._Options()
    options._devices = [group_type.create_device(hostname="127.0.0.1")]
    plain = group_type(PrefixStore("plain", store), 0, 1, options)
    ours = ParallelProcessGroup(options=ParallelOptions(address="127.0.0.1"))
    ours.configure(PrefixStore("ours", store), 0, 1)
    tensor, outputs = torch.zeros(1), [torch.zeros(1)]
    calls: dict[str, Callable[[Any], Any]] = {
        "allreduce": lambda group: group.allreduce([tensor]).wait(),
        "all_gather": lambda group: group.allgather([outputs], [tensor]).wait(),
        "broadcast": lambda group: group.broadcast([tensor]).wait(),
        "barrier": lambda group: group.barrier().wait(),
    }

    def turn(call: Callable[[Any], Any], group: Any) -> float:
        begin = time.perf_counter_ns()
        for _ in range(CALLS):
            call(group)
        return (time.perf_counter_ns() - begin) / CALLS / 1000

    print(f"host {platform.node()}\n{'call':12}  {'gloo, us':>9}  {'ours, us':>9}  {'more, us':>9}")
    for name, call in calls.items():
        turns: list[tuple[float, float]] = []
        for index in range(TURNS):
            pair = [turn(call, group) for group in ((plain, ours) if index % 2 else (ours, plain))]
            turns.append((pair[0], pair[1]) if index % 2 else (pair[1], pair[0]))
        more = np.sort([mine - theirs for theirs, mine in turns])
        interval = median_interval(len(more))
        assert interval is not None
        print(
            f"{name:12}  {median(theirs for theirs, _ in turns):9.2f}  {median(mine for _, mine in turns):9.2f}  "
            f"{np.median(more):9.2f}  ({more[interval[0]]:.2f} to {more[interval[1]]:.2f})"
        )


if __name__ == "__main__":
    main()
