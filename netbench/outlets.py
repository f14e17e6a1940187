"""Standard output and standard error in the field: closed, full, hung up, or of an encoding without umlauts.

What cannot be shown must not end a sweep, nor be taken for shown. Standard error falls silent; standard output raises
StorageError, or BrokenPipeError where its reader has had enough. What an encoding lacks is written out, as ``\\xe4``.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import TextIO, cast

from netbench.errors import StorageError


class _Out(io.FileIO):
    """Standard output."""

    def write(self, content: object) -> int:
        try:
            return super().write(content)  # type: ignore[arg-type]
        except BrokenPipeError:
            raise
        except OSError as error:
            raise StorageError(f"standard output: cannot be written: {error.strerror}") from None


class _Silent(io.FileIO):
    """Standard error: where nobody can read it, nobody misses it."""

    def write(self, content: object) -> int:
        try:
            return super().write(content)  # type: ignore[arg-type]
        except OSError:
            return memoryview(content).nbytes  # type: ignore[arg-type]


def open_outlets() -> None:
    """Puts both in the places of ``sys.stdout`` and ``sys.stderr``."""
    closed = [number for number in (0, 1, 2) if not _is_open(number)]
    for number in closed:
        # Else the next file to be opened has this number, and whatever is printed ends in it. One that is only read
        # refuses what is printed to standard output, so that it is missed.
        place = os.open(os.devnull, os.O_RDONLY)
        assert place == number, f"{place} is not {number}"
    sys.stdout = _text(_Out(1, "wb", closefd=False), sys.stdout, line_buffered=os.isatty(1))
    sys.stderr = _text(_Silent(2, "wb", closefd=False), sys.stderr, line_buffered=True)


def let_go_of_stdout() -> None:
    """Whatever is still printed is lost from now on: the reader of a pipe (head, say) has had enough."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _text(raw: io.FileIO, before: TextIO | None, line_buffered: bool) -> TextIO:
    if before is not None:
        with suppress(OSError):
            before.flush()
    encoding = before.encoding if before is not None else "utf-8"
    return cast(
        TextIO,
        io.TextIOWrapper(io.BufferedWriter(raw), encoding, "backslashreplace", "", line_buffering=line_buffered),
    )
