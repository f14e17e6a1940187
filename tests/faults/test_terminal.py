"""Terminals and pipes as they are in the field: closed, hung up, narrow, dumb, without colour or umlauts."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from programs import only_run
from synthetic import make_case, make_run

from netbench.errors import Exit
from netbench.record import RunFolder

NETBENCH = [sys.executable, "-m", "netbench"]

SMALL = [
    *("sweep", "--modes", "allreduce", "--backends", "gloo", "--streams", "1", "--world-sizes", "2", "--rounds", "1"),
    *("--iterations", "3", "--warmup", "1", "--sizes", "4KiB,8KiB,16KiB,32KiB"),
]


@pytest.fixture
def record(tmp_path: Path) -> RunFolder:
    cases = [make_case(mode, tensor_bytes=4096 * 4**step) for mode in ("all_gather", "allreduce") for step in range(4)]
    return make_run(tmp_path / "results" / "run", cases, question="Wie schnell? Äußerst!")


def shell(text: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A line of a shell in which NETBENCH is the program, with whatever it printed; its exit code is the program's."""
    return subprocess.run(
        ["bash", "-c", f'set -o pipefail; NETBENCH() {{ "{sys.executable}" -m netbench "$@"; }}; {text}'],
        capture_output=True,
        timeout=120,
        env=os.environ | environment,
        check=False,
    )


@pytest.mark.parametrize(
    "command", ["show", "show --format csv", "show --format json", "plot --terminal", "runs", "list"]
)
def test_a_reader_that_has_had_enough_is_no_error(command: str, record: RunFolder) -> None:
    where = "" if command == "list" else str(record.path)
    ended = shell(f"NETBENCH {command} {where} | head -n 1")
    assert ended.returncode == Exit.DONE, ended.stderr
    assert ended.stderr == b""
    assert len(ended.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("outlet", "reason"), [(">&-", b"Bad file descriptor"), (">/dev/full", b"No space left on device")]
)
def test_what_could_not_be_shown_is_not_taken_for_shown(outlet: str, reason: bytes, record: RunFolder) -> None:
    ended = shell(f"NETBENCH show {record.path} {outlet}")
    assert ended.returncode == Exit.STORAGE
    assert ended.stderr == b"netbench: standard output: cannot be written: " + reason + b"\n"


@pytest.mark.parametrize("outlet", ["2>&-", "2>/dev/full"])
def test_messages_that_nobody_can_read_change_nothing(outlet: str, record: RunFolder) -> None:
    shown = shell(f"NETBENCH show {record.path} --format json {outlet}")
    assert shown.returncode == Exit.DONE
    assert len(json.loads(shown.stdout)) == 8
    refused = shell(f"NETBENCH show {record.path}/gone {outlet}")
    assert (refused.returncode, refused.stdout, refused.stderr) == (Exit.USAGE, b"", b"")


@pytest.mark.e2e
@pytest.mark.parametrize("outlet", [">&- 2>&- <&-", "| head -n 1", ">/dev/full 2>/dev/full"])
def test_a_sweep_is_measured_whoever_looks(outlet: str, tmp_path: Path) -> None:
    ended = shell(f"NETBENCH {' '.join(SMALL)} --out {tmp_path} {outlet}")
    folder = only_run(tmp_path)
    assert folder.read_manifest().status == "finished"
    assert len(folder.finished()) == 4
    # The table of a sweep may have no reader, but it may not be lost unsaid.
    assert ended.returncode == (Exit.DONE if "head" in outlet else Exit.STORAGE)
    assert (folder.path / "summary.csv").is_file()
    for path in folder.path.rglob("*"):
        if path.is_file() and path.suffix in (".json", ".lock", ".log"):
            assert b"starting 2 ranks" not in path.read_bytes()  # a message in the place of a closed descriptor


@pytest.mark.e2e
def test_a_broken_pipe_does_not_hide_that_a_case_failed(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        'import os, sys\nif "netbench.worker" in sys.orig_argv and os.environ.get("LOCAL_RANK") == "1":\n'
        "    from netbench import measure\n    right = measure.count_wrong\n"
        "    measure.count_wrong = lambda *given: right(*given) + 1\n"
    )
    python = ":".join([str(tmp_path), *(path for path in sys.path if (Path(path) / "netbench").is_dir())])
    ended = shell(f"NETBENCH {' '.join(SMALL)} --out {tmp_path / 'results'} | true", PYTHONPATH=python)
    assert ended.returncode == Exit.CASE_FAILED, ended.stderr
    assert b"4 of 4 cases did not end well" in ended.stderr


def on_terminal(typed: list[str], until: str, columns: int = 100, **environment: str) -> tuple[str, int | None]:
    """What a command prints on a terminal until ``until`` has been seen, or it ended; then the terminal is closed."""
    master, slave = pty.openpty()
    import fcntl
    import struct
    import termios

    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [*NETBENCH, *typed],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "", **environment},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(slave)
    text, deadline = b"", time.monotonic() + 60
    started: list[psutil.Process] = []
    while time.monotonic() < deadline and (not until or until.encode() not in text):
        if select.select([master], [], [], 0.1)[0]:
            try:
                text += os.read(master, 65536)
            except OSError:  # it has ended
                break
        started = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else started
    os.close(master)
    code = process.wait(60)
    _, alive = psutil.wait_procs(started, timeout=5)
    assert [one for one in alive if one.status() != psutil.STATUS_ZOMBIE] == []
    return text.decode(errors="replace"), code


@pytest.mark.e2e
def test_a_terminal_that_closes_ends_the_sweep_in_order(tmp_path: Path) -> None:
    typed = [*SMALL, "--pause", "300ms", "--out", str(tmp_path)]
    text, code = on_terminal(typed, "1/4")
    assert code == Exit.TERMINATED == 143
    assert "Traceback" not in text
    folder = only_run(tmp_path)
    manifest = folder.read_manifest()
    assert manifest.status == "interrupted"
    assert manifest.launches[-1].reason == "stopped by SIGHUP"
    assert folder.finished()


_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-7][0-9;]*m|\x1b\[38")


@pytest.mark.parametrize("command", [["show"], ["plot", "--terminal"], ["runs"]])
@pytest.mark.parametrize("columns", [40, 100])
def test_nothing_is_wider_than_the_terminal(command: list[str], columns: int, record: RunFolder) -> None:
    text, code = on_terminal([*command, str(record.path)], "", columns)
    assert code == Exit.DONE, text
    lines = [_ESCAPE.sub("", line) for line in text.replace("\r", "").split("\n")]
    assert len(lines) > 5
    if command[0] == "plot":
        assert max(map(len, lines)) <= columns


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
@pytest.mark.parametrize("command", [["show"], ["plot", "--terminal"], ["runs"]])
def test_colour_is_left_out_where_it_is_not_wanted(
    command: list[str], environment: dict[str, str], record: RunFolder
) -> None:
    text, code = on_terminal([*command, str(record.path)], "", **environment)
    assert code == Exit.DONE, text
    assert not _COLOUR.search(text)
    if environment.get("TERM") == "dumb":
        assert "\x1b" not in text


@pytest.mark.e2e
def test_a_dumb_terminal_gets_plain_lines(tmp_path: Path) -> None:
    text, code = on_terminal([*SMALL, "--out", str(tmp_path)], "", TERM="dumb")
    assert code == Exit.DONE
    assert "[4/4] allreduce" in text
    assert "\x1b" not in text


#: Runs commands one after another as the program does; to start it anew for each takes longer than all of them.
IN_TURN = """
import sys
from netbench.__main__ import run
from netbench.outlets import open_outlets
open_outlets()
for command in sys.argv[2:]:
    code = run([*command.split(), sys.argv[1]])
    print(f"\\0{command}: {code}", end="\\0")
"""


@pytest.mark.parametrize(
    "environment",
    [{"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, {"PYTHONIOENCODING": "ascii"}],
    ids=["C", "C and no coercion", "ascii"],
)
def test_what_the_encoding_lacks_is_written_out(environment: dict[str, str], record: RunFolder) -> None:
    commands = ["show", "show --format csv", "show --format markdown", "runs", "plot --terminal"]
    ended = subprocess.run(
        [sys.executable, "-c", IN_TURN, str(record.path), *commands],
        capture_output=True,
        timeout=120,
        env=os.environ | environment,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == b""
    *printed, end = ended.stdout.split(b"\0")
    assert end == b""
    assert printed[1::2] == [f"{command}: 0".encode() for command in commands]
    assert all(printed)
    if "PYTHONIOENCODING" in environment:
        assert ended.stdout.isascii()
        for text in printed[0], printed[6]:  # show and runs
            assert rb"\xc4u\xdferst!" in text
