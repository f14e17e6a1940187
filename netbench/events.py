"""What the workers tell the parent while they run: JSON lines that rank 0 appends to a file and the parent follows.

A file needs no connection that could break, works with any launcher, and can be read after a crash.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

from netbench.facts import checked_hosts
from netbench.foreign import parse_json
from netbench.record import cannot_be_written

#: Between iterations rank 0 gives a sign of life this often, seconds.
HEARTBEAT_S = 1.0


class EventWriter:
    """Appends events; writes nothing where there is no path (any rank but 0). Every method raises StorageError."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._last = time.monotonic()
        self._file: FileIO | None = None
        if path is not None:
            try:
                # A line is one write, so that threads can tell at once.
                self._file = path.open("ab", buffering=0)
            except OSError as error:
                raise cannot_be_written(path, error) from None

    def tell(self, event: str, **facts: Any) -> None:
        if self._path is not None and self._file is not None:
            line = json.dumps({"event": event, **facts}, allow_nan=False).encode() + b"\n"
            try:
                if self._file.write(line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # the disk had room for a part of it
            except OSError as error:
                raise cannot_be_written(self._path, error) from None
        self._last = time.monotonic()

    def alive(self) -> bool:
        """Cheap enough to be called after every iteration; whether it was time for a sign of life."""
        if time.monotonic() - self._last < HEARTBEAT_S:
            return False
        self.tell("alive")
        return True


class EventReader:
    """Follows the file; whatever is not yet a whole line is left for the next call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def new(self) -> Iterator[dict[str, Any]]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                content = file.read()
        except FileNotFoundError:
            return
        whole = content[: content.rfind(b"\n") + 1]
        self._position += len(whole)
        for line in whole.splitlines():
            if (event := _event(line)) is not None:
                yield event


#: What is read of an event of each kind; one that lacks any of it says nothing. Of others, only the kind is read.
_FACTS: dict[str, dict[str, type]] = {
    "hosts": {"hosts": list},
    "started": {"case_id": str},
    "moving": {"case_id": str, "bit_s": float},
    "visited": {"case_id": str, "time_s": float},
    "finished": {"case_id": str, "time_s": float, "status": str},
    "skipped": {"case_id": str, "reason": str},
}


def _event(line: bytes) -> dict[str, Any] | None:
    """The event of a line; None where it is none, as the rest of one that a full disk or a crash has cut."""
    try:
        event = parse_json(line)
        if not isinstance(event, dict) or not isinstance(event["event"], str):
            return None
        for name, kind in _FACTS.get(event["event"], {}).items():
            if not isinstance(event[name], (int, float) if kind is float else kind):
                return None
        if event["event"] == "hosts":
            checked_hosts(event["hosts"])
    except (ValueError, KeyError):
        return None
    return event
