"""Talk between the ranks beside the measured traffic: barriers, and small facts, over a group of their own.

Keeping it off the data connections leaves their queues and counters to the measurement.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch.distributed import GatherOptions


class Control:
    """A process group over the ranks of a case (or of the whole launch) that carries no measured data.

    Every wait ends after ``limit_s`` with a RuntimeError that torch words.
    """

    def __init__(self, group: Any, limit_s: float) -> None:
        self.group = group
        self.rank: int = group.rank()
        self.world_size: int = group.size()
        self._limit = timedelta(seconds=limit_s)

    def barrier(self) -> None:
        self.group.barrier().wait(self._limit)

    def meet(self, limit_s: float) -> None:
        """A barrier with a limit of its own, for ranks that have had nothing to do for long."""
        self.group.barrier().wait(timedelta(seconds=limit_s))

    def meet_peer(self, peer: int) -> None:
        """A barrier between this rank and one other, which the rest has no part in.

        After a barrier of all, the two may be as far apart as anybody's link is slow; after this one no further than
        their own link is.
        """
        token, theirs = torch.zeros(1, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)
        for work in (self.group.recv([theirs], peer, 0), self.group.send([token], peer, 0)):
            work.wait(self._limit)

    def tell_all(self, fact: Any) -> list[Any]:
        """Every rank's ``fact`` (anything that JSON holds), in the order of ranks, on every rank."""
        text = json.dumps(fact, allow_nan=False).encode()
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
        self.group.allgather([lengths], [torch.tensor([len(text)])]).wait(self._limit)
        longest = max(int(length) for length in lengths)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        texts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.world_size)]
        self.group.allgather([texts], [padded]).wait(self._limit)
        return [json.loads(text[: int(length)].numpy().tobytes()) for text, length in zip(texts, lengths, strict=True)]

    def follow_root(self, numbers: Sequence[int]) -> list[int]:
        """Rank 0's ``numbers`` on every rank; all pass as many, the others whatever they like."""
        told = torch.tensor(list(numbers), dtype=torch.int64)
        self.group.broadcast([told]).wait(self._limit)
        return [int(number) for number in told]

    def gather(self, samples: np.ndarray) -> list[np.ndarray]:
        """Every rank's int64 array of one common shape on rank 0, an empty list elsewhere."""
        mine = torch.from_numpy(np.ascontiguousarray(samples))
        options = GatherOptions()
        options.rootRank = 0
        if self.rank != 0:
            self.group.gather([], [mine], options).wait(self._limit)
            return []
        gathered = [torch.empty_like(mine) for _ in range(self.world_size)]
        self.group.gather([gathered], [mine], options).wait(self._limit)
        return [tensor.numpy() for tensor in gathered]
