"""What netbench's own loop adds to the time of an operation, against a loop written by hand.

Two ranks on loopback run both loops over the same Gloo group and tensors, alternating in one process, so that drift
hits both alike. The hand loop is the least one could write: barrier, clock, operation, wait, clock. Printed for each
size: the median of the slowest rank's times of both loops, their ratio, and the difference.

    python benchmarks/overhead.py [--rounds 40] [--iterations 25]
"""

from __future__ import annotations

import argparse
import socket
import time
from collections.abc import Callable
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing

from netbench.backends import BACKENDS, Wiring, gloo_group, tensor_maker
from netbench.control import Control
from netbench.measure import make_operation, time_iterations
from netbench.modes import MODES
from netbench.record import MEASURED
from netbench.units import format_bytes, parse_sizes

SIZES = [8, *parse_sizes("1KiB:64MiB:x8")]
RANKS = 2


def hand_loop(group: dist.ProcessGroupGloo, barrier: Callable[[], None], tensor: torch.Tensor, count: int) -> list[int]:
    """Times of ``count`` allreduces on this rank, ns."""
    times = []
    for _ in range(count):
        barrier()
        start = time.monotonic_ns()
        group.allreduce([tensor]).wait()
        times.append(time.monotonic_ns() - start)
    return times


def rank_main(rank: int, port: int, rounds: int, iterations: int) -> None:
    store = dist.TCPStore("127.0.0.1", port, RANKS, is_master=rank == 0, timeout=timedelta(seconds=60))
    wiring = Wiring(store, rank, RANKS, "lo", 60.0)
    control = Control(gloo_group(wiring, "control"), 60.0)
    lanes = BACKENDS["gloo"].open(wiring, 1)
    mode = MODES["allreduce"]
    duration = MEASURED.index("duration_ns")
    if rank == 0:
        print(f"allreduce, {RANKS} ranks on loopback, medians of {rounds} x {iterations} alternating iterations")
        print(f"{'size':>8}  {'hand us':>10}  {'netbench us':>11}  {'ratio':>6}  {'difference us':>13}")
    for size in SIZES:
        count = max(1, min(iterations, int(iterations * 2**23 / size)))
        buffers = mode.buffers(tensor_maker("cpu", "float32"), size // 4, RANKS)
        buffers.input.zero_()
        operation = make_operation(mode, lanes, buffers, [[slice(0, size // 4)]], 60.0)
        by_hand: list[int] = []
        by_netbench: list[int] = []
        for round in range(rounds + 1):
            turns = ["hand", "netbench"] if round % 2 else ["netbench", "hand"]
            for turn in turns:
                if turn == "hand":
                    times = hand_loop(lanes.lanes[0].group, control.barrier, buffers.input, count)
                else:
                    samples = time_iterations(count, False, control.barrier, operation)
                    times = samples[:, duration].tolist()
                if round:  # the first is a warm-up
                    (by_hand if turn == "hand" else by_netbench).extend(times)
        gathered = control.gather(np.array([by_hand, by_netbench], dtype=np.int64))
        if rank == 0:
            hand, ours = np.median(np.max(gathered, axis=0), axis=1) / 1e3
            print(f"{format_bytes(size):>8}  {hand:10.1f}  {ours:11.1f}  {ours / hand:6.3f}  {ours - hand:13.2f}")
    control.barrier()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--iterations", type=int, default=25)
    arguments = parser.parse_args()
    torch.multiprocessing.spawn(rank_main, (free_port(), arguments.rounds, arguments.iterations), nprocs=RANKS)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
