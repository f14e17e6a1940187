"""What is on a machine and is nobody's business is found nowhere in the results, to the byte."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from programs import Program, only_run

from netbench.errors import Exit
from netbench.record import RunFolder

pytestmark = pytest.mark.e2e

SENTINEL = "sentinel-7f1d3c-do-not-record"

#: Also under names that look as if they were ours, torch's or Gloo's.
NAMES = (
    *("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "PASSWORD", "NETBENCH_API_KEY", "NETBENCH_TOKEN", "NCCL_SECRET", "GLOO_X"),
    *("TORCH_GLOO_KEY", "TORCHELASTIC_TOKEN", "MALLOC_KEY", "OMP_SECRET", "RANK_SECRET", "SLURM_TOKEN"),
)

SMALL = [
    *("sweep", "--modes", "allreduce,all_gather", "--backends", "gloo,parallel_gloo", "--streams", "1,2"),
    *("--world-sizes", "2", "--sizes", "4KiB:256KiB:x4", "--iterations", "6", "--rounds", "1", "--warmup", "1"),
]

#: As much as torch and torchrun can be made to say.
LOUD = {
    "LOGLEVEL": "DEBUG",
    "TORCH_CPP_LOG_LEVEL": "INFO",
    "TORCH_DISTRIBUTED_DEBUG": "INFO",
    "GLOO_LOG_LEVEL": "DEBUG",
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with the sentinel in files' names, while another process has it in its command line."""
    for name in (f"{SENTINEL}.txt", f"results/{SENTINEL}.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(SENTINEL)
    monkeypatch.chdir(tmp_path)
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", SENTINEL])
    yield tmp_path
    other.kill()
    other.wait()


def texts(path: Path) -> Iterator[bytes]:
    """Everything that a file holds, also what is packed."""
    content = path.read_bytes()
    yield content
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        yield str(table.schema.metadata).encode()
        yield table.to_pandas().to_csv().encode()
    if path.suffix == ".png":
        place = 8
        while place < len(content):
            length, kind = int.from_bytes(content[place : place + 4]), content[place + 4 : place + 8]
            if kind in (b"zTXt", b"iTXt"):
                yield zlib.decompress(content[place + 8 : place + 8 + length].split(b"\0", 2)[-1])
            place += 12 + length
    if zipfile.is_zipfile(io.BytesIO(content)):
        yield from (zipfile.ZipFile(path).read(name) for name in zipfile.ZipFile(path).namelist())


def found_in(folder: RunFolder, sentinel: bytes = SENTINEL.encode()) -> list[str]:
    files = [path for path in folder.path.rglob("*") if path.is_file()]
    assert len(files) >= 4
    return [str(path) for path in files if sentinel in str(path).encode() or any(sentinel in t for t in texts(path))]


@pytest.mark.parametrize("loud", [False, True], ids=["as usual", "with all logs"])
def test_a_secret_of_the_machine_is_nowhere_in_the_results(
    loud: bool, netbench: Callable[..., Program], place: Path
) -> None:
    secret = dict.fromkeys(NAMES, SENTINEL)
    programs = [netbench(*SMALL, **secret, **(LOUD if loud else {}))]
    assert programs[0].end() == Exit.DONE, programs[0].err
    folder = only_run(place / "results")
    # The reading half loads no torch, so that these have no more to say with all logs.
    for command in () if loud else ("plot", "report", "fit", "show"):
        programs.append(netbench(command, str(folder.path), **secret))
        assert programs[-1].end() == Exit.DONE, programs[-1].err
    assert found_in(folder) == []
    assert not [program for program in programs if SENTINEL in program.out + program.err]


def test_a_secret_is_not_in_what_a_failure_leaves(netbench: Callable[..., Program], place: Path) -> None:
    (place / "python").mkdir()
    (place / "python" / "sitecustomize.py").write_text(
        'import os, sys\nif "netbench.worker" in sys.orig_argv and os.environ.get("LOCAL_RANK") == "1":\n'
        "    from netbench import measure\n    measure.time_iterations = lambda *_, **__: 1 / 0\n"
    )
    program = netbench(
        *SMALL,
        "--only",
        "allreduce-gloo-*-4KiB",
        "--timeout",
        "5",
        PYTHONPATH=_path(place),
        **dict.fromkeys(NAMES, SENTINEL),
    )
    assert program.end() == Exit.CASE_FAILED, program.err
    assert "ZeroDivisionError" in program.err
    assert "Traceback" not in program.err
    assert found_in(only_run(place / "results")) == []
    assert SENTINEL not in program.out + program.err


def _path(place: Path) -> str:
    return ":".join([str(place / "python"), *(path for path in sys.path if (Path(path) / "netbench").is_dir())])


def test_what_the_user_types_is_recorded_and_so_would_be_found(netbench: Callable[..., Program], place: Path) -> None:
    """The test of the tests above; docs/results-format.md says so."""
    program = netbench(*SMALL[:-6], "--sizes", "4KiB", "--question", SENTINEL)
    assert program.end() == Exit.DONE, program.err
    folder = only_run(place / "results")
    assert found_in(folder) == [str(folder.manifest)]
