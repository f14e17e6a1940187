"""One run against a baseline: cases matched by id, each with a ratio and a verdict or the reason why there is none."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from netbench.compare.differences import Difference, differences, meaning
from netbench.compare.ratios import Blocks, holm, rank_test, ratio
from netbench.model import Case
from netbench.statistics import Estimate
from netbench.summary import Run

#: What may be said of a case, and of one that is not compared.
VERDICTS = ("slower", "faster", "same", "inconclusive", "not compared")

#: Verdicts on a case which say that a difference need not be the network's, unless the link sets the time anyhow.
_DOUBTS = ("noisy_cpu", "foreign_traffic", "oversubscribed")

#: Chance of at least one wrong "slower" or "faster" among the cases of a comparison, by the rank test.
_ALPHA = 0.05


@dataclass(frozen=True)
class Pair:
    """A case of both runs. ``ratio`` is time over the baseline's time: above 1 is slower."""

    case_id: str
    verdict: str
    reason: str = ""
    base_ns: float | None = None
    other_ns: float | None = None
    ratio: Estimate | None = None
    #: Of the rank test, and after correction for all cases.
    p: float | None = None
    p_adjusted: float | None = None
    #: Over what the interval was taken, such as ``3 launches, 3 rounds``.
    blocks: str = ""


@dataclass(frozen=True)
class Comparison:
    base: Run
    other: Run
    margin: float
    differences: list[Difference]
    pairs: list[Pair]

    def count(self, verdict: str) -> int:
        return sum(pair.verdict == verdict for pair in self.pairs)


def compare(base: Run, other: Run, margin: float = 0.05, across: Collection[str] = ()) -> Comparison:
    """``margin`` is the change that does not matter, a share; ``across`` names what may differ (see MEANINGS)."""
    cases = {case.id: case for run in (base, other) for case in run.manifest.cases}
    pairs = [_pair(base, other, case, across) for case in cases.values()]
    measured = [pair for pair in pairs if pair.p is not None]
    adjusted = dict(zip([pair.case_id for pair in measured], holm([pair.p or 0.0 for pair in measured]), strict=True))
    doubts = _doubts(base) | _doubts(other)
    pairs = [
        _judged(replace(pair, p_adjusted=adjusted.get(pair.case_id)), margin, doubts.get(pair.case_id, ""))
        for pair in pairs
    ]
    return Comparison(base, other, margin, differences(base, other), pairs)


def _pair(base: Run, other: Run, case: Case, across: Collection[str]) -> Pair:
    if base.manifest.source is not None or other.manifest.source is not None:
        return _pair_of_headlines(base, other, case)
    if refused := _refusal(base, other, case, across):
        return Pair(case.id, "not compared", refused)
    before, after = (Blocks.of(run.iterations(case.id)) for run in (base, other))
    estimate = ratio(before, after)
    p = rank_test(before, after) if estimate.low is not None else None
    blocks = f"{before}, {after}"
    return Pair(case.id, "inconclusive", "", before.median_ns, after.median_ns, estimate, p, None, blocks)


def _pair_of_headlines(base: Run, other: Run, case: Case) -> Pair:
    """Where a run has only what its source told: the ratio, and no verdict, since nothing is known of its spread."""
    times = {}
    for run in (base, other):
        table = run.summaries()
        [time_ns] = table.loc[(table["case_id"] == case.id) & (table["status"] == "ok"), "median_ns"].tolist() or [None]
        if time_ns is None:
            return Pair(case.id, "not compared", f"not measured in {run.id}")
        times[run.id] = float(time_ns)
    before, after = times[base.id], times[other.id]
    reason = "a number that was imported or quoted has no iterations, so there is no interval"
    return Pair(case.id, "inconclusive", reason, before, after, Estimate(after / before, None, None))


def _refusal(base: Run, other: Run, case: Case, across: Collection[str]) -> str:
    """Why two numbers of one id cannot be set against each other, or nothing."""
    for run in (base, other):
        if case.id not in run.done:
            near = [one for one in run.manifest.cases if _like(one) == _like(case) and one.variant != case.variant]
            there = f"; there it is {near[0].variant or 'float32, as usual'}" if near else ""
            return f"not measured in {run.id}{there}"
        if case.id in run.damaged:
            return f"cannot be read in {run.id}"
        if run.facts(case.id).get("status") != "ok":
            return f"moved wrong data in {run.id}"
    before, after = meaning(base, case.id), meaning(other, case.id)
    apart = [f"{name} {before[name]} is not {after[name]}" for name in before if before[name] != after[name]]
    unsaid = [text for text in apart if text.split()[0] not in across]
    return "; ".join(unsaid)


def _like(case: Case) -> tuple[object, ...]:
    return case.mode, case.backend, case.streams, case.world_size, case.tensor_bytes


def _doubts(run: Run) -> dict[str, str]:
    """What was found to be doubtful about a run's cases, by id; silenced verdicts are not."""
    found = {}
    for case_id, text in zip(*run.summaries()[["case_id", "verdicts"]].to_dict("list").values(), strict=True):
        names = text.split(", ") if isinstance(text, str) else []
        doubts = [name for name in _DOUBTS if name in names and "link_bound" not in names]
        if doubts:
            found[case_id] = f"{', '.join(doubts)} in {run.id}"
    return found


def _judged(pair: Pair, margin: float, doubt: str) -> Pair:
    """A difference counts when all of the interval is beyond the margin, the ranks agree, and nothing else explains it;
    sameness, when all of the interval is within."""
    if pair.ratio is None:
        return pair
    if pair.ratio.low is None or pair.ratio.high is None:
        return replace(pair, reason=pair.reason or "too few iterations: 6 are the least")
    verdict = verdict_of(pair.ratio, pair.p_adjusted, margin)
    if verdict == "inconclusive":
        return replace(pair, reason="the interval reaches across the margin; take more iterations or --launches")
    if verdict != "same" and doubt:
        return replace(pair, reason=f"{doubt}: measure again, or --silence it")
    return replace(pair, verdict=verdict)


def verdict_of(ratio: Estimate, p_adjusted: float | None, margin: float) -> str:
    """What an interval and a rank test say, whatever else may be known."""
    sure = p_adjusted is not None and p_adjusted < _ALPHA
    if sure and ratio.is_above(1 + margin):
        return "slower"
    if sure and ratio.is_below(1 / (1 + margin)):
        return "faster"
    if ratio.low is not None and ratio.high is not None and 1 / (1 + margin) <= ratio.low and ratio.high <= 1 + margin:
        return "same"
    return "inconclusive"
