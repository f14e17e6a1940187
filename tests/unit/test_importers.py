"""Outputs of other tools: real ones read in exact units, and what is not as it claims refused with its line."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netbench.errors import NetbenchError, RecordError, UsageError
from netbench.importers import TOOLS, Given, import_file
from netbench.importers.tool import Misread
from netbench.registry import one_line
from netbench.summary import Run, load_run

FOREIGN = Path(__file__).parents[1] / "data" / "foreign"


def imported(path: Path, out: Path, tool: str | None = None, **told: Any) -> Run:
    return load_run(import_file(path, tool, Given(**told), out, None, "", ["netbench", "import"]).path)


def row(run: Run, case_id: str) -> dict[str, Any]:
    found: dict[str, Any] = run.summaries().set_index("case_id").loc[case_id].to_dict()
    return found


#: File, what has to be said of it, and of one of its rows: id, time in us, algbw in Gbit/s. Worked out by hand.
REAL = [
    ("osu_latency.txt", {}, "send_recv-mpi-k1-n2-1MiB-int8", 2 * 44199.98, 1048576 * 8 / 44199.98e-6 / 1e9),
    ("osu_bw.txt", {}, "send-mpi-k1-n2-1MiB-int8", 1048576 / 23.85, 23.85e6 * 8 / 1e9),
    (
        "osu_allgather_full.txt",
        {"world_size": 2},
        "all_gather-mpi-k1-n2-1MiB-int8",
        109371.87,
        2 * 8388.608 / 109371.87,
    ),
    (
        "osu_allgather_full.txt",
        {"world_size": 4},
        "all_gather-mpi-k1-n4-1MiB-int8",
        109371.87,
        4 * 8388.608 / 109371.87,
    ),
    ("osu_allreduce_full.txt", {"world_size": 2}, "allreduce-mpi-k1-n2-4B", 10380.58, 4 * 8 / 10380.58e-6 / 1e9),
    ("iperf3_tcp.json", {}, "send-tcp-k1-n2-47916288B-int8", 2_002_718, 0.191405032),
    ("iperf3_tcp_parallel4.json", {}, "send-tcp-k4-n2-", None, None),
    ("iperf3_tcp_bidir.json", {}, "exchange-tcp-k1-n2-47717480B-int8", 2_000_374, 47717480 * 8 / 2.000374 / 1e9),
    ("gloo_471_send_recv.json", {"mode": "send_recv"}, "send_recv-gloo-k1-n2-1KiB", 150, 2 * 8192 / 150e-6 / 1e9),
    ("nccl_tests.json", {}, "all_gather-nccl-k1-n2-512KiB", 40.5, 1048576 * 8 / 40.5e-6 / 1e9),
    ("nccl_tests.txt", {}, "allreduce-nccl-k1-n8-32MiB", 391.2, 33554432 * 8 / 391.2e-6 / 1e9),
    (
        "nccl_tests_old.txt",
        {"mode": "allreduce", "world_size": 2},
        "allreduce-nccl-k1-n2-1MiB",
        75.5,
        8388608 / 75.5e-6 / 1e9,
    ),
]


@pytest.mark.parametrize(("name", "told", "case_id", "time_us", "algbw"), REAL)
def test_real_outputs_are_read_in_exact_units(
    name: str, told: dict[str, Any], case_id: str, time_us: float | None, algbw: float | None, tmp_path: Path
) -> None:
    run = imported(FOREIGN / name, tmp_path, **told)
    if time_us is None:
        [case_id] = run.summaries()["case_id"]
        assert case_id.startswith("send-tcp-k4-n2-")
        return
    found = row(run, case_id)
    assert found["status"] == "ok"
    assert found["time_us"] == pytest.approx(time_us, rel=1e-9)
    assert found["algbw_gbit_s"] == pytest.approx(algbw, rel=1e-6)


def test_latency_of_osu_is_our_latency(tmp_path: Path) -> None:
    run = imported(FOREIGN / "osu_latency.txt", tmp_path)
    assert row(run, "send_recv-mpi-k1-n2-1KiB-int8")["latency_us"] == pytest.approx(4199.57)


def test_a_run_says_whose_it_is(tmp_path: Path) -> None:
    run = imported(FOREIGN / "iperf3_tcp.json", tmp_path)
    source = run.manifest.source
    assert source is not None
    assert (run.status, source.tool, source.version, source.place) == (
        "imported",
        "iperf3",
        "3.12",
        "iperf3_tcp.json",
    )
    assert run.hosts == ["10.99.0.2", "10.99.0.1"]
    assert f"{run.manifest.started_at:%Y-%m-%d %H:%M:%S}" == "2026-11-29 12:13:06"
    assert len(source.sha256) == 64


def test_bandwidths_of_nccl_tests_are_ours(tmp_path: Path) -> None:
    """Its algbw and busbw are in GB/s and rounded; ours follow from size and time alone."""
    document = json.loads((FOREIGN / "nccl_tests.json").read_text())
    cases = imported(FOREIGN / "nccl_tests.json", tmp_path).summaries("GB/s")
    told = [(r["out_of_place"]["alg_bw"], r["out_of_place"]["bus_bw"]) for r in document["results"]]
    ours = list(zip(cases["algbw_gbyte_s"], cases["busbw_gbyte_s"], strict=True))
    assert ours == [(pytest.approx(a, rel=0.01, abs=0.006), pytest.approx(b, rel=0.01, abs=0.006)) for a, b in told]
    assert list(cases["message_bytes"]) == [r["size"] for r in document["results"]]


def test_in_place_is_another_column_of_nccl_tests(tmp_path: Path) -> None:
    out = row(imported(FOREIGN / "nccl_tests.txt", tmp_path), "allreduce-nccl-k1-n8-8MiB")
    in_place = row(imported(FOREIGN / "nccl_tests.txt", tmp_path, in_place=True), "allreduce-nccl-k1-n8-8MiB")
    assert (out["time_us"], in_place["time_us"]) == (pytest.approx(157.9), pytest.approx(156.2))


def test_statistics_over_iterations_are_kept_where_they_are_told(tmp_path: Path) -> None:
    found = row(imported(FOREIGN / "nccl_tests.json", tmp_path), "all_gather-nccl-k1-n2-2MiB")
    assert (found["headline"], found["median_ns"], found["p99_ns"]) == ("median", 99_100, 130_000)


def test_the_environment_of_a_file_is_never_imported(tmp_path: Path) -> None:
    assert "SECRET" in (FOREIGN / "nccl_tests.json").read_text()
    run = imported(FOREIGN / "nccl_tests.json", tmp_path)
    assert not any("SECRET" in path.read_text() for path in run.folder.path.iterdir())


def test_wrong_elements_of_nccl_tests_show_no_bandwidth(tmp_path: Path) -> None:
    path = tmp_path / "wrong.txt"
    text = (FOREIGN / "nccl_tests.txt").read_text()
    path.write_text(text.replace("157.9   53.12   92.97      0", "157.9   53.12   92.97      7"))
    found = row(imported(path, tmp_path), "allreduce-nccl-k1-n8-8MiB")
    assert (found["status"], found["wrong_elements"]) == ("wrong", 7)
    assert found["algbw_gbit_s"] != found["algbw_gbit_s"]


def test_the_script_s_labels_below_four_bytes_are_the_same_float(tmp_path: Path) -> None:
    cases = imported(FOREIGN / "gloo_471_send_recv.json", tmp_path, mode="send_recv").summaries()
    four = cases[cases["tensor_bytes"] == 4].iloc[0]
    assert four["iterations"] == 9  # labels 1, 2 and 4, three samples each
    assert list(cases["tensor_bytes"]) == [4, 1024, 1048576]


#: Name, what is found in the file, what is put there, what has to be said of it, and the complaint.
DAMAGED = [
    ("iperf3_error.json", "", "", {}, "line 10: the run failed: unable to connect to server: Connection refused"),
    ("iperf3_tcp.json", '"TCP"', '"UDP"', {}, "line 27: protocol is UDP, not TCP"),
    ("iperf3_tcp.json", '"sum_received"', '"sum"', {}, "has no sum_received"),
    ("iperf3_tcp.json", '"intervals"', "intervals", {}, "is not JSON"),
    ("osu_latency.txt", "4199.57", "fast", {}, "line 13: Latency .us. is 'fast', not a number"),
    ("osu_latency.txt", "4199.57", "nan", {}, "line 13: Latency .us. is 'nan'"),
    ("osu_latency.txt", "4199.57", "", {}, "line 13: has 1 columns, its heading has 2"),
    ("osu_latency.txt", "Latency (us)", "Latency (ms)", {}, "neither a latency in us"),
    ("osu_latency.txt", "MPI Latency Test", "MPI Multi Latency Test", {}, "line 1: Multi Latency is none of those"),
    ("osu_allreduce_full.txt", "\n4   ", "\n5   ", {"world_size": 2}, "line 4: 5 bytes are no tensor of float32"),
    ("nccl_tests.txt", "157.9", "1579.", {}, r"line 1\d: algbw is 53.12 GB/s, but 5.313 GB/s is size / time"),
    ("nccl_tests.txt", "92.97", "72.97", {}, "busbw is 72.97 GB/s, but 92.97 GB/s is algbw times the bus factor"),
    ("nccl_tests.txt", "2097152     float", "2097153     float", {}, "size 8388608 is neither 2097153 elements"),
    ("nccl_tests.txt", "float", "fp8", {}, "type 'fp8' is none of float"),
    ("nccl_tests.txt", "all_reduce_perf", "hypercube_perf", {}, "hypercube_perf is none of those"),
    ("nccl_tests.json", '"time": 40.5', '"cpu_time": 40.5', {}, r"line \d+: out_of_place has no time"),
    ("nccl_tests.json", '"time": 40.5', '"time": "nan"', {}, r"line \d+: time is 'nan'"),
    ("gloo_471_send_recv.json", '"time_s": 0.00015', '"time_s": NaN', {"mode": "send_recv"}, "is not JSON: NaN"),
    ("gloo_471_send_recv.json", '"time_s"', '"t"', {"mode": "send_recv"}, "line 1: a sample is no object"),
]


@pytest.mark.parametrize(("name", "found", "put", "told", "complaint"), DAMAGED)
def test_a_file_that_is_not_what_it_claims_is_refused_with_its_line(
    name: str, found: str, put: str, told: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    text = (FOREIGN / name).read_text()
    assert found in text
    path = tmp_path / name
    path.write_text(text.replace(found, put, 1))
    with pytest.raises(RecordError, match=complaint) as refused:
        imported(path, tmp_path / "out", **told)
    assert str(path) in str(refused.value)
    assert "line " in str(refused.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(
    "text", ["", "\n", "{}", "[]", "null", "7", '"size"', "hello\n", "{", "\x00\x01", "# OSU", "[1, 2]"]
)
def test_nothing_else_is_taken_for_an_output(tool: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(RecordError, match="line"):
        imported(path, tmp_path / "out", tool, mode="send_recv", world_size=2)


@pytest.mark.parametrize("name", sorted(path.name for path in FOREIGN.iterdir() if path.suffix != ".md"))
def test_any_file_that_is_cut_short_is_refused_or_read_as_far_as_it_goes(name: str, tmp_path: Path) -> None:
    text = (FOREIGN / name).read_text()
    told = {"mode": "send_recv"} if "gloo_471" in name else {}
    for share in range(1, 40):
        path = tmp_path / "cut"
        path.write_text(text[: len(text) * share // 40])
        with suppress(NetbenchError):
            imported(path, tmp_path / "out", **told)


def test_the_script_s_own_output_is_read_whole(tmp_path: Path) -> None:
    path = FOREIGN / "gloo_471_send_recv_loopback.json"
    samples = json.loads(path.read_text())
    cases = imported(path, tmp_path, mode="send_recv").summaries().set_index("tensor_bytes")
    assert cases["iterations"].sum() == len(samples) == 180
    of_16_mib = sorted(sample["time_s"] for sample in samples if sample["size_bytes"] == 2**24)
    assert cases.loc[2**24, "time_us"] == pytest.approx(of_16_mib[2] * 1e6, rel=1e-6)


#: What a number, a name or a bracket of a file may be replaced by.
TOKENS = ["null", "-1", "0", "1e999", "1e300", '"nan"', "{}", "[]", "true", "nan", "", "x", "9" * 30, "1.5", '"x"']


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_read_but_never_a_crash(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(path for path in FOREIGN.iterdir() if path.suffix != ".md")))
    text = path.read_text()
    for _ in range(data.draw(st.integers(1, 3))):
        pieces = list(re.finditer(r'-?\d+\.?\d*|"[a-z_]+"|\w+|[{}\[\],:]', text))
        piece = data.draw(st.sampled_from(pieces))
        text = text[: piece.start()] + data.draw(st.sampled_from(TOKENS)) + text[piece.end() :]
    said = Given(mode="send_recv" if "gloo" in path.name else None, world_size=2 if "osu_all" in path.name else None)
    for tool in TOOLS.values():
        if tool.recognises(text):
            with suppress(Misread, NetbenchError):
                tool.read(text, said)


def test_what_a_file_does_not_say_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--world-size: the file does not say how many ranks"):
        imported(FOREIGN / "osu_allgather_full.txt", tmp_path)
    with pytest.raises(UsageError, match="--mode: the file does not say which operation"):
        imported(FOREIGN / "gloo_471_send_recv.json", tmp_path)


def test_what_contradicts_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--mode: allreduce contradicts the file, which says all_gather"):
        imported(FOREIGN / "osu_allgather_full.txt", tmp_path, mode="all_reduce", world_size=2)
    with pytest.raises(UsageError, match="--world-size: 3 contradicts the file, which says 8"):
        imported(FOREIGN / "nccl_tests.txt", tmp_path, world_size=3)


@pytest.mark.parametrize("tool", TOOLS)
def test_every_tool_is_told_of_in_one_line(tool: str) -> None:
    assert one_line(TOOLS[tool])
