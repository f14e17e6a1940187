"""Figures by their axes and series: what is drawn, in which units, and that nothing covers anything."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from pictures import overlaps, panels
from synthetic import make_case, make_run

from netbench.figures import FIGURES, draw, write_plots
from netbench.model import Case
from netbench.modes import MODES
from netbench.record import Failure
from netbench.summary import Run, load_run

SIZES = [4**power * 1024 for power in range(8)]
STREAMS = [1, 2, 4, 10, 20]


def realistic(case: Case, ranks: int, iterations: int) -> np.ndarray:
    """Latency grows with streams and ranks, bandwidth with streams; two ranks gather at two thirds of the speed."""
    latency_ns = 60_000 * (1 + 0.35 * (case.streams - 1)) * (1 + 0.25 * (case.world_size - 2))
    time_ns = latency_ns + case.transmit_bytes * MODES[case.mode].messages / (2.5 * case.streams**0.8)
    if case.mode == "all_gather" and case.world_size == 2 and case.transmit_bytes > 500_000:
        time_ns *= 1.5
    random = np.random.default_rng(case.tensor_bytes)
    return (time_ns * (1 + random.gamma(2, 0.03, (ranks, iterations)))).astype(np.int64)


@pytest.fixture(scope="module")
def streams_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    series = [("gloo", 1), *(("parallel_gloo", count) for count in STREAMS)]
    cases = [
        make_case(mode, backend, streams, world_size, size)
        for mode in ("send_recv", "allreduce")
        for world_size in (2, 3)
        for backend, streams in series
        for size in SIZES
    ]
    return load_run(
        make_run(tmp_path_factory.mktemp("results") / "20250102T030405Z-streams-c3d4", cases, realistic).path
    )


@pytest.fixture(scope="module")
def worlds_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    transmit = sorted({round(10 ** (2 + place / 6)) // 840 * 840 or 840 for place in range(36)})
    cases = [
        make_case("all_gather", world_size=n, tensor_bytes=size // (n - 1) // 4 * 4)
        for n in range(2, 9)
        for size in transmit
    ]
    path = tmp_path_factory.mktemp("results") / "20250102T030405Z-gloo_471-a1b2"
    return load_run(make_run(path, cases, realistic, iterations=5).path)


@pytest.fixture(scope="module")
def figures(streams_run: Run, worlds_run: Run) -> dict[str, Figure]:
    return {name: figure for run in (streams_run, worlds_run) for name, figure in draw(run)}


def series(axes: Axes) -> dict[str, tuple[list[float], list[float]]]:
    lines = {str(line.get_label()): line.get_data() for line in axes.get_lines()}
    return {label: (list(x), list(y)) for label, (x, y) in lines.items() if not label.startswith("_")}


def test_every_registered_figure_is_drawn(figures: dict[str, Figure]) -> None:
    elsewhere = {"factors", "timeline", "beside_quoted", "matrix"}  # test_explain_figures.py, test_matrix.py
    assert {name.split("-")[0] for name in figures} == set(FIGURES) - elsewhere
    assert set(figures) == {
        "bandwidth-send_recv",
        "bandwidth-allreduce",
        "bandwidth-all_gather",
        *(f"world_size-allreduce-parallel_gloo-k{count}" for count in STREAMS),
        "world_size-allreduce-gloo-k1",
        "world_size-all_gather-gloo-k1",
        *(
            f"{name}-{mode}-parallel_gloo"
            for name in ("speedup", "best_streams", "latency")
            for mode in ("send_recv", "allreduce")
        ),
    }


def test_bandwidth_has_a_line_for_each_backend_and_stream_count(figures: dict[str, Figure], streams_run: Run) -> None:
    two, three = panels(figures["bandwidth-allreduce"])
    assert (two.get_title(), three.get_title()) == ("2 ranks", "3 ranks")
    lines = series(two)
    assert list(lines) == [
        "gloo, 1 stream",
        "parallel_gloo, 1 stream",
        *(f"parallel_gloo, {n} streams" for n in STREAMS[1:]),
    ]
    sizes, heights = lines["parallel_gloo, 4 streams"]
    assert sizes == SIZES
    cases = streams_run.summaries().set_index("case_id")
    assert heights[-1] == cases.loc["allreduce-parallel_gloo-k4-n2-16MiB", "busbw_gbit_s"]
    assert (two.get_xscale(), two.get_yscale()) == ("log", "log")
    assert len(two.collections) == len(lines)  # the bands of the samples


def test_bands_hold_the_middle_half_of_the_samples(figures: dict[str, Figure], streams_run: Run) -> None:
    [axes] = [axes for axes in panels(figures["bandwidth-allreduce"]) if axes.get_title() == "2 ranks"]
    times = streams_run.times("allreduce-gloo-k1-n2-1KiB")
    bandwidths = 1024 * 8 / np.quantile(times, [0.75, 0.25])
    corners = axes.collections[0].get_paths()[0].vertices
    at_1k = corners[corners[:, 0] == 1024][:, 1]
    assert (at_1k.min(), at_1k.max()) == (pytest.approx(bandwidths[0]), pytest.approx(bandwidths[1]))


def test_world_size_shows_time_and_the_ratio_of_two_ranks(figures: dict[str, Figure]) -> None:
    times, ratio = panels(figures["world_size-all_gather-gloo-k1"])
    assert list(series(times)) == [f"{n} ranks" for n in range(2, 9)]
    assert "T (bytes)" in times.get_xlabel()
    assert "seconds" in times.get_ylabel()
    x, y = ratio.get_lines()[0].get_data()
    assert np.asarray(y)[np.asarray(x) > 1_000_000] == pytest.approx(1.5, abs=0.15)
    assert len(panels(figures["world_size-allreduce-gloo-k1"])) == 1  # no equal T, so no ratio


def test_speed_up_crosses_over_with_size(figures: dict[str, Figure]) -> None:
    axes = panels(figures["speedup-allreduce-parallel_gloo"])[0]
    lines = series(axes)
    assert list(lines) == ["2 streams", "4 streams", "10 streams", "20 streams"]
    _, heights = lines["20 streams"]
    assert heights[0] < 1 < heights[-1]


def test_the_best_stream_count_is_written_over_its_sizes(figures: dict[str, Figure], streams_run: Run) -> None:
    [axes] = panels(figures["best_streams-allreduce-parallel_gloo"])
    row = sorted((text.get_position()[0], text.get_text()) for text in axes.texts if text.get_position()[1] == 0)
    assert [text.strip("()") for _, text in row] == ["1", "2", "4", "10", "20"]
    cases = streams_run.summaries()
    two = cases[(cases["mode"] == "allreduce") & (cases["backend"] == "parallel_gloo") & (cases["world_size"] == 2)]
    best = two.loc[two.groupby("tensor_bytes")["median_ns"].idxmin()].set_index("tensor_bytes")["streams"]
    ones = best[best == 1].index
    assert row[0][0] == (len(ones) - 1) / 2  # in the middle of the sizes where one stream is best


def test_latency_is_of_small_messages_by_stream_count(figures: dict[str, Figure], streams_run: Run) -> None:
    axes = panels(figures["latency-send_recv-parallel_gloo"])[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == [str(count) for count in STREAMS]
    lines = series(axes)
    assert list(lines) == ["1 KiB", "4 KiB", "16 KiB", "64 KiB"]
    cases = streams_run.summaries().set_index("case_id")
    assert lines["1 KiB"][1][0] == cases.loc["send_recv-parallel_gloo-k1-n2-1KiB", "median_ns"] / 2 / 1000


def test_titles_say_what_where_and_when(figures: dict[str, Figure]) -> None:
    for name, figure in figures.items():
        words = " ".join(text.get_text() for text in figure.texts).replace("\N{NO-BREAK SPACE}", " ")
        assert name.split("-")[1] in words
        assert "gloo" in words
        assert "N = 2, 3" in words
        assert "host alpha · over eth0" in words
        assert "run 20250102T030405Z" in words


def test_axes_carry_units_and_readable_sizes(figures: dict[str, Figure]) -> None:
    for name, figure in figures.items():
        lowest = panels(figure)[-1]
        assert re.search(r"\((bytes)\)|streams", lowest.get_xlabel()), name
        assert re.search(r"\((Gbit/s|seconds|ratio|us|ranks)\)", panels(figure)[0].get_ylabel()), name
        if "streams" not in lowest.get_xlabel():
            labels = [label.get_text() for label in lowest.get_xticklabels()]
            assert len(labels) >= 3
            assert all(re.fullmatch(r"\d+(\.\d+)? ([KMG]i)?B", label) for label in labels), labels


def test_series_differ_without_colour(figures: dict[str, Figure]) -> None:
    for figure in figures.values():
        for axes in panels(figure):
            lines = [line for line in axes.get_lines() if not str(line.get_label()).startswith("_")]
            looks = [(line.get_marker(), line.get_linestyle(), line.get_markerfacecolor() == "white") for line in lines]
            assert len(set(looks)) == len(looks)
            grey = [sum(np.array(to_rgb(line.get_color())) * (0.299, 0.587, 0.114)) for line in lines]
            assert grey == sorted(grey)  # from dark to light


def test_nothing_lies_upon_anything(figures: dict[str, Figure]) -> None:
    for name, figure in figures.items():
        FigureCanvasAgg(figure).draw()
        assert overlaps(figure) == [], name
        for legend in figure.legends:
            for axes in figure.axes:
                assert not legend.get_window_extent().overlaps(axes.get_window_extent()), f"{name}: legend upon data"


def test_no_figure_without_data(tmp_path: Path) -> None:
    case = make_case("allreduce")
    wrong = load_run(make_run(tmp_path / "wrong", [case], facts={"status": "wrong", "wrong_elements": 1}).path)
    alone = load_run(make_run(tmp_path / "alone", [make_case("allreduce", world_size=1)]).path)
    missing = load_run(make_run(tmp_path / "missing", [], unmeasured=[case], status="failed").path)
    single = load_run(make_run(tmp_path / "single", [case]).path)
    assert [[name for name, _ in draw(run)] for run in (wrong, alone, missing, single)] == [
        [],
        [],
        [],
        ["bandwidth-allreduce"],
    ]


def test_variants_are_never_mixed(tmp_path: Path) -> None:
    cases = [make_case(), make_case(dtype="bfloat16"), make_case(chunks=2), make_case(malloc="keep")]
    run = load_run(make_run(tmp_path / "run", cases).path)
    figures = dict(draw(run))
    assert list(figures) == [f"bandwidth-allreduce{end}" for end in ("", "-bfloat16", "-c2", "-malloc_keep")]
    assert any(" · c2 · " in text.get_text() for text in figures["bandwidth-allreduce-c2"].texts)


def test_what_is_not_drawn_is_said(tmp_path: Path) -> None:
    failed = make_case("exchange")
    failure = Failure(case_id=failed.id, launch=1, reason="killed")
    run = load_run(make_run(tmp_path / "run", [make_case()], unmeasured=[failed], failures=[failure]).path)
    [(_, figure)] = draw(run)
    assert any("not drawn: 1 case that" in text.get_text() for text in figure.texts)


def test_plots_are_written_into_each_run(tmp_path: Path) -> None:
    runs = [load_run(make_run(tmp_path / name, [make_case()]).path) for name in ("a", "b")]
    paths = write_plots(runs)
    expected = [
        tmp_path / name / "plots" / f"bandwidth-allreduce.{end}" for name in ("a", "b") for end in ("png", "svg")
    ]
    assert paths == expected
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in paths[1].read_bytes()
    assert sorted(path.name for path in (tmp_path / "a" / "plots").iterdir()) == [path.name for path in expected[:2]]
    svg = paths[1].read_bytes()
    assert write_plots(runs[:1])[1].read_bytes() == svg  # the same record gives the same file
