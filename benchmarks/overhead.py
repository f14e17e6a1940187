"""What netbench's own loop adds to the time of an operation, against a loop written by hand.

Two ranks on loopback run both loops over the same Gloo group and tensors, alternating in one process in short turns:
on few cores a small operation runs at one of two speeds (about 0.2 or 3.5 ms) for a while at a time, and long turns of
one loop would meet the one and those of the other the other. The hand loop is the least one could write: barrier,
clock, operation, wait, clock. Printed for each size: the hand loop's median of the slowest rank's times; the median of
what netbench's loop took more than the hand loop just beside it; and that as a ratio, with its 95 % interval.

    OMP_NUM_THREADS=1 python benchmarks/overhead.py [--rounds 80] [--iterations 10]
"""

from __future__ import annotations

import argparse
import gc
import socket
import time
from collections.abc import Callable
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing

from netbench import wire
from netbench.backends import BACKENDS, Wiring, gloo_group, tensor_maker
from netbench.control import Control
from netbench.measure import make_operation, time_iterations
from netbench.modes import MODES
from netbench.record import MEASURED
from netbench.statistics import median_interval
from netbench.units import format_bytes, parse_sizes

SIZES = [8, *parse_sizes("1KiB:64MiB:x8")]
RANKS = 2


def hand_loop(group: dist.ProcessGroupGloo, barrier: Callable[[], None], tensor: torch.Tensor, count: int) -> list[int]:
    """Times of ``count`` allreduces on this rank, ns."""
    gc.collect()  # before each turn, as netbench's loop does: it leaves other things in the caches
    times = []
    for _ in range(count):
        barrier()
        start = time.monotonic_ns()
        group.allreduce([tensor]).wait()
        times.append(time.monotonic_ns() - start)
    return times


def rank_main(rank: int, port: int, rounds: int, iterations: int, congestion_control: str) -> None:
    store = dist.TCPStore("127.0.0.1", port, RANKS, is_master=rank == 0, timeout=timedelta(seconds=60))
    wiring = Wiring(store, rank, RANKS, "127.0.0.1", 60.0)
    control = Control(gloo_group(wiring, "control"), 60.0)
    lanes = BACKENDS["gloo"].open(wiring, 1)
    control.barrier()
    gc.freeze()  # as the worker does: torch's own objects need not be looked through before each turn
    if congestion_control:
        wire.use_congestion_control(wire.connections(), congestion_control)
    mode = MODES["allreduce"]
    duration = MEASURED.index("duration_ns")
    if rank == 0:
        print(f"allreduce, {RANKS} ranks on loopback, {rounds} x {iterations} alternating iterations")
        print(f"{'size':>8}  {'hand us':>10}  {'ratio':>6}  {'its 95 %':>15}  {'more by us':>10}")
    for size in SIZES:
        buffers = mode.buffers(tensor_maker("cpu", "float32"), size // 4, RANKS)
        buffers.input.zero_()
        operation = make_operation(mode, lanes, buffers, [[slice(0, size // 4)]], 60.0)
        by_hand: list[int] = []
        by_netbench: list[int] = []
        for round in range(max(min(rounds, 60), min(rounds, rounds * 2**22 // size)) + 1):
            turns = ["hand", "netbench"] if round % 2 else ["netbench", "hand"]
            for turn in turns:
                if turn == "hand":
                    times = hand_loop(lanes.lanes[0].group, control.barrier, buffers.input, iterations)
                else:
                    samples = time_iterations(iterations, False, control.barrier, operation)
                    times = samples[:, duration].tolist()
                if round:  # the first is a warm-up
                    (by_hand if turn == "hand" else by_netbench).extend(times)
        gathered = control.gather(np.array([by_hand, by_netbench], dtype=np.int64))
        if rank == 0:
            hand, ours = np.max(gathered, axis=0) / 1e3
            differences = np.sort(ours - hand)
            low, high = (differences[place] for place in median_interval(len(differences)))
            middle, usual = np.median(differences), np.median(hand)
            print(
                f"{format_bytes(size):>8}  {usual:10.1f}  {1 + middle / usual:6.3f}"
                f"  {1 + low / usual:6.3f} to {1 + high / usual:5.3f}  {middle:10.2f}"
            )
    control.barrier()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument(
        "--congestion-control", default="", metavar="NAME", help="such as cubic, for this run's sockets"
    )
    arguments = parser.parse_args()
    # BBR paces by timers of milliseconds, which would drown microseconds; where it is the default, choose another.
    settings = (arguments.rounds, arguments.iterations, arguments.congestion_control)
    torch.multiprocessing.spawn(rank_main, (free_port(), *settings), nprocs=RANKS)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
