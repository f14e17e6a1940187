"""What a number depends on, host by host, by allow-list: nothing is recorded that is not named here.

The process environment as a whole is never read into the record, since it holds secrets.
"""

from __future__ import annotations

import os
import platform
import resource
import socket
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

import netbench
from netbench.interfaces import Host, Interface

#: Variables that change what is measured, whose values are names, numbers and switches. Each by its whole name: by a
#: prefix such as NETBENCH_ a key of somebody's would come along.
VARIABLES = (
    "OMP_NUM_THREADS",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_DISTRIBUTED_USE_TORCHCOMMS",
    "TORCH_GLOO_LAZY_INIT",
    *(
        f"NETBENCH_{name}"
        for name in ("STREAMS", "MAX_STREAMS", "SCHEDULE", "INTERFACE", "TUNING", "BATCH_IO", "PIN_IO")
    ),
    *(f"GLOO_{name}" for name in ("SOCKET_IFNAME", "DEVICE_TRANSPORT", "DISABLE_CONNECTION_RETRIES", "LOG_LEVEL")),
    *(
        f"MALLOC_{name}"
        for name in (
            *("ARENA_MAX", "ARENA_TEST", "CHECK_", "MMAP_MAX_", "MMAP_THRESHOLD_", "PERTURB_", "TOP_PAD_"),
            "TRIM_THRESHOLD_",
        )
    ),
    *(
        f"NCCL_{name}"
        for name in (
            *("ALGO", "BUFFSIZE", "COMM_BLOCKING", "CROSS_NIC", "CUMEM_ENABLE", "DEBUG", "DEBUG_SUBSYS"),
            *("IB_DISABLE", "IB_GID_INDEX", "IB_HCA", "IB_SL", "IB_TC", "IB_TIMEOUT", "LAUNCH_MODE", "MAX_CTAS"),
            *("MAX_NCHANNELS", "MIN_CTAS", "MIN_NCHANNELS", "NET", "NET_GDR_LEVEL", "NET_PLUGIN", "NSOCKS_PERTHREAD"),
            *("NTHREADS", "P2P_DISABLE", "P2P_LEVEL", "PROTO", "SHM_DISABLE", "SOCKET_FAMILY", "SOCKET_IFNAME"),
            *("SOCKET_NTHREADS", "TUNER_PLUGIN"),
        )
    ),
)

_SYSCTLS = (
    "core/rmem_max",
    "core/wmem_max",
    "core/default_qdisc",
    "core/netdev_max_backlog",
    "ipv4/tcp_rmem",
    "ipv4/tcp_wmem",
    "ipv4/tcp_congestion_control",
    "ipv4/tcp_slow_start_after_idle",
    "ipv4/tcp_mtu_probing",
    "ipv4/tcp_no_metrics_save",
    "ipv4/tcp_timestamps",
    "ipv4/tcp_window_scaling",
)

_PACKAGES = ("torch", "numpy", "pyarrow")


def of_rank(rank: int, host: str, interface: str, address: str) -> dict[str, Any]:
    """Who this rank is, and what is known of the host it runs on."""
    return {"rank": rank, "host": host, "environment": of_host(interface) | {"address": address}}


def by_host(ranks: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry a host, in the order of its first rank, with the ranks that ran on it."""
    hosts: dict[str, dict[str, Any]] = {}
    for who in ranks:
        entry = hosts.setdefault(who["host"], {"host": who["host"], "ranks": []})
        entry["ranks"].append(who["rank"])
        entry |= who["environment"]
    return list(hosts.values())


def of_host(interface: str) -> dict[str, Any]:
    """What is known of this host. Absent facts are null."""
    return {
        "machine": socket.gethostname(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "cpu": _cpu_model(),
        "cpus": psutil.cpu_count(),
        "cpus_allowed": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "load_1min": psutil.getloadavg()[0],
        "container_limits": _container_limits(),
        "virtualization": _virtualization(),
        "open_files_limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "interface": of_interface(interface),
        "sysctls": {name.replace("/", "."): _read(f"/proc/sys/net/{name}") for name in _SYSCTLS},
        "versions": {"netbench": netbench.__version__, "python": platform.python_version()}
        | {name: _version(name) for name in _PACKAGES},
        "variables": _variables(os.environ),
    }


def of_interface(name: str) -> dict[str, Any]:
    """The interface that Gloo is bound to. Speed is in Mbit/s, as the driver says; null where it does not."""
    one = Host().interfaces().get(name, Interface(name, ()))
    driver = Path(f"/sys/class/net/{name}/device/driver")
    return {
        "name": name,
        "addresses": list(map(str, one.addresses)),
        "mtu_bytes": one.mtu_bytes,
        "speed_mbit_per_s": one.speed_mbit_s,
        "driver": driver.resolve().name if driver.exists() else None,
        "kind": "loopback" if one.loopback else "network",
    }


def _variables(environment: Iterable[str]) -> dict[str, str]:
    return {name: os.environ[name] for name in sorted(environment) if name in VARIABLES}


def _version(package: str) -> str | None:
    # torch knows its build (+cpu) better than its metadata does, and the worker has imported it already.
    loaded = getattr(sys.modules.get(package), "__version__", None)
    try:
        return str(loaded or metadata.version(package))
    except metadata.PackageNotFoundError:
        return None


def _read(path: str) -> str | None:
    try:
        return " ".join(Path(path).read_text(encoding="utf-8").split())
    except (OSError, UnicodeDecodeError):
        return None


def _cpu_model() -> str | None:
    for line in (Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else "").splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return platform.processor() or None


def _container_limits(root: str = "/sys/fs/cgroup") -> dict[str, str | None]:
    """``cpu`` as cgroup 2 writes it, microseconds in each period of microseconds: ``150000 100000``."""
    quota, period = _read(f"{root}/cpu/cpu.cfs_quota_us"), _read(f"{root}/cpu/cpu.cfs_period_us")
    older = f"{'max' if quota == '-1' else quota} {period}" if quota and period else None
    return {
        "cpu": _read(f"{root}/cpu.max") or older,
        "memory": _read(f"{root}/memory.max") or _read(f"{root}/memory/memory.limit_in_bytes"),
    }


def _virtualization() -> str | None:
    product = _read("/sys/class/dmi/id/product_name")
    hypervisor = _read("/sys/hypervisor/type")
    flags = _read("/proc/cpuinfo") or ""
    return product or hypervisor or ("hypervisor" if " hypervisor " in flags else None)
