"""ParallelProcessGroup moves the right values, whatever the schedule, the streams and the shape; and gives all back."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
import threads
import torch
from threads import LOOPBACK, World
from torch._C._distributed_c10d import (
    AllreduceOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
    TCPStore,
)

from netbench import limits
from netbench.errors import LaunchError, UsageError
from netbench.process_group import RESERVED_TAGS, ParallelOptions, ParallelProcessGroup
from netbench.schedules import Senders, Wire
from netbench.streams import LOCAL_SEND_BUFFER, connections_within_host
from netbench.tuning import SCHEDULES, BuiltIn, Choice, Fixed, Policy

SIZES = [0, 1, 2, 3, 7, 1000, 40_001]


class Always:
    """One schedule in pieces wherever an operation has it, and Gloo's own elsewhere."""

    def __init__(self, schedule: str, streams: int, chunks: int) -> None:
        self.choice = Choice(schedule, streams, chunks)

    def choose(self, operation: str, tensor_bytes: int, world_size: int) -> Choice:
        return self.choice if self.choice.schedule in SCHEDULES[operation] else Choice("gloo", self.choice.streams)


POLICIES: dict[str, Policy] = {
    "one": BuiltIn(3, streams_pay=False),
    "auto": BuiltIn(3, streams_pay=True),
    "fixed": Fixed(3),
    "split": Fixed(3, "gloo"),
    "gloo": Fixed(1, "gloo"),
    "ring": Always("ring", 2, 5),
    "direct": Always("direct", 2, 2),
    "simplex": Always("simplex", 3, 2),
}


def options(**changes: Any) -> ParallelOptions:
    return ParallelOptions(**{"interface": LOOPBACK, "timeout": timedelta(seconds=threads.LIMIT_S)} | changes)


def open_groups(world: World, purpose: str, **changes: Any) -> list[ParallelProcessGroup]:
    def body(rank: int) -> ParallelProcessGroup:
        wiring = world.wiring(rank, purpose)
        group = ParallelProcessGroup(options=options(**changes))
        group.configure(wiring.store, rank, world.world_size)
        return group

    return world.run(body)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Callable[[str, int], tuple[World, list[ParallelProcessGroup]]]]:
    """``ranks(policy, n)``: a world of n ranks whose groups, of three streams, follow that policy."""
    worlds = cache(World)
    groups = cache(lambda n: open_groups(worlds(n), "shared", streams=3))

    def following(policy: str, n: int) -> tuple[World, list[ParallelProcessGroup]]:
        for group in groups(n):
            group.use(POLICIES[policy])
        return worlds(n), groups(n)

    yield following
    gc.collect()


every_policy = pytest.mark.parametrize("policy", POLICIES)
every_size = pytest.mark.parametrize("elements", SIZES)
every_world = pytest.mark.parametrize("n", [1, 2, 3, 4])


def mine(rank: int, elements: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small whole numbers that differ by rank and place, exact in every dtype even when four are added."""
    return ((torch.arange(elements) * 7 + rank * 5) % 13).to(dtype)


def total(n: int, elements: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return sum((mine(rank, elements, dtype) for rank in range(n)), torch.zeros(elements, dtype=dtype))


@every_policy
@every_world
@every_size
def test_all_operations(ranks: Any, policy: str, n: int, elements: int) -> None:
    world, groups = ranks(policy, n)
    root = n - 1

    def body(rank: int) -> None:
        group = groups[rank]

        tensor = mine(rank, elements)
        group.allreduce([tensor]).wait()
        assert torch.equal(tensor, total(n, elements))

        outputs = [torch.full((elements,), -1.0) for _ in range(n)]
        group.allgather([outputs], [mine(rank, elements)]).wait()
        for source, output in enumerate(outputs):
            assert torch.equal(output, mine(source, elements))

        single = torch.full((n * elements,), -1.0)
        group.all_gather_single(single, mine(rank, elements)).wait()
        assert torch.equal(single, torch.cat(outputs))

        inputs = [mine(rank + target, elements) for target in range(n)]
        output = torch.full((elements,), -1.0)
        group.reduce_scatter([output], [inputs]).wait()
        expected = sum((mine(source + rank, elements) for source in range(n)), torch.zeros(elements))
        assert torch.equal(output, expected)
        output.fill_(-1)
        group.reduce_scatter_single(output, torch.cat(inputs)).wait()
        assert torch.equal(output, expected)

        swapped = torch.full((n * elements,), -1.0)
        group.alltoall_base(swapped, torch.cat(inputs), [], []).wait()
        assert torch.equal(swapped, torch.cat([mine(source + rank, elements) for source in range(n)]))

        tensor = mine(rank, elements)
        group.broadcast(tensor, root).wait()
        assert torch.equal(tensor, mine(root, elements))

        tensor, asked = mine(rank, elements), ReduceOptions()
        asked.rootRank = root
        group.reduce([tensor], asked).wait()
        if rank == root:
            assert torch.equal(tensor, total(n, elements))

        gathering = GatherOptions()
        gathering.rootRank = root
        gathered = [torch.full((elements,), -1.0) for _ in range(n)]
        group.gather([gathered] if rank == root else [], [mine(rank, elements)], gathering).wait()
        if rank == root:
            for source, output in enumerate(gathered):
                assert torch.equal(output, mine(source, elements))

        scattering = ScatterOptions()
        scattering.rootRank = root
        output = torch.full((elements,), -1.0)
        group.scatter([output], [inputs] if rank == root else [], scattering).wait()
        assert torch.equal(output, mine(root + rank, elements))

        if n > 1:
            received = torch.full((elements,), -1.0)
            works = [
                group.recv([received], (rank - 1) % n, 3),
                group.send([mine(rank, elements)], (rank + 1) % n, 3),
            ]
            for work in works:
                work.wait()
            assert torch.equal(received, mine((rank - 1) % n, elements))

        group.barrier().wait()

    world.run(body)


DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("policy", ["one", "split"])
@pytest.mark.parametrize("n", [2, 3])
def test_every_dtype_and_reduction(ranks: Any, policy: str, n: int, dtype: torch.dtype) -> None:
    world, groups = ranks(policy, n)
    reductions = {
        ReduceOp.SUM: lambda parts: sum(parts[1:], parts[0]),
        ReduceOp.MAX: lambda parts: torch.stack(parts).amax(0),
        ReduceOp.MIN: lambda parts: torch.stack(parts).amin(0),
        ReduceOp.PRODUCT: lambda parts: torch.stack([part.double() for part in parts]).prod(0).to(dtype),
    }

    def body(rank: int) -> None:
        for op, expected in reductions.items():
            parts = [mine(source, 101, dtype) % 5 for source in range(n)]
            tensor = parts[rank].clone()
            groups[rank].allreduce([tensor], op).wait()
            assert tensor.dtype == dtype
            assert torch.equal(tensor, expected(parts)), op
        outputs = [torch.zeros(101, dtype=dtype) for _ in range(n)]
        groups[rank].allgather([outputs], [mine(rank, 101, dtype)]).wait()
        assert torch.equal(outputs[0], mine(0, 101, dtype))

    world.run(body)


@pytest.mark.parametrize("policy", ["one", "split"])
def test_bitwise_reductions(ranks: Any, policy: str) -> None:
    world, groups = ranks(policy, 3)

    def body(rank: int) -> None:
        for op, expected in ((ReduceOp.BAND, 0), (ReduceOp.BOR, 7), (ReduceOp.BXOR, 7)):
            tensor = torch.full((9,), 1 << rank, dtype=torch.int32)
            groups[rank].allreduce([tensor], op).wait()
            assert tensor.tolist() == [expected] * 9

    world.run(body)


@pytest.mark.parametrize("policy", ["one", "split", "direct"])
@pytest.mark.parametrize("n", [2, 3])
def test_an_average_divides_the_sum(ranks: Any, policy: str, n: int) -> None:
    world, groups = ranks(policy, n)

    def body(rank: int) -> None:
        average = AllreduceOptions()
        average.reduceOp = ReduceOp.AVG
        tensor = torch.full((11,), float(rank * n))
        groups[rank].allreduce([tensor], average).wait()
        assert tensor.tolist() == [n * (n - 1) / 2] * 11

        average = ReduceScatterOptions()
        average.reduceOp = ReduceOp.AVG
        output = torch.zeros(11)
        groups[rank].reduce_scatter([output], [[torch.full((11,), float(rank * n))] * n], average).wait()
        assert output.tolist() == [n * (n - 1) / 2] * 11

    world.run(body)


def test_an_average_of_whole_numbers_is_refused(ranks: Any) -> None:
    world, groups = ranks("one", 1)
    with pytest.raises(ValueError, match="use SUM"):
        world.run(lambda rank: groups[rank].allreduce([torch.ones(3, dtype=torch.int64)], ReduceOp.AVG).wait())


@pytest.mark.parametrize("policy", ["one", "fixed", "split", "ring"])
@pytest.mark.parametrize("n", [2, 3])
def test_tensors_with_gaps_are_copied(ranks: Any, policy: str, n: int) -> None:
    """Every second column of a matrix, which is left alone between the columns."""
    world, groups = ranks(policy, n)

    def gaps(fill: float) -> tuple[torch.Tensor, torch.Tensor]:
        whole = torch.full((50, 6), fill)
        return whole, whole[:, ::2]

    def body(rank: int) -> None:
        group = groups[rank]
        whole, columns = gaps(rank + 1.0)
        group.allreduce([columns]).wait()
        assert (columns == n * (n + 1) / 2).all()
        assert (whole[:, 1::2] == rank + 1).all()

        views = [gaps(-1.0) for _ in range(n)]
        group.allgather([[view for _, view in views]], [gaps(float(rank))[1]]).wait()
        for source, (whole, view) in enumerate(views):
            assert (view == source).all()
            assert (whole[:, 1::2] == -1).all()

        whole, columns = gaps(-1.0)
        group.reduce_scatter([columns], [[gaps(float(target))[1] for target in range(n)]]).wait()
        assert (columns == n * rank).all()
        assert (whole[:, 1::2] == -1).all()

        whole, columns = gaps(float(rank))
        group.broadcast(columns, 1).wait()
        assert (columns == 1).all()

        whole, columns = gaps(-1.0)
        works = [group.recv([columns], (rank - 1) % n, 0), group.send([gaps(float(rank))[1]], (rank + 1) % n, 0)]
        for work in works:
            work.wait()
        assert (columns == (rank - 1) % n).all()
        assert (whole[:, 1::2] == -1).all()

    world.run(body)


@pytest.mark.parametrize("policy", ["one", "fixed", "ring"])
def test_results_in_the_input_itself(ranks: Any, policy: str) -> None:
    world, groups = ranks(policy, 3)

    def body(rank: int) -> None:
        whole = torch.full((30,), -1.0)
        own = whole[rank * 10 : rank * 10 + 10].fill_(rank)
        groups[rank].all_gather_single(whole, own).wait()
        assert whole.tolist() == [0.0] * 10 + [1.0] * 10 + [2.0] * 10

        blocks = torch.arange(30.0)
        groups[rank].reduce_scatter_single(blocks[rank * 10 : rank * 10 + 10], blocks).wait()
        assert torch.equal(blocks[rank * 10 : rank * 10 + 10], 3 * torch.arange(30.0)[rank * 10 : rank * 10 + 10])

    world.run(body)


def test_a_parameter_can_be_reduced(ranks: Any) -> None:
    for policy in ("one", "split"):
        world, groups = ranks(policy, 2)

        def body(rank: int, groups: Any = groups) -> None:
            parameter = torch.nn.Parameter(torch.full((8, 4), float(rank)))
            groups[rank].allreduce([parameter]).wait()
            assert (parameter == 1).all()

        world.run(body)


def test_all_to_all_with_uneven_splits(ranks: Any) -> None:
    world, groups = ranks("fixed", 3)

    def body(rank: int) -> None:
        send = [rank + target for target in range(3)]
        receive = [source + rank for source in range(3)]
        rows = torch.cat([torch.full((count, 2), 10.0 * rank + target) for target, count in enumerate(send)])
        output = torch.full((sum(receive), 2), -1.0)
        groups[rank].alltoall_base(output, rows, receive, send).wait()
        expected = [torch.full((count, 2), 10.0 * source + rank) for source, count in enumerate(receive)]
        assert torch.equal(output, torch.cat(expected))

        outputs = [torch.full((source + rank,), -1.0) for source in range(3)]
        groups[rank].alltoall(outputs, [torch.full((rank + target,), float(rank)) for target in range(3)]).wait()
        for source, got in enumerate(outputs):
            assert got.tolist() == [float(source)] * (source + rank)

    world.run(body)


@pytest.mark.parametrize("policy", ["one", "fixed"])
def test_messages_are_told_apart_by_tag_and_order(ranks: Any, policy: str) -> None:
    world, groups = ranks(policy, 2)

    def body(rank: int) -> None:
        group = groups[rank]
        if rank == 0:
            for work in [
                group.isend(torch.full((50,), float(value)), 1, tag)
                for tag, value in ((1, 10), (2, 20), (1, 11), (RESERVED_TAGS - 1, 30))
            ]:
                work.wait()
        else:
            got = {name: torch.zeros(50) for name in "abcd"}
            works = [
                group.irecv(got["d"], 0, RESERVED_TAGS - 1),
                group.irecv(got["b"], 0, 2),
                group.irecv(got["a"], 0, 1),
                group.irecv(got["c"], 0, 1),
            ]
            for work in works:
                work.wait()
            assert {name: tensor[0].item() for name, tensor in got.items()} == {"a": 10, "b": 20, "c": 11, "d": 30}
        group.barrier().wait()

    world.run(body)


@pytest.mark.parametrize("policy", ["one", "fixed"])
def test_a_message_from_any_rank(ranks: Any, policy: str) -> None:
    world, groups = ranks(policy, 3)

    def body(rank: int) -> None:
        group = groups[rank]
        if rank == 0:
            sources = set()
            for _ in range(2):
                tensor = torch.zeros(1000)
                work = group.recv_anysource([tensor], 9)
                work.wait()
                sources.add(work._source_rank())
                assert (tensor == work._source_rank()).all()
            assert sources == {1, 2}
        else:
            group.send([torch.full((1000,), float(rank))], 0, 9).wait()
        group.barrier().wait()

    world.run(body)


def test_long_messages_leave_from_a_thread_per_stream_in_the_order_of_the_calls(
    ranks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Wire, "APART_BYTES", 1)
    world, groups = ranks("fixed", 2)

    def body(rank: int) -> None:
        if rank == 0:
            for work in [groups[0].send([torch.full((3000,), float(value))], 1, 4) for value in range(20)]:
                work.wait()
        else:
            got = [torch.zeros(3000) for _ in range(20)]
            for work in [groups[1].recv([tensor], 0, 4) for tensor in got]:
                work.wait()
            assert [tensor.unique().tolist() for tensor in got] == [[float(value)] for value in range(20)]

    world.run(body)


def test_a_send_that_fails_is_told_after_the_others_have_left() -> None:
    senders = Senders(3)
    left = []

    def fail() -> None:
        raise RuntimeError("the connection is closed")

    def leave() -> None:
        time.sleep(0.05)
        left.append(True)

    with pytest.raises(RuntimeError, match="is closed"):
        senders.run([leave, fail, leave])
    assert left == [True, True]
    senders.close()
    senders.close()


@pytest.mark.parametrize("tag", [-1, RESERVED_TAGS, 2**31 - 1])
def test_tags_out_of_range_are_refused(ranks: Any, tag: int) -> None:
    _, groups = ranks("one", 2)
    with pytest.raises(ValueError, match="is not a tag that a message may have"):
        groups[0].send([torch.ones(1)], 1, tag)


@pytest.mark.parametrize("policy", ["one", "fixed", "split", "ring"])
def test_works_can_be_watched_and_have_futures(ranks: Any, policy: str) -> None:
    world, groups = ranks(policy, 3)

    def body(rank: int) -> None:
        group = groups[rank]
        tensor = mine(rank, 5000)
        work = group.allreduce([tensor])
        called = threading.Event()
        future = work.get_future().then(lambda future: called.set())
        future.wait()
        assert called.is_set()
        assert torch.equal(tensor, total(3, 5000))
        assert work.wait()
        assert work.is_completed()

        outputs = [torch.zeros(5000) for _ in range(3)]
        work = group.allgather([outputs], [mine(rank, 5000)])
        deadline = time.monotonic() + threads.LIMIT_S
        while not (completed := work.is_completed()) and time.monotonic() < deadline:
            time.sleep(0.001)
        assert completed
        assert work.wait(timedelta(seconds=1))
        assert torch.equal(outputs[2], mine(2, 5000))
        group.barrier().wait()

    world.run(body)


@pytest.mark.parametrize("policy", ["fixed", "ring"])
def test_many_operations_under_way_at_once(ranks: Any, policy: str) -> None:
    world, groups = ranks(policy, 3)

    def body(rank: int) -> None:
        group = groups[rank]
        tensors = [mine(rank + index, 500) for index in range(20)]
        outputs = [[torch.zeros(500) for _ in range(3)] for _ in range(20)]
        works = []
        for index in range(20):
            works.append(group.allreduce([tensors[index]]))
            works.append(group.allgather([outputs[index]], [mine(rank * index, 500)]))
        for work in reversed(works):  # in any order
            work.wait()
        for index in range(20):
            expected = sum((mine(source + index, 500) for source in range(3)), torch.zeros(500))
            assert torch.equal(tensors[index], expected)
            assert torch.equal(outputs[index][2], mine(2 * index, 500))

    world.run(body)


def test_peers_do_not_wait_for_a_rank_that_has_not_waited(ranks: Any) -> None:
    """A ring needs every rank to pass blocks on: rank 0 must do so while it does something else."""
    world, groups = ranks("ring", 3)

    def body(rank: int) -> None:
        outputs = [torch.zeros(9000) for _ in range(3)]
        work = groups[rank].allgather([outputs], [mine(rank, 9000)])
        if rank == 0:
            word = torch.zeros(1)
            groups[0].recv([word], 1, 5).wait()
        work.wait()
        if rank == 1:
            groups[1].send([torch.ones(1)], 0, 5).wait()
        assert torch.equal(outputs[1], mine(1, 9000))

    world.run(body)


def test_choices_follow_the_policy_and_are_told(ranks: Any) -> None:
    _, groups = ranks("ring", 3)
    assert groups[0].choose("all_gather", 4096) == Choice("ring", 2, 5)
    assert groups[0].choose("send_recv", 4096) == Choice("gloo", 2)
    world, groups = ranks("auto", 2)
    world.run(lambda rank: groups[rank].allreduce([torch.zeros(10)]).wait())
    assert groups[0].last_choice == groups[0].choose("allreduce", 40)
    assert groups[0].last_choice.streams == 1
    assert groups[0].choose("send_recv", 100 * 2**20).streams == 3


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda g: g.allgather([[torch.zeros(3)]], [torch.zeros(3)]), "1 output tensors for 2 ranks"),
        (lambda g: g.allgather([[torch.zeros(3), torch.zeros(4)]], [torch.zeros(3)]), "4 elements for an input of 3"),
        (lambda g: g.allgather([[torch.zeros(3, dtype=torch.int8)] * 2], [torch.zeros(3)]), "int8"),
        (lambda g: g.all_gather_single(torch.zeros(5), torch.zeros(3)), "does not hold"),
        (lambda g: g.reduce_scatter_single(torch.zeros(5), torch.zeros(3)), "is not 2 times"),
        (lambda g: g.alltoall_base(torch.zeros(3), torch.zeros(3), [], []), "do not divide among 2 ranks"),
        (lambda g: g.alltoall_base(torch.zeros(4), torch.zeros(4), [1, 1], [2, 2]), "do not share 4 rows"),
        (lambda g: g.allreduce([torch.zeros(3), torch.zeros(3)]), "one tensor per call, not 2"),
        (lambda g: g.allreduce([torch.zeros(3, device="meta")]), "move it to the cpu"),
    ],
)
def test_calls_that_cannot_be_right_are_refused(ranks: Any, call: Callable[[Any], Any], complaint: str) -> None:
    _, groups = ranks("one", 2)
    with pytest.raises(ValueError, match=complaint):
        call(groups[0])


# Opening, failing, closing


def test_the_seeds_way_of_opening() -> None:
    """A stream count, then the address of a store that somebody else hosts; and again, under another prefix."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    world = World(2)
    groups = [ParallelProcessGroup(streams=2, options=options()) for _ in range(2)]

    def body(rank: int, prefix: str) -> None:
        groups[rank].configure(f"127.0.0.1:{store.port}/{prefix}", rank, 2)
        tensor = torch.full((100,), float(rank + 1))
        groups[rank].allreduce([tensor]).wait()
        assert (tensor == 3).all()
        assert groups[rank].streams == 2
        groups[rank].barrier().wait()

    for prefix in ("first", "second"):
        world.run(lambda rank, prefix=prefix: body(rank, prefix))
    for group in groups:
        group.shutdown()
        group.shutdown()
        assert group.streams == 0
    with pytest.raises(RuntimeError, match="configure"):
        groups[0].allreduce([torch.ones(3)])


@pytest.mark.parametrize("n", [2, 3])
def test_messages_go_straight_to_gloo_up_to_the_byte_where_that_is_the_choice(n: int) -> None:
    group = open_groups(World(1), f"plain{n}", streams=16)[0]
    group._world_size = n
    for policy in (BuiltIn(16, False), BuiltIn(16, False, True, 4), BuiltIn(16, True), Fixed(16)):
        group.use(policy)
        for operation, end in group._plain_below.items():
            assert all(
                policy.choose(operation, size, n) == Choice("gloo") for size in range(end - 1, max(0, end - 9), -1)
            )
            assert end >= 2**39 or policy.choose(operation, end, n) != Choice("gloo")
    group.shutdown()
    assert set(group._plain_below.values()) == {0}


def test_auto_finds_out_whether_streams_pay_and_all_ranks_agree() -> None:
    world = World(3)
    groups = open_groups(world, "probe", max_streams=3)
    own = world.run(lambda rank: groups[rank].own_policy())
    assert isinstance(own[0], BuiltIn)
    assert own[0] == own[1] == own[2]


def test_fifty_openings_leave_nothing_behind() -> None:
    world = World(2)

    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))  # noqa: PTH208

    def cycle(index: int) -> None:
        groups = open_groups(world, f"cycle{index}", streams=3)

        def body(rank: int) -> None:
            outputs = [torch.zeros(3000) for _ in range(2)]
            groups[rank].allgather([outputs], [mine(rank, 3000)]).get_future().wait()
            groups[rank].barrier().wait()
            world.meet()
            groups[rank].shutdown()

        world.run(body)

    for index in range(3):
        cycle(index)
    gc.collect()
    before = held()
    for index in range(3, 53):
        cycle(index)
    gc.collect()
    deadline = time.monotonic() + 5
    while held() > before and time.monotonic() < deadline:  # the kernel takes a moment to bury a thread
        time.sleep(0.05)
    assert held() <= before


def test_streams_cost_what_is_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Wire, "APART_BYTES", 1)
    world = World(2)

    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))  # noqa: PTH208

    def senders() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("netbench-sender")}

    world.run(lambda rank: None)
    before, others = held(), senders()
    groups = open_groups(world, "cost", streams=5)

    def body(rank: int) -> None:
        received = torch.zeros(1000)
        work = groups[rank].recv([received], 1 - rank)
        groups[rank].send([mine(rank, 1000)], 1 - rank).wait()
        work.wait()
        assert torch.equal(received, mine(1 - rank, 1000))

    world.run(body)
    after = held()
    assert len(senders() - others) >= 2
    # Both ranks live in this process.
    assert after[0] - before[0] <= 2 * 5 * (limits.DESCRIPTORS_PER_STREAM + 1)
    assert after[1] - before[1] <= 2 * 5 * limits.THREADS_PER_STREAM
    for group in groups:
        group.shutdown()
    assert senders() == others


def test_connections_within_a_host_get_a_small_send_buffer() -> None:
    world = World(2)
    before = {one.fd for one in psutil.Process().net_connections("tcp")}
    groups = open_groups(world, "buffers", streams=2)
    buffers = []
    for one in psutil.Process().net_connections("tcp"):
        if one.fd not in before and one.raddr:
            with socket.socket(fileno=os.dup(one.fd)) as connection:
                buffers.append(connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))
    # Two streams, each with both of its ends in this process; the kernel doubles what it is told.
    assert buffers == [2 * LOCAL_SEND_BUFFER] * 4
    for group in groups:
        group.shutdown()


@pytest.mark.parametrize(("source", "is_within"), [("127.0.0.1", True), ("127.0.0.2", False)])
def test_a_connection_is_within_a_host_when_both_ends_have_one_address(source: str, is_within: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        before = connections_within_host()
        with socket.create_connection(server.getsockname(), source_address=(source, 0)) as connection:
            assert (connection.fileno() in connections_within_host() - before) is is_within


def test_limits_are_checked_before_anything_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits.resource, "getrlimit", lambda which: (64, 64))
    with pytest.raises(LaunchError, match=r"512 streams between 2 ranks need \d+ descriptors.*ulimit -n"):
        ParallelProcessGroup(streams=512).configure("127.0.0.1:1/never", 0, 2)


def test_a_timeout_is_one_for_the_whole_operation() -> None:
    """Nothing ever comes on any of the streams, and the wait ends after one limit, not after three."""
    world = World(2)
    groups = open_groups(world, "late", streams=3, timeout=timedelta(seconds=1))
    threads.broken.extend(groups)
    work = groups[0].recv([torch.zeros(3000)], 1, 0)
    begin = time.monotonic()
    with pytest.raises(RuntimeError, match=r"[Tt]imed out"):
        work.wait()
    assert time.monotonic() - begin < 2.5


def test_a_wait_with_a_limit_gives_up_and_the_operation_goes_on(ranks: Any) -> None:
    world, groups = ranks("fixed", 2)

    def body(rank: int) -> None:
        tensor = torch.zeros(3000)
        if rank == 0:
            work = groups[0].recv([tensor], 1, 0)
            with pytest.raises(RuntimeError, match="has not ended within"):
                work.wait(timedelta(milliseconds=20))
            world.meet()
            assert work.wait(timedelta(seconds=threads.LIMIT_S))
            assert (tensor == 1).all()
        else:
            world.meet()
            groups[1].send([torch.ones(3000)], 0, 0).wait()
        groups[rank].barrier().wait()

    world.run(body)


def test_abort_fails_what_is_under_way_on_both_sides() -> None:
    world = World(2)
    groups = open_groups(world, "abort", streams=3)
    threads.broken.extend(groups)

    def body(rank: int) -> None:
        work = groups[rank].recv([torch.zeros(3000)], 1 - rank, 0)
        world.meet()
        if rank == 0:
            groups[0].abort()
        begin = time.monotonic()
        with pytest.raises(RuntimeError):
            work.wait()
        assert time.monotonic() - begin < threads.LIMIT_S / 2

    world.run(body)


def test_the_first_error_reaches_the_future_too() -> None:
    world = World(2)
    groups = open_groups(world, "future", streams=2, timeout=timedelta(seconds=1))
    threads.broken.extend(groups)
    outputs = [torch.zeros(3000) for _ in range(2)]
    work = groups[0].allgather([outputs], [torch.zeros(3000)])
    with pytest.raises(RuntimeError, match=r"[Tt]imed out"):
        work.get_future().wait()
    assert work.exception() is not None
    assert not work.is_success()


# Options


def test_options_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NETBENCH_STREAMS", "7")
    monkeypatch.setenv("NETBENCH_MAX_STREAMS", "9")
    monkeypatch.setenv("NETBENCH_SCHEDULE", "gloo")
    monkeypatch.setenv("NETBENCH_INTERFACE", "lo")
    found = ParallelOptions.from_environment(timeout=timedelta(seconds=3))
    assert (found.streams, found.max_streams, found.schedule, found.interface) == (7, 9, "gloo", "lo")
    assert found.timeout == timedelta(seconds=3)
    monkeypatch.setenv("NETBENCH_STREAMS", "auto")
    assert ParallelOptions.from_environment().opened == 9
    monkeypatch.setenv("NETBENCH_STREAMS", "many")
    with pytest.raises(UsageError, match="NETBENCH_STREAMS: 'many'"):
        ParallelOptions.from_environment()
    monkeypatch.setenv("NETBENCH_STREAMS", "auto")
    monkeypatch.setenv("NETBENCH_BATCH_IO", "yes")
    with pytest.raises(UsageError, match="NETBENCH_BATCH_IO: 'yes' is neither 0 nor 1"):
        ParallelOptions.from_environment()
    monkeypatch.setenv("NETBENCH_BATCH_IO", "1")
    assert ParallelOptions.from_environment().batch_io
    monkeypatch.setenv("NETBENCH_TUNING", str(tmp_path / "none.json"))
    with pytest.raises(UsageError, match=r"none\.json: cannot be read"):
        ParallelOptions.from_environment()


@pytest.mark.parametrize("wrong", [{"streams": 0}, {"streams": 513}, {"max_streams": 0}, {"timeout": timedelta(0)}])
def test_options_that_cannot_be_meant(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ParallelOptions(**wrong)


def test_an_address_that_is_none() -> None:
    with pytest.raises(UsageError, match="host:port/prefix"):
        ParallelProcessGroup().configure("nowhere", 0, 1)


def test_broadcast_takes_torchs_options(ranks: Any) -> None:
    world, groups = ranks("split", 2)

    def body(rank: int) -> None:
        asked = BroadcastOptions()
        asked.rootRank = 1
        tensor = torch.full((10,), float(rank))
        groups[rank].broadcast([tensor], asked).wait()
        assert (tensor == 1).all()

    world.run(body)
