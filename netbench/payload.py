"""The data that is sent, so that what arrives can be checked element by element.

Values are small whole numbers, chosen so that their sum over all ranks is exact in every dtype (at most 120 for
int8, and below 2**8 for bfloat16). They depend on the index, the rank and the round, so a part that is missing,
shifted, stale or from the wrong rank shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from netbench.modes import Expected

#: Elements handled at once: large tensors are filled and checked without a second tensor of their size.
_BLOCK = 1 << 20

#: No pattern and no sum of patterns has this value, and every dtype can hold it.
POISON = 127


@dataclass(frozen=True)
class Payload:
    """The inputs of one round of ``world_size`` ranks."""

    world_size: int
    round: int

    @property
    def _modulus(self) -> int:
        return max(2, min(7, 120 // self.world_size + 1))

    def _values(self, start: int, stop: int, rank: int) -> torch.Tensor:
        index = torch.arange(start, stop, dtype=torch.int64)
        # The quotient breaks the short period of the remainder, so a shift by any number of elements shows.
        return (index + index // 1021 + 3 * rank + 5 * self.round) % self._modulus

    def fill(self, tensor: torch.Tensor, rank: int) -> None:
        """Writes the input of ``rank`` into a one-dimensional tensor."""
        for start, stop in _blocks(len(tensor)):
            tensor[start:stop] = self._values(start, stop, rank).to(tensor.dtype)

    def count_wrong(self, expected: Expected) -> int:
        """Elements of the view that differ from the sum of the named ranks' inputs."""
        wrong = 0
        for start, stop in _blocks(len(expected.view)):
            first, last = expected.start + start, expected.start + stop
            total = torch.zeros(stop - start, dtype=torch.int64)
            for rank in expected.ranks:
                total += self._values(first, last, rank)
            wrong += int((expected.view[start:stop].cpu() != total.to(expected.view.dtype)).sum())
        return wrong


def _blocks(elements: int) -> Iterator[tuple[int, int]]:
    for start in range(0, elements, _BLOCK):
        yield start, min(start + _BLOCK, elements)
