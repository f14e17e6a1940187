"""Runs against a baseline: the interval's coverage, the tests against scipy, verdicts, refusals and what is printed."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from synthetic import constant, make_case, make_run

from netbench.__main__ import run as netbench
from netbench.compare.comparison import VERDICTS, Comparison, compare, verdict_of
from netbench.compare.forest import forests
from netbench.compare.ratios import Blocks, holm, rank_test, ratio
from netbench.compare.report import FORMATS
from netbench.errors import Exit
from netbench.model import Case
from netbench.record import Manifest
from netbench.summary import load_run

DATA = Path(__file__).parents[1] / "data"


def drawn(random: np.random.Generator, groups: int, each: int, between: float, within: float) -> Blocks:
    """Log-normal times around 1 ms in groups whose levels differ by ``between``, and within them by ``within``."""
    levels = random.normal(0, between, groups)
    return Blocks(tuple(1e6 * np.exp(level + random.normal(0, within, each)) for level in levels), "round")


@pytest.mark.parametrize(
    ("groups", "each", "between"),
    [(1, 10, 0.0), (1, 40, 0.0), (3, 4, 0.0), (3, 10, 0.1), (3, 10, 0.02), (10, 6, 0.05)],
)
def test_the_interval_holds_the_true_ratio_in_95_of_100(groups: int, each: int, between: float) -> None:
    random = np.random.default_rng(0)
    tries = 200
    found = [ratio(*(drawn(random, groups, each, between, 0.05) for _ in "ab")) for _ in range(tries)]
    held = sum(one.low <= 1 <= one.high for one in found)
    # Fewer than this has a chance below one in a thousand. More is no fault: a few rounds are judged with caution.
    assert held >= scipy.stats.binom.ppf(0.001, tries, 0.95)


def test_a_ratio_is_of_medians_and_its_interval_scales_with_it() -> None:
    random = np.random.default_rng(0)
    base = drawn(random, 3, 20, 0.01, 0.03)
    slower = Blocks(tuple(1.2 * group for group in base.groups), "round")
    same, found = ratio(base, base), ratio(base, slower)
    assert found.value == pytest.approx(1.2)
    assert same.low < 1 < same.high
    assert np.array(found) == pytest.approx(1.2 * np.array(same))


def test_too_few_iterations_have_no_interval() -> None:
    few = Blocks((np.array([1.0, 2, 3, 4, 5]),), "round")
    assert ratio(few, few).low is None


def test_groups_that_differ_widen_the_interval() -> None:
    random = np.random.default_rng(0)
    flat, uneven = (drawn(random, 3, 30, between, 0.02) for between in (0.0, 0.2))
    assert ratio(uneven, uneven).high - 1 > 3 * (ratio(flat, flat).high - 1)


def test_the_rank_test_is_scipy_s() -> None:
    random = np.random.default_rng(0)
    base, other = drawn(random, 2, 9, 0.0, 0.1), drawn(random, 3, 7, 0.1, 0.1)
    assert rank_test(base, other) == scipy.stats.mannwhitneyu(base.times_ns, other.times_ns).pvalue


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_holm_only_ever_raises_and_keeps_the_order(chances: list[float]) -> None:
    adjusted = holm(chances)
    assert all(p <= q <= 1 for p, q in zip(chances, adjusted, strict=True))
    assert [adjusted[i] for i in np.argsort(chances, kind="stable")] == sorted(adjusted)


SIZES = (4096, 65536, 1 << 20)
CASES = [make_case(tensor_bytes=size) for size in SIZES]


def noisy(seed: int, slower: float = 1.0) -> object:
    """Durations around 1 ms; of the largest size ``slower`` times as long."""
    random = np.random.default_rng(seed)

    def durations(case: Case, ranks: int, iterations: int) -> np.ndarray:
        factor = slower if case.tensor_bytes == SIZES[-1] else 1.0
        return (1e6 * factor * random.lognormal(0, 0.03, (ranks, iterations))).astype(int)

    return durations


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    base = make_run(tmp_path / "base", CASES, noisy(1), iterations=30)
    other = make_run(tmp_path / "other", CASES, noisy(2, slower=1.3), iterations=30)
    return base.path, other.path


def compared(pair: tuple[Path, Path], **options: object) -> Comparison:
    return compare(*(load_run(path) for path in pair), **options)


def test_what_is_slower_is_found_and_what_is_not_is_the_same(pair: tuple[Path, Path]) -> None:
    assert [one.verdict for one in compared(pair).pairs] == ["same", "same", "slower"]
    assert [one.verdict for one in compared(pair[::-1]).pairs] == ["same", "same", "faster"]
    assert [one.verdict for one in compared(pair, margin=0.5).pairs] == ["same"] * 3


def test_a_change_that_others_may_have_made_is_inconclusive(pair: tuple[Path, Path]) -> None:
    base, other = pair
    busy = {"host": "alpha", "ranks": [0, 1], "machine": "alpha", "cpus_allowed": 2, "load_1min": 9.0}
    manifest_of(other, environment=[busy])
    manifest_of(base, environment=[busy | {"load_1min": 0.1}])
    same, _, one = compared(pair).pairs
    assert (one.verdict, one.reason) == ("inconclusive", "noisy_cpu in other: measure again, or --silence it")
    assert same.verdict == "same"
    typed = ["compare", str(base), str(other), "--fail-on", "slower"]
    assert netbench(typed) == Exit.DONE
    assert netbench([*typed, "--silence", "noisy_cpu"]) == Exit.CASE_FAILED


def test_few_or_scattered_iterations_are_inconclusive(tmp_path: Path) -> None:
    wide = [make_run(tmp_path / name, CASES[:1], constant(10**6), iterations=5).path for name in "ab"]
    [one] = compared((wide[0], wide[1])).pairs
    assert (one.verdict, one.reason) == ("inconclusive", "too few iterations: 6 are the least")


def manifest_of(path: Path, **changes: object) -> None:
    folder = load_run(path).folder
    folder.write_manifest(Manifest.model_validate(folder.read_manifest().model_dump() | changes))


def test_cases_that_mean_different_things_are_refused_with_the_reason(tmp_path: Path) -> None:
    base = make_run(tmp_path / "base", CASES[:1], iterations=30, facts={"pause_s": 0.0, "lab": "2x200mbit"}).path
    other = make_run(tmp_path / "other", CASES[:1], iterations=30, facts={"pause_s": 0.1, "lab": "2x160mbit"}).path
    [one] = compared((base, other)).pairs
    assert (one.verdict, one.ratio) == ("not compared", None)
    assert one.reason == "lab 2x200mbit is not 2x160mbit; pause 0 s is not 0.1 s"
    [one] = compared((base, other), across=["lab"]).pairs
    assert one.reason == "pause 0 s is not 0.1 s"
    [one] = compared((base, other), across=["lab", "pause"]).pairs
    assert one.verdict == "same"


def test_kinds_of_interface_are_not_mixed(pair: tuple[Path, Path]) -> None:
    for path, kind in zip(pair, ("loopback", "network"), strict=True):
        manifest_of(path, environment=[{"host": "alpha", "ranks": [0, 1], "interface": {"name": "x", "kind": kind}}])
    found = compared(pair)
    assert {one.reason for one in found.pairs} == {"interface loopback is not network"}
    assert ("interface.kind", "loopback", "network") in found.differences


def test_another_dtype_is_another_case(tmp_path: Path) -> None:
    base = make_run(tmp_path / "base", [make_case()]).path
    other = make_run(tmp_path / "other", [make_case(dtype="bfloat16")]).path
    found = compared((base, other)).pairs
    assert [one.verdict for one in found] == ["not compared"] * 2
    assert found[0].reason == "not measured in other; there it is bfloat16"
    assert found[1].reason == "not measured in base; there it is float32, as usual"


def test_wrong_data_is_not_compared(tmp_path: Path) -> None:
    base = make_run(tmp_path / "base", CASES[:1]).path
    other = make_run(tmp_path / "other", CASES[:1], facts={"status": "wrong", "wrong_elements": 1}).path
    assert compared((base, other)).pairs[0].reason == "moved wrong data in other"


def test_differences_of_environment_are_listed_and_noise_is_not(pair: tuple[Path, Path]) -> None:
    for path, kernel in zip(pair, ("6.1", "6.8"), strict=True):
        manifest_of(
            path,
            config={"pause": 0.0, "seed": len(kernel), "out": kernel},
            environment=[
                {"host": "a", "ranks": [0], "kernel": kernel, "load_1min": float(kernel), "sysctls": {"x": kernel}}
            ],
        )
    found = compared(pair).differences
    assert [tuple(one) for one in found] == [("kernel", "6.1", "6.8"), ("sysctls.x", "6.1", "6.8")]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_prints_every_case(name: str, pair: tuple[Path, Path]) -> None:
    file = io.StringIO()
    FORMATS[name].write([compared(pair), compared(pair[::-1])], file)
    for case in CASES:
        assert file.getvalue().count(case.id) == 2


def test_json_is_strict_and_has_all(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert netbench(["compare", *map(str, pair), "--format", "json"]) == Exit.DONE
    out, err = capsys.readouterr()
    [document] = json.loads(out, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))
    assert err == ""
    assert document["counts"] == dict.fromkeys(VERDICTS, 0) | {"same": 2, "slower": 1}
    assert document["cases"][2]["ratio"] == pytest.approx(1.3, abs=0.03)
    assert netbench(["compare", *map(str, pair), "--format", "csv"]) == Exit.DONE
    assert len(list(csv.DictReader(io.StringIO(capsys.readouterr().out)))) == 3


def test_the_exit_code_is_what_was_asked_for(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    base, other = map(str, pair)
    assert netbench(["compare", base, other, "--fail-on", "slower"]) == Exit.CASE_FAILED
    assert "--fail-on: 1 slower" in capsys.readouterr().err
    assert netbench(["compare", other, base, "--fail-on", "slower"]) == Exit.DONE
    assert netbench(["compare", other, base, other, "--fail-on", "slower,faster"]) == Exit.CASE_FAILED
    assert "1 faster" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["base", "gone"], "gone: no such file"),
        (["base", "."], "2 runs"),
        (["base", "other", "--margin", "5 percent"], "--margin: '5 percent' is not a share; write 5% or 0.05"),
        (["base", "other", "--across", "labs"], "--across: 'labs' is not known; did you mean 'lab'?"),
        (["base", "other", "--fail-on", "slow"], "--fail-on: 'slow' is not known; did you mean 'slower'?"),
        (["base", "other", "--format", "jsn"], "--format: 'jsn'"),
    ],
)
def test_mistakes_are_named(
    typed: list[str],
    words: str,
    pair: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(pair[0].parent)
    assert netbench(["compare", *typed]) == Exit.USAGE
    assert words in capsys.readouterr().err


def test_the_forest_has_a_row_a_case_and_the_margin(pair: tuple[Path, Path], tmp_path: Path) -> None:
    [(name, figure)] = forests(compared(pair))
    axes, right = figure.axes
    assert name == "compare-base-other"
    assert [label.get_text() for label in axes.get_yticklabels()] == [case.id for case in CASES]
    assert [label.get_text() for label in right.get_yticklabels()] == ["same", "same", "slower"]
    assert netbench(["compare", *map(str, pair), "--plot", str(tmp_path / "plots")]) == Exit.DONE
    assert {path.suffix for path in (tmp_path / "plots").iterdir()} == {".png", ".svg"}


def recorded(series: str) -> list[dict[str, Blocks]]:
    """Runs of the same settings, as ``benchmarks/compare.py --record`` wrote them: case -> times, for each run."""
    cases = json.loads((DATA / "same_settings.json").read_text())[series]
    runs = range(len(next(iter(cases.values()))))
    return [
        {case: Blocks(tuple(np.array(block, float) for block in times[run]), "round") for case, times in cases.items()}
        for run in runs
    ]


def verdicts(base: dict[str, Blocks], other: dict[str, Blocks]) -> list[str]:
    adjusted = holm([rank_test(base[case], other[case]) for case in base])
    return [verdict_of(ratio(base[case], other[case]), p, 0.05) for case, p in zip(base, adjusted, strict=True)]


def test_the_same_settings_again_are_hardly_ever_slower() -> None:
    runs = {series: recorded(series) for series in ("loopback", "lab")}
    found = Counter(v for series in runs.values() for pair in pairwise(series) for v in verdicts(*pair))
    assert min(map(len, runs.values())) >= 21
    assert found["slower"] <= 0.05 * found.total()
    assert found["faster"] <= 0.05 * found.total()


def test_a_link_that_lost_a_fifth_is_found_in_every_run() -> None:
    for base, other in pairwise(recorded("lab")):
        slower = {case: Blocks(tuple(1.25 * group for group in one.groups), "round") for case, one in other.items()}
        assert "slower" in verdicts(base, slower)
