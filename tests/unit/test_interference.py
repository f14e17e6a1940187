"""What others did while a case ran, from counters whose answer is known."""

from __future__ import annotations

from typing import Any

import pytest

from netbench.interference import Interference, Machine, find

ALPHA, BETA = Machine("alpha", 8, 4), Machine("beta", 2, 2)
MB = 1_000_000


def rank(number: int, host: str, **facts: Any) -> dict[str, Any]:
    """A second in which the rank used half a CPU and sent and received 100 MB, and nothing else happened."""
    quiet = {
        "rank": number,
        "host": host,
        "window_ns": 10**9,
        "own_cpu_ns": 500_000_000,
        "machine_cpu_ns": 510_000_000,
        "stolen_ns": 0,
        "stalled_ns": 20_000_000,
        "wire_sent_bytes": 100 * MB,
        "wire_received_bytes": 100 * MB,
        "interface_sent_bytes": 106 * MB,
        "interface_received_bytes": 106 * MB,
    }
    return quiet | facts


HOSTS = {"a": ALPHA, "b": BETA}


def test_a_quiet_second_has_nothing_foreign() -> None:
    found = find([rank(0, "a"), rank(1, "b")], HOSTS, 10)
    assert found == Interference(0.0, 0.0, 0.02, 0.0, 0.0)


def test_the_machine_that_fares_worst_counts_and_the_ranks_own_time_does_not() -> None:
    # Others use one of beta's two CPUs, less the two ticks that cannot be told from it.
    ranks = [rank(0, "a"), rank(1, "b", machine_cpu_ns=1_520_000_000), rank(2, "b")]
    assert find(ranks, HOSTS, 10).cpu_foreign == pytest.approx((1.52 - 1.0 - 0.02) / 2)


def test_stolen_time_is_of_all_cpus_and_stalls_of_the_clock() -> None:
    found = find([rank(0, "a", stolen_ns=400_000_000, stalled_ns=700_000_000)], HOSTS, 10)
    assert (found.cpu_stolen, found.cpu_stalled) == (pytest.approx(0.05), 0.7)


def test_what_an_interface_carries_beyond_its_ranks_data_is_foreign() -> None:
    ranks = [rank(0, "a", interface_received_bytes=162 * MB), rank(1, "b")]
    found = find(ranks, HOSTS, 0)
    # 8 % for headers and 4 % for the answers to what is sent are granted.
    assert found.foreign_bit_s == pytest.approx(50 * MB * 8)
    assert found.foreign_share == pytest.approx(0.5)


def test_hosts_of_a_lab_share_a_machine_but_no_interface() -> None:
    ranks = [rank(number, f"host{number}") for number in range(2)]
    found = find(ranks, dict.fromkeys(("host0", "host1"), ALPHA), 10)
    assert found == Interference(0.0, 0.0, 0.02, 0.0, 0.0)


def test_ranks_on_loopback_share_its_counters() -> None:
    carried = {"interface_sent_bytes": 205 * MB, "interface_received_bytes": 205 * MB, "machine_cpu_ns": 10**9}
    found = find([rank(number, "a", **carried) for number in range(2)], HOSTS, 10)
    assert (found.cpu_foreign, found.foreign_share) == (0.0, 0.0)


def test_control_traffic_of_short_iterations_is_granted() -> None:
    tiny = {f"{kind}_{way}_bytes": 4000 for kind in ("wire", "interface") for way in ("sent", "received")}
    ranks = [rank(0, "a", **tiny | {"interface_sent_bytes": 11_000})]
    assert find(ranks, HOSTS, 1).foreign_bit_s == 0


def test_a_record_without_the_counters_tells_nothing() -> None:
    assert find([{"rank": 0, "host": "a"}], HOSTS, 10) == Interference()
    assert find([], HOSTS, 10) == Interference()
    unknown = dict.fromkeys(("machine_cpu_ns", "stolen_ns", "stalled_ns", "interface_sent_bytes"))
    found = find([rank(0, "a", **unknown)], HOSTS, 10)
    assert (found.cpu_foreign, found.cpu_stolen, found.cpu_stalled) == (None, None, None)
    assert found.foreign_bit_s == 0  # of the direction that is known
