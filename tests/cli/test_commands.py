"""What the commands print, where, and how soon."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic import make_case, make_run

import netbench
from netbench import catalogue
from netbench.__main__ import run
from netbench.cli import app, known_options
from netbench.config import SweepConfig, presets
from netbench.errors import Exit

ROOT = Path(__file__).parents[2]
COMMANDS = [command.name or str(command.callback.__name__) for command in app.registered_commands if command.callback]

HEAVY = {"torch", "pandas", "scipy", "matplotlib"}


@pytest.mark.parametrize(
    "typed",
    [
        "--help",
        "--version",
        "list",
        "sweep --dry-run",
        "sweep smoke --dry-run",
        *(f"{command} --help" for command in COMMANDS),
    ],
)
def test_help_lists_and_dry_runs_load_nothing_heavy(typed: str) -> None:
    program = (
        "import sys; from netbench.__main__ import run; code = run(sys.argv[1:]);"
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr); sys.exit(code)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, *typed.split()], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0
    assert ended.stdout
    loaded = set(ended.stderr.splitlines()[-1].split())
    assert "netbench" in loaded
    assert loaded & HEAVY == set()


@pytest.mark.parametrize("key", SweepConfig.model_fields)
def test_every_key_of_a_configuration_is_an_option_of_sweep(key: str) -> None:
    assert key in known_options("sweep")


def test_every_option_of_sweep_is_a_key_but_those_about_the_run_as_a_whole() -> None:
    assert known_options("sweep") - set(SweepConfig.model_fields) == {
        *("only", "dry_run", "resume", "rigorous", "node_rank", "print_launch")
    }


README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_documented_in_the_readme(command: str) -> None:
    assert f"netbench {command}" in README


@pytest.mark.parametrize("option", sorted(known_options("sweep")))
def test_every_option_of_sweep_is_documented_in_the_readme(option: str) -> None:
    assert re.search(rf"--{option.replace('_', '-')}(?![\w-])", README)


@pytest.mark.parametrize("title", [*catalogue.REGISTRIES, "presets"])
def test_list_names_every_member_with_a_line(title: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list"]) == Exit.DONE
    out, err = capsys.readouterr()
    assert err == ""
    [section] = [text for text in out.split("\n\n") if text.startswith(f"{title}\n")]
    lines = [line.split(maxsplit=1) for line in section.splitlines()[1:]]
    assert [name for name, _ in lines] == list(catalogue.REGISTRIES.get(title, presets()))


def test_a_dry_run_prints_cases_with_their_bytes_and_skips_with_their_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = ["--modes", "all_gather", "--world-sizes", "3", "--streams", "1,2", "--sizes", "12KB", "--out"]
    assert run(["sweep", *typed, str(tmp_path), "--dry-run"]) == Exit.DONE
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "all_gather-gloo-k1-n3-12KB  tensor=12000 B  message=36000 B  transmit=24000 B",
        "all_gather-parallel_gloo-k1-n3-12KB  tensor=12000 B  message=36000 B  transmit=24000 B",
        "all_gather-parallel_gloo-k2-n3-12KB  tensor=12000 B  message=36000 B  transmit=24000 B",
        "skip all_gather-gloo-k2-n3-12KB  gloo has one stream, not 2; parallel_gloo has more",
    ]
    assert err == "3 cases for 3 ranks, 1 skips\n"
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_of_a_resumed_run_prints_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done, missing = make_case(tensor_bytes=4096), make_case(tensor_bytes=8192)
    folder = make_run(tmp_path / "run", [done], unmeasured=[missing], status="interrupted")
    before = folder.manifest.read_bytes()
    assert run(["sweep", "--resume", str(folder.path), "--dry-run"]) == Exit.DONE
    out, _ = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == [missing.id]
    assert folder.manifest.read_bytes() == before


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        make_run(tmp_path / name, [make_case(tensor_bytes=size) for size in (4096, 65536)])
    return tmp_path


def test_show_prints_data_and_nothing_else(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", str(results), "--format", "json"]) == Exit.DONE
    out, err = capsys.readouterr()
    assert err == ""
    assert [(row["run_id"], row["tensor_bytes"]) for row in json.loads(out)] == [
        ("one", 4096),
        ("one", 65536),
        ("two", 4096),
        ("two", 65536),
    ]
    assert run(["show", str(results), "--format", "csv"]) == Exit.DONE
    assert len(list(csv.DictReader(io.StringIO(capsys.readouterr().out)))) == 4


def test_a_run_named_twice_is_shown_once(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", str(results), str(results / "one"), "--format", "json"]) == Exit.DONE
    assert len(json.loads(capsys.readouterr().out)) == 4


def test_plot_prints_the_paths_of_what_it_drew_and_nothing_else(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plot", str(results / "one")]) == Exit.DONE
    out, err = capsys.readouterr()
    assert err == ""
    drawn = {Path(line) for line in out.splitlines()}
    assert drawn == set((results / "one" / "plots").iterdir())
    assert {path.suffix for path in drawn} == {".png", ".svg"}


def test_runs_lists_every_run_with_its_question(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["runs", str(results)]) == Exit.DONE
    out, _ = capsys.readouterr()
    rows = [line for line in out.splitlines() if "Is this synthetic?" in line]
    assert len(rows) == 2
    assert all("finished" in row and "2/2" in row for row in rows)


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == Exit.DONE
    assert capsys.readouterr().out == f"netbench {netbench.__version__}\n"


@pytest.mark.parametrize("typed", [["list"], ["show", "{results}", "--format", "csv"], ["sweep", "--dry-run"]])
def test_a_reader_that_has_had_enough_is_no_error(typed: list[str], results: Path) -> None:
    command = [sys.executable, "-m", "netbench", *(word.format(results=results) for word in typed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        program.stdout.close()  # as `| head` does, only sooner
        complaint = program.stderr.read()
        code = program.wait(60)
    assert code == Exit.DONE
    assert "Broken" not in complaint
    assert "Traceback" not in complaint
