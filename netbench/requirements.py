"""What a run has to fulfil: ``allreduce@64MiB,n=2 >= 8Gbit/s``, held against the interval of each case it means."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from netbench.errors import UsageError, did_you_mean
from netbench.metrics import METRICS
from netbench.model import AUTO, streams_text
from netbench.modes import MODES
from netbench.units import about_rate, about_seconds, format_bytes, parse_bytes, parse_rate, parse_seconds

if TYPE_CHECKING:
    from netbench.summary import Run

_SHAPE = re.compile(r"\s*(?P<cases>[^<>=\s].*?)\s*(?P<relation>>=|<=)\s*(?P<line>\S.*?)\s*")
EXAMPLE = "'allreduce@64MiB,n=2 >= 8Gbit/s' or 'send_recv@4KiB <= 80us'"

#: Keys of a requirement and the columns of a summary that they fix.
_KEYS = {
    "n": "world_size",
    "k": "streams",
    "backend": "backend",
    "dtype": "dtype",
    "variant": "variant",
    "metric": "metric",
}


class Outcome(Enum):
    """What becomes of a requirement; of several cases, the worst."""

    MET = "met"
    UNDECIDED = "undecided"
    VIOLATED = "violated"


@dataclass(frozen=True)
class Requirement:
    """``metric`` of the cases whose columns have these values must lie at or beyond ``line``, in SI units."""

    text: str
    columns: Mapping[str, Any]
    metric: str
    at_least: bool
    line: float

    @classmethod
    def parse(cls, text: str) -> Requirement:
        """Reads ``MODE[@SIZE][,KEY=VALUE...] >= RATE``, or ``<= TIME``. Raises UsageError with what would be right."""
        match = _SHAPE.fullmatch(text)
        if match is None:
            raise UsageError(f"{text!r} is not a requirement; write {EXAMPLE}")
        try:
            return cls._of(text, match["cases"], match["relation"] == ">=", match["line"])
        except (ValueError, UsageError) as error:
            raise UsageError(f"{text!r}: {error}") from None

    @classmethod
    def _of(cls, text: str, cases: str, at_least: bool, line: str) -> Requirement:
        first, *pairs = (piece.strip() for piece in cases.split(","))
        mode, _, size = (piece.strip() for piece in first.partition("@"))
        columns: dict[str, Any] = {"mode": MODES[mode].name}
        if size:
            columns["tensor_bytes"] = parse_bytes(size)
        for pair in pairs:
            key, _, value = (piece.strip() for piece in pair.partition("="))
            if key not in _KEYS or not value:
                raise ValueError(f"{pair!r} is no KEY=VALUE{did_you_mean(key, _KEYS)} (known: {', '.join(_KEYS)})")
            columns[_KEYS[key]] = _number(key, value) if key in "nk" else value
        # A bound on bandwidth is about what the link carries, one on time about one operation.
        rate = "bit" in line.lower() or "b/s" in line.lower()
        metric = METRICS[columns.pop("metric", "busbw" if rate else "latency")]
        unit = metric.unit().name
        if not metric.interval:
            raise ValueError(f"{metric.name} has no interval, so it cannot be required")
        if unit == "Gbit/s":
            bound = parse_rate(line) / 8
        elif unit == "us":
            bound = _seconds(line)
        else:
            bound = float(line.removesuffix("%")) / (100 if line.endswith("%") else 1)
        return cls(text, columns, metric.name, at_least, bound)

    def of(self, low: float | None, high: float | None) -> Outcome:
        """``low`` and ``high`` are the ends of a metric's interval, in SI units; null where there is none."""
        if low is None or high is None:
            return Outcome.UNDECIDED
        if (low >= self.line) if self.at_least else (high <= self.line):
            return Outcome.MET
        if (high < self.line) if self.at_least else (low > self.line):
            return Outcome.VIOLATED
        return Outcome.UNDECIDED

    def shown(self, value: float) -> str:
        """A value of the metric for people."""
        unit = METRICS[self.metric].unit().name
        if unit == "Gbit/s":
            return about_rate(value * 8)
        return about_seconds(value) if unit == "us" else f"{value:.3g}"


def _seconds(text: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither a rate nor a time; write 8Gbit/s or 80us") from None


def _number(key: str, value: str) -> int:
    if key == "k" and value == "auto":
        return AUTO
    if not value.isdecimal():
        raise ValueError(f"{key}={value} is not a whole number")
    return int(value)


@dataclass(frozen=True)
class Finding:
    """A requirement and one of its cases; the ends of the interval in SI units."""

    requirement: Requirement
    case_id: str
    outcome: Outcome
    value: float | None
    low: float | None
    high: float | None
    reason: str = ""

    def __str__(self) -> str:
        found = self.reason
        if self.value is not None:
            found = f"{self.requirement.metric} {self.requirement.shown(self.value)}"
            if self.low is not None and self.high is not None:
                found += f", {self.requirement.shown(self.low)} to {self.requirement.shown(self.high)}"
            else:
                found += ", too few iterations for an interval"
        return f"{self.outcome.value}: {self.requirement.text}: {self.case_id}: {found}"


def check(run: Run, requirements: Sequence[Requirement]) -> list[Finding]:
    """Every case that a requirement means. Raises UsageError where one means none."""
    cases = run.summaries().to_dict("records")
    return [finding for requirement in requirements for finding in _findings(run, cases, requirement)]


def _findings(run: Run, cases: list[dict[Any, Any]], requirement: Requirement) -> list[Finding]:
    columns = requirement.columns
    meant = [case for case in cases if all(case[name] == value for name, value in columns.items())]
    if not meant:
        raise UsageError(f"--require: {requirement.text!r} matches no case of {run.id}; {_nearest(cases, columns)}")
    metric = METRICS[requirement.metric]
    factor = metric.unit().factor
    names = [metric.column(end) for end in ("", "low", "high")]
    findings = []
    for case in meant:
        if case["status"] != "ok":
            reason = f"{case['status']}: {case['reason']}"
            findings.append(Finding(requirement, case["case_id"], Outcome.UNDECIDED, None, None, None, reason))
            continue
        value, low, high = (case[name] / factor if case[name] == case[name] else None for name in names)
        outcome = requirement.of(low, high)
        reason = "" if value is not None else f"has no {metric.label}"
        findings.append(Finding(requirement, case["case_id"], outcome, value, low, high, reason))
    return findings


def _nearest(cases: list[dict[Any, Any]], columns: Mapping[str, Any]) -> str:
    """What there is instead, by the first of ``columns`` that leaves nothing."""
    left = cases
    for name, value in columns.items():
        kept = [case for case in left if case[name] == value]
        if not kept:
            shown = {"tensor_bytes": format_bytes, "streams": streams_text}.get(name, str)
            known = dict.fromkeys(shown(case[name]) for case in left if case[name] == case[name])
            return f"there {name} is {', '.join(filter(None, known)) or 'as usual'}"
        left = kept
    raise AssertionError("every column has a case")


def worst(findings: Sequence[Finding]) -> Outcome:
    """Of several requirements: violated before undecided before met."""
    outcomes = {finding.outcome for finding in findings}
    return next((one for one in (Outcome.VIOLATED, Outcome.UNDECIDED) if one in outcomes), Outcome.MET)


def from_file(path: Path) -> list[str]:
    """The requirements of a configuration's ``[check]`` table. Raises UsageError."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: is not valid TOML: {error}") from None
    table = document.get("check")
    texts = table.get("require") if isinstance(table, dict) and set(table) == {"require"} else None
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise UsageError(f"{path}: check: has no list of requirements; write [check] and require = [{EXAMPLE!r}]")
    return texts


def write_findings(findings: Sequence[Finding], file: TextIO) -> None:
    """A line for each."""
    for finding in findings:
        file.write(f"{finding}\n")
