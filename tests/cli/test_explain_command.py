"""``netbench explain``: what it plans, what it refuses, and what it makes of a run that is there already."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from synthetic import make_case, make_run

from netbench.__main__ import run
from netbench.errors import Exit

RECORDED = Path(__file__).parents[2] / "results" / "reference" / "explain-3x200mbit"


def test_a_dry_run_prints_the_experiments_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["explain", "--lab", "3x200mbit", "--dry-run", "--out", str(tmp_path)]) == Exit.DONE
    out, err = capsys.readouterr()
    assert "exchange_sends_first-gloo-k1-n2-4608KiB-c4-late5000us  tensor=4718592 B" in out
    assert "for 3 ranks, 0 skips" in err
    assert list(tmp_path.iterdir()) == []


def test_a_recorded_run_is_explained_where_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "run"
    shutil.copytree(RECORDED, copy, ignore=shutil.ignore_patterns("plots", "explain.md"))
    assert run(["explain", str(copy)]) == Exit.DONE
    out, err = capsys.readouterr()
    assert "head-of-line blocking" in out
    assert "at work" in out
    assert f"report: {copy / 'explain.md'}" in err
    assert "99 % (99 % to 99 %)" in (copy / "explain.md").read_text(encoding="utf-8")
    assert (copy / "plots" / "factors.png").is_file()


@pytest.mark.parametrize(
    ("typed", "complaint"),
    [
        (["--size", "3MB"], "names a run that is there already; leave out --size"),
        (["--dry-run"], "leave out --dry-run"),
        (["--rdzv-endpoint", "h:1", "--dry-run"], "leave out --rdzv-endpoint, --dry-run"),
    ],
)
def test_a_run_is_explained_as_it_was_measured(
    typed: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["explain", str(RECORDED), *typed]) == Exit.USAGE
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "complaint"),
    [
        (["--size", "3Mbit"], "--size: '3Mbit' counts bits"),
        (["--lab", "3x200mb"], "--lab: "),
        (["--lab", "3x200mbit", "--interface", "eth0"], "a lab exclude each other"),
        (["--lab", "1x200mbit"], "nothing to run"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    typed: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["explain", *typed, "--out", str(tmp_path)]) == Exit.USAGE
    assert complaint in capsys.readouterr().err


def test_a_run_without_the_experiments_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path / "run", [make_case("allreduce")])
    assert run(["explain", str(folder.path)]) == Exit.USAGE
    assert "nothing to explain" in capsys.readouterr().err
