"""What is read of this machine before anything is run; a test puts another machine in its place."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from netbench import environment, memory
from netbench.interfaces import Address, Host

#: A name server that is not there takes five seconds or more to be given up by the resolver.
RESOLVER_LIMIT_S = 2.0

_CLOCK_IS_LOOSE = 5  # TIME_ERROR of adjtimex(2)


class PatientHost(Host):
    """Asks for each name once, and gives up after RESOLVER_LIMIT_S with TimeoutError."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self._answers: dict[str, list[Address] | Exception] = {}

    def resolve(self, name: str) -> list[Address]:
        if name not in self._answers:
            self._answers[name] = self._ask(name)
        answer = self._answers[name]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _ask(self, name: str) -> list[Address] | Exception:
        answers: list[list[Address] | Exception] = []

        def ask() -> None:
            try:
                answers.append(Host.resolve(self, name))
            except (OSError, UnicodeError) as error:
                answers.append(error)

        # The resolver cannot be interrupted; a daemon does not keep the program from ending.
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(RESOLVER_LIMIT_S)
        return answers[0] if answers else TimeoutError(f"no answer within {RESOLVER_LIMIT_S:.0f} s")


class Machine:
    """Readings of this host, none of which changes anything. Absent facts are None."""

    def __init__(self) -> None:
        self.host: Host = PatientHost()
        self.environ: Mapping[str, str] = os.environ

    def facts(self, interface: str) -> dict[str, Any]:
        """What a record would hold of this host; see ``environment.of_host``."""
        return environment.of_host(interface)

    def read(self, path: str) -> str | None:
        """The words of a file of the kernel's."""
        try:
            return " ".join(Path(path).read_text(encoding="utf-8").split())
        except (OSError, UnicodeDecodeError):
            return None

    def limit(self, which: int) -> tuple[int | None, int | None]:
        """The soft and the hard limit of this process; None is without limit."""
        soft, hard = resource.getrlimit(which)
        return tuple(None if most == resource.RLIM_INFINITY else most for most in (soft, hard))  # type: ignore[return-value]

    def free_bytes(self) -> int:
        """Memory that processes may still take, container limits included."""
        return memory.free_bytes()

    def load_1min(self) -> float:
        return psutil.getloadavg()[0]

    def size_bytes(self, path: str) -> int | None:
        """Of the file system at a path; None where there is none."""
        try:
            return shutil.disk_usage(path).total
        except OSError:
            return None

    def storage(self, path: Path) -> tuple[Path, int, bool]:
        """The nearest folder above ``path`` that exists, what is free there in bytes, and whether we may write."""
        there = next((one for one in (path.absolute(), *path.absolute().parents) if one.is_dir()), Path("/"))
        return there, shutil.disk_usage(there).free, os.access(there, os.W_OK | os.X_OK)

    def clock_is_synchronised(self) -> bool | None:
        """What the kernel was told by whoever keeps its clock (chrony, ntpd, systemd-timesyncd)."""
        try:
            # A struct timex with modes = 0 only asks; it has some 200 bytes.
            state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(1024))
        except (OSError, AttributeError):
            return None
        return None if state < 0 else state != _CLOCK_IS_LOOSE

    def now_s(self) -> float:
        return time.time()

    def listen(self, address: Address, port: int) -> None:
        """Listens there for a moment, as torch's store would. Raises OSError."""
        with socket.socket(_family(address), socket.SOCK_STREAM) as door:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            door.bind((str(address), port))
            door.listen()

    def connect(self, address: Address, port: int, limit_s: float) -> None:
        """Connects and hangs up. Raises OSError, which may be TimeoutError or ConnectionRefusedError."""
        with socket.socket(_family(address), socket.SOCK_STREAM) as caller:
            caller.settimeout(limit_s)
            caller.connect((str(address), port))

    def lab(self) -> tuple[str | None, str | None]:
        """How a lab can be made here, or else why not."""
        from netbench.lab import LabSpec, capability

        found = capability(LabSpec.parse("1x100mbit"))
        return found.way, found.refusal


def _family(address: Address) -> socket.AddressFamily:
    return socket.AF_INET if address.version == 4 else socket.AF_INET6
