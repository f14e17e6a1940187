"""``netbench matrix``: what it plans, what it refuses, and what it makes of a run that is there already."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from synthetic import make_case, make_run

from netbench.__main__ import run
from netbench.cli import known_options
from netbench.errors import Exit
from netbench.model import Case
from netbench.record import Failure

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
PAIRS = ("0-1", "0-2", "1-2")
CASES = [make_case("send_recv", world_size=3, tensor_bytes=size, pair=pair) for pair in PAIRS for size in (8, 2**23)]


def slow_rank_2(case: Case, ranks: int, iterations: int) -> np.ndarray:
    return np.full((ranks, iterations), case.tensor_bytes * 100 * (4 if 2 in case.members else 1))


def planned(typed: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert run(["matrix", *typed, "--dry-run"]) == Exit.DONE
    return [line.split()[0] for line in capsys.readouterr().out.splitlines()]


def test_a_lab_s_hosts_are_all_paired(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(["--lab", "4x200mbit", "--out", str(tmp_path)], capsys)
    pairs = ["0-1", "0-2", "0-3", "1-2", "1-3", "2-3"]
    assert found == [f"send_recv-gloo-k1-n4-{size}-pair{pair}" for pair in pairs for size in ("8B", "8MiB")]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("typed", "cases"),
    [
        ([], ["send_recv-gloo-k1-n2-8B-pair0-1", "send_recv-gloo-k1-n2-8MiB-pair0-1"]),
        (
            ["--backend", "tcp", "--streams", "4", "--latency-size", "1KiB", "--size", "1MB"],
            ["send_recv-tcp-k4-n2-1KiB-pair0-1", "send_recv-tcp-k4-n2-1MB-pair0-1"],
        ),
    ],
)
def test_sizes_and_backend_are_those_asked_for(
    typed: list[str], cases: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert planned(typed, capsys) == cases


def test_the_world_size_may_be_less_than_the_lab_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(planned(["--lab", "8x200mbit", "--world-size", "3"], capsys)) == 6


@pytest.mark.parametrize(
    ("typed", "complaint"),
    [
        (["--world-size", "1"], "--world-size"),
        (["--backend", "glo"], "--backend: 'glo' is not a backend; did you mean 'gloo'?"),
        (["--streams", "0"], "--streams: 0 is not a stream count"),
        (["--size", "1Mbit"], "--size: '1Mbit' counts bits"),
        (["--latency-size", "8MiB"], "--latency-size: 8MiB is not less than --size 8MiB"),
        (["--lab", "4x200mb"], "--lab: lab '4x200mb'"),
        (["--lab", "4x200mbit", "--interface", "eth0"], "a lab exclude each other"),
        (["--margin", "twenty"], "--margin: 'twenty' is not a share; write 5%"),
        (["--fail-on", "slower"], "--fail-on: 'slower' is not known; did you mean 'slow'?"),
        (["--format", "jsn"], "--format: 'jsn' is not a format; did you mean 'json'?"),
        (["--streams", "2"], "nothing to run"),
        (["run", "--size", "1MB", "--lab", "4x200mbit"], "names a run that is there already; leave out --size, --lab"),
        (["run", "--dry-run"], "leave out --dry-run"),
        (["run"], "has no cases between pairs; netbench matrix without a run measures them"),
    ],
)
def test_mistakes_are_named(
    typed: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_run(tmp_path / "run", [make_case("send_recv")])
    monkeypatch.chdir(tmp_path)
    assert run(["matrix", *typed]) == Exit.USAGE
    out, err = capsys.readouterr()
    assert (out, complaint in err) == ("", True), err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_run_is_judged_where_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path / "run", CASES, slow_rank_2)
    assert run(["matrix", str(tmp_path)]) == Exit.DONE
    out, err = capsys.readouterr()
    assert re.search(r"0-2 +alpha +alpha .* both", out)
    assert "rank 2 on alpha is in every slow pair" in out
    plots = folder.path / "plots" / "matrix-send_recv-gloo-k1"
    assert err.splitlines() == [f"figure: {plots}.png", f"figure: {plots}.svg"]
    assert Path(f"{plots}.png").is_file()


def test_a_slow_pair_fails_only_where_that_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "run", CASES, slow_rank_2)
    assert run(["matrix", str(tmp_path)]) == Exit.DONE
    assert run(["matrix", str(tmp_path), "--fail-on", "slow"]) == Exit.CASE_FAILED
    assert "--fail-on: 2 slow pairs" in capsys.readouterr().err


def test_without_a_slow_pair_nothing_fails(tmp_path: Path) -> None:
    make_run(tmp_path / "run", CASES)
    assert run(["matrix", str(tmp_path), "--fail-on", "slow"]) == Exit.DONE


def test_a_pair_that_failed_is_shown_and_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    *cases, failed = CASES
    failures = [Failure(case_id=failed.id, launch=1, reason="rank 2 on alpha: refused")]
    make_run(tmp_path / "run", cases, unmeasured=[failed], failures=failures, status="failed")
    assert run(["matrix", str(tmp_path)]) == Exit.CASE_FAILED
    out, err = capsys.readouterr()
    assert "failed: rank 2 on alpha: refused" in out
    assert "1 of 6 cases did not end well" in err


def test_the_command_is_documented_with_every_option() -> None:
    section = README.split("### `netbench matrix")[1].split("\n### ")[0]
    options = known_options("matrix")
    assert len(options) > 10
    assert [name for name in options if f"`--{name.replace('_', '-')}" not in section] == []
