"""Which pairs of hosts are called slow, in runs whose times are chosen; and the heat map of them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from pictures import overlaps, panels
from synthetic import make_case, make_run

from netbench.config import SweepConfig
from netbench.errors import UsageError
from netbench.figures import draw
from netbench.listing import LISTINGS
from netbench.matrix import BANDWIDTH, KINDS, LATENCY, Matrix, lines, matrices, rows, write_matrices
from netbench.model import Case
from netbench.plan import make_plan
from netbench.record import Failure
from netbench.summary import Run, load_run

SMALL, LARGE = 8, 2**23

#: Worse than usual by this factor, of a case.
Worse = Callable[[Case], float]


def pairs_of(hosts: int, **axes: object) -> list[Case]:
    usual = {"modes": ["send_recv"], "backends": ["gloo"], "streams": [1], "sizes": [SMALL, LARGE], "pairs": ["all"]}
    return list(make_plan(SweepConfig.model_validate(usual | {"world_sizes": [hosts]} | axes)).cases)


def measured(
    path: Path,
    cases: Sequence[Case],
    worse: Worse = lambda case: 1,
    spread: float = 0.02,
    names: Callable[[int], str] = "host{}".format,
    **run: Any,
) -> Run:
    """A ping-pong of 80 us and 190 Mbit/s, times what ``worse`` says; the iterations lie within ``spread`` above."""

    def durations(case: Case, ranks: int, iterations: int) -> np.ndarray:
        usual_ns = 80_000 if case.tensor_bytes == SMALL else 2 * case.tensor_bytes * 8 / 0.19
        return (usual_ns * worse(case) * np.linspace(1, 1 + spread, iterations) * np.ones((ranks, 1))).astype(np.int64)

    folder = make_run(path / "run", cases, durations, **run)
    manifest = folder.read_manifest()
    ranks = range(max(case.world_size for case in manifest.cases))
    manifest.environment = [
        {"host": host, "ranks": [rank for rank in ranks if names(rank) == host]}
        for host in dict.fromkeys(map(names, ranks))
    ]
    folder.write_manifest(manifest)
    return load_run(folder.path)


def slow_host(*hosts: int) -> Worse:
    """Hosts with a third of the bandwidth, and the usual latency."""
    return lambda case: 3 if case.tensor_bytes == LARGE and set(hosts) & set(case.members) else 1


def slow(matrix: Matrix) -> dict[str, set[tuple[int, int]]]:
    return {kind.name: {one.pair.ranks for one in matrix.slow(kind)} for kind in KINDS}


def test_latency_is_half_the_ping_pong_and_bandwidth_counts_both_ways(tmp_path: Path) -> None:
    [matrix] = matrices(measured(tmp_path, pairs_of(3), spread=0))
    assert matrix.usual(LATENCY) == pytest.approx(40e-6)
    assert matrix.usual(BANDWIDTH) == pytest.approx(190e6)
    assert matrix.sizes == {"latency": SMALL, "bandwidth": LARGE}
    assert slow(matrix) == {"latency": set(), "bandwidth": set()}
    assert [pair.ranks for pair in matrix.pairs] == [(0, 1), (0, 2), (1, 2)]


@pytest.mark.parametrize("hosts", [3, 4, 5, 16])
def test_a_slow_host_is_found_by_exactly_its_pairs(tmp_path: Path, hosts: int) -> None:
    [matrix] = matrices(measured(tmp_path, pairs_of(hosts), slow_host(2)))
    with_it = {pair.ranks for pair in matrix.pairs if 2 in pair.ranks}
    assert len(with_it) == hosts - 1
    assert slow(matrix) == {"latency": set(), "bandwidth": with_it}
    assert matrix.count_slow() == hosts - 1
    assert matrix.usual(BANDWIDTH) == pytest.approx(190e6, rel=0.03)
    assert matrix.culprits(matrix.slow(BANDWIDTH)) == ["host2 is in every slow pair"]
    assert all(one.off == pytest.approx(2 / 3, abs=0.01) for one in matrix.slow(BANDWIDTH))


def test_a_slow_cable_accuses_neither_of_its_ends(tmp_path: Path) -> None:
    worse: Worse = lambda case: 2 if case.pair == "0-1" else 1  # noqa: E731
    [matrix] = matrices(measured(tmp_path, pairs_of(3), worse))
    assert slow(matrix) == {"latency": {(0, 1)}, "bandwidth": {(0, 1)}}
    assert matrix.count_slow() == 1
    text = "\n".join(lines(matrix))
    assert "host0 - host1: 80.8 us, 100% above" in text
    assert "host0 - host1: 94.1 Mbit/s, 50% below" in text
    assert "look at" not in text


def test_two_slow_hosts_are_named_by_all_their_pairs(tmp_path: Path) -> None:
    [matrix] = matrices(measured(tmp_path, pairs_of(6), slow_host(1, 4)))
    found = matrix.slow(BANDWIDTH)
    assert len(found) == 9
    assert matrix.culprits(found) == ["every pair of host1 is slow", "every pair of host4 is slow"]


def test_the_worst_come_first_and_many_are_counted(tmp_path: Path) -> None:
    worse: Worse = lambda case: 2 + case.members[1] / 100 if 0 in case.members else 1  # noqa: E731
    [matrix] = matrices(measured(tmp_path, pairs_of(14), worse))
    assert [one.pair.ranks[1] for one in matrix.slow(LATENCY)] == list(range(13, 0, -1))
    text = list(lines(matrix))
    assert text[1].startswith("  host0 - host13: ")
    assert text[11:13] == ["  and 3 more", "  host0 is in every slow pair: look at its cable, its port and its CPU"]


@pytest.mark.parametrize(("factor", "sure"), [(1.15, None), (1.22, False), (1.3, True)])
def test_a_pair_is_slow_only_if_all_of_its_interval_is_beyond_the_margin(
    tmp_path: Path, factor: float, sure: bool | None
) -> None:
    """A spread of a tenth around one pair, none around the others; 20 iterations' interval leaves out 5 at each end."""
    worse: Worse = lambda case: factor if case.pair == "1-3" else 1.0  # noqa: E731
    run = measured(tmp_path, pairs_of(4), worse, spread=0.1)
    [matrix] = matrices(run)
    found, doubtful = matrix.slow(LATENCY), matrix.doubtful(LATENCY)
    assert ([one.pair.ranks for one in found], [one.pair.ranks for one in doubtful]) == {
        None: ([], []),
        False: ([], [(1, 3)]),
        True: ([(1, 3)], []),
    }[sure]
    assert (
        "look slow, but not surely so; a larger --budget would tell: host1 - host3" in "\n".join(lines(matrix))
    ) == (sure is False)


@pytest.mark.parametrize(("busy", "sure"), [((0, 1), False), ((0, 1, 2), True)])
def test_a_pair_must_be_slow_in_every_round(tmp_path: Path, busy: Sequence[int], sure: bool) -> None:
    """A burst of other work lasts for two of three rounds, and the interval over all iterations trusts them."""

    def durations(case: Case, ranks: int, iterations: int) -> np.ndarray:
        times = np.full((ranks, 3, iterations // 3), 80_000)
        if case.pair == "1-3":
            times[:, list(busy)] *= 2
        return times.reshape(ranks, iterations)

    run = load_run(make_run(tmp_path / "run", pairs_of(4, sizes=[SMALL]), durations, iterations=60, rounds=3).path)
    [matrix] = matrices(run)
    found = matrix.slow(LATENCY) if sure else matrix.doubtful(LATENCY)
    assert [one.pair.ranks for one in found] == [(1, 3)]
    low = found[0].pair.readings["latency"].low
    assert low is not None
    assert low > 1.2 * 40e-6
    assert matrix.count_slow() == sure


@pytest.mark.parametrize(("spread", "busy", "sure"), [(2.0, True, False), (2.0, False, True), (0.0, True, True)])
def test_where_others_were_at_work_the_number_must_be_well_known(
    tmp_path: Path, spread: float, busy: bool, sure: bool
) -> None:
    def durations(case: Case, ranks: int, iterations: int) -> np.ndarray:
        times = 160_000 * np.linspace(1, 1 + spread, iterations) if case.pair == "1-3" else np.full(iterations, 80_000)
        return (times * np.ones((ranks, 1))).astype(np.int64)

    folder = make_run(tmp_path / "run", pairs_of(4, sizes=[SMALL]), durations)
    manifest = folder.read_manifest()
    load = 30.0 if busy else 0.0
    manifest.environment = [
        {"host": "alpha", "machine": "alpha", "ranks": [0, 1, 2, 3], "cpus_allowed": 4, "load_1min": load}
    ]
    folder.write_manifest(manifest)
    [matrix] = matrices(load_run(folder.path))
    found = matrix.slow(LATENCY) if sure else matrix.doubtful(LATENCY)
    assert [one.pair.ranks for one in found] == [(1, 3)]
    reading = found[0].pair.readings["latency"]
    assert (list(reading.doubts), reading.is_vague) == (["noisy_cpu"] if busy else [], spread > 0)
    assert matrix.count_slow() == sure


def test_too_few_iterations_are_never_sure(tmp_path: Path) -> None:
    [matrix] = matrices(measured(tmp_path, pairs_of(4), slow_host(2), iterations=5))
    assert matrix.slow(BANDWIDTH) == []
    assert len(matrix.doubtful(BANDWIDTH)) == 3


def test_the_margin_is_what_was_asked_for(tmp_path: Path) -> None:
    run = measured(tmp_path, pairs_of(4), slow_host(2))
    assert [one.count_slow() for margin in (0.2, 0.6, 0.7) for one in matrices(run, margin)] == [3, 3, 0]


@pytest.mark.parametrize(("cases", "count"), [(pairs_of(2), "1 pair"), (pairs_of(3, pairs=["0-1", "0-2"]), "2 pairs")])
def test_of_fewer_than_three_pairs_nothing_is_said(tmp_path: Path, cases: list[Case], count: str) -> None:
    [matrix] = matrices(measured(tmp_path, cases, slow_host(0)))
    assert matrix.count_slow() == 0
    assert [matrix.usual(kind) for kind in KINDS] == [None, None]
    assert all(f"nothing can be said of {count}; it takes 3" in line for line in lines(matrix))


def test_where_most_hosts_are_slow_slow_is_usual(tmp_path: Path) -> None:
    """As the documentation says."""
    [matrix] = matrices(measured(tmp_path, pairs_of(4), slow_host(0, 1, 2)))
    assert matrix.count_slow() == 0


def test_several_ranks_of_one_host_are_one_suspect(tmp_path: Path) -> None:
    worse: Worse = lambda case: 2 if len({2, 3} & set(case.members)) == 1 else 1  # noqa: E731
    [matrix] = matrices(measured(tmp_path, pairs_of(8), worse, names=lambda rank: f"node{rank // 2}"))
    assert matrix.culprits(matrix.slow(LATENCY)) == ["node1 is in every slow pair"]
    assert matrix.name(3) == "rank 3 on node1"


def test_ranks_of_one_machine_are_named_by_their_numbers(tmp_path: Path) -> None:
    [matrix] = matrices(measured(tmp_path, pairs_of(4), slow_host(2), names=lambda rank: "alone"))
    assert matrix.culprits(matrix.slow(BANDWIDTH)) == ["rank 2 on alone is in every slow pair"]


def test_a_pair_that_failed_says_why_and_the_others_are_judged(tmp_path: Path) -> None:
    *cases, failed = pairs_of(4)
    failures = [Failure(case_id=failed.id, launch=1, reason="rank 3 on host3: Connection refused")]
    run = measured(tmp_path, cases, slow_host(0), unmeasured=[failed], failures=failures)
    [matrix] = matrices(run)
    assert slow(matrix)["bandwidth"] == {(0, 1), (0, 2), (0, 3)}
    last = rows(matrix)[-1]
    assert (last["rank_a"], last["rank_b"], last["host_b"]) == (2, 3, "host3")
    assert (last["bandwidth_gbit_s"], last["latency_us"]) == (None, pytest.approx(40.4, rel=1e-3))
    assert last["reason"] == "failed: rank 3 on host3: Connection refused"


def test_what_differs_otherwise_has_a_matrix_of_its_own(tmp_path: Path) -> None:
    cases = [*pairs_of(3, backends=["gloo", "tcp"]), make_case("send_recv", world_size=3, tensor_bytes=LARGE)]
    found = matrices(measured(tmp_path, cases))
    assert [one.title for one in found] == ["send_recv, gloo, K=1, N=3", "send_recv, tcp, K=1, N=3"]
    assert [len(one.pairs) for one in found] == [3, 3]


def test_a_run_without_pairs_has_no_matrix(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no cases between pairs; netbench matrix without a run"):
        matrices(measured(tmp_path, [make_case("send_recv")]))


@pytest.mark.parametrize("format", LISTINGS)
def test_rows_have_units_intervals_and_verdicts_in_every_format(tmp_path: Path, format: str) -> None:
    found = matrices(measured(tmp_path, pairs_of(3), slow_host(2)))
    file, aside = io.StringIO(), io.StringIO()
    write_matrices(found, LISTINGS[format], file, aside)
    text = file.getvalue()
    if format == "table":
        assert "host2 is in every slow pair" in text
        assert "latency us" in text
        assert "40.4" in text
        assert "0.188" in text
        assert aside.getvalue() == ""
        return
    assert "host2 is in every slow pair" in aside.getvalue()
    if format == "json":
        first, second, _ = json.loads(text)
        assert (first["slow"], second["slow"]) == ([], ["bandwidth"])
        assert first["latency_low_us"] <= first["latency_us"] <= first["latency_high_us"]
        assert second["bandwidth_gbit_s"] == pytest.approx(0.19 / 3, rel=0.03)
        assert second["bandwidth_usual_gbit_s"] == pytest.approx(0.19, rel=0.03)
        assert (second["latency_bytes"], second["bandwidth_bytes"], second["retransmits"]) == (SMALL, LARGE, 0)
    else:
        assert text.splitlines()[0].startswith(
            "run_id,mode,backend,streams,world_size,variant,rank_a,rank_b,host_a,host_b"
        )
        assert len(text.splitlines()) == 4


def drawn(run: Run) -> dict[str, Figure]:
    return dict(draw(run))


def test_pairs_have_the_heat_map_and_no_other_figure(tmp_path: Path) -> None:
    usual = [make_case("send_recv", world_size=4, tensor_bytes=size) for size in (SMALL, LARGE)]
    figures = drawn(measured(tmp_path, pairs_of(4) + usual, slow_host(2)))
    assert set(figures) == {"bandwidth-send_recv", "matrix-send_recv-gloo-k1"}
    assert len(panels(figures["bandwidth-send_recv"])[0].get_lines()) == 1
    assert not any("pair" in text.get_text() for text in figures["bandwidth-send_recv"].texts)


def test_cells_hold_the_numbers_of_the_pairs_on_both_sides_of_the_diagonal(tmp_path: Path) -> None:
    figure = drawn(measured(tmp_path, pairs_of(4), slow_host(2), spread=0))["matrix-send_recv-gloo-k1"]
    latency, bandwidth = panels(figure)
    assert (latency.get_title(), bandwidth.get_title()) == ("latency of 8 B", "bandwidth of 8 MiB")
    for axes in (latency, bandwidth):
        assert [label.get_text() for label in axes.get_xticklabels()] == [f"host{rank}" for rank in range(4)]
    assert [label.get_text() for label in latency.get_yticklabels()] == [f"host{rank}" for rank in range(4)]
    cells = {text.get_position(): text.get_text() for text in bandwidth.texts}
    assert cells == {
        (column, row): "-" if row == column else "63.3" if 2 in (row, column) else "190"
        for row in range(4)
        for column in range(4)
    }
    assert {text.get_text() for text in latency.texts} == {"-", "40"}
    framed = [patch.get_xy() for patch in bandwidth.patches if isinstance(patch, Rectangle)]
    assert {(round(y), round(x)) for x, y in framed} == {(2, 0), (2, 1), (2, 3), (0, 2), (1, 2), (3, 2)}
    assert not latency.patches
    bars = [axes.get_ylabel() for axes in figure.axes if axes.get_label() == "<colorbar>"]
    assert bars == ["latency (us)", "bandwidth (Mbit/s)"]


def test_slower_is_darker_in_both_and_the_text_stays_readable(tmp_path: Path) -> None:
    worse: Worse = lambda case: 3 if 2 in case.members else 1  # noqa: E731
    figure = drawn(measured(tmp_path, pairs_of(4), worse))["matrix-send_recv-gloo-k1"]
    for axes in panels(figure):
        [image] = axes.get_images()
        values = np.asarray(image.get_array())
        slow_grey, fast_grey = (float(image.cmap(image.norm(values[cell]))[0]) for cell in ((0, 2), (0, 1)))
        assert 0.45 <= slow_grey < fast_grey <= 1
    assert all(colour[0] == colour[1] == colour[2] for colour in image.cmap([0.0, 0.5, 1.0]))


def test_one_number_a_pair_and_directions_that_were_measured_apart_stay_apart(tmp_path: Path) -> None:
    cases = pairs_of(3, modes=["send"], pairs=["0-1", "1-0", "0-2", "1-2"])
    worse: Worse = lambda case: 3 if case.pair == "1-0" else 1  # noqa: E731
    figure = drawn(measured(tmp_path, cases, worse, spread=0))["matrix-send-gloo-k1"]
    cells = {text.get_position(): text.get_text() for text in panels(figure)[1].texts}
    assert (cells[1, 0], cells[0, 1]) == ("95", "31.7")  # (column, row): row 1 is where rank 1 is first
    assert cells[2, 0] == cells[0, 2] == "95"


def test_a_pair_without_a_number_is_said_to_be_so(tmp_path: Path) -> None:
    cases = pairs_of(3)
    failures = [Failure(case_id=case.id, launch=1, reason="refused") for case in cases[-2:]]
    run = measured(tmp_path, cases[:-2], unmeasured=cases[-2:], failures=failures)
    figure = drawn(run)["matrix-send_recv-gloo-k1"]
    assert [text.get_text() for text in panels(figure)[0].texts].count("none") == 2
    assert any("not drawn: 1 pair without" in text.get_text() for text in figure.texts)
    nothing = measured(tmp_path / "no", [], unmeasured=cases)
    assert drawn(nothing) == {}


@pytest.mark.parametrize(
    ("hosts", "names"),
    [(2, "host{}"), (4, "host{}"), (16, "host{}"), (16, "ip-10-0-117-{}.eu-west-1.compute.internal"), (40, "n{}")],
)
def test_nothing_lies_upon_anything(tmp_path: Path, hosts: int, names: str) -> None:
    run = measured(tmp_path, pairs_of(hosts), slow_host(1), names=names.format, iterations=6, warmup=0)
    figure = drawn(run)["matrix-send_recv-gloo-k1"]
    FigureCanvasAgg(figure).draw()
    assert overlaps(figure) == []
