"""Where results cannot be written, or can no longer be read: the message, the exit code, and what is left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from programs import Program, only_run
from synthetic import make_case, make_run

from netbench.__main__ import run
from netbench.errors import Exit
from netbench.record import RunFolder, timeline_table, write_timeline
from netbench.summary import load_run

#: Cases of about half a second each, which leaves time to disturb them.
SLOW = [
    *("sweep", "--modes", "allreduce", "--backends", "gloo", "--streams", "1", "--world-sizes", "2", "--rounds", "1"),
    *("--iterations", "4", "--warmup", "1", "--pause", "100ms", "--sizes", "4KiB:128KiB:x2"),
]


def in_own_mounts(script: str, *typed: str, then: str = "") -> subprocess.CompletedProcess[str]:
    """Runs netbench after ``script`` in a mount namespace of its own, which takes its mounts along when it ends."""
    own = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    try:
        mount = ["mount", "-t", "tmpfs", "none", "/mnt"]
        able = subprocess.run([*own, *mount], capture_output=True, text=True, timeout=20, check=False)
    except FileNotFoundError:
        pytest.skip("unshare is not installed, so no disk can be made that is full or cannot be written")
    if able.returncode:
        pytest.skip(f"a mount namespace cannot be made here: {able.stderr.strip()}")
    text = f'{script} || exit 99; "$@"; code=$?; {then or ":"}; exit $code'
    return subprocess.run(
        [*own, "sh", "-c", text, "sh", sys.executable, "-m", "netbench", *typed],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def processes_about(path: Path) -> list[str]:
    """The processes that name ``path``, after a moment to end."""
    deadline = time.monotonic() + 5
    while True:
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            line = " ".join(process.info["cmdline"] or [])
            if str(path) in line and process.pid != os.getpid() and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(line)
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def launches(folder: RunFolder) -> int:
    return len(list(folder.logs.glob("launch-*.job.json")))


@pytest.mark.e2e
def test_a_disk_that_fills_up_ends_the_sweep_at_once_and_the_run_can_go_on_elsewhere(
    netbench: Callable[..., Program], tmp_path: Path
) -> None:
    disk, copy = tmp_path / "disk", tmp_path / "copy"
    disk.mkdir()
    # Room for the plan, the logs and a few samples.
    ended = in_own_mounts(
        f"mount -t tmpfs -o size=192k none {disk}",
        *SLOW[:-1],
        *("4KiB:1MiB:x1.2", "--pause", "0", "--out", str(disk)),
        then=f"cp -a {disk} {copy}",
    )
    assert ended.returncode == Exit.STORAGE == 6, ended.stderr
    assert str(disk) in ended.stderr
    assert "cannot be written: No space left on device" in ended.stderr
    assert "are free); make room" in ended.stderr
    assert "netbench sweep --resume" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert processes_about(disk) == []
    folder = only_run(copy)
    assert launches(folder) == 1
    kept = folder.finished()
    assert kept
    assert set(load_run(folder.path).summaries().query("status == 'ok'")["case_id"]) >= kept
    assert not list(folder.path.rglob("*.tmp"))

    resumed = netbench("sweep", "--resume", str(folder.path))
    assert resumed.end() == Exit.DONE, resumed.err
    assert folder.finished() == {case.id for case in folder.read_manifest().cases} > kept


def test_a_disk_without_any_room_is_named_before_anything_is_started(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    ended = in_own_mounts(f"mount -t tmpfs -o size=4k none {disk}", *SLOW, "--out", str(disk))
    assert ended.returncode == Exit.STORAGE
    assert f"{disk}/" in ended.stderr
    assert "run.json: cannot be written: No space left on device (0 B of 4 KiB are free); make room" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_place_that_cannot_be_written_is_named_with_the_way_out(tmp_path: Path) -> None:
    ended = in_own_mounts(
        f"mount --bind {tmp_path} {tmp_path} && mount -o remount,ro,bind {tmp_path}", *SLOW, "--out", str(tmp_path)
    )
    assert ended.returncode == Exit.STORAGE
    assert "cannot be made: Read-only file system; choose another place by --out" in ended.stderr
    assert "Traceback" not in ended.stderr


#: Eight sizes of what explain, fit and the others ask for.
CASES = [
    make_case(mode, "gloo", 1, 2, 4096 * 4**step)
    for mode in ("all_gather", "exchange", "allreduce")
    for step in range(4)
]
LOST = CASES[0]


@pytest.fixture
def record(tmp_path: Path) -> RunFolder:
    return make_run(tmp_path / "results" / "run", CASES)


#: What reads a run -> whether it also writes beside it.
READING: dict[str, tuple[list[str], bool]] = {
    "show": (["show", "RUN"], False),
    "show --ranks": (["show", "RUN", "--ranks"], False),
    "show json": (["show", "RUN", "--format", "json"], False),
    "plot": (["plot", "RUN", "--figures", "bandwidth"], True),
    "plot --terminal": (["plot", "RUN", "--terminal"], False),
    "report": (["report", "RUN"], True),
    "compare": (["compare", "OTHER", "RUN"], False),
    "compare, as the baseline": (["compare", "RUN", "OTHER"], False),
    "check": (["check", "RUN", "--require", "allreduce >= 1kbit/s"], False),
    "fit": (["fit", "RUN"], True),
    "predict": (["predict", "RUN", "--mode", "allreduce", "--world-size", "2", "--tensor", "64KiB"], False),
    "explain": (["explain", "RUN"], True),
    "runs": (["runs", "RUN"], False),
}


def typed(command: str, folder: RunFolder) -> list[str]:
    other = folder.path.parent.parent / "others" / "other"
    if "OTHER" in READING[command][0] and not other.exists():
        make_run(other, CASES)
    names = {"RUN": str(folder.path), "OTHER": str(other)}
    return [names.get(word, word) for word in READING[command][0]]


@pytest.mark.parametrize("command", READING)
def test_a_record_that_cannot_be_written_can_be_read(command: str, record: RunFolder) -> None:
    words = typed(command, record)
    place = record.path.parent
    ended = in_own_mounts(f"mount --bind {place} {place} && mount -o remount,ro,bind {place}", *words)
    assert "Traceback" not in ended.stderr
    if READING[command][1]:
        assert ended.returncode == Exit.STORAGE
        assert str(record.path) in ended.stderr
        assert "Read-only file system" in ended.stderr
    else:
        assert ended.returncode == Exit.DONE, ended.stderr
        assert ended.stdout


def flip(path: Path, part: float) -> None:
    """Turns one bit round, ``part`` of the way into the file."""
    content = bytearray(path.read_bytes())
    content[int(len(content) * part)] ^= 0x10
    path.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "emptied": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "half of it": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "a bit turned round": lambda path: flip(path, 0.2),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "another file": lambda path: path.write_text("no parquet"),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "gone": lambda path: path.unlink(),
}


#: Every kind of damage is met by one command, and every command by one kind of each.
MET = [("show json", damage) for damage in DAMAGE] + [
    (command, damage) for command in READING if command != "runs" for damage in ("cut", "a bit turned round")
]


@pytest.mark.parametrize(("command", "damage"), MET)
def test_one_damaged_sample_file_is_named_and_hides_no_other_case(
    command: str, damage: str, record: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    DAMAGE[damage](record.sample_file(LOST.id))
    assert run(typed(command, record)) == Exit.RECORD == 4
    out, err = capsys.readouterr()
    assert f"{record.sample_file(LOST.id)}: is " in err
    assert f"restore it from a copy, or measure it anew: netbench sweep --resume {record.path}" in err
    assert "Traceback" not in err
    assert out
    if command == "show json":
        rows = {row["case_id"]: row for row in json.loads(out)}
        assert rows.pop(LOST.id)["status"] == "damaged"
        assert {row["status"] for row in rows.values()} == {"ok"}
        assert len(rows) == len(CASES) - 1


def test_no_turned_bit_in_a_sample_file_becomes_another_number(tmp_path: Path) -> None:
    record = make_run(tmp_path / "run", [LOST, CASES[-1]])
    path = record.sample_file(LOST.id)
    whole, right = path.read_bytes(), load_run(record.path)
    found = 0
    for place in range(4, len(whole), 41):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        read = load_run(record.path)
        if LOST.id in read.damaged:
            found += 1
        else:
            assert read.facts(LOST.id) == right.facts(LOST.id)
            assert (read.times(LOST.id) == right.times(LOST.id)).all()
    assert found > len(whole) / 41 / 4


MANIFESTS = [*(name for name in DAMAGE if name not in ("gone", "a bit turned round")), "nested", "a number"]


@pytest.mark.parametrize(
    ("command", "damage"),
    [
        *(("show json", damage) for damage in MANIFESTS),
        *(("runs", damage) for damage in MANIFESTS),
        *((command, "cut") for command in READING),
    ],
)
def test_a_damaged_manifest_is_named(
    command: str, damage: str, record: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    words = typed(command, record)
    own = {"nested": "[" * 100_000, "a number": "1"}
    if damage in own:
        record.manifest.write_text(own[damage])
    else:
        DAMAGE[damage](record.manifest)
    if damage == "a folder":
        # A folder of that name makes no run of the folder around it.
        assert run(words) in (Exit.RECORD, Exit.USAGE)
    else:
        assert run(words) == Exit.RECORD
    out, err = capsys.readouterr()
    assert str(record.path) in err
    assert "Traceback" not in err
    assert "unreadable" in out if command == "runs" and damage != "a folder" else not out


def test_one_damaged_run_hides_no_other(record: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    other = make_run(record.path.parent / "other", [LOST])
    other.manifest.write_text("{")
    assert run(["show", str(record.path.parent), "--format", "json"]) == Exit.RECORD
    out, err = capsys.readouterr()
    assert len(json.loads(out)) == len(CASES)
    assert f"{other.manifest}: is damaged" in err


@pytest.mark.parametrize(("outcome", "code"), [("met", Exit.RECORD), ("violated", Exit.CASE_FAILED)])
def test_a_gate_does_not_pass_on_a_damaged_record(
    outcome: str, code: Exit, record: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    record.sample_file(LOST.id).write_bytes(b"")
    wanted = {"met": "allreduce >= 1kbit/s", "violated": "allreduce >= 1Tbit/s"}[outcome]
    assert run(["check", str(record.path), "--require", wanted]) == code
    assert capsys.readouterr().out.startswith(outcome)


@pytest.mark.parametrize("content", [b"\0" * 300, b"case_id,mode\nx,allreduce\n", b"\xff", b'"' + b"x" * 200_000])
@pytest.mark.parametrize("command", ["show", "plot", "report", "runs"])
def test_damaged_quotes_are_named(
    command: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run(tmp_path / "run", [], unmeasured=[LOST], status="quoted")
    folder.quotes.write_bytes(content)
    assert run([command, str(folder.path)]) == Exit.RECORD
    out, err = capsys.readouterr()
    assert str(folder.quotes) in (out if command == "runs" else err)
    assert "Traceback" not in err


@pytest.mark.parametrize("damage", [name for name in DAMAGE if name != "gone"])
def test_a_damaged_timeline_is_named(damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = make_case("all_gather", timeline_us=2000)
    folder = make_run(tmp_path / "run", [case])
    readings = [(rank, np.arange(300, dtype=np.int64).reshape(100, 3) * 10**5) for rank in range(2)]
    write_timeline(folder, case, timeline_table("run", case, readings))
    assert run(["plot", str(folder.path), "--figures", "timeline"]) == Exit.DONE
    DAMAGE[damage](folder.timeline_file(case.id))
    assert run(["plot", str(folder.path)]) == Exit.RECORD
    out, err = capsys.readouterr()
    assert "bandwidth" in out
    assert "Traceback" not in err
    assert f"{folder.timeline_file(case.id)}: is " in err


def slow_sweep(netbench: Callable[..., Program], out: Path) -> tuple[Program, RunFolder]:
    """A sweep with a finished case, and with others to come."""
    program = netbench(*SLOW, "--out", str(out))
    program.wait_until(lambda: any(out.glob("*/samples/*.parquet")), "a finished case")
    program.note_started()
    return program, only_run(out)


@pytest.mark.e2e
@pytest.mark.parametrize("removed", ["the run", "its samples", "its logs"])
def test_a_folder_removed_under_a_sweep_ends_it(removed: str, netbench: Callable[..., Program], tmp_path: Path) -> None:
    program, folder = slow_sweep(netbench, tmp_path)
    gone = {"the run": folder.path, "its samples": folder.samples, "its logs": folder.logs}[removed]
    aside = tmp_path.parent / f"{tmp_path.name}-aside"
    gone.rename(aside)  # as a removal, at one moment
    shutil.rmtree(aside)
    code = program.end()
    assert program.left_behind() == []
    assert "Traceback" not in program.err
    if removed == "its logs":
        # The workers keep writing into what they have open; the next launch, if there is one, cannot begin.
        assert code in (Exit.DONE, Exit.STORAGE), program.err
        return
    assert code == Exit.STORAGE, program.err
    assert str(folder.path) in program.err
    assert "cannot be written: No such file or directory" in program.err
    if removed == "its samples":
        assert folder.read_manifest().status == "interrupted"
        assert launches(folder) == 1
        resumed = netbench("sweep", "--resume", str(folder.path))
        assert resumed.end() == Exit.DONE, resumed.err
        assert len(folder.finished()) == 6


@pytest.mark.e2e
def test_what_is_damaged_is_set_aside_and_measured_anew_by_resume(
    netbench: Callable[..., Program], tmp_path: Path
) -> None:
    first = netbench(*SLOW[:-1], "4KiB,8KiB,16KiB", "--pause", "0", "--out", str(tmp_path))
    assert first.end() == Exit.DONE, first.err
    folder = only_run(tmp_path)
    lost, kept, emptied = sorted(folder.samples.iterdir())
    flip(lost, 0.2)
    emptied.write_bytes(b"")
    before = kept.read_bytes(), kept.stat().st_mtime_ns

    planned = netbench("sweep", "--resume", str(folder.path), "--dry-run")
    assert planned.end() == Exit.DONE
    assert {line.split()[0] for line in planned.out.splitlines()} == {lost.stem, emptied.stem}
    resumed = netbench("sweep", "--resume", str(folder.path))
    assert resumed.end() == Exit.DONE, resumed.err
    for path in (lost, emptied):
        assert f"{path}: is " in resumed.err
        assert f"it is now {path.name}.damaged, and its case is measured anew" in resumed.err
        assert path.with_name(f"{path.name}.damaged").exists()
    assert (kept.read_bytes(), kept.stat().st_mtime_ns) == before
    found = load_run(folder.path)
    assert found.damage == []
    assert set(found.summaries()["status"]) == {"ok"}


@pytest.mark.parametrize("inner", ["plots", "samples"])
def test_nothing_is_written_through_a_link_in_a_record(inner: str, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", CASES)
    outside = tmp_path / "outside"
    outside.mkdir()
    place = folder.path / inner
    if place.exists():
        shutil.rmtree(place)
    place.symlink_to(outside)
    tried = [["plot"], ["fit"]] if inner == "plots" else [["sweep", "--resume"]]
    for words in tried:
        assert run([*words, str(folder.path)]) in (Exit.STORAGE, Exit.CASE_FAILED)
    assert list(outside.iterdir()) == []
