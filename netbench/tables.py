"""What ``netbench show`` and ``netbench runs`` print: one function a format, each writing runs to a stream.

pandas and rich are imported when something is printed, so that the names of the formats cost nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

from netbench.errors import RecordError
from netbench.foreign import printable
from netbench.metrics import DEFAULT_RATE, METRICS
from netbench.model import DTYPES, streams_text
from netbench.record import write_atomically
from netbench.registry import Registry, one_line
from netbench.units import about_bytes, about_seconds, format_bytes, three_digits
from netbench.verdicts import SEPARATOR, VERDICTS, Verdict

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console
    from rich.table import Table

    from netbench.summary import Run

_Write = Callable[["Sequence[Run]", str, TextIO], None]

#: Cases that were never started, which the tables for people count by their reason instead of listing them.
_ABSENT = ("skipped", "missing")

_STYLES = {"ok": "", "wrong": "bold red", "failed": "red", "damaged": "red"}

#: Columns of the tables for people that hold words, and those given up first where the terminal is narrow.
_WORDS = ("mode", "backend", "dtype", "variant", "verdicts", "status")
_DISPENSABLE = ("S", "T", "dtype", "iterations", "traffic", "from", "to", "algbw", "spread")


class Format:
    """``write(runs, rate, file)`` prints the cases of ``runs``; ``rate`` is one of metrics.RATES."""

    def __init__(self, name: str, write: _Write) -> None:
        self.name = name
        self.write = write
        self.__doc__ = write.__doc__


FORMATS: Registry[Format] = Registry("format")


def _format(name: str) -> Callable[[_Write], _Write]:
    def add(write: _Write) -> _Write:
        FORMATS.add(Format(name, write))
        return write

    return add


@_format("table")
def write_table(runs: Sequence[Run], rate: str, file: TextIO) -> None:
    """For people: the main numbers of every case in units that suit, as many as the terminal is wide."""
    console = _console(file)
    for run in runs:
        table = main_numbers(run, rate)
        for column in _DISPENSABLE:
            if _width(table) <= console.width:
                break
            table = table.drop(columns=column, errors="ignore")
        console.print(_drawn(run, table))
        for line in notes_on(run, rate):
            console.print(line, markup=False, highlight=False, style="dim")


@_format("csv")
def write_csv(runs: Sequence[Run], rate: str, file: TextIO) -> None:
    """Every column of every case, comma-separated, under one heading."""
    _cases(runs, rate).to_csv(file, index=False, lineterminator="\n")


@_format("json")
def write_json(runs: Sequence[Run], rate: str, file: TextIO) -> None:
    """Every column of every case, as a list of objects; what is unknown is null."""
    json.dump(_plain(_cases(runs, rate)), file, indent=1, allow_nan=False)
    file.write("\n")


@_format("jsonl")
def write_jsonl(runs: Sequence[Run], rate: str, file: TextIO) -> None:
    """The objects of json, one a line: for jq, logs and data bases."""
    for case in _plain(_cases(runs, rate)):
        file.write(json.dumps(case, allow_nan=False) + "\n")


@_format("prometheus")
def write_prometheus(runs: Sequence[Run], rate: str, file: TextIO) -> None:
    """Every metric of every case for the node exporter's textfile collector, in seconds and bytes whatever the rate."""
    from prometheus_client import CollectorRegistry, Gauge, generate_latest

    registry = CollectorRegistry()
    labels = ["run", "mode", "backend", "streams", "world_size", "tensor_bytes", "transmit_bytes", "dtype", "variant"]
    gauges = {
        metric.name: Gauge(f"netbench_{metric.name}{metric.unit().si}", one_line(metric), labels, registry=registry)
        for metric in METRICS.values()
    }
    states = Gauge("netbench_cases", "Cases of a run by what became of them.", ["run", "status"], registry=registry)
    judged = Gauge("netbench_verdict", "1 for each verdict on a case.", [*labels, "verdict"], registry=registry)
    begun = Gauge("netbench_started_timestamp_seconds", "When the run began.", ["run"], registry=registry)
    for run in runs:
        begun.labels(run.id).set(run.manifest.started_at.timestamp())
        cases = run.summaries()
        for status, count in cases["status"].value_counts().items():
            states.labels(run.id, status).set(count)
        cases = cases[cases["status"] == "ok"]
        cases = cases.assign(streams=cases["streams"].map(streams_text))
        for case in cases.to_dict("records"):
            for name in filter(None, (case["verdicts"] or "").split(", ")):
                judged.labels(run.id, *(case[label] for label in labels[1:]), name).set(1)
        marks = [(run.id, *row) for row in cases[labels[1:]].itertuples(index=False)]
        for metric in METRICS.values():
            for mark, value in zip(marks, metric(cases, cases["median_ns"] / 1e9), strict=True):
                if value == value:  # what is unknown is left out
                    gauges[metric.name].labels(*mark).set(value)
    file.write(generate_latest(registry).decode())


@_format("markdown")
def write_markdown(runs: Sequence[Run], rate: str, file: TextIO) -> None:
    """The main numbers of every case as a Markdown table a run, to paste into an issue."""
    for run in runs:
        table = main_numbers(run, rate)
        rules = ["---" if name in _WORDS else "---:" for name in table]
        lines: list[list[str]] = [[*map(str, table)], rules, *table.to_numpy().tolist()]
        body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        notes = "\n".join(f"* {line}" for line in notes_on(run, rate))
        file.write(f"**{title_of(run)}**\n\n{body}\n\n{notes}\n\n")


@_format("torchft")
def write_torchft(runs: Sequence[Run], rate: str, file: TextIO) -> None:
    """The lines of torchft's pull request 199, with its arithmetic: Gbit/s of the tensor a rank passes in."""
    for run in runs:
        cases = run.summaries()
        cases = cases[cases["status"] == "ok"]
        for (mode, backend, world_size, dtype, variant), group in cases.groupby(
            ["mode", "backend", "world_size", "dtype", "variant"], sort=False
        ):
            host = ",".join(run.hosts)
            file.write(f"# {mode=!s} {backend=!s} {world_size=} {dtype=!s} {variant=!s} {host=!s} run={run.id}\n\n")
            for streams in sorted(group["streams"].unique()):
                lines = group[group["streams"] == streams]
                file.write(f"count={streams_text(streams)}\n\n")
                for case in lines.sort_values("tensor_bytes").to_dict("records"):
                    file.write(_torchft_line(case) + "\n")
                file.write("\n")
        for note in _verdict_notes(cases):
            file.write(f"# {note}\n")


def _torchft_line(case: dict[Any, Any]) -> str:
    transport, device = ("NCCL", "cuda") if case["backend"] == "nccl" else ("TCP", "cpu")
    iters, nelem = case["iterations"], case["tensor_bytes"] // DTYPES[case["dtype"]]
    qps = 1e9 / case["mean_ns"]  # iterations over the sum of their times
    gb = case["tensor_bytes"] / 1e9
    bandwidth_gbps = qps * gb * 8
    return f"{transport=} {device=} {iters=} {nelem=} {qps=} {gb=} {bandwidth_gbps=}"


def rank_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One row for each rank of each finished case: its host, its wire counters, its clock, its share of the machine."""
    return [{"run_id": run.id, **row} for run in runs for row in _plain(run.ranks())]


def rank_texts(row: Mapping[str, Any]) -> dict[str, str]:
    """The main ones of a rank's facts for people."""

    def shown(name: str, show: Callable[[Any], str] = str) -> str:
        return _shown(row.get(name), show)

    cpu, window = row.get("own_cpu_ns"), row.get("window_ns")
    return {
        "case": row["case_id"],
        "rank": shown("rank"),
        "host": shown("host"),
        "sent": shown("wire_sent_bytes", about_bytes),
        "received": shown("wire_received_bytes", about_bytes),
        "retransmits": shown("retransmits"),
        "rtt": shown("rtt_us", lambda us: about_seconds(us / 1e6)),
        "least rtt": shown("least_rtt_us", lambda us: about_seconds(us / 1e6)),
        "cwnd": shown("congestion_window"),
        "control": shown("congestion_control"),
        "CPUs": f"{cpu / window:.2f}" if cpu is not None and window else "",
        "clock": shown("clock_offset_ns", lambda ns: f"{ns / 1e3:+.0f} us" if ns else "same"),
    }


def runs_table(paths: Iterable[Path]) -> tuple[Table, list[Path]]:
    """One row a run: when, what became of it, how many cases are measured, and which question it answers.

    Reads no samples. A run that cannot be read is a row that says why, and is named once more beside the table.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from netbench.summary import load_run

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("date (UTC)", "run", "status", "cases", "question"):
        table.add_column(heading, justify="right" if heading == "cases" else "left", overflow="fold")
    unreadable = []
    for path in paths:
        shown = printable(str(path))
        try:
            run = load_run(path)
            manifest = run.manifest
            done = len(run.done & {case.id for case in manifest.cases})
        except RecordError as error:
            unreadable.append(path)
            table.add_row("", Text(shown), Text("unreadable", "red"), "", Text(printable(str(error))))
            continue
        table.add_row(
            f"{manifest.started_at:%Y-%m-%d %H:%M}",
            Text(shown),
            Text(run.status, "" if run.status == "finished" else "yellow"),
            f"{done}/{len(manifest.cases)}",
            Text(manifest.question),
        )
    return table, unreadable


def write_runs(paths: Iterable[Path], file: TextIO) -> None:
    """Prints ``runs_table``. Raises RecordError afterwards where a run cannot be read."""
    table, unreadable = runs_table(paths)
    _console(file).print(table)
    file.flush()
    if unreadable:
        raise RecordError(f"{len(unreadable)} of these runs cannot be read: {', '.join(map(str, unreadable[:3]))}")


def summary_csv(run: Run, rate: str = DEFAULT_RATE) -> str:
    """The text of a run's ``summary.csv``: every column of every case."""
    text: str = _cases([run], rate).to_csv(index=False, lineterminator="\n")
    return text


def write_summary(run: Run) -> Path:
    """Puts ``summary.csv`` into the run's folder. Raises StorageError."""
    path = run.folder.path / "summary.csv"
    write_atomically(path, summary_csv(run).encode())
    return path


def _console(file: TextIO) -> Console:
    from rich.console import Console

    # In a pipe there is no width to fit, and lines must not be cut.
    return Console(file=file) if file.isatty() else Console(file=file, width=400)


def _cases(runs: Sequence[Run], rate: str) -> pd.DataFrame:
    import pandas as pd

    tables = []
    for run in runs:
        table = run.summaries(rate)
        table.insert(0, "run_id", run.id)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def _plain(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of Python's own types, None for whatever is unknown."""
    known = table.notna()
    return [
        {str(name): value if there else None for (name, value), there in zip(row.items(), mask, strict=True)}
        for row, mask in zip(table.astype(object).to_dict("records"), known.to_numpy(), strict=True)
    ]


def title_of(run: Run) -> str:
    ending = "" if run.status == "finished" else f" ({run.status})"
    question = f": {run.manifest.question}" if run.manifest.question else ""
    return f"{run.id}{ending}{question}"


def notes_on(run: Run, rate: str) -> list[str]:
    """What a reader of the main numbers has to know, and why some cases are not among them."""
    cases = run.summaries()
    absent = cases[cases["status"].isin(_ABSENT)].groupby(["status", "reason"], sort=False).size()
    source = run.manifest.source
    if source is None:
        where = f"hosts: {', '.join(run.hosts) or 'none'}; over {run.network or 'nothing yet'}"
        time = "median of the slowest rank's times; from, to: its 95 % interval"
    else:
        hosts = f"; hosts: {', '.join(source.hosts)}" if source.hosts else ""
        where = f"{run.status} from {' '.join([source.tool, source.version]).strip()}, {source.place}{hosts}"
        time = source.time
    return [
        where,
        f"algbw, busbw: {rate}; traffic: bytes on the wire over T",
        f"time: {time}; spread: (p75 - p25) / median",
        *([f"ceiling: busbw over {run.ceiling}"] if run.ceiling else []),
        *_verdict_notes(cases),
        *(f"{count} {key[0]}: {key[1]}" for key, count in absent.items() if isinstance(key, tuple)),
    ]


def _verdict_notes(cases: pd.DataFrame) -> list[str]:
    """A line for each verdict that there is: its mark and name, on how many cases, and the advice on the first."""
    return [
        f"{verdict.mark}: {verdict.name}, {count} case{'s' if count > 1 else ''}; {case_id}: {advice}"
        for verdict, count, case_id, advice in found_verdicts(cases)
    ]


def found_verdicts(cases: pd.DataFrame) -> Iterator[tuple[Verdict, int, str, str]]:
    """Each verdict that there is, on how many cases, the first of them, and the advice on that."""
    judged = cases.loc[[isinstance(names, str) and names != "" for names in cases["verdicts"]]]
    for verdict in VERDICTS.values():
        named = judged.loc[[verdict.name in names.split(", ") for names in judged["verdicts"]]]
        if len(named):
            first = named.iloc[0]
            advice = dict(piece.split(": ", 1) for piece in first["advice"].split(SEPARATOR))[verdict.name]
            yield verdict, len(named), first["case_id"], advice


def main_numbers(run: Run, rate: str) -> pd.DataFrame:
    """A table of texts: one row for each case that was started."""
    import pandas as pd

    cases = [case for case in _plain(run.summaries(rate)) if case["status"] not in _ABSENT]
    table = pd.DataFrame([_main_row(case, rate) for case in cases])
    empty = [name for name in ("variant", "ceiling", "verdicts") if name in table and not any(table[name])]
    return table.drop(columns=empty)


def _main_row(case: dict[str, Any], rate: str) -> dict[str, str]:
    def bandwidth(metric: str) -> str:
        return _shown(case[METRICS[metric].column(rate=rate)], three_digits)

    def seconds(name: str) -> str:
        return _shown(case[name], lambda ns: about_seconds(ns / 1e9))

    return {
        "mode": case["mode"],
        "backend": case["backend"],
        "N": str(case["world_size"]),
        "K": streams_text(case["streams"]),
        "dtype": case["dtype"],
        "variant": case["variant"],
        "tensor": format_bytes(case["tensor_bytes"]),
        "S": about_bytes(case["message_bytes"]),
        "T": about_bytes(case["transmit_bytes"]),
        "iterations": _shown(case["iterations"], str),
        "time": seconds("median_ns"),
        "from": seconds("low_ns"),
        "to": seconds("high_ns"),
        "algbw": bandwidth("algbw"),
        "busbw": bandwidth("busbw"),
        "spread": _shown(case["spread"], lambda ratio: f"{ratio:.0%}"),
        "traffic": _shown(case["traffic_ratio"], lambda ratio: f"{ratio:.2f}"),
        "ceiling": _shown(case["ceiling_share"], lambda share: f"{share:.0%}"),
        "verdicts": "".join(VERDICTS[name].mark for name in (case["verdicts"] or "").split(", ") if name),
        "status": case["status"] if case["reason"] is None else f"{case['status']}: {case['reason']}",
    }


def _width(table: pd.DataFrame) -> int:
    """Columns of a terminal that the table takes, with room for a short status; a longer one is folded."""
    return sum(max(map(len, [str(name), *table[name]])) + 2 for name in table if name != "status") + 10


def _drawn(run: Run, table: pd.DataFrame) -> Table:
    """The main numbers for a terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    drawn = Table(
        title=Text(title_of(run)),
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for name in map(str, table):
        justify: Literal["left", "right"] = "left" if name in _WORDS else "right"
        drawn.add_column(name, justify=justify, no_wrap=name != "status", overflow="fold")
    for row in table.to_numpy().tolist():
        drawn.add_row(*map(Text, row), style=_STYLES[row[-1].split(":")[0]])
    return drawn


def _shown(value: Any, show: Callable[[Any], str]) -> str:
    return "" if value is None else show(value)
