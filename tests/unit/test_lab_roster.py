"""The list of labs: a name is held by a lock, so a file without one belongs to a dead lab."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from netbench.errors import LaunchError, UsageError
from netbench.lab.host import HostAddress
from netbench.lab.roster import LabEntry, Roster


def entry(name: str) -> LabEntry:
    hosts = tuple(HostAddress(f"host{i}", f"198.18.0.{i + 1}", "lab0", f"/proc/1/fd/{i}") for i in range(2))
    switch = HostAddress("switch", "198.18.0.254", "switch0", "/proc/1/ns/net", "/proc/1/ns/user")
    return LabEntry(name, "2x100mbit", "root", holder=1, owner=None, switch=switch, hosts=hosts)


def test_an_entry_reads_back() -> None:
    assert LabEntry.from_json(entry("lab1").to_json()) == entry("lab1")


def test_labs_take_the_first_free_names(tmp_path: Path) -> None:
    roster = Roster(tmp_path)
    first, second = roster.claim(), roster.claim()
    assert (first.name, second.name) == ("lab1", "lab2")
    first.leave()
    assert roster.claim().name == "lab1"


def test_a_lab_is_listed_once_it_is_made(tmp_path: Path) -> None:
    roster = Roster(tmp_path)
    place = roster.claim()
    assert roster.entries() == []
    place.write(entry(place.name))
    assert roster.entries() == [entry("lab1")]
    assert roster.find("lab1") == entry("lab1")
    assert roster.is_up("lab1")


def test_the_file_of_a_dead_lab_is_removed(tmp_path: Path) -> None:
    dead = tmp_path / "lab1.json"
    dead.write_text(entry("lab1").to_json())
    assert not Roster(tmp_path).is_up("lab1")
    assert Roster(tmp_path).entries() == []
    assert not dead.exists()


def test_only_files_of_labs_are_touched(tmp_path: Path) -> None:
    other = tmp_path / "notes.json"
    other.write_text("mine")
    Roster(tmp_path).entries()
    assert other.read_text() == "mine"


def test_an_unknown_lab_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    roster = Roster(tmp_path)
    with pytest.raises(
        UsageError, match=r"there is no lab 'lab3' \(none is up; 'netbench lab up 2x200mbit' makes one\)"
    ):
        roster.find("lab3")
    place = roster.claim()
    place.write(entry(place.name))
    with pytest.raises(UsageError, match=r"there is no lab 'lab3'; did you mean 'lab1'\? \(up: lab1\)"):
        roster.find("lab3")


def test_an_unknown_host_is_answered_with_the_nearest() -> None:
    assert entry("lab1").host("host1").address == "198.18.0.2"
    assert entry("lab1").host("switch").interface == "switch0"
    with pytest.raises(
        UsageError, match=r"lab lab1 has no host 'host7'; did you mean 'host\d'\? \(known: host0, host1, sw"
    ):
        entry("lab1").host("host7")


def test_the_folder_is_this_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert Roster().folder == tmp_path / "netbench"
    assert Roster().folder.stat().st_mode & 0o777 == 0o700
    Roster().folder.chmod(0o755)
    with pytest.raises(LaunchError, match="is not a folder of yours alone"):
        Roster()


def test_a_link_in_the_folders_place_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (tmp_path / f"netbench-{os.getuid()}").symlink_to(elsewhere)
    with pytest.raises(LaunchError, match="is not a folder of yours alone"):
        Roster()
