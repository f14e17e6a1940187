"""Wall time from command to record for seed 2's question, by netbench and by the seed's own procedure.

Both take the same number of samples: two modes, two ranks on loopback, 5 iterations of each size that the seed's
script sweeps (its 1 B and 2 B are left out of both, since a float32 is larger). netbench is run twice: with the
seed's pause of 0.1 s between iterations, and without it. The seed's script also measures latency by 100 ping-pongs
with pauses; in netbench the smallest size gives it.

    python benchmarks/time_to_result.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from netbench.config import preset, resolve
from netbench.summary import load

MODES = ["send_recv", "all_gather"]


def seconds(commands: list[list[str]]) -> float:
    start = time.monotonic()
    for command in commands:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=1800)
    return time.monotonic() - start


def main() -> None:
    sizes = [str(size) for size in resolve(preset("gloo_471"), {}).sizes if size >= 4]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = str(Path(__file__).with_name("seed_procedure.py"))
    seed = seconds([[*torchrun, script, mode, *sizes] for mode in MODES])
    print(f"seed's procedure                  {seed:7.1f} s   {len(MODES) * len(sizes) * 5} samples on rank 0")
    for label, pause in (("netbench, the seed's pause of 0.1 s", "0.1"), ("netbench, no pause", "0")):
        with tempfile.TemporaryDirectory() as out:
            options = ["--modes", ",".join(MODES), "--world-sizes", "2", "--sizes", ",".join(sizes)]
            options += ["--pause", pause, "--out", out]
            ours = seconds([[sys.executable, "-m", "netbench", "sweep", "gloo_471", *options]])
            samples = load(out)[0].samples()
            timed = samples[(samples["phase"] == "timed") & (samples["rank"] == 0)]
            print(f"{label:33} {ours:7.1f} s   {len(timed)} samples on each rank, {seed / ours:.1f} times as fast")


if __name__ == "__main__":
    main()
