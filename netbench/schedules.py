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

    ``posted`` is every Work so far: after a failure, the rest has to be waited for before a tensor may go. ``peers``
    are, for each distance round the ring, the rank to receive from and the rank to send to.
    """

    __slots__ = ("peers", "posted", "rank", "source", "streams", "tag", "world_size")

    def __init__(
        self, streams: Sequence[Any], rank: int, world_size: int, tag: int, peers: Sequence[tuple[int, int]]
    ) -> None:
        self.streams = streams
        self.rank = rank
        self.world_size = world_size
        self.tag = tag
        self.peers = peers
        self.posted: list[Any] = []
        self.source = -1  # who has sent, where any rank may

    def send(self, tensor: Tensor, peer: int, stream: int = 0) -> Any:
        """The whole tensor on one stream."""
        work = self.streams[stream % len(self.streams)].send([tensor], peer, self.tag)
        self.posted.append(work)
        return work

    def recv(self, tensor: Tensor, peer: int, stream: int = 0) -> Any:
        """The whole tensor on one stream."""
        work = self.streams[stream % len(self.streams)].recv([tensor], peer, self.tag)
        self.posted.append(work)
        return work

    def send_parts(self, tensor: Tensor, peer: int) -> None:
        """A part of the tensor on each stream."""
        for stream, part in enumerate(parts(tensor, len(self.streams))):
            self.send(part, peer, stream)

    def recv_parts(self, tensor: Tensor, peer: int) -> None:
        """A part of the tensor on each stream."""
        for stream, part in enumerate(parts(tensor, len(self.streams))):
            self.recv(part, peer, stream)


def ring_peers(rank: int, world_size: int) -> tuple[tuple[int, int], ...]:
    """What a Wire needs as ``peers``."""
    return tuple(((rank - step) % world_size, (rank + step) % world_size) for step in range(1, world_size))


def parts(tensor: Tensor, count: int) -> Sequence[Tensor]:
    """``tensor`` in at most ``count`` contiguous views; one, the tensor itself, when it has no elements."""
    if count == 1 or tensor.numel() <= 1:
        return (tensor,)
    return [tensor[piece] for piece in split(tensor.numel(), count, 1)]


def messages(wire: Wire, receives: Sequence[tuple[Tensor, int]], sends: Sequence[tuple[Tensor, int]]) -> Schedule:
    """Every message at once, each cut over all streams: (tensor, peer) pairs, receives first."""
    for tensor, peer in receives:
        wire.recv_parts(tensor, peer)
    for tensor, peer in sends:
        wire.send_parts(tensor, peer)
    yield from wire.posted


def from_any(wire: Wire, tensor: Tensor) -> Schedule:
    """One message from whichever rank sends first: its first part tells whom to ask for the others."""
    first, *others = parts(tensor, len(wire.streams))
    work = wire.streams[0].recv_anysource([first], wire.tag)
    wire.posted.append(work)
    yield work
    wire.source = work._source_rank()
    yield from [wire.recv(part, wire.source, stream) for stream, part in enumerate(others, start=1)]


def direct(wire: Wire, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> Schedule:
    """``inputs[j]`` goes to rank j and ``outputs[i]`` comes from rank i, all at once: all_gather and all_to_all."""
    for source, _ in wire.peers:
        wire.recv_parts(outputs[source], source)
    for _, target in wire.peers:
        wire.send_parts(inputs[target], target)
    outputs[wire.rank].copy_(inputs[wire.rank])  # while the messages are under way
    yield from wire.posted


def ring_all_gather(wire: Wire, outputs: Sequence[Tensor], mine: Tensor, chunks: int) -> Schedule:
    """Each rank's block goes round the ring, every piece passed on as soon as it has come."""
    rank, n = wire.rank, wire.world_size
    if n == 1:
        outputs[rank].copy_(mine)
        return
    left, right = (rank - 1) % n, (rank + 1) % n
    blocks = [parts(outputs[(rank - step) % n], chunks) for step in range(1, n)]
    arriving = [[wire.recv(part, left, index) for index, part in enumerate(block)] for block in blocks]
    sends = [wire.send(part, right, index) for index, part in enumerate(parts(mine, chunks))]
    outputs[rank].copy_(mine)
    for block, works in zip(blocks[:-1], arriving[:-1], strict=True):
        for index, (part, work) in enumerate(zip(block, works, strict=True)):
            yield work
            sends.append(wire.send(part, right, index))
    yield from arriving[-1]
    yield from sends


def exchange_allreduce(wire: Wire, tensor: Tensor, fold: Fold) -> Schedule:
    """Every rank sends its whole tensor to every other: one step, for messages too small to be worth two."""
    arrived: list[Tensor] = [tensor] * wire.world_size
    for source, _ in wire.peers:
        arrived[source] = torch.empty_like(tensor)
        wire.recv_parts(arrived[source], source)
    for _, target in wire.peers:
        wire.send_parts(tensor, target)
    yield from wire.posted
    _fold_in_order(tensor, arrived, wire.rank, fold)


def blocks_allreduce(wire: Wire, tensor: Tensor, fold: Fold, chunks: int) -> Schedule:
    """Each rank sums one block of the tensor and sends the sum back, piece by piece.

    A piece is reduced while the next ones are on their way; it is received into scratch memory of its own size.
    """
    rank, n, peers = wire.rank, wire.world_size, wire.peers
    pieces = [parts(block, chunks) for block in blocks(tensor, n)]
    mine = pieces[rank]
    arrivals = []
    for index, piece in enumerate(mine):
        scratch = [(torch.empty_like(piece), source) for source, _ in peers]
        arrivals.append([(part, wire.recv(part, source, index)) for part, source in scratch])
    leaving = [[wire.send(piece, target, index) for index, piece in enumerate(pieces[target])] for _, target in peers]
    final: list[Any] = []
    for index in range(max(len(block) for block in pieces)):
        if index < len(mine):
            for contribution, work in arrivals[index]:
                yield work
                fold(mine[index], contribution)
        for (_, target), works in zip(peers, leaving, strict=True):
            if index < len(works):
                yield works[index]  # the sum comes back into the piece that leaves here
                final.append(wire.recv(pieces[target][index], target, index))
        if index < len(mine):
            for _, target in peers:
                final.append(wire.send(mine[index], target, index))
    yield from final


def direct_reduce_scatter(wire: Wire, output: Tensor, inputs: Sequence[Tensor], fold: Fold) -> Schedule:
    """Each rank receives its block from every other and sums: half the bytes of Gloo's own, which is an allreduce."""
    arrived: list[Tensor] = [output] * wire.world_size
    for source, _ in wire.peers:
        arrived[source] = torch.empty_like(output)
        wire.recv_parts(arrived[source], source)
    for _, target in wire.peers:
        wire.send_parts(inputs[target], target)
    if output.data_ptr() != inputs[wire.rank].data_ptr():
        output.copy_(inputs[wire.rank])
    yield from wire.posted
    _fold_in_order(output, arrived, wire.rank, fold)


def blocks(tensor: Tensor, count: int) -> list[Tensor]:
    """Exactly ``count`` views, the first ones longer by one element where it does not divide; the last may be empty."""
    size, longer = divmod(tensor.numel(), count)
    return list(torch.split(tensor, [size + (index < longer) for index in range(count)]))


def _fold_in_order(mine: Tensor, contributions: Sequence[Tensor], rank: int, fold: Fold) -> None:
    """Reduces into ``mine``, the contribution of ``rank``, in the order of the ranks: all get the same bits."""
    if rank < 2:  # a + b is b + a, so this is the order anyway
        for source, contribution in enumerate(contributions):
            if source != rank:
                fold(mine, contribution)
    else:
        total = contributions[0]
        for contribution in contributions[1:]:
            fold(total, contribution)
        mine.copy_(total)
