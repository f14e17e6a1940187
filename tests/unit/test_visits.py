"""What is gathered of a case over rounds and launches, in memory and on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from synthetic import make_case

from netbench.record import MEASURED, RunFolder, samples_table, write_samples
from netbench.samples import read_partial, visits_done
from netbench.visits import Visits

CASE = make_case("allreduce", world_size=2)


def visit(*durations: int, warmups: int = 1) -> np.ndarray:
    samples = np.zeros((warmups + len(durations), len(MEASURED)), np.int64)
    samples[:warmups, MEASURED.index("warmup")] = 1
    samples[:, MEASURED.index("iteration")] = [*range(warmups), *range(len(durations))]
    samples[:, MEASURED.index("duration_ns")] = [9] * warmups + list(durations)
    return samples


def facts(rank: int, sent: int | None = 100) -> dict[str, Any]:
    counters = {"wire_sent_bytes": sent, "wire_received_bytes": sent, "retransmits": 0, "wrong_elements": 0}
    return {"rank": rank, "host": "here", "stop_reason": "budget", **counters}


def column(samples: np.ndarray, name: str) -> list[int]:
    return samples[:, MEASURED.index(name)].tolist()


def two_visits() -> Visits:
    visits = Visits()
    visits.add(1, 0, [visit(10, 20), visit(11, 19)], [facts(0), facts(1)])
    visits.add(1, 1, [visit(30), visit(31)], [facts(0, 50), facts(1, None)])
    return visits


def test_iterations_are_numbered_through_in_each_phase() -> None:
    first = two_visits().samples[0]
    assert column(first, "iteration") == [0, 0, 1, 1, 2]
    assert column(first, "warmup") == [1, 0, 0, 1, 0]
    assert column(first, "round") == [0, 0, 0, 1, 1]
    assert column(first, "launch") == [1] * 5


def test_the_headline_time_is_the_slowest_ranks() -> None:
    assert two_visits().slowest_ns().tolist() == [11, 20, 31]


def test_counters_add_up_and_an_unknown_one_makes_the_sum_unknown() -> None:
    ranks = two_visits().ranks
    assert ranks[0]["wire_sent_bytes"] == 150
    assert ranks[1]["wire_sent_bytes"] is None


def test_what_is_on_disk_is_gone_on_with(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert visits_done(folder, CASE) == 0
    assert read_partial(folder, CASE) is None
    before = two_visits()
    table = samples_table("run", CASE, list(before.samples.items()), {"visits": 2, "ranks": before.ranks})
    write_samples(folder, CASE, table, finished=False)
    assert folder.finished() == set()
    assert visits_done(folder, CASE) == 2
    after = Visits.read(folder, CASE)
    assert after.times_ns.tolist() == [11, 20, 31]
    after.add(2, 0, [visit(40), visit(39)], [facts(0), facts(1)])
    assert after.slowest_ns().tolist() == [11, 20, 31, 40]
    assert column(after.samples[1], "launch") == [1] * 5 + [2] * 2
    assert after.visits == 3


def test_a_finished_case_leaves_no_partial_one(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.samples.mkdir()
    table = samples_table("run", CASE, list(two_visits().samples.items()), {"visits": 2, "ranks": []})
    write_samples(folder, CASE, table, finished=False)
    write_samples(folder, CASE, table)
    assert folder.finished() == {CASE.id}
    assert not folder.partial_file(CASE.id).exists()
