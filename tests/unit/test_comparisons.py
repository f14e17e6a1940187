"""Streams against one stream, and two ranks against more, with chosen times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic import make_case, make_run

from netbench.comparisons import best_streams, onset_bytes, speedups, two_against_more
from netbench.model import Case
from netbench.summary import load_run

#: Time in us of allreduce by backend and stream count; multi_device_gloo has no one stream of its own.
TIMES_US = {
    ("gloo", 1): 1200,
    ("parallel_gloo", 1): 1000,
    ("parallel_gloo", 2): 500,
    ("parallel_gloo", 4): 250,
    ("multi_device_gloo", 4): 300,
}


def by_stream(case: Case, ranks: int, iterations: int) -> np.ndarray:
    return np.full((ranks, iterations), TIMES_US[case.backend, case.streams] * 1000)


@pytest.fixture
def cases(tmp_path: Path) -> pd.DataFrame:
    plan = [make_case("allreduce", backend, streams) for backend, streams in TIMES_US]
    return load_run(make_run(tmp_path / "run", plan, by_stream).path).summaries()


def test_speed_up_is_over_the_backend_s_own_one_stream_or_else_over_gloo(cases: pd.DataFrame) -> None:
    found = speedups(cases).set_index(["backend", "streams"])["speedup"].to_dict()
    assert found == {
        ("gloo", 1): 1,
        ("parallel_gloo", 1): 1,
        ("parallel_gloo", 2): 2,
        ("parallel_gloo", 4): 4,
        ("multi_device_gloo", 4): 4,
    }


def test_the_best_stream_count_is_the_fastest(cases: pd.DataFrame) -> None:
    [found] = best_streams(cases).to_dict("records")
    assert (found["backend"], found["streams"], found["speedup"], found["clear"]) == ("parallel_gloo", 4, 4, True)


def test_a_difference_within_the_noise_is_not_clear(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    plan = [make_case("allreduce", "parallel_gloo", streams) for streams in (1, 2)]
    run = load_run(make_run(tmp_path / "run", plan, lambda _, *shape: random.integers(900, 1100, shape)).path)
    assert speedups(run.summaries())["clear"].tolist() == [False, False]


def test_variants_are_not_compared(tmp_path: Path) -> None:
    plan = [make_case("allreduce", "parallel_gloo", 1), make_case("allreduce", "parallel_gloo", 2, chunks=4)]
    cases = load_run(make_run(tmp_path / "run", plan).path).summaries()
    assert speedups(cases)["streams"].tolist() == [1]


def test_without_one_stream_there_is_no_speed_up(tmp_path: Path) -> None:
    plan = [make_case("allreduce", "parallel_gloo", streams) for streams in (2, 4)]
    cases = load_run(make_run(tmp_path / "run", plan).path).summaries()
    assert speedups(cases).empty
    assert best_streams(cases).empty


def test_two_ranks_are_compared_at_equal_bytes_sent_within_one_percent(tmp_path: Path) -> None:
    # T is (N-1) times the tensor: 1,200,000 B for N=2, 3 and 4, but 1.5 % off for N=5.
    sizes = {2: 1_200_000, 3: 600_000, 4: 400_000, 5: 304_500}
    plan = [make_case("all_gather", world_size=n, tensor_bytes=size) for n, size in sizes.items()]
    plan.append(make_case("all_gather", world_size=2, tensor_bytes=4_000_000))  # nothing to compare with
    times_ns = {2: 1500, 3: 900, 4: 1100, 5: 1}
    run = load_run(
        make_run(tmp_path / "run", plan, lambda case, *shape: np.full(shape, times_ns[case.world_size])).path
    )
    [found] = two_against_more(run.summaries()).to_dict("records")
    assert (found["transmit_bytes"], found["ratio"], found["world_sizes"]) == (1_200_000, 1.5, 2)


def test_the_ratio_has_an_interval_and_an_onset_from_which_it_stays(tmp_path: Path) -> None:
    sizes = [1 << power for power in range(16, 22)]
    slower = dict(zip(sizes, [1.0, 1.6, 1.02, 1.3, 1.5, 1.5], strict=True))
    plan = [make_case("all_gather", world_size=n, tensor_bytes=size // (n - 1)) for n in (2, 3) for size in sizes]

    def times(case: Case, *shape: int) -> np.ndarray:
        random = np.random.default_rng([case.tensor_bytes, case.world_size])
        factor = slower[case.transmit_bytes] if case.world_size == 2 else 1.0
        return (1e6 * factor * random.normal(1, 0.01, shape)).astype(np.int64)

    run = load_run(make_run(tmp_path / "run", plan, times).path)
    ratios = two_against_more(run.summaries(), run.times)
    assert (ratios["low"] < ratios["ratio"]).all()
    assert (ratios["ratio"] < ratios["high"]).all()
    assert ratios["ratio"].tolist() == pytest.approx(list(slower.values()), rel=0.02)
    assert onset_bytes(ratios) == sizes[3]  # not the second, after which it falls again
    assert onset_bytes(ratios.head(3)) is None
    assert two_against_more(run.summaries())["low"].isna().all()
    assert onset_bytes(two_against_more(run.summaries())) is None
