"""Records of strangers: whatever is in them, a reading command ends with a message, and writes only where it should."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fuzzing import EVIL, damaged, ends_well, examples, mutated, place, values
from hypothesis import given
from hypothesis import strategies as st
from synthetic import constant, make_case, make_run, write_case

from netbench.errors import Exit
from netbench.facts import seal
from netbench.foreign import printable
from netbench.lab.spec import LabSpec
from netbench.quotes import Quote, write_quotes
from netbench.record import LabFacts, Manifest, RunFolder, Source, timeline_table, write_timeline
from netbench.summary import load_run

CASES = [
    *(make_case(mode, "gloo", 1, 2, 4096 * 8**step) for mode in ("all_gather", "exchange") for step in range(4)),
    make_case("all_gather", "gloo", 1, 3, 4096),
    make_case("all_gather", "gloo", 1, 2, 4096, timeline_us=2000),
    make_case("allreduce", "parallel_gloo", 4, 2, 4096),
    make_case("send_recv", "gloo", 1, 2, 4096, pair="0-1"),
]

#: What is done with a record; R stands for it, G for one that nobody has touched.
COMMANDS = {
    "show": ["show", "R"],
    "show csv": ["show", "R", "--format", "markdown"],
    "show json": ["show", "R", "--format", "json"],
    "show prometheus": ["show", "R", "--format", "prometheus"],
    "show torchft": ["show", "R", "--format", "torchft"],
    "ranks": ["show", "R", "--ranks"],
    "runs": ["runs", "."],
    "terminal": ["plot", "R", "--terminal"],
    "compare": ["compare", "G", "R"],
    "check": ["check", "R", "--require", "all_gather >= 1kbit/s"],
    "predict": ["predict", "R", "--mode", "all_gather", "--world-size", "2", "--tensor", "64KiB"],
    "tune": ["tune", "R"],
    "matrix": ["matrix", "R"],
    "resume": ["sweep", "--resume", "R", "--dry-run"],
    # Those that draw take longest.
    "plot": ["plot", "R"],
    "report": ["report", "R"],
    "fit": ["fit", "R"],
    "explain": ["explain", "R"],
    "compare --plot": ["compare", "G", "R", "--plot", "R/drawn"],
    "overlay": ["plot", "G", "R", "--overlay", "R/drawn"],
}
QUICK = [name for name in COMMANDS if name not in ("plot", "report", "fit", "explain", "compare --plot", "overlay")]
DRAWING = [name for name in COMMANDS if name not in QUICK]


@pytest.fixture(scope="module")
def good() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        rng = np.random.default_rng(0)
        folder = make_run(Path(made) / "good", CASES, lambda case, ranks, n: rng.integers(10**6, 2 * 10**6, (ranks, n)))
        readings = [(rank, np.cumsum(rng.integers(1, 10**6, (60, 3)), axis=0)) for rank in range(2)]
        timed = CASES[9]
        write_timeline(folder, timed, timeline_table("good", timed, readings))
        manifest = folder.read_manifest()
        manifest.lab = LabFacts.of(LabSpec.parse("2x400mbit,flow=40mbit"))
        manifest.environment = [
            {
                "host": "alpha",
                "ranks": [0, 1, 2],
                "machine": "m",
                "cpus": 2,
                "cpus_allowed": 2,
                "load_1min": 0.5,
                "interface": {"name": "eth0", "addresses": ["10.0.0.1"], "mtu_bytes": 1500, "kind": "network"},
                "sysctls": {"ipv4.tcp_timestamps": "1"},
                "versions": {"torch": "2.6"},
            }
        ]
        folder.write_manifest(manifest)
        yield folder.path


def copied(good: Path, outer: Path) -> RunFolder:
    shutil.copytree(good, outer / "here" / "R")
    return RunFolder(outer / "here" / "R")


def read(command: str, good: Path, outer: Path) -> tuple[int, str, str]:
    typed = [str(good) if word == "G" else word for word in COMMANDS[command]]
    codes = {Exit.DONE, Exit.CASE_FAILED, Exit.USAGE, Exit.UNDECIDED, Exit.RECORD, Exit.STORAGE}
    return ends_well(typed, outer, "here/R", codes)


def manifests(good: Path) -> Any:
    return json.loads((good / "run.json").read_text())


@pytest.mark.parametrize("commands", [QUICK, DRAWING], ids=["quick", "drawing"])
def test_manifests(commands: list[str], good: Path) -> None:
    few, many = (25, 1500) if commands is QUICK else (3, 200)

    @examples(few, many)
    @given(document=mutated(manifests(good)), command=st.sampled_from(commands))
    def fuzz(document: Any, command: str) -> None:
        with place() as outer:
            folder = copied(good, outer)
            folder.manifest.write_text(json.dumps(document))
            read(command, good, outer)

    fuzz()


def test_manifests_of_any_bytes(good: Path) -> None:
    content = (good / "run.json").read_bytes()

    @examples(8, 1000)
    @given(content=st.one_of(damaged(content), st.binary(max_size=200)), command=st.sampled_from(QUICK))
    def fuzz(content: bytes, command: str) -> None:
        with place() as outer:
            folder = copied(good, outer)
            folder.manifest.write_bytes(content)
            read(command, good, outer)

    fuzz()


def rewrite(path: Path, table: pa.Table, metadata: dict[bytes, bytes]) -> None:
    """With a right seal, as a stranger would."""
    if b"netbench.case" in metadata and b"netbench.facts" in metadata:
        sealed = seal(metadata[b"netbench.case"], metadata[b"netbench.facts"], table.column_names)
        metadata = metadata | {b"netbench.seal": sealed.encode()}
    pq.write_table(table.replace_schema_metadata(metadata), path)


@pytest.mark.parametrize("commands", [QUICK, DRAWING], ids=["quick", "drawing"])
@pytest.mark.parametrize("key", ["netbench.case", "netbench.facts"])
def test_footers(key: str, commands: list[str], good: Path) -> None:
    few, many = (12, 1000) if commands is QUICK else (2, 150)
    path = good / "samples" / f"{CASES[0].id}.parquet"
    table = pq.read_table(path)
    known = dict(table.schema.metadata)

    @examples(few, many)
    @given(document=mutated(json.loads(known[key.encode()])), command=st.sampled_from(commands))
    def fuzz(document: Any, command: str) -> None:
        with place() as outer:
            folder = copied(good, outer)
            rewrite(folder.sample_file(CASES[0].id), table, known | {key.encode(): json.dumps(document).encode()})
            read(command, good, outer)

    fuzz()


#: Makes of a column another one of as many rows.
COLUMNS = st.sampled_from(
    [
        lambda column: pa.array(["x"] * len(column)),
        lambda column: pa.array([None] * len(column), pa.int64()),
        lambda column: pa.array([2**63 - 1] * len(column)),
        lambda column: pa.array([-(2**63)] * len(column)),
        lambda column: pa.array([0] * len(column)),
        lambda column: pa.array([-1] * len(column)),
        lambda column: pa.array([float("nan")] * len(column)),
        lambda column: pa.array([1e300] * len(column)),
        lambda column: pa.array([[1, 2]] * len(column)),
        lambda column: pa.array([{"a": 1}] * len(column)),
        lambda column: pa.array([b"\x80\x04cos\nsystem\n"] * len(column)),
        lambda column: pa.array(np.arange(len(column))),
        lambda column: pa.array(np.arange(len(column), dtype=np.int32)),
        lambda column: pa.array([True] * len(column)),
        lambda column: pa.array(["\x1b[2J"] * len(column)).dictionary_encode(),
        lambda column: pa.array(np.random.default_rng(1).permutation(column.to_pylist()).tolist()),
    ]
)


def test_columns(good: Path) -> None:
    path = good / "samples" / f"{CASES[0].id}.parquet"
    table = pq.read_table(path)
    known = dict(table.schema.metadata)

    @examples(12, 1500)
    @given(st.data())
    def fuzz(data: st.DataObject) -> None:
        changed = table
        for _ in range(data.draw(st.integers(1, 3))):
            index = data.draw(st.integers(0, changed.num_columns - 1))
            name, column = changed.column_names[index], changed.column(index)
            what = data.draw(st.sampled_from(["other", "other", "drop", "double", "rows", "none", "pandas"]))
            if what == "other":
                changed = changed.set_column(index, name, data.draw(COLUMNS)(column))
            elif what == "drop":
                changed = changed.remove_column(index)
            elif what == "double":
                changed = changed.append_column(name, column)
            elif what == "rows":
                changed = changed.slice(0, data.draw(st.integers(0, changed.num_rows)))
            elif what == "none":
                changed = changed.slice(0, 0)
            elif what == "pandas":
                known[b"pandas"] = json.dumps(data.draw(values), allow_nan=True).encode()
            if not changed.num_columns:
                break
        with place() as outer:
            folder = copied(good, outer)
            rewrite(folder.sample_file(CASES[0].id), changed, known)
            read(data.draw(st.sampled_from([*QUICK, "plot"])), good, outer)

    fuzz()


@pytest.mark.parametrize("which", ["sample", "timeline"])
def test_parquet_of_any_bytes(which: str, good: Path) -> None:
    path = (good / "samples" / f"{CASES[0].id}.parquet", good / "timeline" / f"{CASES[9].id}.parquet")
    content = path[which == "timeline"].read_bytes()

    @examples(8, 1000)
    @given(content=st.one_of(damaged(content), st.binary(max_size=100)), command=st.sampled_from([*QUICK, "plot"]))
    def fuzz(content: bytes, command: str) -> None:
        with place() as outer:
            folder = copied(good, outer)
            files = folder.sample_file(CASES[0].id), folder.timeline_file(CASES[9].id)
            files[which == "timeline"].write_bytes(content)
            read(command, good, outer)

    fuzz()


def test_what_is_wrong_with_a_file_is_told_in_letters(good: Path) -> None:
    """pyarrow's own words hold bytes of the file as they are."""
    sample, told = good / "samples" / f"{CASES[0].id}.parquet", set()
    content = sample.read_bytes()
    for start in range(4, len(content) // 2, 41):
        with place() as outer:
            folder = copied(good, outer)
            folder.sample_file(CASES[0].id).write_bytes(content[:start] + b"\x0e\x1b\x07" + content[start + 3 :])
            told |= set(load_run(folder.path).damaged.values())
    assert len(told) > 3
    assert all(printable(text) == text for text in told)


def quoted(path: Path) -> RunFolder:
    folder = make_run(path, [], unmeasured=CASES[:4], status="quoted")
    manifest = folder.read_manifest()
    manifest.source = Source(tool="a tool", place="a paper", time="mean", hosts=["one"])
    folder.write_manifest(manifest)
    write_quotes(folder, [Quote(case=case, mean_ns=10**6, median_ns=None, iterations=20) for case in CASES[:4]])
    return folder


def test_quotes(good: Path) -> None:
    with tempfile.TemporaryDirectory() as made:
        rows = [line.split(",") for line in quoted(Path(made) / "q").quotes.read_text().splitlines()]

    @examples(12, 1000)
    @given(rows=mutated(rows), command=st.sampled_from([*QUICK, "plot", "report"]), raw=st.booleans())
    def fuzz(rows: list[Any], command: str, raw: bool) -> None:
        text = "\n".join(",".join(map(str, row)) if isinstance(row, list) else str(row) for row in rows)
        with place() as outer:
            folder = quoted(outer / "here" / "R")
            folder.quotes.write_bytes(text.encode("utf-8", "surrogatepass" if raw else "replace"))
            read(command, good, outer)

    fuzz()


def test_samples_that_the_manifest_does_not_name_hide_nothing(good: Path) -> None:
    for command in QUICK:
        with place() as outer:
            folder = copied(good, outer)
            document = manifests(good)
            del document["cases"][:2]
            folder.manifest.write_text(json.dumps(document))
            code, _, err = read(command, good, outer)
            assert code != Exit.RECORD, err


@pytest.mark.parametrize("schedule", ["ring", "../../x", "", "direct"])
def test_a_choice_that_nobody_can_make_is_no_choice(schedule: str, good: Path) -> None:
    chosen = CASES[10]
    for parts, chunks in ((4, 1), (2**20, 2**20), (None, None)):
        with place() as outer:
            folder = copied(good, outer)
            plain = make_case("allreduce", tensor_bytes=chosen.tensor_bytes)
            document = manifests(good)
            document["cases"].append(asdict(plain))
            folder.manifest.write_text(json.dumps(document))
            write_case(folder, "good", plain, constant(10**9))
            table = pq.read_table(folder.sample_file(chosen.id))
            facts = json.loads(table.schema.metadata[b"netbench.facts"])
            facts |= {"schedule": schedule, "parts": parts, "schedule_chunks": chunks}
            metadata = dict(table.schema.metadata) | {b"netbench.facts": json.dumps(facts).encode()}
            rewrite(folder.sample_file(chosen.id), table, metadata)
            code, _, err = read("tune", good, outer)
            assert code == Exit.DONE, err


@pytest.mark.parametrize("text", EVIL)
def test_a_hostile_name_leads_nowhere(text: str, good: Path) -> None:
    for key in ("run_id", "name"):
        with place() as outer:
            folder = copied(good, outer)
            document = manifests(good)
            document[key] = text
            folder.manifest.write_text(json.dumps(document))
            code, _, err = read("ranks", good, outer)
            assert code in (Exit.DONE, Exit.RECORD)
            assert code == Exit.DONE or "R/" in err
            if code == Exit.DONE or text.startswith(".."):
                read("compare --plot", good, outer)
    with place() as outer:
        folder = copied(good, outer)
        for field in ("mode", "backend", "dtype", "malloc", "pair"):
            document = manifests(good)
            document["cases"][0][field] = text
            folder.manifest.write_text(json.dumps(document))
            code, _, err = read("runs", good, outer)
            harmless = text in ("nan", "inf", "1e999", "null") or (field == "pair" and text == "")
            assert code == Exit.RECORD or harmless


def everywhere(document: Any, text: str) -> Any:
    """``text`` in the place of every free text of a manifest."""
    document["question"] = text
    document["command"] = ["netbench", text]
    document["config"] = {"question": text, text: text}
    document["netbench"] = text
    document["skips"] = [{"id": text, "reason": text}]
    document["launches"][:] = []
    host = document["environment"][0]
    host |= {"host": text, "machine": text, "kernel": text, "versions": {text: text}, text: {text: [text]}}
    host["interface"] |= {"name": text, "driver": text, "kind": text}
    return document


def hostile(good: Path, outer: Path, text: str) -> RunFolder:
    folder = copied(good, outer)
    folder.manifest.write_text(json.dumps(everywhere(manifests(good), text)))
    for path in folder.samples.iterdir():
        table = pq.read_table(path)
        facts = json.loads(table.schema.metadata[b"netbench.facts"])
        facts |= {"interface": text, "schedule": text, "stop_reason": text, "lab": text, text: text}
        for rank in facts["ranks"]:
            rank |= {"host": text, "congestion_control": text}
        rewrite(path, table, dict(table.schema.metadata) | {b"netbench.facts": json.dumps(facts).encode()})
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_hostile_texts_reach_neither_terminal_nor_browser_as_more_than_text(command: str, good: Path) -> None:
    text = '\x1b[31mred\x1b]0;title\x07 <script>alert(1)</script> [red]x[/red] $\\frac{ {{ 7 * 7 }} \u202e "onerror=x'
    with place() as outer:
        folder = hostile(good, outer, text)
        code, out, err = read(command, good, outer)
        # What cannot be a configuration is not gone on with.
        assert code in ((Exit.RECORD,) if command == "resume" else (Exit.DONE, Exit.UNDECIDED, Exit.USAGE)), err
        if command == "report":
            page = (folder.path / "report.html").read_text()
            assert "<script" not in page
            assert "&lt;script&gt;" in page
            assert "{{ 7 * 7 }}" in page
        if command == "show":
            assert "\\x1b[31mred" in out
            assert "[red]x[/red]" in out
        for path in folder.path.rglob("*.svg"):
            assert "<script" not in path.read_text()


def test_a_manifest_that_is_sound_stays_so(good: Path) -> None:
    """The test of the tests above: what they change is read, and without a change there is no complaint."""
    for command in COMMANDS:
        with place() as outer:
            copied(good, outer)
            code, out, err = read(command, good, outer)
            assert code in (Exit.DONE, Exit.UNDECIDED, Exit.USAGE), err
            assert out or err
    assert asdict(Manifest.model_validate(manifests(good)).cases[0]) == asdict(CASES[0])
