"""nccl-tests: its tables, and its JSON (-J)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from netbench.importers.tool import Findings, Given, Misread, elements, exact_case, number, objects, strict_json
from netbench.model import DTYPES
from netbench.modes import MODES
from netbench.quotes import Quote

_MODES = {
    "all_gather": "all_gather",
    "all_reduce": "allreduce",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "reduce_scatter": "reduce_scatter",
}

_DTYPES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "bfloat16": "bfloat16",
    "int8": "int8",
    "uint8": "uint8",
    "int32": "int32",
    "int64": "int64",
}

#: Rates are printed to two decimals and times to about four digits.
_ROUNDING, _DIGITS = 0.006, 0.01

#: Statistics over the iterations, where -J has them: our name, theirs.
_PER_ITERATION = {
    "mean_ns": "avg_us",
    "min_ns": "min_us",
    "median_ns": "p50_us",
    "p95_ns": "p95_us",
    "p99_ns": "p99_us",
    "max_ns": "max_us",
}


class NcclTests:
    """nccl-tests, text or JSON: S, time and wrong elements; out of place, or in place if asked for."""

    name = "nccl-tests"

    def recognises(self, text: str) -> bool:
        if text.lstrip().startswith("{"):
            return '"nccl_version"' in text or '"out_of_place"' in text
        return re.search(r"^#.*\balgbw\b.*\bbusbw\b", text, re.MULTILINE) is not None

    def read(self, text: str, given: Given) -> Findings:
        return _read_json(text, given) if text.lstrip().startswith("{") else _read_text(text, given)


def _read_json(text: str, given: Given) -> Findings:
    document = strict_json(text)
    if not isinstance(document, dict):
        raise Misread(1, "is no object")
    devices, args = objects(document.get("devices")), document.get("args")
    args = [str(arg) for arg in args] if isinstance(args, list) else []
    world = given.the_world_size(len({str(device.get("rank")) for device in devices}) or None)
    mode = _mode(given, " ".join(args))
    place = "in_place" if given.in_place else "out_of_place"
    quotes = []
    for line, result in elements(text, "results"):
        if not isinstance(result, dict):
            raise Misread(line, "a result is no object")
        measured = result.get(place)
        if measured is None:
            continue
        if not isinstance(measured, dict) or "time" not in measured:
            raise Misread(line, f"{place} has no time of the operation (a time of the CPU says nothing of the network)")
        known = {name: result.get(name) for name in ("size", "count", "type")} | measured
        detail = result.get(f"{place}_per_iter")
        statistics = {
            ours: 1000 * number(line, theirs, detail[theirs])
            for ours, theirs in _PER_ITERATION.items()
            if isinstance(detail, dict) and detail.get(theirs) not in (None, "nan")
        }
        iterations = result.get("actual_iterations")
        if iterations is None:
            iterations = _iterations(" ".join(args), r"(?:^| )(?:-n|--iters)[ =](\d+)")
        else:
            iterations = int(number(line, "actual_iterations", iterations))
        quotes.append(_quote(line, mode, world, known, iterations, statistics))
    started = document.get("start_time")
    return Findings(
        _some(quotes, place),
        "mean over the iterations and ranks (median where it is given)",
        version=f"NCCL {document['nccl_version']}" if document.get("nccl_version") else "",
        started_at=_when(started),
        hosts=list(dict.fromkeys(str(device["hostname"]) for device in devices if device.get("hostname"))),
    )


def _read_text(text: str, given: Given) -> Findings:
    comments = "\n".join(line for line in text.splitlines() if not re.match(r"\s*\d", line))
    world = given.the_world_size(len(re.findall(r"^#\s*Rank\s+\d+ ", comments, re.MULTILINE)) or None)
    mode = _mode(given, comments)
    iterations = _iterations(comments, r"(?<!warmup )(?<!agg )\biters: (\d+)")
    version = re.search(r"NCCL version (\S+)", comments)
    columns: list[str] = []
    quotes = []
    for line, row in enumerate(text.splitlines(), start=1):
        words = row.lstrip("# ").split()
        if words[:1] == ["size"] and "algbw" in words:
            columns = words
        elif re.match(r"\s*\d", row):
            if not columns:
                raise Misread(line, "has no heading above it (size, count, type, ..., time, algbw, busbw)")
            quotes.append(_quote(line, mode, world, _named(line, columns, words, given.in_place), iterations, {}))
    return Findings(
        _some(quotes, "in_place" if given.in_place else "out_of_place"),
        "mean over the iterations and ranks",
        version=f"NCCL {version[1]}" if version else "",
        hosts=list(dict.fromkeys(re.findall(r"^#\s*Rank\s+\d+ .*?\bon\s+(\S+) device", comments, re.MULTILINE))),
    )


def _named(line: int, columns: Sequence[str], words: Sequence[str], in_place: bool) -> dict[str, str | None]:
    """A row by the names that -J has; what is in place stands in the second half, under the same headings."""
    if len(words) != len(columns):
        raise Misread(line, f"has {len(words)} columns, its heading has {len(columns)}")
    halves = [place for place, name in enumerate(columns) if name == "time"]
    if not halves:
        raise Misread(line, "has no time of the operation")
    first = halves[-1] if in_place else halves[0]
    pairs = list(zip(columns, words, strict=True))
    row = dict(pairs[: halves[0]] + pairs[first : first + 4])
    names = {"time": "time", "algbw": "alg_bw", "busbw": "bus_bw", "#wrong": "nwrong"}
    return {names.get(name, name): text for name, text in row.items()}


def _quote(
    line: int,
    mode: str,
    world: int,
    known: Mapping[str, Any],
    iterations: int | None,
    statistics: Mapping[str, float],
) -> Quote:
    """One row, after its own numbers have been held against each other."""
    size = int(number(line, "size", known.get("size")))
    time_us = number(line, "time", known["time"])
    if (told := str(known.get("type"))) not in _DTYPES:
        raise Misread(line, f"type {told!r} is none of {', '.join(_DTYPES)}")
    dtype = _DTYPES[told]
    if size == 0 or time_us == 0:
        raise Misread(line, f"size {size} in {time_us:g} us is no measurement")
    elements_told = int(number(line, "count", known.get("count"))) * DTYPES[dtype]
    if size not in (elements_told, elements_told * world):
        raise Misread(
            line, f"size {size} is neither {known.get('count')} elements of {known['type']} nor {world} times that"
        )
    rate = size / time_us / 1000
    _agree(line, "algbw", known.get("alg_bw"), rate, "size / time")
    bus = f"algbw times the bus factor of {mode} between {world} ranks; are both right?"
    _agree(line, "busbw", known.get("bus_bw"), rate * float(MODES[mode].bus_factor(world)), bus)
    ratio = MODES[mode].message_ratio(world)
    wrong = None if known.get("nwrong") in (None, "N/A") else int(number(line, "#wrong", known["nwrong"]))
    numbers: dict[str, Any] = {"mean_ns": 1000 * time_us, **statistics}
    case = exact_case(line, mode, "nccl", 1, world, dtype, int(size / ratio))
    return Quote(case=case, iterations=iterations, wrong_elements=wrong, **numbers)


def _agree(line: int, name: str, told: Any, expected: float, what: str) -> None:
    if told in (None, "nan"):
        return
    rate = number(line, name, told)
    if abs(rate - expected) > _ROUNDING + _DIGITS * expected:
        raise Misread(line, f"{name} is {rate:g} GB/s, but {expected:.4g} GB/s is {what}")


def _mode(given: Given, words: str) -> str:
    """From the name of the program, such as all_reduce_perf."""
    program = re.search(r"\b(\w+)_perf\b", words)
    if program is None:
        return given.the_mode()
    if program[1] not in _MODES:
        raise Misread(1, f"{program[0]} is none of those that netbench has: {', '.join(_MODES)}")
    return given.the_mode(_MODES[program[1]])


def _iterations(words: str, pattern: str) -> int | None:
    found = re.search(pattern, words)
    return int(found[1]) if found else None


def _some(quotes: list[Quote], place: str) -> list[Quote]:
    if not quotes:
        raise Misread(1, f"has no {place.replace('_', ' ')} results")
    return quotes


def _when(text: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else None
