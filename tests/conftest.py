"""The program as a user starts it, for every test that wants it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
from programs import Program


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
