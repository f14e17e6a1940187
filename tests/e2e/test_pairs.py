"""Two-rank modes between any two ranks of a launch of three, with real ranks: who took part, and what they sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as pq
import pytest
from programs import Program, only_run

from netbench.record import Manifest, RunFolder

pytestmark = pytest.mark.e2e

SIZE = 2**20
PAIRS = ["0-1", "0-2", "1-2", "2-0"]
BACKENDS = {"gloo-k1": 1, "tcp-k1": 1, "tcp-k2": 2, "parallel_gloo-k1": 1, "parallel_gloo-k2": 2}
MODES = ["send_recv", "send", "exchange"]
CASES = [
    f"{mode}-{backend}-n3-1MiB{end}"
    for mode in MODES
    for backend in BACKENDS
    for end in ("", *(f"-pair{pair}" for pair in PAIRS))
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunFolder]:
    out = tmp_path_factory.mktemp("results")
    axes = ["--modes", ",".join(MODES), "--backends", "gloo,tcp,parallel_gloo", "--streams", "1,2"]
    pairs = ["--world-sizes", "3", "--pairs", "none,all,2-0", "--sizes", str(SIZE)]
    program = Program("sweep", *axes, *pairs, "--iterations", "4", "--rounds", "2", "--out", str(out))
    try:
        assert program.end() == 0, program.err
        yield only_run(out)
    finally:
        program.kill()


@pytest.fixture(scope="module")
def manifest(folder: RunFolder) -> Manifest:
    return folder.read_manifest()


def ranks_of(case_id: str) -> tuple[int, int]:
    """The first of them sends where one alone does."""
    pair = case_id.partition("-pair")[2] or "0-1"  # without a pair, these modes run between the first two of three
    first, second = map(int, pair.split("-"))
    return first, second


def facts_of(folder: RunFolder, case_id: str) -> dict[str, Any]:
    metadata = pq.read_metadata(folder.sample_file(case_id)).metadata
    found: dict[str, Any] = json.loads(metadata[b"netbench.facts"])
    return found


def test_all_cases_end_in_one_launch(folder: RunFolder, manifest: Manifest) -> None:
    assert folder.finished() == set(CASES) == {case.id for case in manifest.cases}
    assert [launch.exit_code for launch in manifest.launches] == [0]


@pytest.mark.parametrize("case_id", CASES)
def test_only_the_pair_takes_part_under_its_own_numbers(folder: RunFolder, case_id: str) -> None:
    first, second = ranks_of(case_id)
    table, facts = pq.read_table(folder.sample_file(case_id)), facts_of(folder, case_id)
    timed = [row for row in table.select(["rank", "phase", "duration_ns"]).to_pylist() if row["phase"] == "timed"]
    assert [row["rank"] for row in timed] == sorted([first, second] * 4)
    assert all(row["duration_ns"] > 0 for row in timed)
    assert {row["pair"] for row in table.select(["pair"]).to_pylist()} == {case_id.partition("-pair")[2]}
    assert [rank["rank"] for rank in facts["ranks"]] == sorted([first, second])
    assert (facts["status"], facts["wrong_elements"]) == ("ok", 0)


@pytest.mark.parametrize("case_id", CASES)
def test_the_wire_counts_what_the_two_sent_each_other(folder: RunFolder, case_id: str) -> None:
    ranks = {rank["rank"]: rank for rank in facts_of(folder, case_id)["ranks"]}
    first, second = (ranks[rank] for rank in ranks_of(case_id))
    both_ways = not case_id.startswith("send-")
    for rank, sends in ((first, True), (second, both_ways)):
        sent = rank["wire_sent_bytes"] / (4 * SIZE)
        assert sent == pytest.approx(1 if sends else 0, abs=0.02)
    assert second["wire_received_bytes"] / (4 * SIZE) == pytest.approx(1, abs=0.02)
