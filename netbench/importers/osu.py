"""The text output of the OSU micro-benchmarks."""

from __future__ import annotations

import re
from dataclasses import dataclass

from netbench.importers.tool import Findings, Given, Misread, exact_case, number
from netbench.modes import MODES
from netbench.quotes import Quote


@dataclass(frozen=True)
class _Test:
    """One of its programs: our mode, its datatype if it tells none, and the number that it prints.

    ``times`` is how often a printed latency fits into t; ``bytes`` how often a printed size has passed in t where a
    rate is printed.
    """

    mode: str
    dtype: str = "int8"
    times: int = 1
    bytes: int = 1


_TESTS = {
    "Latency": _Test("send_recv", times=2),  # half of a round trip
    "Bandwidth": _Test("send"),
    "Bi-Directional Bandwidth": _Test("exchange", bytes=2),
    "Allgather Latency": _Test("all_gather"),
    "Allreduce Latency": _Test("allreduce", "float32"),
    "Broadcast Latency": _Test("broadcast"),
    "Reduce_scatter Latency": _Test("reduce_scatter", "float32"),
    "All-to-All Personalized Exchange Latency": _Test("all_to_all"),
}

_DTYPES = {"MPI_CHAR": "int8", "MPI_INT": "int32", "MPI_FLOAT": "float32"}

_TITLE = re.compile(r"# OSU MPI\S* (.+) Test v(\S+)")


class Osu:
    """OSU micro-benchmarks, text: latencies in us and rates in MB/s (10^6), between ranks of MPI."""

    name = "osu"

    def recognises(self, text: str) -> bool:
        return _TITLE.search(text) is not None

    def read(self, text: str, given: Given) -> Findings:
        lines = text.splitlines()
        titles = [(line, title) for line, row in enumerate(lines, start=1) if (title := _TITLE.match(row))]
        if not titles:
            raise Misread(1, "has no title (# OSU MPI ... Test v...)")
        if len(titles) > 1:
            raise Misread(titles[1][0], "begins a second test; put each into a file of its own")
        line, title = titles[0]
        if title[1] not in _TESTS:
            raise Misread(line, f"{title[1]} is none of those that netbench has: {', '.join(_TESTS)}")
        test = _TESTS[title[1]]
        mode = given.the_mode(test.mode)
        world = given.the_world_size(2 if MODES[mode].pairwise else None)
        dtype, columns, quotes = test.dtype, [], []
        for line, row in enumerate(lines, start=1):
            if named := re.match(r"# Datatype: (\w+)", row):
                if named[1] not in _DTYPES:
                    raise Misread(line, f"datatype {named[1]} is none of {', '.join(_DTYPES)}")
                dtype = _DTYPES[named[1]]
            elif row.startswith("# Size"):
                columns = re.split(r"\s{2,}", row.removeprefix("# ").strip())
                if columns[0] != "Size":
                    raise Misread(line, f"its first column is {columns[0]}, not Size")
            elif row.strip() and not row.startswith("#"):
                values = row.split()
                if len(values) != len(columns):
                    raise Misread(line, f"has {len(values)} columns, its heading has {len(columns)}")
                named_values = {name: number(line, name, value) for name, value in zip(columns, values, strict=True)}
                if named_values["Size"] > 0:  # an empty message is no size of ours
                    quotes.append(_quote(line, test, mode, world, dtype, given.backend or "mpi", named_values))
        if not quotes:
            raise Misread(len(lines), "has no results")
        return Findings(quotes, _meaning(test, columns), version=title[2])


def _quote(line: int, test: _Test, mode: str, world: int, dtype: str, backend: str, values: dict[str, float]) -> Quote:
    size = int(values["Size"])
    if (rate := values.get("Bandwidth (MB/s)")) is not None:
        time_ns = test.bytes * size / rate * 1000 if rate else 0.0
    else:
        latency = next((values[name] for name in _LATENCIES if name in values), None)
        if latency is None:
            raise Misread(line, f"has neither a latency in us nor a bandwidth in MB/s, but {', '.join(values)}")
        time_ns = test.times * latency * 1000
    if time_ns == 0:
        raise Misread(line, f"{size} bytes in no time are no measurement")
    # The size of all_to_all is that of the block for each rank.
    tensor_bytes = size * world if mode == "all_to_all" else size
    iterations = values.get("Iterations")
    return Quote(
        case=exact_case(line, mode, backend, 1, world, dtype, tensor_bytes),
        iterations=int(iterations) if iterations else None,
        mean_ns=time_ns,
    )


#: The slowest rank's mean, as with our own time, where it is printed.
_LATENCIES = ("Max Latency(us)", "Avg Latency(us)", "Latency (us)")


def _meaning(test: _Test, columns: list[str]) -> str:
    if "Max Latency(us)" in columns:
        return "mean over the iterations of the slowest rank"
    if "Avg Latency(us)" in columns:
        return "mean over the iterations and ranks"
    if "Bandwidth (MB/s)" in columns:
        return "that of one message at the rate of many in flight"
    return "mean over the iterations, there and back"
