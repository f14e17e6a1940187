"""What is made of a run that tried schedules and stream counts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from synthetic import constant, make_case, make_run, write_case

from netbench.errors import StorageError, UsageError
from netbench.model import Case
from netbench.summary import Run, load_run
from netbench.tune import lines, tune
from netbench.tuning import Choice, read_table, write_table

SMALL, LARGE = 16 * 1024, 16 * 1024**2


def tried(path: Path, times_us: dict[tuple[str, int, int], int], schedule: str = "direct") -> Run:
    """A run of all_gather between two ranks; ``times_us`` by backend, streams and size."""
    cases = [make_case("all_gather", backend, streams, tensor_bytes=size) for backend, streams, size in times_us]
    folder = make_run(path / "run", cases)
    for case, duration in zip(cases, times_us.values(), strict=True):
        facts = {"schedule": schedule, "schedule_chunks": 1} if case.backend == "parallel_gloo" else {}
        write_case(folder, "run", case, constant(duration * 1000), facts=facts)
    return load_run(folder.path)


def test_the_faster_choice_is_taken_at_each_size(tmp_path: Path) -> None:
    run = tried(
        tmp_path,
        {
            ("gloo", 1, SMALL): 100,
            ("split_gloo", 4, SMALL): 300,
            ("parallel_gloo", 1, SMALL): 99,
            ("gloo", 1, LARGE): 9000,
            ("split_gloo", 4, LARGE): 6000,
            ("parallel_gloo", 4, LARGE): 3000,
        },
    )
    table, findings = tune(run)
    assert [(one.tensor_bytes, one.choice, one.is_gain) for one in findings] == [
        (SMALL, Choice("direct", 1, 1), False),
        (LARGE, Choice("direct", 4, 1), True),
    ]
    assert findings[1].gain.value == 3.0
    assert table.choose("all_gather", SMALL, 2) == Choice("gloo", 1, 1)
    assert table.choose("all_gather", LARGE, 2) == Choice("direct", 4, 1)
    write_table(tmp_path / "tuning.json", table)
    assert read_table(tmp_path / "tuning.json") == table
    json.loads((tmp_path / "tuning.json").read_text())


def test_a_gain_that_may_be_chance_does_not_displace_plain_gloo(tmp_path: Path) -> None:
    run = tried(tmp_path, {("gloo", 1, LARGE): 1, ("parallel_gloo", 4, LARGE): 1})
    noise = np.random.default_rng(1)

    def scattered(case: Case, ranks: int, iterations: int) -> np.ndarray:
        faster = 0.93 if case.backend == "parallel_gloo" else 1.0
        return (noise.lognormal(12, 1.5, (ranks, iterations)) * faster).astype(np.int64)

    for case in run.manifest.cases:
        facts = {"schedule": "direct", "schedule_chunks": 1} if case.backend == "parallel_gloo" else {}
        write_case(run.folder, "run", case, scattered, facts=facts)
    table, findings = tune(load_run(run.folder.path))
    assert not findings[0].is_gain
    assert table.choose("all_gather", LARGE, 2) == Choice("gloo", 1, 1)
    assert "Nothing is gained here" in list(lines(findings))[-1]


def test_only_one_stream_pays_where_only_the_order_does(tmp_path: Path) -> None:
    run = tried(tmp_path, {("gloo", 1, LARGE): 9000, ("parallel_gloo", 1, LARGE): 6000})
    said = list(lines(tune(run)[1]))
    assert "1.50 [1.50, 1.50]" in said[1]
    assert said[-1].startswith("More streams gain nothing here")


def test_a_table_that_cannot_be_written_names_its_file(tmp_path: Path) -> None:
    table, _ = tune(tried(tmp_path, {("gloo", 1, LARGE): 9000, ("parallel_gloo", 1, LARGE): 6000}))
    with pytest.raises(StorageError, match=r"nowhere/tuning\.json: cannot be written"):
        write_table(tmp_path / "nowhere" / "tuning.json", table)


def test_without_plain_gloo_there_is_nothing_to_compare_with(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no case of plain gloo"):
        tune(tried(tmp_path, {("parallel_gloo", 4, LARGE): 3000}))
