"""Send and recv over plain TCP sockets, with nothing of Gloo: what the path itself gives.

A group looks like a process group as far as the two-rank modes use one. There is no thread: whoever waits for one
message moves the bytes of all that are under way in this process.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch

_HELLO = struct.Struct("=II")


class Message:
    """One send or recv under way; a Work, as far as it is waited for."""

    def __init__(self, engine: Engine, connection: socket.socket, tensor: torch.Tensor, sending: bool) -> None:
        self._engine = engine
        self.connection = connection
        self.sending = sending
        self._left = tensor.view(torch.uint8).numpy().data

    @property
    def done(self) -> bool:
        return not self._left

    def move(self) -> None:
        """Moves what the socket takes or has, without waiting. Raises RuntimeError when the peer has gone."""
        try:
            while self._left:
                if self.sending:
                    count = self.connection.send(self._left)
                else:
                    count = self.connection.recv_into(self._left)
                    if count == 0:
                        raise RuntimeError("Connection closed by peer")
                self._left = self._left[count:]
        except BlockingIOError:
            pass
        except OSError as error:
            raise RuntimeError(f"Connection closed by peer: {error.strerror}") from None

    def wait(self, limit: timedelta) -> None:
        self._engine.run_until(self, time.monotonic() + limit.total_seconds())


@dataclass
class Engine:
    """All messages of this process: a queue for each connection and direction, of which the first is under way."""

    queues: dict[tuple[int, bool], deque[Message]] = field(default_factory=dict)

    def start(self, message: Message) -> Message:
        queue = self.queues.setdefault((message.connection.fileno(), message.sending), deque())
        queue.append(message)
        if len(queue) == 1:
            message.move()
            self._settle(queue)
        return message

    def run_until(self, message: Message, deadline: float) -> None:
        """Raises RuntimeError when ``message`` has not been moved by ``deadline`` on the monotonic clock."""
        while not message.done:
            left = deadline - time.monotonic()
            if left <= 0:
                raise RuntimeError("Timed out waiting for a peer over plain TCP")
            watched: dict[int, int] = {}
            for (descriptor, sending), queue in self.queues.items():
                if queue:
                    watched[descriptor] = watched.get(descriptor, 0) | (select.POLLOUT if sending else select.POLLIN)
            poll = select.poll()
            for descriptor, events in watched.items():
                poll.register(descriptor, events)
            for descriptor, events in poll.poll(left * 1000):
                # An error shows when the socket is next used, whichever way that is.
                for sending, wanted in ((True, select.POLLOUT), (False, select.POLLIN)):
                    queue = self.queues.get((descriptor, sending), deque())
                    if queue and events & (wanted | select.POLLERR | select.POLLHUP):
                        queue[0].move()
                        self._settle(queue)

    def _settle(self, queue: deque[Message]) -> None:
        while queue and queue[0].done:
            queue.popleft()
            if queue:
                queue[0].move()


class TcpGroup:
    """One connection to each peer. Messages between two ranks arrive in the order in which they were sent."""

    def __init__(self, rank: int, world_size: int, engine: Engine) -> None:
        self._rank = rank
        self._world_size = world_size
        self._engine = engine
        self.peers: dict[int, socket.socket] = {}

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._world_size

    def send(self, tensors: Sequence[torch.Tensor], peer: int, tag: int) -> Message:
        return self._engine.start(Message(self._engine, self.peers[peer], tensors[0], sending=True))

    def recv(self, tensors: Sequence[torch.Tensor], peer: int, tag: int) -> Message:
        return self._engine.start(Message(self._engine, self.peers[peer], tensors[0], sending=False))


def connect(store: Any, rank: int, world_size: int, address: str, streams: int, timeout_s: float) -> list[TcpGroup]:
    """``streams`` groups over all ranks, each with connections of its own, bound to this rank's ``address``.

    Raises RuntimeError after ``timeout_s``.
    """
    engine = Engine()
    groups = [TcpGroup(rank, world_size, engine) for _ in range(streams)]
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family, backlog=streams * world_size) as server:
        server.settimeout(timeout_s)
        store.set(f"tcp{rank}", f"{address} {server.getsockname()[1]}")
        try:
            for peer in range(rank):
                where, port = store.get(f"tcp{peer}").decode().split()
                for index, group in enumerate(groups):
                    connection = socket.create_connection((where, int(port)), timeout_s, (address, 0))
                    connection.sendall(_HELLO.pack(rank, index))
                    group.peers[peer] = _ready(connection)
            for _ in range(streams * (world_size - 1 - rank)):
                connection = server.accept()[0]
                connection.settimeout(timeout_s)
                peer, index = _HELLO.unpack(connection.recv(_HELLO.size, socket.MSG_WAITALL))
                groups[index].peers[peer] = _ready(connection)
        except OSError as error:
            raise RuntimeError(f"rank {rank} could not connect over plain TCP: {error}") from None
    return groups


def _ready(connection: socket.socket) -> socket.socket:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setblocking(False)
    return connection
