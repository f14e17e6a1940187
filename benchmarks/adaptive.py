"""What it costs to know a median: as many iterations as it takes, against always 100.

Measures the same cases twice in a lab and twice on loopback, with exactly 100 iterations and with as many as bring the
95 % interval of the median within 5 %, for at most 2 s a case. Printed for each case: iterations, how far the interval
reaches from the median, the seconds that the timed iterations took, and why they ended; then the sums, over the cases
for which 100 iterations were enough to bring the interval as near, and over those for which they were not.

    python benchmarks/adaptive.py
"""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile

import pandas as pd

from netbench.summary import load

_CASES = ["--backends", "gloo", "--streams", "1", "--world-sizes", "2", "--modes", "exchange,allreduce"]
_PRECISION = 0.05
PATHS = {
    "lab 2x200mbit": ["--lab", "2x200mbit", "--sizes", "16KiB,256KiB,1MiB"],
    "loopback": ["--sizes", "16KiB,1MiB,16MiB"],
}


def measured(options: list[str]) -> pd.DataFrame:
    """Iterations, reach of the interval as a share, and seconds, by case."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "netbench", "sweep", *_CASES, *options, "--out", out]
        subprocess.run(command, check=True, timeout=600, capture_output=True)
        [run] = load(out)
        table, ranks = run.summaries().set_index("case_id"), run.ranks()
    ends = pd.concat([table["median_ns"] - table["low_ns"], table["high_ns"] - table["median_ns"]], axis=1)
    seconds = ranks.groupby("case_id")["window_ns"].max() / 1e9
    return pd.DataFrame(
        {"iterations": table["iterations"], "reach": ends.max(axis=1) / table["median_ns"], "s": seconds}
    ).assign(ended=table["stop_reason"])


def main() -> None:
    print(f"host {platform.node()}\n")
    print(f"{'':14}  {'':28}  {'100 iterations':^22}  {'as many as it takes':^22}")
    print(f"{'path':14}  {'case':28}  {'n':>5}  {'reach':>6}  {'s':>6}  {'n':>7}  {'reach':>6}  {'s':>6}")
    for path, options in PATHS.items():
        exact, auto = measured([*options, "--iterations", "100"]), measured([*options, "--budget", "2s"])
        for case_id, fixed in exact.iterrows():
            cells = [
                f"{row['iterations']:>{width}.0f}  {row['reach']:6.1%}  {row['s']:6.2f}"
                for row, width in ((fixed, 5), (auto.loc[case_id], 7))
            ]
            print(f"{path:14}  {case_id:28}  {'  '.join(cells)}  {auto.loc[case_id, 'ended']}")
        enough = exact["reach"] <= _PRECISION
        for what, chosen in (("100 are enough", enough), ("100 are too few", ~enough)):
            before, after = exact["s"][chosen].sum(), auto["s"][chosen].sum()
            if chosen.any():
                known = f"{(auto['reach'][chosen] <= _PRECISION).sum()} of {chosen.sum()} known"
                print(f"{path:14}  {what:28}  {before:21.2f}  {after:23.2f}  {after / before:.0%} of the time, {known}")
        print()


if __name__ == "__main__":
    main()
