"""How the monotonic clocks of two hosts relate, so that the entry of ranks on different hosts can be compared.

A rank asks rank 0 for its time, several times; the exchange with the shortest round trip bounds the offset best: the
answer was given somewhere between question and reply, so half the round trip is the error (Cristian 1989).
"""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

_EXCHANGES = 20


def boot_id() -> str:
    """Equal on all hosts that share one kernel, and so one monotonic clock."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def offset(group: Any, rank: int, peers: list[str], limit: timedelta) -> tuple[int, int]:
    """(offset, error) in ns: what to add to this rank's monotonic clock to have rank 0's. All ranks call it at once.

    ``peers`` are all ranks' boot_ids; on rank 0's own kernel the answer is (0, 0).
    """
    remote = [peer for peer in range(1, len(peers)) if peers[peer] != peers[0]]
    stamp = torch.zeros(1, dtype=torch.int64)
    if rank == 0:
        for peer in remote:
            for _ in range(_EXCHANGES):
                group.recv([stamp], peer, 0).wait(limit)
                stamp[0] = time.monotonic_ns()
                group.send([stamp], peer, 0).wait(limit)
        return 0, 0
    if rank not in remote:
        return 0, 0
    best = (0, 2**62)
    for _ in range(_EXCHANGES):
        asked = time.monotonic_ns()
        group.send([stamp], 0, 0).wait(limit)
        group.recv([stamp], 0, 0).wait(limit)
        replied = time.monotonic_ns()
        error = (replied - asked + 1) // 2
        if error < best[1]:
            best = int(stamp) - (asked + replied) // 2, error
    return best
