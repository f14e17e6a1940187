"""Runs as they are read: found on disk, each case reduced to what its samples say, in one table.

The samples are read file by file; what they say is kept, and each iteration's headline time, so memory stays small and
the cost is linear in the rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from netbench import interference, iterations, verdicts
from netbench.ceiling import Ceiling, ceiling
from netbench.errors import RecordError, UsageError
from netbench.helpers import shared
from netbench.interference import Interference, Machine
from netbench.iterations import Findings, Iterations
from netbench.metrics import DEFAULT_RATE, evaluate
from netbench.model import Case
from netbench.modes import participants
from netbench.quotes import Quote, read_quotes
from netbench.record import MEASURED, TIMELINE, Manifest, RunFolder
from netbench.samples import check_integers, one_line, open_file, read_samples
from netbench.statistics import Nanoseconds, Statistics, describe

_CASE_COLUMNS = tuple(field.name for field in fields(Case))

#: Sample columns that are the same in all rows of a file.
_CONSTANT = ("case_id", *_CASE_COLUMNS)

#: Sample files that one process reads at a time, about 0.05 s; and from how many on others help, who need 1 s to start.
_BATCH, _MANY_FILES = 50, 2000

#: Counters of a rank over all timed iterations of a case, and how a case's ranks become one number.
_COUNTERS: Mapping[str, Callable[[list[int]], int]] = {
    "wire_sent_bytes": max,  # the busiest rank's
    "wire_received_bytes": max,
    "retransmits": sum,
}

_INTEGERS = (
    *(name for name in _CASE_COLUMNS if name.endswith("_bytes")),
    "streams",
    "world_size",
    "chunks",
    "entry_delay_us",
    "timeline_us",
    "parts",
    "iterations",
    "wrong_elements",
    *iterations.WHOLE,
    *_COUNTERS,
)


def find_runs(path: Path) -> list[Path]:
    """The run folders at or below ``path``, by name and so by date. Raises UsageError if there are none."""
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder; name a run or a folder of runs, such as results")
    if path.name == "run.json":
        return [path.parent]
    found = []
    for folder, inside, files in os.walk(path):
        if "run.json" in files:
            found.append(Path(folder))
            inside.clear()  # thousands of samples, and no run
    if not found:
        raise UsageError(f"{path}: holds no run (no run.json at or below it); netbench sweep makes one")
    return sorted(found)


def load(path: str | os.PathLike[str]) -> list[Run]:
    """The runs at or below ``path``: a run folder, or any folder of runs. Samples are read when asked for."""
    return [load_run(found) for found in find_runs(Path(path))]


def load_run(path: Path, line_bit_s: float | None = None, silenced: Collection[str] = ()) -> Run:
    """One run, its manifest read and checked. Raises RecordError.

    ``line_bit_s`` is the rate of its link, where the user knows better than the record; ``silenced`` names verdicts
    that are not wanted.
    """
    folder = RunFolder(path)
    return Run(folder, folder.read_manifest(), line_bit_s, silenced)


@dataclass(frozen=True)
class _Reading:
    """What one sample file says."""

    case: Case
    facts: dict[str, Any]
    times_ns: Nanoseconds
    statistics: Statistics
    findings: Findings
    interference: Interference


class Run:
    """A run on disk, read when first asked for. Raises RecordError naming the file that is at fault."""

    def __init__(
        self,
        folder: RunFolder,
        manifest: Manifest,
        line_bit_s: float | None = None,
        silenced: Collection[str] = (),
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self.ceiling: Ceiling | None = ceiling(manifest, line_bit_s)
        self._silenced = silenced
        self._lost_timelines: dict[str, str] = {}

    @property
    def id(self) -> str:
        return self.manifest.run_id

    @property
    def status(self) -> str:
        """The manifest's, except that a run which says "running" and that nobody writes was interrupted."""
        if self.manifest.status == "running" and not self.folder.is_locked():
            return "interrupted"
        return self.manifest.status

    @cached_property
    def hosts(self) -> list[str]:
        """Names of the hosts whose ranks took part, in order of the ranks."""
        if self.manifest.source is not None:
            return self.manifest.source.hosts
        return list(
            dict.fromkeys(
                rank["host"] for reading in self._readings.values() for rank in reading.facts.get("ranks", [])
            )
        )

    @property
    def damage(self) -> list[str]:
        """What of the record cannot be read, each with its file; what the rest says is not touched by it."""
        return [*self.damaged.values(), *self._lost_timelines.values()]

    @cached_property
    def done(self) -> set[str]:
        """Ids of the cases that are finished."""
        return self.folder.finished() | set(self._quotes)

    @property
    def network(self) -> str:
        """Over what the ranks were connected: the lab's description, or else the names of the interfaces.

        Empty where nobody says it, as in a run that is quoted.
        """
        if self.manifest.lab is not None:
            return f"lab {self.manifest.lab.spec}"
        names = dict.fromkeys(reading.facts.get("interface") for reading in self._readings.values())
        return ", ".join(name for name in names if name)

    def facts(self, case_id: str) -> dict[str, Any]:
        """What the workers found out about a finished case as a whole; docs/results-format.md lists it."""
        return self._readings[self._finished(case_id)].facts

    def times(self, case_id: str) -> Nanoseconds:
        """The headline time of each timed iteration of a finished case, in ns, in order."""
        return self._readings[self._finished(case_id)].times_ns

    def iterations(self, case_id: str) -> Iterations:
        """The timed iterations of a finished case, rank by rank."""
        return _samples(self.folder.measured()[self._finished(case_id)])[2]

    def samples(self) -> pd.DataFrame:
        """Every row of every case, warm-up iterations included, with all columns of the record."""
        if not self._readings:
            return pd.DataFrame()
        paths = self.folder.measured()
        tables = [read_samples(paths[case_id], self.id, MEASURED).table for case_id in self._readings]
        # A stranger's file may say how pandas has to read it; here it is only read.
        tables = [table.replace_schema_metadata() for table in tables]
        measured = pa.concat_tables(tables, promote_options="default").unify_dictionaries()
        # What is the same in all rows of a case is cheaper to repeat here than to read.
        rows = [table.num_rows for table in tables]
        cases = [{"case_id": case_id, **vars(reading.case)} for case_id, reading in self._readings.items()]
        constant = pd.DataFrame(cases, columns=list(_CONSTANT))
        constant = constant.astype(dict.fromkeys(constant.select_dtypes(exclude="number"), "category"))
        repeated = constant.loc[np.repeat(np.arange(len(rows)), rows)].reset_index(drop=True)
        parts: list[pd.DataFrame] = [repeated, measured.to_pandas()]
        return pd.concat(parts, axis=1)

    def timeline(self, case_id: str) -> pd.DataFrame:
        """What a case's ranks read from their interfaces' counters, in order of rank and time; empty if none did.

        Empty too where it cannot be read; then ``damage`` tells.
        """
        names = ["rank", *TIMELINE]
        path = self.folder.timeline_file(self._finished(case_id))
        if path.exists():
            try:
                return self._timeline(path, names)
            except RecordError as error:
                self._lost_timelines[case_id] = str(error)
        return pd.DataFrame(columns=names, dtype="int64")

    def _timeline(self, path: Path, names: list[str]) -> pd.DataFrame:
        file = open_file(path)
        try:
            # A stranger's file may say how pandas has to read it; here it is only read.
            read = file.read(names).replace_schema_metadata()
            check_integers(read, names)
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise RecordError(f"{path}: is damaged: {one_line(error)}") from None
        table: pd.DataFrame = read.to_pandas()
        return table

    def ranks(self) -> pd.DataFrame:
        """One row for each rank of each finished case: host, and counters over the timed iterations."""
        rows = [
            {"case_id": case_id, **rank}
            for case_id, reading in self._readings.items()
            for rank in reading.facts.get("ranks", [])
        ]
        columns = dict.fromkeys(["case_id", "rank", "host", *_COUNTERS, "wrong_elements"])
        for row in rows:
            columns |= dict.fromkeys(row)
        return pd.DataFrame(rows, columns=list(columns)).astype(
            dict.fromkeys(("rank", *_COUNTERS, "wrong_elements"), "Int64")
        )

    def summaries(self, rate: str = DEFAULT_RATE) -> pd.DataFrame:
        """One row for each case of the plan, finished or not, in order of the plan.

        ``status`` is ok, wrong, failed, damaged, skipped or missing, with a ``reason`` for all but ok. Only cases that
        are ok have times and metrics. ``rate`` is one of metrics.RATES. ``headline`` names the statistic that stands
        for a case's time: ``median``, or ``mean`` where others measured and tell no median; then ``median_ns`` holds it
        too. ``verdicts`` names what makes a case doubtful or sets its limit, ``advice`` says of each what was found.
        """
        table = self._cases.copy()
        measured = evaluate(table[table["status"] == "ok"], rate)
        position = list(table.columns).index("median_ns")
        # For people the metrics come first, the distribution and the counters that they were made from last.
        return pd.concat([table.iloc[:, :position], measured.reindex(table.index), table.iloc[:, position:]], axis=1)

    def judge(self, row: Mapping[str, Any]) -> dict[str, str]:
        """The verdicts on a case that are not silenced: name -> what was found, and what to do."""
        found = verdicts.judge(row, self._circumstances)
        return {name: advice for name, advice in found.items() if name not in self._silenced}

    @cached_property
    def _readings(self) -> dict[str, _Reading]:
        """Each file of samples that can be read, by case. Raises RecordError where there are some and none can."""
        found = self._files
        whole = {case_id: reading for case_id, reading in found.items() if isinstance(reading, _Reading)}
        if found and not whole:
            raise next(error for error in found.values() if isinstance(error, RecordError))
        return whole

    @cached_property
    def damaged(self) -> dict[str, str]:
        """Why the samples of a case cannot be read, by its id; also of those that a finished run has lost."""
        found = {case_id: str(error) for case_id, error in self._files.items() if isinstance(error, RecordError)}
        if self.manifest.status == "finished" and self.manifest.source is None:
            booked = {failure.case_id for failure in self.manifest.failures}
            booked |= {skip.id for skip in self.manifest.skips} | set(self._files)
            for case in self.manifest.cases:
                if case.id not in booked:
                    found[case.id] = f"{self.folder.sample_file(case.id)}: is gone: the run had finished this case"
        return found

    @cached_property
    def _files(self) -> dict[str, _Reading | RecordError]:
        paths = sorted(self.folder.measured().items())
        files = [path for _, path in paths]
        batches = [files[start : start + _BATCH] for start in range(0, len(files), _BATCH)]
        read = partial(_read_batch, self.id, self.folder.samples, self._circumstances.machines)
        found = chain.from_iterable(shared(read, batches, _MANY_FILES // _BATCH))
        return {case_id: reading for (case_id, _), reading in zip(paths, found, strict=True)}

    @cached_property
    def _circumstances(self) -> verdicts.Circumstances:
        return verdicts.Circumstances(self.manifest, self.ceiling)

    @cached_property
    def _quotes(self) -> dict[str, Quote]:
        return read_quotes(self.folder)

    @cached_property
    def _cases(self) -> pd.DataFrame:
        names = [
            "case_id",
            *_CASE_COLUMNS,
            "variant",
            "status",
            "reason",
            "verdicts",
            "advice",
            "parts",
            "headline",
            *Statistics._fields,
            "wrong_elements",
            *_COUNTERS,
            "stop_reason",
            "clock_error_ns",
            *iterations.NAMES,
            *interference.NAMES,
            "ceiling_bit_s",
        ]
        table = pd.DataFrame([row | self._judged(row) for row in self._rows()], columns=names)
        numbers = (*Statistics._fields, *iterations.NAMES, *interference.NAMES, "clock_error_ns", "ceiling_bit_s")
        floats = {name: "float64" for name in numbers if name not in _INTEGERS}
        return table.astype(dict.fromkeys(_INTEGERS, "Int64") | floats)

    def _judged(self, row: dict[str, Any]) -> dict[str, Any]:
        """What a row gains by the run as a whole."""
        if row["status"] != "ok":
            return {}
        row = row | {"ceiling_bit_s": self.ceiling.payload_bit_s if self.ceiling else None}
        found = self.judge(row)
        return {
            "ceiling_bit_s": row["ceiling_bit_s"],
            "verdicts": ", ".join(found),
            "advice": verdicts.SEPARATOR.join(f"{name}: {advice}" for name, advice in found.items()),
        }

    def _rows(self) -> Iterator[dict[str, Any]]:
        failures = {failure.case_id: failure.reason for failure in self.manifest.failures}
        skips = {skip.id: skip.reason for skip in self.manifest.skips}
        cases = {case.id: case for case in self.manifest.cases}
        cases |= {case_id: reading.case for case_id, reading in self._readings.items() if case_id not in cases}
        unmeasured = "not measured yet" if self.status == "running" else "the run ended before it"
        for case_id, case in cases.items():
            row = {"case_id": case_id, **vars(case), "variant": case.variant}
            if case_id in failures and case_id not in self.done:
                yield row | {"status": "failed", "reason": failures[case_id]}
            elif case_id in self._readings:
                yield row | _findings(self._readings[case_id])
            elif case_id in self._quotes:
                yield row | _quoted(self._quotes[case_id])
            elif case_id in skips:
                yield row | {"status": "skipped", "reason": skips.pop(case_id)}
            elif case_id in self.damaged:
                yield row | {"status": "damaged", "reason": self.damaged[case_id]}
            else:
                yield row | {"status": "missing", "reason": unmeasured}
        for skip_id, reason in skips.items():
            yield {"case_id": skip_id, "status": "skipped", "reason": reason}

    def _finished(self, case_id: str) -> str:
        if case_id in self.damaged:
            raise RecordError(self.damaged[case_id])
        if case_id not in self._readings:
            raise UsageError(f"{case_id!r} is not a measured case of {self.folder.path}")
        return case_id


def _findings(reading: _Reading) -> dict[str, Any]:
    """A finished case's part of its row; without statistics where the data that was moved is wrong."""
    facts = reading.facts
    row: dict[str, Any] = {
        "status": facts.get("status", "ok"),
        "parts": facts.get("parts"),
        "wrong_elements": facts.get("wrong_elements"),
        "stop_reason": facts.get("stop_reason"),
        "clock_error_ns": max((rank.get("clock_error_ns") or 0 for rank in facts.get("ranks", [])), default=None),
    }
    for name, combine in _COUNTERS.items():
        counts = [rank[name] for rank in facts.get("ranks", []) if rank.get(name) is not None]
        row[name] = combine(counts) if counts else None
    if row["status"] == "ok":
        return (
            row
            | {"headline": "median"}
            | reading.statistics._asdict()
            | vars(reading.findings)
            | vars(reading.interference)
        )
    return row | {"reason": _wrong(row["wrong_elements"])}


def _quoted(quote: Quote) -> dict[str, Any]:
    """A quoted case's part of its row."""
    if quote.wrong_elements:
        return {"status": "wrong", "reason": _wrong(quote.wrong_elements), "wrong_elements": quote.wrong_elements}
    return {"status": "ok", "headline": quote.headline} | quote.numbers | {"median_ns": quote.headline_ns}


def _wrong(elements: int) -> str:
    return f"{elements} elements were wrong after the operation"


def _read_batch(
    run_id: str, finished: Path, computers: Mapping[str, Machine], paths: Sequence[Path]
) -> list[_Reading | RecordError]:
    """What each of the sample files of a run says; those of finished cases are in the folder ``finished``."""
    found: list[_Reading | RecordError] = []
    for path in paths:
        try:
            case, facts, measured = _samples(path, run_id)
        except RecordError as error:
            found.append(error)
            continue
        if path.parent != finished:
            facts |= {"stop_reason": "unfinished"}
        times_ns = measured.times_ns
        beside = interference.find(facts.get("ranks", []), computers, len(times_ns))
        found.append(_Reading(case, facts, times_ns, describe(times_ns), iterations.find(measured), beside))
    return found


def _samples(path: Path, run_id: str | None = None) -> tuple[Case, dict[str, Any], Iterations]:
    """A sample file's case, facts and timed iterations; raises RecordError if the file is not whole."""
    case, facts, table = read_samples(path, run_id, iterations.COLUMNS)
    timed = pa.compute.equal(table["phase"].cast(pa.string()), "timed").to_numpy()
    columns = {name: table[name].to_numpy()[timed] for name in table.column_names if name != "phase"}
    if missing := [name for name in ("iteration", "duration_ns") if name not in columns]:
        raise RecordError(f"{path}: is damaged: it has no {missing[0]}")
    count = len(columns["duration_ns"])
    if not count:
        raise RecordError(f"{path}: is empty: it has no timed iteration")
    ranks = len(participants(case.mode, case.world_size, case.pair))
    each = int(np.count_nonzero(columns["rank"] == columns["rank"][0]))
    if count != ranks * each:
        raise RecordError(f"{path}: is damaged: {count} rows for {each} iterations of {ranks} ranks")
    offsets_ns = {rank["rank"]: rank.get("clock_offset_ns") or 0 for rank in facts.get("ranks", [])}
    try:
        return case, facts, Iterations.of(columns, offsets_ns)
    except ValueError as error:
        raise RecordError(f"{path}: is damaged: {error}") from None
