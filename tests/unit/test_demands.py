"""How many open files a launch needs, and what is done about a limit that is lower."""

from __future__ import annotations

import resource

import pytest
from synthetic import make_case

from netbench import demands, limits
from netbench.demands import allow_open_files, open_files
from netbench.errors import LaunchError

SMALL = [make_case(streams=1, backend="gloo")]


def test_groups_are_counted_once_however_many_cases_use_them() -> None:
    assert open_files([*SMALL, make_case(mode="allreduce", streams=1, backend="gloo")]) == open_files(SMALL)


def test_every_group_of_the_launch_counts_since_all_stay_open() -> None:
    more = [*SMALL, make_case(streams=20, backend="split_gloo")]
    assert open_files(more) - open_files(SMALL) == limits.descriptors(20, 2) == 20 * 6


def test_a_backend_with_twice_the_groups_needs_twice_as_many() -> None:
    one_way = [*SMALL, make_case(mode="exchange", streams=4, backend="one_way_gloo")]
    assert open_files(one_way) - open_files(SMALL) == limits.descriptors(8, 2)


def test_a_choice_of_streams_needs_all_of_them() -> None:
    chosen = [*SMALL, make_case(streams=0, backend="parallel_gloo")]
    assert open_files(chosen) - open_files(SMALL) == limits.descriptors(16, 2)


class Limit:
    """A process's limit of open files, without touching this one's."""

    def __init__(self, soft: int, hard: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = (soft, hard)
        monkeypatch.setattr(demands.resource, "getrlimit", lambda _: self.now)
        monkeypatch.setattr(demands.resource, "setrlimit", lambda _, new: setattr(self, "now", new))


def test_a_limit_that_suffices_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = Limit(1024, 4096, monkeypatch)
    allow_open_files(SMALL)
    assert limit.now == (1024, 4096)
    limit = Limit(resource.RLIM_INFINITY, resource.RLIM_INFINITY, monkeypatch)
    allow_open_files(SMALL)
    assert limit.now == (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


@pytest.mark.parametrize("hard", [4096, resource.RLIM_INFINITY])
def test_a_soft_limit_is_raised_as_far_as_needed(hard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = Limit(32, hard, monkeypatch)
    allow_open_files(SMALL)
    assert limit.now == (open_files(SMALL), hard)


def test_a_hard_limit_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    Limit(32, 33, monkeypatch)
    needed = open_files(SMALL)
    with pytest.raises(LaunchError, match=f"needs up to {needed} open files, .*limit here is 33: .*ulimit -n {needed}"):
        allow_open_files(SMALL)
