"""What a person sees while a sweep runs."""

from __future__ import annotations

import io
import time
from datetime import UTC, datetime

import pytest
from rich.console import Console
from synthetic import make_case

from netbench.display import Display, LiveDisplay, PlainDisplay, Row, make_display
from netbench.model import Case
from netbench.record import Manifest

PING = make_case("send_recv", "gloo", 1, 2, 1_000_000)
REDUCE = make_case("allreduce", "parallel_gloo", 4, 3, 1_000_000)
CASES = [PING, REDUCE, make_case("broadcast", "gloo", 1, 2, 4)]


def manifest(cases: list[Case] = CASES) -> Manifest:
    return Manifest(
        run_id="r", name="n", netbench="0", command=[], started_at=datetime.now(UTC), config={}, cases=cases
    )


def test_a_row_shows_the_bandwidth_of_its_mode() -> None:
    assert Row(PING, 0.002).algbw == "8 Gbit/s"  # a megabyte there and back in 2 ms
    assert Row(REDUCE, 0.002).algbw == "4 Gbit/s"
    assert Row(REDUCE, 0.002).time == "2 ms"


def test_a_case_that_moved_wrong_data_shows_no_bandwidth() -> None:
    assert Row(REDUCE, 0.002, "wrong").algbw == ""


def test_plain_lines_count_and_tell_how_each_case_ended(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay()
    display.begin(manifest(), CASES)
    display.launching(3, ["alpha"])
    display.started(PING)
    display.finished(PING, 0.002, "ok")
    display.failed(REDUCE, "rank 1 was ended by SIGKILL")
    display.skipped(CASES[2], "needs 5 GiB")
    display.end()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "starting 3 ranks",
        "[1/3] send_recv-gloo-k1-n2-1MB  2 ms  8 Gbit/s",
        "[2/3] allreduce-parallel_gloo-k4-n3-1MB  failed: rank 1 was ended by SIGKILL",
        "[3/3] broadcast-gloo-k1-n2-4B  skipped: needs 5 GiB",
    ]


def test_a_resumed_sweep_counts_what_was_done_before(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay()
    display.begin(manifest(), CASES[2:])
    display.finished(CASES[2], 1.0, "wrong")
    assert capsys.readouterr().err.startswith("[3/3] broadcast-gloo-k1-n2-4B  wrong")


def test_the_time_left_follows_from_the_bytes_moved_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    small = [make_case("allreduce", "gloo", 1, 2, size) for size in (4, 8, 12)]
    display = Display()
    display.begin(manifest(small), small)
    assert display.remaining_s() is None
    display.started(small[0])
    now += 10.0
    display.finished(small[0], 0.1, "ok")
    assert display.remaining_s() == pytest.approx(20.0, rel=0.01)
    now += 5.0
    display.skipped(small[1], "too large")
    assert display.remaining_s() == pytest.approx(7.5, rel=0.01)
    display.finished(small[2], 0.1, "ok")
    assert display.remaining_s() == 0


@pytest.fixture
def screen() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=160, height=40, _environ={})


def shown(screen: Console) -> str:
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def test_the_live_view_shows_the_bar_the_case_under_way_and_the_rows_that_ended(screen: Console) -> None:
    display = LiveDisplay(screen)
    display.begin(manifest(), CASES)
    display.launching(3, ["alpha"])
    display.started(PING)
    display.finished(PING, 0.002, "ok")
    display.started(REDUCE)
    with screen.capture() as captured:
        screen.print(display._render())
    display.end()
    view = captured.get()
    assert "send_recv-gloo-k1-n2-1MB" in view
    assert "8 Gbit/s" in view
    assert "1/3" in view
    assert "elapsed" in view
    assert "left" in view
    assert view.rstrip().endswith("allreduce-parallel_gloo-k4-n3-1MB")


def test_the_live_view_leaves_the_last_rows_on_the_screen(screen: Console) -> None:
    display = LiveDisplay(screen, rows=2)
    display.begin(manifest(), CASES)
    for case in CASES[:2]:
        display.finished(case, 0.002, "ok")
    display.failed(CASES[2], "lost a peer")
    display.end()
    last = shown(screen).split("\x1b[2K")[-1]
    assert "failed: lost a peer" in shown(screen)
    assert "3/3" in last
    assert "send_recv" not in last  # two rows are kept


def test_the_live_view_shows_that_bytes_of_a_long_operation_move(screen: Console) -> None:
    display = LiveDisplay(screen)
    display.begin(manifest(), CASES)
    display.started(PING)
    display.moving(PING, 5e6)
    display.broken(1, "rank 1 on alpha was ended by [SIGKILL]")
    with screen.capture() as captured:
        screen.print(display._render())
    display.end()
    assert "a long operation, 5 Mbit/s" in " ".join(captured.get().split())
    assert "launch 1 ended early: rank 1 on alpha was ended by [SIGKILL]" in shown(screen)


def test_plain_lines_say_why_another_launch_is_begun(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay()
    display.begin(manifest(), CASES)
    display.moving(PING, 5e6)  # not worth a line each second
    display.broken(1, "rank 1 on alpha was ended by SIGKILL")
    assert capsys.readouterr().err == "launch 1 ended early: rank 1 on alpha was ended by SIGKILL\n"


def test_ending_twice_or_before_it_began_does_no_harm(screen: Console) -> None:
    display = LiveDisplay(screen)
    display.end()
    display.begin(manifest(), CASES)
    display.end()
    display.end()
    assert "0/3" in shown(screen)


def test_lines_are_plain_where_stderr_is_no_terminal() -> None:
    assert isinstance(make_display(), PlainDisplay)
