"""Strikes one rank at one exact moment of a launch, without luck: by a file that Python reads when it starts."""

from __future__ import annotations

import json
import os
from pathlib import Path

#: By launch: the fault, the moment, the rank, and the cgroup with little memory, where it is needed.
Plan = dict[int, tuple[str, str, int, str]]

_SITE = '''
import json, os, re, resource, signal, sys


def strike(fault, cgroup):
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "raises":
        raise ValueError("sabotage")
    elif fault == "out of memory":
        bytearray(1 << 60)
    elif fault == "over RLIMIT_AS":
        import torch

        used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
        torch.zeros(1 << 30)
    elif fault == "over its cgroup":
        with open(os.path.join(cgroup, "cgroup.procs"), "w") as members:
            members.write(str(os.getpid()))
        kept = [bytes([1]) * (1 << 20) for _ in range(512)]


def install(fault, moment, cgroup):
    """The moments are those of the second case of this rank."""
    from netbench import environment, measure, record

    case = 0
    struck = False

    def strike_once():
        nonlocal struck
        if not struck:
            struck = True
            strike(fault, cgroup)

    of_rank, time_iterations, write_samples, fsync = (
        environment.of_rank, measure.time_iterations, record.write_samples, os.fsync
    )

    def at_start(*given):
        strike_once()
        return of_rank(*given)

    def iterations(count, warmup, barrier, operation, **more):
        nonlocal case
        case += bool(warmup)
        index = 0

        def struck_operation():
            nonlocal index
            index += 1
            if index == 2 and case == 2 and moment == ("warm-up" if warmup else "timing"):
                strike_once()
            operation()

        return time_iterations(count, warmup, barrier, struck_operation, **more)

    def writing(*given):
        def half_way(descriptor):
            if case == 2:
                strike_once()
            fsync(descriptor)

        os.fsync = half_way
        return write_samples(*given)

    if moment == "start-up":
        environment.of_rank = at_start
    measure.time_iterations = iterations
    if moment == "writing":
        record.write_samples = writing


if "netbench.worker" in sys.orig_argv:
    with open(PLAN) as file:
        plan = json.load(file)
    launch = re.search(r"launch-(\\d+)\\.job", " ".join(sys.orig_argv))[1]
    if launch in plan and str(plan[launch][2]) == os.environ["RANK"]:
        install(plan[launch][0], plan[launch][1], plan[launch][3])
'''


def environment(folder: Path, plan: Plan) -> dict[str, str]:
    """The variables with which a sweep meets what ``plan`` has for its launches; ``folder`` is for its files."""
    plan_file = folder / "plan.json"
    variables = site(folder, f"PLAN = {str(plan_file)!r}\n{_SITE}")
    plan_file.write_text(json.dumps(plan))
    return variables


def site(folder: Path, code: str) -> dict[str, str]:
    """The variables with which every Python process runs ``code`` as it starts."""
    folder.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(code)
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}
