"""A machine before a sweep: what is asked of it, what several checks need to know, and what a check finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from netbench.endpoint import parse_endpoint
from netbench.errors import UsageError
from netbench.interfaces import Address, Choice, Interface, choose
from netbench.machine import Machine


class Level(StrEnum):
    """From ``note`` on there is advice; ``problem`` alone sets the exit code."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """``seen`` is what was found, with its unit; ``advice`` what to do about it."""

    level: Level
    seen: str
    advice: str = ""


@dataclass(frozen=True)
class Asked:
    """What a sweep is going to be given."""

    interface: str | None = None
    subnet: str | None = None
    endpoint: str | None = None
    streams: int = 4
    world_size: int = 3
    out: Path = Path("results")


class Examination:
    """A machine and what is asked of it, with what several checks need. Raises UsageError for a bad endpoint."""

    def __init__(self, machine: Machine, asked: Asked) -> None:
        self.machine = machine
        self.asked = asked
        self.peer: str | None = None
        if asked.endpoint is not None:
            try:
                self.peer, self.port = parse_endpoint(asked.endpoint)
            except ValueError as error:
                raise UsageError(f"--rdzv-endpoint: {error}") from None

    @cached_property
    def table(self) -> dict[str, Interface]:
        return self.machine.host.interfaces()

    @cached_property
    def choice(self) -> Choice | UsageError:
        """What would be bound to, or why there is nothing."""
        asked, machine = self.asked, self.machine
        try:
            return choose(asked.interface, asked.subnet, self.peer, machine.environ, host=machine.host)
        except UsageError as error:
            return error

    @cached_property
    def chosen(self) -> Interface | None:
        return self.table[self.choice.interface] if isinstance(self.choice, Choice) else None

    @cached_property
    def facts(self) -> dict[str, Any]:
        return self.machine.facts(self.chosen.name if self.chosen else "")

    @property
    def several_hosts(self) -> bool:
        """Whether other hosts are meant to take part, as far as it can be told."""
        return self.chosen is None or not self.chosen.loopback

    def owns(self, address: Address) -> bool:
        return address.is_loopback or any(address in one.addresses for one in self.table.values())
