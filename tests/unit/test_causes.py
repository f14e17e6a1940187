"""Why a launch ended early, from what it left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from synthetic import make_case

from netbench import causes
from netbench.causes import Causes
from netbench.job import Job
from netbench.lab import HostAddress
from netbench.nodes import Node, Seat, UnderWay
from netbench.record import RunFolder

#: As torch 2.13 prints it.
REPORT = """
============================================================
netbench.worker FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-01-01_10:00:00
  host      : machine7
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 100)
  error_file: <N/A>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_10:00:00
  host      : machine7
  rank      : 1 (local_rank: 1)
  exitcode  : -{number} (pid: 101)
  error_file: <N/A>
  traceback : Signal {number} received by PID 101
============================================================
"""

Why = Callable[..., str]


class Ended(Node):
    """A node whose torchrun has ended with ``code``."""

    def __init__(self, code: int, job: Job | None = None) -> None:
        super().__init__(0, Seat(host="machine7", interface="lo", address="127.0.0.1", store_port=0))
        self._code, self._job = code, job

    def poll(self) -> int:
        return self._code


@pytest.fixture
def why(tmp_path: Path) -> Why:
    """``why(log, *reports)`` gives the cause of a launch that has ended with such a log and such reports of ranks."""
    (tmp_path / "logs").mkdir()

    def find(log: str = "", *reports: dict[str, Any], lab: bool = False) -> str:
        hosts = [HostAddress(f"host{n}", f"10.0.0.{n}", "lab0", "/proc/1/ns/net") for n in range(2)] if lab else []
        job = Job(
            **{"run_id": "run", "launch": 1, "run_folder": tmp_path, "cases": [make_case()], "iterations": 1},
            **{"warmup": 0, "pause_s": 0, "timeout_s": 1, "interface": "lo", "lab_hosts": hosts},
        )
        folder = RunFolder(tmp_path)
        folder.log(1).write_text(log)
        for report in reports:
            folder.rank_error(1, report["rank"]).write_text(json.dumps(report))
        return Causes(job, UnderWay([Ended(1, job)])).why()

    return find


def report(rank: int, error: str, at: float = 1.0) -> dict[str, Any]:
    return {"rank": rank, "host": f"machine{rank}", "case_id": "a", "at": at, "error": error}


def test_a_rank_that_a_signal_ended_is_named_with_its_host(why: Why) -> None:
    assert why(REPORT.format(number=11)) == "rank 1 on machine7 (pid 101) was ended by SIGSEGV"


def test_in_a_lab_the_host_is_the_labs(why: Why) -> None:
    assert why(REPORT.format(number=11), lab=True).startswith("rank 1 on host1 (pid 101) was")


def test_whether_memory_ran_out_is_known_from_the_kernel(why: Why, monkeypatch: pytest.MonkeyPatch) -> None:
    assert why(REPORT.format(number=9)).endswith(
        "was ended by SIGKILL: by someone, or by a limit on memory (the kernel's log says which)"
    )
    counts = iter([4, 5])
    monkeypatch.setattr(causes, "_ended_for_memory", lambda: next(counts))
    told = why(REPORT.format(number=9))
    assert "was ended by SIGKILL: the kernel does that when memory runs out, and did; take smaller --sizes" in told


def test_torchruns_clearing_up_is_no_cause_but_somebodys_sigterm_is(why: Why) -> None:
    assert why(REPORT.format(number=15)) == "rank 1 on machine7 (pid 101) was ended by SIGTERM"
    cleared = REPORT.format(number=11).replace("exitcode  : 1 (pid: 100)", "exitcode  : -15 (pid: 100)")
    assert why(cleared) == "rank 1 on machine7 (pid 101) was ended by SIGSEGV"


@pytest.mark.parametrize(
    "consequence",
    [
        "RuntimeError: [../pair.cc:547] Connection closed by peer [127.0.0.1]:2000",
        "RuntimeError: Read error [10.0.0.1]:20: Connection reset by peer",
        "RuntimeError: writev [127.0.0.1]:20: Broken pipe",
        "RuntimeError: Application timeout caused pair closure",
    ],
)
def test_a_rank_that_lost_its_peer_is_not_the_cause(consequence: str, why: Why) -> None:
    told = why("", report(0, consequence, at=1.0), report(1, "ValueError: odd", at=2.0))
    assert told == "rank 1 on machine1: ValueError: odd"


def test_the_first_of_several_errors_is_the_cause(why: Why) -> None:
    assert why("", report(0, "A: late", at=2.0), report(1, "B: early", at=1.0)) == "rank 1 on machine1: B: early"


@pytest.mark.parametrize(
    "error",
    [
        "MemoryError: ",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory",
        "OSError: [Errno 12] Cannot allocate memory",
    ],
)
def test_out_of_memory_comes_with_the_way_out(error: str, why: Why) -> None:
    assert "memory ran out: take smaller --sizes" in why("", report(0, error))


def test_an_address_comes_with_its_host_where_there_are_several(why: Why) -> None:
    error = "RuntimeError: [10.0.0.1]:4711 closed; 1 MiB for 10.0.0.1; not 10.0.0.11"
    told = why("", report(0, error), lab=True)
    assert (
        told
        == "rank 0 on host0: RuntimeError: [10.0.0.1]:4711 (host1) closed; 1 MiB for 10.0.0.1 (host1); not 10.0.0.11"
    )
    assert why("", report(0, error)) == f"rank 0 on machine0: {error}"


def test_a_report_that_is_half_written_is_passed_over(why: Why, tmp_path: Path) -> None:
    RunFolder(tmp_path).rank_error(1, 5).write_text('{"rank": 5, "ho')
    assert why("", report(1, "ValueError: odd")) == "rank 1 on machine1: ValueError: odd"


def test_else_it_is_the_end_of_the_log(why: Why) -> None:
    assert why("one\n\ntwo\nthree\nfour\n") == "the workers ended with exit code 1: two / three / four"


def test_torchrun_itself_may_be_ended() -> None:
    told = Causes(Job.model_construct(launch=1, run_folder=Path(), lab_hosts=[]), UnderWay([Ended(-9)])).why()
    assert told == "torchrun on machine7 was ended by SIGKILL"
