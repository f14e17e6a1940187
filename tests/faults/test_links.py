"""A link goes down, gets slow or loses packets in mid-case, and a host vanishes: between emulated hosts."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from programs import Program, only_run

from faults import sabotage
from faults.cells import cell
from netbench import load
from netbench.errors import Exit
from netbench.lab import HostAddress, LabEntry, LabSpec, capability, list_labs
from netbench.record import RunFolder

pytestmark = [pytest.mark.e2e, pytest.mark.lab, pytest.mark.timeout(240)]

Netbench = Callable[..., Program]

#: Cases of three seconds, so that there is a middle of them.
AXES = [
    *("--lab", "2x100mbit", "--modes", "allreduce", "--backends", "gloo", "--streams", "1", "--world-sizes", "2"),
    *("--iterations", "30", "--warmup", "1", "--rounds", "1", "--timeout", "4s"),
]


def sizes(count: int) -> str:
    return ",".join(str(750_000 + 4 * index) for index in range(count))


@pytest.fixture(autouse=True)
def no_lab_is_left(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
    if reason := capability(LabSpec.parse("2x100mbit")).refusal:
        pytest.skip(reason)
    yield
    assert list_labs() == []


def run(host: HostAddress, *argv: str) -> None:
    subprocess.run(host.command(argv), check=True, capture_output=True, timeout=20)


class Link:
    """The link of host1 in the lab of the sweep under way."""

    def __init__(self, lab: LabEntry) -> None:
        self._host, self._switch = lab.hosts[1], lab.switch

    def plug(self, state: str) -> None:
        """``up`` or ``down``, at the switch's end, as if somebody pulled the cable there."""
        run(self._switch, "ip", "link", "set", "port1", state)

    def rate(self, rate: str) -> None:
        for host, device in ((self._host, self._host.interface), (self._switch, "port1")):
            queue = ["tc", "qdisc", "replace", "dev", device, "root", "handle", "1:", "tbf"]
            run(host, *queue, "rate", rate, "burst", "32kb", "latency", "200ms")

    def lose(self, percent: int) -> None:
        """Drops so many of the packets that come to host1."""
        rule = f"numgen random mod 100 < {percent} drop"
        chain = "type filter hook input priority 0;"
        run(
            self._host, "nft", f"table ip faults {{ chain loss {{ {chain} iifname {self._host.interface} {rule}; }}; }}"
        )

    def lose_no_more(self) -> None:
        run(self._host, "nft", "delete", "table", "ip", "faults")


class Course:
    """A sweep in a lab, case by case."""

    def __init__(self, program: Program, out: Path) -> None:
        self._program, self._out = program, out
        self._launch, self._seen = 1, 0
        program.wait_until(lambda: bool(list_labs()), "a lab")
        self.link = Link(list_labs()[0])

    @property
    def folder(self) -> RunFolder:
        return only_run(self._out)

    def _events(self) -> list[dict[str, Any]]:
        path = self.folder.events(self._launch) if any(self._out.glob("*/logs")) else self._out
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    def middle_of_next(self) -> str:
        """Waits until the next case has run for a second, and gives its id."""

        def has_come() -> bool:
            names = [event["event"] for event in self._events()]
            starts = [index for index, name in enumerate(names) if name == "started"]
            return len(starts) > self._seen and "alive" in names[starts[self._seen] :]

        self._program.wait_until(has_come, "the middle of a case")
        self._seen += 1
        return [event["case_id"] for event in self._events() if event["event"] == "started"][self._seen - 1]

    def finished(self, case_id: str) -> None:
        self._program.wait_until(lambda: case_id in self.folder.finished(), f"the end of {case_id}")

    def failed(self, case_id: str) -> str:
        """Waits until the case is booked as failed, and gives the reason."""

        def reasons() -> list[str]:
            failures = self.folder.read_manifest().failures
            return [failure.reason for failure in failures if failure.case_id == case_id]

        self._program.wait_until(lambda: bool(reasons()), f"a failure of {case_id}")
        self._launch, self._seen = self._launch + 1, 0
        [reason] = reasons()
        return reason


def test_a_link_that_changes_in_mid_case(netbench: Netbench, tmp_path: Path) -> None:
    out = tmp_path / "results"
    program = netbench("sweep", *AXES, "--sizes", sizes(5), "--out", str(out))
    course = Course(program, out)
    link = course.link

    slowed = course.middle_of_next()
    link.rate("25mbit")
    course.finished(slowed)
    link.rate("100mbit")

    lossy = None
    if shutil.which("nft"):
        lossy = course.middle_of_next()
        link.lose(3)
        course.finished(lossy)
        link.lose_no_more()

    interrupted = course.middle_of_next()
    link.plug("down")
    time.sleep(0.5)  # TCP tries again ever more seldom, so this becomes a second or two
    link.plug("up")
    course.finished(interrupted)

    broken = course.middle_of_next()
    link.plug("down")
    reason = course.failed(broken)
    link.plug("up")
    program.note_until_end()
    assert program.end() == cell("the link goes down, for longer than --timeout", "timing").exit == Exit.CASE_FAILED
    assert program.left_behind() == []

    assert cell("the link goes down, for longer than --timeout", "timing").fits(reason), reason
    assert "host0" in reason
    assert "host1" in reason
    assert len(course.folder.finished()) == 4
    assert broken not in course.folder.finished()
    [measured] = load(course.folder.path)
    rows = {row["case_id"]: row for row in measured.summaries().to_dict("records")}
    times = {case_id: measured.times(case_id) for case_id in course.folder.finished()}
    calm = min(map(min, times.values()))
    # What fails a sweep is booked, so each of these alone would have ended well.
    slow, losses = cell("the link gets slow", "timing"), cell("packets are lost", "timing")
    back = cell("the link goes down, and comes back within --timeout", "timing")
    assert slow.exit == losses.exit == back.exit == Exit.DONE
    assert {rows[case_id]["status"] for case_id in times} == {"ok"}
    assert [failure.case_id for failure in course.folder.read_manifest().failures] == [broken]
    assert max(times[slowed]) > 2 * calm  # a quarter of the rate
    assert max(times[interrupted]) > 0.5e9  # one iteration took as long as that, and the median does not mind
    assert median(times[interrupted]) < 0.3e9
    if lossy:
        assert rows[lossy]["wrong_elements"] == 0
        assert rows[lossy]["retransmits"] > 0


#: The ranks have this long to come up, instead of two minutes.
IMPATIENT = """
import sys
if "netbench.worker" in sys.orig_argv:
    from netbench import preflight

    preflight.ARRIVAL_LIMIT_S, preflight.ARRIVAL_LIMIT_PER_RANK_S = 8.0, 0.0
"""


def test_a_link_gets_too_slow_and_then_a_host_vanishes(netbench: Netbench, tmp_path: Path) -> None:
    too_slow, vanished = cell("the link gets too slow for --timeout", "timing"), cell("a host vanishes", "timing")
    out = tmp_path / "results"
    impatient = sabotage.site(tmp_path / "python", IMPATIENT)
    program = netbench("sweep", *AXES, "--sizes", sizes(4), "--out", str(out), **impatient)
    course = Course(program, out)

    slow = course.middle_of_next()
    course.link.rate("400kbit")
    reason = course.failed(slow)
    course.link.rate("100mbit")
    assert too_slow.fits(reason), reason

    lost = course.middle_of_next()
    course.link.plug("down")
    reason = course.failed(lost)
    assert cell("the link goes down, for longer than --timeout", "timing").fits(reason), reason

    program.note_until_end()
    assert program.end() == vanished.exit
    assert program.left_behind() == []
    assert vanished.fits(program.err), program.err
    assert f"go on with: netbench sweep --resume {course.folder.path}" in program.err
    assert course.folder.read_manifest().status == "failed"
    assert not {slow, lost} & course.folder.finished()


#: The patience of two minutes with an operation that stands still, cut short.
STANDSTILL = """
import sys
if "netbench.worker" in sys.orig_argv:
    from netbench import pulse

    pulse.STANDSTILL_S = 3.0
"""


@pytest.mark.soak
def test_a_dead_operation_is_ended_long_before_a_generous_timeout(netbench: Netbench, tmp_path: Path) -> None:
    wanted = cell("the link goes down, with a --timeout of an hour", "timing")
    out = tmp_path / "results"
    impatient = sabotage.site(tmp_path / "python", STANDSTILL)
    program = netbench("sweep", *AXES, "--timeout", "3600", "--sizes", sizes(2), "--out", str(out), **impatient)
    course = Course(program, out)
    lost = course.middle_of_next()
    course.link.plug("down")
    reason = course.failed(lost)
    course.link.plug("up")
    assert wanted.fits(reason), reason
    program.note_until_end()
    assert program.end() == wanted.exit
    assert program.left_behind() == []
    assert len(course.folder.finished()) == 1
