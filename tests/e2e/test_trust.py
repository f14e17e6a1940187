"""From two sweeps of the same settings to a comparison and a gate, with real ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from programs import Program

from netbench.__main__ import run as netbench
from netbench.compare.comparison import VERDICTS
from netbench.errors import Exit
from netbench.summary import load

pytestmark = pytest.mark.e2e

OPTIONS = "--modes allreduce --backends gloo --streams 1 --world-sizes 2 --sizes 1MB --iterations 12 --rounds 3"


def test_the_same_settings_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("first", "second"):
        program = Program("sweep", *OPTIONS.split(), "--name", name, "--out", str(tmp_path))
        try:
            assert program.end() == Exit.DONE, program.err
        finally:
            program.kill()
    first, second = sorted(load(tmp_path), key=lambda run: run.manifest.started_at)

    ranks = first.ranks()
    assert ranks["window_ns"].gt(0).all()
    assert ranks["own_cpu_ns"].gt(0).all()
    assert (ranks["machine_cpu_ns"] >= 0).all()
    # Loopback carries what both ranks send, and headers.
    assert (ranks["interface_sent_bytes"] >= ranks["wire_sent_bytes"].sum()).all()
    [case] = first.summaries().to_dict("records")
    assert case["cpu_s_per_gb"] > 0
    assert case["launches"] == 1
    assert 0 <= case["cpu_foreign"] <= 1

    paths = [str(run.folder.path) for run in (first, second)]
    assert netbench(["compare", *paths, "--format", "json"]) == Exit.DONE
    [comparison] = json.loads(capsys.readouterr().out)
    assert [one["verdict"] in VERDICTS for one in comparison["cases"]] == [True]
    assert comparison["cases"][0]["blocks"] == "3 rounds, 3 rounds"
    assert netbench(["check", paths[0], "--require", "allreduce@1MB,n=2 >= 1Mbit/s"]) == Exit.DONE
    assert netbench(["check", paths[0], "--require", "allreduce@1MB,n=2 >= 100Tbit/s"]) == Exit.CASE_FAILED
