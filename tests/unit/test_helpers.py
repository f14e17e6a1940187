"""Work shared with other processes: the same results in the same order, whatever becomes of the helpers."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pandas as pd
import psutil
import pytest
from synthetic import make_case, make_run

from netbench import figures, helpers, summary
from netbench.errors import StorageError
from netbench.figures import write_plots
from netbench.helpers import shared
from netbench.model import Case
from netbench.summary import load_run


@pytest.fixture(autouse=True)
def two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


def wait_for(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not found():
        assert time.monotonic() < deadline, "nothing has happened for a minute"
        time.sleep(0.01)


def who(item: int, folder: Path, first: int) -> tuple[int, int]:
    """The item and the process; the first process goes on when a helper has got something to do."""
    if os.getpid() == first:
        wait_for(lambda: any(folder.iterdir()))
    (folder / str(item)).touch()
    return item, os.getpid()


def full(item: int, first: int) -> int:
    if os.getpid() != first:
        raise StorageError(f"file {item}: cannot be written: full")
    time.sleep(0.01)
    return item


def die_as_helper(item: int, folder: Path, first: int) -> int:
    if os.getpid() != first:
        (folder / str(item)).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    wait_for(lambda: any(folder.iterdir()))
    return item


def linger(item: int, folder: Path) -> int:
    (folder / str(os.getpid())).touch()
    time.sleep(0.05)
    return item


def test_others_help_and_the_order_stays(tmp_path: Path) -> None:
    found = shared(partial(who, folder=tmp_path, first=os.getpid()), range(30), 5)
    assert [item for item, _ in found] == list(range(30))
    assert len({process for _, process in found}) == 2
    assert not psutil.Process().children()


def test_nobody_is_started_for_little(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(helpers, "_start", lambda: started.append(1))
    assert shared(str, range(4), 5) == list("0123")
    assert shared(str, [], 5) == []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert shared(str, range(9), 5) == list("012345678")
    assert not started


def test_what_a_helper_raises_is_raised() -> None:
    with pytest.raises(StorageError, match=r"^file \d+: cannot be written: full$"):
        shared(partial(full, first=os.getpid()), range(5000), 5)
    assert not psutil.Process().children()


def test_what_a_killed_helper_had_is_done_here(tmp_path: Path) -> None:
    assert shared(partial(die_as_helper, folder=tmp_path, first=os.getpid()), range(20), 5) == list(range(20))
    assert len(list(tmp_path.iterdir())) == 1  # it was at work when it died


def test_without_helpers_all_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(helpers, "_start", fail)
    assert shared(str, range(9), 5) == list("012345678")
    # What cannot be told a helper is done here too.
    monkeypatch.undo()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert shared(lambda item: item + 1, range(9), 5) == list(range(1, 10))


def test_interrupted_it_ends_its_helpers(tmp_path: Path) -> None:
    def items() -> Iterator[int]:
        yield from range(10)
        wait_for(lambda: any(tmp_path.iterdir()))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shared(partial(linger, folder=tmp_path), items(), 10)
    assert not psutil.Process().children()
    assert len(list(tmp_path.iterdir())) == 1


SCRIPT = """
import os, sys, time
from functools import partial
from pathlib import Path
os.sched_getaffinity = lambda _: {0, 1}
from netbench.helpers import shared
from test_helpers import linger
shared(partial(linger, folder=Path(sys.argv[1])), range(100_000), 5)
"""


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_helpers_end_with_their_program(tmp_path: Path, ending: signal.Signals) -> None:
    """And a script without a guard around what it does is not run once more by them."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    (tmp_path / "pids").mkdir()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (Path(__file__).parent, *sys.path)))}
    with subprocess.Popen(
        [sys.executable, str(path), str(tmp_path / "pids")], env=environment, stderr=subprocess.PIPE, text=True
    ) as program:
        wait_for(lambda: len(list((tmp_path / "pids").iterdir())) == 2 or program.poll() is not None)
        program.send_signal(ending)
        _, errors = program.communicate(timeout=60)
        assert program.returncode == -ending
    pids = [int(one.name) for one in (tmp_path / "pids").iterdir()]
    assert len(pids) == 2
    wait_for(lambda: not any(map(psutil.pid_exists, pids)))
    assert ending == signal.SIGINT or not errors
    assert errors.count("Traceback") <= 1


@pytest.fixture
def cases() -> list[Case]:
    return [make_case(mode, tensor_bytes=4**power) for mode in ("allreduce", "all_gather") for power in range(3, 9)]


def test_figures_are_the_same_and_an_error_names_the_file(
    tmp_path: Path, cases: list[Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = load_run(make_run(tmp_path / "run", cases).path)
    here = {path: path.read_bytes() for path in write_plots([run])}
    monkeypatch.setattr(figures, "_MANY_FIGURES", 1)
    paths = write_plots([run])
    assert paths == list(here)
    assert {path: path.read_bytes() for path in paths} == here
    assert set(run.folder.plots.iterdir()) == set(paths)
    for path in paths:
        path.unlink()
    monkeypatch.setattr(helpers._Work, "do_one", lambda work: False)  # so that a helper has to do it
    paths[-1].mkdir()
    with pytest.raises(StorageError, match=f"^{paths[-1]}: cannot be written: Is a directory$"):
        write_plots([run])
    assert set(run.folder.plots.iterdir()) <= set(paths)  # nothing half written is left


def test_readings_are_the_same(tmp_path: Path, cases: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(tmp_path / "run", cases)
    folder.sample_file(cases[3].id).write_bytes(b"PAR1, but not really")
    here = load_run(folder.path)
    expected = here.summaries()
    monkeypatch.setattr(summary, "_BATCH", 2)
    monkeypatch.setattr(summary, "_MANY_FILES", 4)
    monkeypatch.setattr(helpers._Work, "do_one", lambda work: False)  # so that a helper has to do it
    run = load_run(folder.path)
    pd.testing.assert_frame_equal(run.summaries(), expected, check_exact=True)
    assert run.damage == here.damage
    assert len(run.damage) == 1
