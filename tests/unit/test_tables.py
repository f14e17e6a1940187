"""What is printed: strict JSON, whole CSV, the seed's lines, and tables that fit."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from synthetic import constant, make_case, make_run

from netbench.errors import RecordError
from netbench.metrics import RATES
from netbench.model import Skip
from netbench.record import Failure
from netbench.summary import Run, load_run
from netbench.tables import FORMATS, summary_csv, write_runs, write_summary

OK = make_case("allreduce", "parallel_gloo", 4, 2, 4_000_000)
FAILED = make_case("all_gather")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    folder = make_run(
        tmp_path / "20250102T030405Z-synthetic-0000",
        [OK, make_case("allreduce", "parallel_gloo", 1, 2, 4_000_000)],
        constant(2_000_000),
        unmeasured=[FAILED],
        skips=[Skip(f"all_gather-gloo-k{count}-n2-8B", "gloo has one stream") for count in range(2, 9)],
        failures=[Failure(case_id=FAILED.id, launch=1, reason="rank 1 was killed [signal 9]")],
    )
    return load_run(folder.path)


def printed(name: str, run: Run, rate: str = "Gbit/s", width: int | None = None) -> str:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return width is not None

    file = Terminal()
    FORMATS[name].write([run], rate, file)
    return file.getvalue()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rate", RATES)
def test_every_format_prints_every_run(name: str, rate: str, run: Run, tmp_path: Path) -> None:
    assert printed(name, run, rate)
    nothing = load_run(make_run(tmp_path / "empty", [], unmeasured=[OK], status="failed").path)
    printed(name, nothing, rate)


def test_json_is_strict_and_unknown_is_null(run: Run) -> None:
    text = printed("json", run)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    rows = json.loads(text, parse_constant=refuse)
    by_id = {row["case_id"]: row for row in rows}
    assert len(rows) == 10
    assert by_id[OK.id]["busbw_gbit_s"] == pytest.approx(16)
    assert by_id[OK.id]["tensor_bytes"] == 4_000_000
    assert isinstance(by_id[OK.id]["tensor_bytes"], int)
    assert by_id[OK.id]["run_id"] == run.id
    assert by_id[FAILED.id]["busbw_gbit_s"] is None
    assert by_id["all_gather-gloo-k2-n2-8B"]["mode"] is None


def test_json_lines_hold_the_objects_of_json(run: Run) -> None:
    lines = printed("jsonl", run).splitlines()
    assert [json.loads(line) for line in lines] == json.loads(printed("json", run))


def test_prometheus_reads_its_textfile_in_si_units(run: Run) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    families = {family.name: family for family in text_string_to_metric_families(printed("prometheus", run))}
    [one, four] = sorted(families["netbench_time_seconds"].samples, key=lambda sample: int(sample.labels["streams"]))
    assert (one.value, four.value) == (0.002, 0.002)
    assert four.labels == {
        "run": run.id,
        "mode": "allreduce",
        "backend": "parallel_gloo",
        "streams": "4",
        "world_size": "2",
        "tensor_bytes": "4000000",
        "transmit_bytes": "4000000",
        "dtype": "float32",
        "variant": "",
    }
    assert families["netbench_algbw_bytes_per_second"].samples[0].value == 2e9
    states = {sample.labels["status"]: sample.value for sample in families["netbench_cases"].samples}
    assert states == {"ok": 2, "failed": 1, "skipped": 7}
    assert families["netbench_started_timestamp_seconds"].samples[0].value == 1735787045


def test_csv_has_every_case_and_column(run: Run) -> None:
    rows = list(csv.DictReader(io.StringIO(printed("csv", run, "GB/s"))))
    assert len(rows) == 10
    assert float(rows[0]["algbw_gbyte_s"]) == pytest.approx(2)
    assert rows[2]["algbw_gbyte_s"] == ""
    assert {"run_id", "case_id", "status", "reason", "median_ns", "retransmits"} <= set(rows[0])


def test_the_summary_lies_beside_the_record(run: Run) -> None:
    path = write_summary(run)
    assert path == run.folder.path / "summary.csv"
    assert path.read_text() == summary_csv(run)


def test_torchft_prints_the_seed_s_lines_with_its_arithmetic(run: Run) -> None:
    lines = printed("torchft", run).splitlines()
    assert lines[0].startswith(
        "# mode=allreduce backend=parallel_gloo world_size=2 dtype=float32 variant= host=alpha run="
    )
    assert [line for line in lines if line.startswith("count")] == ["count=1", "count=4"]
    assert lines[lines.index("count=4") + 2] == (
        "transport='TCP' device='cpu' iters=20 nelem=1000000 qps=500.0 gb=0.004 bandwidth_gbps=16.0"
    )


def test_the_seed_s_own_pattern_reads_our_lines(run: Run) -> None:
    # A line of the seed, to show that the pattern is the seed's.
    seed = "transport='TCP' device='cpu' iters=100 nelem=10 qps=5014.602465442529 gb=4e-08 bandwidth_gbps=0.00160467"
    number = r"[0-9.e-]+"
    pattern = rf"transport='TCP' device='cpu' iters=\d+ nelem=\d+ qps={number} gb={number} bandwidth_gbps={number}"
    ours = [line for line in printed("torchft", run).splitlines() if line.startswith("transport")]
    assert len(ours) == 2
    assert all(re.fullmatch(pattern, line) for line in [seed, *ours])


def test_cases_that_were_not_started_are_counted_by_reason(run: Run) -> None:
    text = printed("table", run)
    assert "7 skipped: gloo has one stream" in text
    assert "failed: rank 1 was killed [signal 9]" in text
    assert "hosts: alpha; over eth0" in text


@pytest.mark.parametrize("width", [80, 100, 140, 200])
def test_a_table_fits_its_terminal_and_cuts_no_number(run: Run, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    text = re.sub(r"\x1b\[[0-9;]*m", "", printed("table", run, width=width))
    assert max(map(len, text.splitlines())) <= width
    [row] = [line.split() for line in text.splitlines() if "parallel_gloo" in line and " 4 " in line]
    assert {"allreduce", "parallel_gloo", "4MB", "2", "ms", "16"} <= set(row)


def test_markdown_has_as_many_cells_in_every_line(run: Run) -> None:
    lines = [line for line in printed("markdown", run).splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 3
    assert len({line.count("|") for line in lines}) == 1


def test_runs_are_listed_also_those_that_cannot_be_read(run: Run, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "run.json").write_text("{")
    file = io.StringIO()
    with pytest.raises(RecordError, match=r"1 of these runs cannot be read: .*damaged"):
        write_runs([run.folder.path, damaged], file)
    text = file.getvalue()
    assert "2025-01-02 03:04" in text
    assert "2/3" in text
    assert "Is this synthetic?" in text
    assert "unreadable" in text
