"""The runs that are committed as references: what they show, that they can be read, that they name no folders."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from netbench.comparisons import onset_bytes, speedups, two_against_more
from netbench.explain.evidence import Evidence
from netbench.explain.verdicts import Outcome, verdicts
from netbench.summary import Run, load_run

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
RUNS = sorted(path.parent.name for path in REFERENCE.glob("*/run.json"))


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Run:
    return load_run(REFERENCE / request.param)


@pytest.mark.parametrize("name", RUNS)
def test_it_is_small_and_whole_and_says_nothing_of_its_machine_s_folders(name: str) -> None:
    found = load_run(REFERENCE / name)
    assert set(found.summaries()["status"]) <= {"ok", "skipped"}
    text = (REFERENCE / name / "run.json").read_text(encoding="utf-8")
    assert re.findall(r"/(?:home|root|tmp|work|usr)/", text) == []
    assert not (REFERENCE / name / "logs").exists()
    assert max(path.stat().st_size for path in (REFERENCE / name).rglob("*") if path.suffix != ".svg") < 1_000_000


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ("explain-3x200mbit", [Outcome.AT_WORK, *[Outcome.NOT_SEEN] * 4]),
        ("explain-loopback", [Outcome.NOT_SEEN, *[Outcome.AT_WORK] * 2, *[Outcome.UNDECIDED] * 2]),
    ],
    indirect=["run"],
)
def test_a_link_blocks_and_loopback_pays_in_memory(run: Run, expected: list[Outcome]) -> None:
    found = verdicts(Evidence(run))
    assert [verdict.mechanism for verdict in found][:3] == ["head-of-line blocking", "page faults", "copies"]
    assert [verdict.outcome for verdict in found] == expected
    for verdict in found:
        assert (verdict.share is not None) == (verdict.outcome is Outcome.AT_WORK)
        if verdict.share is not None:
            assert 0.2 < verdict.share.value < 1.1


@pytest.mark.parametrize("run", ["polling-loopback"], indirect=True)
def test_small_allreduces_are_held_up_by_threads_that_poll(run: Run) -> None:
    medians = run.summaries().set_index(["mode", "world_size", "tensor_bytes", "backend"])["median_ns"]
    for world_size in (2, 4):
        for tensor_bytes in (64, 1024, 16 * 1024):
            usual, batch = (
                medians["allreduce", world_size, tensor_bytes, backend] for backend in ("gloo", "batch_gloo")
            )
            assert usual > 2 * batch


@pytest.mark.parametrize("run", ["world_size-8x100mbit"], indirect=True)
def test_two_ranks_are_half_as_slow_again_as_more(run: Run) -> None:
    ratios = two_against_more(run.summaries(), run.times)
    largest = ratios.iloc[-1]
    assert 1.45 < largest["low"] < largest["high"] < 1.55
    assert onset_bytes(ratios) == 4 * 1024**2


@pytest.mark.parametrize("run", ["streams-2x400mbit", "torchft_199"], indirect=True)
def test_many_streams_help_large_messages_and_hurt_small_ones(run: Run) -> None:
    table = speedups(run.summaries())
    table = table[(table["mode"] == "allreduce") & (table["backend"] == "split_gloo") & (table["streams"] == 20)]
    table = table.sort_values("tensor_bytes")
    assert table["speedup"].iloc[0] < 0.6
    assert table["speedup"].iloc[-1] > 8
