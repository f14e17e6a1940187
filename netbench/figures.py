"""Pictures of a run: one function a figure, the run's cases in, matplotlib figures out.

How they look is page's business. matplotlib is imported when something is drawn, so that the names of the figures cost
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netbench.errors import UsageError
from netbench.helpers import shared
from netbench.metrics import DEFAULT_RATE, METRICS
from netbench.model import streams_text
from netbench.modes import participants
from netbench.page import (
    CEILING,
    MEDIAN_AND_BAND,
    THEMES,
    Material,
    Page,
    drawable,
    groups,
    ink,
    joined,
    make_folder,
    plain_number,
    save,
    styles,
)
from netbench.record import make_own_folder
from netbench.registry import Registry
from netbench.units import about_bytes, about_seconds

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from netbench.statistics import Nanoseconds
    from netbench.summary import Run

#: Messages up to this many bytes are small: their time is latency, not bandwidth.
_SMALL_BYTES = 64 * 1024

#: More than this are an image inside an SVG, which would be megabytes otherwise.
_MANY_DOTS = 2000

#: A helper is ready when four figures have been saved.
_MANY_FIGURES = 12

#: Figures whose lines are backends, so that several runs can share them.
OVERLAID = ("bandwidth",)

_Draw = Callable[[Material], "Iterator[tuple[str, Figure]]"]


class Drawing:
    """``draw(material)`` yields figures, each with the name of its file; none where there is nothing to show."""

    def __init__(self, draw: _Draw) -> None:
        self.name = draw.__name__
        self.draw = draw
        self.__doc__ = draw.__doc__


FIGURES: Registry[Drawing] = Registry("figure")


def _figure(draw: _Draw) -> _Draw:
    FIGURES.add(Drawing(draw))
    return draw


def write_plots(
    runs: Iterable[Run], rate: str = DEFAULT_RATE, names: Collection[str] = FIGURES, theme: str = "print"
) -> list[Path]:
    """Draws the figures of these ``names`` of every run as PNG and SVG into its ``plots``. Raises StorageError.

    Where some of the runs are quoted, the others are also set beside them.
    """
    runs = list(runs)
    quoted = [run for run in runs if run.manifest.source is not None]

    def sheets() -> Iterator[tuple[Figure, Path, str]]:
        for run in runs:
            make_own_folder(run.folder.plots)
            for name, figure in draw(run, rate, names, quoted, theme):
                yield figure, run.folder.plots, name

    saved = shared(partial(_save, theme=theme), sheets(), _MANY_FIGURES)
    return [path for paths in saved for path in paths]


def _save(sheet: tuple[Figure, Path, str], theme: str) -> list[Path]:
    return save(*sheet, theme)


def write_overlay(runs: Sequence[Run], folder: Path, rate: str = DEFAULT_RATE, theme: str = "print") -> list[Path]:
    """Draws several runs into the same axes, as PNG and SVG into ``folder``. Raises StorageError."""
    make_folder(folder)
    return [path for name, figure in draw_overlay(runs, rate, theme) for path in save(figure, folder, name, theme)]


def draw(
    run: Run,
    rate: str = DEFAULT_RATE,
    names: Collection[str] = FIGURES,
    quoted: Sequence[Run] = (),
    theme: str = "print",
) -> Iterator[tuple[str, Figure]]:
    """Every figure of a run with its name, such as ``bandwidth-all_gather``."""
    cases = run.summaries(rate)
    bad = int(cases["status"].isin(["failed", "wrong", "damaged"]).sum())
    material = Material(run, drawable(cases), rate, bad, [one for one in quoted if one is not run])
    yield from _drawn(material, names, theme)


def draw_overlay(runs: Sequence[Run], rate: str = DEFAULT_RATE, theme: str = "print") -> Iterator[tuple[str, Figure]]:
    """Several runs in the same axes, the legend by their names; those figures that set backends side by side."""
    yield from _drawn(Material.overlaid(runs, rate), OVERLAID, theme)


def _drawn(material: Material, names: Iterable[str], theme: str) -> Iterator[tuple[str, Figure]]:
    from matplotlib import rc_context

    for name in names:
        figures = FIGURES[name].draw(material)
        while True:
            # The style holds while a figure is made, and not while its receiver works with it.
            with rc_context(THEMES[theme].style):
                found = next(figures, None)
            if found is None:
                break
            yield found


@_figure
def bandwidth(material: Material) -> Iterator[tuple[str, Figure]]:
    """Bus bandwidth against size: a line for each backend and stream count, a panel for each world size."""
    column = METRICS["busbw"].column(rate=material.rate)
    known = material.cases[material.cases[column].notna()]
    looks = styles(key for key, _ in groups(known, "backend", "streams"))
    for (mode, variant), cases in groups(known, "mode", "variant"):
        page = Page(material, cases, f"{mode}: bandwidth against size", MEDIAN_AND_BAND)
        for axes, panel in page.panels(cases):
            for (backend, streams), line in groups(panel, "backend", "streams"):
                # Quartiles of time are quartiles of bandwidth, the other way round.
                band = [line[column] * line["median_ns"] / line[end] for end in ("p75_ns", "p25_ns")]
                label = f"{backend}, {_streams(streams)}"
                page.line(axes, line["tensor_bytes"], line[column], label, looks[backend, streams], band)
            for what, bit_s in _ceilings(material):
                page.level(axes, bit_s / 8 * METRICS["busbw"].unit(material.rate).factor, what)
        page.sizes(cases["tensor_bytes"], "tensor per rank (bytes)")
        page.heights(f"bus bandwidth ({material.rate})", plain_number)
        yield joined("bandwidth", mode, variant), page.finished()


@_figure
def world_size(material: Material) -> Iterator[tuple[str, Figure]]:
    """Time against bytes sent, a line for each world size; beside it, two ranks over three and more."""
    from netbench.comparisons import two_against_more

    sending = material.cases[material.cases["transmit_bytes"] > 0]
    looks = styles(key for key, _ in groups(sending, "world_size"))
    for (mode, backend, streams, variant), cases in groups(sending, "mode", "backend", "streams", "variant"):
        if len({len(participants(mode, ranks)) for ranks in cases["world_size"].unique()}) < 2:
            continue
        times = material.run.times if material.run.manifest.source is None else None
        ratios = two_against_more(cases, times)
        page = Page(material, cases, f"{mode}: time against bytes sent", MEDIAN_AND_BAND)
        left, *right = page.grid(2 if len(ratios) else 1)
        for (ranks,), line in groups(cases, "world_size"):
            median, *band = (line[f"{name}_ns"] / 1e9 for name in ("median", "p25", "p75"))
            page.line(left, line["transmit_bytes"], median, f"{ranks} ranks", looks[ranks,], band)
        for what, bit_s in _ceilings(material)[:1]:
            sizes = sorted(cases["transmit_bytes"].unique())
            ideal = left.plot(
                sizes, [8 * size / bit_s for size in sizes], color=ink(), linewidth=1.2, linestyle=CEILING
            )
            page.mark(ideal[0], what)
        page.sizes(cases["transmit_bytes"], "sent by each rank, T (bytes)")
        page.heights("time of one iteration (seconds)", about_seconds, [left])
        for axes in right:
            _ratio(axes, ratios, times)
        yield joined("world_size", mode, backend, f"k{streams_text(streams)}", variant), page.finished()


def _ratio(axes: Axes, ratios: pd.DataFrame, times: Callable[[str], Nanoseconds] | None) -> None:
    """Time of two ranks over that of more: median, interval and every iteration, and from which size it is slower."""
    import numpy as np

    from netbench.comparisons import SURELY_SLOWER, onset_bytes

    axes.fill_between(ratios["transmit_bytes"], ratios["low"], ratios["high"], color=ink(0.85), linewidth=0)
    highest = 2.0
    for row in ratios.to_dict("records") if times else ():
        dots = times(row["case_id"]) / row["more_ns"]  # type: ignore[misc]
        places = np.full(len(dots), row["transmit_bytes"])  # a list would be asked number by number for gaps
        drawn = axes.scatter(places, dots, s=13, color=ink(0.5), linewidths=0, zorder=2)
        drawn.set_rasterized(len(dots) * len(ratios) > _MANY_DOTS)
        highest = max(highest, 1.05 * min(float(dots.max()), 2 * row["ratio"]))
    axes.plot(ratios["transmit_bytes"], ratios["ratio"], color=ink(), marker="o", zorder=3)
    axes.axhline(1, color=ink(0.4), linewidth=1)
    axes.axhline(SURELY_SLOWER, color=ink(0.4), linewidth=1, linestyle=CEILING)
    axes.set_ylim(0, max(highest, 1.1 * ratios["ratio"].max()))
    axes.set_ylabel("time of 2 ranks / median time of 3 and more (ratio)")
    onset = onset_bytes(ratios)
    slower = f"above {SURELY_SLOWER} from {about_bytes(onset)} on" if onset else f"not surely above {SURELY_SLOWER}"
    axes.set_title(f"2 ranks: {slower} (band: 95 % interval)", fontsize=13, pad=4)


@_figure
def speedup(material: Material) -> Iterator[tuple[str, Figure]]:
    """Speed-up over one stream against size: a line for each stream count, a panel for each world size."""
    from netbench.comparisons import speedups

    table = speedups(material.cases)
    more = table[table["streams"] != 1]
    looks = styles(key for key, _ in groups(more, "streams"))
    for (mode, backend, variant), cases in groups(more, "mode", "backend", "variant"):
        page = Page(material, cases, f"{mode}: speed-up over one stream", "median time of one stream / of K streams")
        for axes, panel in page.panels(cases):
            axes.axhline(1, color=ink(0.4), linewidth=1)
            for (count,), line in groups(panel, "streams"):
                page.line(axes, line["tensor_bytes"], line["speedup"], _streams(count), looks[count,])
        page.sizes(cases["tensor_bytes"], "tensor per rank (bytes)")
        page.heights("speed-up (ratio)", plain_number)
        yield joined("speedup", mode, backend, variant), page.finished()


@_figure
def beside_quoted(material: Material) -> Iterator[tuple[str, Figure]]:
    """Speed-up over one stream here, and beside it in the numbers of others that are drawn with it."""
    from netbench.comparisons import speedups

    if material.run.manifest.source is not None:
        return
    measured = speedups(material.cases)
    for quoted in material.quoted:
        published = speedups(quoted.summaries())
        for (mode, backend, variant), here in groups(measured[measured["streams"] != 1], "mode", "backend", "variant"):
            here = here[here["world_size"] == here["world_size"].min()]
            there = published[(published["mode"] == mode) & (published["streams"] != 1)]
            if there.empty:
                continue
            page = Page(
                material,
                here,
                f"{mode}: speed-up over one stream",
                "time of one stream / of K streams",
            )
            counts = sorted({*there["streams"], *here["streams"]})
            looks = dict(zip(counts, styles(counts).values(), strict=True))
            sides = ((quoted.id, there), (f"{backend}, {material.run.network}", here))
            for axes, (title, cases) in zip(page.grid(2), sides, strict=True):
                axes.set_title(title, fontsize=13, pad=4)
                axes.axhline(1, color=ink(0.4), linewidth=1)
                for (count,), line in groups(cases, "streams"):
                    page.line(axes, line["tensor_bytes"], line["speedup"], _streams(count), looks[count])
                page.sizes(cases["tensor_bytes"], "tensor per rank (bytes)", [axes])
            page.heights("speed-up (ratio)", plain_number)
            yield joined("beside_quoted", quoted.manifest.name, mode, backend, variant), page.finished()


@_figure
def best_streams(material: Material) -> Iterator[tuple[str, Figure]]:
    """The fastest stream count for each size and world size, shaded by its speed-up over one stream."""
    from matplotlib.colors import LinearSegmentedColormap, LogNorm

    from netbench import comparisons

    greys = LinearSegmentedColormap.from_list("light", [ink(1), ink(0.5)])  # text stays readable on all of it
    best = comparisons.best_streams(material.cases)
    doubtful = (best["streams"] != 1) & ~(best["clear"] & (best["speedup"] > 1))
    counts = map(streams_text, best["streams"])
    best = best.assign(text=[f"({k})" if doubt else k for k, doubt in zip(counts, doubtful, strict=True)])
    for (mode, backend, variant), cases in groups(best, "mode", "backend", "variant"):
        page = Page(material, cases, f"{mode}: fastest stream count", "in brackets: not clearly faster than one stream")
        [axes] = page.grid(1)
        table = cases.pivot(index="world_size", columns="tensor_bytes", values=["text", "speedup"])
        sizes, most = list(table["text"].columns), max(2.0, cases["speedup"].max())
        shade = LogNorm(1, most, clip=True)
        image = axes.imshow(table["speedup"].to_numpy(float), aspect="auto", cmap=greys, norm=shade, origin="lower")
        for row, texts in enumerate(table["text"].astype(object).to_numpy().tolist()):
            start = 0
            # Neighbours of one count are labelled once, so that many sizes stay readable.
            for text, cells in groupby(texts):
                width = len(list(cells))
                if isinstance(text, str):
                    fontsize = min(16, 600 * width / len(sizes) / max(2, len(text)))
                    axes.text(start + (width - 1) / 2, row, text, fontsize=fontsize, ha="center", va="center")
                start += width
                axes.plot([start - 0.5] * 2, [row - 0.5, row + 0.5], color=ink(), linewidth=1)
        every = math.ceil(len(sizes) / 9)
        axes.set_xticks(range(0, len(sizes), every), [about_bytes(float(size)) for size in sizes[::every]])
        axes.set_yticks(range(len(table)), [str(ranks) for ranks in table.index])
        axes.set_xlim(-0.5, len(sizes) - 0.5)
        axes.set_ylim(-0.5, len(table) - 0.5)
        axes.set_xlabel("tensor per rank (bytes)")
        axes.set_ylabel("world size (ranks)")
        axes.grid(False)
        bar = page.figure.colorbar(image, ax=axes, label="speed-up over one stream (ratio)", pad=0.015)
        bar.minorticks_off()
        ticks = [tick for tick in (1, 1.5, 2, 3, 5, 8, 12, 20) if tick <= most]
        bar.set_ticks(ticks, labels=list(map(plain_number, ticks)))
        yield joined("best_streams", mode, backend, variant), page.finished()


@_figure
def matrix(material: Material) -> Iterator[tuple[str, Figure]]:
    """Latency and bandwidth of every pair of hosts beside each other, darker where slower, the slow pairs framed."""
    run = material.run
    if not any(case.pair for case in run.manifest.cases):
        return
    from netbench.heatmaps import draw_heat_maps
    from netbench.matrix import matrices

    summaries = run.summaries(material.rate)
    for found in matrices(run):
        one = found.example
        cases = summaries[(summaries["status"] == "ok") & summaries["case_id"].isin(found.case_ids)]
        if cases.empty:
            continue
        missing = sum(bool(pair.reason) for pair in found.pairs)
        page = Page(
            replace(material, bad=0),
            cases.assign(variant=one.variant),
            f"{one.mode}: every pair",
            f"framed: surely more than {found.margin:.0%} worse than usual"
            + (f"\nnot drawn: {missing} pair{'s' if missing > 1 else ''} without a number" if missing else ""),
        )
        yield (
            joined("matrix", one.mode, one.backend, f"k{streams_text(one.streams)}", one.variant),
            draw_heat_maps(page, found, material.rate),
        )


@_figure
def latency(material: Material) -> Iterator[tuple[str, Figure]]:
    """Latency of small messages against stream count: a line for each size, a panel for each world size."""
    column = METRICS["latency"].column()
    small = material.cases[material.cases["tensor_bytes"] <= _SMALL_BYTES]
    for (mode, backend, variant), cases in groups(small, "mode", "backend", "variant"):
        counts = sorted(cases["streams"].unique())
        if len(counts) < 2:
            continue
        cases = cases[cases["tensor_bytes"].isin(_spread_out(sorted(cases["tensor_bytes"].unique()), 5))]
        looks = styles(key for key, _ in groups(cases, "tensor_bytes"))
        page = Page(material, cases, f"{mode}: latency of small messages", MEDIAN_AND_BAND)
        for axes, panel in page.panels(cases):
            for (size,), line in groups(panel, "tensor_bytes"):
                line = line.sort_values("streams")
                band = [line[column] * line[end] / line["median_ns"] for end in ("p25_ns", "p75_ns")]
                places = [counts.index(count) for count in line["streams"]]
                page.line(axes, places, line[column], about_bytes(size), looks[size,], band)
            axes.set_xticks(range(len(counts)), map(streams_text, counts))
            axes.set_xlim(-0.3, len(counts) - 0.7)
        page.below("streams")
        page.heights("latency (us)", plain_number)
        yield joined("latency", mode, backend, variant), page.finished()


@_figure
def factors(material: Material) -> Iterator[tuple[str, Figure]]:
    """Every case of an explanation over the exchange with receives first: all iterations, median and its interval."""
    if not (material.cases["mode"] == "exchange_sends_first").any():
        return
    from numpy import quantile

    from netbench.explain.evidence import Evidence, label

    try:
        evidence = Evidence(material.run)
    except UsageError:
        return
    page = Page(
        material,
        material.cases[material.cases["variant"] == ""],
        "what takes longer than its bytes",
        "dots: iterations; black: median; grey: its 95 % interval",
    )
    [axes] = page.grid(1)
    reference = evidence.find("exchange")
    ratios = [evidence.ratio(case, reference) for case in evidence.cases]
    times = [evidence.times_s(case) / evidence.median_s(reference) for case in evidence.cases]
    interval: dict[str, Any] = {"color": ink(0.75), "linewidth": 9, "solid_capstyle": "butt"}
    right = 1.12 * max(2.0, *(float(quantile(one, 0.8)) for one in times), *(ratio.high or 0 for ratio in ratios))
    for row, (case, ratio, one) in enumerate(zip(evidence.cases, ratios, times, strict=True)):
        spread = [row + 0.26 * math.sin(2.4 * place) for place in range(len(one))]
        axes.plot([ratio.low or ratio.value, ratio.high or ratio.value], [row, row], **interval)
        axes.scatter(one.clip(max=right), spread, s=13, color=ink(0.4), linewidths=0, clip_on=False, zorder=3)
        axes.plot([ratio.value] * 2, [row - 0.4, row + 0.4], color=ink(), linewidth=2.5, zorder=4)
        if case.mode == "exchange_sends_first" and case.backend == "gloo" and case.entry_delay_us:
            look: dict[str, Any] = {
                "color": ink(),
                "markerfacecolor": ink(1),
                "markersize": 7,
                "linestyle": "",
                "zorder": 5,
            }
            law = axes.plot(1 + 1 / case.chunks, row, "D", **look)[0]
            page.mark(law, "1 + 1/k, for k chunks with sends first and a rank late")
    axes.axvline(1, color=ink(0.3), linewidth=1)
    if evidence.ideal_s is not None:
        ideal = evidence.ideal_s / evidence.median_s(reference)
        page.mark(axes.axvline(ideal, color=ink(), linewidth=1.2, linestyle=CEILING), "the link's ceiling")
    axes.set_yticks(range(len(times)), [label(case) for case in evidence.cases], fontsize=min(11, 270 / len(times)))
    axes.set(xlim=(0, right), ylim=(len(times) - 0.4, -0.6))
    axes.set_xlabel(
        f"time / time of the exchange with receives first, at {about_bytes(evidence.transmit_bytes)} from each (ratio)"
    )
    figure = page.finished()
    figure.subplots_adjust(left=0.31)
    yield "factors", figure


@_figure
def timeline(material: Material) -> Iterator[tuple[str, Figure]]:
    """What each rank's interface sent and received over one typical iteration, a panel for each rank."""
    from netbench.courses import courses

    for case in material.cases[material.cases["timeline_us"] > 0].to_dict("records"):
        found = courses(material.run, case["case_id"])
        if not found:
            continue
        factor = METRICS["busbw"].unit(material.rate).factor / 8  # of bytes per second
        page = Page(
            material,
            material.cases[material.cases["case_id"] == case["case_id"]],
            f"{case['mode']}: who sends and who receives when",
            f"iteration {found[0].iteration}, the nearest to the median",
        )
        looks = styles(["sent", "received"])
        for axes, course in zip(page.grid(len(found)), found, strict=True):
            phases = ", ".join(f"{phase} {part:.0%}" for phase, part in course.phases.items())
            axes.set_title(f"rank {course.rank}: {phases}", fontsize=13, pad=4)
            for what, rates in (("sent", course.sent_bit_s), ("received", course.received_bit_s)):
                style = looks[what] | {"marker": None}
                page.mark(axes.step(course.at_s * 1e3, rates * factor, where="mid", **style)[0], what)
                axes.fill_between(
                    course.at_s * 1e3, rates * factor, step="mid", color=style["color"], alpha=0.15, linewidth=0
                )
            for end in (0, course.duration_s * 1e3):
                axes.axvline(end, color=ink(0.4), linewidth=1)
            if material.lab:
                page.level(axes, material.lab.rate_bit_s * factor, "the link's rate")
            axes.set_ylim(bottom=0)
            axes.set_ylabel(f"on the wire ({material.rate})")
        page.below("time in the iteration (ms)")
        yield joined("timeline", case["case_id"]), page.finished()


def _ceilings(material: Material) -> list[tuple[str, float]]:
    """What the link can carry in payload bits per second, and over one connection where a lab caps those."""
    ceiling, lab = material.ceiling, material.lab
    if ceiling is None:
        return []
    found = [("the link's ceiling", ceiling.payload_bit_s)]
    if lab is not None and lab.flow_bit_s is not None:
        found.append(("one connection's ceiling", lab.flow_bit_s * float(ceiling.framing.payload_share)))
    return found


def _spread_out(items: list[int], most: int) -> list[int]:
    """At most so many of ``items``, the first and the last among them."""
    if len(items) <= most:
        return items
    return [items[round(place * (len(items) - 1) / (most - 1))] for place in range(most)]


def _streams(count: int) -> str:
    return f"{streams_text(count)} stream{'s' if count != 1 else ''}"
