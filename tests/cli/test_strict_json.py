"""Whatever a command prints as JSON is strict JSON and all that is on stdout, also when something is wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from synthetic import make_case, make_run

from netbench.__main__ import run
from netbench.cli import app, known_options
from netbench.record import Failure

DATA = Path(__file__).parents[1] / "data"
RECORDED = DATA / "runs" / "20261129T131634Z-lab_between-3e40"

#: How each command that has a format is called on a run.
TYPED = {
    "show": ["show", "{run}"],
    "fit": ["fit", "{run}"],
    "predict": ["predict", "{run}", "--mode", "all_gather", "--world-size", "16", "--tensor", "50MB"],
    "compare": ["compare", "{run}", "{run}"],
    "matrix": ["matrix", "{run}"],
}

RUNS = ("recorded", "imported", "failed", "nothing measured", "damaged", "not there", "pairs", "damaged pairs")


def test_every_command_with_a_format_is_here() -> None:
    commands = [
        command.name or str(command.callback.__name__) for command in app.registered_commands if command.callback
    ]
    # The doctor looks at a machine, not at a run; its tests are its own.
    assert {name for name in commands if "format" in known_options(name)} - {"doctor"} == set(TYPED)


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A run of the kind asked for."""
    path = tmp_path / "run"
    match request.param:
        case "recorded":
            shutil.copytree(RECORDED, path)
        case "imported":
            run(["import", str(DATA / "foreign" / "osu_allgather_full.txt"), "--world-size", "2", "--out", str(path)])
            capsys.readouterr()
        case "failed":
            cases = [make_case("all_gather", tensor_bytes=4**power * 1024) for power in range(7)]
            failures = [Failure(case_id=cases[-1].id, launch=1, reason='it said "NaN"\n\x00\ud7ff')]
            make_run(path, cases[:-1], unmeasured=cases[-1:], failures=failures, status="failed", iterations=1)
        case "nothing measured":
            make_run(path, [], unmeasured=[make_case()], status="interrupted")
        case "pairs" | "damaged pairs":
            cases = [make_case("send_recv", world_size=3, pair=pair) for pair in ("0-1", "0-2", "1-2")]
            failures = [Failure(case_id=cases[-1].id, launch=1, reason='it said "NaN"\n\x00\ud7ff')]
            folder = make_run(path, cases[:-1], unmeasured=cases[-1:], failures=failures, iterations=5)
            if request.param == "damaged pairs":
                folder.sample_file(cases[0].id).write_bytes(b"PAR1 nonsense")
        case "damaged":
            shutil.copytree(RECORDED, path)
            next((path / "samples").iterdir()).write_bytes(b"PAR1 nonsense")
    return path


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


@pytest.mark.parametrize("command", TYPED)
@pytest.mark.parametrize("folder", RUNS, indirect=True)
def test_stdout_is_one_strict_json_or_nothing(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run([*(word.format(run=folder) for word in TYPED[command]), "--format", "json"])
    out, err = capsys.readouterr()
    if out:
        answer: Any = json.loads(out, parse_constant=refuse)
        assert isinstance(answer, list | dict)
    else:
        assert code != 0
        assert err.startswith("netbench: ")
    assert "Traceback" not in err
