"""The streams of a parallel group: how many, over what, at what cost, and how each is opened."""

from __future__ import annotations

import os
import socket
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store, TCPStore

from netbench.errors import UsageError
from netbench.limits import STREAMS_TO_CHOOSE_FROM
from netbench.scheduling import batch_threads, cores, threads_on
from netbench.tuning import TuningTable, read_table

_Gloo: Any = ProcessGroupGloo


@dataclass(frozen=True)
class ParallelOptions:
    """How a ParallelProcessGroup is set up; every rank must have the same.

    ``streams``: exactly that many for every message, or None to choose for each message among ``max_streams``.
    ``schedule``: where an operation has a schedule of this name, always that one; ``gloo`` is Gloo's own.
    ``tuning``: what ``netbench tune`` found; it decides everything, unless ``streams`` is given.
    ``interface``: the network interface to bind to; None takes Gloo's default, GLOO_SOCKET_IFNAME included.
    ``address``: the IP address to bind to, where an interface has several; it goes before ``interface``.
    ``batch_io``: threads that read and write the connections wait for a core rather than take one from a thread that
    runs. Where ranks share cores and compute nothing meanwhile, small messages gain most; a program that computes on
    all of its cores waits longer for its messages.
    ``pin_io``: the threads of each stream run on one core, the i-th stream's on the i-th of those that the process may
    use. For two ranks of a host, whose large messages it speeds up; more ranks would all take the same cores.
    ``timeout``: the limit of one whole operation, and of connecting.
    """

    streams: int | None = None
    max_streams: int = STREAMS_TO_CHOOSE_FROM
    schedule: str | None = None
    tuning: TuningTable | None = None
    interface: str | None = None
    address: str | None = None
    batch_io: bool = False
    pin_io: bool = False
    timeout: timedelta = timedelta(minutes=30)

    def __post_init__(self) -> None:
        for name, count in (("streams", self.streams), ("max_streams", self.max_streams)):
            if count is not None and not 1 <= count <= 512:
                raise UsageError(f"{name}: {count} is not a stream count; use whole numbers from 1 to 512")
        if self.timeout <= timedelta(0):
            raise UsageError(f"timeout: {self.timeout} is not a time to wait; use more than nought")

    @property
    def opened(self) -> int:
        """How many streams are opened."""
        if self.streams is not None:
            return self.streams
        return self.tuning.streams if self.tuning is not None else self.max_streams

    def core(self, stream: int) -> int | None:
        """On which the threads of that stream run; None where that is the kernel's to say."""
        allowed = cores() if self.pin_io else []
        return allowed[stream % len(allowed)] if allowed else None

    @classmethod
    def from_environment(cls, timeout: timedelta | None = None) -> ParallelOptions:
        """What NETBENCH_STREAMS, _MAX_STREAMS, _SCHEDULE, _TUNING (a path), _INTERFACE, _BATCH_IO and _PIN_IO say.

        Raises UsageError naming the variable and its value.
        """
        options = cls() if timeout is None else cls(timeout=timeout)
        streams = os.environ.get("NETBENCH_STREAMS", "auto")
        if streams != "auto":
            options = replace(options, streams=_count("NETBENCH_STREAMS", streams))
        if most := os.environ.get("NETBENCH_MAX_STREAMS"):
            options = replace(options, max_streams=_count("NETBENCH_MAX_STREAMS", most))
        if path := os.environ.get("NETBENCH_TUNING"):
            options = replace(options, tuning=read_table(Path(path)))
        return replace(
            options,
            schedule=os.environ.get("NETBENCH_SCHEDULE") or None,
            interface=os.environ.get("NETBENCH_INTERFACE") or None,
            batch_io=_switch("NETBENCH_BATCH_IO"),
            pin_io=_switch("NETBENCH_PIN_IO"),
        )


def connect(address: str, timeout: timedelta) -> Store:
    """The store at ``host:port/prefix``."""
    place, _, prefix = address.partition("/")
    host, colon, port = place.rpartition(":")
    if not colon or not port.isdecimal():
        raise UsageError(f"{address!r} is not the address of a store; write host:port/prefix")
    store = TCPStore(host.strip("[]"), int(port), is_master=False, wait_for_workers=False, timeout=timeout)
    return PrefixStore(prefix, store)


#: What a connection within a host may hold that the receiver has not taken yet. The kernel's own limit, 4 MiB, is more
#: than a core's cache, so that every byte would come back from memory; between hosts a path has to be kept full.
LOCAL_SEND_BUFFER = 256 * 1024


def open_streams(store: Store, rank: int, world_size: int, options: ParallelOptions) -> list[Any]:
    """Gloo groups between the same ranks, as many as the options ask for."""
    before = connections_within_host()
    streams = [
        _open_stream(PrefixStore(f"stream{index}", store), rank, world_size, options, options.core(index))
        for index in range(options.opened)
    ]
    # Gloo has no option for this, but its sockets are ours as well.
    for descriptor in connections_within_host() - before:
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LOCAL_SEND_BUFFER)
    return streams


def connections_within_host() -> set[int]:
    """The descriptors of this process's TCP connections whose other end has the same address."""
    with suppress(psutil.Error, OSError):
        connections = psutil.Process().net_connections("tcp")
        return {one.fd for one in connections if one.raddr and one.raddr.ip == one.laddr.ip}
    return set()


def _open_stream(store: Store, rank: int, world_size: int, options: ParallelOptions, core: int | None) -> Any:
    gloo = _Gloo._Options()
    interface = options.interface
    if interface is None and (names := os.environ.get("GLOO_SOCKET_IFNAME")):
        interface = names.split(",")[0]
    with threads_on(core), batch_threads() if options.batch_io else nullcontext():
        if options.address is not None:
            device = _Gloo.create_device(hostname=options.address)
        elif interface is not None:
            device = _Gloo.create_device(interface=interface)
        else:
            device = _Gloo.create_default_device()
    gloo._devices = [device]
    gloo._threads = 1
    gloo._timeout = options.timeout
    with threads_on(core):
        return _Gloo(store, rank, world_size, gloo)


def _count(variable: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{variable}: {text!r} is not a stream count; use a whole number") from None


def _switch(variable: str) -> bool:
    text = os.environ.get(variable) or "0"
    if text not in ("0", "1"):
        raise UsageError(f"{variable}: {text!r} is neither 0 nor 1")
    return text == "1"
