"""The sheet that figures are drawn on: themes, series that differ without colour, axes in readable units, a legend.

Made for a projector and for a grey printer: 16:9, colours that get lighter in order, a marker and a line style of its
own for each series. matplotlib is imported when something is drawn, and pyplot with its global state is never used.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netbench.errors import StorageError
from netbench.metrics import DEFAULT_RATE
from netbench.model import streams_text
from netbench.record import write_atomically
from netbench.registry import Registry
from netbench.units import about_bytes

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

    from netbench.ceiling import Ceiling
    from netbench.record import LabFacts
    from netbench.summary import Run

#: What each picture is written as: no date, so that the same record gives the same file; PNG packed for speed.
_FORMATS: dict[str, dict[str, Any]] = {
    "png": {"pil_kwargs": {"compress_level": 2}},
    "svg": {"metadata": {"Date": None}},
}
_INCHES = (12.8, 7.2)
_DPI = 150
_MARKERS = "os^DvPX*<>"
_DASHES = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)))
CEILING = (0, (6, 3))
#: More would run into the words beside them.
_MOST_VERDICTS = 3
MEDIAN_AND_BAND = "line: median, band: middle half of the iterations"
_STYLE: dict[Any, Any] = {
    "font.size": 13,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
    "axes.titley": 1.0,  # no ticks are above, and looking for them lays out every axis once more
    "svg.fonttype": "none",  # text stays text: small files that can be searched
    "svg.hashsalt": "netbench",
}


class Theme:
    """Colours of ``paper`` and ``pen``; every grey lies between the two."""

    def __init__(self, name: str, paper: str, pen: str, doc: str) -> None:
        self.name, self.paper, self.pen = name, paper, pen
        self.__doc__ = doc

    @property
    def style(self) -> dict[Any, Any]:
        """The settings of matplotlib that make it so."""
        papers = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
        pens = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
        colours = dict.fromkeys(papers, self.paper) | dict.fromkeys(pens, self.pen)
        return _STYLE | colours | {"grid.color": _mixed(self.pen, self.paper, 0.88)}


THEMES: Registry[Theme] = Registry("theme")
THEMES.add(Theme("print", "white", "black", "Dark on white, for paper, a projector and a page."))
THEMES.add(Theme("dark", "#14181c", "#e9ecef", "Light on nearly black, for slides and screens at night."))


def ink(grey: float = 0.0) -> tuple[float, ...]:
    """A shade of the theme under way, from 0, the pen, to 1, the paper."""
    from matplotlib import rcParams

    return _mixed(rcParams["text.color"], rcParams["axes.facecolor"], grey)


def _mixed(pen: str, paper: str, grey: float) -> tuple[float, ...]:
    from matplotlib.colors import to_rgb

    return tuple((1 - grey) * one + grey * other for one, other in zip(to_rgb(pen), to_rgb(paper), strict=True))


def image(figure: Figure, suffix: str, theme: str = "print") -> bytes:
    """A figure as a ``png`` or ``svg`` file."""
    from matplotlib import rc_context

    content = io.BytesIO()
    with rc_context(THEMES[theme].style):
        figure.savefig(content, format=suffix, dpi=_DPI, **_FORMATS[suffix])
    return content.getvalue()


def make_folder(folder: Path) -> Path:
    """The folder that the user has named, there from now on. Raises StorageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{folder}: cannot be made: {error.strerror}") from None
    return folder


def save(figure: Figure, folder: Path, name: str, theme: str = "print") -> list[Path]:
    """Writes a figure as PNG and SVG. Raises StorageError."""
    paths = [folder / f"{name}.{suffix}" for suffix in _FORMATS]
    for path in paths:
        write_atomically(path, image(figure, path.suffix[1:], theme))
    return paths


def drawable(cases: pd.DataFrame) -> pd.DataFrame:
    """Of the rows of a summary those that figures show: what is ok, and not between one pair of ranks alone.

    Pairs are many and differ by nothing but who they are; the figure ``matrix`` has them.
    """
    return cases[(cases["status"] == "ok") & (cases["pair"].fillna("") == "")]


@dataclass(frozen=True)
class Material:
    """What a figure is made from: one run, or ``more`` with it, and the ``drawable`` rows of their summaries.

    ``bad`` counts the cases that were started and are not ok, so that a gap in a line is explained; ``quoted`` are the
    runs of others that are drawn together with this one.
    """

    run: Run
    cases: pd.DataFrame
    rate: str = DEFAULT_RATE
    bad: int = 0
    quoted: Sequence[Run] = ()
    more: Sequence[Run] = ()

    def of(self, cases: pd.DataFrame) -> Material:
        """The same, of those runs alone that ``cases`` come from."""
        if not self.more:
            return self
        first, *more = [run for run in self.runs if run.id in set(cases["run_id"])]
        return replace(self, run=first, more=more)

    @property
    def runs(self) -> Sequence[Run]:
        return [self.run, *self.more]

    @property
    def hosts(self) -> list[str]:
        return list(dict.fromkeys(host for run in self.runs for host in run.hosts))

    @property
    def network(self) -> str:
        return ", ".join(dict.fromkeys(run.network for run in self.runs if run.network))

    @property
    def lab(self) -> LabFacts | None:
        """The emulated network, the same for all runs; None on a real one."""
        labs = [run.manifest.lab for run in self.runs]
        return labs[0] if all(lab == labs[0] for lab in labs) else None

    @property
    def ceiling(self) -> Ceiling | None:
        """What the link of the runs can carry, where it is known and the same for all."""
        ceilings = [run.ceiling for run in self.runs]
        return ceilings[0] if all(ceiling == ceilings[0] for ceiling in ceilings) else None

    @classmethod
    def overlaid(cls, runs: Sequence[Run], rate: str = DEFAULT_RATE) -> Material:
        """Several runs as one: backends carry the names of their runs, and what is not as usual about the cases."""
        import pandas as pd

        names = [run.manifest.name for run in runs]
        tables = []
        for run, name in zip(runs, names, strict=True):
            cases = drawable(run.summaries(rate))
            label = name if names.count(name) == 1 else run.id
            backends = (label + ": " + cases["backend"] + " " + cases["variant"]).str.strip()
            tables.append(cases.assign(backend=backends, variant="", run_id=run.id))
        return cls(runs[0], pd.concat(tables, ignore_index=True), rate, more=runs[1:])


class Page:
    """A figure under way: words above, panels in the middle, the legend below."""

    def __init__(self, material: Material, cases: pd.DataFrame, title: str, reading: str) -> None:
        from matplotlib.figure import Figure

        material = material.of(cases)
        hosts = material.hosts
        if reading == MEDIAN_AND_BAND and (cases["headline"] == "mean").all():
            reading = "line: mean, as others tell it"
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
            *([f"host {', '.join(hosts[:4])}{' ...' if len(hosts) > 4 else ''}"] if hosts else []),
            *([f"over {material.network}"] if material.network else []),
            f"run {', '.join(run.id for run in material.runs)}",
        ]
        lines = textwrap.wrap(" · ".join(item.replace(" ", "\N{NO-BREAK SPACE}") for item in what), 140)
        self._top = 0.84 - 0.03 * (len(lines) - 1)
        self.figure.text(0.012, 0.975, title, fontsize=19, fontweight="bold", va="top")
        self.figure.text(0.012, 0.915, "\n".join(lines), fontsize=12, va="top")
        if material.bad:
            cases_are = "cases" if material.bad > 1 else "case"
            reading += f"\nnot drawn: {material.bad} {cases_are} that failed, moved wrong data or cannot be read"
        if doubts := _doubts(cases):
            reading += f"\n{doubts}"
        self.figure.text(0.988, 0.978, reading, fontsize=11, va="top", ha="right", color=ink(0.3))

    def grid(self, count: int) -> list[Axes]:
        """So many panels, about as wide as high."""
        self._rows = math.ceil(count / math.ceil(math.sqrt(count * 16 / 9)))
        self._columns = math.ceil(count / self._rows)
        self._panels = [self.figure.add_subplot(self._rows, self._columns, place + 1) for place in range(count)]
        return self._panels

    def panels(self, cases: pd.DataFrame) -> Iterator[tuple[Axes, pd.DataFrame]]:
        """A panel for each world size, with its cases."""
        found = list(groups(cases, "world_size"))
        for axes, ((ranks,), panel) in zip(self.grid(len(found)), found, strict=True):
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
        band = [] if any(end.isna().all() for end in band) else band  # others tell no quartiles
        self._drawn += [number for heights in (y, *band) for number in (heights.min(), heights.max())]
        [drawn] = axes.plot(list(x), y.to_numpy(), label=label, markevery=math.ceil(len(y) / 24), **style)
        if band:
            low, high = (end.to_numpy() for end in band)
            axes.fill_between(list(x), low, high, color=style["color"], alpha=0.18, linewidth=0)
        self._legend.setdefault(label, drawn)

    def level(self, axes: Axes, height: float, label: str) -> None:
        """A line across, which is no series but what the series are to be compared with."""
        self._drawn.append(height)
        self.mark(axes.axhline(height, color=ink(), linewidth=1.2, linestyle=CEILING), label)

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
            logarithmic(axes, "x", ticks or [sizes.min()], 2 ** (low - margin), 2 ** (high + margin), about_bytes)
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
            logarithmic(axes, "y", ticks, 10**low, 10**high, show)
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


def _doubts(cases: pd.DataFrame) -> str:
    """The most frequent verdicts on a figure's cases: ``verdicts: bimodal 3, trend 1 of 14 cases``."""
    named = [names.split(", ") for names in cases["verdicts"] if isinstance(names, str) and names]
    counts = Counter(name for names in named for name in names)
    if not counts:
        return ""
    listed = [f"{name} {count}" for name, count in counts.most_common(_MOST_VERDICTS)]
    more = " ..." if len(counts) > _MOST_VERDICTS else ""
    return f"verdicts: {', '.join(listed)}{more} of {len(cases)} cases"


def logarithmic(
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


def groups(cases: pd.DataFrame, *names: str) -> Iterator[tuple[Any, pd.DataFrame]]:
    """The cases of each combination of ``names``, in order of size; words keep the order of the plan."""
    words = {name: {word: place for place, word in enumerate(cases[name].unique())} for name in names}
    found = list(cases.sort_values("tensor_bytes", kind="stable").groupby(list(names), sort=False))
    numbers = ("streams", "world_size", "tensor_bytes")
    found.sort(key=lambda group: [x if n in numbers else words[n][x] for n, x in zip(names, group[0], strict=True)])
    yield from found


def styles(series: Iterable[Hashable]) -> dict[Any, dict[str, Any]]:
    """How each series is drawn: colours from dark to light, and no two alike where there is no colour."""
    from matplotlib import colormaps

    series = list(series)
    # On dark paper from light to dark: the first series stands out most on either.
    first, last = (0.0, 0.85) if sum(ink(1)) > 1.5 else (1.0, 0.3)
    return {
        one: {
            "color": colormaps["viridis"](first + (last - first) * place / max(1, len(series) - 1)),
            "marker": _MARKERS[place % len(_MARKERS)],
            "markerfacecolor": ink(1) if place % 2 else None,
            "linestyle": _DASHES[place % len(_DASHES)],
        }
        for place, one in enumerate(series)
    }


def joined(*parts: str) -> str:
    return "-".join(part for part in parts if part)


def plain_number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:g}"
