"""Plots of your own from a run: one of netbench's figures adapted, and a new one made from the samples.

python docs/plot_own.py results/<run> <folder for the pictures>
"""

from __future__ import annotations

import sys
from pathlib import Path

from matplotlib.figure import Figure

import netbench


def main(path: str, folder: str) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    [run] = netbench.load(path)

    # A figure of netbench's with a line of your own in each panel.
    for name, figure in netbench.draw(run, "bandwidth", theme="dark").items():
        for axes in figure.axes:
            axes.axhline(0.1, color="tab:red", linewidth=1)
        figure.savefig(Path(folder, f"{name}.png"))

    # A figure of your own: every iteration of one case, by the rank that was slowest in it.
    samples = run.samples()
    timed = samples[samples["phase"] == "timed"]
    case_id = timed["case_id"].iloc[-1]
    slowest = timed[timed["case_id"] == case_id].sort_values("duration_ns").groupby("iteration").tail(1)
    figure = Figure(figsize=(8, 4.5))
    axes = figure.add_subplot()
    for rank, rows in slowest.groupby("rank"):
        axes.plot(rows["iteration"], rows["duration_ns"] / 1e6, "o", label=f"rank {rank} was slowest")
    axes.set(xlabel="iteration", ylabel="time (ms)", title=case_id)
    axes.legend()
    figure.savefig(Path(folder, "iterations.png"))


if __name__ == "__main__":
    main(*sys.argv[1:])
