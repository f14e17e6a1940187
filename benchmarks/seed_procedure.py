"""The measuring procedure of pytorch/gloo issue 471, written anew: what people run when they have no tool.

One torchrun a mode; rank 0 alone takes the time; 0.1 s of sleep after every iteration; results at the end. It is here
to be timed by time_to_result.py, not to be used. Usage: torchrun --nproc-per-node 2 seed_procedure.py MODE SIZES...
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist

PAUSE_S = 0.1
LATENCY_TESTS = 100
BANDWIDTH_TESTS = 5


def ping_pong(tensor: torch.Tensor) -> None:
    peer = 1 - dist.get_rank()
    if dist.get_rank() == 0:
        dist.send(tensor, peer)
        dist.recv(tensor, peer)
    else:
        dist.recv(tensor, peer)
        dist.send(tensor, peer)


def main(mode: str, sizes: list[int]) -> None:
    dist.init_process_group("gloo")
    small = torch.zeros(1)
    for _ in range(LATENCY_TESTS):
        ping_pong(small)
        dist.barrier()
        time.sleep(PAUSE_S)
    samples = []
    for size in sizes:
        tensor = torch.ones(size // 4)
        gathered = [torch.zeros(size // 4) for _ in range(dist.get_world_size())]
        for _ in range(BANDWIDTH_TESTS):
            start = time.perf_counter()
            if mode == "send_recv":
                ping_pong(tensor)
            else:
                dist.all_gather(gathered, tensor)
            samples.append((size, time.perf_counter() - start))
            dist.barrier()
            time.sleep(PAUSE_S)
    if dist.get_rank() == 0:
        print(f"{mode}: {len(samples)} samples")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], [int(size) for size in sys.argv[2:]])
