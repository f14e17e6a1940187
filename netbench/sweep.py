"""A sweep from plan to record: it starts launches, follows them, and sees every case end as a result or a reason."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import netbench
from netbench import memory
from netbench.causes import Causes
from netbench.config import SweepConfig
from netbench.crew import Crew
from netbench.demands import allow_open_files
from netbench.display import Display
from netbench.errors import Exit, LaunchError, NetbenchError, RecordError, Stopped, StorageError, UsageError
from netbench.events import EventReader
from netbench.job import Job
from netbench.lab import Lab, LabSpec
from netbench.launch import LAUNCHERS
from netbench.model import Case, Skip
from netbench.nodes import UnderWay
from netbench.plan import Plan
from netbench.record import Failure, LabFacts, Launch, Manifest, RunFolder, create_run_folder, make_own_folder
from netbench.samples import damaged, set_aside, visits_done
from netbench.signals import stopping
from netbench.units import about_seconds

#: Once a rank has said why it ended, the others have this long to end too, seconds. torchrun would wait 30 s for one
#: that is stopped.
_BROKEN_S = 5.0

#: How often the parent looks for news, seconds. It must not disturb what is measured beside it.
_POLL_S = 0.25

#: The ranks must be up within this time, seconds, and a little more for each of them.
_START_LIMIT_S, _START_LIMIT_PER_RANK_S = 120.0, 5.0

#: A rank that is stopped is waited for so much longer than the limit of an operation: the others may find out first.
_GRACE_S = 1.0

#: Silence that is no worry beyond the limits of the operations themselves: buffers are made and checked meanwhile.
_SILENCE_S = 60.0


def fit_to_memory(plan: Plan, nodes: int = 1) -> Plan:
    """The plan with what does not fit into this host's memory, with its share of the ranks, turned into skips."""
    free = memory.free_bytes()
    reasons = {case.id: memory.refusal(case, -(-len(case.members) // nodes), free) for case in plan.cases}
    return plan.without(Skip(case, reason) for case, reason in reasons.items() if reason)


def new_run(config: SweepConfig, plan: Plan, command: Sequence[str]) -> tuple[RunFolder, Manifest]:
    """Makes the run's folder with its manifest. Raises StorageError."""
    now = datetime.now(UTC)
    folder = create_run_folder(Path(config.out), config.name, now)
    manifest = Manifest(
        run_id=folder.path.name,
        name=config.name,
        question=config.question,
        netbench=netbench.__version__,
        command=list(command),
        started_at=now,
        config=config.model_dump(),
        cases=list(plan.cases),
        skips=list(plan.skips),
        lab=LabFacts.of(LabSpec.parse(config.lab)) if config.lab else None,
    )
    folder.write_manifest(manifest)
    return folder, manifest


def resumed_run(path: Path) -> tuple[RunFolder, Manifest]:
    """A run that was begun earlier. Raises RecordError when this netbench cannot go on with it."""
    folder = RunFolder(path)
    manifest = folder.read_manifest()
    try:
        SweepConfig.model_validate(manifest.config)
    except ValueError as error:
        raise RecordError(f"{folder.manifest}: its configuration cannot be run: {error}") from None
    return folder, manifest


def mend(folder: RunFolder, manifest: Manifest) -> list[str]:
    """Makes a run fit to be gone on with, and says what was done: what is damaged is renamed, and so measured anew.

    Raises RecordError when another sweep is writing the run, StorageError when nothing can be written there.
    """
    with folder.lock():
        for needed in (folder.samples, folder.logs):
            make_own_folder(needed)
        return [
            f"{error}; it is now {set_aside(path).name}, and its case is measured anew"
            for path, error in damaged(folder, manifest.run_id).items()
        ]


class Sweep:
    """One run under way. ``run`` returns when every case has ended, or raises what ended it early."""

    def __init__(self, folder: RunFolder, manifest: Manifest, display: Display) -> None:
        self.folder = folder
        self.manifest = manifest
        self.display = display
        self.config = SweepConfig.model_validate(manifest.config)
        self._cases = {case.id: case for case in manifest.cases}
        self._lab = Lab(LabSpec.parse(self.config.lab)) if self.config.lab else None

    def run(self) -> None:
        """Measures what is not on disk yet. Raises Stopped, LaunchError or StorageError; the record stays usable."""
        with self.folder.lock(), stopping(), self._lab or nullcontext():
            self.folder.clear()
            self.manifest.status, self.manifest.ended_at = "running", None
            # A new attempt: what failed before may work now, and what did not fit may fit.
            self.manifest.failures = []
            self.manifest.skips = [skip for skip in self.manifest.skips if skip.id not in self._cases]
            self._save()
            status = "interrupted"
            try:
                with Crew(self.config, LAUNCHERS[self.config.launcher], self.folder, self._lab) as crew:
                    self._run(crew)
                status = "failed" if self.manifest.failures else "finished"
            except (LaunchError, UsageError):
                status = "failed"
                raise
            finally:
                self.manifest.status, self.manifest.ended_at = status, datetime.now(UTC)
                with suppress(NetbenchError):  # a full disk must not hide what went wrong before it
                    self._save()
                self.display.end()

    def _run(self, crew: Crew) -> None:
        remaining = self._remaining()
        if remaining:
            allow_open_files(remaining)
        self.display.begin(self.manifest, remaining, self.config.rounds_used * self.config.launches)
        while remaining:
            self._launch(crew, remaining)
            remaining = self._remaining()
        if failures := len(self.manifest.failures):
            crew.ending = f"{failures} cases failed", Exit.CASE_FAILED

    def _remaining(self) -> list[Case]:
        ended = self.folder.finished()
        ended |= {failure.case_id for failure in self.manifest.failures}
        ended |= {skip.id for skip in self.manifest.skips}
        plan = Plan(tuple(self.manifest.cases), ()).shuffled(self.config.seed)
        cases = [case for case in plan.cases if case.id not in ended]
        return sorted(cases, key=lambda case: (self._repetition(case), case.malloc))

    def _repetition(self, case: Case) -> int:
        """Which of the sweep's launches a case is in, by what of it is on disk."""
        return visits_done(self.folder, case) // self.config.rounds_used

    def _save(self) -> None:
        self.folder.write_manifest(self.manifest)

    def _launch(self, crew: Crew, cases: Sequence[Case]) -> None:
        """Runs one launch to its end and books how its cases ended: one at least, else it raises LaunchError."""
        nodes = crew.assemble(self.display.waiting)
        job = Job(
            run_id=self.manifest.run_id,
            launch=len(self.manifest.launches) + 1,
            run_folder=self.folder.path.absolute(),
            cases=[
                case
                for case in cases
                if case.malloc == cases[0].malloc and self._repetition(case) == self._repetition(cases[0])
            ],
            malloc=cases[0].malloc,
            repetition=self._repetition(cases[0]),
            repetitions=self.config.launches,
            rounds=self.config.rounds_used,
            iterations=self.config.iterations,
            budget_s=self.config.budget,
            precision=self.config.precision,
            warmup=self.config.warmup,
            seed=self.config.seed,
            pause_s=self.config.pause,
            timeout_s=self.config.timeout,
            ranks_per_node=crew.ranks_per_node(max(case.world_size for case in cases)),
            lab=self.config.lab,
            lab_hosts=list(self._lab.hosts) if self._lab else [],
        )
        self.display.launching(job.ranks_per_node * len(nodes), [node.seat.host for node in nodes])
        under_way = crew.start(job, nodes)
        launch = Launch(number=job.launch, command=nodes[0].command, started_at=datetime.now(UTC))
        self.manifest.launches.append(launch)
        follower = _Follower(self, job, under_way)
        try:
            self._save()
            launch.reason = follower.follow()
        except (Stopped, StorageError) as ended:
            launch.reason = str(ended)
            raise
        finally:
            under_way.end()
            self.folder.clear()
            launch.exit_code, launch.ended_at = under_way.poll(), datetime.now(UTC)
        if launch.reason and follower.under_way:
            self._book_failure(follower.under_way, launch)
        elif launch.reason and follower.has_news:
            self.display.broken(launch.number, launch.reason)
        self._save()
        if not follower.has_news and follower.under_way is None:
            raise LaunchError(
                f"launch {launch.number} ended before any case began: {launch.reason or 'no rank said why'}\n"
                f"Its output is in {self.folder.log(launch.number)}"
            )

    def _book_failure(self, case_id: str, launch: Launch) -> None:
        if case_id not in self.folder.finished():
            failure = Failure(case_id=case_id, launch=launch.number, reason=launch.reason)
            self.manifest.failures.append(failure)
            self.display.failed(self._cases[case_id], launch.reason)

    def heard(self, event: dict[str, Any]) -> None:
        """Books one event of the workers."""
        case = self._cases.get(event.get("case_id", ""))
        if event["event"] == "hosts":
            self.manifest.environment = event["hosts"]
            self.display.hosts(event["hosts"])
            self._save()
        elif case is None:
            return
        elif event["event"] == "started":
            self.display.started(case)
        elif event["event"] == "moving":
            self.display.moving(case, event["bit_s"])
        elif event["event"] == "visited":
            self.display.visited(case, event["time_s"])
        elif event["event"] == "finished":
            self.display.finished(case, event["time_s"], event["status"])
        elif event["event"] == "skipped":
            self.manifest.skips.append(Skip(case.id, event["reason"]))
            self._save()
            self.display.skipped(case, event["reason"])


class _Follower:
    """Follows one launch by its events until it ends, by itself or because it has gone silent."""

    def __init__(self, sweep: Sweep, job: Job, under_way: UnderWay) -> None:
        self._sweep = sweep
        self._job = job
        self._launched = under_way
        self._events = EventReader(sweep.folder.events(job.launch))
        self._last_sign = time.monotonic()
        self._limit_s = _START_LIMIT_S + _START_LIMIT_PER_RANK_S * job.world_size
        self._broken_at: float | None = None
        self._causes = Causes(job, under_way)
        #: The case that has been started and has not ended yet.
        self.under_way: str | None = None
        #: Whether anything has come of this launch: without that another one would be in vain.
        self.has_news = False

    def follow(self) -> str:
        """Returns why the launch ended early, or nothing when it ran to its end.

        Raises StorageError where a rank could not write: nor could those of another launch.
        """
        while True:
            code = self._launched.poll()
            self._hear()
            if code is not None:
                return self._why() if code else ""
            if self._is_broken_for_good():
                return self._why()
            silent_s = time.monotonic() - self._last_sign
            # Without an end to its silence the limit of an operation has passed, or the ranks are not up yet.
            if silent_s > self._job.timeout_s + self._job.pause_s + _GRACE_S and (stopped := self._causes.stopped()):
                return "; ".join(stopped)
            if silent_s > self._limit_s:
                return f"no sign of life from rank 0 for {about_seconds(silent_s)}; the launch was ended"
            self._launched.wait(_POLL_S)

    def _why(self) -> str:
        if told := self._causes.storage():
            raise StorageError(told)
        return self._causes.why()

    def _is_broken_for_good(self) -> bool:
        """Whether a rank has reported its end, and all had time to follow it; one that is stopped never will."""
        if self._broken_at is None and any(self._sweep.folder.rank_errors(self._job.launch)):
            self._broken_at = time.monotonic()
        if self._broken_at is None:
            return False
        return time.monotonic() - self._broken_at > _BROKEN_S or bool(self._causes.stopped())

    def _hear(self) -> None:
        for event in self._events.new():
            self._last_sign = time.monotonic()
            if event["event"] == "hosts":
                self._causes.learn_hosts(event["hosts"])
                self._limit_s = 2 * self._job.timeout_s + self._job.pause_s + _SILENCE_S
            if event["event"] == "started":
                self.under_way = event["case_id"]
            if event["event"] in ("visited", "finished", "skipped"):
                self.under_way = None
                self.has_news = True
            self._sweep.heard(event)
