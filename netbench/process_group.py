"""K Gloo groups used as one: every operation on as many connections as pay, receives posted first.

One TCP connection, and the one thread that serves it, do not fill a fast network, nor one that caps each flow; and
Gloo's own all_gather and all_to_all post their sends first, which costs up to half the time between two ranks.
``ParallelProcessGroup`` is a ``torch.distributed.ProcessGroup`` that cures both; docs/parallel.md has the figures.

    group = ParallelProcessGroup()                       # or streams=20 for exactly twenty
    group.configure("localhost:12345/job", rank, world_size)
    group.allreduce([tensor]).wait()
    group.shutdown()
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    BroadcastOptions,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
    Store,
)

from netbench.limits import check_limits
from netbench.schedules import (
    Schedule,
    Scratch,
    Senders,
    Wire,
    allreduce_by_blocks,
    blocks,
    direct,
    direct_reduce_scatter,
    from_any,
    messages,
    parts,
    ring_all_gather,
    ring_peers,
)
from netbench.scheduling import cores
from netbench.streams import ParallelOptions, connect, open_streams
from netbench.tensors import (
    FOLDS,
    Finish,
    all_writable,
    average,
    check_alike,
    check_dtypes,
    divide,
    readable,
    rows,
    the_one,
    then,
    writable,
)
from netbench.tuning import SCHEDULES, BuiltIn, Choice, Fixed, Policy
from netbench.works import Background, FromAny, Operation

__all__ = ["ParallelOptions", "ParallelProcessGroup"]

#: Tags from here on are the group's own; those below are the caller's.
RESERVED_TAGS = 2**30

#: Operations that may be under way at once before their tags repeat.
_TAGS_IN_FLIGHT = 2**16

_PLAIN = Choice("gloo")


#: torch's stubs have overloads for each list or tensor; the methods here take either.
_TorchGroup: Any = dist.ProcessGroup
_Op: Any = ReduceOp
_AllreduceOptions: Any = AllreduceOptions

_SUM, _AVG = _Op.SUM, _Op.AVG
_NOUGHT = timedelta(0)


class ParallelProcessGroup(_TorchGroup):  # type: ignore[misc]
    """A process group over K Gloo groups; every call returns a Work, and every rank makes the same calls.

    Results are in the caller's tensors when ``wait()`` has returned or the Work's future is done. Non-contiguous
    tensors are copied. Tags of messages go from 0 to 2**30 - 1. Errors are RuntimeErrors of Gloo; after one, or
    after a timeout, the group is dead: ``configure`` opens it anew.
    """

    def __init__(self, streams: int | None = None, options: ParallelOptions | None = None) -> None:
        super().__init__(0, 1)
        options = options if options is not None else ParallelOptions()
        self.options = options if streams is None else replace(options, streams=streams)
        #: How the last operation was sent.
        self.last_choice = _PLAIN
        self._rank = 0
        self._world_size = 1
        self._peers: Sequence[tuple[int, int]] = ()
        self._streams: list[Any] = []
        self._policy: Policy = Fixed(1)
        self._choices: dict[tuple[str, int], Choice] = {}
        self._sequence = 0
        self._plain_below = dict.fromkeys(SCHEDULES, 0)
        self._background = Background("netbench-group")
        self._scratch = Scratch()
        self._senders = Senders(0)
        self._store: Any = None

    # Opening and closing

    def configure(self, store: str | Store, rank: int, world_size: int) -> None:
        """Connects to the other ranks, closing what was open; all ranks call it at once.

        ``store`` is a c10d store, or ``host:port/prefix`` of a TCPStore that somebody else hosts. A store serves one
        configuration: another one needs another prefix. Raises LaunchError when the limits of this process do not
        allow so many streams, RuntimeError when the others do not come in time.
        """
        self.shutdown()
        count, timeout = self.options.opened, self.options.timeout
        check_limits(count, world_size)
        self._store = connect(store, timeout) if isinstance(store, str) else store
        self._rank, self._world_size = rank, world_size
        self._peers = ring_peers(rank, world_size)
        self._streams = open_streams(self._store, rank, world_size, self.options)
        self._senders = Senders(count, self.options.core)
        self.use(self.own_policy())

    def shutdown(self) -> None:
        """Ends every stream: threads, sockets and descriptors are free when it returns. Once or often.

        Operations that are under way must have been waited for.
        """
        self._background.close(timeout_s=5.0)
        self._senders.close()
        self._streams = []
        self._scratch = Scratch()
        self._store = None
        self.use(Fixed(1))

    def abort(self) -> None:
        """Fails everything under way here, and within moments on the other ranks; the group is dead after it."""
        if self._world_size > 1:
            for stream in self._streams:
                # Gloo has no call for this, but a receive that times out closes all connections of its group.
                lost = torch.empty(1, dtype=torch.uint8)
                try:
                    work = stream.recv([lost], (self._rank + 1) % self._world_size, 2 * RESERVED_TAGS - 1)
                    work.wait(timedelta(milliseconds=1))
                except RuntimeError:
                    continue

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._world_size

    # C++ callers ask by these names.
    getRank = rank  # noqa: N815
    getSize = size  # noqa: N815

    def getBackendName(self) -> str:  # noqa: N802
        return "parallel_gloo"

    def name(self) -> str:
        return "parallel_gloo"

    def set_timeout(self, timeout: timedelta) -> None:
        self.options = replace(self.options, timeout=timeout)
        for stream in self._streams:
            stream.set_timeout(timeout)

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    def lend_to_cpp(self) -> None:
        """Gives torch's C++ the first stream for what it cannot ask a Python group for.

        torch keeps it until the group is destroyed, so a group that has lent it cannot be configured anew.
        """
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, self._first())
        self._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)

    # Choosing

    def choose(self, operation: str, tensor_bytes: int) -> Choice:
        """How a message of this operation is sent when each rank passes in ``tensor_bytes``; the same on every rank."""
        choice = self._choices.get((operation, tensor_bytes))
        if choice is None:
            choice = self._chosen(operation, tensor_bytes)
            if len(self._choices) > 10_000:
                self._choices.clear()
            self._choices[operation, tensor_bytes] = choice
        return choice

    def _chosen(self, operation: str, tensor_bytes: int) -> Choice:
        choice = self._policy.choose(operation, tensor_bytes, self._world_size)
        return choice._replace(streams=min(choice.streams, max(1, len(self._streams))))

    def own_policy(self) -> Policy:
        """What the options ask for; trying out whether streams pay here is a step for all ranks at once."""
        options = self.options
        if options.streams is not None:
            return Fixed(options.streams, options.schedule)
        if options.tuning is not None:
            return options.tuning
        if self._world_size == 1 or len(self._streams) == 1:
            return BuiltIn(len(self._streams), False)
        return self._try_network()

    def use(self, policy: Policy) -> None:
        """Follows ``policy`` from the next operation on; every rank changes at the same point of its program."""
        self._policy = policy
        self._choices = {}
        self._plain_below = {operation: self._plain_bytes(operation) for operation in SCHEDULES}

    def _plain_bytes(self, operation: str) -> int:
        """Messages of fewer bytes than this go straight to Gloo: even choosing would be seen in their latency."""

        def differs(size: int) -> bool:
            return not self._streams or self._chosen(operation, size) != _PLAIN

        end = 1
        while end < 2**40 and not differs(end):
            end *= 2
        return end // 2 + bisect_left(range(end // 2, end), True, key=differs)

    # Collectives

    def allreduce(self, tensors: Sequence[Tensor] | Tensor, opts: Any = None) -> Any:
        """Every rank ends with the reduction over all, in place. ``opts``: AllreduceOptions or a ReduceOp."""
        tensor = tensors[0] if _is_one(tensors) else the_one(tensors)
        if tensor.is_sparse:
            return self._first().allreduce([tensor], opts or AllreduceOptions())
        whole = opts is None or (type(opts) is _AllreduceOptions and opts.reduceOp.op != _AVG)
        if whole and tensor.nbytes < self._plain_below["allreduce"] and tensor.is_contiguous():
            try:
                work = self._streams[0].allreduce([tensor], *_given(opts))
            except RuntimeError:
                pass  # as all_gather
            else:
                self.last_choice = _PLAIN
                return work
        the_one(tensors)  # is on the CPU, or refused
        op, timeout, sync = self._asked(opts)
        choice = self._note("allreduce", tensor.nbytes)
        if choice.schedule == "simplex":
            if (fold := FOLDS.get(op)) is not None:
                flat, restore = writable(tensor)
                wire = self._wire(choice)
                steps = allreduce_by_blocks(wire, flat, fold, choice.chunks)
                finish = then(average(op, flat, self._world_size), restore)
                return self._operation(steps, wire, [tensor], timeout, finish, background=not sync)
            self.last_choice = choice = _PLAIN

        def issue(stream: Any, part: Tensor, o: Any) -> Any:
            return stream.allreduce([part], o)

        return self._split_in_place(choice, tensor, op, timeout, issue, AllreduceOptions)

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> Any:
        """Several tensors, each reduced as by ``allreduce``."""
        return self._together([self.allreduce([tensor], _plain(opts)) for tensor in tensors], list(tensors))

    def reduce(self, tensors: Sequence[Tensor] | Tensor, opts: Any = None) -> Any:
        """The root ends with the reduction over all. ``opts``: ReduceOptions, or nothing for a sum at rank 0."""
        tensor = the_one(tensors)
        op, timeout, _ = self._asked(opts)
        root = _root(opts)

        def issue(stream: Any, part: Tensor, o: Any) -> Any:
            o.rootRank = root
            return stream.reduce([part], o)

        return self._split_in_place(
            self._note("reduce", tensor.nbytes), tensor, op, timeout, issue, ReduceOptions, root=root
        )

    def broadcast(self, tensors: Sequence[Tensor] | Tensor, opts: Any = None) -> Any:
        """Every rank ends with the root's tensor. ``opts``: BroadcastOptions or the root's rank."""
        tensor = the_one(tensors)
        whole = opts is None or type(opts) is BroadcastOptions
        if whole and tensor.nbytes < self._plain_below["broadcast"] and tensor.is_contiguous():
            self.last_choice = _PLAIN
            return self._streams[0].broadcast([tensor], *_given(opts))
        root = _root(opts)
        _, timeout, _ = self._asked(opts)

        def issue(stream: Any, part: Tensor, o: Any) -> Any:
            o.rootRank = root
            return stream.broadcast([part], o)

        return self._split_in_place(
            self._note("broadcast", tensor.nbytes), tensor, _SUM, timeout, issue, BroadcastOptions
        )

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        """``output_tensors[0][i]`` becomes rank i's input on every rank; lists as torch has them, or bare."""
        outputs = output_tensors[0] if type(output_tensors[0]) in (list, tuple) else output_tensors
        if len(outputs) != self._world_size:
            raise ValueError(f"all_gather: {len(outputs)} output tensors for {self._world_size} ranks")
        if _is_one(input_tensors) and input_tensors[0].nbytes < self._plain_below["all_gather"]:
            # Gloo's own checks cost less than ours; what it does not take has not been sent, and goes the other way.
            try:
                work = self._streams[0].allgather([outputs], input_tensors, *_given(opts))
            except RuntimeError:
                pass
            else:
                self.last_choice = _PLAIN
                return work
        mine = the_one(input_tensors)
        for output in outputs:
            check_alike("all_gather", output, mine)
        return self._all_gather(outputs, mine, opts, outputs)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        """``output`` becomes the ranks' inputs one after another."""
        if output.numel() != input.numel() * self._world_size or output.dtype != input.dtype:
            raise ValueError(
                f"all_gather: an output of {output.numel()} {output.dtype} does not hold {self._world_size} times "
                f"{input.numel()} {input.dtype}"
            )
        if input.nbytes < self._plain_below["all_gather"] and input.is_contiguous() and output.is_contiguous():
            self.last_choice = _PLAIN
            return self._streams[0]._allgather_base(output, input, *_given(opts))
        flat, restore = writable(output)
        return self._all_gather(blocks(flat, self._world_size), input, opts, [output], restore)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None) -> Any:
        """Several pairs, each gathered as by ``all_gather_single``."""
        pairs = zip(outputs, inputs, strict=True)
        return self._together([self.all_gather_single(out, mine, opts) for out, mine in pairs], list(outputs))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(self, output_lists: Any, inputs: Sequence[Tensor], opts: Any = None) -> Any:
        """``output_lists[i][j]`` becomes rank i's ``inputs[j]``."""
        works = [
            self.allgather([[outputs[index] for outputs in output_lists]], [mine], opts)
            for index, mine in enumerate(inputs)
        ]
        return self._together(works, [tensor for outputs in output_lists for tensor in outputs])

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        """The output becomes the reduction over all ranks of their ``input_tensors[0][own rank]``."""
        output = the_one(output_tensors)
        inputs = input_tensors[0] if isinstance(input_tensors[0], list | tuple) else input_tensors
        if len(inputs) != self._world_size:
            raise ValueError(f"reduce_scatter: {len(inputs)} input tensors for {self._world_size} ranks")
        check_alike("reduce_scatter", output, inputs[self._rank])
        for tensor in inputs:
            if tensor.dtype != output.dtype:
                raise ValueError(f"reduce_scatter: an input of {tensor.dtype} for an output of {output.dtype}")
        return self._reduce_scatter(output, [readable(tensor) for tensor in inputs], opts)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        """As ``reduce_scatter``, from one tensor of which each rank's block follows the last."""
        if input.numel() != output.numel() * self._world_size or output.dtype != input.dtype:
            raise ValueError(
                f"reduce_scatter: an input of {input.numel()} {input.dtype} is not {self._world_size} times "
                f"{output.numel()} {output.dtype}"
            )
        return self._reduce_scatter(output, blocks(readable(input), self._world_size), opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Any:
        """Several pairs, each reduced as by ``reduce_scatter_single``."""
        pairs = zip(outputs, inputs, strict=True)
        return self._together([self.reduce_scatter_single(out, mine, opts) for out, mine in pairs], list(outputs))

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: Sequence[int] = (),
        input_splits: Sequence[int] = (),
        opts: Any = None,
    ) -> Any:
        """Block j of ``input`` goes to rank j; block i of ``output`` comes from rank i.

        Blocks are equal, or as many rows of the first dimension as the splits say.
        """
        check_dtypes("all_to_all", output, input)
        even = len(output_splits) + len(input_splits) == 0
        small = input.nbytes < self._plain_below["all_to_all"] and input.dim() > 0
        divides = small and even and input.size(0) % self._world_size == 0
        if divides and output.shape == input.shape and output.is_contiguous() and input.is_contiguous():
            self.last_choice = _PLAIN
            return self._streams[0].alltoall_base(output, input, [], [], *_given(opts))
        flat, restore = writable(output)
        outputs = rows(flat, output, output_splits, self._world_size, "output")
        inputs = rows(readable(input), input, input_splits, self._world_size, "input")
        # A rank does not know how many bytes the others pass in, so without even blocks nothing may depend on that.
        choice = self.choose("all_to_all", input.nbytes) if even else Choice("direct")
        whole = choice.schedule == "gloo" and choice.streams == 1 and restore is None and input.is_contiguous()
        if choice.schedule == "gloo" and not whole:
            # Gloo's own takes one tensor, which cannot be cut into streams without moving its blocks about.
            choice = choice._replace(schedule="direct")
        self.last_choice = choice
        _, timeout, _ = self._asked(opts)
        if whole:
            return self._first().alltoall_base(output, input, [], [], *_given(opts))
        wire = self._wire(choice)
        return self._operation(direct(wire, outputs, inputs), wire, [output], timeout, restore)

    alltoall_base = all_to_all_single

    def alltoall(self, output_tensors: Sequence[Tensor], input_tensors: Sequence[Tensor], opts: Any = None) -> Any:
        """``input_tensors[j]`` goes to rank j; ``output_tensors[i]`` comes from rank i; sizes may differ."""
        for side, tensors in (("output", output_tensors), ("input", input_tensors)):
            if len(tensors) != self._world_size:
                raise ValueError(f"all_to_all: {len(tensors)} {side} tensors for {self._world_size} ranks")
        outputs, restore = all_writable(output_tensors)
        _, timeout, _ = self._asked(opts)
        self.last_choice = choice = Choice("direct")
        wire = self._wire(choice)
        steps = direct(wire, outputs, [readable(tensor) for tensor in input_tensors])
        return self._operation(steps, wire, list(output_tensors), timeout, restore)

    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        """The root's ``output_tensors[0][i]`` becomes rank i's input. ``opts``: GatherOptions; root 0 without."""
        mine = the_one(input_tensors)
        root = _root(opts)
        _, timeout, _ = self._asked(opts)
        choice = self._note("gather", mine.nbytes)
        wire = self._wire(choice)
        source = readable(mine)
        if self._rank != root:
            return self._operation(messages(wire, [], [(source, root)]), wire, [], timeout)
        outputs = output_tensors[0]
        if len(outputs) != self._world_size:
            raise ValueError(f"gather: {len(outputs)} output tensors for {self._world_size} ranks")
        for output in outputs:
            check_alike("gather", output, mine)
        flats, restore = all_writable(outputs)
        steps = messages(wire, [(flats[peer], peer) for peer in range(self._world_size) if peer != root], [])
        flats[root].copy_(source)
        return self._operation(steps, wire, list(outputs), timeout, restore)

    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        """Each rank's output becomes the root's ``input_tensors[0][rank]``; root 0 without ``opts``."""
        output = the_one(output_tensors)
        root = _root(opts)
        _, timeout, _ = self._asked(opts)
        choice = self._note("scatter", output.nbytes)
        flat, restore = writable(output)
        wire = self._wire(choice)
        if self._rank != root:
            return self._operation(messages(wire, [(flat, root)], []), wire, [output], timeout, restore)
        inputs = input_tensors[0]
        if len(inputs) != self._world_size:
            raise ValueError(f"scatter: {len(inputs)} input tensors for {self._world_size} ranks")
        for tensor in inputs:
            check_alike("scatter", output, tensor)
        sends = [(readable(inputs[peer]), peer) for peer in range(self._world_size) if peer != root]
        flat.copy_(readable(inputs[root]))
        return self._operation(messages(wire, [], sends), wire, [output], timeout, restore)

    def barrier(self, opts: Any = None) -> Any:
        """Ends when every rank has come."""
        return self._first().barrier(*_given(opts))

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """As Gloo's: rank 0 names the ranks that did not come in time."""
        limit = self.options.timeout if timeout is None else timeout
        self._first().monitored_barrier(limit, wait_all_ranks)

    # Messages

    def send(self, tensors: Sequence[Tensor] | Tensor, dst: int, tag: int = 0) -> Any:
        """To rank ``dst``, whose receive has the same tag and size; its Work ends when the bytes are handed over."""
        if _is_one(tensors) and tensors[0].nbytes < self._plain_below["send_recv"] and 0 <= tag < RESERVED_TAGS:
            try:
                work = self._streams[0].send(tensors, dst, tag)
            except RuntimeError:
                pass  # as all_gather: what Gloo does not take has not been sent
            else:
                self.last_choice = _PLAIN
                return work
        tensor = the_one(tensors)
        wire = self._message_wire(tensor, tag)
        return self._message(messages(wire, [], [(readable(tensor), dst)]), wire, tensor)

    def recv(self, tensors: Sequence[Tensor] | Tensor, src: int, tag: int = 0) -> Any:
        """From rank ``src``, into a tensor of the size that is sent."""
        if _is_one(tensors) and tensors[0].nbytes < self._plain_below["send_recv"] and 0 <= tag < RESERVED_TAGS:
            try:
                work = self._streams[0].recv(tensors, src, tag)
            except RuntimeError:
                pass
            else:
                self.last_choice = _PLAIN
                return work
        tensor = the_one(tensors)
        wire = self._message_wire(tensor, tag)
        flat, restore = writable(tensor)
        return self._message(messages(wire, [(flat, src)], []), wire, tensor, restore)

    def isend(self, tensor: Tensor, dst: int, tag: int = 0) -> Any:
        """``send``, by the name that torch.distributed gives it."""
        return self.send([tensor], dst, tag)

    def irecv(self, tensor: Tensor, src: int, tag: int = 0) -> Any:
        """``recv``, by the name that torch.distributed gives it."""
        return self.recv([tensor], src, tag)

    def recv_anysource(self, tensors: Sequence[Tensor] | Tensor, tag: int = 0) -> Any:
        """From whichever rank sends first; ``_source_rank()`` of the Work, once waited for, tells which."""
        tensor = the_one(tensors)
        wire = self._message_wire(tensor, tag)
        if len(wire.streams) == 1 and tensor.is_contiguous():
            return wire.streams[0].recv_anysource([tensor], tag)
        flat, restore = writable(tensor)
        return FromAny(
            _finished(from_any(wire, flat), restore),
            wire.posted,
            self.options.timeout,
            [tensor],
            self._background.apart,
            sender=lambda: wire.source,
        )

    # How it is done

    def _first(self) -> Any:
        if not self._streams:
            raise RuntimeError("the group is not open: configure() it first")
        return self._streams[0]

    def _note(self, operation: str, tensor_bytes: int) -> Choice:
        self.last_choice = choice = self.choose(operation, tensor_bytes)
        return choice

    def _wire(self, choice: Choice) -> Wire:
        self._sequence += 1
        return self._tagged(choice, RESERVED_TAGS + self._sequence % _TAGS_IN_FLIGHT)

    def _tagged(self, choice: Choice, tag: int) -> Wire:
        self._first()
        return Wire(
            self._streams[: choice.streams], self._rank, self._world_size, tag, self._peers, self._scratch,
            self._senders, choice.schedule == "simplex",
        )  # fmt: skip

    def _message_wire(self, tensor: Tensor, tag: int) -> Wire:
        if not 0 <= tag < RESERVED_TAGS:
            raise ValueError(f"{tag} is not a tag that a message may have; use 0 to {RESERVED_TAGS - 1}")
        return self._tagged(self._note("send_recv", tensor.nbytes), tag)

    def _message(self, steps: Schedule, wire: Wire, tensor: Tensor, finish: Finish = None) -> Operation:
        return Operation(_finished(steps, finish), wire.posted, self.options.timeout, [tensor], self._background.apart)

    def _operation(
        self,
        steps: Schedule,
        wire: Wire,
        results: Sequence[Tensor],
        timeout: timedelta,
        finish: Finish = None,
        background: bool = False,
    ) -> Operation:
        """``background``: the peers need steps that come later, so they must not depend on when this one waits."""
        operation = Operation(_finished(steps, finish), wire.posted, timeout, results, self._background.submit)
        if background:
            operation.start()
        return operation

    def _together(self, works: list[Any], results: Sequence[Tensor]) -> Operation:
        return Operation(iter(works), works, self.options.timeout, results, self._background.submit)

    def _asked(self, opts: Any) -> tuple[Any, timedelta, bool]:
        """The reduction, the time limit and whether the caller waits at once, out of torch's options."""
        if opts is None or isinstance(opts, int):
            return _SUM, self.options.timeout, False
        if isinstance(opts, _Op.RedOpType):
            return opts, self.options.timeout, False
        if isinstance(opts, _Op):
            return opts.op, self.options.timeout, False
        op = opts.reduceOp.op if hasattr(opts, "reduceOp") else _SUM
        timeout = opts.timeout
        if timeout <= _NOUGHT:  # torch's way of saying that none was given
            timeout = self.options.timeout
        return op, timeout, not getattr(opts, "asyncOp", True)

    def _split_in_place(
        self,
        choice: Choice,
        tensor: Tensor,
        op: Any,
        timeout: timedelta,
        issue: Callable[[Any, Tensor, Any], Any],
        make_options: Callable[[], Any],
        root: int | None = None,
    ) -> Any:
        """Gloo's own operation on one part of the tensor per stream."""
        average = op == _AVG
        options = make_options()
        options.timeout = timeout
        if hasattr(options, "reduceOp"):
            options.reduceOp = _SUM if average else op
        if choice.streams == 1 and tensor.is_contiguous() and not average:
            return issue(self._first(), tensor, options)
        flat, restore = writable(tensor)
        posted: list[Any] = []
        streams = self._streams[: choice.streams]

        def steps() -> Iterator[Any]:
            for stream, part in zip(streams, parts(flat, len(streams)), strict=False):
                posted.append(issue(stream, part, options))
            yield from posted
            if average and root in (None, self._rank):
                divide(flat, self._world_size)
            if restore is not None:
                restore()

        self._first()
        return Operation(steps(), posted, timeout, [tensor], self._background.submit)

    def _all_gather(
        self, outputs: Sequence[Tensor], mine: Tensor, opts: Any, results: Sequence[Tensor], restore: Finish = None
    ) -> Any:
        choice = self._note("all_gather", mine.nbytes)
        _, timeout, sync = self._asked(opts)
        if choice.schedule == "gloo":
            return self._split_all_gather(choice, outputs, mine, timeout, results, restore)
        flats, put_back = all_writable(outputs)
        finish = then(put_back, restore)
        wire = self._wire(choice)
        source = readable(mine)
        if choice.schedule in ("direct", "simplex"):
            return self._operation(direct(wire, flats, [source] * self._world_size), wire, results, timeout, finish)
        steps = ring_all_gather(wire, flats, source, choice.chunks)
        several = self._world_size > 2
        return self._operation(steps, wire, results, timeout, finish, background=several and not sync)

    def _split_all_gather(
        self,
        choice: Choice,
        outputs: Sequence[Tensor],
        mine: Tensor,
        timeout: timedelta,
        results: Sequence[Tensor],
        restore: Finish,
    ) -> Any:
        options = AllgatherOptions()
        options.timeout = timeout
        flats, put_back = all_writable(outputs)
        finish = then(put_back, restore)
        streams = self._streams[: choice.streams]
        inputs = parts(readable(mine), len(streams))
        pieces = [parts(flat, len(streams)) for flat in flats]
        posted: list[Any] = []

        def steps() -> Iterator[Any]:
            for index, (stream, part) in enumerate(zip(streams, inputs, strict=False)):
                posted.append(stream.allgather([[piece[index] for piece in pieces]], [part], options))
            yield from posted
            if finish is not None:
                finish()

        self._first()
        return Operation(steps(), posted, timeout, results, self._background.submit)

    def _reduce_scatter(self, output: Tensor, inputs: list[Tensor], opts: Any) -> Any:
        op, timeout, _ = self._asked(opts)
        choice = self._note("reduce_scatter", sum(tensor.nbytes for tensor in inputs))
        fold = FOLDS.get(op)
        flat, restore = writable(output)
        sizes = {tensor.numel() for tensor in inputs}
        if choice.schedule == "gloo" and len(sizes) == 1:
            return self._split_reduce_scatter(choice, flat, inputs, op, timeout, output, restore)
        if fold is None:
            raise ValueError(f"reduce_scatter: {op} is not a reduction that this group has")
        wire = self._wire(choice if len(sizes) == 1 else Choice("direct"))
        steps = direct_reduce_scatter(wire, flat, inputs, fold)
        return self._operation(steps, wire, [output], timeout, then(average(op, flat, self._world_size), restore))

    def _split_reduce_scatter(
        self,
        choice: Choice,
        flat: Tensor,
        inputs: list[Tensor],
        op: Any,
        timeout: timedelta,
        output: Tensor,
        restore: Finish,
    ) -> Any:
        options = ReduceScatterOptions()
        options.timeout = timeout
        options.reduceOp = _SUM if op == _AVG else op
        finish = then(average(op, flat, self._world_size), restore)
        streams = self._streams[: choice.streams]
        outputs = parts(flat, len(streams))
        pieces = [parts(tensor, len(streams)) for tensor in inputs]
        posted: list[Any] = []

        def steps() -> Iterator[Any]:
            for index, (stream, part) in enumerate(zip(streams, outputs, strict=False)):
                posted.append(stream.reduce_scatter([part], [[piece[index] for piece in pieces]], options))
            yield from posted
            if finish is not None:
                finish()

        self._first()
        return Operation(steps(), posted, timeout, [output], self._background.submit)

    #: Bytes with which the network is tried, a small and a large message, and how long each may take about it.
    _PROBE_BYTES, _LARGE_PROBE_BYTES = 2**20, 2**25
    _PROBE_S = 0.5

    #: Where the small message takes longer, the network is too slow to try the large one while a program waits.
    _FAST_S = 0.004

    def _try_network(self) -> BuiltIn:
        """Whether passing 1 MiB round the ring takes a quarter less time on all streams than on one; and if not,
        whether the network is fast and 32 MiB there and back take a tenth less on four streams.

        The slowest rank counts, and all ranks get the same answer.
        """
        most = len(self._streams)
        small = self._probe(self._PROBE_BYTES, (1, most), self._round_the_ring)
        if small[1] > 1.25 * small[most]:
            return BuiltIn(most, True)
        if small[1] > self._FAST_S:
            return BuiltIn(most, False)
        several = min(4, most, len(cores())) if self.options.pin_io else min(4, most)
        large = self._probe(self._LARGE_PROBE_BYTES, (1, several), self._there_and_back)
        return BuiltIn(most, False, fast=True, large_streams=several if large[1] > 1.1 * large[several] else 1)

    def _probe(
        self, size: int, candidates: Sequence[int], exchange: Callable[[Wire, Tensor, Tensor], Schedule]
    ) -> dict[int, float]:
        """The least seconds that each number of streams took for it, of a few attempts in turn."""
        mine = torch.zeros(size, dtype=torch.uint8)
        theirs = torch.zeros_like(mine)
        best = dict.fromkeys(candidates, float("inf"))
        begin = time.monotonic()
        for attempt in range(5):
            spent = []
            for streams in best:
                self._first().barrier().wait(self.options.timeout)
                start = time.monotonic()
                wire = self._wire(Choice("direct", streams))
                used = size if attempt else size // 8  # the first one wakes the connections
                steps = exchange(wire, mine[:used], theirs[:used])
                self._operation(steps, wire, [], self.options.timeout).wait()
                spent.append(time.monotonic() - start)
            slowest = torch.tensor([*spent, time.monotonic() - begin], dtype=torch.float64)
            options = AllreduceOptions()
            options.reduceOp = _Op.MAX
            self._first().allreduce([slowest], options).wait(self.options.timeout)
            if attempt:
                for streams, duration_s in zip(best, slowest.tolist(), strict=False):
                    best[streams] = min(best[streams], duration_s)
                if slowest[-1] > self._PROBE_S:
                    break
        return best

    def _round_the_ring(self, wire: Wire, mine: Tensor, theirs: Tensor) -> Schedule:
        left, right = (self._rank - 1) % self._world_size, (self._rank + 1) % self._world_size
        return messages(wire, [(theirs, left)], [(mine, right)])

    def _there_and_back(self, wire: Wire, mine: Tensor, theirs: Tensor) -> Schedule:
        """Between ranks 0 and 1, 2 and 3, and so on; one that is left over waits."""
        peer = self._rank ^ 1
        if peer >= self._world_size:
            return
        if self._rank < peer:
            yield from messages(wire, [(theirs, peer)], [(mine, peer)])
        else:
            wire.recv_parts(theirs, peer)
            received = tuple(wire.posted)
            yield from received
            wire.send_parts(mine, peer)
            yield from wire.posted[len(received) :]


def _is_one(tensors: Any) -> bool:
    """Whether it is a list of one, as torch passes it; less work than ``the_one``, which small messages would feel."""
    return type(tensors) is list and len(tensors) == 1


def _given(opts: Any) -> tuple[Any, ...]:
    return () if opts is None else (opts,)


def _finished(steps: Schedule, finish: Finish) -> Iterator[Any]:
    """``steps``, and then what is left to do."""
    if finish is None:
        return steps

    def with_finish() -> Iterator[Any]:
        yield from steps
        finish()

    return with_finish()


def _root(opts: Any) -> int:
    """The root's rank: a number, or out of torch's options; 0 without either."""
    if isinstance(opts, int):
        return opts
    return 0 if opts is None else int(opts.rootRank)


def _plain(opts: Any) -> Any:
    """Options that ``allreduce`` takes, from those of its coalesced form."""
    if opts is None:
        return None
    plain = AllreduceOptions()
    plain.reduceOp = opts.reduceOp
    plain.timeout = opts.timeout
    return plain
