"""From a sweep to its record, tables and plots, with real ranks; looked at by numbers that netbench did not compute."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from programs import Program, only_run
from synthetic import make_case

from netbench.modes import MODES
from netbench.record import Manifest, RunFolder

pytestmark = pytest.mark.e2e

ITERATIONS, WARMUP = 6, 2
ROUNDS = 2

#: Modes in which every rank but one is sent S once; in the others each rank sends T.
FROM_ONE = {"send", "broadcast"}
SECRET = "never-to-be-recorded-51d0"

#: Where Gloo sends more than it has to: measured wire bytes are this multiple of T.
MORE_THAN_IDEAL = {("reduce_scatter", "gloo"): 2}


@dataclass
class Ended:
    """A sweep that ran to its end."""

    folder: RunFolder
    manifest: Manifest
    code: int
    out: str
    err: str

    def samples(self, case_id: str) -> pa.Table:
        return pq.read_table(self.folder.sample_file(case_id))

    def ranks(self, case_id: str) -> list[dict[str, int]]:
        facts = json.loads(self.samples(case_id).schema.metadata[b"netbench.facts"])
        found: list[dict[str, int]] = facts["ranks"]
        return found


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    """Every mode, in one launch of three ranks."""
    out = tmp_path_factory.mktemp("results")
    axes = {"modes": ",".join(MODES), "backends": "gloo,parallel_gloo", "streams": "1,3", "world_sizes": "2,3"}
    numbers = {
        "sizes": "3MB",
        "iterations": str(ITERATIONS),
        "warmup": str(WARMUP),
        "rounds": str(ROUNDS),
        "timeout": "30s",
    }
    options = [word for key, value in (axes | numbers).items() for word in (f"--{key.replace('_', '-')}", value)]
    program = Program("sweep", *options, "--name", "e2e", "--out", str(out), AWS_SECRET_ACCESS_KEY=SECRET)
    try:
        code = program.end()
        folder = only_run(out)
        yield Ended(folder, folder.read_manifest(), code, program.out, program.err)
    finally:
        program.kill()


def test_every_case_ends_well_in_one_launch(ended: Ended) -> None:
    assert ended.code == 0, ended.err
    assert ended.manifest.status == "finished"
    assert ended.folder.finished() == {case.id for case in ended.manifest.cases}
    assert len(ended.manifest.cases) == len(MODES) * 2 * 3
    assert [launch.exit_code for launch in ended.manifest.launches] == [0]
    assert ended.manifest.failures == []


def test_data_goes_to_stdout_and_everything_else_to_stderr(ended: Ended) -> None:
    total = len(ended.manifest.cases)
    progress = re.findall(rf"^\[(\d+)/{total}\] (\S+)  ", ended.err, flags=re.MULTILINE)
    assert [int(number) for number, _ in progress] == list(range(1, total + 1))
    assert {name for _, name in progress} == ended.folder.finished()
    assert f"netbench plot {ended.folder.path}" in ended.err
    assert ended.out.count("allreduce") >= 6
    assert "[1/" not in ended.out


def test_every_rank_that_takes_part_has_a_row_for_each_iteration(ended: Ended) -> None:
    for case in ended.manifest.cases:
        table = ended.samples(case.id)
        ranks = range(2 if MODES[case.mode].pairwise else case.world_size)
        rows = list(zip(*(table[name].to_pylist() for name in ("rank", "phase", "iteration")), strict=True))
        assert sorted(rows) == sorted(
            (rank, phase, iteration)
            for rank in ranks
            # The second round has a warm-up iteration of its own.
            for phase, count in (("warmup", WARMUP + ROUNDS - 1), ("timed", ITERATIONS))
            for iteration in range(count)
        )
        assert set(zip(table["launch"].to_pylist(), table["round"].to_pylist(), strict=True)) == {(1, 0), (1, 1)}
        assert set(table["case_id"].to_pylist()) == {case.id}
        assert min(table["duration_ns"].to_pylist()) > 0


def test_operations_follow_each_other_on_every_rank(ended: Ended) -> None:
    for case in ended.manifest.cases:
        table = ended.samples(case.id)
        for rank in set(table["rank"].to_pylist()):
            rows = table.filter(pa.compute.equal(table["rank"], rank))
            start, duration = rows["start_ns"].to_numpy(), rows["duration_ns"].to_numpy()
            assert np.all(start[1:] >= start[:-1] + duration[:-1])


def test_the_wire_carried_what_the_formulas_say(ended: Ended) -> None:
    for case in ended.manifest.cases:
        ranks = ended.ranks(case.id)
        senders = len(ranks) - (case.mode in FROM_ONE)
        ideal = case.transmit_bytes * MORE_THAN_IDEAL.get((case.mode, case.backend), 1) * ITERATIONS
        assert sum(rank["wire_sent_bytes"] for rank in ranks) == pytest.approx(senders * ideal, rel=0.01), case.id
        if case.mode not in FROM_ONE:
            assert [rank["wire_sent_bytes"] for rank in ranks] == [pytest.approx(ideal, rel=0.01)] * len(ranks)


def test_every_finished_case_was_checked_on_every_rank(ended: Ended) -> None:
    for case in ended.manifest.cases:
        assert [rank["wrong_elements"] for rank in ended.ranks(case.id)] == [0] * len(ended.ranks(case.id))


def show(netbench: object, ended: Ended, format: str) -> str:
    program: Program = netbench("show", str(ended.folder.path), "--format", format)  # type: ignore[operator]
    assert program.end() == 0, program.err
    assert program.err == ""
    return program.out


def headline_s(ended: Ended, case_id: str) -> float:
    """The median iteration of the slowest rank, from the raw rows."""
    table = ended.samples(case_id)
    timed = table.filter(pa.compute.equal(table["phase"].cast(pa.string()), "timed"))
    return float(np.median(timed["duration_ns"].to_numpy().reshape(-1, ITERATIONS).max(axis=0))) / 1e9


def test_bandwidths_are_bytes_over_time_and_not_twice_or_half_of_that(netbench: object, ended: Ended) -> None:
    rows = {row["case_id"]: row for row in json.loads(show(netbench, ended, "json"))}
    for case in ended.manifest.cases:
        if case.transmit_bytes == 0:
            continue  # what is copied within a rank is no bandwidth of the network
        n = case.world_size
        moved = {"all_gather": n * case.tensor_bytes, "send_recv": 2 * case.tensor_bytes}
        algbw = moved.get(case.mode, case.tensor_bytes) * 8 / 1e9 / headline_s(ended, case.id)
        row = rows[case.id]
        assert row["status"] == "ok"
        assert row["algbw_gbit_s"] == pytest.approx(algbw)
        if case.mode in ("all_gather", "all_to_all", "exchange", "allreduce"):
            # Where every rank sends T, busbw is what the kernel saw a rank send, over the same time.
            sent = np.mean([rank["wire_sent_bytes"] for rank in ended.ranks(case.id)]) / ITERATIONS
            assert row["busbw_gbit_s"] == pytest.approx(sent * 8 / 1e9 / headline_s(ended, case.id), rel=0.01)


def test_the_lines_of_torchft_keep_their_own_arithmetic(netbench: object, ended: Ended) -> None:
    found = re.findall(
        r"^transport='TCP' device='cpu' iters=(\d+) nelem=(\d+) qps=(\S+) gb=(\S+) bandwidth_gbps=(\S+)$",
        show(netbench, ended, "torchft"),
        flags=re.MULTILINE,
    )
    assert len(found) == len(ended.manifest.cases)
    for iters, nelem, qps, gb, gbps in found:
        assert int(iters) == ITERATIONS
        assert float(gb) == pytest.approx(int(nelem) * 4 / 1e9)
        assert float(gbps) == pytest.approx(float(qps) * float(gb) * 8)


def test_plots_are_drawn_into_the_run(netbench: object, ended: Ended) -> None:
    program: Program = netbench("plot", str(ended.folder.path))  # type: ignore[operator]
    assert program.end() == 0, program.err
    drawn = [Path(line) for line in program.out.splitlines()]
    assert drawn
    assert all(path.parent == ended.folder.plots and path.stat().st_size > 1000 for path in drawn)
    for mode in MODES:
        assert any(mode in path.name for path in drawn), mode


def test_the_hosts_environment_is_recorded_and_no_secret(ended: Ended) -> None:
    [host] = ended.manifest.environment
    assert host["ranks"] == [0, 1, 2]
    assert host["versions"]["torch"]
    assert host["variables"]["OMP_NUM_THREADS"]
    files = [path for path in ended.folder.path.rglob("*") if path.is_file()]
    assert len(files) > len(ended.manifest.cases)
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


def test_the_third_rank_of_a_ping_pong_idles(ended: Ended) -> None:
    case = make_case("send_recv", world_size=3, tensor_bytes=3_000_000)
    assert set(ended.samples(case.id)["rank"].to_pylist()) == {0, 1}
