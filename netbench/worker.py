"""One rank of a launch: an ordinary torchrun program, ``torchrun ... -m netbench.worker JOB.json``.

All ranks walk through the job's cases in the same order. A case of N ranks is run by ranks 0..N-1 over groups of
their own; the others go on to their next case and wait there without using the CPU. Rank 0 writes the record.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from netbench.processes import TORCHRUN_PID, die_with_parent

if __name__ == "__main__":
    # At once: the imports below take seconds, in which torchrun may be killed.
    die_with_parent(signal.SIGKILL, int(os.environ[TORCHRUN_PID]) if TORCHRUN_PID in os.environ else None)

import numpy as np
import torch.distributed as dist
from torch.distributed import PrefixStore

from netbench import clocks, environment, memory, preflight, wire
from netbench.backends import BACKENDS, Lanes, Wiring, gloo_group, tensor_maker
from netbench.control import Control
from netbench.events import EventWriter
from netbench.job import Job, Place, read_job
from netbench.measure import count_wrong, make_operation, time_iterations
from netbench.model import Case, split
from netbench.modes import MODES, participants
from netbench.payload import Payload
from netbench.pulse import STANDSTILL_S, Pulse
from netbench.record import (
    TIMELINE,
    RunFolder,
    samples_table,
    timeline_table,
    write_samples,
    write_timeline,
)
from netbench.stopping import FLOOR, REASONS, Decision, reach_of
from netbench.surroundings import Surroundings
from netbench.timeline import Recorder
from netbench.visits import DURATION, Visits

#: A rank without a part in the cases under way waits this long for its next one. The parent watches for signs of
#: life and ends the launch much earlier; this only bounds a worker that was started by hand.
_IDLE_LIMIT_S = 24 * 3600.0

#: All ranks must have come up within this time.
_START_LIMIT_S = 300.0


class Worker:
    """This rank's connections, made when a case first needs them and kept for the rest of the launch.

    Gloo groups cannot be closed while the process lives, so they are made once for each (backend, streams, members).
    """

    def __init__(self, job: Job, place: Place, store: Any, rank: int, events: EventWriter) -> None:
        self.job = job
        self.place = place
        self.rank = rank
        self.events = events
        self.folder = RunFolder(job.run_folder)
        self._store = store
        self._controls: dict[int, Control] = {}
        self._lanes: dict[tuple[str, int, Sequence[int]], tuple[Lanes, frozenset[int]]] = {}
        self._visits: dict[str, Visits] = {}
        self._case_id = ""
        self._pulse = Pulse(
            job.timeout_s,
            lambda bit_s: events.tell("moving", case_id=self._case_id, bit_s=bit_s),
            self._end_dead,
            STANDSTILL_S + max(case.entry_delay_us for case in job.cases) / 1e6,
        )
        #: Cases that did not fit into memory; the same on all of their ranks.
        self.skipped: set[str] = set()
        #: Offset and error of this rank's clock against rank 0's, ns.
        self.clock = (0, 0)

    def wiring(self, purpose: str, world_size: int, timeout_s: float) -> Wiring:
        prefix = f"launch{self.job.launch}/{purpose}/n{world_size}"
        return Wiring(PrefixStore(prefix, self._store), self.rank, world_size, self.place.address, timeout_s)

    def control(self, world_size: int) -> Control:
        if world_size not in self._controls:
            wiring = self.wiring("control", world_size, _IDLE_LIMIT_S)
            self._controls[world_size] = Control(gloo_group(wiring, "control"), self.job.timeout_s)
        return self._controls[world_size]

    def lanes(self, case: Case) -> tuple[Lanes, frozenset[int]]:
        """The open streams of a case's backend, and the descriptors of their connections.

        A rank that is no member of the case's pair has none.
        """
        if self.rank not in case.members:
            return Lanes([]), frozenset()
        key = (case.backend, case.streams, case.members)
        if key not in self._lanes:
            purpose = "/".join(filter(None, [case.backend, f"k{case.streams}", case.pair]))
            wiring = self.wiring(purpose, len(case.members), self.job.timeout_s)
            wiring = replace(wiring, rank=case.members.index(self.rank))
            before = wire.connections()
            lanes = BACKENDS[case.backend].open(wiring, case.streams)
            self._lanes[key] = lanes, wire.connections() - before
        return self._lanes[key]

    def visit(self, case: Case, round: int) -> None:
        """Measures one round of a case together with the other ranks of its world, and puts it on disk."""
        self._case_id = case.id
        control = self.control(case.world_size)
        control.meet(_IDLE_LIMIT_S)
        self.events.tell("started", case_id=case.id, round=round)
        if reason := self._memory_refusal(case, control):
            self.skipped.add(case.id)
            self.events.tell("skipped", case_id=case.id, reason=reason)
            return
        recorder = Recorder(self.place.interface, case.timeline_us / 1e6) if case.timeline_us else None
        try:
            samples, facts = self._measure(case, round, control, recorder or nullcontext())
        except RuntimeError as error:
            if "timed out" in str(error).lower() and (finding := self._pulse.finding()):
                error.add_note(finding)
            raise
        self._pulse.rest()
        told = control.tell_all(facts)
        gathered = control.gather(samples)
        if recorder:
            self._record_timeline(case, control, recorder.readings)
        if self.rank == 0:
            self._record(case, round, gathered, told)

    def _end_dead(self, finding: str) -> None:
        """Ends this rank from another thread: its own waits for an operation, which nothing can interrupt."""
        error = RuntimeError(f"the operation is dead: {finding}")
        _report(self.folder.rank_error(self.job.launch, self.rank), self.rank, self.place.host, self._case_id, error)
        sys.stderr.flush()
        os._exit(1)

    def rounds_done(self, case: Case) -> int:
        """How many rounds of this repetition are on disk from an earlier launch; asked on rank 0."""
        done = self._earlier(case).visits - self.job.repetition * self.job.rounds
        return max(0, done)

    def _earlier(self, case: Case) -> Visits:
        if case.id not in self._visits:
            self._visits[case.id] = Visits.read(self.folder, case)
        return self._visits[case.id]

    def _memory_refusal(self, case: Case, control: Control) -> str | None:
        # The hosts of a lab share one kernel, and so its memory.
        machines = control.tell_all([clocks.boot_id(), self.place.host, memory.free_bytes()])
        machines = [machines[rank] for rank in case.members]
        ranks_on = Counter(machine for machine, *_ in machines)
        for machine, host, free in machines:
            if reason := memory.refusal(case, ranks_on[machine], free):
                return f"{host}: {reason}"
        return None

    def _measure(
        self, case: Case, round: int, control: Control, meanwhile: AbstractContextManager[object]
    ) -> tuple[np.ndarray, dict[str, Any]]:
        mode, job = MODES[case.mode], self.job
        lanes, connections = self.lanes(case)
        self._pulse.watch(connections)
        size, is_member = len(case.members), self.rank in case.members
        place = case.members.index(self.rank) if is_member else -1
        block = mode.block(size)
        parts = [
            split(part.stop - part.start, case.chunks, block, part.start)
            for part in split(case.elements, len(lanes.lanes), block)
        ]
        pieces = [chunk for chunks in parts for chunk in chunks]
        buffers = mode.buffers(tensor_maker(lanes.device, case.dtype), case.elements if is_member else 0, size)
        taking_part = participants(case.mode, case.world_size, case.pair)
        takes_part = self.rank in taking_part
        delay_s = case.entry_delay_us / 1e6 if self.rank == taking_part[-1] else 0.0
        operation = make_operation(mode, lanes, buffers, parts, job.timeout_s) if takes_part else _nothing
        untimed, pulse = self._pulse.watched(operation), self._pulse

        def check(round: int) -> int:
            control.barrier()
            if not takes_part:
                return 0
            return count_wrong(mode, buffers, pieces, place, Payload(size, round), untimed)

        def between() -> None:
            pulse.inside = False
            if job.pause_s:
                time.sleep(job.pause_s)
            if self.events.alive() or pulse.ticking:
                pulse.beat()

        def enter() -> None:
            control.barrier()
            if case.pair and is_member:
                control.meet_peer(case.members[1 - place])
            if delay_s:
                time.sleep(delay_s)
            pulse.inside = takes_part

        def iterations(count: int, warmup: bool) -> np.ndarray:
            return time_iterations(count, warmup, enter, operation, between=between)

        visit = job.repetition * job.rounds + round
        wrong = check(2 * visit)
        if mode.accumulates:
            buffers.input.zero_()
        # Only the first operations of a group are unlike the others.
        warm = iterations(job.warmup if round == 0 else min(1, job.warmup), True)
        control.barrier()
        before, around = wire.traffic(connections), Surroundings.now(self.place.interface)
        with meanwhile:
            timed, reason = self._timed(case, round, control, iterations)
        control.barrier()
        after, beside = wire.traffic(connections), Surroundings.now(self.place.interface).since(around)
        wrong += check(2 * visit + 1)
        schedule, used, schedule_chunks = lanes.choice() if lanes.choice else (None, len(parts), None)
        carried = after - before if before and after else None
        facts = {
            "rank": self.rank,
            "host": self.place.host,
            "takes_part": takes_part,
            "wrong_elements": wrong,
            "parts": used,
            "schedule": schedule,
            "schedule_chunks": schedule_chunks,
            "stop_reason": reason,
            "connections": len(connections),
            "wire_sent_bytes": carried.sent_bytes if carried else None,
            "wire_received_bytes": carried.received_bytes if carried else None,
            "retransmits": carried.retransmits if carried else None,
            "clock_offset_ns": self.clock[0],
            "clock_error_ns": self.clock[1],
        }
        facts |= wire.paths(connections) | beside
        return np.concatenate([warm, timed]), facts

    def _timed(
        self, case: Case, round: int, control: Control, iterations: Callable[[int, bool], np.ndarray]
    ) -> tuple[np.ndarray, str]:
        """The timed iterations of a visit, as many as rank 0 wants, and why there are no more."""
        rule = self.job.stop_rule
        begun = time.monotonic()
        batches = [iterations(rule.first(round), False)]
        while not rule.is_exact:
            gathered = control.gather(batches[-1][:, [DURATION]])
            decision = Decision(0, "")
            if self.rank == 0:
                earlier = self._earlier(case)
                earlier.add_times([gathered[rank] for rank in participants(case.mode, case.world_size, case.pair)])
                count = sum(map(len, batches))
                decision = rule.next(earlier.times_ns, count, time.monotonic() - begun)
            more, reason = control.follow_root([decision.more, REASONS.index(decision.reason)])
            if more == 0:
                return np.concatenate(batches), REASONS[reason]
            batches.append(iterations(more, False))
        return np.concatenate(batches), "iterations"

    def _record_timeline(self, case: Case, control: Control, readings: np.ndarray) -> None:
        # Only arrays of one common shape can be gathered, and the ranks have not read equally often.
        counts = control.tell_all(len(readings))
        padded = np.zeros((max(counts), len(TIMELINE)), np.int64)
        padded[: len(readings)] = readings
        gathered = control.gather(padded)
        if self.rank == 0:
            whole = [(rank, array[:count]) for rank, (array, count) in enumerate(zip(gathered, counts, strict=True))]
            write_timeline(self.folder, case, timeline_table(self.job.run_id, case, whole))

    def _record(self, case: Case, round: int, gathered: list[np.ndarray], told: list[dict[str, Any]]) -> None:
        visits = self._earlier(case)
        visits.add(self.job.launch, round, gathered, [facts for facts in told if facts["takes_part"]])
        wrong = sum(facts["wrong_elements"] for facts in visits.ranks)
        facts = {
            "status": "wrong" if wrong else "ok",
            "wrong_elements": wrong,
            "parts": visits.ranks[0]["parts"],
            "schedule": visits.ranks[0]["schedule"],
            "schedule_chunks": visits.ranks[0]["schedule_chunks"],
            "stop_reason": visits.ranks[0]["stop_reason"],
            "visits": visits.visits,
            "pause_s": self.job.pause_s,
            "interface": self.place.interface,
            "lab": self.job.lab,
            "launch": self.job.launch,
            "ranks": visits.ranks,
        }
        finished = visits.visits == self.job.rounds * self.job.repetitions
        table = samples_table(self.job.run_id, case, list(visits.samples.items()), facts)
        write_samples(self.folder, case, table, finished)
        self.events.tell(
            "finished" if finished else "visited",
            case_id=case.id,
            status=facts["status"],
            wrong_elements=wrong,
            time_s=float(np.median(visits.slowest_ns())) / 1e9,
        )
        if finished:
            del self._visits[case.id]


def _nothing() -> None:
    """The operation of a rank that takes no part in a mode."""


def main(job_path: Path) -> None:
    job = read_job(job_path)
    folder = RunFolder(job.run_folder)
    rank, case_id = job.rank(int(os.environ["LOCAL_RANK"])), ""
    events = EventWriter(folder.events(job.launch) if rank == 0 else None)
    try:
        events.tell("up")
        place = job.move(rank)
        limit = timedelta(seconds=_START_LIMIT_S)
        store, _, world_size = next(dist.rendezvous("env://", timeout=limit))
        preflight.meet(store, rank, world_size, place, job)
        worker = Worker(job, place, store, rank, events)
        everybody = Control(gloo_group(worker.wiring("all", world_size, _IDLE_LIMIT_S), "all"), _START_LIMIT_S)
        hosts = everybody.tell_all(environment.of_rank(rank, place.host, place.interface, place.address))
        events.tell("hosts", hosts=environment.by_host(hosts))
        boots = everybody.tell_all(clocks.boot_id())
        worker.clock = clocks.offset(everybody.group, rank, boots, limit)
        done = everybody.tell_all([worker.rounds_done(case) for case in job.cases] if rank == 0 else [])[0]
        rounds_done = {case.id: count for case, count in zip(job.cases, done, strict=True)}
        if rank == 0 and not job.stop_rule.is_exact:
            reach_of(np.ones(FLOOR, np.int64))  # brings scipy along, 0.1 s that must not fall into the first case
        # A collection before each batch of iterations took 0.1 s over torch's own objects: a third of a case's budget.
        gc.freeze()
        for round in range(job.rounds):
            for case in job.in_round(round):
                if rank < case.world_size and rounds_done[case.id] <= round and case.id not in worker.skipped:
                    case_id = case.id
                    worker.visit(case, round)
        everybody.meet(_IDLE_LIMIT_S)
    except BaseException as error:  # noqa: BLE001 - whatever ends this rank, the parent must learn of it
        _report(folder.rank_error(job.launch, rank), rank, job.host or socket.gethostname(), case_id, error)
        sys.stderr.flush()
        # A group with a dead peer can block in its destructor, so no destructor is run.
        os._exit(1)
    events.tell("ended")
    os._exit(0)


def _report(path: Path, rank: int, host: str, case_id: str, error: BaseException) -> None:
    import traceback

    traceback.print_exception(error)
    told = "; ".join([f"{type(error).__name__}: {error}".rstrip(": "), *getattr(error, "__notes__", [])])
    report = {
        "rank": rank,
        "host": host,
        "case_id": case_id,
        "at": time.time(),
        "error": " ".join(told.split()),  # torch writes several lines
    }
    try:
        path.write_text(json.dumps(report))
    except OSError:
        traceback.print_exc()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
