"""kill -9 at random moments: ``python tests/faults/soak.py --kills 500 --minutes 60 --seed 0``; ``make soak`` does.

Each round starts a small sweep and kills the program, torchrun or a rank of it somewhere between its first moment and
its last. Afterwards no process and no lab may be left, every record must be readable, every case that was finished
before must still be there, and a sample of the runs is resumed to a good end. The seed fixes targets and moments.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import psutil

from netbench.lab import LabSpec, capability, list_labs
from netbench.record import RunFolder
from netbench.summary import find_runs, load_run

SWEEP = [
    *("sweep", "--modes", "allreduce,all_gather", "--backends", "gloo,split_gloo", "--streams", "1,3"),
    *("--world-sizes", "2", "--sizes", "4KiB", "--iterations", "10", "--pause", "20ms"),
    *("--rounds", "2", "--timeout", "10s"),
]
CASES = 6
TARGETS = ("program", "program", "torchrun", "rank 0", "rank 1")
LAB = "2x400mbit"

#: Every tenth sweep runs in a lab, every fourth run is resumed.
LAB_EVERY, RESUME_EVERY = 10, 4

#: A sweep that takes longer than this hangs, and what is left after the second is left for good, seconds.
LIMIT_S, GONE_S = 120.0, 5.0


class Round:
    """One sweep that is struck."""

    def __init__(self, folder: Path, number: int, seed: int, span_s: float, labs: bool) -> None:
        self.random = Random(f"{seed}/{number}")
        self.mark = f"{os.getpid()}/{number}"
        self.out = folder / str(number)
        self.target = self.random.choice(TARGETS)
        self.moment_s = self.random.uniform(0, span_s)
        self.lab = ["--lab", LAB] if labs and number % LAB_EVERY == 0 else []
        self.is_resumed = number % RESUME_EVERY == 0
        self.problems: list[str] = []

    def run(self) -> str | None:
        """Strikes once; gives how far the sweep had come, or None when it had ended before it could be struck."""
        program = self.start(*SWEEP, *self.lab, "--out", str(self.out))
        begun = time.monotonic()
        victim = None
        while program.poll() is None and victim is None:
            if time.monotonic() - begun >= self.moment_s:
                victim = self.find(program)
            time.sleep(0.01)
        if victim is None:
            self.await_end(program)
            if program.returncode != 0:
                self.problems.append(f"not killed, it ended with {program.returncode}")
            return None
        before = self.finished()
        with_one = {path: path.stat().st_mtime_ns for path in before}
        try:
            victim.kill()
        except psutil.NoSuchProcess:
            return None
        stage = f"{len(before)} of {CASES} cases" if before else "no case"
        self.await_end(program)
        self.look(with_one)
        if self.is_resumed:
            self.resume()
        return stage

    def start(self, *typed: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "netbench", *typed],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "SOAK": self.mark},
        )

    def find(self, program: subprocess.Popen[bytes]) -> psutil.Process | None:
        try:
            own = psutil.Process(program.pid)
            if self.target == "program":
                return own
            for process in own.children(recursive=True):
                typed = process.cmdline()
                rank = process.environ().get("RANK")
                if self.target == "torchrun" and rank is None and "torch.distributed.run" in typed:
                    return process
                if rank is not None and self.target == f"rank {rank}" and "netbench.worker" in typed:
                    return process
        except psutil.Error:
            pass
        return None

    def await_end(self, program: subprocess.Popen[bytes]) -> None:
        try:
            program.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.problems.append(f"the sweep had not ended after {LIMIT_S:g} s")
            program.kill()
            program.wait()
        deadline = time.monotonic() + GONE_S
        while (left := list(self.left())) and time.monotonic() < deadline:
            time.sleep(0.05)
        for process in left:
            self.problems.append(f"left after {GONE_S:g} s: {process.pid} {' '.join(process.cmdline())[:100]}")
            process.kill()

    def left(self) -> Iterator[psutil.Process]:
        """The processes that this round has started, wherever they are now."""
        for process in psutil.process_iter():
            try:
                if process.environ().get("SOAK") == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    yield process
            except psutil.Error:
                continue

    def finished(self) -> list[Path]:
        return sorted(self.out.glob("*/samples/*.parquet"))

    def look(self, before: dict[Path, int]) -> None:
        if labs := [lab.name for lab in list_labs()]:
            self.problems.append(f"labs are left: {labs}")
        for path, written_ns in before.items():
            if not path.is_file() or path.stat().st_mtime_ns != written_ns:
                self.problems.append(f"{path.name} was finished and has changed or gone")
        if not any(self.out.glob("*/run.json")):
            return  # it was killed before there was a run
        try:
            for path in find_runs(self.out):
                run = load_run(path)
                run.summaries()
                run.samples()
                found = set(run.folder.measured())
                if missing := {sample.stem for sample in before} - found:
                    self.problems.append(f"not in the record: {missing}")
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what this looks for
            self.problems.append(f"the record cannot be read: {type(error).__name__}: {error}")

    def resume(self) -> None:
        for path in [manifest.parent for manifest in self.out.glob("*/run.json")]:
            kept = {sample: sample.stat().st_mtime_ns for sample in self.finished()}
            program = self.start("sweep", "--resume", str(path))
            self.await_end(program)
            self.look(kept)
            folder = RunFolder(path)
            if program.returncode != 0 or len(folder.finished()) != CASES:
                self.problems.append(
                    f"resumed, it ended with {program.returncode} and {len(folder.finished())} of {CASES} cases"
                )
            if rest := [found.name for found in path.rglob("*.tmp")]:
                self.problems.append(f"half written files are left: {rest}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="netbench-soak-"))
    os.environ["XDG_RUNTIME_DIR"] = str(folder)
    folder.chmod(0o700)
    deadline = time.monotonic() + asked.minutes * 60
    labs = capability(LabSpec.parse(LAB)).way is not None

    unhindered = Round(folder, -1, asked.seed, 0.0, labs=False)
    begun = time.monotonic()
    unhindered.await_end(unhindered.start(*SWEEP, "--out", str(unhindered.out)))
    span_s = time.monotonic() - begun
    assert len(unhindered.finished()) == CASES, "a sweep that nobody disturbs does not end well either"
    print(f"a sweep takes {span_s:.1f} s; labs: {'yes' if labs else 'not allowed here'}; seed {asked.seed}", flush=True)

    kills, missed, resumed, problems = 0, 0, 0, 0
    struck: Counter[str] = Counter()
    number = 0
    while kills < asked.kills and time.monotonic() < deadline:
        round = Round(folder, number, asked.seed, span_s, labs)
        begun = time.monotonic()
        stage = round.run()
        number += 1
        if stage is None:
            missed += 1
            span_s = time.monotonic() - begun  # the machine is faster now than it was
        else:
            kills += 1
            resumed += round.is_resumed
            struck[
                f"{round.target}, {'in a lab, ' if round.lab else ''}{'before' if stage == 'no case' else 'after'} "
                "the first finished case"
            ] += 1
        for problem in round.problems:
            problems += 1
            print(
                f"round {number - 1}: {round.target} killed at {round.moment_s:.2f} s, {stage}: {problem}", flush=True
            )
        if not round.problems:
            shutil.rmtree(round.out, ignore_errors=True)
        if kills % 10 == 0:
            print(f"{kills} kills, {problems} problems", flush=True)
    for what, count in sorted(struck.items()):
        print(f"{count:5}  {what}")
    print(
        f"{kills} of {asked.kills} kills, {missed} sweeps ended before theirs, {resumed} resumed, {problems} problems"
    )
    if problems:
        print(f"what they left is in {folder}")
    else:
        shutil.rmtree(folder)
    return int(problems > 0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
