"""Which labs are up: one file for each in a folder of this user's, locked by the process that holds the lab.

The kernel drops the lock when that process ends, however it ends, so a file without a lock belongs to a dead lab and
is removed by whoever sees it next; a process id, which may be in use again, is never trusted alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from netbench.errors import LaunchError, UsageError, did_you_mean
from netbench.lab.host import HostAddress


@dataclass(frozen=True)
class LabEntry:
    """A lab that is up.

    ``holder`` is the process that keeps it; ``owner`` is the process that it ends with, None for a lab that stays
    until it is taken down.
    """

    name: str
    spec: str
    way: str
    holder: int
    owner: int | None
    switch: HostAddress
    hosts: tuple[HostAddress, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> LabEntry:
        fields = json.loads(text)
        fields["switch"] = HostAddress(**fields["switch"])
        fields["hosts"] = tuple(HostAddress(**host) for host in fields["hosts"])
        return cls(**fields)

    def host(self, name: str) -> HostAddress:
        """The host of this name, or the switch. Raises UsageError with the nearest name."""
        known = {host.name: host for host in (*self.hosts, self.switch)}
        if name not in known:
            raise UsageError(
                f"lab {self.name} has no host {name!r}{did_you_mean(name, known)} (known: {', '.join(known)})"
            )
        return known[name]


class Roster:
    """The folder of the labs of one user."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or _own_folder()

    def claim(self) -> Place:
        """A free name, held until this process ends."""
        with self._alone():
            self._sweep()
            number = 1
            while self._file(f"lab{number}").exists():
                number += 1
            return Place(self._file(f"lab{number}"))

    def entries(self) -> list[LabEntry]:
        """The labs that are up, by name; files of dead ones are removed."""
        with self._alone():
            self._sweep()
            texts = [path.read_text() for path in self.folder.glob("lab*.json")]
        # An empty file belongs to a lab that is being made.
        labs = [LabEntry.from_json(text) for text in texts if text]
        return sorted(labs, key=lambda lab: (len(lab.name), lab.name))

    def find(self, name: str) -> LabEntry:
        """Raises UsageError, with the labs that are up, when there is none of this name."""
        labs = {lab.name: lab for lab in self.entries()}
        if name not in labs:
            known = f"up: {', '.join(labs)}" if labs else "none is up; 'netbench lab up 2x200mbit' makes one"
            raise UsageError(f"there is no lab {name!r}{did_you_mean(name, labs)} ({known})")
        return labs[name]

    def is_up(self, name: str) -> bool:
        return _locked(self._file(name))

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _sweep(self) -> None:
        for path in self.folder.glob("lab*.json"):
            if not _locked(path):
                path.unlink(missing_ok=True)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keeps a file that has just been made, and not yet been locked, from being taken for a dead lab's."""
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


class Place:
    """A name in the roster; ``leave`` gives it up, and so does the end of the process."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def write(self, entry: LabEntry) -> None:
        os.pwrite(self._descriptor, entry.to_json().encode(), 0)

    def leave(self) -> None:
        self._path.unlink(missing_ok=True)


def _locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def _own_folder() -> Path:
    """``$XDG_RUNTIME_DIR/netbench``, else a folder of this user's among the temporary files; nobody else may enter."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir() and os.access(runtime, os.W_OK):
        folder = Path(runtime, "netbench")
    else:
        folder = Path(tempfile.gettempdir(), f"netbench-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise LaunchError(f"{folder}: the list of labs cannot be kept here: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise LaunchError(f"{folder}: is not a folder of yours alone; remove it, or set XDG_RUNTIME_DIR to one that is")
    return folder
