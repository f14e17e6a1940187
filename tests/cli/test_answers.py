"""fit, predict, import and the ways to plot, as commands: data alone on stdout, strict JSON, and mistakes by name."""

from __future__ import annotations

import csv
import io
import json
import re
import runpy
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import netbench
from netbench.__main__ import run
from netbench.errors import Exit
from netbench.listing import LISTINGS
from netbench.page import THEMES

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests" / "data" / "runs" / "20261129T131634Z-lab_between-3e40"
FOREIGN = ROOT / "tests" / "data" / "foreign"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    shutil.copytree(RECORDED, tmp_path / RECORDED.name)
    return tmp_path


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def asked(typed: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = run(list(typed))
    out, err = capsys.readouterr()
    return code, out, err


def test_fit_prints_rows_and_draws_figures(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = asked(["fit", str(results), "--format", "json"], capsys)
    assert code == Exit.DONE
    rows = strict(out)
    assert {(row["mode"], row["world_size"]) for row in rows} == {
        (mode, n) for mode in ("all_gather", "allreduce") for n in (2, 3, 4)
    }
    [last] = [row for row in rows if row["world_size"] == 4 and row["to_tensor_bytes"] > 4_000_000]
    assert last["beta_low_gbit_s"] < 0.19 < last["beta_high_gbit_s"]
    drawn = [Path(line.removeprefix("figure: ")) for line in err.splitlines() if line.startswith("figure: ")]
    assert {path.stem for path in drawn} == {
        f"fit_{kind}-{mode}" for kind in ("curves", "residuals") for mode in ("all_gather", "allreduce")
    }
    assert all(path.is_file() for path in drawn)
    assert "N=4, from smaller world sizes" in err


def test_two_ranks_have_two_thirds_of_the_bandwidth_of_more(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = asked(["fit", str(results), "--format", "json"], capsys)
    beta = {row["world_size"]: row["beta_gbit_s"] for row in strict(out) if row["mode"] == "all_gather"}
    assert 0.6 < beta[2] / beta[3] < 0.85


@pytest.mark.parametrize("format", LISTINGS)
def test_predict_answers_in_every_format(results: Path, format: str, capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["predict", str(results), "--mode", "all_gather", "--world-size", "16", "--tensor", "50MB"]
    code, out, err = asked([*typed, "--format", format], capsys)
    assert (code, err) == (Exit.DONE, "")
    if format == "json":
        [row] = strict(out)
        assert row["low_s"] < row["time_s"] < row["high_s"]
        assert row["interpolates"] is False
    elif format == "csv":
        [row] = csv.DictReader(io.StringIO(out))
        assert row["tensor_bytes"] == "50000000"
    else:
        assert "EXTRAPOLATED: " in out
        assert "N=16 is above the world sizes measured, 2, 3, 4" in out
        assert "times the bytes of the largest size of N=4" in out


def test_predict_says_when_it_interpolates(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["predict", str(results), "--mode", "all_gather", "--world-size", "2", "--tensor", "1MiB"]
    _, out, _ = asked(typed, capsys)
    assert "interpolated" in out
    assert re.search(r"\d+(\.\d+)? ms to \d+(\.\d+)? ms", out)


@pytest.mark.parametrize(
    ("typed", "complaint"),
    [
        (["--mode", "al_gather", "--world-size", "2", "--tensor", "1MB"], "--mode: 'al_gather' is not a mode; did you"),
        (["--mode", "all_gather", "--world-size", "2", "--tensor", "1Mbit"], "--tensor: '1Mbit' counts bits"),
        (["--mode", "send_recv", "--world-size", "1", "--tensor", "1MB"], "--world-size: send_recv needs 2 ranks"),
        (["--mode", "broadcast", "--world-size", "2", "--tensor", "1MB"], "has no series of broadcast; it has all_ga"),
        (
            ["--mode", "all_gather", "--world-size", "2", "--tensor", "1MB", "--streams", "4"],
            "no series of all_gather, K=4",
        ),
        (["--mode", "all_gather", "--world-size", "2", "--tensor", "1MB", "--format", "xml"], "--format: 'xml' is not"),
    ],
)
def test_predict_s_mistakes_are_named(
    results: Path, typed: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = asked(["predict", str(results), *typed], capsys)
    assert (code, out) == (Exit.USAGE, "")
    assert complaint in err


def test_a_folder_of_several_runs_is_no_run(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(results / RECORDED.name, results / "again")
    code, out, err = asked(["fit", str(results)], capsys)
    assert (code, out) == (Exit.USAGE, "")
    assert "holds 2 runs; name one of them" in err


def test_import_prints_the_folder_of_a_run_that_shows_and_plots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = ["import", str(FOREIGN / "iperf3_tcp.json"), str(FOREIGN / "osu_bw.txt"), "--out", str(tmp_path)]
    code, out, err = asked(typed, capsys)
    assert (code, err) == (Exit.DONE, "")
    folders = out.splitlines()
    assert len(folders) == 2
    code, out, err = asked(["show", *folders, "--format", "json"], capsys)
    assert (code, err) == (Exit.DONE, "")
    assert {row["backend"] for row in strict(out)} == {"tcp", "mpi"}
    code, out, err = asked(["plot", *folders], capsys)
    assert (code, err) == (Exit.DONE, "")
    assert len(out.splitlines()) == 4


def test_an_import_that_fails_prints_nothing_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = asked(["import", str(FOREIGN / "iperf3_error.json"), "--out", str(tmp_path / "out")], capsys)
    assert (code, out) == (Exit.RECORD, "")
    assert "line 10: the run failed: unable to connect" in err
    assert not (tmp_path / "out").exists()
    code, _, err = asked(["import", "--tool", "iperf", str(FOREIGN / "osu_bw.txt")], capsys)
    assert code == Exit.USAGE
    assert "--tool: 'iperf' is not a tool; did you mean 'iperf3'?" in err


@pytest.mark.parametrize("theme", THEMES)
def test_several_runs_share_their_axes_and_are_named_in_the_legend(
    results: Path, theme: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked(["import", str(FOREIGN / "osu_allgather_full.txt"), "--world-size", "2", "--out", str(results)], capsys)
    code, out, err = asked(["plot", str(results), "--overlay", str(results / "both"), "--theme", theme], capsys)
    assert (code, err) == (Exit.DONE, "")
    text = (results / "both" / "bandwidth-all_gather.svg").read_text()
    assert "lab_between: gloo, 1 stream" in text
    assert "osu: mpi int8, 1 stream" in text
    assert "osu" not in (results / "both" / "bandwidth-allreduce.svg").read_text()
    assert set(out.splitlines()) == {str(path) for path in (results / "both").iterdir()}


def test_a_terminal_plot_fits_and_writes_no_file(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    before = sorted(results.rglob("*"))
    code, out, err = asked(["plot", str(results), "--terminal"], capsys)
    assert (code, err) == (Exit.DONE, "")
    lines = out.splitlines()
    assert max(map(len, lines)) <= 70
    assert sum("bus bandwidth in Gbit/s" in line for line in lines) == 6
    assert sum(line == "  o gloo, K=1" for line in lines) == 6
    assert "\x1b" not in out
    assert sorted(results.rglob("*")) == before


def test_every_figure_is_one_call_from_python(results: Path) -> None:
    [loaded] = netbench.load(results)
    assert "bandwidth-all_gather" in netbench.draw(loaded)
    figure = netbench.draw(loaded, "bandwidth", theme="dark", rate="GB/s")["bandwidth-all_gather"]
    assert figure.axes[0].get_ylabel() == "bus bandwidth (GB/s)"
    assert sum(figure.get_facecolor()[:3]) < 0.5
    assert list(netbench.draw([loaded, loaded])) == ["bandwidth-all_gather", "bandwidth-allreduce"]


def test_the_example_of_the_documentation_runs(results: Path, tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "docs" / "plot_own.py"))
    script["main"](str(results / RECORDED.name), str(tmp_path / "pictures"))
    names = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert names == {"bandwidth-all_gather.png", "bandwidth-allreduce.png", "iterations.png"}


@pytest.mark.parametrize("format", ["json", "jsonl"])
def test_json_is_strict_also_of_runs_that_went_wrong(
    tmp_path: Path, format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from synthetic import make_case, make_run

    from netbench.record import Failure

    failed, wrong = make_case(tensor_bytes=4096), make_case(tensor_bytes=8192)
    failures = [Failure(case_id=failed.id, launch=1, reason='rank 0 said "nan"\n\x00')]
    make_run(
        tmp_path / "run",
        [wrong],
        unmeasured=[failed],
        failures=failures,
        status="failed",
        iterations=1,
        facts={"status": "wrong", "wrong_elements": 3, "ranks": []},
    )
    make_run(tmp_path / "nothing", [], unmeasured=[failed], status="interrupted")
    code, out, err = asked(["show", str(tmp_path), "--format", format], capsys)
    assert (code, err) == (Exit.DONE, "")
    rows = strict(out) if format == "json" else [strict(line) for line in out.splitlines()]
    assert sorted(row["status"] for row in rows) == ["failed", "missing", "wrong"]
