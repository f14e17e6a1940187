"""The measurement, told as a story: what happens when, on a clock that moves only when it is read."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from datetime import timedelta

import numpy as np
import pytest

from netbench.measure import time_iterations, wait_all
from netbench.record import MEASURED


class Story:
    """Notes what happens. Its clock gains 10 ns by every reading, and 500 ns by every operation."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.now_ns = 0

    def clock(self) -> int:
        self.events.append("clock")
        self.now_ns += 10
        return self.now_ns

    def barrier(self) -> None:
        self.events.append("barrier")

    def operation(self) -> None:
        self.events.append("operation")
        self.now_ns += 500

    def between(self) -> None:
        self.events.append("between")

    def usage(self) -> tuple[int, int, int, int, int]:
        """User and system time, page faults and the two kinds of context switches, each with a pace of its own."""
        self.events.append("usage")
        return self.now_ns, 2 * self.now_ns, 3 * self.now_ns, 4 * self.now_ns, 5 * self.now_ns

    def run(self, count: int, warmup: bool = False) -> np.ndarray:
        return time_iterations(
            count,
            warmup,
            self.barrier,
            self.operation,
            clock=self.clock,
            usage=self.usage,
            used=lambda early, late: tuple(after - before for before, after in zip(early, late, strict=True)),
            between=self.between,
        )


def column(samples: np.ndarray, name: str) -> list[int]:
    return samples[:, MEASURED.index(name)].tolist()


def test_an_iteration_is_a_barrier_and_then_one_operation_with_nothing_else_between_the_readings() -> None:
    story = Story()
    story.run(2)
    one = ["barrier", "usage", "clock", "operation", "clock", "usage", "between"]
    assert story.events == one + one


def test_times_are_the_clocks() -> None:
    samples = Story().run(3)
    assert samples.shape == (3, len(MEASURED))
    assert samples.dtype == np.int64
    assert column(samples, "iteration") == [0, 1, 2]
    assert column(samples, "start_ns") == [10, 530, 1050]
    assert column(samples, "duration_ns") == [510, 510, 510]


def test_counters_are_what_was_added_during_the_operation() -> None:
    samples = Story().run(2)
    assert column(samples, "cpu_user_ns") == [520, 520]
    assert column(samples, "cpu_system_ns") == [1040, 1040]
    assert column(samples, "minor_faults") == [1560, 1560]
    assert column(samples, "voluntary_switches") == [2080, 2080]
    assert column(samples, "involuntary_switches") == [2600, 2600]


@pytest.mark.parametrize("warmup", [True, False])
def test_a_warm_up_is_flagged(warmup: bool) -> None:
    assert column(Story().run(2, warmup), "warmup") == [warmup, warmup]


def test_no_iteration_gives_no_row() -> None:
    assert Story().run(0).shape == (0, len(MEASURED))


@pytest.fixture
def collector() -> Iterator[None]:
    assert gc.isenabled()
    yield
    gc.enable()


@pytest.mark.usefixtures("collector")
def test_garbage_is_not_collected_while_measuring_and_again_afterwards() -> None:
    seen: list[bool] = []
    time_iterations(1, False, lambda: seen.append(gc.isenabled()), lambda: seen.append(gc.isenabled()))
    assert seen == [False, False]
    assert gc.isenabled()


@pytest.mark.usefixtures("collector")
def test_garbage_is_collected_again_after_an_operation_that_failed() -> None:
    def lost() -> None:
        raise RuntimeError("connection closed by peer")

    with pytest.raises(RuntimeError, match="closed by peer"):
        time_iterations(1, False, lambda: None, lost)
    assert gc.isenabled()


class Work:
    """Something to be waited for: notes the limits it was given, then ends well or with an error."""

    def __init__(self, error: str = "") -> None:
        self.error = error
        self.limits: list[float] = []

    def wait(self, limit: timedelta) -> None:
        self.limits.append(limit.total_seconds())
        if self.error:
            raise RuntimeError(self.error)


def test_all_is_waited_for_once() -> None:
    works = [Work(), Work(), Work()]
    wait_all(works, time.monotonic() + 60)
    assert [len(work.limits) for work in works] == [1, 1, 1]


def test_the_first_error_is_kept_and_the_rest_is_still_waited_for() -> None:
    works = [Work(), Work("the cause"), Work("a consequence"), Work()]
    with pytest.raises(RuntimeError, match="the cause"):
        wait_all(works, time.monotonic() + 60)
    assert [len(work.limits) for work in works] == [1, 1, 1, 1]


def test_one_deadline_is_shared_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([100.0, 103.0, 109.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(readings))
    works = [Work(), Work(), Work()]
    wait_all(works, deadline=110.0)
    assert [work.limits for work in works] == [[10.0], [7.0], [1.0]]


def test_after_the_deadline_a_work_is_still_given_a_moment_since_zero_means_for_ever() -> None:
    work = Work()
    wait_all([work], deadline=time.monotonic() - 5)
    assert work.limits == [0.001]
