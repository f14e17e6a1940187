"""How ParallelProcessGroup compares with Gloo: runs in random order in one process per rank, medians of the slowest.

    python benchmarks/parallel_gloo.py                                    # loopback
    python benchmarks/parallel_gloo.py --lab 4x200mbit --sizes 1MB,10MB   # hosts with a known link (root)
    python benchmarks/parallel_gloo.py --contenders auto,split:2,split:8,ring:1:4

A contender is ``auto`` (what the group chooses), ``split:K`` (Gloo's own operation on K parts over K streams) or
``schedule:streams:chunks``. ``again`` is a second group of plain Gloo: what it is away from 1 is noise.
The table shows Gloo's median, and for each contender how many times faster it was; Gloo's is the mean of both groups.
How fast a pair of processes is depends on where the kernel has put its memory and threads, so ``--launches`` measures
in several, one after another; shown are then the medians over the launches, and the least and the greatest factor.
Sizes are bytes that each rank has to send by the ideal algorithm, so that world sizes compare.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

from ranks import run_ranks

from netbench.lab import HostAddress, Lab, LabSpec
from netbench.modes import MODES
from netbench.tuning import SCHEDULES, Choice, Fixed, Policy
from netbench.units import format_bytes, parse_sizes

TIMEOUT = timedelta(seconds=120)
OPERATIONS = ["send_recv", "allreduce", "all_gather", "reduce_scatter", "all_to_all"]


class Always:
    """The same choice for every message."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice

    def choose(self, operation: str, tensor_bytes: int, world_size: int) -> Choice:
        return self.choice if self.choice.schedule in SCHEDULES[operation] else Choice("gloo", self.choice.streams)


def policy(contender: str, own: Policy) -> Policy:
    if contender == "auto":
        return own
    name, *numbers = contender.split(":")
    if name == "split":
        return Fixed(int(numbers[0]), "gloo")
    return Always(Choice(name, *map(int, numbers)))


def operation(name: str, group: Any, rank: int, n: int, transmit_bytes: int) -> tuple[int, Callable[[], None]]:
    """The bytes that each rank passes in, and a function that runs the operation once and waits for it."""
    import torch

    mode = MODES[name]
    elements = max(1, int(transmit_bytes / mode.transmit_ratio(n) / 4))
    elements -= elements % n if elements >= n else elements - n
    if name == "all_gather":
        mine, outputs = torch.ones(elements), [torch.zeros(elements) for _ in range(n)]
        return mine.nbytes, lambda: group.allgather([outputs], [mine]).wait()
    mine, theirs = torch.zeros(elements), torch.zeros(elements)
    if name == "allreduce":
        return mine.nbytes, lambda: group.allreduce([mine]).wait()
    if name == "reduce_scatter":
        output, inputs = torch.zeros(elements // n), list(mine.chunk(n))
        return mine.nbytes, lambda: group.reduce_scatter([output], [inputs]).wait()
    if name == "all_to_all":
        return mine.nbytes, lambda: group.alltoall_base(theirs, mine, [], []).wait()
    assert name == "send_recv"

    def ping_pong() -> None:
        if rank == 0:
            answer = group.recv([theirs], 1, 0)
            group.send([mine], 1, 0).wait()
            answer.wait()
        elif rank == 1:
            group.recv([theirs], 0, 0).wait()
            group.send([mine], 0, 0).wait()

    return mine.nbytes, ping_pong


def rank_main(job: dict[str, Any], rank: int) -> None:
    """One rank: measures every point and, on rank 0, prints a JSON line for each."""
    if job["hosts"]:
        HostAddress(**job["hosts"][rank]).enter()
    import torch
    from torch._C._distributed_c10d import FileStore, PrefixStore, ProcessGroupGloo, ReduceOp

    from netbench.process_group import ParallelOptions, ParallelProcessGroup

    torch.set_num_threads(1)
    n, interface = job["world_size"], job["hosts"][rank]["interface"] if job["hosts"] else "lo"
    store = FileStore(job["store"], n)

    group_type: Any = ProcessGroupGloo

    def gloo(name: str) -> Any:
        options = group_type._Options()
        options._devices = [group_type.create_device(interface=interface)]
        options._timeout = TIMEOUT
        return group_type(PrefixStore(name, store), rank, n, options)

    control, plain, again = gloo("control"), gloo("plain"), gloo("again")
    start = time.monotonic()
    ours = ParallelProcessGroup(
        options=ParallelOptions(
            max_streams=job["streams"],
            interface=interface,
            timeout=TIMEOUT,
            batch_io=job["batch_io"],
            pin_io=job["pin_io"],
        )
    )
    ours.configure(PrefixStore("ours", store), rank, n)
    own = ours.own_policy()
    if rank == 0:
        print(f"opened in {time.monotonic() - start:.2f} s with {own}", file=sys.stderr)
    policies = {name: policy(name, own) for name in job["contenders"]}

    def agreed(value: float) -> float:
        slowest = torch.tensor([value], dtype=torch.float64)
        control.allreduce([slowest], ReduceOp.MAX).wait()
        return slowest.item()

    following: list[Policy] = []

    def timed(run: Callable[[], None], chosen: Policy | None) -> int:
        if chosen is not None and following != [chosen]:
            ours.use(chosen)  # some work, after which nothing is in the cache any more
            following[:] = [chosen]
        control.barrier().wait()
        begin = time.perf_counter_ns()
        run()
        return time.perf_counter_ns() - begin

    for name in job["operations"]:
        for size in job["sizes"]:
            if n == 2 and MODES[name].transmit_ratio(n) == 0:
                continue
            tensor_bytes, with_gloo = operation(name, plain, rank, n, size)
            _, with_again = operation(name, again, rank, n, size)
            _, with_ours = operation(name, ours, rank, n, size)
            runs: dict[str, tuple[Callable[[], None], Policy | None]] = {
                "gloo": (with_gloo, None),
                "again": (with_again, None),
            }
            runs |= {contender: (with_ours, chosen) for contender, chosen in policies.items()}
            for run, chosen in runs.values():
                timed(run, chosen)
            spent = agreed(sum(timed(run, chosen) for run, chosen in runs.values()) / 1e9)
            rounds = max(job["rounds"], min(3000, int(job["seconds"] / spent)))
            durations: dict[str, list[int]] = {contender: [] for contender in runs}
            for index in range(rounds):
                # In turn, each contender would always follow the same one, whose threads are still on the CPUs; that
                # made equal groups look up to seven times as slow. Random, and the same on all ranks.
                for contender in random.Random(index).sample(list(runs), len(runs)):
                    durations[contender].append(timed(*runs[contender]))
            slowest = torch.tensor(list(durations.values()), dtype=torch.float64)
            control.allreduce([slowest], ReduceOp.MAX).wait()
            if rank == 0:
                medians = dict(zip(runs, (median(row) for row in slowest.tolist()), strict=True))
                auto = own.choose(name, tensor_bytes, n)
                point = {
                    "operation": name, "world_size": n, "transmit_bytes": size, "tensor_bytes": tensor_bytes,
                    "medians_ns": medians, "auto": auto, "rounds": rounds,
                }  # fmt: skip
                print(json.dumps(point), flush=True)
    control.barrier().wait()


def show(points: list[dict[str, Any]], ceiling_bit_s: float | None) -> None:
    """Prints one point as several launches have measured it."""
    point, factors = points[0], [factors_of(one["medians_ns"]) for one in points]
    spread = {name: sorted(one[name] for one in factors) for name in factors[0]}
    shown = "  ".join(
        f"{name} {median(values):5.2f}" + (f" ({values[0]:.2f} to {values[-1]:.2f})" if len(values) > 1 else "")
        for name, values in spread.items()
    )
    gloo_ns = median(one["medians_ns"]["gloo"] for one in points)
    best_ns = median(min(one["medians_ns"].values()) for one in points)
    bits = point["transmit_bytes"] * 8 * MODES[point["operation"]].messages
    share = f"  best {bits / best_ns * 1e9 / ceiling_bit_s:.0%} of the ceiling" if ceiling_bit_s else ""
    schedule, streams, chunks = point["auto"]
    print(
        f"{point['operation']:14} N={point['world_size']} T={format_bytes(point['transmit_bytes']):>8} "
        f"gloo {gloo_ns / 1e6:9.3f} ms  {shown}  ({schedule} {streams}x{chunks}, {point['rounds']} runs)" + share,
        flush=True,
    )


def factors_of(medians_ns: dict[str, float]) -> dict[str, float]:
    """How many times faster than plain Gloo each contender was; ``again`` than the first group."""
    both = (medians_ns["gloo"] * medians_ns["again"]) ** 0.5
    factors = {name: both / value for name, value in medians_ns.items() if name not in ("gloo", "again")}
    return {"again": medians_ns["gloo"] / medians_ns["again"]} | factors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lab", type=LabSpec.parse)
    parser.add_argument("--world-sizes", default="2,3,4")
    parser.add_argument("--operations", default=",".join(OPERATIONS))
    parser.add_argument("--sizes", default="4B,1KB,32KB,256KB,1MB,4MB,20MB,40MB,64MB")
    parser.add_argument("--contenders", default="auto")
    parser.add_argument("--streams", type=int, default=16, help="how many streams auto may use")
    parser.add_argument("--seconds", type=float, default=1.5, help="time for each point")
    parser.add_argument("--rounds", type=int, default=7, help="the least rounds for each point")
    parser.add_argument("--launches", type=int, default=1, help="measure in so many pairs of processes")
    parser.add_argument("--batch-io", action="store_true", help="our group's I/O threads as batch")
    parser.add_argument("--pin-io", action="store_true", help="the threads of each of our streams on one core")
    parser.add_argument("--limit", type=float, default=175, help="seconds for all points of one world size and launch")
    parser.add_argument("--out", type=Path, help="also write all points as JSON lines")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rank is not None:
        rank_main(json.loads(asked.job.read_text()), asked.rank)
        return
    revision = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    print(f"{asked.lab or 'loopback'}, {os.cpu_count()} cores, {platform.release()}, commit {revision.stdout.strip()}")
    sizes = [size for piece in asked.sizes.split(",") for size in parse_sizes(piece)]

    def run(hosts: list[dict[str, Any]]) -> None:
        for n in map(int, asked.world_sizes.split(",")):
            job = {
                "world_size": n, "hosts": hosts[:n], "operations": asked.operations.split(","), "sizes": sizes,
                "contenders": asked.contenders.split(","), "streams": asked.streams,
                "seconds": asked.seconds, "rounds": asked.rounds, "batch_io": asked.batch_io,
                "pin_io": asked.pin_io,
            }  # fmt: skip
            launches = [run_ranks(__file__, job, n, asked.limit) for _ in range(asked.launches)]
            for points in zip(*launches, strict=True):
                show(list(points), asked.lab.payload_ceiling() if asked.lab else None)
                if asked.out:
                    with asked.out.open("a") as file:
                        file.writelines(json.dumps(point | {"lab": str(asked.lab or "")}) + "\n" for point in points)

    if asked.lab:
        with Lab(asked.lab) as lab:
            run([asdict(host) for host in lab.hosts])
    else:
        run([])


if __name__ == "__main__":
    main()
