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
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import torch
from torch import Tensor

from netbench.model import split
from netbench.scheduling import threads_on

Schedule = Generator[Any, None, None]

#: ``fold(total, part)`` adds, or whatever the operation is, ``part`` into ``total`` in place.
Fold = Callable[[Tensor, Tensor], object]


class Scratch:
    """Memory that an operation borrows; kept, because the kernel clears every fresh page, and that takes long.

    An operation that starts while another has it gets memory of its own. At most ``KEPT_BYTES`` are kept.
    """

    KEPT_BYTES = 64 * 2**20

    def __init__(self) -> None:
        self._spare: list[Tensor] = []

    def take(self, count: int, like: Tensor) -> list[Tensor]:
        """``count`` tensors like this one, and last the memory to give back."""
        step = -(-like.nbytes // 64) * 64  # rows begin where vector instructions like it
        try:
            memory = self._spare.pop()
        except IndexError:
            memory = torch.empty(0, dtype=torch.uint8)
        if memory.numel() < count * step:
            memory = torch.empty(count * step, dtype=torch.uint8)
        rows = [memory[row * step : row * step + like.nbytes].view(like.dtype) for row in range(count)]
        return [*rows, memory]

    def give(self, memory: Tensor) -> None:
        if memory.numel() <= self.KEPT_BYTES and not self._spare:
            self._spare.append(memory)


class Senders:
    """Threads that issue the sends of several streams at once; started when they are first needed.

    ``core`` says on which core the i-th send of a message is issued, None that it is the kernel's to say.
    """

    def __init__(self, count: int, core: Callable[[int], int | None] = lambda stream: None) -> None:
        self._count = count
        self._core = core
        self._threads: ThreadPoolExecutor | None = None

    def run(self, sends: Sequence[Callable[[], object]]) -> None:
        """Returns when all have been issued; raises the first error after that."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._count, "netbench-sender")
        issued = [self._threads.submit(self._send, index, send) for index, send in enumerate(sends)]
        wait(issued)
        for one in issued:
            one.result()

    def _send(self, index: int, send: Callable[[], object]) -> None:
        with threads_on(self._core(index)):
            send()

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None


class Wire:
    """One operation's messages over the streams of a group, under a tag of its own.

    ``posted`` is every Work so far: after a failure, the rest has to be waited for before a tensor may go. ``peers``
    are, for each distance round the ring, the rank to receive from and the rank to send to.

    ``simplex`` gives each stream one direction: even ones carry what goes to higher ranks, odd ones what goes to
    lower ranks. While a thread writes to one of Gloo's connections it holds a lock without which Gloo's I/O thread
    cannot read from that connection either; the I/O thread then polls the socket in a busy loop.
    """

    __slots__ = (
        "_down", "_up", "peers", "posted", "rank", "scratch", "senders", "source", "streams", "tag", "world_size",
    )  # fmt: skip

    #: A part of at least so many bytes is sent from a thread of its stream: Gloo writes in the thread that sends, as
    #: long as the socket takes it, and one thread would fill one socket after the other.
    APART_BYTES = 4 * 2**20

    def __init__(
        self,
        streams: Sequence[Any],
        rank: int,
        world_size: int,
        tag: int,
        peers: Sequence[tuple[int, int]],
        scratch: Scratch,
        senders: Senders,
        simplex: bool = False,
    ) -> None:
        self.streams = streams
        self._up, self._down = (streams[0::2], streams[1::2]) if simplex and len(streams) > 1 else (streams, streams)
        self.rank = rank
        self.world_size = world_size
        self.tag = tag
        self.peers = peers
        self.scratch = scratch
        self.senders = senders
        self.posted: list[Any] = []
        self.source = -1  # who has sent, where any rank may

    def outgoing(self, peer: int) -> Sequence[Any]:
        """The streams on which data goes to ``peer``."""
        return self._up if peer > self.rank else self._down

    def incoming(self, peer: int) -> Sequence[Any]:
        """The streams on which data comes from ``peer``."""
        return self._down if peer > self.rank else self._up

    def send(self, tensor: Tensor, peer: int, stream: int = 0) -> Any:
        """The whole tensor on one stream."""
        streams = self.outgoing(peer)
        work = streams[stream % len(streams)].send([tensor], peer, self.tag)
        self.posted.append(work)
        return work

    def recv(self, tensor: Tensor, peer: int, stream: int = 0) -> Any:
        """The whole tensor on one stream."""
        streams = self.incoming(peer)
        work = streams[stream % len(streams)].recv([tensor], peer, self.tag)
        self.posted.append(work)
        return work

    def send_parts(self, tensor: Tensor, peer: int) -> None:
        """A part of the tensor on each stream."""
        pieces = parts(tensor, len(self.outgoing(peer)))
        if len(pieces) > 1 and pieces[0].nbytes >= self.APART_BYTES:
            self.senders.run([partial(self.send, piece, peer, stream) for stream, piece in enumerate(pieces)])
        else:
            for stream, piece in enumerate(pieces):
                self.send(piece, peer, stream)

    def recv_parts(self, tensor: Tensor, peer: int) -> None:
        """A part of the tensor on each stream."""
        for stream, part in enumerate(parts(tensor, len(self.incoming(peer)))):
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


def direct_reduce_scatter(wire: Wire, output: Tensor, inputs: Sequence[Tensor], fold: Fold) -> Schedule:
    """Each rank receives its block from every other and sums: half the bytes of Gloo's own, which is an allreduce."""
    *rows, memory = wire.scratch.take(len(wire.peers), output)
    arrived: list[Tensor] = [output] * wire.world_size
    for row, (source, _) in zip(rows, wire.peers, strict=True):
        arrived[source] = row
        wire.recv_parts(row, source)
    for _, target in wire.peers:
        wire.send_parts(inputs[target], target)
    if output.data_ptr() != inputs[wire.rank].data_ptr():
        output.copy_(inputs[wire.rank])
    yield from wire.posted
    _fold_in_order(output, arrived, wire.rank, fold)
    wire.scratch.give(memory)


def allreduce_by_blocks(wire: Wire, tensor: Tensor, fold: Fold, chunks: int) -> Schedule:
    """Each rank reduces one block of the tensor and sends it to the others, in pieces: one is reduced while the next
    ones are on their way.

    All receives are posted first. That is safe for the results too, which come into the places that the contributions
    leave from: a piece of the result is sent only after the last contribution to it has come.
    """
    pieces = [parts(block, chunks) for block in blocks(tensor, wire.world_size)]
    mine = pieces[wire.rank]
    *rows, memory = wire.scratch.take(len(wire.peers), blocks(tensor, wire.world_size)[wire.rank])
    arrived = [[(part, wire.recv(part, source, index)) for index, part in enumerate(parts(row, chunks))]
               for row, (source, _) in zip(rows, wire.peers, strict=True)]  # fmt: skip
    results = [wire.recv(part, source, index) for source, _ in wire.peers for index, part in enumerate(pieces[source])]
    sends = [wire.send(part, target, index) for _, target in wire.peers for index, part in enumerate(pieces[target])]
    for index, part in enumerate(mine):
        for contribution, work in (row[index] for row in arrived):
            yield work
            fold(part, contribution)
        sends += [wire.send(part, target, index) for _, target in wire.peers]
    yield from results
    yield from sends
    wire.scratch.give(memory)


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
