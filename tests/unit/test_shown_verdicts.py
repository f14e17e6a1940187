"""Verdicts and the ceiling where people see them: tables, every format, figures, and the options that change them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from synthetic import make_case, make_run

from netbench.__main__ import run as netbench
from netbench.errors import Exit
from netbench.figures import draw
from netbench.model import Case
from netbench.summary import load_run
from netbench.tables import FORMATS

GOOD, DOUBTFUL = (make_case(tensor_bytes=size) for size in (1_000_000, 2_000_000))


def durations(case: Case, ranks: int, iterations: int) -> np.ndarray:
    """10 ms, and for one case 10 or 20 ms in turns."""
    slow = np.arange(iterations) % 2 if case.id == DOUBTFUL.id else np.zeros(iterations)
    return np.tile((10e6 * (1 + slow) + np.arange(iterations) % 7 * 1000).astype(int), (ranks, 1))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", [GOOD, DOUBTFUL], durations, iterations=40).path


def shown(path: Path, name: str, *options: object) -> str:
    file = io.StringIO()
    FORMATS[name].write([load_run(path, *options)], "Gbit/s", file)
    return file.getvalue()


def test_a_table_has_marks_and_spells_them_out(path: Path) -> None:
    for name in ("table", "markdown"):
        text = shown(path, name)
        [row] = [line for line in text.splitlines() if " 2MB " in line]
        assert "Bn" in row
        assert f"B: bimodal, 1 case; {DOUBTFUL.id}: 50% of the iterations take about 10 ms, the others 20 ms" in text
        assert "n: few_samples, 1 case" in text


def test_a_table_without_verdicts_has_no_column_for_them(path: Path) -> None:
    text = shown(path, "table", None, {"bimodal", "few_samples"})
    assert "verdicts" not in text
    assert "bimodal" not in text


def test_formats_for_programs_carry_names_and_advice(path: Path) -> None:
    good, doubtful = json.loads(shown(path, "json"))
    assert (good["verdicts"], good["advice"]) == ("", "")
    assert doubtful["verdicts"] == "bimodal, few_samples"
    assert [piece.split(":")[0] for piece in doubtful["advice"].split(" | ")] == ["bimodal", "few_samples"]
    assert list(csv.DictReader(io.StringIO(shown(path, "csv"))))[1]["verdicts"] == "bimodal, few_samples"
    assert json.loads(shown(path, "jsonl").splitlines()[1])["verdicts"] == "bimodal, few_samples"
    assert "# B: bimodal" in shown(path, "torchft")
    [gauge] = [line for line in shown(path, "prometheus").splitlines() if 'verdict="bimodal"' in line]
    assert gauge.startswith("netbench_verdict{")
    assert gauge.endswith(" 1.0")


def test_the_line_rate_gives_each_case_its_share_of_the_ceiling(path: Path) -> None:
    # 1 MB in 10 ms are 0.8 Gbit/s; 1 Gbit/s of line are 1448/1538 of payload.
    good, _ = json.loads(shown(path, "json", 1e9))
    assert good["ceiling_share"] == pytest.approx(0.8 * 1538 / 1448, rel=1e-3)
    assert good["ceiling_bit_s"] == pytest.approx(1e9 * 1448 / 1538)
    text = shown(path, "table", 1e9)
    assert " 85% " in text
    assert "ceiling: busbw over 941 Mbit/s of payload: --line-rate 1 Gbit/s, 1448 of 1538 B a packet" in text
    assert "ceiling" not in shown(path, "table")


def test_figures_count_verdicts_and_draw_the_ceiling(path: Path) -> None:
    figure = dict(draw(load_run(path, 2e9)))["bandwidth-allreduce"]
    words = [text.get_text() for text in figure.texts]
    assert any("verdicts: bimodal 1, few_samples 1 of 2 cases" in text for text in words)
    [axes] = figure.axes
    level = [
        line.get_ydata()[0] for line in axes.lines if len(set(line.get_ydata())) == 1 and len(line.get_ydata()) == 2
    ]
    assert level == [pytest.approx(2 * 1448 / 1538)]
    silent = dict(draw(load_run(path, None, {"bimodal", "few_samples"})))["bandwidth-allreduce"]
    assert not any("verdicts" in text.get_text() for text in silent.texts)


@pytest.mark.parametrize("command", ["show", "plot"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--silence", "bimodel"], "--silence: 'bimodel' is not a verdict; did you mean 'bimodal'?"),
        (["--line-rate", "10Gbps"], "--line-rate: '10Gbps' is not a rate; write 10gbit, 8Gbit/s or 1.2GB/s"),
        (["--line-rate", "0gbit"], "--line-rate: '0gbit' is no rate"),
    ],
)
def test_mistakes_in_options_are_named(
    command: str, options: list[str], words: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert netbench([command, str(path), *options]) == Exit.USAGE
    assert words in capsys.readouterr().err


def test_options_reach_the_table(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert netbench(["show", str(path), "--silence", "bimodal", "--line-rate", "1gbit"]) == Exit.DONE
    out = capsys.readouterr().out
    assert "few_samples" in out
    assert "bimodal" not in out
    assert "85%" in out


def test_ranks_have_a_row_each(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert netbench(["show", str(path), "--ranks", "--format", "json"]) == Exit.DONE
    rows = json.loads(capsys.readouterr().out)
    assert [(row["case_id"], row["rank"]) for row in rows] == [(c.id, r) for c in (GOOD, DOUBTFUL) for r in (0, 1)]
    assert rows[0]["wire_sent_bytes"] == 40 * GOOD.transmit_bytes
    assert netbench(["show", str(path), "--ranks"]) == Exit.DONE
    assert "alpha" in capsys.readouterr().out
    assert netbench(["show", str(path), "--ranks", "--format", "torchft"]) == Exit.USAGE
