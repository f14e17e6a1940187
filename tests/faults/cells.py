"""The fault matrix: every fault at every moment, with what has to come of it. docs/faults.md shows this table.

The tests in this folder are parametrised by it, so a cell says what was seen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from netbench.errors import Exit


@dataclass(frozen=True)
class Cell:
    """One fault at one moment: the exit code, the message with ``{}`` for what differs, and what is left."""

    fault: str
    moment: str
    #: Or minus a signal, where nothing is left to give one.
    exit: int
    message: str
    left: str
    #: Which rank it befalls, where it befalls one.
    rank: int | None = None
    #: Whether it takes too long for every commit, and is run by ``make soak``.
    soak: bool = False
    #: The test function, where it is elsewhere and has the message in its own words.
    test: str = ""

    @property
    def name(self) -> str:
        return f"{self.fault}, {self.moment}"

    def fits(self, text: str) -> bool:
        """Whether the message is somewhere in ``text``."""
        pieces = map(re.escape, " ".join(self.message.split()).split("{}"))
        return re.search(".+?".join(pieces), " ".join(text.split())) is not None


_KILLED = "rank {rank} on {} (pid {}) was ended by SIGKILL: by someone, or by a limit on memory"
_STOPPED = "rank {rank} on {} (pid {}) has been stopped, by SIGSTOP or a debugger"
_RAISES = "rank {rank} on {}: ValueError: sabotage"
_NO_MEMORY = "rank {rank} on {}: MemoryError; memory ran out: take smaller --sizes"
_LIMITED = "rank {rank} on {}: RuntimeError: {} can't allocate memory: {}; memory ran out: take smaller --sizes"
_OOM = "rank {rank} on {} (pid {}) was ended by SIGKILL: the kernel does that when memory runs out, and did; take"

_MESSAGES = {
    "killed": _KILLED,
    "stopped": _STOPPED,
    "raises": _RAISES,
    "out of memory": _NO_MEMORY,
    "over RLIMIT_AS": _LIMITED,
    "over its cgroup": _OOM,
}

#: At which moments, to which ranks; those that are left to ``make soak`` come after the others.
_OFTEN = [
    ("killed", "warm-up", 1),
    ("killed", "writing", 0),
    ("stopped", "timing", 1),
    ("raises", "timing", 1),
    ("out of memory", "warm-up", 0),
    ("over RLIMIT_AS", "timing", 1),
    ("over its cgroup", "timing", 1),
]
_SELDOM = [
    ("raises", "writing", 0),
    ("stopped", "writing", 0),
    ("killed", "timing", 0),
    ("stopped", "warm-up", 0),
    ("raises", "warm-up", 0),
    ("out of memory", "timing", 1),
    ("out of memory", "writing", 0),
    ("over RLIMIT_AS", "warm-up", 0),
    ("over RLIMIT_AS", "writing", 0),
    ("over its cgroup", "warm-up", 0),
    ("over its cgroup", "writing", 0),
]


def _in_a_case(fault: str, moment: str, rank: int, soak: bool) -> Cell:
    left = "all other cases; this one is booked as failed"
    message = _MESSAGES[fault].replace("{rank}", str(rank))
    return Cell(fault, moment, Exit.CASE_FAILED, message, left, rank, soak)


#: A rank is struck in a launch's second case.
IN_A_CASE = [
    *(_in_a_case(*cell, soak=False) for cell in _OFTEN),
    *(_in_a_case(*cell, soak=True) for cell in _SELDOM),
]


def _at_start(fault: str, rank: int, soak: bool) -> Cell:
    message = "ended before any case began: " + _MESSAGES[fault].replace("{rank}", str(rank))
    return Cell(fault, "start-up", Exit.LAUNCH, message, "what was finished before; --resume goes on", rank, soak)


#: A rank is struck before its first case.
AT_START = [
    _at_start("killed", 1, soak=False),
    _at_start("stopped", 1, soak=False),
    _at_start("raises", 0, soak=True),
    _at_start("out of memory", 1, soak=True),
    _at_start("over RLIMIT_AS", 0, soak=True),
    _at_start("over its cgroup", 1, soak=True),
]


def _stopped(signal: str, moment: str, code: Exit) -> Cell:
    message = f"stopped by {signal}; go on with: netbench sweep --resume {{}}"
    return Cell(f"{signal} to the program", moment, code, message, "what was finished, and the rounds so far")


#: The program is asked to end.
PROGRAM_STOPPED = [
    _stopped("SIGINT", "timing", Exit.INTERRUPTED),
    _stopped("SIGTERM", "start-up", Exit.TERMINATED),
    _stopped("SIGHUP", "timing", Exit.TERMINATED),
]

_SINGLE = [
    Cell(
        "SIGKILL to the program",
        "timing",
        -9,
        "",
        "what was finished, and the rounds so far; --resume goes on",
    ),
    Cell(
        "SIGKILL to torchrun",
        "timing",
        Exit.CASE_FAILED,
        "torchrun (pid {}) was ended by SIGKILL",
        "all other cases; this one is booked as failed",
    ),
    Cell(
        "two sweeps at once, into one folder; the usual ports taken",
        "start-up",
        Exit.DONE,
        "",
        "both runs, whole",
    ),
    Cell(
        "a limit of 64 open files",
        "before anything is started",
        Exit.LAUNCH,
        "needs up to {} open files, and the limit here is 64: raise it, as by ulimit -n {}, or take fewer --streams",
        "a run without results; --resume goes on once the limit is raised",
    ),
    Cell("a /dev/shm that cannot be written", "start-up", Exit.DONE, "", "everything: it is not needed"),
    Cell("the clock is set back by an hour", "timing", Exit.DONE, "", "everything; durations are of another clock"),
]

_LINKS = [
    Cell("the link gets slow", "timing", Exit.DONE, "", "everything; the times of the case show it"),
    Cell("packets are lost", "timing", Exit.DONE, "", "everything; the record counts the retransmits"),
    Cell("the link goes down, and comes back within --timeout", "timing", Exit.DONE, "", "everything"),
    Cell(
        "the link goes down, for longer than --timeout",
        "timing",
        Exit.CASE_FAILED,
        "rank {} on host{}: {} none of its bytes moved in the last {}",
        "all other cases; this one is booked as failed",
    ),
    Cell(
        "the link goes down, with a --timeout of an hour",
        "timing",
        Exit.CASE_FAILED,
        "rank {} on host{}: RuntimeError: the operation is dead: none of its bytes moved in the last {} (host{})",
        "all other cases; this one is booked as failed",
        soak=True,
    ),
    Cell(
        "the link gets too slow for --timeout",
        "timing",
        Exit.CASE_FAILED,
        "rank {} on host{}: {}imed out{}; its bytes still moved, at {}: it is slow, not dead; a larger --timeout {}",
        "all other cases; this one is booked as failed",
    ),
    Cell(
        "a host vanishes",
        "timing",
        Exit.LAUNCH,
        "ended before any case began: rank 0 on host0: LaunchError: rank 1 on host1 did not come within {}",
        "what was finished; the case is booked as failed, the next launch finds nobody; --resume goes on",
    ),
]

#: Of these the tests were there first.
_HOSTS = [
    Cell(
        "`netbench join` is killed, or its host goes",
        "timing",
        Exit.CASE_FAILED,
        "node 1 ({}) has gone: its connection was closed",
        "all other cases, once a host has joined in its place; this one is booked as failed",
        test="test_a_host_that_goes_costs_its_case_and_may_come_back",
    ),
    Cell(
        "the program on node 0 is killed; seen from a joined host",
        "timing",
        Exit.LAUNCH,
        "nobody leads a sweep at {} port {}",
        "what was finished, on node 0; --resume goes on",
        test="test_the_ranks_of_a_joined_host_end_with_the_leader",
    ),
]
_DISK = [
    Cell(
        "the disk fills up",
        "writing",
        Exit.STORAGE,
        "cannot be written: No space left on device ({} are free); make room",
        "what was finished; --resume goes on, also elsewhere",
        test="test_a_disk_that_fills_up_ends_the_sweep_at_once_and_the_run_can_go_on_elsewhere",
    ),
    Cell(
        "there is no room at all",
        "before anything is started",
        Exit.STORAGE,
        "run.json: cannot be written: No space left on device ({} are free); make room",
        "nothing",
        test="test_a_disk_without_any_room_is_named_before_anything_is_started",
    ),
    Cell(
        "the place is read-only",
        "before anything is started",
        Exit.STORAGE,
        "cannot be made: Read-only file system; choose another place by --out",
        "nothing",
        test="test_a_place_that_cannot_be_written_is_named_with_the_way_out",
    ),
    Cell(
        "the run's folder is removed under it",
        "timing",
        Exit.STORAGE,
        "cannot be written: No such file or directory",
        "what was not removed",
        test="test_a_folder_removed_under_a_sweep_ends_it",
    ),
    Cell(
        "a sample file is damaged",
        "reading",
        Exit.RECORD,
        "restore it from a copy, or measure it anew: netbench sweep --resume {}",
        "all other cases are shown",
        test="test_one_damaged_sample_file_is_named_and_hides_no_other_case",
    ),
    Cell(
        "`run.json` is damaged",
        "reading",
        Exit.RECORD,
        "run.json: is damaged",
        "all other runs are shown",
        test="test_one_damaged_run_hides_no_other",
    ),
]


def cell(fault: str, moment: str) -> Cell:
    """The one with this name."""
    [found] = [cell for cell in [*_SINGLE, *_LINKS] if (cell.fault, cell.moment) == (fault, moment)]
    return found


#: The whole matrix, in the order of the documentation.
GROUPS = {
    "A rank": [*AT_START, *IN_A_CASE],
    "The program and torchrun": [*PROGRAM_STOPPED, *_SINGLE[:2]],
    "The network": _LINKS,
    "Other hosts": _HOSTS,
    "The machine": _SINGLE[2:],
    "The disk": _DISK,
}
