"""What the workers tell the parent: lines in a file, read as they are completed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from netbench.errors import StorageError
from netbench.events import HEARTBEAT_S, EventReader, EventWriter


def test_what_is_told_is_heard_once_and_in_order(tmp_path: Path) -> None:
    writer, reader = EventWriter(tmp_path / "events"), EventReader(tmp_path / "events")
    writer.tell("started", case_id="a")
    assert list(reader.new()) == [{"event": "started", "case_id": "a"}]
    writer.tell("finished", case_id="a", time_s=0.5, status="ok")
    writer.tell("started", case_id="b")
    assert [event["event"] for event in reader.new()] == ["finished", "started"]
    assert list(reader.new()) == []


def test_nothing_is_heard_before_there_is_a_file(tmp_path: Path) -> None:
    assert list(EventReader(tmp_path / "later").new()) == []


def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    path = tmp_path / "events"
    reader = EventReader(path)
    path.write_bytes('{"event": "up"}\n{"event": "é'.encode()[:-1])
    assert list(reader.new()) == [{"event": "up"}]
    assert list(reader.new()) == []
    with path.open("ab") as file:
        file.write("é".encode()[1:] + b'"}\n')
    assert list(reader.new()) == [{"event": "é"}]


def test_other_ranks_tell_nothing(tmp_path: Path) -> None:
    EventWriter(None).tell("started", case_id="a")
    assert list(tmp_path.iterdir()) == []


def test_not_a_number_is_not_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        EventWriter(tmp_path / "events").tell("finished", time_s=float("nan"))


def test_a_sign_of_life_is_given_once_in_a_while_unless_there_was_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    writer, reader = EventWriter(tmp_path / "events"), EventReader(tmp_path / "events")
    writer.alive()
    assert list(reader.new()) == []
    now += HEARTBEAT_S
    writer.alive()
    writer.alive()
    assert list(reader.new()) == [{"event": "alive"}]
    now += 0.9 * HEARTBEAT_S
    writer.tell("started", case_id="a")
    now += 0.9 * HEARTBEAT_S
    writer.alive()
    assert [event["event"] for event in reader.new()] == ["started"]


@pytest.mark.parametrize(
    "line",
    [
        b'{"event": "finished", "case',  # the rest of it had no room
        b"{}",
        b"[1]",
        b'{"event": 1}',
        b'{"event": "started"}',
        b'{"event": "started", "case_id": 7}',
        b'{"event": "finished", "case_id": "a", "time_s": NaN, "status": "ok"}',
        b'{"event": "hosts", "hosts": [{"host": "alpha", "ranks": ["0"]}]}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_a_line_that_is_no_event_says_nothing_and_hides_none(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_bytes(line + b'\n{"event": "up"}\n')
    assert list(EventReader(path).new()) == [{"event": "up"}]


def test_events_that_cannot_be_written_are_named() -> None:
    with pytest.raises(StorageError, match=r"/dev/full: cannot be written: No space left on device"):
        EventWriter(Path("/dev/full")).tell("up")
    with pytest.raises(StorageError, match="gone/events: cannot be written: No such file or directory"):
        EventWriter(Path("gone/events"))
