"""The mistakes of users and machines, each with the exit code it ends the program with.

Our own mistakes are ``assert``; doubtful data is a verdict, not an error.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import IntEnum
from typing import Self


class Exit(IntEnum):
    """What the exit code of every command means."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Self:
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    DONE = 0, "done"
    CASE_FAILED = 1, "a case failed or moved wrong data; or what compare, check, matrix or doctor gates is not so"
    USAGE = 2, "an option, a TOML key, a path or a name is wrong"
    UNDECIDED = 3, "check: the intervals do not tell"
    RECORD = 4, "a record is damaged, empty, in use or of a newer version"
    LAUNCH = 5, "the workers, another host or the lab could not be started"
    STORAGE = 6, "the results cannot be written: full, read-only, removed"
    INTERRUPTED = 130, "stopped by Ctrl-C"
    TERMINATED = 143, "stopped by SIGTERM or SIGHUP"


class NetbenchError(Exception):
    """Names the thing, the value and the way out; shown without a traceback."""

    exit_code = Exit.CASE_FAILED


class UsageError(NetbenchError):
    exit_code = Exit.USAGE


class RecordError(NetbenchError):
    exit_code = Exit.RECORD


class LaunchError(NetbenchError):
    exit_code = Exit.LAUNCH


class StorageError(NetbenchError):
    exit_code = Exit.STORAGE


class Stopped(NetbenchError):  # noqa: N818 - no error, but what was asked for
    """The user or the system asked the program to end; ``exit_code`` tells which."""

    def __init__(self, message: str, exit_code: Exit) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def did_you_mean(value: str, known: Iterable[str]) -> str:
    """The nearest of ``known`` as a half-sentence, or nothing: ``; did you mean 'allreduce'?``"""
    names = sorted(known)
    folded = {name.lower().replace("-", "_"): name for name in names}
    near = difflib.get_close_matches(value.lower().replace("-", "_"), folded, n=1, cutoff=0.5)
    return f"; did you mean {folded[near[0]]!r}?" if near else ""
