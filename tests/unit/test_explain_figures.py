"""Figures of an explanation, and of quoted numbers beside measured ones, by their axes and series."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from synthetic import make_case, make_run

from netbench.courses import courses
from netbench.experiments import Setting, whole_plan
from netbench.figures import draw
from netbench.lab import LabSpec
from netbench.model import Case
from netbench.quotes import Quote, write_quotes
from netbench.record import LabFacts, Manifest, RunFolder, Source, timeline_table, write_timeline
from netbench.summary import Run, load_run

PLAN = whole_plan(Setting.of({"lab": "3x200mbit"}))

MS = 1_000_000


def durations(case: Case, ranks: int, iterations: int) -> np.ndarray:
    factor = 1 + 1 / case.chunks if case.mode == "exchange_sends_first" else 1.5 if case.mode == "all_gather" else 1
    random = np.random.default_rng(case.chunks)
    times = 100 * MS * factor * random.normal(1, 0.01, (1, iterations)) + case.entry_delay_us * 1000
    return times.astype(np.int64).repeat(ranks, 0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = make_run(tmp_path_factory.mktemp("results") / "20250102T030405Z-explain-c3d4", PLAN.cases, durations)
    manifest = folder.read_manifest()
    folder.write_manifest(manifest.model_copy(update={"lab": LabFacts.of(LabSpec.parse("3x200mbit"))}))
    [case] = [case for case in PLAN.cases if case.timeline_us]
    samples = load_run(folder.path).samples()
    samples = samples[(samples["case_id"] == case.id) & (samples["phase"] == "timed")]
    readings = []
    for rank in range(2):
        own = samples[samples["rank"] == rank]
        starts, times = own["start_ns"].to_numpy(), own["duration_ns"].to_numpy()
        at_ns = np.arange(starts[0] - 10 * MS, starts[-1] + times[-1] + 10 * MS, 2 * MS)
        sent = np.zeros(len(at_ns))
        received = np.zeros(len(at_ns))
        for start, time in zip(starts, times, strict=True):
            part = (at_ns - start) / time
            sent += 3e6 * np.clip(part, 0, 2 / 3)
            received += 3e6 * (np.clip(part, 1 / 3, 1) - 1 / 3)
        ways = (sent, received) if rank == 0 else (received, sent)
        readings.append((rank, np.stack([at_ns, *ways], axis=1).astype(np.int64)))
    write_timeline(folder, case, timeline_table(manifest.run_id, case, readings))
    return load_run(folder.path)


@pytest.fixture(scope="module")
def figures(run: Run) -> dict[str, Figure]:
    return dict(draw(run, names=("factors", "timeline", "world_size", "bandwidth")))


def lines(axes: Axes) -> dict[str, np.ndarray]:
    return {str(line.get_label()): np.asarray(line.get_data()) for line in axes.get_lines()}


def test_factors_have_a_row_for_each_case_with_all_of_its_iterations(figures: dict[str, Figure], run: Run) -> None:
    [axes] = figures["factors"].axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert len(labels) == len(axes.collections) == len(set(labels))
    assert labels[0] == "all_gather"
    assert "exchange, sends first, 4 chunks, late" in labels
    assert all(len(dots.get_offsets()) == 20 for dots in axes.collections)  # type: ignore[arg-type]
    diamonds = [line.get_data() for line in axes.get_lines() if line.get_marker() == "D"]
    assert [float(np.asarray(x)[0]) for x, _ in diamonds] == [2, 1.5, 1.25]
    assert axes.get_xlim()[0] == 0
    assert axes.get_xlim()[1] > 2
    assert "(ratio)" in axes.get_xlabel()


def test_a_course_has_its_thirds(run: Run) -> None:
    [case] = [case for case in PLAN.cases if case.timeline_us]
    first, second = courses(run, case.id)
    assert first.phases == pytest.approx({"sends only": 1 / 3, "both": 1 / 3, "receives only": 1 / 3}, abs=0.04)
    assert second.phases == pytest.approx(first.phases, abs=0.04)
    middle = np.abs(first.at_s - first.duration_s / 2).argmin()
    assert first.sent_bit_s[middle] == pytest.approx(3e6 * 8 / first.duration_s, rel=0.05)
    times = run.times(case.id)
    assert first.duration_s * 1e9 in times
    assert np.sum(times < first.duration_s * 1e9 - 1) in (len(times) // 2 - 1, len(times) // 2)


def test_a_case_without_readings_has_no_course(run: Run) -> None:
    assert courses(run, next(case.id for case in PLAN.cases if not case.timeline_us)) == []


def test_the_timeline_has_a_panel_for_each_rank(figures: dict[str, Figure]) -> None:
    [name] = [name for name in figures if name.startswith("timeline")]
    for rank, axes in enumerate(figures[name].axes):
        assert axes.get_title().startswith(f"rank {rank}: sends only 3")
        assert {"sent", "received"} <= set(lines(axes)) | {text.get_text() for text in figures[name].legends[0].texts}
        assert "ms" in figures[name].axes[-1].get_xlabel()
        assert 0.2 in [float(line.get_ydata()[0]) for line in axes.get_lines()]  # type: ignore[index,arg-type]


def test_every_figure_of_a_lab_says_so_and_shows_its_ceiling(figures: dict[str, Figure]) -> None:
    for name, figure in figures.items():
        assert any(text.get_text().endswith("(lab)") for text in figure.texts), name
        shown = [text.get_text() for text in figure.legends[0].texts]
        assert {"the link's ceiling", "the link's rate"} & set(shown), name
    [axes] = figures["bandwidth-allreduce"].axes[:1]
    heights = [float(line.get_ydata()[0]) for line in axes.get_lines()]  # type: ignore[index,arg-type]
    assert any(height == pytest.approx(200 * 1448 / 1514 / 1000) for height in heights)


def test_an_ordinary_sweep_has_no_factors(tmp_path: Path) -> None:
    cases = [make_case(mode) for mode in ("all_gather", "exchange")]
    assert "factors" not in dict(draw(load_run(make_run(tmp_path / "run", cases).path)))


def test_quoted_numbers_are_drawn_beside_ours_each_at_its_own_sizes(tmp_path: Path) -> None:
    sizes = (4000, 40_000, 4_000_000)
    cases = [make_case("allreduce", "split_gloo", k, tensor_bytes=size) for k in (1, 2, 4) for size in sizes]
    ours = load_run(
        make_run(tmp_path / "ours", cases, lambda case, *shape: np.full(shape, 8 * MS // case.streams)).path
    )
    folder = RunFolder(tmp_path / "theirs")
    folder.path.mkdir()
    quotes = [
        Quote(case=make_case("allreduce", "split_gloo", k, tensor_bytes=size), mean_ns=1e6 / k**0.5)
        for k in (1, 4, 20)
        for size in (400, 400_000_000)
    ]
    folder.write_manifest(
        Manifest(
            run_id="theirs",
            name="theirs",
            status="quoted",
            netbench="0",
            command=[],
            started_at=datetime(2025, 1, 2, tzinfo=UTC),
            config={},
            cases=[quote.case for quote in quotes],
            source=Source(tool="a tool", place="a table", time="mean"),
        )
    )
    write_quotes(folder, quotes)
    theirs = load_run(folder.path)
    [(name, figure)] = draw(ours, names=("beside_quoted",), quoted=[theirs])
    assert name == "beside_quoted-theirs-allreduce-split_gloo"
    left, right = figure.axes
    assert left.get_title() == "theirs"
    assert lines(left)["20 streams"][1] == pytest.approx([20**0.5] * 2)
    assert lines(left)["4 streams"][0].tolist() == [400, 400_000_000]
    assert lines(right)["4 streams"][1] == pytest.approx([4] * 3)
    assert lines(right)["4 streams"][0].tolist() == [4000, 40_000, 4_000_000]
    assert not dict(draw(theirs, names=("beside_quoted",), quoted=[theirs]))
    assert not dict(draw(ours, names=("beside_quoted",)))
