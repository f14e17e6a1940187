"""An explanation for people: a table of verdicts on a terminal, and a Markdown report beside the record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from netbench.experiments import EXPERIMENTS
from netbench.explain.evidence import Evidence, NotMeasured, label
from netbench.explain.verdicts import Number, Outcome, Verdict, verdicts
from netbench.model import Case
from netbench.record import write_atomically
from netbench.registry import one_line
from netbench.statistics import Estimate
from netbench.summary import Run
from netbench.units import about_bytes, about_seconds

#: Of all figures of a run, those that the report shows.
FIGURES = ("factors", "timeline")

_STYLES = {Outcome.AT_WORK: "bold", Outcome.NOT_SEEN: "", Outcome.UNDECIDED: "yellow"}


@dataclass(frozen=True)
class Explanation:
    """A run's evidence and what follows from it."""

    run: Run
    evidence: Evidence
    verdicts: Sequence[Verdict]


def explain(run: Run) -> Explanation:
    """Raises UsageError when the run measured no all_gather between two ranks."""
    evidence = Evidence(run)
    return Explanation(run, evidence, verdicts(evidence))


def write_verdicts(explanation: Explanation, file: TextIO) -> None:
    """The verdicts with the numbers behind them, as a table."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=file) if file.isatty() else Console(file=file, width=170)
    for line in _situation(explanation.evidence):
        console.print(line, markup=False, highlight=False)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("mechanism", "verdict", "share of the lost time", "evidence", "measured", "if at work"):
        table.add_column(heading, overflow="fold")
    for verdict in explanation.verdicts:
        first = [verdict.mechanism, str(verdict.outcome), _share(verdict.share)]
        table.add_row(*map(Text, [*first, verdict.finding, "", ""]), style=_STYLES[verdict.outcome])
        for number in verdict.numbers:
            table.add_row("", "", "", *map(Text, _number(number)), style="dim")
    console.print(table)


def write_report(explanation: Explanation) -> Path:
    """Writes ``explain.md`` and the figures into the run's folder. Raises StorageError."""
    from netbench.figures import write_plots

    write_plots([explanation.run], names=FIGURES)
    path = explanation.run.folder.path / "explain.md"
    write_atomically(path, markdown(explanation).encode())
    return path


def markdown(explanation: Explanation) -> str:
    """The report: situation, verdicts, every case beside the exchange, what each experiment is for, figures."""
    run, evidence = explanation.run, explanation.evidence
    lines = [f"# Why all_gather takes longer than its bytes: {run.id}", ""]
    lines += [f"* {line}" for line in _situation(evidence)]
    lines += ["", "## Verdicts", ""]
    lines += _table(
        ["mechanism", "verdict", "share of the lost time", "finding"],
        ([v.mechanism, f"**{v.outcome}**", _share(v.share), v.finding] for v in explanation.verdicts),
    )
    for verdict in explanation.verdicts:
        if verdict.numbers:
            lines += ["", f"### {verdict.mechanism}: {verdict.outcome}", ""]
            lines += _table(["evidence", "measured", "if at work"], map(_number, verdict.numbers))
    lines += ["", "## Every case", "", "Times are medians; factors are over the exchange with receives first.", ""]
    lines += _table(
        ["case", "time", "factor", "page faults an iteration"], (_case(evidence, c) for c in evidence.cases)
    )
    lines += ["", "## The experiments", ""]
    lines += _table(["experiment", "what it shows"], ([name, one_line(EXPERIMENTS[name])] for name in EXPERIMENTS))
    figures = [path.name for name in FIGURES for path in sorted(run.folder.plots.glob(f"{name}*.png"))]
    if figures:
        lines += ["", "## Figures"]
    for name in figures:
        lines += ["", f"![{name.removesuffix('.png')}](plots/{name})"]
    return "\n".join(lines) + "\n"


def _situation(evidence: Evidence) -> list[str]:
    """What all_gather takes, beside what the same bytes take otherwise."""
    run = evidence.run
    factor = evidence.ratio(evidence.find("all_gather"), evidence.find("exchange"))
    lines = [
        f"{about_bytes(evidence.transmit_bytes)} sent by each rank, over {run.network}, hosts {', '.join(run.hosts)}",
        f"all_gather between 2 ranks takes {_estimate(factor)} times as long as the same bytes exchanged with receives "
        "posted first (in brackets: 95 % interval)",
    ]
    with suppress(NotMeasured):
        late = evidence.ratio(evidence.find("all_gather", late=True), evidence.find("exchange", late=True))
        lines.append(
            f"with a rank that enters late, so that chance does not decide: {_estimate(late)}; shares are of that"
        )
    times = [f"{label(case)} {about_seconds(evidence.median_s(case))}" for case in _landmarks(evidence)]
    if evidence.ideal_s is not None:
        times.append(f"ideal on this link {about_seconds(evidence.ideal_s)}")
    return [*lines, "median times: " + "; ".join(times)]


def _landmarks(evidence: Evidence) -> Iterable[Case]:
    for mode, what in (
        ("all_gather", {}),
        ("all_gather", {"world_size": 3}),
        ("exchange", {}),
        ("exchange", {"backend": "tcp"}),
    ):
        with suppress(NotMeasured):
            yield evidence.find(mode, **what)


def _case(evidence: Evidence, case: Case) -> list[str]:
    factor = evidence.ratio(case, evidence.find("exchange"))
    return [label(case), about_seconds(evidence.median_s(case)), _estimate(factor), f"{evidence.faults(case):.0f}"]


def _number(number: Number) -> list[str]:
    expected = "" if number.expected is None else _digits(number.expected)
    return [number.label, _estimate(number.value), expected]


def _share(share: Estimate | None) -> str:
    if share is None:
        return ""
    value, low, high = (f"{100 * part:.0f} %" if part is not None else "?" for part in share)
    return f"{value} ({low} to {high})"


def _estimate(estimate: Estimate) -> str:
    """``1.48 (1.44 to 1.53)``; the value alone where it has no interval."""
    if estimate.low is None or estimate.high is None:
        return _digits(estimate.value)
    return f"{_digits(estimate.value)} ({_digits(estimate.low)} to {_digits(estimate.high)})"


def _digits(value: float) -> str:
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.2g}"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in [headings, ["---"] * len(headings), *rows]]
