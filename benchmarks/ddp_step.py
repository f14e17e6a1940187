"""What a training step costs under DistributedDataParallel over Gloo and over parallel_gloo, in one program.

    python benchmarks/ddp_step.py                                   # loopback
    python benchmarks/ddp_step.py --lab 2x400mbit,flow=40mbit       # hosts with a known link (root)

Two ranks train two copies of a small model, one over each backend, from the same weights on the same data: a step of
one, a step of the other. Printed are the parameters, the median time of the slower rank's step, the least and the
greatest, and whether the losses were the same.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import time
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from ranks import run_ranks

from netbench.lab import HostAddress, Lab, LabSpec

BACKENDS = ["gloo", "parallel_gloo"]
RANKS = 2


def rank_main(job: dict[str, Any], rank: int) -> None:
    """Trains both models and, on rank 0, prints what they took as JSON."""
    if job["hosts"]:
        HostAddress(**job["hosts"][rank]).enter()
    os.environ["GLOO_SOCKET_IFNAME"] = job["hosts"][rank]["interface"] if job["hosts"] else "lo"
    import torch
    from torch import distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import netbench.torch_backend  # noqa: F401 - registers parallel_gloo

    torch.set_num_threads(1)
    store = dist.FileStore(job["store"], RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    models, optimizers = {}, {}
    for backend in BACKENDS:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512))
        models[backend] = DistributedDataParallel(model, process_group=dist.new_group(backend=backend))
        optimizers[backend] = torch.optim.SGD(models[backend].parameters(), lr=0.05)
    losses: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
    durations: dict[str, list[float]] = {backend: [] for backend in BACKENDS}

    for step in range(job["steps"] + 1):
        for backend in BACKENDS:
            torch.manual_seed(100 * step + rank)
            batch = torch.randn(8, 512)
            dist.barrier()
            begin = time.perf_counter()
            optimizers[backend].zero_grad()
            loss = ((models[backend](batch) - batch) ** 2).mean()
            loss.backward()
            optimizers[backend].step()
            durations[backend].append(time.perf_counter() - begin)
            losses[backend].append(loss.item())

    slowest = torch.tensor([durations[backend][1:] for backend in BACKENDS], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    parameters = sum(parameter.numel() for parameter in models["gloo"].parameters())
    if rank == 0:
        told = {
            "parameters": parameters,
            "steps_s": slowest.tolist(),
            "same": losses["gloo"] == losses["parallel_gloo"],
        }
        print(json.dumps(told), flush=True)
    dist.barrier()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lab", type=LabSpec.parse)
    parser.add_argument("--steps", type=int, default=15, help="timed steps of each, after a first")
    parser.add_argument("--limit", type=float, default=300, help="seconds for all of it")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rank is not None:
        rank_main(json.loads(asked.job.read_text()), asked.rank)
        return
    revision = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    print(f"{asked.lab or 'loopback'}, {os.cpu_count()} cores, {platform.release()}, commit {revision.stdout.strip()}")
    job: dict[str, Any] = {"hosts": [], "steps": asked.steps}
    with Lab(asked.lab) if asked.lab else nullcontext() as lab:
        if lab is not None:
            job["hosts"] = [asdict(host) for host in lab.hosts]
        [told] = run_ranks(__file__, job, RANKS, asked.limit)
    print(f"{told['parameters']:,} parameters, losses {'the same' if told['same'] else 'DIFFERENT'}")
    medians = [median(row) for row in told["steps_s"]]
    for backend, row, middle in zip(BACKENDS, told["steps_s"], medians, strict=True):
        print(f"{backend:14} {middle * 1e3:8.1f} ms a step ({min(row) * 1e3:.1f} to {max(row) * 1e3:.1f})")
    print(f"{'factor':14} {medians[0] / medians[1]:8.2f}")


if __name__ == "__main__":
    main()
