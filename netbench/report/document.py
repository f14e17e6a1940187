"""From a run to one HTML page: figures as SVG in the text, tables, verdicts, environment, and no reference outside.

The page runs no script and fetches nothing, and says so to the browser, which then refuses whatever would.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netbench.errors import UsageError
from netbench.figures import draw
from netbench.fits import fit_rows, fit_texts, hindsight
from netbench.metrics import DEFAULT_RATE, METRICS
from netbench.model import streams_text
from netbench.page import image
from netbench.predictions import Predictions
from netbench.record import write_atomically
from netbench.tables import found_verdicts, main_numbers, notes_on
from netbench.units import about_seconds, format_bytes

if TYPE_CHECKING:
    import pandas as pd

    from netbench.summary import Run


_SMALL_BYTES, _LARGE_BYTES = 64 * 2**10, 2**20


@dataclass(frozen=True)
class Table:
    """Texts; ``numbers`` are the headings of columns that are set to the right."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[str] = frozenset()

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, str]]) -> Table:
        headings = list(dict.fromkeys(name for row in rows for name in row))
        numbers = {name for name in headings if all(row.get(name, "")[:1] in "0123456789+-" for row in rows)}
        return cls(headings, [[row.get(name, "") for name in headings] for row in rows], frozenset(numbers))


@dataclass(frozen=True)
class Picture:
    name: str
    svg: str


@dataclass(frozen=True)
class Section:
    """What a page shows of one mode: pictures, and the main numbers of its cases."""

    title: str
    pictures: Sequence[Picture]
    table: Table


def write_report(run: Run, path: Path | None = None, rate: str = DEFAULT_RATE) -> Path:
    """Writes the page to ``path``, by default ``report.html`` in the run's folder. Raises StorageError."""
    path = path or run.folder.path / "report.html"
    write_atomically(path, html(run, rate).encode())
    return path


def html(run: Run, rate: str = DEFAULT_RATE) -> str:
    """The page's text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    pages = Environment(
        loader=PackageLoader("netbench.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    cases = run.summaries(rate)
    sections, others = _sections(run, rate)
    predictions = _predictions(run)
    text: str = pages.get_template("report.html.j2").render(
        run=run,
        manifest=run.manifest,
        took=_took(run),
        counts=_counts(cases),
        best=_best(cases, rate),
        explained=_explained(run),
        verdicts=_verdicts(cases),
        sections=sections,
        pictures=others,
        fit=Table.of([fit_texts(row, rate) for row in fit_rows(predictions, rate)]) if predictions else None,
        hindsight=hindsight(predictions) if predictions else [],
        notes=notes_on(run, rate),
        environment=_environment(run.manifest.environment),
        setup=_setup(run),
    )
    return text


def _took(run: Run) -> str:
    begun, ended = run.manifest.started_at, run.manifest.ended_at
    return "" if ended is None else about_seconds((ended - begun).total_seconds())


def _counts(cases: pd.DataFrame) -> list[tuple[str, int]]:
    counts = dict(cases["status"].value_counts())
    known = ("ok", "wrong", "failed", "damaged", "skipped", "missing")
    return [(status, counts[status]) for status in known if status in counts]


def _best(cases: pd.DataFrame, rate: str) -> Table | None:
    """Of each mode and world size, the most bandwidth and the least latency, and the cases that had them.

    Where there are large messages, the bandwidth is theirs: small ones fit into a queue and seem faster than the link.
    Latency is of small messages alone.
    """
    busbw, latency = METRICS["busbw"].column(rate=rate), METRICS["latency"].column()
    rows = []
    for (mode, world_size), group in cases[cases["status"] == "ok"].groupby(["mode", "world_size"], sort=False):
        row = {"mode": str(mode), "N": str(world_size)}
        known = group.to_dict("records")
        large = [case for case in known if case["tensor_bytes"] >= _LARGE_BYTES] or known
        if group[busbw].notna().any():
            most = max(large, key=lambda case: case[busbw])
            row |= {f"most bus bandwidth ({rate})": f"{most[busbw]:.3g}", "with": _what(most)}
        small = [case for case in known if case["tensor_bytes"] <= _SMALL_BYTES]
        if small:
            least = min(small, key=lambda case: case[latency])
            row |= {"least latency": about_seconds(least[latency] / 1e6), "with ": _what(least)}
        rows.append(row)
    return Table.of(rows) if rows else None


def _what(case: Mapping[Any, Any]) -> str:
    parts = [case["backend"], f"K={streams_text(case['streams'])}", format_bytes(case["tensor_bytes"]), case["variant"]]
    return ", ".join(str(part) for part in parts if part)


def _verdicts(cases: pd.DataFrame) -> Table | None:
    """What makes cases doubtful or sets their limit."""
    rows = [
        {
            "verdict": verdict.name,
            "mark": verdict.mark,
            "cases": str(number),
            "first of them": case_id,
            "advice": advice,
        }
        for verdict, number, case_id, advice in found_verdicts(cases)
    ]
    return Table.of(rows) if rows else None


def _explained(run: Run) -> Table | None:
    """The mechanisms behind all_gather, where the run measured what it takes to tell them apart."""
    from netbench.explain.report import explain

    with suppress(UsageError):
        return Table.of(
            [
                {
                    "mechanism": verdict.mechanism,
                    "verdict": str(verdict.outcome),
                    "share of the lost time": "" if verdict.share is None else f"{verdict.share.value:.0%}",
                    "finding": verdict.finding,
                }
                for verdict in explain(run).verdicts
            ]
        )
    return None


def _predictions(run: Run) -> Predictions | None:
    with suppress(UsageError):
        return Predictions.of(run)
    return None


def _sections(run: Run, rate: str) -> tuple[list[Section], list[Picture]]:
    """A section for each mode, and the pictures that belong to none."""
    numbers = main_numbers(run, rate)
    modes = [] if numbers.empty else list(numbers["mode"].unique())
    of_mode: dict[str, list[Picture]] = {mode: [] for mode in modes}
    others: list[Picture] = []
    places = count()
    for name, figure in draw(run, rate):
        picture = Picture(name, _inline(image(figure, "svg").decode(), next(places)))
        mode = next((part for part in name.split("-")[1:2] if part in of_mode), None)
        (others if mode is None else of_mode[mode]).append(picture)
    return [Section(mode, of_mode[mode], _numbers(numbers, mode)) for mode in modes], others


def _numbers(numbers: pd.DataFrame, mode: str) -> Table:
    rows = numbers[numbers["mode"] == mode].drop(columns=["mode"])
    return Table.of([{str(name): str(text) for name, text in row.items()} for row in rows.to_dict("records")])


def _inline(svg: str, place: int) -> str:
    """An SVG file as an element of a page, where the names of several must not meet."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>f{place}-", svg)
    # A millionth of a point is nobody's business, and half of the file.
    return re.sub(r"(\.\d\d)\d+", r"\1", svg)


def _environment(hosts: Sequence[Mapping[str, Any]]) -> Table | None:
    """One row a fact; one column where all hosts agree on everything, else one a host."""
    if not hosts:
        return None
    facts = [dict(_flat(host)) for host in hosts]
    names = list(dict.fromkeys(name for one in facts for name in one))
    rows = [[name, *(one.get(name, "") for one in facts)] for name in names]
    return Table(["", *(str(host.get("host", place)) for place, host in enumerate(hosts))], rows)


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        yield name, ", ".join(map(str, value))
    elif value is not None:
        yield name, str(value)


def _setup(run: Run) -> Table:
    """What was asked for, and over what."""
    manifest = run.manifest
    rows = [["command", " ".join(manifest.command)], ["netbench", manifest.netbench]]
    if manifest.source is not None:
        rows += [[f"source: {name}", text] for name, text in _flat(manifest.source.model_dump()) if text]
    if manifest.lab is not None:
        rows += [[f"lab: {name}", text] for name, text in _flat(manifest.lab.model_dump())]
    rows += [[name, text] for name, text in _flat(manifest.config) if text]
    return Table(["", "value"], rows)
