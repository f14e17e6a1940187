"""Whether a case fits into memory, and what is said when it does not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from synthetic import make_case

from netbench import memory
from netbench.modes import MODES

GIB = 2**30
GATHER = make_case("all_gather", "gloo", 1, 4, GIB)


def test_all_gather_needs_its_input_its_outputs_and_gloos_copy_of_them_on_every_rank() -> None:
    assert memory.need_bytes(GATHER, ranks=4) == 4 * (1 + 4 + 4) * GIB
    assert memory.need_bytes(GATHER, ranks=1) == 9 * GIB


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_needs_its_input_at_least_and_more_with_more_ranks_on_a_host(mode: str) -> None:
    case = make_case(mode, tensor_bytes=4096)
    assert 4096 <= memory.need_bytes(case, 1) < memory.need_bytes(case, 2)


def test_a_case_that_does_not_fit_is_refused_with_both_figures() -> None:
    assert memory.refusal(GATHER, 4, 36 * GIB) is None
    reason = memory.refusal(GATHER, 4, 36 * GIB - 1)
    assert reason == "needs 36 GiB of memory for 4 ranks on one host; 36 GiB are free"
    assert memory.refusal(GATHER, 4, 5 * GIB) == "needs 36 GiB of memory for 4 ranks on one host; 5 GiB are free"


def cgroup(root: Path, **files: str) -> Path:
    for name, content in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_a_container_leaves_its_limit_less_what_is_used(tmp_path: Path) -> None:
    root = cgroup(tmp_path, **{"memory.max": "1000\n", "memory.current": "300\n"})
    assert memory._container_free_bytes(root) == 700


def test_the_older_kind_of_container_limit_is_understood(tmp_path: Path) -> None:
    root = cgroup(tmp_path, **{"memory__memory.limit_in_bytes": "1000", "memory__memory.usage_in_bytes": "900"})
    assert memory._container_free_bytes(root) == 100


def test_a_cache_of_files_that_nobody_uses_counts_as_free(tmp_path: Path) -> None:
    root = cgroup(
        tmp_path,
        **{
            "memory.max": "1000",
            "memory.current": "900",
            "memory.stat": "anon 300\ninactive_file 500\nactive_file 50\n",
        },
    )
    assert memory._container_free_bytes(root) == 600


@pytest.mark.parametrize("files", [{}, {"memory.max": "max\n", "memory.current": "300\n"}, {"memory.max": "1000"}])
def test_without_a_limit_the_host_decides(tmp_path: Path, files: dict[str, str]) -> None:
    assert memory._container_free_bytes(cgroup(tmp_path, **files)) is None


def test_more_than_the_limit_in_use_leaves_nothing(tmp_path: Path) -> None:
    root = cgroup(tmp_path, **{"memory.max": "1000", "memory.current": "1200"})
    assert memory._container_free_bytes(root) == 0


@pytest.mark.parametrize(("container", "free"), [(None, 350), (100, 100), (900, 350)])
def test_the_lesser_of_host_and_container_counts_with_a_reserve_for_the_host(
    container: int | None, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=1000, available=400))
    monkeypatch.setattr(memory, "_container_free_bytes", lambda: container)
    assert memory.free_bytes() == free
