"""Cases set against each other: streams against one stream, two ranks against more.

Each takes a run's summaries and returns a table; only cases that are ok are compared.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from netbench.statistics import Nanoseconds, estimate

#: Everything that two cases must have in common before their stream counts are compared.
_SAME_BUT_STREAMS = ["mode", "backend", "world_size", "variant", "tensor_bytes"]

#: A ratio above this is no accident of how the cases were measured.
SURELY_SLOWER = 1.1

#: How far two transmit bytes may differ and still count as equal: sizes are rounded to whole elements.
_EQUAL = 0.01


def speedups(cases: pd.DataFrame) -> pd.DataFrame:
    """How much faster each case is than the same with one stream: column ``speedup``, the ratio of their times.

    The one stream is that of the same backend, or plain gloo's where that was not measured; cases with neither are
    left out. ``clear`` tells whether the two 95 % intervals are apart, which is false where there are none.
    """
    cases = cases[cases["status"] == "ok"]
    one = cases[cases["streams"] == 1]
    pieces = []
    for backend, group in cases.groupby("backend", sort=False):
        bases = one[one["backend"].isin(["gloo", backend])]
        # Plain gloo first, so that the backend's own one stream comes last and is the one that is kept.
        bases = bases.assign(own=bases["backend"] == backend).sort_values("own", kind="stable").assign(backend=backend)
        bases = bases.drop_duplicates(_SAME_BUT_STREAMS, keep="last")
        columns = [*_SAME_BUT_STREAMS, "median_ns", "low_ns", "high_ns"]
        pieces.append(group.merge(bases[columns], on=_SAME_BUT_STREAMS, suffixes=("", "_of_one")))
    if not pieces:
        return cases.assign(speedup=np.nan, clear=False)
    table = pd.concat(pieces, ignore_index=True)
    apart = (table["high_ns"] < table["low_ns_of_one"]) | (table["low_ns"] > table["high_ns_of_one"])
    return table.assign(speedup=table["median_ns_of_one"] / table["median_ns"], clear=apart)


def best_streams(cases: pd.DataFrame) -> pd.DataFrame:
    """The fastest stream count of each mode, backend, world size, variant and size, among at least two measured.

    Rows of ``speedups``, so with ``speedup`` and ``clear``.
    """
    table = speedups(cases)
    counts = table.groupby(_SAME_BUT_STREAMS)["streams"].transform("nunique")
    table = table[counts >= 2]
    return table.loc[table.groupby(_SAME_BUT_STREAMS, sort=False)["median_ns"].idxmin()]


def two_against_more(cases: pd.DataFrame, times: Callable[[str], Nanoseconds] | None = None) -> pd.DataFrame:
    """Time of two ranks over the median time of three and more, at equal transmit bytes (within 1 %).

    ``cases`` are of one mode, backend, stream count and variant; ``times`` gives a case's headline times by its id.
    Columns ``transmit_bytes``, ``ratio``, its 95 % interval ``low`` and ``high`` (null without ``times``, or with too
    few of them), ``world_sizes``, how many larger world sizes were measured there, ``case_id`` of the two ranks and
    ``more_ns``, the time of the others; sizes with none are left out.
    """
    cases = cases[(cases["status"] == "ok") & (cases["transmit_bytes"] > 0)]
    cases = cases[["case_id", "world_size", "transmit_bytes", "median_ns"]].astype({"transmit_bytes": "float64"})
    cases = cases.sort_values("transmit_bytes")
    two = cases[cases["world_size"] == 2].reset_index(drop=True)
    found = {}
    ids: list[pd.Series[str]] = [two["case_id"]]
    for world_size, more in cases[cases["world_size"] >= 3].groupby("world_size"):
        near = pd.merge_asof(
            two, more.assign(near_bytes=more["transmit_bytes"]), on="transmit_bytes", direction="nearest"
        )
        off = (near["near_bytes"] - near["transmit_bytes"]).abs() / near["transmit_bytes"]
        found[world_size] = near["median_ns_y"].where(off <= _EQUAL)
        ids.append(near["case_id_y"].where(off <= _EQUAL))
    times_ns = pd.DataFrame(found, index=two.index, dtype="float64")
    table = pd.DataFrame(
        {
            "transmit_bytes": two["transmit_bytes"].astype("int64"),
            "case_id": two["case_id"],
            "more_ns": times_ns.median(axis=1),
            "ratio": two["median_ns"] / times_ns.median(axis=1),
            "world_sizes": times_ns.notna().sum(axis=1),
            "low": np.nan,
            "high": np.nan,
        }
    )
    table = table[table["world_sizes"] > 0]
    if times is not None:
        ends = []
        for row in table.index:
            case_ids = [column[row] for column in ids if isinstance(column[row], str)]
            ratio = estimate(
                lambda two, *more: two / np.median(np.stack(more), axis=0), *(times(case_id) for case_id in case_ids)
            )
            ends.append((ratio.low, ratio.high))
        table[["low", "high"]] = np.array(ends, dtype="float64").reshape(-1, 2)
    return table.reset_index(drop=True)


def onset_bytes(ratios: pd.DataFrame) -> int | None:
    """The smallest T from which on two ranks are surely slower, by ``two_against_more``; None if there is none.

    Surely: at this and every larger size all of the ratio's interval is above 1.1.
    """
    slower = ratios.sort_values("transmit_bytes", ascending=False)
    slower = slower[(slower["low"] > SURELY_SLOWER).cummin()]
    return int(slower["transmit_bytes"].min()) if len(slower) else None
