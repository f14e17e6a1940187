"""Over what a mode is run: one class a backend, which opens one lane per stream or says why it cannot.

``refusal`` is asked while planning, so it looks at the machine without torch; ``open`` runs in the worker.
Facts about Gloo that this builds on: each device owns one I/O thread and its own connections, so every stream gets a
device of its own, and one worker thread per stream is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from netbench import limits
from netbench.model import AUTO
from netbench.modes import Lane, Mode
from netbench.registry import Registry
from netbench.scheduling import batch_threads

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Wiring:
    """What a rank needs to join its peers: ``store`` is unique to the groups opened through it, ``address`` is the
    rank's own, which they are bound to."""

    store: Any
    rank: int
    world_size: int
    address: str
    timeout_s: float


@dataclass(frozen=True)
class Lanes:
    """The open streams of one backend, and where its tensors live.

    ``synchronize`` waits for work that ``wait`` only enqueues; None where waiting is enough.
    """

    lanes: Sequence[Lane]
    device: str = "cpu"
    synchronize: Callable[[], None] | None = None
    #: What the backend chose for the last operation, for the record: schedule, streams, and chunks of a block.
    choice: Callable[[], tuple[str, int, int]] | None = None


class Backend:
    """Shared defaults; a backend overrides what differs."""

    name: ClassVar[str]
    #: Whether it can be left to choose the stream count for each message.
    chooses_streams: ClassVar[bool] = False

    def refusal(self, mode: Mode, streams: int, world_size: int) -> str | None:
        """Why this backend cannot run ``mode`` here with these numbers; None where it can."""
        return None

    def descriptors(self, streams: int, world_size: int) -> int:
        """How many open files its lanes take on each rank."""
        return limits.descriptors(streams, world_size)

    def open(self, wiring: Wiring, streams: int) -> Lanes:
        """Connects this rank's lanes; every rank of the group calls it at once. Raises RuntimeError on timeout."""
        raise NotImplementedError


BACKENDS: Registry[Backend] = Registry("backend")


def _backend(cls: type[Backend]) -> type[Backend]:
    BACKENDS.add(cls())
    return cls


def gloo_group(wiring: Wiring, prefix: str, devices: int = 1, threads: int = 1, batch_io: bool = False) -> Any:
    """One ProcessGroupGloo of its own, bound to the wiring's address, with its timeout set."""
    from torch.distributed import PrefixStore, ProcessGroupGloo

    options = ProcessGroupGloo._Options()
    with batch_threads() if batch_io else nullcontext():  # each device starts its I/O thread
        options._devices = [ProcessGroupGloo.create_device(hostname=wiring.address) for _ in range(devices)]
    options._threads = threads
    options._timeout = timedelta(seconds=wiring.timeout_s)
    return ProcessGroupGloo(PrefixStore(prefix, wiring.store), wiring.rank, wiring.world_size, options)


@_backend
class Gloo(Backend):
    """One Gloo group, as torch.distributed makes it: one connection to each peer."""

    name = "gloo"

    def refusal(self, mode: Mode, streams: int, world_size: int) -> str | None:
        if streams != 1:
            return f"{self.name} has one stream, not {streams}; parallel_gloo has more"
        return None

    def open(self, wiring: Wiring, streams: int) -> Lanes:
        return Lanes([Lane(gloo_group(wiring, "gloo", threads=2))])


@_backend
class BatchGloo(Gloo):
    """Plain Gloo, but its I/O threads wait for a core rather than take one from a thread that runs."""

    name = "batch_gloo"

    def open(self, wiring: Wiring, streams: int) -> Lanes:
        return Lanes([Lane(gloo_group(wiring, "gloo", threads=2, batch_io=True))])


@_backend
class ParallelGloo(Backend):
    """netbench's ParallelProcessGroup: K Gloo groups as one, receives posted first; K may be auto."""

    name = "parallel_gloo"
    chooses_streams = True

    def descriptors(self, streams: int, world_size: int) -> int:
        return limits.descriptors(limits.STREAMS_TO_CHOOSE_FROM if streams == AUTO else streams, world_size)

    def open(self, wiring: Wiring, streams: int) -> Lanes:
        from netbench.process_group import ParallelOptions, ParallelProcessGroup

        options = ParallelOptions(
            streams=None if streams == AUTO else streams,
            address=wiring.address,
            timeout=timedelta(seconds=wiring.timeout_s),
        )
        group = ParallelProcessGroup(options=options)
        group.configure(wiring.store, wiring.rank, wiring.world_size)
        return Lanes([Lane(group)], choice=lambda: group.last_choice)


@_backend
class SplitGloo(Backend):
    """K Gloo groups at once, each running Gloo's own operation on 1/K of the tensor: seed 1's plain idea."""

    name = "split_gloo"

    def open(self, wiring: Wiring, streams: int) -> Lanes:
        return Lanes([Lane(gloo_group(wiring, f"split{index}")) for index in range(streams)])


@_backend
class MultiDeviceGloo(Backend):
    """One Gloo group over K devices, given K operations on 1/K of the tensor each: K connections to each peer."""

    name = "multi_device_gloo"

    def open(self, wiring: Wiring, streams: int) -> Lanes:
        group = gloo_group(wiring, "multi", devices=streams, threads=2 * streams)
        # Collectives rotate over the devices; a point-to-point message takes the device of its tag modulo K.
        return Lanes([Lane(group, tag=index) for index in range(streams)])


class _OneWayGroups:
    """Two process groups as one: what goes from a lower to a higher rank takes the first, the rest the second."""

    def __init__(self, upward: Any, downward: Any) -> None:
        self._upward = upward
        self._downward = downward
        self.rank, self.size = upward.rank, upward.size

    def send(self, tensors: Any, peer: int, tag: int) -> Any:
        return (self._upward if self.rank() < peer else self._downward).send(tensors, peer, tag)

    def recv(self, tensors: Any, peer: int, tag: int) -> Any:
        return (self._upward if peer < self.rank() else self._downward).recv(tensors, peer, tag)


@_backend
class OneWayGloo(Backend):
    """Gloo with a connection for each direction, so data never waits behind the answer to it; for two-rank modes."""

    name = "one_way_gloo"

    def refusal(self, mode: Mode, streams: int, world_size: int) -> str | None:
        return None if mode.pairwise else f"one_way_gloo has send and recv only; {mode.name} needs more"

    def descriptors(self, streams: int, world_size: int) -> int:
        return limits.descriptors(2 * streams, world_size)

    def open(self, wiring: Wiring, streams: int) -> Lanes:
        pairs = [[gloo_group(wiring, f"{way}{index}") for way in ("up", "down")] for index in range(streams)]
        return Lanes([Lane(_OneWayGroups(*pair)) for pair in pairs])


@_backend
class Tcp(Backend):
    """Plain TCP sockets, K connections to each peer, no Gloo: what the path itself gives; for two-rank modes."""

    name = "tcp"

    def refusal(self, mode: Mode, streams: int, world_size: int) -> str | None:
        return None if mode.pairwise else f"tcp has send and recv only; {mode.name} needs more"

    def open(self, wiring: Wiring, streams: int) -> Lanes:
        from netbench.tcp import connect

        groups = connect(wiring.store, wiring.rank, wiring.world_size, wiring.address, streams, wiring.timeout_s)
        return Lanes([Lane(group) for group in groups])


@_backend
class Nccl(Backend):
    """NCCL over CUDA devices, one stream; the yardstick where there are GPUs."""

    name = "nccl"

    def refusal(self, mode: Mode, streams: int, world_size: int) -> str | None:
        if streams != 1:
            return f"nccl chooses its own channels; it has one stream here, not {streams}"
        devices = len(list(Path("/dev").glob("nvidia[0-9]*")))
        if devices < world_size:
            return f"nccl needs a CUDA device per rank: {devices} found for {world_size} ranks"
        return None

    def open(self, wiring: Wiring, streams: int) -> Lanes:
        import torch
        from torch.distributed import PrefixStore, ProcessGroupNCCL

        torch.cuda.set_device(wiring.rank)
        options = ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=wiring.timeout_s)
        group = ProcessGroupNCCL(PrefixStore("nccl", wiring.store), wiring.rank, wiring.world_size, options)
        device = f"cuda:{wiring.rank}"
        return Lanes([Lane(group)], device, lambda: torch.cuda.synchronize(device))


def tensor_maker(device: str, dtype: str) -> Callable[[int], torch.Tensor]:
    """A function that makes a tensor of n elements whose memory has been touched."""
    import torch

    return lambda elements: torch.zeros(elements, dtype=getattr(torch, dtype), device=device).fill_(1)
