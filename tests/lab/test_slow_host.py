"""``netbench matrix`` in a lab in which one host's link is a quarter of the others': exactly its pairs are named.

Specifications of labs know one rate for all, so the queues of that host are changed once the lab is up.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import netbench.sweep
from netbench.__main__ import run
from netbench.errors import Exit
from netbench.framing import QUEUE_BYTES, Framing
from netbench.lab import HostAddress, Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]

SLOW_HOST, SLOW_BIT_S, RATE_BIT_S = 2, 50_000_000, 200_000_000
PAYLOAD = float(Framing(1500, QUEUE_BYTES).payload_share)

#: Gives an interface of the namespace that it runs in another rate; the handle is the one that the lab gave its queue.
CHANGE = """
import sys
from pyroute2 import IPRoute
name, rate = sys.argv[1], int(sys.argv[2])
with IPRoute() as link:
    index = link.link_lookup(ifname=name)[0]
    link.tc("replace", "tbf", index, handle=0x10000, rate=rate // 8, burst=16384, limit=2**20)
"""


def change_rate(place: HostAddress, interface: str, bit_s: int) -> None:
    command = place.command([sys.executable, "-c", CHANGE, interface, str(bit_s)])
    subprocess.run(command, check=True, timeout=30, capture_output=True)


class LabWithASlowHost(Lab):
    def __enter__(self) -> Lab:
        lab = super().__enter__()
        try:
            change_rate(self.hosts[SLOW_HOST], "lab0", SLOW_BIT_S)
            change_rate(self.switch, f"port{SLOW_HOST}", SLOW_BIT_S)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return lab


def answers(typed: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, list[dict[str, Any]], str]:
    code = run([*typed, "--format", "json"])
    out, err = capsys.readouterr()
    return code, json.loads(out), err


def test_exactly_the_pairs_of_the_slow_host_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(netbench.sweep, "Lab", LabWithASlowHost)
    typed = ["matrix", "--lab", "4x200mbit", "--size", "512KiB", "--budget", "0.05", "--out", str(tmp_path)]
    code, pairs, err = answers(typed, capsys)
    assert code == Exit.DONE, err
    assert [(row["rank_a"], row["rank_b"]) for row in pairs] == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    assert [row["host_b"] for row in pairs] == [f"host{row['rank_b']}" for row in pairs]
    for row in pairs:
        is_slow = SLOW_HOST in (row["rank_a"], row["rank_b"])
        assert ("bandwidth" in row["slow"]) == is_slow, row
        # Other work on the machine slows some pairs a little, and a full bucket lets each message begin fast.
        ceiling = (SLOW_BIT_S if is_slow else RATE_BIT_S) * PAYLOAD / 1e9
        assert 0.7 * ceiling < row["bandwidth_gbit_s"] < 1.1 * ceiling, row
        assert row["bandwidth_low_gbit_s"] <= row["bandwidth_gbit_s"] <= row["bandwidth_high_gbit_s"]
    assert "host2 is in every slow pair: look at its cable, its port and its CPU" in err
    assert len(list(tmp_path.glob("*/plots/matrix-send_recv-gloo-k1.png"))) == 1

    code, again, err = answers(["matrix", str(tmp_path), "--fail-on", "slow"], capsys)
    assert code == Exit.CASE_FAILED
    assert "--fail-on: " in err
    assert again == pairs
