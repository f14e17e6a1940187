"""Pictures of a run: one function a figure, the run's cases in, matplotlib figures out.

Figures are made for a projector and for a grey printer: 16:9, colours that get lighter in order, a marker and a line
style of its own for each series, the legend below the axes. matplotlib is imported when something is drawn, so that
the names of the figures cost nothing, and pyplot with its global state is never used.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netbench.errors import StorageError, UsageError
from netbench.metrics import DEFAULT_RATE, METRICS
from netbench.model import streams_text
from netbench.modes import MODES
from netbench.record import write_atomically
from netbench.registry import Registry
from netbench.units import about_bytes, about_seconds

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

    from netbench.record import LabFacts
    from netbench.summary import Run

#: Messages up to this many bytes are small: their time is latency, not bandwidth.
_SMALL_BYTES = 64 * 1024

#: What each picture is written as: no date, so that the same record gives the same file; PNG packed for speed.
_FORMATS: dict[str, dict[str, Any]] = {
    "png": {"pil_kwargs": {"compress_level": 2}},
    "svg": {"metadata": {"Date": None}},
}
_INCHES = (12.8, 7.2)
_DPI = 150
_MARKERS = "os^DvPX*<>"
_DASHES = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)))
_CEILING = (0, (6, 3))
_MEDIAN_AND_BAND = "line: median, band: middle half of the iterations"
_STYLE: dict[Any, Any] = {
    "font.size": 13,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "0.88",
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
    "svg.fonttype": "none",  # text stays text: small files that can be searched
    "svg.hashsalt": "netbench",
}


@dataclass(frozen=True)
class Material:
    """What a figure is made from: one run, and the rows of its summary that are ok.

    ``bad`` counts the cases that were started and are not ok, so that a gap in a line is explained; ``quoted`` are the
    runs of others that are drawn together with this one.
    """

    run: Run
    cases: pd.DataFrame
    rate: str = DEFAULT_RATE
    bad: int = 0
    quoted: Sequence[Run] = ()

    @property
    def lab(self) -> LabFacts | None:
        """The emulated network of the run; None on a real one."""
        return self.run.manifest.lab


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


def write_plots(runs: Iterable[Run], rate: str = DEFAULT_RATE, names: Collection[str] = FIGURES) -> list[Path]:
    """Draws the figures of these ``names`` of every run as PNG and SVG into its ``plots``. Raises StorageError.

    Where some of the runs are quoted, the others are also set beside them.
    """
    import matplotlib

    runs, paths = list(runs), []
    quoted = [run for run in runs if run.manifest.source is not None]
    for run in runs:
        try:
            run.folder.plots.mkdir(exist_ok=True)
        except OSError as error:
            raise StorageError(f"{run.folder.plots}: cannot be made: {error.strerror}") from None
        with matplotlib.rc_context(_STYLE):
            for name, figure in draw(run, rate, names, quoted):
                for suffix, options in _FORMATS.items():
                    image = io.BytesIO()
                    figure.savefig(image, format=suffix, dpi=_DPI, **options)
                    path = run.folder.plots / f"{name}.{suffix}"
                    write_atomically(path, image.getvalue())
                    paths.append(path)
    return paths


def draw(
    run: Run, rate: str = DEFAULT_RATE, names: Collection[str] = FIGURES, quoted: Sequence[Run] = ()
) -> Iterator[tuple[str, Figure]]:
    """Every figure of a run with its name, such as ``bandwidth-all_gather``."""
    cases = run.summaries(rate)
    bad = int(cases["status"].isin(["failed", "wrong"]).sum())
    material = Material(run, cases[cases["status"] == "ok"], rate, bad, [one for one in quoted if one is not run])
    for name in names:
        yield from FIGURES[name].draw(material)


@_figure
def bandwidth(material: Material) -> Iterator[tuple[str, Figure]]:
    """Bus bandwidth against size: a line for each backend and stream count, a panel for each world size."""
    column = METRICS["busbw"].column(rate=material.rate)
    known = material.cases[material.cases[column].notna()]
    styles = _styles(key for key, _ in _groups(known, "backend", "streams"))
    for (mode, variant), cases in _groups(known, "mode", "variant"):
        page = _Page(material, cases, f"{mode}: bandwidth against size", _MEDIAN_AND_BAND)
        for axes, panel in page.panels(cases):
            for (backend, streams), line in _groups(panel, "backend", "streams"):
                # Quartiles of time are quartiles of bandwidth, the other way round.
                band = [line[column] * line["median_ns"] / line[end] for end in ("p75_ns", "p25_ns")]
                label = f"{backend}, {_streams(streams)}"
                page.line(axes, line["tensor_bytes"], line[column], label, styles[backend, streams], band)
            for what, bit_s in _ceilings(material.lab):
                page.level(axes, bit_s / 8 * METRICS["busbw"].unit(material.rate).factor, what)
        page.sizes(cases["tensor_bytes"], "tensor per rank (bytes)")
        page.heights(f"bus bandwidth ({material.rate})", _plain_number)
        yield _name("bandwidth", mode, variant), page.finished()


@_figure
def world_size(material: Material) -> Iterator[tuple[str, Figure]]:
    """Time against bytes sent, a line for each world size; beside it, two ranks over three and more."""
    from netbench.comparisons import SURELY_SLOWER, onset_bytes, two_against_more

    sending = material.cases[material.cases["transmit_bytes"] > 0]
    styles = _styles(key for key, _ in _groups(sending, "world_size"))
    for (mode, backend, streams, variant), cases in _groups(sending, "mode", "backend", "streams", "variant"):
        if len({len(MODES[mode].participants(ranks)) for ranks in cases["world_size"].unique()}) < 2:
            continue
        ratios = two_against_more(cases, material.run.times if material.run.manifest.source is None else None)
        page = _Page(material, cases, f"{mode}: time against bytes sent", _MEDIAN_AND_BAND)
        left, *right = page.grid(2 if len(ratios) else 1)
        for (ranks,), line in _groups(cases, "world_size"):
            median, *band = (line[f"{name}_ns"] / 1e9 for name in ("median", "p25", "p75"))
            page.line(left, line["transmit_bytes"], median, f"{ranks} ranks", styles[ranks,], band)
        for what, bit_s in _ceilings(material.lab)[:1]:
            sizes = sorted(cases["transmit_bytes"].unique())
            ideal = left.plot(
                sizes, [8 * size / bit_s for size in sizes], color="black", linewidth=1.2, linestyle=_CEILING
            )
            page.mark(ideal[0], what)
        page.sizes(cases["transmit_bytes"], "sent by each rank, T (bytes)")
        page.heights("time of one iteration (seconds)", about_seconds, [left])
        for axes in right:
            axes.fill_between(ratios["transmit_bytes"], ratios["low"], ratios["high"], color="0.8", linewidth=0)
            axes.plot(ratios["transmit_bytes"], ratios["ratio"], color="black", marker="o")
            axes.axhline(1, color="0.4", linewidth=1)
            axes.axhline(SURELY_SLOWER, color="0.4", linewidth=1, linestyle=_CEILING)
            axes.set_ylim(0, max(2.0, 1.1 * ratios["ratio"].max(), 1.02 * ratios["high"].max()))
            axes.set_ylabel("time of 2 ranks / median time of 3 and more (ratio)")
            onset = onset_bytes(ratios)
            found = (
                f"above {SURELY_SLOWER} from {about_bytes(onset)} on"
                if onset
                else f"not above {SURELY_SLOWER} for sure"
            )
            axes.set_title(f"band: 95 % interval; {found}", fontsize=13, pad=4)
        yield _name("world_size", mode, backend, f"k{streams_text(streams)}", variant), page.finished()


@_figure
def speedup(material: Material) -> Iterator[tuple[str, Figure]]:
    """Speed-up over one stream against size: a line for each stream count, a panel for each world size."""
    from netbench.comparisons import speedups

    table = speedups(material.cases)
    more = table[table["streams"] != 1]
    styles = _styles(key for key, _ in _groups(more, "streams"))
    for (mode, backend, variant), cases in _groups(more, "mode", "backend", "variant"):
        page = _Page(material, cases, f"{mode}: speed-up over one stream", "median time of one stream / of K streams")
        for axes, panel in page.panels(cases):
            axes.axhline(1, color="0.4", linewidth=1)
            for (count,), line in _groups(panel, "streams"):
                page.line(axes, line["tensor_bytes"], line["speedup"], _streams(count), styles[count,])
        page.sizes(cases["tensor_bytes"], "tensor per rank (bytes)")
        page.heights("speed-up (ratio)", _plain_number)
        yield _name("speedup", mode, backend, variant), page.finished()


@_figure
def beside_quoted(material: Material) -> Iterator[tuple[str, Figure]]:
    """Speed-up over one stream here, and beside it in the numbers of others that are drawn with it."""
    from netbench.comparisons import speedups

    if material.run.manifest.source is not None:
        return
    measured = speedups(material.cases)
    for quoted in material.quoted:
        published = speedups(quoted.summaries())
        for (mode, backend, variant), here in _groups(measured[measured["streams"] != 1], "mode", "backend", "variant"):
            here = here[here["world_size"] == here["world_size"].min()]
            there = published[(published["mode"] == mode) & (published["streams"] != 1)]
            if there.empty:
                continue
            page = _Page(
                material,
                here,
                f"{mode}: speed-up over one stream",
                "time of one stream / of K streams\neach at its own sizes",
            )
            counts = sorted({*there["streams"], *here["streams"]})
            styles = dict(zip(counts, _styles(counts).values(), strict=True))
            sides = ((quoted.id, there), (f"{backend}, {material.run.network}", here))
            for axes, (title, cases) in zip(page.grid(2), sides, strict=True):
                axes.set_title(title, fontsize=13, pad=4)
                axes.axhline(1, color="0.4", linewidth=1)
                for (count,), line in _groups(cases, "streams"):
                    page.line(axes, line["tensor_bytes"], line["speedup"], _streams(count), styles[count])
                page.sizes(cases["tensor_bytes"], "tensor per rank (bytes)", [axes])
            page.heights("speed-up (ratio)", _plain_number)
            yield _name("beside_quoted", quoted.manifest.name, mode, backend, variant), page.finished()


@_figure
def best_streams(material: Material) -> Iterator[tuple[str, Figure]]:
    """The fastest stream count for each size and world size, shaded by its speed-up over one stream."""
    from matplotlib.colors import LinearSegmentedColormap, LogNorm

    from netbench import comparisons

    greys = LinearSegmentedColormap.from_list("light", ["white", "0.5"])  # black text stays readable on all of it
    best = comparisons.best_streams(material.cases)
    doubtful = (best["streams"] != 1) & ~(best["clear"] & (best["speedup"] > 1))
    counts = map(streams_text, best["streams"])
    best = best.assign(text=[f"({k})" if doubt else k for k, doubt in zip(counts, doubtful, strict=True)])
    for (mode, backend, variant), cases in _groups(best, "mode", "backend", "variant"):
        page = _Page(
            material, cases, f"{mode}: fastest stream count", "in brackets: not clearly faster than one stream"
        )
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
                axes.plot([start - 0.5] * 2, [row - 0.5, row + 0.5], color="black", linewidth=1)
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
        bar.set_ticks(ticks, labels=list(map(_plain_number, ticks)))
        yield _name("best_streams", mode, backend, variant), page.finished()


@_figure
def latency(material: Material) -> Iterator[tuple[str, Figure]]:
    """Latency of small messages against stream count: a line for each size, a panel for each world size."""
    column = METRICS["latency"].column()
    small = material.cases[material.cases["tensor_bytes"] <= _SMALL_BYTES]
    for (mode, backend, variant), cases in _groups(small, "mode", "backend", "variant"):
        counts = sorted(cases["streams"].unique())
        if len(counts) < 2:
            continue
        cases = cases[cases["tensor_bytes"].isin(_spread_out(sorted(cases["tensor_bytes"].unique()), 5))]
        styles = _styles(key for key, _ in _groups(cases, "tensor_bytes"))
        page = _Page(material, cases, f"{mode}: latency of small messages", _MEDIAN_AND_BAND)
        for axes, panel in page.panels(cases):
            for (size,), line in _groups(panel, "tensor_bytes"):
                line = line.sort_values("streams")
                band = [line[column] * line[end] / line["median_ns"] for end in ("p25_ns", "p75_ns")]
                places = [counts.index(count) for count in line["streams"]]
                page.line(axes, places, line[column], about_bytes(size), styles[size,], band)
            axes.set_xticks(range(len(counts)), map(streams_text, counts))
            axes.set_xlim(-0.3, len(counts) - 0.7)
        page.below("streams")
        page.heights("latency (us)", _plain_number)
        yield _name("latency", mode, backend, variant), page.finished()


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
    page = _Page(
        material,
        material.cases[material.cases["variant"] == ""],
        "what takes longer than its bytes",
        "dots: iterations; black: median, grey: its 95 % interval\n"
        "diamond: 1 + 1/k, for k chunks with sends first and a rank late",
    )
    [axes] = page.grid(1)
    reference = evidence.find("exchange")
    ratios = [evidence.ratio(case, reference) for case in evidence.cases]
    times = [evidence.times_s(case) / evidence.median_s(reference) for case in evidence.cases]
    interval: dict[str, Any] = {"color": "0.75", "linewidth": 9, "solid_capstyle": "butt"}
    right = 1.12 * max(2.0, *(float(quantile(one, 0.8)) for one in times), *(ratio.high or 0 for ratio in ratios))
    for row, (case, ratio, one) in enumerate(zip(evidence.cases, ratios, times, strict=True)):
        spread = [row + 0.26 * math.sin(2.4 * place) for place in range(len(one))]
        axes.plot([ratio.low or ratio.value, ratio.high or ratio.value], [row, row], **interval)
        axes.scatter(one.clip(max=right), spread, s=13, color="0.4", linewidths=0, clip_on=False, zorder=3)
        axes.plot([ratio.value] * 2, [row - 0.4, row + 0.4], color="black", linewidth=2.5, zorder=4)
        if case.mode == "exchange_sends_first" and case.backend == "gloo" and case.entry_delay_us:
            axes.plot(1 + 1 / case.chunks, row, "D", color="black", markerfacecolor="white", markersize=7, zorder=5)
    axes.axvline(1, color="0.3", linewidth=1)
    if evidence.ideal_s is not None:
        ideal = evidence.ideal_s / evidence.median_s(reference)
        page.mark(axes.axvline(ideal, color="black", linewidth=1.2, linestyle=_CEILING), "the link's ceiling")
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
        page = _Page(
            material,
            material.cases[material.cases["case_id"] == case["case_id"]],
            f"{case['mode']}: who sends and who receives when",
            f"iteration {found[0].iteration}, the nearest to the median\nread from each rank's interface",
        )
        styles = _styles(["sent", "received"])
        for axes, course in zip(page.grid(len(found)), found, strict=True):
            phases = ", ".join(f"{phase} {part:.0%}" for phase, part in course.phases.items())
            axes.set_title(f"rank {course.rank}: {phases}", fontsize=13, pad=4)
            for what, rates in (("sent", course.sent_bit_s), ("received", course.received_bit_s)):
                style = styles[what] | {"marker": None}
                page.mark(axes.step(course.at_s * 1e3, rates * factor, where="mid", **style)[0], what)
                axes.fill_between(
                    course.at_s * 1e3, rates * factor, step="mid", color=style["color"], alpha=0.15, linewidth=0
                )
            for end in (0, course.duration_s * 1e3):
                axes.axvline(end, color="0.4", linewidth=1)
            if material.lab:
                page.level(axes, material.lab.rate_bit_s * factor, "the link's rate")
            axes.set_ylim(bottom=0)
            axes.set_ylabel(f"on the wire ({material.rate})")
        page.below("time in the iteration (ms)")
        yield _name("timeline", case["case_id"]), page.finished()


class _Page:
    """A figure under way: words above, panels in the middle, the legend below."""

    def __init__(self, material: Material, cases: pd.DataFrame, title: str, reading: str) -> None:
        from matplotlib.figure import Figure

        run = material.run
        if material.lab:
            title += " (lab)"
        self.figure = Figure(figsize=_INCHES)
        self._rows = self._columns = 1
        self._panels: list[Axes] = []
        self._legend: dict[str, Artist] = {}
        self._drawn: list[float] = []
        what = [
            ", ".join(cases["backend"].unique()),
            f"K = {', '.join(map(streams_text, sorted(cases['streams'].unique())))}",
            f"N = {', '.join(map(str, sorted(cases['world_size'].unique())))}",
            *(variant for variant in cases["variant"].unique() if variant),
            f"host {', '.join(run.hosts[:4])}{' ...' if len(run.hosts) > 4 else ''}",
            *([f"over {run.network}"] if run.network else []),
            f"run {run.id}",
        ]
        lines = textwrap.wrap(" · ".join(item.replace(" ", "\N{NO-BREAK SPACE}") for item in what), 140)
        self._top = 0.84 - 0.03 * (len(lines) - 1)
        self.figure.text(0.012, 0.975, title, fontsize=19, fontweight="bold", va="top")
        self.figure.text(0.012, 0.915, "\n".join(lines), fontsize=12, va="top")
        if material.bad:
            reading += (
                f"\nnot drawn: {material.bad} case{'s' if material.bad > 1 else ''} that failed or moved wrong data"
            )
        self.figure.text(0.988, 0.978, reading, fontsize=11, va="top", ha="right", color="0.3")

    def grid(self, count: int) -> list[Axes]:
        """So many panels, about as wide as high."""
        self._rows = math.ceil(count / math.ceil(math.sqrt(count * 16 / 9)))
        self._columns = math.ceil(count / self._rows)
        self._panels = [self.figure.add_subplot(self._rows, self._columns, place + 1) for place in range(count)]
        return self._panels

    def panels(self, cases: pd.DataFrame) -> Iterator[tuple[Axes, pd.DataFrame]]:
        """A panel for each world size, with its cases."""
        groups = list(_groups(cases, "world_size"))
        for axes, ((ranks,), panel) in zip(self.grid(len(groups)), groups, strict=True):
            axes.set_title(f"{ranks} ranks", fontsize=13, pad=4)
            yield axes, panel

    def line(
        self,
        axes: Axes,
        x: Sequence[float] | pd.Series[float],
        y: pd.Series[float],
        label: str,
        style: dict[str, Any],
        band: Sequence[pd.Series[float]] = (),
    ) -> None:
        """One series, with the band that holds the middle half of its samples."""
        self._drawn += [number for heights in (y, *band) for number in (heights.min(), heights.max())]
        [drawn] = axes.plot(list(x), y.to_numpy(), label=label, markevery=math.ceil(len(y) / 24), **style)
        if band:
            low, high = (end.to_numpy() for end in band)
            axes.fill_between(list(x), low, high, color=style["color"], alpha=0.18, linewidth=0)
        self._legend.setdefault(label, drawn)

    def level(self, axes: Axes, height: float, label: str) -> None:
        """A line across, which is no series but what the series are to be compared with."""
        self._drawn.append(height)
        self.mark(axes.axhline(height, color="black", linewidth=1.2, linestyle=_CEILING), label)

    def mark(self, drawn: Artist, label: str) -> None:
        """Names something drawn in the legend, once."""
        self._legend.setdefault(label, drawn)

    def sizes(self, sizes: pd.Series[int], label: str, panels: Sequence[Axes] = ()) -> None:
        """Puts ``sizes`` on the x axis of ``panels`` (all by default), with ticks at powers of two."""
        low, high = math.log2(sizes.min()), math.log2(sizes.max())
        margin = max(0.4, 0.06 * (high - low))  # keeps the first and last label off those of the next panel
        most = 10 / self._columns + 1.5  # labels beside each other without touching
        step = next(step for step in (1, 2, 3, 4, 5, 6, 8, 10, 20, 50) if (high - low) / step < most)
        ticks = [2.0**power for power in range(math.ceil(low), math.floor(high) + 1) if power % step == 0]
        for axes in panels or self._panels:
            _logarithmic(axes, "x", ticks or [sizes.min()], 2 ** (low - margin), 2 ** (high + margin), about_bytes)
        self.below(label)

    def below(self, label: str) -> None:
        """What the x axes show; named only where no other panel follows below."""
        for axes in self._panels[-self._columns :]:
            axes.set_xlabel(label)
        for axes in self._panels[: -self._columns]:
            axes.tick_params(labelbottom=False)

    def heights(self, label: str, show: Callable[[float], str], panels: Sequence[Axes] = ()) -> None:
        """One logarithmic scale for the y axes of ``panels`` (all by default) that holds every line and band."""
        low, high = math.log10(min(self._drawn)), math.log10(max(self._drawn))
        widen = max(0.06, (0.7 - (high - low)) / 2)
        low, high = low - widen, high + widen
        digits = (1, 2, 5) if high - low < 2.2 else (1,)
        ticks = [digit * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for digit in digits]
        for index, axes in enumerate(panels or self._panels):
            _logarithmic(axes, "y", ticks, 10**low, 10**high, show)
            if index % self._columns == 0:
                axes.set_ylabel(label)
            else:
                axes.tick_params(labelleft=False)

    def finished(self) -> Figure:
        """The figure with its legend, and its margins set so that nothing lies upon anything else."""
        rows = 0
        if self._legend:
            columns = max(1, min(len(self._legend), 110 // (max(map(len, self._legend)) + 7)))
            rows = math.ceil(len(self._legend) / columns)
            self.figure.legend(
                self._legend.values(),
                self._legend.keys(),
                loc="lower center",
                ncols=columns,
                frameon=False,
                fontsize=12,
            )
        self.figure.subplots_adjust(
            left=0.085,
            right=0.985,
            top=self._top,
            bottom=0.105 + 0.036 * rows,
            hspace=0.16,
            wspace=0.1 if self._columns > 2 else 0.19,
        )
        return self.figure


def _logarithmic(
    axes: Axes, which: str, ticks: Sequence[float], low: float, high: float, show: Callable[[float], str]
) -> None:
    """Makes the x or y axis logarithmic from ``low`` to ``high``, with labels at those ``ticks`` that lie between."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    inside = [tick for tick in ticks if low <= tick <= high]
    axes.set(**{f"{which}scale": "log", f"{which}lim": (low, high)})
    axis: Axis = getattr(axes, f"{which}axis")
    axis.set_major_locator(FixedLocator(inside))
    axis.set_major_formatter(FixedFormatter([show(tick) for tick in inside]))
    axis.set_minor_locator(NullLocator())


def _ceilings(lab: LabFacts | None) -> list[tuple[str, float]]:
    """What a lab's network can carry in payload bits per second, and over one connection where that is less."""
    if lab is None:
        return []
    found = [("the link's ceiling", lab.payload_ceiling_bit_s)]
    if lab.flow_bit_s is not None:
        found.append(("one connection's ceiling", lab.payload_ceiling_bit_s * lab.flow_bit_s / lab.rate_bit_s))
    return found


def _groups(cases: pd.DataFrame, *names: str) -> Iterator[tuple[Any, pd.DataFrame]]:
    """The cases of each combination of ``names``, in order of size; words keep the order of the plan."""
    words = {name: {word: place for place, word in enumerate(cases[name].unique())} for name in names}
    groups = list(cases.sort_values("tensor_bytes", kind="stable").groupby(list(names), sort=False))
    numbers = ("streams", "world_size", "tensor_bytes")
    groups.sort(key=lambda group: [x if n in numbers else words[n][x] for n, x in zip(names, group[0], strict=True)])
    yield from groups


def _styles(series: Iterable[Hashable]) -> dict[Any, dict[str, Any]]:
    """How each series is drawn: colours from dark to light, and no two alike where there is no colour."""
    from matplotlib import colormaps

    series = list(series)
    return {
        one: {
            "color": colormaps["viridis"](0.85 * place / max(1, len(series) - 1)),
            "marker": _MARKERS[place % len(_MARKERS)],
            "markerfacecolor": "white" if place % 2 else None,
            "linestyle": _DASHES[place % len(_DASHES)],
        }
        for place, one in enumerate(series)
    }


def _spread_out(items: list[int], most: int) -> list[int]:
    """At most so many of ``items``, the first and the last among them."""
    if len(items) <= most:
        return items
    return [items[round(place * (len(items) - 1) / (most - 1))] for place in range(most)]


def _name(*parts: str) -> str:
    return "-".join(part for part in parts if part)


def _streams(count: int) -> str:
    return f"{streams_text(count)} stream{'s' if count != 1 else ''}"


def _plain_number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:g}"
