"""Data that arrives wrong is a result, not a crash."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import Program, only_run

from netbench.errors import Exit

pytestmark = pytest.mark.e2e

Netbench = Callable[..., Program]

#: Python reads this file when it starts. Rank 1 of the workers gets an all_gather that damages what it gathered.
DAMAGE = """
import os, sys
if "netbench.worker" in sys.orig_argv and os.environ.get("RANK") == "1":
    from netbench import modes

    right = modes.AllGather.steps

    def steps(self, lane, buffers, part):
        def damage():
            buffers.outputs[0][3] += 1
            return []

        return [*right(self, lane, buffers, part), damage]

    modes.AllGather.steps = steps
"""


def test_wrong_data_is_a_result_without_a_bandwidth_and_an_exit_code(netbench: Netbench, tmp_path: Path) -> None:
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "sitecustomize.py").write_text(DAMAGE)
    out = tmp_path / "results"
    axes = ["--modes", "all_gather,allreduce", "--backends", "gloo", "--streams", "1", "--world-sizes", "2"]
    program = netbench(
        *("sweep", *axes, "--sizes", "4KB", "--iterations", "3", "--rounds", "1", "--out", str(out)),
        PYTHONPATH=str(tmp_path / "python"),
    )
    assert program.end() == Exit.CASE_FAILED
    wrong, right = "all_gather-gloo-k1-n2-4KB", "allreduce-gloo-k1-n2-4KB"
    assert f"{wrong}: wrong: 2 elements were wrong" in program.err  # one before timing, one after
    assert f"{right}: " not in program.err
    folder = only_run(out)
    assert folder.finished() == {wrong, right}

    shown = netbench("show", str(folder.path), "--format", "json")
    assert shown.end() == 0
    rows = {row["case_id"]: row for row in json.loads(shown.out)}
    assert (rows[wrong]["status"], rows[wrong]["wrong_elements"], rows[wrong]["algbw_gbit_s"]) == ("wrong", 2, None)
    assert (rows[right]["status"], rows[right]["wrong_elements"]) == ("ok", 0)
    assert rows[right]["algbw_gbit_s"] > 0
