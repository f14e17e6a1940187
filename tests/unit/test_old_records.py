"""Records of earlier versions stay readable: one recorded run of each is kept as test data, as it was written.

``v1/first`` is of the first commits, whose samples knew neither launches and rounds nor context switches, and whose
facts nothing of clocks and neighbours; ``v1/rounds`` has all of them.
"""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import pytest

from netbench.compare.comparison import compare
from netbench.metrics import METRICS
from netbench.record import SCHEMA_VERSION
from netbench.summary import load, load_run
from netbench.tables import FORMATS

DATA = Path(__file__).parents[1] / "data"
RUNS = sorted(path.parent for path in DATA.glob("v*/*/run.json"))


def test_every_version_has_its_run() -> None:
    assert {path.parent.name for path in RUNS} == {f"v{number}" for number in range(1, SCHEMA_VERSION + 1)}


@pytest.mark.parametrize("path", RUNS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_old_runs_load_and_gain_every_metric(path: Path) -> None:
    run = load_run(path)
    table = run.summaries()
    assert set(table["status"]) == {"ok"}
    assert table["median_ns"].gt(0).all()
    assert {metric.column() for metric in METRICS.values()} <= set(table)
    assert table["busbw_gbit_s"].gt(0).all()
    assert table["cpu_s_per_gb"].gt(0).all()
    assert table["minor_faults"].ge(0).all()
    assert len(run.samples()) == run.samples().groupby("case_id", observed=True).size().sum()
    for format in FORMATS.values():
        file = io.StringIO()
        format.write([run], "Gbit/s", file)
        assert file.getvalue()


def test_what_the_first_records_do_not_tell_is_null() -> None:
    first, later = (load_run(DATA / "v1" / name).summaries() for name in ("first", "rounds"))
    for column in ("voluntary_switches", "cpu_foreign", "cpu_stalled", "foreign_bit_s", "between_launch_spread"):
        assert first[column].isna().all()
    assert later["voluntary_switches"].gt(0).all()
    assert later["cpu_foreign"].between(0, 1).all()
    assert pd.isna(first["stop_reason"]).all()
    assert set(later["stop_reason"]) <= {"precision", "budget", "iterations", "cap"}


def test_an_old_run_can_be_compared_with_a_new_one() -> None:
    first, later = (load_run(DATA / "v1" / name) for name in ("first", "rounds"))
    assert {pair.verdict for pair in compare(first, first).pairs} <= {"same", "inconclusive"}
    found = compare(first, later)
    assert {pair.verdict for pair in found.pairs} == {"not compared"}
    assert any(difference.what == "netbench" or difference.what.startswith("--") for difference in found.differences)


def test_the_folder_is_a_folder_of_runs() -> None:
    assert len(load(DATA / "v1")) == len([path for path in RUNS if path.parent.name == "v1"])
