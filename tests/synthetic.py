"""A run on disk whose times are chosen, so that what is read from it is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from netbench.model import DTYPES, Case, Point, Skip
from netbench.modes import participants, sized
from netbench.record import MEASURED, Failure, Manifest, RunFolder, samples_table, write_samples

#: Gives the durations in ns of a case, shape (ranks, iterations).
Durations = Callable[[Case, int, int], np.ndarray]


def make_case(
    mode: str = "allreduce",
    backend: str = "gloo",
    streams: int = 1,
    world_size: int = 2,
    tensor_bytes: int = 1 << 20,
    dtype: str = "float32",
    **axes: Any,
) -> Case:
    assert tensor_bytes % DTYPES[dtype] == 0
    point = Point(mode=mode, backend=backend, streams=streams, world_size=world_size, dtype=dtype, **axes)
    return sized(point, tensor_bytes)


def constant(duration_ns: int) -> Durations:
    return lambda case, ranks, iterations: np.full((ranks, iterations), duration_ns)


def write_case(
    folder: RunFolder,
    run_id: str,
    case: Case,
    durations: Durations,
    iterations: int = 20,
    warmup: int = 3,
    facts: dict[str, Any] | None = None,
    faults: Callable[[Case], int] = lambda case: 0,
    rounds: int = 1,
) -> None:
    """Warm-up iterations take a hundred times as long, so mixing them in would show."""
    ranks = participants(case.mode, case.world_size, case.pair)
    timed = durations(case, len(ranks), iterations)
    samples = []
    for index, rank in enumerate(ranks):
        rows = np.zeros((warmup + iterations, len(MEASURED)), np.int64)
        rows[:, MEASURED.index("iteration")] = np.arange(warmup + iterations)
        rows[:, MEASURED.index("warmup")] = np.arange(warmup + iterations) < warmup
        rows[:, MEASURED.index("duration_ns")] = np.concatenate([timed[index][:1].repeat(warmup) * 100, timed[index]])
        rows[:, MEASURED.index("start_ns")] = np.cumsum(rows[:, MEASURED.index("duration_ns")] + 50_000)
        rows[:, MEASURED.index("minor_faults")] = faults(case)
        rows[warmup:, MEASURED.index("round")] = np.arange(iterations) * rounds // iterations
        samples.append((rank, rows))
    known = {
        "status": "ok",
        "wrong_elements": 0,
        "parts": case.streams,
        "interface": "eth0",
        "ranks": [
            {
                "rank": rank,
                "host": "alpha",
                "wire_sent_bytes": case.transmit_bytes * iterations,
                "wire_received_bytes": case.transmit_bytes * iterations,
                "retransmits": 0,
                "wrong_elements": 0,
            }
            for rank in ranks
        ],
    }
    write_samples(folder, case, samples_table(run_id, case, samples, known | (facts or {})))


def make_run(
    path: Path,
    cases: Sequence[Case],
    durations: Durations | None = None,
    unmeasured: Iterable[Case] = (),
    skips: Sequence[Skip] = (),
    failures: Sequence[Failure] = (),
    status: str = "finished",
    question: str = "Is this synthetic?",
    iterations: int = 20,
    warmup: int = 3,
    facts: dict[str, Any] | None = None,
    faults: Callable[[Case], int] = lambda case: 0,
    rounds: int = 1,
) -> RunFolder:
    """A run folder at ``path`` in which ``cases`` are finished, by default in 1 ms each."""
    folder = RunFolder(path)
    folder.samples.mkdir(parents=True)
    folder.logs.mkdir()
    manifest = Manifest(
        run_id=path.name,
        name="synthetic",
        question=question,
        status=status,
        netbench="0.0.0",
        command=["netbench", "sweep"],
        started_at=datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC),
        ended_at=datetime(2025, 1, 2, 3, 5, 6, tzinfo=UTC),
        config={},
        cases=[*cases, *unmeasured],
        skips=list(skips),
        failures=list(failures),
    )
    folder.write_manifest(manifest)
    for case in cases:
        write_case(folder, path.name, case, durations or constant(1_000_000), iterations, warmup, facts, faults, rounds)
    return folder
