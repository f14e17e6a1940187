"""The doctor as a user meets it: a table or JSON, an exit code, an answer at once."""

from __future__ import annotations

import csv
import io
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from netbench.__main__ import run
from netbench.cli import known_options
from netbench.doctor import CHECKS
from netbench.errors import Exit

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def rows(capsys: pytest.CaptureFixture[str]):
    def ask(*options: str, code: Exit = Exit.DONE) -> list[dict[str, str]]:
        assert run(["doctor", *options, "--format", "json"]) == code
        out, err = capsys.readouterr()
        found = json.loads(out)
        problems = sum(row["level"] == "problem" for row in found)
        assert err.startswith(f"{problems} problem")
        assert (problems > 0) == (code is Exit.CASE_FAILED)
        return found

    return ask


def test_json_has_a_row_for_each_finding_of_the_checks(rows, tmp_path: Path) -> None:
    found = rows("--world-size", "1", "--out", str(tmp_path / "results"))
    assert all(set(row) == {"check", "level", "seen", "advice"} for row in found)
    names = list(dict.fromkeys(row["check"] for row in found))
    assert names == [name for name in CHECKS if name in names]
    assert {"interface", "open_files", "threads", "tcp", "cpus", "memory", "disk", "versions", "lab"} <= set(names)
    assert list(tmp_path.iterdir()) == []


def test_a_table_has_the_advice_below_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--world-size", "1"]) == Exit.DONE
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[1].split() == ["check", "level", "what", "was", "found"]
    assert lines[3].split()[:4] == ["interface", "note", "lo", "127.0.0.1"]
    assert lines[4].strip().startswith("-> good on one host alone")
    assert err.startswith("0 problems, ")


def test_csv_has_the_same_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--world-size", "1", "--format", "csv"]) == Exit.DONE
    found = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert found[0]["check"] == "interface"
    assert found[0]["level"] == "note"


def test_a_problem_sets_the_exit_code_and_is_named(rows) -> None:
    found = rows("--interface", "nope0", code=Exit.CASE_FAILED)
    [problem] = [row for row in found if row["level"] == "problem"]
    assert problem["check"] == "interface"
    assert "has no interface 'nope0'" in problem["seen"] + problem["advice"]


def test_a_port_that_is_taken_is_a_problem_and_a_free_one_is_not(rows) -> None:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port = door.getsockname()[1]
        door.listen()
        taken = rows("--rdzv-endpoint", f"127.0.0.1:{port}", code=Exit.CASE_FAILED)
    assert any(row["check"] == "rendezvous" and "Address already in use" in row["seen"] for row in taken)
    free = rows("--rdzv-endpoint", f"127.0.0.1:{port}")
    assert any(row["check"] == "rendezvous" and "free to listen on" in row["seen"] for row in free)


def test_more_streams_than_descriptors_are_a_problem() -> None:
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256));"
        "from netbench.__main__ import run; sys.exit(run(sys.argv[1:]))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, "doctor", "--streams", "100", "--world-size", "2", "--format", "json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == Exit.CASE_FAILED
    [found] = [row for row in json.loads(ended.stdout) if row["check"] == "open_files"]
    assert found["level"] == "problem"
    assert "100 streams between 2 ranks: 600" in found["seen"]
    assert "above the hard limit of 256" in found["advice"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_to_is_a_problem(rows, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    found = rows("--out", str(tmp_path / "results"), code=Exit.CASE_FAILED)
    assert any(row["check"] == "disk" and row["level"] == "problem" for row in found)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--rdzv-endpoint", "host0:port"], ["--rdzv-endpoint", "'host0:port' is not HOST:PORT"]),
        (["--format", "yaml"], ["--format", "'yaml' is not a format"]),
        (["--streams", "0"], ["--streams"]),
        (["--world-size", "two"], ["--world-size"]),
    ],
)
def test_a_bad_option_is_refused(options: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", *options]) == Exit.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert [word for word in words if word not in err] == []


def test_it_answers_soon_and_loads_nothing_heavy() -> None:
    program = (
        "import sys; from netbench.__main__ import run; code = run(sys.argv[1:]);"
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr); sys.exit(code)"
    )
    begun = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", program, "doctor", "--world-size", "1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == Exit.DONE
    # 0.4 s on a quiet machine; torch alone would take three.
    assert time.monotonic() - begun < 10
    loaded = set(ended.stderr.splitlines()[-1].split())
    assert loaded & {"torch", "pandas", "scipy", "matplotlib", "numpy", "pyarrow"} == set()


@pytest.mark.parametrize("option", sorted(known_options("doctor")))
def test_every_option_is_documented_in_the_readme(option: str) -> None:
    section = README.partition("### `netbench doctor`")[2].partition("\n### ")[0]
    assert f"`--{option.replace('_', '-')}`" in section
