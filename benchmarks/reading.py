"""What reading costs: ten million samples in 5,000 cases loaded, summarised and plotted.

Prints wall time and peak memory of each size in a process of its own, and the ratio of the full size to the half,
which is 2 where the cost is linear. The aim is under 10 s and 3 GiB on two cores:

    python benchmarks/reading.py
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from netbench.config import SweepConfig
from netbench.model import Case
from netbench.plan import make_plan
from netbench.record import MEASURED, Manifest, RunFolder, samples_table

_CASES, _ROWS = 5_000, 10_000_000
_AIM_S, _AIM_BYTES = 10.0, 3 * 2**30


def make_record(path: Path, cases: list[Case], rows: int) -> None:
    """A finished run of ``cases`` with ``rows`` samples in all."""
    import pyarrow.parquet as pq

    folder = RunFolder(path)
    folder.samples.mkdir(parents=True)
    random = np.random.default_rng(0)
    for case in cases:
        ranks = 2 if case.mode == "send_recv" else case.world_size
        iterations = rows // len(cases) // ranks
        ideal_ns = 50_000 * (1 + 0.3 * case.streams) + case.transmit_bytes / case.streams**0.7
        samples = []
        for rank in range(ranks):
            array = random.integers(0, 100_000, (iterations, len(MEASURED)))
            array[:, MEASURED.index("iteration")] = np.arange(iterations)
            array[:, MEASURED.index("warmup")] = np.arange(iterations) < 5
            array[:, MEASURED.index("launch")] = 1 + 3 * np.arange(iterations) // iterations  # three, as a sweep would
            array[:, MEASURED.index("round")] = np.arange(iterations) // 10
            array[:, MEASURED.index("duration_ns")] = ideal_ns * (1 + random.gamma(2, 0.05, iterations))
            samples.append((rank, array))
        counters = {"host": "alpha", "wire_sent_bytes": case.transmit_bytes * iterations, "retransmits": 0}
        facts = {"status": "ok", "parts": case.streams, "ranks": [{"rank": rank, **counters} for rank in range(ranks)]}
        table = samples_table(path.name, case, samples, facts)
        pq.write_table(table, folder.sample_file(case.id), compression="zstd")
    folder.write_manifest(
        Manifest(
            run_id=path.name,
            name="reading",
            status="finished",
            netbench="0",
            command=[],
            started_at=datetime.now(UTC),
            config={},
            cases=cases,
        )
    )


def plan(count: int) -> list[Case]:
    """``count`` cases as a wide sweep has them: modes, backends, stream counts, world sizes and many sizes."""
    sizes = [int(4 * 2 ** (exponent / 4)) // 4 * 4 for exponent in range(8, 8 + 4 * 24)]
    config = SweepConfig(
        modes=["send_recv", "all_gather", "allreduce"],
        backends=["gloo", "parallel_gloo"],
        streams=[1, 2, 4, 10, 20],
        world_sizes=[2, 3, 4],
        sizes=sizes,
    )
    cases = make_plan(config).cases
    assert len(cases) >= count, f"the plan has {len(cases)} cases"
    return list(cases[:count])


def read(path: Path) -> dict[str, float]:
    """Times in s of each part of reading the run at ``path`` in this process, and its peak memory in bytes."""
    times = [time.perf_counter()]
    import netbench
    from netbench.figures import write_plots

    [run] = netbench.load(path)
    times.append(time.perf_counter())
    summaries = run.summaries()
    times.append(time.perf_counter())
    plots = write_plots([run])
    times.append(time.perf_counter())
    assert (summaries["status"] == "ok").all()
    parts = dict(zip(("open_s", "summarise_s", "plot_s"), np.diff(times).tolist(), strict=True))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return parts | {"total_s": times[-1] - times[0], "peak_bytes": peak, "cases": len(summaries), "files": len(plots)}


def main() -> None:
    if len(sys.argv) == 2:
        print(json.dumps(read(Path(sys.argv[1]))))
        return
    totals = []
    with tempfile.TemporaryDirectory() as folder:
        for share in (2, 1):
            path = Path(folder, f"run-{share}")
            make_record(path, plan(_CASES // share), _ROWS // share)
            # A process of its own, so that imports are counted and the peak is that of reading alone.
            output = subprocess.run([sys.executable, __file__, str(path)], check=True, capture_output=True, text=True)
            result = json.loads(output.stdout)
            totals.append(result["total_s"])
            print(
                f"{_ROWS // share:,} rows in {result['cases']:,} cases: open {result['open_s']:.2f} s, "
                f"summarise {result['summarise_s']:.2f} s, plot {result['plot_s']:.2f} s ({result['files']} files); "
                f"total {result['total_s']:.2f} s, peak {result['peak_bytes'] / 2**30:.2f} GiB"
            )
    met = result["total_s"] < _AIM_S and result["peak_bytes"] < _AIM_BYTES
    print(f"full over half: {totals[1] / totals[0]:.2f}; aim of {_AIM_S:.0f} s and 3 GiB: {'met' if met else 'MISSED'}")


if __name__ == "__main__":
    main()
