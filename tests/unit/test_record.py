"""The record on disk: whole or absent, explained by itself, and clear about what is wrong with it."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from synthetic import make_case

from netbench.errors import RecordError, StorageError
from netbench.model import Skip
from netbench.record import (
    MEASURED,
    SCHEMA_VERSION,
    Failure,
    Manifest,
    RunFolder,
    create_run_folder,
    samples_table,
    write_atomically,
    write_samples,
)

NOON = datetime(2025, 6, 7, 12, 0, 0, tzinfo=UTC)
CASE = make_case("all_gather", "parallel_gloo", 4, 2, 1000, "bfloat16")


def manifest(**facts: Any) -> Manifest:
    known = {"run_id": "r1", "name": "test", "netbench": "0.0", "command": ["netbench"], "started_at": NOON}
    return Manifest(**{**known, "config": {"modes": ["all_gather"]}, "cases": [CASE], **facts})


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return create_run_folder(tmp_path, "test", NOON)


def test_a_run_folder_is_named_by_date_and_name(folder: RunFolder) -> None:
    assert folder.path.name.startswith("20250607T120000Z-test-")
    assert folder.samples.is_dir()
    assert folder.logs.is_dir()
    assert folder.finished() == set()


def test_two_runs_never_share_a_folder(tmp_path: Path) -> None:
    made = {create_run_folder(tmp_path, "test", NOON).path for _ in range(20)}
    assert len(made) == 20


def test_a_folder_that_cannot_be_made_is_named_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match=r"file/.*cannot be made: File exists; choose another place by --out"):
        create_run_folder(tmp_path / "file", "test", NOON)


def test_a_manifest_reads_back_as_it_was_written(folder: RunFolder) -> None:
    written = manifest(
        skips=[Skip("a", "too large")],
        failures=[Failure(case_id="b", launch=1, reason="lost")],
        environment=[{"host": "alpha", "ranks": [0, 1]}],
    )
    folder.write_manifest(written)
    assert folder.read_manifest() == written
    assert json.loads(folder.manifest.read_text())["cases"][0]["tensor_bytes"] == 1000


def test_nothing_but_the_manifest_is_left_beside_it(folder: RunFolder) -> None:
    folder.write_manifest(manifest())
    folder.write_manifest(manifest(status="finished"))
    assert sorted(path.name for path in folder.path.iterdir()) == ["logs", "run.json", "samples"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write_manifest(manifest(status="running"))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"run\.json: cannot be written: No space left on device"):
        folder.write_manifest(manifest(status="finished"))
    assert folder.read_manifest().status == "running"
    assert sorted(path.name for path in folder.path.iterdir()) == ["logs", "run.json", "samples"]


def test_a_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"gone/file: cannot be written"):
        write_atomically(tmp_path / "gone" / "file", b"")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is damaged"),
        ("{", "is damaged"),
        ("[]", "is damaged"),
        ('"text"', "is damaged"),
        ("{}", "is damaged: run_id"),
        (json.dumps({"schema_version": SCHEMA_VERSION + 1}), f"of schema version {SCHEMA_VERSION + 1}.*upgrade"),
        ('{"schema_version": "x"}', "is damaged"),
    ],
)
def test_a_damaged_or_newer_manifest_is_named_with_its_fault(folder: RunFolder, content: str, words: str) -> None:
    folder.manifest.write_text(content)
    with pytest.raises(RecordError, match=words) as refused:
        folder.read_manifest()
    assert str(refused.value).startswith(f"{folder.manifest}: ")
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("key", ["run_id", "cases", "config", "started_at", "surprise"])
def test_a_manifest_with_a_key_too_few_or_too_many_names_it(folder: RunFolder, key: str) -> None:
    document = json.loads(manifest().model_dump_json())
    document = document | {key: 1} if key == "surprise" else {name: v for name, v in document.items() if name != key}
    folder.manifest.write_text(json.dumps(document))
    with pytest.raises(RecordError, match=f"is damaged: {key}: "):
        folder.read_manifest()


def test_a_manifest_of_other_bytes_is_damaged(folder: RunFolder) -> None:
    folder.manifest.write_bytes(b"\xff\x00\xfe")
    with pytest.raises(RecordError, match=r"run\.json: is damaged"):
        folder.read_manifest()


def test_a_folder_without_manifest_is_no_run(folder: RunFolder) -> None:
    with pytest.raises(RecordError, match=r"is not a run: it has no run\.json"):
        folder.read_manifest()


def samples(iterations: int, base: int) -> np.ndarray:
    """Every number differs, so that a mixed-up column would show."""
    rows = np.arange(iterations * len(MEASURED), dtype=np.int64).reshape(iterations, -1) + base
    rows[:, MEASURED.index("iteration")] = np.arange(iterations)
    rows[:, MEASURED.index("warmup")] = np.arange(iterations) < 1
    return rows


@pytest.fixture
def table(folder: RunFolder) -> pa.Table:
    ranks = [(0, samples(3, 1000)), (1, samples(3, 2000))]
    write_samples(folder, CASE, samples_table("r1", CASE, ranks, {"status": "ok", "wire_sent_bytes": None}))
    return pq.read_table(folder.sample_file(CASE.id))


def test_a_finished_case_is_exactly_one_file(folder: RunFolder, table: pa.Table) -> None:
    assert folder.finished() == {CASE.id}
    assert [path.name for path in folder.samples.iterdir()] == [f"{CASE.id}.parquet"]


def test_there_is_a_row_for_each_rank_and_iteration(table: pa.Table) -> None:
    assert table["rank"].to_pylist() == [0, 0, 0, 1, 1, 1]
    assert table["iteration"].to_pylist() == [0, 1, 2, 0, 1, 2]
    assert table["phase"].to_pylist() == ["warmup", "timed", "timed"] * 2
    for name in set(MEASURED) - {"iteration", "warmup"}:
        at = MEASURED.index(name)
        assert table[name].to_pylist() == [*samples(3, 1000)[:, at], *samples(3, 2000)[:, at]]


def test_the_columns_say_which_case_a_row_belongs_to(table: pa.Table) -> None:
    row = table.slice(4, 1).to_pylist()[0]
    assert row["case_id"] == "all_gather-parallel_gloo-k4-n2-1KB-bfloat16"
    assert (row["mode"], row["backend"], row["streams"], row["world_size"]) == ("all_gather", "parallel_gloo", 4, 2)
    assert (row["dtype"], row["tensor_bytes"], row["message_bytes"], row["transmit_bytes"]) == (
        "bfloat16",
        1000,
        2000,
        1000,
    )


def test_bytes_and_times_are_whole_64_bit_numbers(table: pa.Table) -> None:
    numbers = [name for name in table.schema.names if name.endswith(("_bytes", "_ns"))]
    assert len(numbers) >= 7
    assert {str(table.schema.field(name).type) for name in [*numbers, "rank", "iteration", "streams"]} == {"int64"}


def test_a_single_file_explains_itself(table: pa.Table) -> None:
    metadata = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    assert metadata["netbench.schema_version"] == str(SCHEMA_VERSION)
    assert metadata["netbench.run_id"] == "r1"
    assert json.loads(metadata["netbench.case"])["message_bytes"] == 2000


def test_what_is_not_known_is_null_and_not_a_number_is_refused(table: pa.Table) -> None:
    assert json.loads(table.schema.metadata[b"netbench.facts"])["wire_sent_bytes"] is None
    with pytest.raises(ValueError, match="JSON compliant"):
        samples_table("r1", CASE, [(0, samples(1, 0))], {"wire_sent_bytes": float("nan")})


def test_one_sweep_at_a_time_writes_a_run(folder: RunFolder) -> None:
    assert not folder.is_locked()
    with folder.lock():
        assert folder.is_locked()
        with pytest.raises(RecordError, match="another sweep is writing this run"), folder.lock():
            pytest.fail("two sweeps hold the same lock")
    assert not folder.is_locked()
    with folder.lock():
        assert folder.is_locked()


def test_a_run_that_cannot_be_locked_is_named(folder: RunFolder) -> None:
    (folder.path / "run.lock").mkdir()
    with pytest.raises(StorageError, match="cannot be written: Is a directory"), folder.lock():
        pytest.fail("locked a folder")
