"""Each verdict on a case that earns it, and none on one that is well."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest

from netbench.ceiling import Ceiling
from netbench.errors import UsageError
from netbench.framing import Framing
from netbench.lab.spec import LabSpec
from netbench.record import LabFacts, Manifest
from netbench.verdicts import VERDICTS, Circumstances, judge, named

#: An allreduce of 8 MiB between two hosts at 1 Gbit/s of busbw, with nothing to object to.
GOOD: dict[str, Any] = {
    "mode": "allreduce",
    "backend": "gloo",
    "streams": 1,
    "world_size": 2,
    "entry_delay_us": 0,
    "tensor_bytes": 8_000_000,
    "message_bytes": 8_000_000,
    "transmit_bytes": 8_000_000,
    "iterations": 40,
    "median_ns": 64e6,
    "mean_ns": 64.2e6,
    "low_ns": 63e6,
    "high_ns": 65e6,
    "wire_sent_bytes": 40 * 8_000_500,
    "retransmits": 0,
    "cpu_ns": 12e6,
    "cpu_foreign": 0.02,
    "cpu_stolen": 0.0,
    "cpu_stalled": 0.05,
    "foreign_bit_s": 1e4,
    "foreign_share": 1e-5,
    "entry_skew_ns": 50e3,
    "clock_error_ns": 10e3,
    "first_ratio": 1.1,
    "trend": 0.02,
    "trend_p": 0.4,
    "modes_apart": 2.6,
    "fast_mode_ns": 63e6,
    "slow_mode_ns": 65e6,
    "slow_mode_share": 0.5,
    "stop_reason": "precision",
    "parts": 1,
}


def run_on(*machines: str, cpus: int = 8, lab: str | None = None, line_bit_s: float | None = None) -> Circumstances:
    """A run whose rank r is on the r-th of ``machines``."""
    environment = [
        {"host": f"host{rank}", "ranks": [rank], "machine": machine, "cpus": cpus, "cpus_allowed": cpus}
        for rank, machine in enumerate(machines)
    ]
    spec = LabSpec.parse(lab) if lab else None
    manifest = Manifest(
        run_id="run",
        name="run",
        netbench="0",
        command=[],
        started_at=datetime(2025, 1, 1, tzinfo=UTC),
        config={},
        cases=[],
        environment=environment,
        lab=LabFacts.of(spec) if spec else None,
    )
    line_bit_s = spec.rate_bit_s if spec else line_bit_s
    return Circumstances(manifest, Ceiling(line_bit_s, Framing(1500, 14), "--line-rate") if line_bit_s else None)


TWO_HOSTS = run_on("alpha", "beta", line_bit_s=10e9)
ONE_HOST = run_on("alpha", "alpha", cpus=1)

#: Verdict -> what of the good case changes, where, and the figure that must be named.
EARNED: dict[str, tuple[dict[str, Any], Circumstances, str]] = {
    "oversubscribed": ({"cpu_stalled": 0.4}, ONE_HOST, "2 ranks share 1 CPUs of alpha"),
    "noisy_cpu": ({"cpu_foreign": 0.31}, TWO_HOSTS, "31%"),
    "foreign_traffic": ({"foreign_bit_s": 400e6, "foreign_share": 0.4}, TWO_HOSTS, "400 Mbit/s"),
    "retransmits": ({"retransmits": 250}, TWO_HOSTS, "250 segments"),
    "skew_limited": ({"entry_skew_ns": 48e6}, TWO_HOSTS, "75% of the time"),
    "bimodal": ({"modes_apart": 14.0, "fast_mode_ns": 50e6, "slow_mode_ns": 75e6}, TWO_HOSTS, "50% of the iterations"),
    "trend": ({"trend": -0.3, "trend_p": 1e-6}, TWO_HOSTS, "30% faster"),
    "few_samples": ({"low_ns": 40e6, "stop_reason": "budget"}, TWO_HOSTS, "38% from the median"),
    "unfinished": ({"stop_reason": "unfinished"}, TWO_HOSTS, "40 iterations so far"),
    "first_iteration": ({"first_ratio": 5.0}, TWO_HOSTS, "5.0 times"),
    "above_line_rate": ({}, run_on("alpha", "beta", line_bit_s=0.8e9), "131% of the payload ceiling"),
    "link_bound": ({}, run_on("alpha", "beta", line_bit_s=1.05e9), "100% of the payload ceiling"),
    "cpu_bound": ({"cpu_ns": 60e6}, run_on("alpha", "alpha", cpus=2), "93% of their CPUs"),
    "extra_traffic": ({"wire_sent_bytes": 40 * 16_000_000}, TWO_HOSTS, "2.00 times T"),
}


def test_each_has_an_example() -> None:
    assert set(EARNED) == set(VERDICTS)


def test_a_good_case_has_none() -> None:
    assert judge(GOOD, TWO_HOSTS) == {}


@pytest.mark.parametrize("name", EARNED)
def test_a_verdict_names_the_figure_that_triggered_it(name: str) -> None:
    changes, circumstances, figure = EARNED[name]
    found = judge(GOOD | changes, circumstances)
    assert set(found) == {name}
    assert figure in found[name]


@pytest.mark.parametrize("unknown", [None, math.nan])
def test_what_is_unknown_triggers_nothing(unknown: float | None) -> None:
    certain = ("mode", "streams", "world_size", "message_bytes", "transmit_bytes", "tensor_bytes", "median_ns")
    row = {name: value if name in certain else unknown for name, value in GOOD.items()}
    assert judge(row, TWO_HOSTS) == {}
    # A case that others measured has few columns.
    assert judge({name: GOOD[name] for name in certain}, run_on()) == {}


def test_small_messages_through_a_lab_s_bucket_are_not_suspicious() -> None:
    lab = run_on("one", "one", lab="2x200mbit")
    small = GOOD | {"message_bytes": 16384, "transmit_bytes": 16384, "wire_sent_bytes": 40 * 16384}
    assert "above_line_rate" not in judge(small | {"median_ns": 300e3, "low_ns": 290e3, "high_ns": 310e3}, lab)


def test_a_cap_on_each_connection_is_a_link_of_its_own() -> None:
    lab = run_on("one", "one", lab="2x400mbit,flow=40mbit")
    seconds = 8 * (8_000_000 - 50_000 - 16384) / (80e6 * 1448 / 1514)
    capped = GOOD | {"streams": 2} | dict.fromkeys(("median_ns", "mean_ns", "low_ns", "high_ns"), seconds * 1e9)
    assert "2 connections; use more streams" in judge(capped, lab)["link_bound"]


def test_a_late_rank_that_was_asked_for_is_no_skew() -> None:
    late = GOOD | {"entry_skew_ns": 100.05e6, "entry_delay_us": 100_000}
    assert judge(late, TWO_HOSTS) == {}


def test_many_hosts_of_a_lab_that_never_wait_for_a_cpu_are_not_oversubscribed() -> None:
    assert judge(GOOD | {"cpu_stalled": 0.02}, run_on("alpha", "alpha", cpus=1)) == {}


def test_names_are_checked() -> None:
    assert named("trend, bimodal") == {"trend", "bimodal"}
    with pytest.raises(UsageError, match="did you mean 'trend'"):
        named("trnd")


def test_ranks_that_fill_the_link_are_not_oversubscribed() -> None:
    crowded = run_on("alpha", "alpha", cpus=1, line_bit_s=1.05e9)
    assert set(judge(GOOD | {"cpu_stalled": 0.4}, crowded)) == {"link_bound"}


def test_few_samples_is_not_said_of_those_who_tell_no_interval() -> None:
    assert judge(GOOD | {"low_ns": None, "high_ns": None}, TWO_HOSTS) == {}
    five = GOOD | {"low_ns": None, "high_ns": None, "iterations": 5, "wire_sent_bytes": 5 * 8_000_500}
    assert set(judge(five, TWO_HOSTS)) == {"few_samples"}
