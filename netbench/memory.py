"""Whether a case fits into a host's memory."""

from __future__ import annotations

from pathlib import Path

import psutil

from netbench.model import Case
from netbench.modes import MODES
from netbench.units import about_bytes

#: Left to everything else on the host.
_RESERVE = 0.05


def free_bytes() -> int:
    """What this process and its children may still allocate: the host's or the container's limit, less a reserve."""
    host = psutil.virtual_memory()
    limits = [host.available - _RESERVE * host.total]
    container = _container_free_bytes()
    if container is not None:
        limits.append(container)
    return max(0, int(min(limits)))


def need_bytes(case: Case, ranks: int) -> int:
    """What ``ranks`` ranks on one host need together for ``case``: buffers and Gloo's own copies."""
    return int(MODES[case.mode].memory_ratio(len(case.members)) * case.tensor_bytes) * ranks


def refusal(case: Case, ranks: int, free: int) -> str | None:
    """Why ``case`` does not fit into ``free`` bytes, with both figures; None where it fits."""
    need = need_bytes(case, ranks)
    if need <= free:
        return None
    return f"needs {about_bytes(need)} of memory for {ranks} ranks on one host; {about_bytes(free)} are free"


def _container_free_bytes(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What the control group that we see at its root still allows; None where there is no limit."""
    for limit, used, details in (
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ):
        try:
            unused = int((root / limit).read_text()) - int((root / used).read_text())
        except (OSError, ValueError):
            continue
        return max(0, unused + _reclaimable_bytes(root / details))
    return None


def _reclaimable_bytes(details: Path) -> int:
    """The cache of files that nobody uses now; it counts as used, and the kernel gives it up when it has to."""
    try:
        counts = dict(line.split() for line in details.read_text().splitlines())
        return int(counts.get("total_inactive_file", counts.get("inactive_file", 0)))
    except (OSError, ValueError):
        return 0
