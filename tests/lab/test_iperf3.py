"""iperf3 run between lab hosts, and its output imported: the tool of today, not only what wrote the test data."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from netbench.importers import Given, import_file
from netbench.lab import HostAddress, Lab, LabSpec
from netbench.summary import load_run

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(120),
    pytest.mark.skipif(shutil.which("iperf3") is None, reason="there is no iperf3 here"),
]

SPEC = LabSpec.parse("2x100mbit")
PORT = "5201"


def measured(client: HostAddress, server: HostAddress, *options: str) -> str:
    listening = subprocess.Popen(
        server.command(["iperf3", "--server", "--one-off", "--port", PORT]), stdout=subprocess.DEVNULL
    )
    try:
        command = ["iperf3", "--client", server.address, "--port", PORT, "--json", "--time", "2", *options]
        for _ in range(20):
            done = subprocess.run(client.command(command), capture_output=True, text=True, timeout=60, check=False)
            if "unable to connect" not in done.stdout:
                return done.stdout
            time.sleep(0.25)  # until it listens
        raise AssertionError(done.stdout)
    finally:
        listening.kill()
        listening.wait(10)


@pytest.mark.parametrize(
    ("options", "mode", "streams"),
    [([], "send", 1), (["--reverse"], "send", 1), (["--parallel", "3"], "send", 3), (["--bidir"], "exchange", 1)],
)
def test_what_iperf3_measured_is_the_rate_of_the_lab(
    options: list[str], mode: str, streams: int, tmp_path: Path
) -> None:
    with Lab(SPEC) as lab:
        client, server = lab.hosts
        text = measured(client, server, *options)
    path = tmp_path / "iperf3.json"
    path.write_text(text)
    run = load_run(import_file(path, None, Given(), tmp_path, None, "", []).path)
    [case] = run.summaries().to_dict("records")
    assert (case["mode"], case["streams"], case["world_size"]) == (mode, streams, 2)
    assert run.hosts == [client.address, server.address]
    ceiling = SPEC.payload_ceiling() / 1e9
    assert 0.5 * ceiling < case["busbw_gbit_s"] < 1.03 * ceiling
