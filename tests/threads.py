"""Ranks as threads of one process, over loopback and a store in memory: real groups without a launch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import psutil
from torch.distributed import HashStore, PrefixStore

from netbench.backends import Wiring

Result = TypeVar("Result")

LOOPBACK = next(name for name, stats in psutil.net_if_stats().items() if "loopback" in stats.flags)

#: A rank that hangs fails its test after this, seconds.
LIMIT_S = 20.0

#: Groups that lost a peer can block in their destructors, so those that tests break are kept to the end.
broken: list[Any] = []


class World:
    """``world_size`` ranks that can run functions together."""

    def __init__(self, world_size: int, timeout_s: float = LIMIT_S) -> None:
        self.world_size = world_size
        self.timeout_s = timeout_s
        self._store = HashStore()
        self._meeting = threading.Barrier(world_size)
        self._pool = ThreadPoolExecutor(world_size)

    def wiring(self, rank: int, purpose: str) -> Wiring:
        return Wiring(PrefixStore(purpose, self._store), rank, self.world_size, "127.0.0.1", self.timeout_s)

    def meet(self) -> None:
        """A barrier that touches no network."""
        self._meeting.wait(LIMIT_S)

    def run(self, body: Callable[[int], Result]) -> list[Result]:
        """What ``body(rank)`` returns on every rank, or the first error that it raises on one."""
        deadline = time.monotonic() + LIMIT_S + self.timeout_s
        ranks = [self._pool.submit(body, rank) for rank in range(self.world_size)]
        return [rank.result(max(0.0, deadline - time.monotonic())) for rank in ranks]
