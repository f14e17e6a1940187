"""Predictions against what was measured and kept from them, on a recorded run between lab hosts and on made-up ones.

The recorded run is of all_gather and allreduce over Gloo between 2, 3 and 4 hosts with 200 Mbit/s links, on a machine
whose two cores were busy with other work: small messages scatter by factors, and all_gather between two ranks is
bimodal. That is what makes it worth predicting.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic import make_case, make_run

from netbench.errors import UsageError
from netbench.model import Case
from netbench.predictions import Prediction, Predictions
from netbench.summary import load_run

RECORDED = Path(__file__).parents[1] / "data" / "runs" / "20261129T131634Z-lab_between-3e40"


@pytest.fixture(scope="module")
def recorded() -> pd.DataFrame:
    cases = load_run(RECORDED).summaries()
    assert (cases["status"] == "ok").all()
    cases = cases.sort_values(["mode", "world_size", "tensor_bytes"], ignore_index=True)
    return cases.assign(place=cases.groupby(["mode", "world_size"]).cumcount())


def predicted(predictions: Predictions, case: dict[str, object]) -> Prediction:
    [found] = predictions.predict(str(case["mode"]), int(case["world_size"]), int(case["tensor_bytes"]))  # type: ignore[call-overload]
    return found


@pytest.fixture(scope="module")
def held_out(recorded: pd.DataFrame) -> pd.DataFrame:
    """Every case, predicted from runs that lack it and every third, fourth or fifth size: where it interpolates."""
    rows = []
    for every in (3, 4, 5):
        for fold in range(every):
            held = recorded["place"] % every == fold
            predictions = Predictions(recorded[~held], "part")
            for case in recorded[held].to_dict("records"):
                answer = predicted(predictions, case)
                if not answer.beyond:
                    time_s = case["median_ns"] / 1e9
                    inside = answer.low_s <= time_s <= answer.high_s
                    rows.append({"mode": case["mode"], "n": case["world_size"], "inside": inside, "answer": answer})
    return pd.DataFrame(rows)


def test_nine_in_ten_held_out_cases_fall_into_the_interval(held_out: pd.DataFrame) -> None:
    assert len(held_out) > 150
    assert held_out["inside"].mean() >= 0.9


def test_so_do_those_of_all_gather_between_two_ranks(held_out: pd.DataFrame) -> None:
    two = held_out[(held_out["mode"] == "all_gather") & (held_out["n"] == 2)]
    assert len(two) > 20
    assert two["inside"].mean() >= 0.9


@pytest.mark.parametrize("mode", ["all_gather", "allreduce"])
def test_a_larger_world_size_is_said_to_be_beyond_and_its_error_is_bounded(recorded: pd.DataFrame, mode: str) -> None:
    """N=4 from N=2 and 3, for messages long enough to be the link's business."""
    cases = recorded[recorded["mode"] == mode]
    predictions = Predictions(cases[cases["world_size"] < 4], "part")
    for case in cases[(cases["world_size"] == 4) & (cases["transmit_bytes"] > 400_000)].to_dict("records"):
        answer = predicted(predictions, case)
        assert any("N=4 is above the world sizes measured, 2, 3" in reason for reason in answer.beyond)
        assert case["median_ns"] / 1e9 == pytest.approx(answer.time_s, rel=0.25)


def test_eight_ranks_are_foretold_from_two_to_four() -> None:
    """On the recorded run that the documentation shows: all_gather between up to 8 hosts with 100 Mbit/s."""
    recorded = Path(__file__).parents[2] / "results" / "reference" / "world_size-8x100mbit"
    cases = load_run(recorded).summaries()
    assert set(cases["world_size"]) == {2, 3, 4, 5, 6, 7, 8}
    predictions = Predictions(cases[cases["world_size"] <= 4], "part")
    ratios, inside = [], []
    for case in cases[cases["world_size"] > 4].to_dict("records"):
        answer = predicted(predictions, case)
        assert any("above the world sizes measured, 2, 3, 4" in reason for reason in answer.beyond)
        time_s = case["median_ns"] / 1e9
        ratios.append(time_s / answer.time_s)
        inside.append(answer.low_s <= time_s <= answer.high_s)
    assert len(ratios) == 28
    assert max(abs(np.log(ratios))) < np.log(1.2)
    assert np.mean(inside) >= 0.9


def test_a_larger_size_is_said_to_be_beyond_and_falls_into_the_wider_interval(recorded: pd.DataFrame) -> None:
    predictions = Predictions(recorded[recorded["place"] < 8], "part")
    inside = []
    for case in recorded[recorded["place"] >= 9].to_dict("records"):
        answer = predicted(predictions, case)
        assert any("times the bytes of the largest size" in reason for reason in answer.beyond)
        inside.append(answer.low_s <= case["median_ns"] / 1e9 <= answer.high_s)
    assert np.mean(inside) >= 0.9


def test_hindsight_is_of_the_run_s_own_ends(recorded: pd.DataFrame) -> None:
    predictions = Predictions(recorded, "run")
    assert len(predictions.size_steps) == 6
    assert {step.series.world_size for step in predictions.world_steps} == {4}
    assert all(step.octaves >= 2 for step in predictions.size_steps)


def run_of(tmp_path: Path, worlds: list[int], sizes: list[int], noise: float = 0.0) -> Predictions:
    """``alpha`` grows by 10 us a rank; 1 GB/s; each iteration lies off by ``noise``."""
    cases = [make_case("all_gather", world_size=n, tensor_bytes=size) for n in worlds for size in sizes]

    def durations(case: Case, ranks: int, iterations: int) -> np.ndarray:
        off = np.random.default_rng(case.transmit_bytes).normal(0, noise, iterations)
        time_ns = (10_000 * case.world_size + case.transmit_bytes) * np.exp(off)
        return np.tile(time_ns.astype(np.int64), (ranks, 1))

    folder = make_run(tmp_path / "run", cases, durations)
    return Predictions.of(load_run(folder.path))


SIZES = [4**power for power in range(5, 13)]


@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_the_interval_is_as_wide_as_the_run_is_noisy(tmp_path: Path, noise: float) -> None:
    [answer] = run_of(tmp_path, [2, 3, 4], [2**power for power in range(10, 26)], noise).predict(
        "all_gather", 2, 3_000_000
    )
    assert answer.beyond == ()
    assert answer.low_s < 0.003020 < answer.high_s
    assert 1 + noise < answer.high_s / answer.low_s < 1 + 8 * noise


def test_latency_grows_with_the_world_size_as_it_did(tmp_path: Path) -> None:
    [answer] = run_of(tmp_path, [2, 3, 4, 5], SIZES).predict("all_gather", 8, 4096)
    assert answer.time_s == pytest.approx((80_000 + 7 * 4096) / 1e9, rel=0.02)
    assert answer.low_s < answer.time_s < answer.high_s


def test_between_world_sizes_it_lies_between(tmp_path: Path) -> None:
    [answer] = run_of(tmp_path, [2, 4], SIZES).predict("all_gather", 3, 2**20)
    assert "between the world sizes measured, 2, 4" in answer.beyond[0]
    assert answer.time_s == pytest.approx((30_000 + 2 * 2**20) / 1e9, rel=0.02)


def test_no_interval_is_made_up_where_the_run_has_no_such_step(tmp_path: Path) -> None:
    [answer] = run_of(tmp_path, [2], SIZES).predict("all_gather", 16, 2**20)
    assert (answer.low_s, answer.high_s) == (None, None)


def test_what_a_run_does_not_have_is_named(tmp_path: Path) -> None:
    predictions = run_of(tmp_path, [2], SIZES)
    with pytest.raises(UsageError, match="no series of broadcast; it has all_gather, gloo, K=1"):
        predictions.predict("broadcast", 2, 1024)
    with pytest.raises(UsageError, match="at least 4 sizes"):
        run_of(tmp_path / "few", [2], SIZES[:3])
