"""How often `netbench compare` is wrong: the same settings measured again and again, and a link that lost a fifth.

Three series of runs, taken in turns so that drift of the machine hits all alike: on loopback, in a lab, and in a lab
whose rate is a fifth lower. Neighbours of one series are compared: nothing changed, so every "slower" or "faster" is
false. Then each slow run is compared with the fast one before it: each of its cases must be found "slower".

Runs are put into FOLDER; those that are there already are not measured again, so that it can be done in pieces:

    python benchmarks/compare.py FOLDER [--runs 21] [--record times.json]

``--record`` writes the headline times of the two series in which nothing changes; tests/data has such a file.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from netbench.compare.comparison import VERDICTS, Comparison, compare
from netbench.summary import Run, load

_RATE_MBIT = 200
_LAB = ["--modes", "exchange,allreduce", "--sizes", "512KiB,1MiB"]
SERIES = {
    "loopback": ["--modes", "all_gather,allreduce", "--sizes", "64KiB,4MiB"],
    "lab": [*_LAB, "--lab", f"2x{_RATE_MBIT}mbit"],
    "lab, a fifth slower": [*_LAB, "--lab", f"2x{_RATE_MBIT * 4 // 5}mbit"],
}
_ALL = ["--backends", "gloo", "--streams", "1", "--world-sizes", "2"]


def measured(folder: Path, number: int, runs: int) -> list[Run]:
    """The first ``runs`` runs of a series."""
    folder.mkdir(parents=True, exist_ok=True)
    options = list(SERIES.values())[number]
    while len(list(folder.iterdir())) < runs:
        command = [sys.executable, "-m", "netbench", "sweep", *_ALL, *options, "--name", folder.name]
        subprocess.run([*command, "--out", str(folder)], check=True, timeout=300, capture_output=True)
    return load(folder)[:runs]


def record(path: Path, series: list[list[Run]]) -> None:
    """Series -> case -> a run each -> a round each -> ns."""
    times = {
        name: {
            case_id: [[block.tolist() for block in run.iterations(case_id).blocks()] for run in runs]
            for case_id in sorted(runs[0].done)
        }
        for name, runs in zip(SERIES, series, strict=False)
    }
    path.write_text(json.dumps(times) + "\n")


def line(what: str, comparisons: Sequence[Comparison]) -> str:
    verdicts = Counter(pair.verdict for comparison in comparisons for pair in comparison.pairs)
    counts = "  ".join(f"{verdicts[name]:>{len(name)}}" for name in VERDICTS[:4])
    failing = sum(comparison.count("slower") > 0 for comparison in comparisons)
    return f"{what:35}  {len(comparisons):>11}  {failing:>16}  {verdicts.total():>5}  {counts}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=21)
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()
    for runs in range(1, arguments.runs + 1):
        for number in range(len(SERIES)):
            measured(arguments.folder / str(number), number, runs)
    series = [measured(arguments.folder / str(number), number, arguments.runs) for number in range(len(SERIES))]
    if arguments.record:
        record(arguments.record, series[:2])
    print(f"host {platform.node()}, {arguments.runs} runs of each series, margin 5 %\n")
    print(f"{'compared':35}  comparisons  --fail-on slower  cases  {'  '.join(VERDICTS[:4])}")
    for name, found in zip(SERIES, series, strict=True):
        print(line(f"the same again: {name}", [compare(before, after) for before, after in pairwise(found)]))
    slower = [compare(fast, slow, across=["lab"]) for fast, slow in zip(series[1], series[2], strict=True)]
    print(line("a fifth slower: lab", slower))


if __name__ == "__main__":
    main()
