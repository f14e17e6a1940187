"""Every metric against literals, so that a formula that is off by two turns the test red."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from synthetic import constant, make_case, make_run

from netbench.errors import UsageError
from netbench.metrics import METRICS, RATES
from netbench.modes import MODES
from netbench.registry import one_line
from netbench.summary import load_run

#: For 1,000,000 bytes in 1 ms (8 Gbit/s): mode, N -> algbw and busbw in Gbit/s, latency in us, T in bytes.
KNOWN = {
    ("send_recv", 2): (16, 16, 500, 1_000_000),
    ("send_recv", 4): (16, 16, 500, 1_000_000),
    ("send", 2): (8, 8, 1000, 1_000_000),
    ("exchange", 2): (8, 8, 1000, 1_000_000),
    ("exchange_sends_first", 2): (8, 8, 1000, 1_000_000),
    ("all_gather", 2): (16, 8, 1000, 1_000_000),
    ("all_gather", 4): (32, 24, 1000, 3_000_000),
    ("allreduce", 2): (8, 8, 1000, 1_000_000),
    ("allreduce", 4): (8, 12, 1000, 1_500_000),
    ("reduce_scatter", 2): (8, 4, 1000, 500_000),
    ("reduce_scatter", 4): (8, 6, 1000, 750_000),
    ("broadcast", 4): (8, 8, 1000, 1_000_000),
    ("all_to_all", 2): (8, 4, 1000, 500_000),
    ("all_to_all", 4): (8, 6, 1000, 750_000),
    ("gather_copies", 2): (16, None, 1000, 0),
}


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    path = tmp_path_factory.mktemp("results") / "run"
    plan = [make_case(mode, world_size=world_size, tensor_bytes=1_000_000) for mode, world_size in KNOWN]
    make_run(path, plan, constant(1_000_000))
    return load_run(path).summaries().set_index(["mode", "world_size"])


def test_every_mode_is_among_the_literals() -> None:
    assert {mode for mode, _ in KNOWN} == set(MODES)


@pytest.mark.parametrize("point", KNOWN, ids=lambda point: f"{point[0]}-n{point[1]}")
def test_bandwidths_latency_and_bytes_against_literals(cases: pd.DataFrame, point: tuple[str, int]) -> None:
    case = cases.loc[point]
    algbw, busbw, latency, transmit_bytes = KNOWN[point]
    assert case["transmit_bytes"] == transmit_bytes
    assert case["time_us"] == pytest.approx(1000)
    assert case["latency_us"] == pytest.approx(latency)
    assert case["algbw_gbit_s"] == pytest.approx(algbw)
    assert case["busbw_gbit_s"] == pytest.approx(busbw) if busbw is not None else pd.isna(case["busbw_gbit_s"])
    assert case["wirebw_gbit_s"] == pytest.approx(transmit_bytes * 8 / 1e6)
    assert case["traffic_ratio"] == pytest.approx(1) if transmit_bytes else pd.isna(case["traffic_ratio"])
    assert case["iteration_rate_per_s"] == pytest.approx(1000)
    assert case["spread"] == 0


def test_the_longest_time_is_the_lowest_bandwidth(tmp_path: Path) -> None:
    case = make_case("allreduce", world_size=2, tensor_bytes=1_000_000)
    durations = [[1_000_000 * (1 + place % 3) for place in range(20)]] * 2  # 1, 2 or 3 ms
    make_run(tmp_path / "run", [case], lambda *_: pd.DataFrame(durations).to_numpy())
    [found] = load_run(tmp_path / "run").summaries().to_dict("records")
    assert (found["time_low_us"], found["time_us"], found["time_high_us"]) == (1000, 2000, 3000)
    assert found["busbw_low_gbit_s"] == pytest.approx(8 / 3)
    assert found["busbw_gbit_s"] == pytest.approx(4)
    assert found["busbw_high_gbit_s"] == pytest.approx(8)
    assert found["spread"] == pytest.approx(1)


def test_one_rank_has_no_bus_and_no_traffic(tmp_path: Path) -> None:
    make_run(tmp_path / "run", [make_case("allreduce", world_size=1)])
    [found] = load_run(tmp_path / "run").summaries().to_dict("records")
    assert pd.isna(found["busbw_gbit_s"])
    assert pd.isna(found["traffic_ratio"])
    assert found["algbw_gbit_s"] > 0


def test_too_few_iterations_have_no_interval(tmp_path: Path) -> None:
    make_run(tmp_path / "run", [make_case()], iterations=5)
    [found] = load_run(tmp_path / "run").summaries().to_dict("records")
    assert found["busbw_gbit_s"] > 0
    assert pd.isna(found["busbw_low_gbit_s"])
    assert pd.isna(found["busbw_high_gbit_s"])


def test_rates_are_decimal_and_differ_by_eight(tmp_path: Path) -> None:
    make_run(tmp_path / "run", [make_case("exchange", tensor_bytes=1_000_000)])
    run = load_run(tmp_path / "run")
    assert run.summaries("Gbit/s")["algbw_gbit_s"].tolist() == pytest.approx([8.0])
    assert run.summaries("GB/s")["algbw_gbyte_s"].tolist() == pytest.approx([1.0])
    with pytest.raises(UsageError, match=r"'GiB/s' is not a rate; did you mean 'GB/s'\?"):
        run.summaries("GiB/s")


def test_unknown_wire_bytes_leave_the_rest(tmp_path: Path) -> None:
    ranks = [{"rank": rank, "host": "alpha", "wire_sent_bytes": None, "retransmits": None} for rank in range(2)]
    make_run(tmp_path / "run", [make_case()], facts={"ranks": ranks})
    [found] = load_run(tmp_path / "run").summaries().to_dict("records")
    assert pd.isna(found["traffic_ratio"])
    assert pd.isna(found["retransmits"])
    assert found["busbw_gbit_s"] > 0


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_says_what_it_is(name: str) -> None:
    metric = METRICS[name]
    assert one_line(metric).endswith((".", "t", "S", "1", "2", "ideal"))
    assert metric.label
    assert metric.better in ("higher", "lower")
    assert len({metric.column(rate=rate) for rate in RATES}) in (1, len(RATES))
