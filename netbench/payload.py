"""The data that is sent, so that what arrives can be checked element by element.

Values are small whole numbers, chosen so that their sum over all ranks is exact in every dtype (at most 120 for
int8, and below 2**8 for bfloat16). They scatter by index, rank and round, so a part that is missing, shifted, stale
or from the wrong rank shows; and up to 60 ranks none is 0, so that even in one element a missing rank shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from netbench.modes import Expected

#: Elements handled at once, so that a large tensor needs no second one of its size beside it.
_BLOCK = 1 << 17

#: The values repeat after this many elements: a prime, so that no shift by a round number goes unseen.
_PERIOD = 32749

#: No pattern and no sum of patterns has this value, and every dtype can hold it.
POISON = 127


@dataclass(frozen=True)
class Payload:
    """The inputs of one round of ``world_size`` ranks."""

    world_size: int
    round: int

    @property
    def values(self) -> range:
        """What a rank may send: at least two values, whose sum over all ranks is at most 120 (up to 120 ranks)."""
        most = max(1, 120 // self.world_size)
        return range(1 if most > 1 else 0, most + 1)

    def fill(self, tensor: torch.Tensor, rank: int) -> None:
        """Writes the input of ``rank`` into a one-dimensional tensor."""
        for start, block in self._blocks(0, len(tensor), [rank], tensor.dtype):
            tensor[start : start + len(block)] = block.to(tensor.device)

    def count_wrong(self, expected: Expected) -> int:
        """Elements of the view that differ from the sum of the named ranks' inputs."""
        view = expected.view
        wrong = 0
        for start, block in self._blocks(expected.start, len(view), expected.ranks, view.dtype):
            wrong += int((view[start : start + len(block)] != block.to(view.device)).sum())
        return wrong

    def _blocks(
        self, first: int, count: int, ranks: Sequence[int], dtype: torch.dtype
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """(offset from ``first``, right values) over ``count`` elements from index ``first``."""
        tile = _tile(self, tuple(ranks), dtype)
        for start in range(0, count, _BLOCK):
            phase = (first + start) % _PERIOD
            yield start, tile[phase : phase + min(_BLOCK, count - start)]


@lru_cache(maxsize=128)
def _tile(payload: Payload, ranks: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The sum of the ranks' inputs over one block, with a period more, so that a block may begin anywhere in it."""
    index = torch.arange(_PERIOD)
    total = torch.zeros_like(index)
    for rank in ranks:
        scattered = _scatter(index * 0x10001 + _scatter(torch.tensor(rank + 4096 * payload.round)))
        total += payload.values[0] + scattered % len(payload.values)
    return total.repeat(_BLOCK // _PERIOD + 2).to(dtype)


def _scatter(numbers: torch.Tensor) -> torch.Tensor:
    """Neighbouring numbers to numbers below 2**31 far apart: products with odd constants, folded by shifts."""
    for factor in (0x2C1B3C6D, 0x297A2D39):
        numbers = ((numbers ^ (numbers >> 15)) * factor) & 0x7FFFFFFF
    return numbers ^ (numbers >> 15)
