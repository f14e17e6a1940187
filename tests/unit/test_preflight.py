"""Who is there, judged before anything is timed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from synthetic import make_case
from torch.distributed import HashStore

from netbench import preflight
from netbench.errors import LaunchError
from netbench.job import Job, Place
from netbench.preflight import Rank, judge, meet


def rank(number: int, machine: str = "m0", stack: str = "s0", address: str = "10.0.0.1") -> Rank:
    return Rank(number, f"host{number}", machine, stack, "eth0", address, 1)


def test_ranks_of_one_host_are_well_where_so_many_were_asked_for() -> None:
    one = [rank(number, address="127.0.0.1") for number in range(3)]
    assert judge(one, needed=3, per_node=3) is None


def test_a_rank_on_each_host_is_well() -> None:
    assert judge([rank(0), rank(1, stack="s1", address="10.0.0.2")], needed=2, per_node=1) is None


def test_fewer_ranks_than_asked_for_are_counted() -> None:
    assert judge([rank(0), rank(1, "m1")], needed=3, per_node=1) == (
        "3 ranks were asked for, 2 were started (on host0, host1)"
    )


def test_a_loopback_address_among_several_hosts_is_refused_with_the_host() -> None:
    told = judge([rank(0), rank(1, "m1", address="127.0.0.1")], needed=2, per_node=1)
    assert told is not None
    assert told.startswith("rank 1 on host1 (eth0 127.0.0.1) is bound to loopback")
    assert judge([rank(0), rank(1, "m1", address="::1")], needed=2, per_node=1) is not None


def test_hosts_are_told_apart_by_kernel_and_network_stack_and_not_by_name() -> None:
    same = [rank(0), rank(1), rank(2, "m1")]
    told = judge(same, needed=3, per_node=1)
    assert told is not None
    assert "rank 0 on host0 (eth0 10.0.0.1) and rank 1 on host1 (eth0 10.0.0.1) are on one" in told
    assert judge(same, needed=3, per_node=2) is None


def test_too_many_ranks_on_the_only_host_are_crowded_too() -> None:
    told = judge([rank(0), rank(1)], needed=2, per_node=1)
    assert told is not None
    assert told.startswith("one rank was asked for on each host")


def test_ranks_that_do_not_come_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "ARRIVAL_LIMIT_S", 0.2)
    monkeypatch.setattr(preflight, "ARRIVAL_LIMIT_PER_RANK_S", 0.0)
    store = HashStore()
    place = Place("alpha", "lo", "127.0.0.1")
    with pytest.raises(LaunchError, match=r"^rank 1, rank 2 did not come within 200 ms$"):
        meet(store, 0, 3, place, job())
    with pytest.raises(LaunchError, match=r"^rank 1 on node 1, rank 2 on node 0 did not come"):
        meet(HashStore(), 0, 3, place, job(nodes=2))


def job(**more: Any) -> Job:
    facts = {"run_id": "run", "launch": 1, "run_folder": Path("run"), "cases": [make_case()], "iterations": 1}
    return Job(**facts, warmup=0, pause_s=0, timeout_s=1, **more)
