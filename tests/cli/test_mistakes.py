"""Every mistake of a user gives one message that names what is wrong and what would be right, and no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from synthetic import make_case, make_run

from netbench.__main__ import run
from netbench.errors import Exit
from netbench.record import SCHEMA_VERSION

#: What was typed -> the words that must be in the answer.
MISTAKES: list[tuple[list[str], list[str]]] = [
    (["sweep", "--modes", "allredcue"], ["--modes", "'allredcue'", "did you mean 'allreduce'?"]),
    (["sweep", "--backends", "glo"], ["--backends", "'glo'", "did you mean 'gloo'?"]),
    (["sweep", "--sizes", "1Mbit"], ["--sizes", "'1Mbit'", "sizes are bytes"]),
    (["sweep", "--sizes", "1KiB:4KiB"], ["--sizes", "'1KiB:4KiB'", "min:max:xfactor"]),
    (["sweep", "--streams", "0"], ["--streams", "0", "whole numbers from 1"]),
    (["sweep", "--world-sizes", "two"], ["--world-sizes", "two", "whole numbers from 1"]),
    (["sweep", "--dtypes", "float23"], ["--dtypes", "'float23'", "did you mean 'float32'?"]),
    (["sweep", "--timeout", "soon"], ["--timeout", "'soon'", "30s"]),
    (["sweep", "--interface", "nope0"], ["--interface", "'nope0'", " has: "]),
    (["sweep", "--only", "nothing-like-it"], ["--only", "'nothing-like-it'"]),
    (["sweep", "smok"], ["'smok'", "did you mean 'smoke'?"]),
    (["sweep", "gone.toml"], ["gone.toml", "no such file"]),
    (["sweep", "."], ["'.'", "known: "]),
    (["sweep", "wrong.toml"], ["wrong.toml: sweep.iteratons", "did you mean 'iterations'?"]),
    (["sweep", "wrong_value.toml"], ["wrong_value.toml: sweep.streams", "0", "whole numbers from 1"]),
    (["sweep", "broken.toml"], ["broken.toml", "not valid TOML"]),
    (["sweep", "--resume", "run", "--streams", "2"], ["--resume", "leave out streams"]),
    (["sweep", "--modes", "send_recv", "--world-sizes", "1"], ["nothing to run", "send_recv needs 2 ranks, not 1"]),
    (["sweep", "--steams", "2"], ["--steams", "--streams"]),
    (["swep"], ["swep"]),
    (["show", "gone"], ["gone", "no such file or folder"]),
    (["show", "empty"], ["empty", "holds no run", "netbench sweep"]),
    (["show", "run", "--format", "jsn"], ["--format", "'jsn'", "did you mean 'json'?"]),
    (["show", "run", "--rate", "Gbits"], ["--rate", "'Gbits'", "Gbit/s"]),
    (["plot", "gone"], ["gone", "no such file or folder"]),
    (["runs", "gone"], ["gone", "no such file or folder"]),
]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a run, an empty folder, and configurations that are wrong."""
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "run", [make_case()])
    (tmp_path / "empty").mkdir()
    (tmp_path / "wrong.toml").write_text("[sweep]\niteratons = 5\n")
    (tmp_path / "wrong_value.toml").write_text("[sweep]\nstreams = 0\n")
    (tmp_path / "broken.toml").write_text("[sweep\n")
    return tmp_path


@pytest.mark.parametrize(("typed", "words"), MISTAKES, ids=lambda value: " ".join(value))
def test_a_mistake_ends_with_exit_code_2_and_says_what_would_be_right(
    typed: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(typed) == Exit.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    for word in words:
        assert word in err
    assert "Traceback" not in err


@pytest.mark.parametrize("command", ["show", "plot"])
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda run: (run / "run.json").write_text("{"), ["run.json", "damaged"]),
        (lambda run: (run / "run.json").write_text(""), ["run.json", "damaged"]),
        (
            lambda run: (run / "run.json").write_text(f'{{"schema_version": {SCHEMA_VERSION + 1}}}'),
            ["run.json", f"version {SCHEMA_VERSION + 1}", "upgrade"],
        ),
        (lambda run: sample(run).write_bytes(b""), [".parquet", "empty"]),
        (lambda run: sample(run).write_bytes(sample(run).read_bytes()[:-200]), [".parquet", "damaged"]),
        (lambda run: sample(run).rename(run / "samples" / "other.parquet"), ["other.parquet", "another case"]),
    ],
    ids=["half a run.json", "no run.json", "newer", "no samples", "half the samples", "renamed"],
)
def test_a_record_that_is_not_whole_is_named_with_exit_code_4(
    command: str, damage: object, words: list[str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(place / "run")  # type: ignore[operator]
    assert run([command, "run"]) == Exit.RECORD
    out, err = capsys.readouterr()
    assert out == ""
    assert all(word in err for word in ["run", *words])
    assert "Traceback" not in err


def sample(run: Path) -> Path:
    return next((run / "samples").iterdir())


@pytest.mark.parametrize(
    ("folder", "words"), [("empty", "is not a run"), ("gone", "is not a run"), ("run", "cannot be run")]
)
def test_what_cannot_be_resumed_is_named(
    folder: str, words: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = place / "run" / "run.json"
    manifest.write_text(manifest.read_text().replace('"config":{}', '"config":{"modes":1}'))
    manifest.write_text(manifest.read_text().replace('"config": {}', '"config": {"modes": 1}'))
    assert run(["sweep", "--resume", folder]) == Exit.RECORD
    err = capsys.readouterr().err
    assert folder in err
    assert words in err


@pytest.mark.parametrize("out", ["wrong.toml", "wrong.toml/deeper", "/proc/netbench-results"])
def test_results_that_cannot_be_written_end_with_exit_code_6_before_anything_is_started(
    out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sweep", "--sizes", "4KiB", "--out", out]) == Exit.STORAGE
    err = capsys.readouterr().err
    assert out in err
    assert "--out" in err
    assert "Traceback" not in err


def test_a_full_disk_ends_with_exit_code_6_and_leaves_no_half_manifest(place: Path) -> None:
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000));"
        "from netbench.__main__ import run; sys.exit(run(sys.argv[1:]))"
    )
    typed = ["sweep", "--out", "full", "--sizes", "1KiB:1MiB:x2"]
    ended = subprocess.run(
        [sys.executable, "-c", program, *typed], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == Exit.STORAGE
    assert "run.json: cannot be written: File too large" in ended.stderr
    assert "Traceback" not in ended.stderr
    [folder] = (place / "full").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["logs", "samples"]
