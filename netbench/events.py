"""What the workers tell the parent while they run: JSON lines that rank 0 appends to a file and the parent follows.

A file needs no connection that could break, works with any launcher, and can be read after a crash.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: Between iterations rank 0 gives a sign of life this often, seconds.
HEARTBEAT_S = 1.0


class EventWriter:
    """Appends events; writes nothing where there is no path (any rank but 0)."""

    def __init__(self, path: Path | None) -> None:
        # A line is one write, so that threads can tell at once.
        self._file = path.open("ab", buffering=0) if path else None
        self._last = time.monotonic()

    def tell(self, event: str, **facts: Any) -> None:
        if self._file is not None:
            self._file.write(json.dumps({"event": event, **facts}, allow_nan=False).encode() + b"\n")
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
            yield json.loads(line)
