"""A machine before a sweep: what is asked of it, what several checks need to know, and what a check finds."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

from netbench.errors import UsageError
from netbench.interfaces import Address, Choice, Interface, choose
from netbench.machine import Machine

#: Where torchrun meets when the endpoint names no port.
DEFAULT_PORT = 29400


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
            self.peer, self.port = parse_endpoint(asked.endpoint)

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


def parse_endpoint(text: str) -> tuple[str, int]:
    """``host0:29400``, ``10.0.0.1``, ``[fd00::1]:29400``, ``fd00::1`` as host and port. Raises UsageError."""
    with suppress(ValueError):
        return str(IPv6Address(text.strip())), DEFAULT_PORT
    found = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\s]+))(?::([0-9]{1,5}))?", text.strip())
    port = int((found and found[3]) or DEFAULT_PORT)
    if not found or not 0 < port < 65536:
        raise UsageError(f"--rdzv-endpoint: {text!r} is not HOST:PORT; write it as host0:29400 or [fd00::1]:29400")
    return found[1] or found[2], port
