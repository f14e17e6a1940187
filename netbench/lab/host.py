"""Where one host of a lab is, as plain data, so that it travels to a worker in its job file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from netbench.errors import LaunchError, UsageError
from netbench.lab import namespaces


@dataclass(frozen=True)
class HostAddress:
    """A host (or the switch) of a lab.

    ``network`` and ``user`` are the paths of its namespaces, good while the lab is up; ``user`` is None in a lab
    made by root.
    """

    name: str
    address: str
    interface: str
    network: str
    user: str | None = None

    def enter(self) -> None:
        """Moves this process into the host. Sockets opened before, and threads started before, stay where they are.

        Raises LaunchError when the lab is gone. A process outside the lab's user namespace must have one thread.
        """
        try:
            if self.user is not None and not Path(self.user).samefile("/proc/self/ns/user"):
                namespaces.enter(self.user, namespaces.USER)
            namespaces.enter(self.network, namespaces.NETWORK)
            # The lab takes its paths away before it looks for processes to end. Whoever came in too late to be seen
            # finds the path gone, and goes as well.
            stays = Path(self.network).samefile("/proc/thread-self/ns/net")
        except (FileNotFoundError, ProcessLookupError):
            stays = False
        except OSError as error:
            raise LaunchError(f"{self.name} ({self.address}) cannot be entered: {error.strerror}") from None
        if not stays:
            raise LaunchError(f"{self.name} ({self.address}) is gone: its lab has been taken down")

    def command(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs ``argv`` in this host: same process id, so signals reach ``argv`` itself."""
        return [sys.executable, "-m", "netbench.lab.inside", json.dumps(asdict(self)), *argv]


def run_inside(host: HostAddress, argv: Sequence[str]) -> None:
    """Becomes ``argv`` in the host; returns never.

    Raises LaunchError when the lab is gone, UsageError when ``argv`` cannot be run.
    """
    host.enter()
    try:
        os.execvp(argv[0], list(argv))
    except OSError as error:
        raise UsageError(f"{argv[0]}: cannot be run: {error.strerror}") from None
