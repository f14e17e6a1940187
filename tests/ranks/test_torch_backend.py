"""A torch program runs over parallel_gloo with its backend's name changed and nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("torch_program.py")
CHECKS = re.findall(r"^@check\ndef (\w+)", PROGRAM.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture(scope="module", params=[2, 3])
def complaints(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """What went wrong in each check of one run of the program."""
    store = tmp_path_factory.mktemp("store") / "store"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NETBENCH_MAX_STREAMS": "3"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(rank), str(request.param), str(store)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(request.param)
    ]
    try:
        output, errors = ranks[0].communicate(timeout=120)
        for rank in ranks[1:]:
            errors += rank.communicate(timeout=30)[1]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * request.param, errors
    found: dict[str, str | None] = json.loads(output.splitlines()[-1])
    return found


@pytest.mark.parametrize("check", CHECKS)
def test_torch_program(complaints: dict[str, str | None], check: str) -> None:
    assert complaints[check] is None


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo"} | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


OPEN = """
import netbench.torch_backend, torch.distributed as dist
from datetime import timedelta
dist.init_process_group("parallel_gloo", store=dist.HashStore(), rank=0, world_size=1, pg_options={options})
"""


def test_options_of_another_kind_are_refused() -> None:
    ended = run(OPEN.format(options="object()"))
    assert "pass netbench.process_group.ParallelOptions" in ended.stderr


def test_a_wrong_variable_is_named() -> None:
    ended = run(OPEN.format(options=None), NETBENCH_STREAMS="lots")
    assert "NETBENCH_STREAMS: 'lots' is not a stream count" in ended.stderr


def test_torchcomms_is_refused() -> None:
    ended = run("import netbench.torch_backend", TORCH_DISTRIBUTED_USE_TORCHCOMMS="1")
    assert "TORCH_DISTRIBUTED_USE_TORCHCOMMS is set" in ended.stderr


def test_debug_mode_does_not_put_a_wrapper_round_the_group() -> None:
    code = OPEN.format(options=None) + "assert type(dist.group.WORLD).__name__ == 'ParallelProcessGroup'"
    ended = run(code, TORCH_DISTRIBUTED_DEBUG="DETAIL")
    assert ended.returncode == 0, ended.stderr
