"""Hosts that are separate ones to netbench: the hosts of a lab, in each of which a command of its own runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from programs import Program

from netbench.lab import Capability, HostAddress, Lab, LabSpec, capability


@cache
def _allowed() -> Capability:
    return capability(LabSpec.parse("1x100mbit"))


class Hosts:
    """A lab, and the programs that have been started in its hosts."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._begun: list[Program] = []

    def __getitem__(self, number: int) -> HostAddress:
        return self._lab.hosts[number]

    @property
    def switch(self) -> HostAddress:
        return self._lab.switch

    def netbench(self, number: int, *typed: str, within: Sequence[str] = (), **environment: str) -> Program:
        """Starts a command in a host; ``within`` is what it is wrapped in there, as ``unshare``."""
        program = Program(*typed, prefix=self[number].command(within), **environment)
        self._begun.append(program)
        return program

    def end(self) -> None:
        for program in self._begun:
            program.kill()


@pytest.fixture
def hosts(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Hosts]]:
    """``hosts("2x200mbit")`` is a lab of hosts; it ends with the test, with all that was started in it."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
    if reason := _allowed().refusal:
        pytest.skip(reason)
    # A program in a host has another working directory in mind than the tests, and finds the package all the same.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])]))
    opened: list[Lab] = []
    made: list[Hosts] = []

    def make(spec: str) -> Hosts:
        lab = Lab(LabSpec.parse(spec))
        lab.__enter__()
        opened.append(lab)
        made.append(Hosts(lab))
        return made[-1]

    yield make
    for one in made:
        one.end()
    for lab in opened:
        lab.close()
