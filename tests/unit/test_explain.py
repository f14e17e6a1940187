"""Verdicts on paths whose times are chosen: each mechanism at work, not seen, undecided; and the plan behind them."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from synthetic import make_case, make_run

from netbench.errors import UsageError
from netbench.experiments import EXPERIMENTS, Setting, whole_plan
from netbench.explain.evidence import Evidence, NotMeasured
from netbench.explain.report import explain, write_report, write_verdicts
from netbench.explain.verdicts import Outcome, Verdict, lost_share, verdicts
from netbench.model import Case
from netbench.statistics import Estimate, estimate
from netbench.summary import load_run

SETTING = Setting.of({"lab": "3x200mbit"})
PLAN = whole_plan(SETTING)

MS = 1_000_000


@dataclass(frozen=True)
class Cost:
    """A made-up path: what each mechanism costs of the 100 ms that the bytes alone take.

    ``blocking`` is the whole of one chunk's wait; ``noise`` is the spread of all times as a part of them.
    """

    blocking_ms: float = 0
    faults_ms: float = 0
    faults: int = 0
    copies_ms: float = 0.1
    locked_out_ms: float = 0
    polling_ms: float = 0
    noise: float = 0.01
    cure: bool = True

    def durations(self, case: Case, ranks: int, iterations: int) -> np.ndarray:
        time_ms = 100.0
        if case.mode == "gather_copies":
            time_ms = self.copies_ms
        elif case.mode == "exchange_sends_first" and (case.backend == "gloo" or not self.cure):
            time_ms += self.blocking_ms / case.chunks
        elif case.mode == "exchange" and case.backend == "gloo" and not case.entry_delay_us:
            time_ms += self.locked_out_ms
        elif case.mode == "allreduce" and case.backend == "gloo":
            time_ms += self.polling_ms
        elif case.mode == "all_gather" and case.world_size == 2:
            time_ms += self.blocking_ms / 2 + self.copies_ms + (self.faults_ms if case.malloc == "default" else 0)
        random = np.random.default_rng([case.tensor_bytes, case.chunks, len(case.id)])
        times = time_ms * MS * (1 + self.noise * random.standard_normal((1, iterations)))
        return (times + case.entry_delay_us * 1000).astype(np.int64).repeat(ranks, 0)

    def faults_of(self, case: Case) -> int:
        return self.faults if case.mode == "all_gather" and case.malloc == "default" else 3


@pytest.fixture
def judged(tmp_path: Path) -> Callable[..., dict[str, Verdict]]:
    def judge(path: Cost, iterations: int = 12, without: str = "") -> dict[str, Verdict]:
        cases = [case for case in PLAN.cases if not without or without not in case.id]
        run = make_run(tmp_path / "run", cases, path.durations, iterations=iterations, faults=path.faults_of)
        return {verdict.mechanism: verdict for verdict in verdicts(Evidence(load_run(run.path)))}

    return judge


def about(share: Estimate | None, expected: float) -> None:
    assert share is not None
    assert share.value == pytest.approx(expected, abs=0.1)
    assert share.low is not None
    assert share.high is not None
    assert share.low <= share.value <= share.high


def test_a_link_on_which_ranks_take_turns(judged: Callable[..., dict[str, Verdict]]) -> None:
    found = judged(Cost(blocking_ms=100))
    assert [verdict.outcome for verdict in found.values()] == [Outcome.AT_WORK, *[Outcome.NOT_SEEN] * 4]
    blocking = found["head-of-line blocking"]
    about(blocking.share, 1)
    law = [(number.value.value, number.expected) for number in blocking.numbers]
    for value, expected in law:
        assert value == pytest.approx(expected, rel=0.03)
    assert [expected for _, expected in law] == [2, 1.5, 1.25, 1]


def test_a_fast_path_on_which_memory_is_what_costs(judged: Callable[..., dict[str, Verdict]]) -> None:
    found = judged(Cost(faults_ms=60, faults=9000, copies_ms=20, locked_out_ms=30, polling_ms=100))
    assert [verdict.outcome for verdict in found.values()] == [Outcome.NOT_SEEN, *[Outcome.AT_WORK] * 4]
    for mechanism, factor in (("readers locked out", 1.3), ("readers in the writers' place", 2)):
        assert found[mechanism].share is None
        for number in found[mechanism].numbers:
            assert number.value.value == pytest.approx(factor, rel=0.02)
    about(found["page faults"].share, 0.75)
    about(found["copies"].share, 0.25)
    assert found["head-of-line blocking"].share is None
    assert "8997 pages" in found["page faults"].finding


def test_a_path_on_which_nothing_is_lost(judged: Callable[..., dict[str, Verdict]]) -> None:
    found = judged(Cost())
    assert {verdict.outcome for verdict in found.values()} == {Outcome.NOT_SEEN}
    assert {verdict.share for verdict in found.values()} == {None}


def test_noise_leaves_it_undecided(judged: Callable[..., dict[str, Verdict]]) -> None:
    found = judged(
        Cost(blocking_ms=55, faults_ms=12, faults=9000, copies_ms=7, locked_out_ms=10, polling_ms=10, noise=0.25)
    )
    assert {verdict.outcome for verdict in found.values()} == {Outcome.UNDECIDED}
    assert {verdict.share for verdict in found.values()} == {None}


def test_five_iterations_decide_nothing(judged: Callable[..., dict[str, Verdict]]) -> None:
    found = judged(Cost(blocking_ms=100, faults_ms=60, faults=9000), iterations=5)
    assert {verdict.outcome for verdict in found.values()} == {Outcome.UNDECIDED}


def test_blocking_that_its_cure_does_not_cure_is_undecided(judged: Callable[..., dict[str, Verdict]]) -> None:
    assert judged(Cost(blocking_ms=100, cure=False))["head-of-line blocking"].outcome is Outcome.UNDECIDED


def test_time_without_page_faults_is_not_blamed_on_them(judged: Callable[..., dict[str, Verdict]]) -> None:
    assert judged(Cost(faults_ms=60, faults=50))["page faults"].outcome is Outcome.UNDECIDED


@pytest.mark.parametrize(
    ("without", "mechanisms"),
    [
        ("one_way", {"head-of-line blocking", "readers locked out"}),
        ("batch_gloo", {"readers in the writers' place"}),
        ("malloc_keep", {"page faults"}),
        ("gather_copies", {"copies"}),
    ],
)
def test_what_was_not_measured_is_said(
    judged: Callable[..., dict[str, Verdict]], without: str, mechanisms: set[str]
) -> None:
    everything = Cost(blocking_ms=100, faults_ms=60, faults=9000, copies_ms=20, locked_out_ms=30, polling_ms=50)
    for name, verdict in judged(everything, without=without).items():
        assert verdict.outcome is (Outcome.UNDECIDED if name in mechanisms else Outcome.AT_WORK)
        assert verdict.finding.startswith("not measured: ") is (name in mechanisms)


def test_without_a_third_host_the_copies_are_judged_all_the_same(judged: Callable[..., dict[str, Verdict]]) -> None:
    assert judged(Cost(copies_ms=20), without="-n3-")["copies"].outcome is Outcome.AT_WORK


def test_a_run_without_the_two_that_are_compared_is_refused(tmp_path: Path) -> None:
    run = load_run(make_run(tmp_path / "run", [make_case("all_gather"), make_case("allreduce")]).path)
    with pytest.raises(UsageError, match="nothing to explain: it needs all_gather and exchange"):
        Evidence(run)


def test_evidence_is_of_the_largest_size_that_both_have(tmp_path: Path) -> None:
    cases = [make_case(mode, tensor_bytes=size) for mode in ("all_gather", "exchange") for size in (4096, 8192)]
    cases.append(make_case("all_gather", tensor_bytes=16384))
    evidence = Evidence(load_run(make_run(tmp_path / "run", cases).path))
    assert evidence.transmit_bytes == 8192
    assert evidence.find("all_gather").tensor_bytes == 8192
    with pytest.raises(NotMeasured, match="exchange with late True"):
        evidence.find("exchange", late=True)


def test_the_wait_for_the_late_rank_is_no_time_of_the_exchange(tmp_path: Path) -> None:
    path = Cost(blocking_ms=100, noise=0)
    evidence = Evidence(load_run(make_run(tmp_path / "run", PLAN.cases, path.durations).path))
    assert evidence.median_s(evidence.find("exchange", late=True)) == pytest.approx(0.1)
    assert lost_share(evidence).value == pytest.approx(0.501)


def test_the_report_holds_verdicts_numbers_and_experiments(tmp_path: Path) -> None:
    run = load_run(make_run(tmp_path / "run", PLAN.cases, Cost(blocking_ms=100).durations).path)
    text, file = write_report(explain(run)).read_text(encoding="utf-8"), io.StringIO()
    write_verdicts(explain(run), file)
    for said in (text, file.getvalue()):
        assert "head-of-line blocking" in said
        assert "at work" in said
        assert "sends first over receives first, 2 chunks" in said
        assert "times as long as the same bytes exchanged" in said
    assert all(f"| {name} |" in text for name in EXPERIMENTS)
    assert "| exchange, sends first, late | 200 ms |" in text
    assert "(plots/factors.png)" in text


def test_every_case_of_the_plan_sends_the_same_bytes() -> None:
    for setting in (SETTING, Setting.of({}), Setting.of({"lab": "2x1gbit,delay=5ms", "size": "3MB"})):
        sent = {case.transmit_bytes for case in whole_plan(setting).cases} - {0}
        assert sent == {setting.transmit_bytes}


def test_the_plan_has_each_case_once_and_every_experiment_some() -> None:
    assert len({case.id for case in PLAN.cases}) == len(PLAN.cases)
    for experiment in EXPERIMENTS.values():
        assert set(experiment.plan(SETTING).cases) <= set(PLAN.cases)
        assert experiment.plan(SETTING).cases
    assert PLAN.world_size == 3
    assert PLAN.skips == ()


def test_two_hosts_are_enough_and_loopback_has_no_timeline() -> None:
    two = whole_plan(Setting.of({"lab": "2x200mbit"}))
    assert two.world_size == 2
    assert {skip.reason for skip in two.skips} == {"the lab 2x200mbit has no host for each of 3 ranks"}
    [skip] = whole_plan(Setting.of({})).skips
    assert "timeline of loopback" in skip.reason


def test_an_operation_takes_a_fifth_of_a_second_on_the_lab_s_link_and_never_more_than_on_loopback() -> None:
    assert SETTING.transmit_bytes * 8 / 191.3e6 == pytest.approx(0.2, abs=0.01)
    assert Setting.of({"lab": "2x400mbit,flow=40mbit"}).transmit_bytes * 8 / 38.3e6 == pytest.approx(0.2, abs=0.03)
    assert Setting.of({"lab": "2x10gbit"}).transmit_bytes == Setting.of({}).transmit_bytes
    with pytest.raises(UsageError, match="--size: '1Mbit' counts bits"):
        Setting.of({"size": "1Mbit"})


def test_estimates_are_of_medians_and_the_same_every_time() -> None:
    random = np.random.default_rng(1)
    slow, fast = random.normal(1.5, 0.02, 30), random.normal(1, 0.02, 30)
    found = estimate(lambda one, other: one / other, slow, fast)
    assert found.value == np.median(slow) / np.median(fast)
    assert found.low is not None
    assert found.high is not None
    assert 1.45 < found.low < found.value < found.high < 1.55
    assert estimate(lambda one, other: one / other, slow, fast) == found
    assert estimate(lambda one: one, fast[:5]) == Estimate(float(np.median(fast[:5])), None, None)
