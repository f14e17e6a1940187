"""A sweep told by its workers: small programs that behave, or misbehave, in torchrun's place."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from synthetic import make_case

from netbench import memory, sweep
from netbench.config import SweepConfig
from netbench.display import Display
from netbench.errors import LaunchError, RecordError
from netbench.job import Job
from netbench.model import Case
from netbench.plan import Plan
from netbench.record import Manifest, RunFolder, create_run_folder
from netbench.sweep import Sweep, fit_to_memory

CASES = [make_case(tensor_bytes=size) for size in (4, 8, 16)]

#: What every worker below has at hand.
PRELUDE = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from pathlib import Path
from synthetic import constant, write_case
from netbench.events import EventWriter
from netbench.job import read_job
from netbench.record import RunFolder

job = read_job(Path(sys.argv[1]))
folder = RunFolder(job.run_folder)
events = EventWriter(folder.events(job.launch))
events.tell("hosts", hosts=[{{"host": "alpha", "ranks": [0, 1], "interface": {{"addresses": ["10.0.0.1"]}}}}])

def start(case):
    events.tell("started", case_id=case.id)

def finish(case, status="ok"):
    write_case(folder, job.run_id, case, constant(1000), 2, 1, {{"status": status}})
    events.tell("finished", case_id=case.id, time_s=1e-6, status=status)

def measure(cases):
    for case in cases:
        start(case)
        finish(case)
"""

WELL = "measure(job.cases)"


class Scripted:
    """Stands in torchrun's place: runs the n-th script as the n-th launch, and the last one for all that follow."""

    def __init__(self, *scripts: str) -> None:
        self.scripts = scripts
        self.asked: list[list[str]] = []

    def command(self, job: Job, endpoint: str) -> list[str]:
        self.asked.append([case.id for case in job.cases])
        script = self.scripts[min(job.launch, len(self.scripts)) - 1]
        return [sys.executable, "-c", PRELUDE + script, str(RunFolder(job.run_folder).job(job.launch))]


Run = Callable[..., Sweep]


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """``begun(torchrun)`` is a sweep of three cases that has not been run yet; a second one goes on with it."""
    folder = create_run_folder(tmp_path, "test", datetime.now(UTC))
    folder.write_manifest(
        Manifest(
            run_id=folder.path.name,
            name="test",
            netbench="0",
            command=[],
            started_at=datetime.now(UTC),
            config=SweepConfig(timeout=0.1).model_dump(),
            cases=CASES,
        )
    )

    def begin(torchrun: Scripted, display: Display | None = None) -> Sweep:
        monkeypatch.setattr("netbench.torchrun.command", torchrun.command)
        return Sweep(folder, folder.read_manifest(), display or Display())

    return begin


def ended(one: Sweep) -> tuple[str, set[str], list[str]]:
    """Status, finished cases and failed cases, as the disk has them."""
    manifest = one.folder.read_manifest()
    return manifest.status, one.folder.finished(), [failure.case_id for failure in manifest.failures]


ALL = {case.id for case in CASES}


def test_one_launch_runs_all_cases_in_an_order_that_the_seed_fixes(begun: Run) -> None:
    torchrun = Scripted(WELL)
    one = begun(torchrun)
    one.run()
    assert ended(one) == ("finished", ALL, [])
    [asked] = torchrun.asked
    assert set(asked) == ALL
    manifest = one.folder.read_manifest()
    assert [(host["host"], host["ranks"]) for host in manifest.environment] == [("alpha", [0, 1])]
    [launch] = manifest.launches
    assert (launch.exit_code, launch.reason) == (0, "")
    assert launch.ended_at is not None


def test_a_launch_that_breaks_in_a_case_fails_that_case_and_the_rest_goes_on(begun: Run) -> None:
    torchrun = Scripted("measure(job.cases[:1]); start(job.cases[1]); print('out of luck'); sys.exit(3)", WELL)
    one = begun(torchrun)
    one.run()
    first, second = torchrun.asked
    assert second == first[2:]
    assert ended(one) == ("failed", ALL - {first[1]}, [first[1]])
    [failure] = one.folder.read_manifest().failures
    assert failure.launch == 1
    assert failure.reason == "the workers ended with exit code 3: out of luck"


def test_a_launch_that_breaks_between_two_cases_costs_none(begun: Run) -> None:
    torchrun = Scripted("measure(job.cases[:1]); sys.exit(3)", WELL)
    one = begun(torchrun)
    one.run()
    assert ended(one) == ("finished", ALL, [])
    assert [len(asked) for asked in torchrun.asked] == [3, 2]
    assert one.folder.read_manifest().launches[0].exit_code == 3


@pytest.mark.parametrize(
    ("script", "reason"),
    [("print('no such library'); sys.exit(7)", "exit code 7: no such library"), ("pass", "no rank said why")],
)
def test_workers_that_never_begin_a_case_end_the_sweep_with_the_log_named(begun: Run, script: str, reason: str) -> None:
    torchrun = Scripted(script)
    one = begun(torchrun)
    with pytest.raises(LaunchError, match=reason) as refused:
        one.run()
    assert str(one.folder.log(1)) in str(refused.value)
    assert len(torchrun.asked) == 1
    assert ended(one) == ("failed", set(), [])


def test_a_program_that_is_not_there_is_named(begun: Run) -> None:
    class Missing(Scripted):
        def command(self, job: Job, endpoint: str) -> list[str]:
            return ["/no/such/torchrun"]

    with pytest.raises(LaunchError, match="/no/such/torchrun: cannot be started: No such file"):
        begun(Missing()).run()


def test_a_launch_that_goes_silent_is_ended_with_all_that_it_started(
    begun: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "_SILENCE_S", 1.0)
    hangs = """
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
Path(folder.path / "pid").write_text(str(child.pid))
start(job.cases[0])
time.sleep(100)
"""
    one = begun(Scripted(hangs, WELL))
    one.run()
    [failure] = one.folder.read_manifest().failures
    assert "no sign of life from rank 0 for" in failure.reason
    assert len(one.folder.finished()) == 2
    assert not is_running(int((one.folder.path / "pid").read_text()))


def is_running(pid: int) -> bool:
    """An orphan that has ended may still be listed where nobody collects it."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_signs_of_life_keep_a_slow_case_alive(begun: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "_SILENCE_S", 1.0)
    slow = "\nfor _ in range(8):\n    time.sleep(0.25)\n    events.tell('alive')\n"
    one = begun(Scripted(f"start(job.cases[0]){slow}finish(job.cases[0]); measure(job.cases[1:])"))
    one.run()
    assert ended(one) == ("finished", ALL, [])


def test_a_slow_operation_whose_bytes_move_is_not_taken_for_dead(begun: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "_SILENCE_S", 1.0)
    heard: list[tuple[str, float]] = []

    class Noting(Display):
        def moving(self, case: Case, bit_s: float) -> None:
            heard.append((case.id, bit_s))

    tell = "events.tell('moving', case_id=job.cases[0].id, bit_s=5e6)"
    slow = f"\nfor _ in range(8):\n    time.sleep(0.25)\n    {tell}\n"
    one = begun(Scripted(f"start(job.cases[0]){slow}finish(job.cases[0]); measure(job.cases[1:])"), Noting())
    one.run()
    assert ended(one) == ("finished", ALL, [])
    assert [bit_s for _, bit_s in heard] == [5e6] * 8
    assert {case_id for case_id, _ in heard} <= ALL


def test_a_launch_that_breaks_between_two_cases_is_told(begun: Run) -> None:
    heard: list[tuple[int, str]] = []

    class Noting(Display):
        def broken(self, launch: int, reason: str) -> None:
            heard.append((launch, reason))

    begun(Scripted("measure(job.cases[:1]); print('out of luck'); sys.exit(3)", WELL), Noting()).run()
    assert heard == [(1, "the workers ended with exit code 3: out of luck")]


def test_a_stopped_process_is_named_long_before_the_silence_is_too_long(
    begun: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "_GRACE_S", 0.5)
    one = begun(Scripted("start(job.cases[0]); import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", WELL))
    one.run()
    [failure] = one.folder.read_manifest().failures
    assert failure.reason.startswith("torchrun")
    assert failure.reason.endswith(" has been stopped, by SIGSTOP or a debugger")
    assert len(one.folder.finished()) == 2


def test_going_on_with_a_run_starts_what_is_missing_or_failed_and_repeats_nothing(begun: Run) -> None:
    begun(Scripted("measure(job.cases[:1]); start(job.cases[1]); sys.exit(3)", WELL)).run()
    before = {path: path.stat().st_mtime_ns for path in begun(Scripted(WELL)).folder.samples.iterdir()}
    again = Scripted(WELL)
    one = begun(again)
    one.run()
    assert [len(asked) for asked in again.asked] == [1]
    assert ended(one) == ("finished", ALL, [])
    assert {path: path.stat().st_mtime_ns for path in before} == before
    nothing = Scripted(WELL)
    begun(nothing).run()
    assert nothing.asked == []


def test_a_case_that_the_workers_refuse_is_a_skip_with_their_reason(begun: Run) -> None:
    script = """
start(job.cases[0])
events.tell("skipped", case_id=job.cases[0].id, reason="host alpha: needs 9 GiB")
measure(job.cases[1:])
"""
    one = begun(Scripted(script))
    one.run()
    status, finished, failed = ended(one)
    assert (status, len(finished), failed) == ("finished", 2, [])
    assert [skip.reason for skip in one.folder.read_manifest().skips] == ["host alpha: needs 9 GiB"]


def test_what_a_rank_reports_is_the_reason_and_the_cause_comes_before_its_consequence(begun: Run) -> None:
    script = """
import json
start(job.cases[0])
for rank, at, error in ((0, 1.0, "RuntimeError: Connection closed by peer"), (1, 2.0, "ValueError: the cause")):
    report = {"rank": rank, "host": "alpha", "at": at, "error": error}
    folder.rank_error(job.launch, rank).write_text(json.dumps(report))
sys.exit(1)
"""
    one = begun(Scripted(script, WELL))
    one.run()
    assert [failure.reason for failure in one.folder.read_manifest().failures] == [
        "rank 1 on alpha: ValueError: the cause"
    ]


def test_a_run_that_another_sweep_writes_is_left_alone(begun: Run) -> None:
    torchrun = Scripted(WELL)
    one = begun(torchrun)
    with one.folder.lock(), pytest.raises(RecordError, match="another sweep is writing this run"):
        one.run()
    assert torchrun.asked == []


def test_the_display_hears_of_every_case(begun: Run) -> None:
    heard: list[str] = []

    class Noting(Display):
        def launching(self, ranks: int, hosts: Sequence[str]) -> None:
            heard.append(f"launching {ranks}")

        def finished(self, case: object, time_s: float, status: str) -> None:
            heard.append(f"finished {status}")

        def failed(self, case: object, reason: str) -> None:
            heard.append("failed")

        def end(self) -> None:
            heard.append("end")

    script = "start(job.cases[0]); finish(job.cases[0], 'wrong'); start(job.cases[1]); sys.exit(1)"
    begun(Scripted(script, WELL), Noting()).run()
    assert heard == ["launching 2", "finished wrong", "failed", "launching 2", "finished ok", "end"]


def test_what_does_not_fit_into_this_hosts_memory_is_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: 2 * 2 * 8)
    plan = fit_to_memory(Plan(tuple(CASES), ()))
    assert [case.tensor_bytes for case in plan.cases] == [4, 8]
    assert [(skip.id, "64 B of memory for 2 ranks" in skip.reason) for skip in plan.skips] == [(CASES[2].id, True)]
