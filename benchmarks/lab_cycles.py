"""Makes labs and ends them, some by kill -9 at a random moment, and counts what is left.

``python benchmarks/lab_cycles.py [CYCLES] [KILLED]``; 50 and 20 by default. Ends with 1 when anything is left.
"""

from __future__ import annotations

import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from netbench.lab import list_labs

SPEC = "8x100mbit,flow=10mbit"

#: A lab with a process in one host, for as long as standard input is open.
OWNER = """
import subprocess, sys, time
from netbench.lab import Lab, LabSpec
begun = time.monotonic()
with Lab(LabSpec.parse(sys.argv[1])) as lab:
    made = time.monotonic()
    inside = subprocess.Popen(lab.hosts[3].command(["sleep", "1000"]), stderr=subprocess.DEVNULL)
    sys.stdin.read()
    ended = time.monotonic()
inside.wait()
print(made - begun, time.monotonic() - ended)
"""

#: The kernel takes namespaces down in the background.
_SETTLE_LIMIT_S = 20.0


#: The kernel's own count takes what its processors keep in reserve for used, so it wavers by a few dozen; fifty labs
#: that had leaked would be several hundred.
_KERNEL = "network namespaces in the kernel"
_RESERVE = 32


def left_behind(before: dict[str, int], after: dict[str, int]) -> set[str]:
    """What there is more of than before; less is the end of somebody else's."""
    return {what for what in before if after[what] > before[what] + (_RESERVE if what == _KERNEL else 0)}


def count() -> dict[str, int]:
    """What a lab could leave behind on this machine, as far as this user can see it."""
    processes = [path for path in Path("/proc").iterdir() if path.name.isdecimal()]
    networks, ours = set(), 0
    for process in processes:
        try:
            networks.add((process / "ns/net").stat().st_ino)
            networks |= {
                link.stat().st_ino for link in (process / "fd").iterdir() if str(link.readlink()).startswith("net:")
            }
            ours += b"netbench.lab" in (process / "cmdline").read_bytes()
        except OSError:
            continue
    named = Path("/run/netns")
    return {
        "processes of labs": ours,
        "network namespaces in use": len(networks),
        "named network namespaces": len(list(named.iterdir())) if named.is_dir() else 0,
        "interfaces of this host": len(socket.if_nameindex()),
        "queues of this host": lines("tc", "qdisc"),
        "nftables of this host": lines("nft", "list", "tables"),
        "labs listed": len(list_labs()),
    } | kernel_namespaces()


def lines(*command: str) -> int:
    try:
        return len(subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.splitlines())
    except FileNotFoundError:
        return 0


def kernel_namespaces() -> dict[str, int]:
    """Namespaces that the kernel holds, also those that nobody refers to any more; root alone may read it."""
    try:
        table = Path("/proc/slabinfo").read_text().splitlines()
    except OSError:
        return {}
    (row,) = (row.split() for row in table if row.startswith("net_namespace "))
    return {_KERNEL: int(row[1])}


def cycle(kill_after_s: float | None) -> tuple[float, float] | None:
    """One lab; the seconds that it took to come and to go, or None when its owner was killed."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, SPEC], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        if kill_after_s is None:
            output, _ = owner.communicate("", timeout=60)
            came, went = output.split()
            return float(came), float(went)
        time.sleep(kill_after_s)
        owner.kill()
        return None


def main(cycles: int, killed: int) -> int:
    chance = random.Random(0)
    doomed = set(chance.sample(range(cycles), killed))
    with tempfile.TemporaryDirectory() as runtime:
        # Other labs of this user stay out of the count.
        os.environ["XDG_RUNTIME_DIR"] = runtime
        before = count()
        times = [cycle(chance.uniform(0.02, 1.5) if number in doomed else None) for number in range(cycles)]
        deadline = time.monotonic() + _SETTLE_LIMIT_S
        while left_behind(before, after := count()) and time.monotonic() < deadline:
            time.sleep(0.2)
    for what, number in after.items():
        print(
            f"{what:34} {before[what]:5} -> {number:5}{'   LEFT BEHIND' if what in left_behind(before, after) else ''}"
        )
    for name, seconds in zip(("up", "down"), zip(*filter(None, times), strict=True), strict=True):
        print(f"{SPEC} {name:4}: median {statistics.median(seconds):.2f} s, at most {max(seconds):.2f} s")
    return int(bool(left_behind(before, after)))


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:]]
    sys.exit(main(*(numbers or [50, 20])))
