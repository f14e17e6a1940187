"""A program that uses torch.distributed over parallel_gloo: run once per rank by test_torch_backend.

python torch_program.py RANK WORLD_SIZE STORE_FILE     # rank 0 prints {check: complaint or null} as JSON
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed._functional_collectives as functional
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import netbench.torch_backend
from netbench.process_group import ParallelOptions, ParallelProcessGroup

RANK, N = int(sys.argv[1]), int(sys.argv[2])
SUM = N * (N + 1) / 2
CHECKS: dict[str, Callable[[], None]] = {}


def check(body: Callable[[], None]) -> Callable[[], None]:
    CHECKS[body.__name__] = body
    return body


def own() -> torch.Tensor:
    return torch.full((6,), RANK + 1.0)


def same(tensor: torch.Tensor, values: object) -> None:
    assert tensor.tolist() == torch.as_tensor(values, dtype=tensor.dtype).tolist(), (tensor, values)


def each_rank() -> torch.Tensor:
    return torch.arange(1, N + 1).repeat_interleave(6)


@check
def the_default_group_is_ours() -> None:
    assert dist.get_backend() == "parallel_gloo"
    assert isinstance(dist.group.WORLD, ParallelProcessGroup)
    assert dist.group.WORLD.options.max_streams == 3


@check
def all_reduce() -> None:
    tensor = own()
    dist.all_reduce(tensor)
    same(tensor, [SUM] * 6)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    same(tensor, [SUM] * 6)


@check
def all_reduce_of_many_bytes() -> None:
    tensor = torch.full((3_000_001,), RANK + 1.0)
    dist.all_reduce(tensor)
    assert (tensor == SUM).all()


@check
def all_reduce_async() -> None:
    tensor, other = own(), own()
    work = dist.all_reduce(tensor, async_op=True)
    future = dist.all_reduce(other, async_op=True).get_future()
    work.wait()
    future.wait()
    same(tensor, [SUM] * 6)
    same(other, [SUM] * 6)


@check
def all_reduce_of_sparse_and_complex_tensors() -> None:
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.tensor([1.0, 2.0]), (4,))
    dist.all_reduce(sparse)
    same(sparse.to_dense(), [N, 0, 2 * N, 0])
    tensor = torch.full((4,), 1 + 1j)
    dist.all_reduce(tensor)
    assert (tensor == N * (1 + 1j)).all()


@check
def all_gather() -> None:
    outputs = [torch.zeros(6) for _ in range(N)]
    dist.all_gather(outputs, own())
    same(torch.cat(outputs), each_rank())


@check
def all_gather_into_tensor() -> None:
    output = torch.zeros(6 * N)
    dist.all_gather_into_tensor(output, own())
    same(output, each_rank())
    if hasattr(dist, "all_gather_single"):
        output.zero_()
        dist.all_gather_single(output, own())
        same(output, each_rank())


@check
def reduce_scatter() -> None:
    output = torch.zeros(3)
    dist.reduce_scatter_tensor(output, torch.arange(3.0 * N))
    same(output, N * (torch.arange(3.0) + 3 * RANK))
    dist.reduce_scatter(output, [torch.full((3,), float(target)) for target in range(N)])
    same(output, [float(N * RANK)] * 3)


@check
def broadcast_and_reduce() -> None:
    tensor = own()
    dist.broadcast(tensor, 1)
    same(tensor, [2.0] * 6)
    tensor = own()
    dist.reduce(tensor, 1)
    if RANK == 1:
        same(tensor, [SUM] * 6)


@check
def all_to_all() -> None:
    output = torch.zeros(N)
    dist.all_to_all_single(output, torch.arange(N) + 10.0 * RANK)
    same(output, torch.arange(N) * 10.0 + RANK)
    outputs = [torch.zeros(2) for _ in range(N)]
    dist.all_to_all(outputs, [torch.full((2,), 10.0 * RANK + target) for target in range(N)])
    same(torch.stack(outputs)[:, 0], torch.arange(N) * 10.0 + RANK)


@check
def gather_and_scatter() -> None:
    outputs = [torch.zeros(6) for _ in range(N)] if RANK == 1 else None
    dist.gather(own(), outputs, dst=1)
    if outputs is not None:
        same(torch.cat(outputs), each_rank())
    output = torch.zeros(6)
    dist.scatter(output, [torch.full((6,), float(target)) for target in range(N)] if RANK == 1 else None, src=1)
    same(output, [float(RANK)] * 6)


@check
def send_and_recv() -> None:
    tensor = torch.zeros(6)
    if RANK == 0:
        dist.send(own(), 1, tag=3)
        dist.send(own(), 1)
    elif RANK == 1:
        dist.recv(tensor, 0, tag=3)
        same(tensor, [1.0] * 6)
        assert dist.recv(tensor.zero_()) == 0
        same(tensor, [1.0] * 6)


@check
def isend_and_irecv_out_of_order() -> None:
    if RANK == 0:
        for work in [dist.isend(own() * tag, 1, tag=tag) for tag in (1, 2, 3)]:
            work.wait()
    elif RANK == 1:
        tensors = {tag: torch.zeros(6) for tag in (3, 1, 2)}
        for work in [dist.irecv(tensor, 0, tag=tag) for tag, tensor in tensors.items()]:
            work.wait()
        for tag, tensor in tensors.items():
            same(tensor, [float(tag)] * 6)


@check
def batched_messages() -> None:
    received = torch.zeros(6)
    operations = [
        dist.P2POp(dist.isend, own(), (RANK + 1) % N),
        dist.P2POp(dist.irecv, received, (RANK - 1) % N),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    same(received, [(RANK - 1) % N + 1.0] * 6)


@check
def objects() -> None:
    gathered: list[object] = [None] * N
    dist.all_gather_object(gathered, {"rank": RANK})
    assert gathered == [{"rank": rank} for rank in range(N)]
    shared = [RANK, "a"]
    dist.broadcast_object_list(shared, 0)
    assert shared == [0, "a"]
    scattered: list[object] = [None]
    dist.scatter_object_list(scattered, list(range(N)), 0)
    assert scattered == [RANK]


@check
def barrier() -> None:
    dist.barrier()


@check
def further_groups() -> None:
    pair = dist.new_group([0, 1], backend="parallel_gloo")
    if RANK < 2:
        tensor = own()
        dist.all_reduce(tensor, group=pair)
        same(tensor, [3.0] * 6)
    options = ParallelOptions(streams=2)
    fixed = dist.new_group(backend="parallel_gloo", pg_options=options, timeout=timedelta(seconds=30))
    assert fixed.streams == 2
    assert fixed.options.timeout == timedelta(seconds=30)
    beside = dist.new_group(backend="gloo")
    for group in (fixed, beside):
        tensor = own()
        dist.all_reduce(tensor, group=group)
        same(tensor, [SUM] * 6)


@check
def coalesced() -> None:
    with dist._coalescing_manager():
        pair = own(), own()
        for tensor in pair:
            dist.all_reduce(tensor)
    for tensor in pair:
        same(tensor, [SUM] * 6)


@check
def functional_collectives_from_cpp() -> None:
    world = dist.group.WORLD
    same(functional.all_reduce(own(), "sum", world).clone(), [SUM] * 6)
    same(functional.all_gather_tensor(own(), 0, world).clone(), each_rank())
    same(functional.reduce_scatter_tensor(torch.ones(3 * N), "sum", 0, world).clone(), [float(N)] * 3)
    swapped = functional.all_to_all_single(torch.arange(N) + 10.0 * RANK, [1] * N, [1] * N, world)
    same(swapped.clone(), torch.arange(N) * 10.0 + RANK)


@check
def device_mesh_and_sharded_tensors() -> None:
    mesh = init_device_mesh("cpu", (N,))
    whole = torch.arange(4.0 * N)
    same(distribute_tensor(whole, mesh, [Shard(0)]).full_tensor(), whole)


def losses(group: dist.ProcessGroup) -> list[float]:
    """Four steps of a small model with a data shard of its own on each rank."""
    torch.manual_seed(0)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(16, 300), torch.nn.ReLU(), torch.nn.Linear(300, 1)), process_group=group
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    seen = []
    for step in range(4):
        torch.manual_seed(100 + 10 * step + RANK)
        loss = (model(torch.randn(8, 16)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return seen


@check
def data_parallel_training_gives_gloos_losses() -> None:
    ours, theirs = losses(dist.group.WORLD), losses(dist.new_group(backend="gloo"))
    if N == 2:
        assert ours == theirs, (ours, theirs)  # a + b is b + a
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs))


@check
def sharded_optimizer_and_model() -> None:
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    sharded = torch.nn.Linear(8, 8)
    fully_shard(sharded)
    sharded(torch.ones(2, 8)).sum().backward()


@check
def what_torch_keeps_for_gloo_is_refused() -> None:
    try:
        dist.monitored_barrier()
    except ValueError as error:
        assert "only implemented for GLOO" in str(error)  # noqa: PT017
    dist.group.WORLD.monitored_barrier()


def main() -> None:
    warnings.simplefilter("ignore")
    netbench.torch_backend.register()
    dist.init_process_group("parallel_gloo", store=dist.FileStore(sys.argv[3], N), rank=RANK, world_size=N)
    complaints: dict[str, str | None] = {}
    for name, body in CHECKS.items():
        try:
            body()
            complaints[name] = None
        except Exception as error:  # noqa: BLE001 - each is told, and the others still run
            complaints[name] = f"rank {RANK}: {type(error).__name__}: {error}"
    everyone: list[dict[str, str | None]] = [{}] * N
    dist.all_gather_object(everyone, complaints)
    dist.barrier()
    dist.destroy_process_group()
    if RANK == 0:
        merged = {name: next((seen[name] for seen in everyone if seen[name]), None) for name in CHECKS}
        print(json.dumps(merged))


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
