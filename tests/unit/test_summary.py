"""Runs found and read back: what is in the table, and what is said of records that are not whole."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from synthetic import constant, make_case, make_run, write_case

import netbench
from netbench.errors import RecordError, UsageError
from netbench.metrics import METRICS
from netbench.model import Case, Skip
from netbench.record import Failure, RunFolder
from netbench.statistics import Statistics
from netbench.summary import find_runs, load_run

CASE = make_case("allreduce", world_size=2)


def test_runs_are_found_in_a_root_a_nested_folder_and_by_their_own_path(tmp_path: Path) -> None:
    first, second = tmp_path / "results" / "a", tmp_path / "results" / "reference" / "b"
    make_run(first, [CASE])
    make_run(second, [CASE])
    assert find_runs(tmp_path) == [first, second]
    assert find_runs(second) == [second]
    assert find_runs(second / "run.json") == [second]
    assert [run.id for run in netbench.load(tmp_path)] == ["a", "b"]


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no run"):
        find_runs(tmp_path)
    with pytest.raises(UsageError, match="no such file or folder"):
        find_runs(tmp_path / "absent")


def test_every_case_of_the_plan_is_one_row_with_its_reason(tmp_path: Path) -> None:
    failed, missing = make_case("all_gather"), make_case("exchange")
    folder = make_run(
        tmp_path / "run",
        [CASE],
        unmeasured=[failed, missing],
        status="interrupted",
        skips=[Skip("x-gloo-k4", "gloo has one stream")],
        failures=[Failure(case_id=failed.id, launch=1, reason="rank 1 was killed")],
    )
    table = load_run(folder.path).summaries()
    found = table.set_index("case_id")[["status", "reason"]].astype(object).where(lambda cells: cells.notna(), None)
    assert found.to_dict("index") == {
        CASE.id: {"status": "ok", "reason": None},
        failed.id: {"status": "failed", "reason": "rank 1 was killed"},
        missing.id: {"status": "missing", "reason": "the run ended before it"},
        "x-gloo-k4": {"status": "skipped", "reason": "gloo has one stream"},
    }
    assert table["busbw_gbit_s"].notna().tolist() == [True, False, False, False]


def test_a_case_that_failed_first_and_was_measured_later_is_ok(tmp_path: Path) -> None:
    failure = Failure(case_id=CASE.id, launch=1, reason="rank 1 was killed")
    folder = make_run(tmp_path / "run", [CASE], failures=[failure])
    assert load_run(folder.path).summaries()["status"].tolist() == ["ok"]


def test_warm_up_iterations_are_not_counted(tmp_path: Path) -> None:
    make_run(tmp_path / "run", [CASE], constant(2_000_000), iterations=7, warmup=5)
    run = load_run(tmp_path / "run")
    assert run.times(CASE.id).tolist() == [2_000_000] * 7
    [found] = run.summaries().to_dict("records")
    assert (found["iterations"], found["max_ns"], found["mean_ns"]) == (7, 2e6, 2e6)


def test_the_slowest_rank_counts(tmp_path: Path) -> None:
    def one_slow_rank(case: Case, ranks: int, iterations: int) -> np.ndarray:
        return np.full((ranks, iterations), 1000) * np.array([[1], [1], [5]])

    make_run(tmp_path / "run", [make_case(world_size=3)], one_slow_rank)
    assert load_run(tmp_path / "run").summaries()["median_ns"].tolist() == [5000]


def test_wrong_data_shows_no_number(tmp_path: Path) -> None:
    make_run(tmp_path / "run", [CASE], facts={"status": "wrong", "wrong_elements": 3})
    [found] = load_run(tmp_path / "run").summaries().to_dict("records")
    assert (found["status"], found["reason"]) == ("wrong", "3 elements were wrong after the operation")
    numbers = [*Statistics._fields, *(metric.column() for metric in METRICS.values())]
    assert all(pd.isna(found[name]) for name in numbers)


def test_ranks_and_samples_are_whole(tmp_path: Path) -> None:
    aside = make_case("send_recv", world_size=3)
    make_run(tmp_path / "run", [CASE, aside, make_case(dtype="int8")], iterations=4, warmup=1)
    run = load_run(tmp_path / "run")
    ranks = run.ranks()
    assert ranks.groupby("case_id")["rank"].apply(list).to_dict()[aside.id] == [0, 1]
    assert run.hosts == ["alpha"]
    samples = run.samples()
    assert len(samples) == 3 * 2 * 5
    assert samples.groupby("case_id", observed=True).size().to_dict()[CASE.id] == 10
    one = samples[samples["case_id"] == aside.id]
    assert set(one["world_size"]) == {3}
    assert one["phase"].value_counts().to_dict() == {"timed": 8, "warmup": 2}
    assert {"cpu_user_ns", "minor_faults", "start_ns"} <= set(samples)


def test_a_run_that_nobody_writes_any_more_was_interrupted(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [CASE], unmeasured=[make_case("exchange")], status="running")
    run = load_run(folder.path)
    assert run.status == "interrupted"
    assert run.summaries()["reason"].tolist()[1] == "the run ended before it"
    with folder.lock():
        # Another open file stands for another process.
        writing = load_run(folder.path)
        assert writing.status == "running"
        assert writing.summaries()["reason"].tolist()[1] == "not measured yet"


def test_reading_from_many_threads_gives_the_same(tmp_path: Path) -> None:
    cases = [make_case("allreduce", tensor_bytes=4 * size) for size in range(1, 40)]
    run = load_run(make_run(tmp_path / "run", cases).path)
    found: list[list[str]] = []
    threads = [threading.Thread(target=lambda: found.append(run.summaries()["case_id"].tolist())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[case.id for case in cases]] * 4


def read_all(folder: RunFolder) -> object:
    return load_run(folder.path).summaries()


def test_a_damaged_sample_file_is_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [CASE])
    path = folder.sample_file(CASE.id)
    whole = path.read_bytes()
    for content, complaint in [
        (b"", "is empty"),
        (b"no parquet", "is damaged"),
        (whole[: len(whole) // 2], "is damaged"),
    ]:
        path.write_bytes(content)
        with pytest.raises(RecordError, match=f"{path.name}: {complaint}"):
            read_all(folder)


def rewrite(path: Path, **metadata: str) -> None:
    table = pq.read_table(path, partitioning=None)
    footer = {key.decode(): value for key, value in table.schema.metadata.items()}
    pq.write_table(table.replace_schema_metadata(footer | {f"netbench.{k}": v for k, v in metadata.items()}), path)


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        ({"schema_version": "99"}, "is of schema version 99; this netbench reads up to"),
        ({"schema_version": "0"}, "is not a sample file of netbench"),
        ({"run_id": "other"}, "belongs to another run, other"),
        ({"case": "{}"}, "is damaged"),
        ({"facts": "not json"}, "is damaged"),
    ],
)
def test_a_strange_footer_is_named(tmp_path: Path, metadata: dict[str, str], complaint: str) -> None:
    folder = make_run(tmp_path / "run", [CASE])
    rewrite(folder.sample_file(CASE.id), **metadata)
    with pytest.raises(RecordError, match=complaint) as raised:
        read_all(folder)
    assert folder.sample_file(CASE.id).name in str(raised.value)


def test_a_file_under_another_case_s_name_is_refused(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [CASE])
    folder.sample_file(CASE.id).rename(folder.sample_file("allreduce-gloo-k1-n2-2MiB"))
    with pytest.raises(RecordError, match="holds the samples of another case"):
        read_all(folder)


def test_a_rank_that_is_absent_is_noticed(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [CASE])
    path = folder.sample_file(CASE.id)
    table = pq.read_table(path, partitioning=None)
    pq.write_table(table.filter(pq.read_table(path, partitioning=None)["rank"].to_numpy() == 0), path)
    with pytest.raises(RecordError, match="20 rows for 20 iterations of 2 ranks"):
        read_all(folder)


def test_no_timed_iteration_is_empty(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [])
    write_case(folder, "run", CASE, constant(1), iterations=0, warmup=0)
    with pytest.raises(RecordError, match="is empty"):
        read_all(folder)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "is damaged"),
        ("{", "is damaged"),
        (json.dumps({"schema_version": 99}), "is of schema version 99"),
        (json.dumps({"schema_version": 1, "run_id": "run"}), "is damaged"),
    ],
)
def test_a_strange_manifest_is_named(tmp_path: Path, content: str, complaint: str) -> None:
    folder = make_run(tmp_path / "run", [CASE])
    folder.manifest.write_text(content)
    with pytest.raises(RecordError, match=rf"run\.json: {complaint}"):
        load_run(folder.path)


def test_a_case_that_was_not_finished_has_no_times(tmp_path: Path) -> None:
    run = load_run(make_run(tmp_path / "run", [CASE]).path)
    with pytest.raises(UsageError, match="'nothing' is not a measured case"):
        run.times("nothing")


def test_a_case_with_rounds_to_come_shows_what_there_is_and_says_so(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [CASE])
    folder.partial_file("").parent.mkdir()
    folder.sample_file(CASE.id).rename(folder.partial_file(CASE.id))
    run = load_run(folder.path)
    [row] = run.summaries().to_dict("records")
    assert (row["status"], row["median_ns"], row["stop_reason"]) == ("ok", 1e6, "unfinished")
    assert "unfinished" in row["verdicts"]
    assert len(run.samples()) == 2 * 23
    assert run.done == set()


def test_a_run_without_a_finished_case_can_be_read(tmp_path: Path) -> None:
    run = load_run(make_run(tmp_path / "run", [], unmeasured=[CASE], status="interrupted").path)
    assert run.summaries()["status"].tolist() == ["missing"]
    assert run.samples().empty
    assert run.ranks().empty
    assert run.hosts == []
