"""Labs for tests: every test has a list of labs of its own, and skips with the reason where labs are forbidden."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from netbench.lab import Capability, LabSpec, capability, down, list_labs


@cache
def _allowed() -> Capability:
    return capability(LabSpec.parse("1x100mbit"))


@pytest.fixture(autouse=True)
def own_roster(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Labs of whoever runs the tests stay out of sight; one that a test leaves is taken down, and is a failure."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
    if reason := _allowed().refusal:
        pytest.skip(reason)
    yield
    left = list_labs()
    for lab in left:
        down(lab.name)
    assert not left, f"left behind: {[lab.name for lab in left]}"


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool], str], None]:
    """Waits up to ten seconds for something that the kernel or another process is about to do."""

    def wait(condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline, f"waited 10 s: {what}"
            time.sleep(0.02)

    return wait


@pytest.fixture
def traffic() -> Path:
    return Path(__file__).with_name("traffic.py")
