"""How the ranks pass the parts of one operation: schedules that post their receives first.

Gloo moves data only after the receiver has announced its buffer, on the same connection as the data. A rank that
sends first queues its announcement behind its own bulk, and the peer has to wait; every schedule here therefore posts
all receives it can before it sends anything, straight into the tensors in which the data is wanted.

A schedule is a generator over a ``Wire``. What it does before its first ``yield`` happens when the operation is
issued; it yields a Work wherever it needs that Work to have ended, and every Work exactly once, because a message's
Work can be waited for only once. All tensors are contiguous and one-dimensional.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch
from torch import Tensor

from netbench.model import split

Schedule = Generator[Any, None, None]

#: ``fold(total, part)`` adds, or whatever the operation is, ``part`` into ``total`` in place.
Fold = Callable[[Tensor, Tensor], object]


class Wire:
    """One operation's messages over the streams of a group, under a tag of its own.

    ``posted`` is every Work so far: after a failure, the rest has to be waited for before a tensor may go.
    """

    __slots__ = ("posted", "rank", "streams", "tag", "world_size")

    def __init__(self, streams: Sequence[Any], rank: int, world_size: int, tag: int) -> None:
        self.streams = streams
        self.rank = rank
        self.world_size = world_size
        self.tag = tag
        self.posted: list[Any] = []

    def send(self, stream: int, tensor: Tensor, peer: int) -> Any:
        work = self.streams[stream % len(self.streams)].send([tensor], peer, self.tag)
        self.posted.append(work)
        return work

    def recv(self, stream: int, tensor: Tensor, peer: int) -> Any:
        work = self.streams[stream % len(self.streams)].recv([tensor], peer, self.tag)
        self.posted.append(work)
        return work

    def peers(self) -> list[tuple[int, int]]:
        """For each distance round the ring, the rank to receive from and the rank to send to."""
        rank, n = self.rank, self.world_size
        return [((rank - distance) % n, (rank + distance) % n) for distance in range(1, n)]


def parts(tensor: Tensor, count: int) -> list[Tensor]:
    """``tensor`` in at most ``count`` contiguous views; one, the tensor itself, when it has no elements."""
    if count == 1 or tensor.numel() <= 1:
        return [tensor]
    return [tensor[piece] for piece in split(tensor.numel(), count, 1)]


def messages(wire: Wire, receives: Sequence[tuple[Tensor, int]], sends: Sequence[tuple[Tensor, int]]) -> Schedule:
    """Every message at once, each cut over all streams: (tensor, peer) pairs, receives first."""
    count = len(wire.streams)
    for tensor, peer in receives:
        for stream, part in enumerate(parts(tensor, count)):
            wire.recv(stream, part, peer)
    for tensor, peer in sends:
        for stream, part in enumerate(parts(tensor, count)):
            wire.send(stream, part, peer)
    yield from wire.posted


def direct(wire: Wire, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> Schedule:
    """``inputs[j]`` goes to rank j and ``outputs[i]`` comes from rank i, all at once: all_gather and all_to_all."""
    peers = wire.peers()
    posted = messages(
        wire,
        [(outputs[source], source) for source, _ in peers],
        [(inputs[target], target) for _, target in peers],
    )
    first = next(posted, None)
    outputs[wire.rank].copy_(inputs[wire.rank])  # while the messages are under way
    if first is not None:
        yield first
        yield from posted


def ring_all_gather(wire: Wire, outputs: Sequence[Tensor], mine: Tensor, chunks: int) -> Schedule:
    """Each rank's block goes round the ring, every piece passed on as soon as it has come."""
    rank, n = wire.rank, wire.world_size
    if n == 1:
        outputs[rank].copy_(mine)
        return
    left, right = (rank - 1) % n, (rank + 1) % n
    blocks = [parts(outputs[(rank - step) % n], chunks) for step in range(1, n)]
    arriving = [[wire.recv(index, part, left) for index, part in enumerate(block)] for block in blocks]
    sends = [wire.send(index, part, right) for index, part in enumerate(parts(mine, chunks))]
    outputs[rank].copy_(mine)
    for block, works in zip(blocks[:-1], arriving[:-1], strict=True):
        for index, (part, work) in enumerate(zip(block, works, strict=True)):
            yield work
            sends.append(wire.send(index, part, right))
    yield from arriving[-1]
    yield from sends


def exchange_allreduce(wire: Wire, tensor: Tensor, fold: Fold) -> Schedule:
    """Every rank sends its whole tensor to every other: one step, for messages too small to be worth two."""
    peers = wire.peers()
    arrived = {source: torch.empty_like(tensor) for source, _ in peers}
    yield from messages(
        wire,
        [(arrived[source], source) for source, _ in peers],
        [(tensor, target) for _, target in peers],
    )
    _fold_in_order(tensor, [arrived[source] for source in sorted(arrived)], wire.rank, fold)


def blocks_allreduce(wire: Wire, tensor: Tensor, fold: Fold, chunks: int) -> Schedule:
    """Each rank sums one block of the tensor and sends the sum back, piece by piece.

    A piece is reduced while the next ones are on their way; it is received into scratch memory of its own size.
    """
    rank, n = wire.rank, wire.world_size
    peers = wire.peers()
    pieces = [parts(block, chunks) for block in blocks(tensor, n)]
    mine = pieces[rank]
    arrivals = []
    for index, piece in enumerate(mine):
        scratch = {source: torch.empty_like(piece) for source, _ in peers}
        arrivals.append([(scratch[source], wire.recv(index, scratch[source], source)) for source, _ in peers])
    leaving = [[wire.send(index, piece, target) for index, piece in enumerate(pieces[target])] for _, target in peers]
    # The sum comes back into the piece that was sent, so its receive waits for that send to have left.
    final: list[Any] = []
    for index in range(max(len(block) for block in pieces)):
        if index < len(mine):
            for contribution, work in arrivals[index]:
                yield work
                fold(mine[index], contribution)
        for (_, target), works in zip(peers, leaving, strict=True):
            if index < len(works):
                yield works[index]
                final.append(wire.recv(index, pieces[target][index], target))
        if index < len(mine):
            for _, target in peers:
                final.append(wire.send(index, mine[index], target))
    yield from final


def direct_reduce_scatter(wire: Wire, output: Tensor, inputs: Sequence[Tensor], fold: Fold) -> Schedule:
    """Each rank receives its block from every other and sums: half the bytes of Gloo's own, which is an allreduce."""
    peers = wire.peers()
    arrived = {source: torch.empty_like(output) for source, _ in peers}
    yield from messages(
        wire,
        [(arrived[source], source) for source, _ in peers],
        [(inputs[target], target) for _, target in peers],
    )
    if output.data_ptr() != inputs[wire.rank].data_ptr():
        output.copy_(inputs[wire.rank])
    _fold_in_order(output, [arrived[source] for source in sorted(arrived)], wire.rank, fold)


def blocks(tensor: Tensor, count: int) -> list[Tensor]:
    """Exactly ``count`` views, the first ones longer by one element where it does not divide; the last may be empty."""
    size, longer = divmod(tensor.numel(), count)
    return list(torch.split(tensor, [size + (index < longer) for index in range(count)]))


def _fold_in_order(mine: Tensor, others: Sequence[Tensor], rank: int, fold: Fold) -> None:
    """Folds ``others``, sorted by rank, into ``mine``, in the order of the ranks so that all get the same bits."""
    if rank > 1:  # for ranks 0 and 1 this is the order anyway, since a + b is b + a
        total = others[0]
        for contribution in (*others[1:rank], mine, *others[rank:]):
            fold(total, contribution)
        mine.copy_(total)
    else:
        for contribution in others:
            fold(mine, contribution)
