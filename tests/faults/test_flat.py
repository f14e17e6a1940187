"""A launch with many cases over many streams opens its groups once, and takes nothing more as it goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from programs import Program, only_run

from netbench.demands import open_files
from netbench.errors import Exit

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

Netbench = Callable[..., Program]

BACKENDS = ("split_gloo", "multi_device_gloo", "parallel_gloo")
CASES = 201
AXES = [
    *("--modes", "allreduce", "--backends", ",".join(BACKENDS), "--streams", "20", "--world-sizes", "2"),
    *("--sizes", ",".join(str(4096 + 4 * index) for index in range(CASES // len(BACKENDS)))),
    *("--iterations", "2", "--warmup", "1", "--rounds", "1"),
]

#: What the interpreter and the C library may keep for themselves as they go on.
SLACK_BYTES = 8 << 20


class Taken(NamedTuple):
    """What one rank has of its machine."""

    files: int
    threads: int
    memory_bytes: int

    @classmethod
    def by(cls, rank: psutil.Process) -> Taken:
        return cls(rank.num_fds(), rank.num_threads(), rank.memory_info().rss)


def test_files_threads_and_memory_stay_as_they_are_over_200_cases(netbench: Netbench, tmp_path: Path) -> None:
    program = netbench("sweep", *AXES, "--out", str(tmp_path))

    def finished() -> set[str]:
        return only_run(tmp_path).finished() if any(tmp_path.glob("*/samples")) else set()

    taken: list[dict[int, Taken]] = []
    for count in (20, 100, 190):
        program.wait_until(lambda: len(finished()) >= count, f"{count} finished cases")  # noqa: B023
        taken.append({rank: Taken.by(process) for rank, process in program.workers().items()})
        if count == 20:
            assert {case_id.split("-")[1] for case_id in finished()} == set(BACKENDS)  # all groups are open
    program.note_until_end()
    assert program.end() == Exit.DONE, program.err
    assert program.left_behind() == []
    assert len(finished()) == CASES
    needed = open_files(only_run(tmp_path).read_manifest().cases)
    for rank in (0, 1):
        early, middle, late = (each[rank] for each in taken)
        for later in (middle, late):
            # Rank 0 has a file open while it writes a record, and both read their own counters.
            assert abs(later.files - early.files) <= 3
            assert abs(later.threads - early.threads) <= 1
            assert later.memory_bytes - early.memory_bytes < SLACK_BYTES
        assert 0.6 * needed < early.files < needed  # it is known before what a launch takes
