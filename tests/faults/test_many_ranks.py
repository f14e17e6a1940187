"""As many ranks as a small machine can hold at all come up, measure, and go away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from programs import Program, only_run

from netbench.errors import Exit

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(1800)]

Netbench = Callable[..., Program]

#: Of private memory, each rank takes about so much, bytes.
RANK_BYTES = 100 << 20


@pytest.mark.parametrize("count", [64])
def test_64_ranks_finish_a_small_sweep(count: int, netbench: Netbench, tmp_path: Path) -> None:
    if psutil.virtual_memory().available < count * RANK_BYTES:
        pytest.skip(f"{count} ranks need {count * RANK_BYTES >> 30} GiB of memory")
    axes = ["--modes", "allreduce,all_gather", "--backends", "gloo", "--streams", "1", "--world-sizes", f"2,{count}"]
    some = ["--sizes", "4KiB", "--iterations", "5", "--warmup", "1", "--rounds", "1"]
    program = netbench("sweep", *axes, *some, "--out", str(tmp_path))
    program.note_until_end(limit_s=1500)
    assert program.end() == Exit.DONE, program.err
    assert program.left_behind() == []
    folder = only_run(tmp_path)
    assert len(folder.finished()) == 4
    ranks = [rank for host in folder.read_manifest().environment for rank in host["ranks"]]
    assert sorted(ranks) == list(range(count))
