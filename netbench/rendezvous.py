"""How torchrun's agents meet: ``--rdzv-backend netbench --rdzv-endpoint ADDRESS:PORT --rdzv-conf node_rank=K``.

torchrun's own rendezvous listen on every interface of a host, give ranks to nodes as they come, and wait for minutes.
This one listens on the endpoint's address alone, keeps rank 0 on node 0, and says who is missing. torchrun finds it
by the entry point ``torchrun.handlers``; workers connect to the same store, as with any other rendezvous.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from netbench.processes import TORCHRUN_PID

#: Agents that the launch is started on at the same time are all here within this time, seconds.
_JOIN_LIMIT_S = 120


class Rendezvous(RendezvousHandler):
    """Node 0 listens at ``address`` and ``port`` (0: any free one, which only a single node can use)."""

    def __init__(self, address: str, port: int, node_rank: int, nodes: int, run_id: str, limit_s: int) -> None:
        self._address = address
        self._port = port
        self._node_rank = node_rank
        self._nodes = nodes
        self._run_id = run_id
        self._limit = timedelta(seconds=limit_s)
        #: The server lives as long as this does.
        self._store: Any = None

    def get_backend(self) -> str:
        return "netbench"

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Raises RendezvousConnectionError without its address, RendezvousTimeoutError naming who is missing."""
        if self._store is None:
            self._store = self._listen() if self._node_rank == 0 else self._connect()
        store = PrefixStore(self._run_id, self._store)
        # This is torchrun's process, and the ranks that it is about to start have its environment.
        os.environ[TORCHRUN_PID] = str(os.getpid())
        self._await_all(store)
        return RendezvousInfo(store, self._node_rank, self._nodes, RendezvousStoreInfo(self._address, self._port))

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None: ...

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True

    def _listen(self) -> Any:
        try:
            family = socket.getaddrinfo(self._address, self._port, type=socket.SOCK_STREAM)[0][0]
            listener = socket.create_server((self._address, self._port), family=family, backlog=1024)
        except OSError as error:
            raise RendezvousConnectionError(
                f"{socket.gethostname()}: cannot listen at {self._address} port {self._port}: {error.strerror}"
            ) from None
        self._port = listener.getsockname()[1]
        # The store owns the descriptor from here on. Its other server does not take a socket that is there already.
        return TCPStore(
            self._address,
            self._port,
            is_master=True,
            timeout=self._limit,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
            use_libuv=False,
        )

    def _connect(self) -> Any:
        try:
            return TCPStore(self._address, self._port, timeout=self._limit, wait_for_workers=False, use_libuv=False)
        except RuntimeError as error:
            raise RendezvousConnectionError(
                f"{socket.gethostname()}: node 0 cannot be reached at {self._address} port {self._port}: {error}"
            ) from None

    def _await_all(self, store: Any) -> None:
        store.set(f"node{self._node_rank}", socket.gethostname())
        deadline = time.monotonic() + self._limit.total_seconds()
        missing = list(range(self._nodes))
        while missing := [node for node in missing if not store.check([f"node{node}"])]:
            if time.monotonic() > deadline:
                raise RendezvousTimeoutError(
                    f"{socket.gethostname()}: node {', '.join(map(str, missing))} of {self._nodes} did not come to "
                    f"{self._address} port {self._port} within {self._limit.total_seconds():.0f} s"
                )
            time.sleep(0.05)


def handler() -> Callable[[RendezvousParameters], Rendezvous]:
    """What torchrun's entry point is asked for: a function that makes the handler from torchrun's options."""
    return _create


def _create(parameters: RendezvousParameters) -> Rendezvous:
    host, _, port = parameters.endpoint.rpartition(":")
    return Rendezvous(
        host.strip("[]"),
        int(port),
        int(parameters.config.get("node_rank", 0)),
        parameters.max_nodes,
        parameters.run_id,
        int(parameters.config.get("join_timeout", _JOIN_LIMIT_S)),
    )
