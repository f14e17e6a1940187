"""What holds for every test: the program as a user starts it, and which tests have the machine to themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from programs import Program

import netbench.__main__ as main

HERE = Path(__file__).parent

#: What measures the network or the machine, looks at namespaces of the whole machine, or has limits of a second or two.
#: ``make test`` runs it one test after another, and all else two at a time.
ALONE = [
    "e2e/test_benchmarks.py",
    "faults/test_links.py",
    "lab/test_iperf3.py",
    "lab/test_lab_life.py",
    "lab/test_lab_rates.py",
    "lab/test_seeds.py",
    "lab/test_slow_host.py",
    "ranks/test_control.py",
    "ranks/test_process_group.py",
    "ranks/test_pulse.py",
    "ranks/test_scheduling.py",
    "ranks/test_wire.py",
    "ranks/test_without_peers.py",
]

# typer builds all commands anew each time that it is asked, which takes longer than most of the commands themselves.
main.get_command = cache(main.get_command)  # type: ignore[attr-defined]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    alone = [HERE / place for place in ALONE]
    for item in items:
        if any(item.path.is_relative_to(place) for place in alone):
            item.add_marker("alone")


@pytest.fixture
def netbench() -> Iterator[Callable[..., Program]]:
    """``netbench("sweep", ...)`` starts a command; whatever is left of it is ended with the test."""
    begun: list[Program] = []

    def start(*typed: str, prefix: Sequence[str] = (), **environment: str) -> Program:
        begun.append(Program(*typed, prefix=prefix, **environment))
        return begun[-1]

    yield start
    for program in begun:
        program.kill()
