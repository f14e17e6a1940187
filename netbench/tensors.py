"""A caller's tensors as an operation needs them: one-dimensional, contiguous, checked, and how they are reduced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import ReduceOp

from netbench.schedules import Fold, blocks

_Op: Any = ReduceOp

#: What is left to do with the results when the last message has come; None where nothing is.
Finish = Callable[[], object] | None

#: What accumulates one contribution into another, for each reduction that this group has itself.
FOLDS: dict[Any, Fold] = {
    _Op.SUM: torch.Tensor.add_,
    _Op.AVG: torch.Tensor.add_,
    _Op.PRODUCT: torch.Tensor.mul_,
    _Op.MAX: lambda total, part: torch.maximum(total, part, out=total),
    _Op.MIN: lambda total, part: torch.minimum(total, part, out=total),
    _Op.BAND: torch.Tensor.bitwise_and_,
    _Op.BOR: torch.Tensor.bitwise_or_,
    _Op.BXOR: torch.Tensor.bitwise_xor_,
}


def the_one(tensors: Sequence[Tensor] | Tensor) -> Tensor:
    if isinstance(tensors, Tensor):
        tensor = tensors
    elif len(tensors) == 1:
        tensor = tensors[0]
    else:
        raise ValueError(f"one tensor per call, not {len(tensors)}")
    if tensor.device.type != "cpu":
        raise ValueError(f"a tensor on {tensor.device} cannot be sent by Gloo's TCP transport; move it to the cpu")
    return tensor


def check_dtypes(operation: str, output: Tensor, mine: Tensor) -> None:
    if output.dtype != mine.dtype:
        raise ValueError(f"{operation}: an output of {output.dtype} for an input of {mine.dtype}")


def check_alike(operation: str, output: Tensor, mine: Tensor) -> None:
    if output.numel() != mine.numel() or output.dtype != mine.dtype:
        check_dtypes(operation, output, mine)
        raise ValueError(f"{operation}: an output of {output.numel()} elements for an input of {mine.numel()}")


def readable(tensor: Tensor) -> Tensor:
    """The elements in order, as one dimension: a view where they lie so, a copy otherwise."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    return tensor if tensor.dim() == 1 and tensor.is_contiguous() else tensor.contiguous().view(-1)


def writable(tensor: Tensor) -> tuple[Tensor, Finish]:
    """As ``readable``, with what puts the result back where a copy was made."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_contiguous():
        return (tensor if tensor.dim() == 1 else tensor.view(-1)), None
    copy = tensor.contiguous()
    return copy.view(-1), lambda: tensor.copy_(copy)


def all_writable(tensors: Sequence[Tensor]) -> tuple[Sequence[Tensor], Finish]:
    flats, restores = [], []
    for tensor in tensors:
        flat, restore = writable(tensor)
        flats.append(flat)
        if restore is not None:
            restores.append(restore)
    return flats, (lambda: [restore() for restore in restores]) if restores else None


def rows(flat: Tensor, tensor: Tensor, splits: Sequence[int], world_size: int, side: str) -> list[Tensor]:
    if not splits:
        if tensor.dim() and tensor.size(0) % world_size:
            raise ValueError(f"all_to_all: {tensor.size(0)} {side} rows do not divide among {world_size} ranks")
        return blocks(flat, world_size)
    rows = tensor.size(0)
    if len(splits) != world_size or sum(splits) != rows:
        raise ValueError(f"all_to_all: {side} splits {list(splits)} do not share {rows} rows among {world_size} ranks")
    width = flat.numel() // rows if rows else 0
    return list(torch.split(flat, [count * width for count in splits]))


def then(first: Finish, second: Finish) -> Finish:
    if first is None or second is None:
        return first or second

    def both() -> None:
        first()
        second()

    return both


def average(op: Any, flat: Tensor, world_size: int) -> Finish:
    return (lambda: divide(flat, world_size)) if op == _Op.AVG else None


def divide(flat: Tensor, world_size: int) -> None:
    if not flat.is_floating_point():
        raise ValueError(f"an average of {flat.dtype} is not whole; use SUM")
    flat.div_(world_size)
