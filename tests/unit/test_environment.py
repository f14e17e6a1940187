"""What is recorded of a host: what is on the list, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

import netbench
from netbench import environment

SECRET = "do-not-record-me-8f3a"


@pytest.fixture
def loopback() -> str:
    names = [name for name, stats in psutil.net_if_stats().items() if "loopback" in stats.flags]
    return names[0] if names else pytest.skip("no loopback interface")


@pytest.mark.parametrize(
    "name",
    [
        *("AWS_SECRET_ACCESS_KEY", "MY_GLOO_TOKEN", "OMP_NUM_THREADS_TOKEN", "HOME", "PATH", "gloo_token"),
        *("NETBENCH_API_KEY", "NCCL_SECRET", "GLOO_X", "GLOO_DEVICE_TRANSPORT_TCP_TLS_PKEY", "MALLOC_TOKEN"),
        *("TORCH_GLOO_KEY", "NETBENCH_TUNING_KEY"),
    ],
)
def test_what_is_not_on_the_list_is_not_recorded(name: str, monkeypatch: pytest.MonkeyPatch, loopback: str) -> None:
    monkeypatch.setenv(name, SECRET)
    assert SECRET not in json.dumps(environment.of_rank(0, "alpha", loopback, "127.0.0.1"))


@pytest.mark.parametrize("name", ["GLOO_SOCKET_IFNAME", "TORCH_GLOO_LAZY_INIT", "NCCL_DEBUG", "OMP_NUM_THREADS"])
def test_what_changes_a_measurement_is_recorded(name: str, monkeypatch: pytest.MonkeyPatch, loopback: str) -> None:
    monkeypatch.setenv(name, "7")
    assert environment.of_host(loopback)["variables"][name] == "7"


def test_a_host_is_described_in_strict_json(loopback: str) -> None:
    host = json.loads(json.dumps(environment.of_host(loopback), allow_nan=False))
    assert host["versions"]["netbench"] == netbench.__version__
    assert host["versions"]["torch"]
    assert 1 <= host["cpus_allowed"] <= host["cpus"]
    assert host["memory_bytes"] > 2**20
    assert host["interface"]["name"] == loopback
    assert host["interface"]["kind"] == "loopback"
    assert host["interface"]["mtu_bytes"] > 0
    assert host["sysctls"]["ipv4.tcp_congestion_control"]


def test_ranks_are_gathered_by_host_in_the_order_of_their_first_rank() -> None:
    told = [
        {"rank": 0, "host": "beta", "environment": {"cpus": 2}},
        {"rank": 1, "host": "alpha", "environment": {"cpus": 8}},
        {"rank": 2, "host": "beta", "environment": {"cpus": 2}},
    ]
    assert environment.by_host(told) == [
        {"host": "beta", "ranks": [0, 2], "cpus": 2},
        {"host": "alpha", "ranks": [1], "cpus": 8},
    ]


@pytest.mark.parametrize(
    ("files", "cpu", "memory"),
    [
        ({}, None, None),
        ({"cpu.max": "max 100000", "memory.max": "max"}, "max 100000", "max"),
        ({"cpu/cpu.cfs_quota_us": "150000", "cpu/cpu.cfs_period_us": "100000"}, "150000 100000", None),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "max 100000", None),
        ({"memory/memory.limit_in_bytes": "1048576"}, None, "1048576"),
    ],
)
def test_a_containers_limits_are_told_alike_by_both_kinds_of_control_groups(
    files: dict[str, str], cpu: str | None, memory: str | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert environment._container_limits(str(tmp_path)) == {"cpu": cpu, "memory": memory}
