"""Requirements: what may be written, what is said of what may not, and the three outcomes with their exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic import constant, make_case, make_run

from netbench.__main__ import run as netbench
from netbench.errors import Exit, UsageError
from netbench.model import Skip
from netbench.requirements import Outcome, Requirement, check, from_file, worst
from netbench.summary import load_run

TWO, THREE = (make_case("allreduce", world_size=ranks, tensor_bytes=1_000_000) for ranks in (2, 3))
PING = make_case("send_recv", tensor_bytes=4096)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """1 ms for everything: allreduce has a busbw of 8 Gbit/s at N=2, send_recv a latency of 500 us."""
    return make_run(tmp_path / "run", [TWO, THREE, PING], constant(1_000_000)).path


@pytest.mark.parametrize(
    ("text", "columns", "metric", "at_least", "line"),
    [
        ("allreduce@64MiB,n=2 >= 8Gbit/s", {"tensor_bytes": 2**26, "world_size": 2}, "busbw", True, 1e9),
        ("all_reduce>=1GB/s", {}, "busbw", True, 1e9),
        ("send_recv@4KiB , k=auto<= 80us", {"tensor_bytes": 4096, "streams": 0}, "latency", False, 80e-6),
        ("allreduce,backend=gloo,metric=algbw >= 800 Mbit/s", {"backend": "gloo"}, "algbw", True, 1e8),
        ("allreduce,metric=time <= 2", {}, "time", False, 2),
        ("allreduce,metric=ceiling_share >= 90%", {}, "ceiling_share", True, 0.9),
    ],
)
def test_what_may_be_written(text: str, columns: dict[str, object], metric: str, at_least: bool, line: float) -> None:
    found = Requirement.parse(text)
    mode = "send_recv" if text.startswith("send_recv") else "allreduce"
    assert found.columns == {"mode": mode} | columns
    assert (found.metric, found.at_least, found.line) == (metric, at_least, pytest.approx(line))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("allreduce", "is not a requirement; write"),
        ("allreduce@64MiB => 8Gbit/s", "is not a requirement; write"),
        ("allreduce@64MiB > 8Gbit/s", "is not a requirement; write"),
        ("allredcue >= 8Gbit/s", "did you mean 'allreduce'"),
        ("allreduce@64Mbit >= 8Gbit/s", "sizes are bytes"),
        ("allreduce,m=2 >= 8Gbit/s", "'m=2' is no KEY=VALUE"),
        ("allreduce,n= >= 8Gbit/s", "'n=' is no KEY=VALUE"),
        ("allreduce,n=two >= 8Gbit/s", "n=two is not a whole number"),
        ("allreduce >= 8Gbps", "'8Gbps' is neither a rate nor a time"),
        ("allreduce,metric=busbw >= 80us", "'80us' is not a rate"),
        ("allreduce,metric=spread <= 0.1", "spread has no interval"),
        ("allreduce,metric=bandwidth >= 1Gbit/s", "not a metric"),
    ],
)
def test_what_may_not_is_named(text: str, words: str) -> None:
    with pytest.raises(UsageError) as raised:
        Requirement.parse(text)
    assert words in str(raised.value)
    assert repr(text) in str(raised.value)


@pytest.mark.parametrize(
    ("low", "high", "at_least", "at_most"),
    [
        (11, 12, Outcome.MET, Outcome.VIOLATED),
        (10, 12, Outcome.MET, Outcome.UNDECIDED),
        (9, 11, Outcome.UNDECIDED, Outcome.UNDECIDED),
        (8, 10, Outcome.UNDECIDED, Outcome.MET),
        (8, 9, Outcome.VIOLATED, Outcome.MET),
        (None, None, Outcome.UNDECIDED, Outcome.UNDECIDED),
    ],
)
def test_only_a_whole_interval_decides(low: float, high: float, at_least: Outcome, at_most: Outcome) -> None:
    assert Requirement("", {}, "busbw", True, 10).of(low, high) is at_least
    assert Requirement("", {}, "time", False, 10).of(low, high) is at_most


def test_a_requirement_holds_for_every_case_that_it_means(path: Path) -> None:
    run = load_run(path)
    found = check(run, [Requirement.parse("allreduce@1MB >= 9Gbit/s")])
    assert [(one.case_id, one.outcome) for one in found] == [
        (TWO.id, Outcome.VIOLATED),
        (THREE.id, Outcome.MET),  # 2(N-1)/N is 4/3
    ]
    assert worst(found) is Outcome.VIOLATED
    assert str(found[0]) == f"violated: allreduce@1MB >= 9Gbit/s: {TWO.id}: busbw 8 Gbit/s, 8 Gbit/s to 8 Gbit/s"


def test_a_case_without_numbers_is_undecided(tmp_path: Path) -> None:
    few = make_run(tmp_path / "few", [TWO], constant(10**6), unmeasured=[THREE], iterations=5, status="failed").path
    found = check(load_run(few), [Requirement.parse("allreduce >= 1Gbit/s")])
    assert [one.outcome for one in found] == [Outcome.UNDECIDED] * 2
    assert "too few iterations for an interval" in str(found[0])
    assert "missing: the run ended before it" in str(found[1])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("allreduce@2MB >= 1Gbit/s", "there tensor_bytes is 1MB"),
        ("allreduce@1MB,n=4 >= 1Gbit/s", "there world_size is 2, 3"),
        ("broadcast >= 1Gbit/s", "there mode is allreduce, send_recv"),
    ],
)
def test_one_that_means_nothing_says_what_there_is(text: str, words: str, tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", [TWO, THREE, PING], skips=[Skip("x", "no")]).path
    with pytest.raises(UsageError, match="matches no case") as raised:
        check(load_run(path), [Requirement.parse(text)])
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("required", "code"),
    [
        (["allreduce@1MB,n=2 >= 7Gbit/s", "send_recv@4KiB <= 500us"], Exit.DONE),
        (["allreduce@1MB,n=2 >= 7Gbit/s", "send_recv@4KiB <= 499us"], Exit.CASE_FAILED),
    ],
)
def test_the_exit_code(required: list[str], code: Exit, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [word for text in required for word in ("--require", text)]
    assert netbench(["check", str(path), *options]) == code
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == len(required)
    assert err == ""


def test_undecided_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    few = make_run(tmp_path / "few", [TWO], iterations=3).path
    assert netbench(["check", str(few), "--require", "allreduce >= 1Gbit/s"]) == Exit.UNDECIDED == 3


def test_requirements_stand_in_a_file_beside_the_sweep(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "nightly.toml"
    file.write_text('[sweep]\nmodes = ["allreduce"]\n\n[check]\nrequire = ["allreduce@1MB,n=2 >= 9Gbit/s"]\n')
    assert from_file(file) == ["allreduce@1MB,n=2 >= 9Gbit/s"]
    assert netbench(["check", str(path), "--config", str(file)]) == Exit.CASE_FAILED
    assert netbench(["sweep", str(file), "--dry-run"]) == Exit.DONE
    for text in ("[sweep]\n", "[check]\nrequire = []\n", "[check]\nrequired = ['x']\n", "[check]\nrequire = [1]\n"):
        file.write_text(text)
        with pytest.raises(UsageError, match="check: has no list of requirements"):
            from_file(file)
    file.write_text('[check]\nrequire = ["allredcue >= 1Gbit/s"]\n')
    capsys.readouterr()
    assert netbench(["check", str(path), "--config", str(file)]) == Exit.USAGE
    assert "nightly.toml: check.require" in capsys.readouterr().err


def test_nothing_required_is_a_mistake(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert netbench(["check", str(path)]) == Exit.USAGE
    assert "nothing is required" in capsys.readouterr().err
