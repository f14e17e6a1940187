"""The benchmarks of netbench itself still run; their figures are for an idle machine, and for people."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.e2e


def test_the_loop_is_compared_with_a_hand_loop() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "overhead.py"), "--rounds", "6"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    rows = [line.split() for line in ran.stdout.splitlines()[2:]]
    assert [row[0] for row in rows][:2] == ["8B", "1KiB"]
    for _, hand, ratio, low, _, high, more in rows:
        assert float(hand) > 0
        assert float(low) <= float(ratio) <= float(high)
        assert float(ratio) == pytest.approx(1 + float(more) / float(hand), abs=0.01)
