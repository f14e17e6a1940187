"""Before anything is timed: who is there, on which host, and whether every pair of hosts reaches each other.

It goes through torchrun's store alone, so it finds what would leave Gloo waiting for minutes, however the ranks were
started.
"""

from __future__ import annotations

import errno
import json
import os
import selectors
import socket
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from netbench.clocks import boot_id
from netbench.errors import LaunchError
from netbench.job import Job, Place
from netbench.units import about_seconds

#: A host that has not answered by then is not going to, seconds. A lost packet is sent again after 1 s and after 3 s.
_REACH_LIMIT_S = 5.0

#: Ranks that are started at the same time are all here within this time, seconds, and a little more for each. It is
#: less than the sweep waits for a sign of life, so that it learns who is missing.
ARRIVAL_LIMIT_S, ARRIVAL_LIMIT_PER_RANK_S = 100.0, 5.0


class Rank(NamedTuple):
    """One rank before its first group. ``machine`` is the kernel, ``stack`` the network stack of it: two ranks of one
    stack talk inside of it, whatever their addresses. ``port`` listens there while the others try it."""

    rank: int
    host: str
    machine: str
    stack: str
    interface: str
    address: str
    port: int

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host} ({self.interface} {self.address})"


def meet(store: Any, rank: int, world_size: int, place: Place, job: Job) -> None:
    """Every rank calls it at once, and all end alike.

    Raises LaunchError when a rank does not come, when there are not enough ranks, when hosts are not what was asked
    for, when some are bound to loopback, or when a pair does not reach each other; it names the hosts and the way out.
    """
    with socket.create_server((place.address, 0), family=_family(place.address), backlog=world_size) as listener:
        port = listener.getsockname()[1]
        mine = Rank(rank, place.host, boot_id(), _stack(), place.interface, place.address, port)
        ranks = [Rank(*answer) for answer in _tell_all(store, "who", rank, world_size, mine, job)]
        if complaint := judge(ranks, job.world_size, job.ranks_per_node):
            raise LaunchError(complaint)
        failed = _unreachable(ranks[rank], ranks)
        complaints = [text for answer in _tell_all(store, "reach", rank, world_size, failed, job) for text in answer]
    if complaints:
        more = f" (and {len(complaints) - 3} pairs more)" if len(complaints) > 3 else ""
        raise LaunchError(
            f"{'; '.join(complaints[:3])}{more}; look at cables and firewalls, or choose other addresses by --subnet "
            "or --interface"
        )


def judge(ranks: Iterable[Rank], needed: int, per_node: int) -> str | None:
    """What is wrong with who is there; None where nothing is."""
    ranks = list(ranks)
    if len(ranks) < needed:
        here = ", ".join(dict.fromkeys(rank.host for rank in ranks))
        return f"{needed} ranks were asked for, {len(ranks)} were started (on {here})"
    stacks = Counter((rank.machine, rank.stack) for rank in ranks)
    if len(stacks) == 1:
        return None if per_node >= len(ranks) else _crowded(ranks, per_node)
    for rank in ranks:
        if rank.address.startswith("127.") or rank.address == "::1":
            return (
                f"{rank} is bound to loopback, which other hosts cannot reach; give --subnet, or an --interface that "
                f"{rank.host} has"
            )
    if max(stacks.values()) > per_node:
        return _crowded(ranks, per_node)
    return None


def _crowded(ranks: list[Rank], per_node: int) -> str:
    counts = Counter((rank.machine, rank.stack) for rank in ranks)
    crowd = [rank for rank in ranks if counts[rank.machine, rank.stack] > per_node]
    asked = "one rank was asked for on each host" if per_node == 1 else f"{per_node} ranks were asked for on each host"
    return (
        f"{asked}, but {' and '.join(map(str, crowd[: per_node + 1]))} are on one: what they send each other never "
        "leaves it. Start each node on a host of its own, or ask for more on one by --nproc-per-node"
    )


def _tell_all(store: Any, key: str, rank: int, world_size: int, fact: Any, job: Job) -> list[Any]:
    """What every rank says under ``key``. Raises LaunchError naming those that say nothing."""
    keys = [f"preflight/{key}/{peer}" for peer in range(world_size)]
    store.set(keys[rank], json.dumps(fact))
    limit_s = ARRIVAL_LIMIT_S + ARRIVAL_LIMIT_PER_RANK_S * world_size
    try:
        store.wait(keys, timedelta(seconds=limit_s))
    except RuntimeError as error:
        missing = [_name(peer, job) for peer in range(world_size) if not store.check([keys[peer]])]
        if not missing:
            raise LaunchError(f"the ranks' meeting place is gone: {error}") from None
        raise LaunchError(f"{', '.join(missing)} did not come within {about_seconds(limit_s)}") from None
    return [json.loads(store.get(answer)) for answer in keys]


def _name(rank: int, job: Job) -> str:
    if rank < len(job.lab_hosts):
        return f"rank {rank} on {job.lab_hosts[rank].name}"
    return f"rank {rank} on node {rank % job.nodes}" if job.nodes > 1 else f"rank {rank}"


def _unreachable(mine: Rank, ranks: Iterable[Rank]) -> list[str]:
    """A sentence for each rank of another network stack that does not answer at its address."""
    waiting = {}
    failed = []
    with ExitStack() as opened, selectors.DefaultSelector() as selector:
        for other in ranks:
            if (other.machine, other.stack) == (mine.machine, mine.stack):
                continue
            connection = opened.enter_context(socket.socket(_family(other.address)))
            connection.setblocking(False)
            try:
                # From the address that the groups will use: another interface of ours may have a way that it has not.
                connection.bind((mine.address, 0))
                code = connection.connect_ex((other.address, other.port))
            except OSError as error:
                code = error.errno or errno.EIO
            if code == errno.EINPROGRESS:
                waiting[connection] = other
                selector.register(connection, selectors.EVENT_WRITE)
            elif code:
                failed.append(_sentence(mine, other, os.strerror(code)))
        deadline = time.monotonic() + _REACH_LIMIT_S
        while waiting and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                connection = key.fileobj  # type: ignore[assignment]
                other = waiting.pop(connection)
                selector.unregister(connection)
                if code := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    failed.append(_sentence(mine, other, os.strerror(code)))
        failed += [_sentence(mine, other, f"no answer within {_REACH_LIMIT_S:.0f} s") for other in waiting.values()]
    return failed


def _sentence(mine: Rank, other: Rank, reason: str) -> str:
    return f"{mine} does not reach {other}: {reason}"


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _stack() -> str:
    """Equal for all processes that share a network namespace."""
    return str(Path("/proc/thread-self/ns/net").readlink())
