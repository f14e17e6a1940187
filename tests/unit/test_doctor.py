"""Each check of the doctor, on machines made up for it."""

from __future__ import annotations

import re
import resource
import socket
import time
from collections.abc import Mapping
from ipaddress import ip_address
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from netbench import doctor
from netbench.doctor import CHECKS, examine, row, texts
from netbench.endpoint import parse_endpoint
from netbench.examination import Asked, Finding, Level
from netbench.interfaces import Address, Host, Interface
from netbench.machine import Machine, PatientHost

ROOT = Path(__file__).parents[2]

LO = Interface("lo", (ip_address("127.0.0.1"), ip_address("::1")), mtu_bytes=65536, loopback=True)
ETH0 = Interface("eth0", (ip_address("10.1.0.5"), ip_address("fe80::1%eth0")), mtu_bytes=1500)


class FakeHost(Host):
    def __init__(self, *table: Interface, names: Mapping[str, list[str] | OSError]) -> None:
        super().__init__("alpha")
        self.table = {one.name: one for one in table}
        self.names = names

    def interfaces(self) -> dict[str, Interface]:
        return self.table

    def resolve(self, name: str) -> list[Address]:
        answer = self.names.get(name, socket.gaierror(socket.EAI_NONAME, "Name or service not known"))
        if isinstance(answer, OSError):
            raise answer
        return [ip_address(one) for one in answer]

    def source(self, address: Address) -> Address:
        if str(address).startswith("10."):
            return ip_address("10.1.0.5")
        raise OSError(101, "Network is unreachable")


class FakeMachine(Machine):
    """In perfect health, but for what a test says: an attribute, a fact, or the answer of a reading."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self.table = (LO, ETH0)
        self.names: dict[str, list[str] | OSError] = {"alpha": ["10.1.0.5"], "beta": ["10.1.0.9"]}
        self.environ = {}
        self.files: dict[str, str] = {}
        self.soft_limits: dict[int, tuple[int | None, int | None]] = {}
        self.free, self.load, self.shm, self.synchronised, self.now = 2**36, 0.1, 2**33, True, 1.9e9
        self.disk = (Path("/results"), 2**36, True)
        self.listening: OSError | None = None
        self.connecting: OSError | None = ConnectionRefusedError(111, "Connection refused")
        self.lab_answer: tuple[str | None, str | None] = ("root", None)
        self.known: dict[str, Any] = {
            "cpus": 8,
            "cpus_allowed": 8,
            "container_limits": {"cpu": "max 100000", "memory": "max"},
            "governor": "performance",
            "interface": {"driver": "mlx5_core", "speed_mbit_per_s": 10000},
            "sysctls": {
                "ipv4.tcp_rmem": "4096 131072 6291456",
                "ipv4.tcp_wmem": "4096 16384 4194304",
                "ipv4.tcp_congestion_control": "cubic",
                "ipv4.tcp_slow_start_after_idle": "1",
                "ipv4.tcp_timestamps": "1",
                "ipv4.tcp_window_scaling": "1",
            },
            "versions": {"netbench": "1.0", "python": "3.12.1", "torch": "2.13.0+cpu"},
            "variables": {},
        }
        for name, value in changes.items():
            group, _, key = name.partition("__")
            if key:
                self.known[group] = self.known[group] | {key.replace("__", "."): value}
            elif name in self.known:
                self.known[name] = value
            else:
                assert hasattr(self, name), name
                setattr(self, name, value)
        self.host = FakeHost(*self.table, names=self.names)

    def facts(self, interface: str) -> dict[str, Any]:
        return self.known

    def read(self, path: str) -> str | None:
        return self.files.get(path.rpartition("/")[2])

    def limit(self, which: int) -> tuple[int | None, int | None]:
        return self.soft_limits.get(which, (None, None))

    def free_bytes(self) -> int:
        return self.free

    def load_1min(self) -> float:
        return self.load

    def size_bytes(self, path: str) -> int | None:
        return self.shm

    def storage(self, path: Path) -> tuple[Path, int, bool]:
        return self.disk

    def clock_is_synchronised(self) -> bool | None:
        return self.synchronised

    def now_s(self) -> float:
        return self.now

    def listen(self, address: Address, port: int) -> None:
        if self.listening:
            raise self.listening

    def connect(self, address: Address, port: int, limit_s: float) -> None:
        if self.connecting:
            raise self.connecting

    def lab(self) -> tuple[str | None, str | None]:
        return self.lab_answer


def findings(check: str, machine: Machine, asked: Asked) -> list[Finding]:
    return [finding for name, finding in examine(machine, asked) if name == check]


NETWORK = Asked(interface="eth0")
MEET = Asked(endpoint="beta:29400")
HERE = Asked(endpoint="10.1.0.5:29400")

WIDE = Asked(streams=20, world_size=8)

NOFILE, NPROC = resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC

MTU_9000 = Interface("eth0", ETH0.addresses, mtu_bytes=9000)
MTU_1400 = Interface("eth0", ETH0.addresses, mtu_bytes=1400)
MTU_600 = Interface("eth0", ETH0.addresses, mtu_bytes=600)
DOWN = Interface("eth1", (ip_address("10.2.0.5"),), up=False, running=False)

OK, NOTE, WARNING, PROBLEM = Level


@pytest.mark.parametrize("asked", [Asked(), NETWORK, MEET, HERE, Asked(subnet="10.1.0.0/16")], ids=str)
def test_a_machine_in_perfect_health_has_no_warning(asked: Asked) -> None:
    found = examine(FakeMachine(), asked)
    assert [(name, one.seen) for name, one in found if one.level in (WARNING, PROBLEM)] == []
    # Loopback, and the firewall that cannot be seen, are always mentioned.
    assert {name for name, one in found if one.level is NOTE} <= {"interface", "firewall"}


@pytest.mark.parametrize(
    ("check", "changes", "asked", "level", "words"),
    [
        ("interface", {}, Asked(), NOTE, ["lo 127.0.0.1", "on one host alone"]),
        ("interface", {}, NETWORK, OK, ["eth0 10.1.0.5 (--interface), MTU 1500 bytes, 10 Gbit/s by its driver mlx5"]),
        ("interface", {"interface__driver": None}, NETWORK, OK, ["speed not told"]),
        ("interface", {"interface__speed_mbit_per_s": 100}, NETWORK, WARNING, ["100 Mbit/s", "bad cable"]),
        ("interface", {"interface__speed_mbit_per_s": 65535}, NETWORK, OK, ["speed not told"]),
        ("interface", {}, Asked(interface="eht0"), PROBLEM, ["--interface: alpha has no", "did you mean 'eth0'?"]),
        ("interface", {}, Asked(subnet="10.9.0.0/16"), PROBLEM, ["no address in 10.9.0.0/16", "eth0 10.1.0.5"]),
        ("interface", {"environ": {"GLOO_SOCKET_IFNAME": "^lo"}}, Asked(), PROBLEM, ["'^lo' on alpha", "=eth0"]),
        ("interface", {}, Asked(endpoint="nowhere"), PROBLEM, ["by the route to the rendezvous", "see rendezvous"]),
        ("interfaces", {}, NETWORK, OK, ["also up: lo 127.0.0.1 ::1"]),
        ("interfaces", {"table": (LO,)}, Asked(), NOTE, ["no network interface has an address and is up"]),
        ("interfaces", {"table": (LO, ETH0, DOWN)}, NETWORK, NOTE, ["eth1 10.2.0.5 (down)", "bring it up"]),
        ("mtu", {}, NETWORK, OK, ["1500 bytes on eth0"]),
        ("mtu", {"table": (LO, MTU_9000)}, NETWORK, NOTE, ["9000 bytes", "large ones hang"]),
        ("mtu", {"table": (LO, MTU_1400)}, NETWORK, NOTE, ["1400 bytes", "tunnel or overlay"]),
        ("mtu", {"table": (LO, MTU_600)}, NETWORK, WARNING, ["600 bytes", "less than IPv6 allows"]),
        ("ip_versions", {}, NETWORK, OK, ["eth0 has IPv4"]),
        ("ip_versions", {}, Asked("eth0", endpoint="fd00::9"), WARNING, ["eth0 has IPv4, the rendezvous IPv6"]),
        ("hostname", {}, NETWORK, OK, ["'alpha' is 10.1.0.5 here"]),
        ("hostname", {"names": {"alpha": ["127.0.1.1"]}}, NETWORK, WARNING, ["127.0.1.1", "say: 10.1.0.5 alpha"]),
        ("hostname", {"names": {"alpha": ["127.0.1.1"]}}, Asked(), NOTE, ["127.0.1.1", "say: ADDRESS alpha"]),
        ("hostname", {"names": {}}, NETWORK, WARNING, ["has no address here (Name or service not known)"]),
        ("hostname", {"names": {"alpha": ["10.1.0.77"]}}, NETWORK, WARNING, ["10.1.0.77 is not an address of this"]),
        ("rendezvous", {}, MEET, OK, ["beta (10.1.0.9) port 29400 is another host's", "reached from 10.1.0.5"]),
        ("rendezvous", {"connecting": None}, MEET, NOTE, ["something listens there already", "this sweep's rank 0"]),
        ("rendezvous", {"connecting": TimeoutError()}, MEET, WARNING, ["no answer within 2 s", "firewall"]),
        ("rendezvous", {"connecting": OSError(113, "No route to host")}, MEET, WARNING, ["No route to host"]),
        ("rendezvous", {}, Asked(endpoint="203.0.113.1"), PROBLEM, ["no route to it (Network is unreachable)"]),
        ("rendezvous", {}, Asked(endpoint="nowhere"), PROBLEM, ["no address for 'nowhere'", "an address instead of"]),
        ("rendezvous", {"names": {"alpha": ["127.0.1.1"]}}, Asked(endpoint="alpha"), PROBLEM, ["127.0.1.1", "eth0 10"]),
        ("rendezvous", {}, HERE, OK, ["10.1.0.5 port 29400 is this host's and free to listen on"]),
        (
            "rendezvous",
            {"listening": OSError(98, "Address already in use")},
            HERE,
            PROBLEM,
            ["cannot be listened on: Address already in use", "ss -ltnp 'sport = :29400'"],
        ),
        (
            "rendezvous",
            {"listening": PermissionError(13, "Permission denied")},
            Asked(endpoint="10.1.0.5:80"),
            PROBLEM,
            ["port 80 ", "Permission denied", "below 1024"],
        ),
        ("rendezvous", {}, Asked(endpoint="10.1.0.5:40000"), NOTE, ["one of 32768 to 60999", "choose one outside"]),
        ("rendezvous", {}, Asked(endpoint="127.0.0.1"), NOTE, ["127.0.0.1 is loopback", "on one host alone"]),
        (
            "firewall",
            {"files": {"ip_local_port_range": "20000\t30000".replace("\t", " ")}},
            NETWORK,
            NOTE,
            ["20000 to 30000", "netbench matrix"],
        ),
        # 20 streams between 8 ranks: 20 * (5 + 7) descriptors, and 64 for the rest.
        ("open_files", {}, WIDE, OK, ["no limit", "20 streams between 8 ranks: 240 for each backend"]),
        (
            "open_files",
            {"soft_limits": {NOFILE: (1023, 4096)}},
            WIDE,
            WARNING,
            ["at most 1023", "ulimit -n 1024"],
        ),
        ("open_files", {"soft_limits": {NOFILE: (1024, 4096)}}, WIDE, OK, ["1024"]),
        ("open_files", {"soft_limits": {NOFILE: (303, 303)}}, WIDE, PROBLEM, ["hard limit"]),
        (
            "open_files",
            {"soft_limits": {NOFILE: (304, 4096)}},
            WIDE,
            WARNING,
            ["at most 304"],
        ),
        # Each of 8 ranks: 20 * 4 threads and 32 for the rest.
        ("threads", {}, WIDE, OK, ["about 896 threads"]),
        ("threads", {"soft_limits": {NPROC: (895, 895)}}, WIDE, PROBLEM, ["(ulimit -u)"]),
        (
            "threads",
            {"files": {"pids.max": "1000"}},
            WIDE,
            WARNING,
            ["container (pids.max)"],
        ),
        ("threads", {"files": {"pids.max": "max"}}, WIDE, OK, ["no limit"]),
        ("threads", {"files": {"threads-max": "100"}}, Asked(), PROBLEM, ["kernel.threads-max"]),
        ("shared_memory", {}, Asked(), OK, ["8 GiB"]),
        ("shared_memory", {"shm": 2**26}, Asked(), NOTE, ["64 MiB", "--shm-size"]),
        ("shared_memory", {"shm": None}, Asked(), WARNING, ["/dev/shm is missing"]),
        ("tcp", {}, Asked(), OK, ["as usual: cubic, buffers up to 6 MiB to receive and 4 MiB to send"]),
        ("tcp", {"sysctls__ipv4__tcp_congestion_control": "bbr"}, Asked(), NOTE, ["is bbr", "both directions"]),
        ("tcp", {"sysctls__ipv4__tcp_rmem": "4096 87380 250000"}, Asked(), WARNING, ["tcp_rmem ends at", "2 Gbit/s"]),
        ("tcp", {"sysctls__ipv4__tcp_window_scaling": "0"}, Asked(), WARNING, ["tcp_window_scaling is 0", "64 KiB"]),
        ("tcp", {"sysctls__ipv4__tcp_timestamps": "0"}, Asked(), WARNING, ["tcp_timestamps is 0"]),
        ("tcp", {"sysctls__ipv4__tcp_timestamps": "2"}, Asked(), OK, ["as usual"]),
        ("tcp", {"sysctls__ipv4__tcp_slow_start_after_idle": "0"}, Asked(), NOTE, ["after a pause"]),
        ("tcp", {"sysctls": {}}, Asked(), OK, ["unknown"]),
        ("cpus", {"cpus_allowed": 2}, Asked(), WARNING, ["2 of 8 may be used; 3 ranks here would share them"]),
        ("cpus", {"cpus_allowed": 2}, NETWORK, NOTE, ["3 ranks here"]),
        ("cpus", {"container_limits__cpu": "150000 100000"}, Asked(), WARNING, ["time of 1.5 of them"]),
        ("cpus", {"container_limits__cpu": "400000 100000"}, Asked(), NOTE, ["rest of a period", "whole CPUs"]),
        ("cpus", {"container_limits__cpu": None}, Asked(), OK, ["8 of 8 may be used"]),
        ("governor", {"governor": None}, Asked(), OK, ["cannot be told"]),
        ("governor", {"governor": "powersave"}, Asked(), NOTE, ["powersave", "cpupower"]),
        ("memory", {"free": 900 * 2**20 - 1}, Asked(), PROBLEM, ["3 ranks here: 900 MiB"]),
        ("memory", {"free": 2**30}, Asked(), WARNING, ["1 GiB free", "skipped"]),
        ("load", {"load": 4.5}, Asked(), WARNING, ["4.50 over the last minute, on 8 CPUs"]),
        ("load", {"load": 2.0}, Asked(), NOTE, ["2.00"]),
        ("clock", {"now": 0.0}, Asked(), WARNING, ["stands before 2025"]),
        ("clock", {"files": {"current_clocksource": "hpet"}}, Asked(), WARNING, ["hpet"]),
        ("clock", {"synchronised": False}, NETWORK, NOTE, ["chrony"]),
        ("clock", {"synchronised": False}, Asked(), OK, ["one host does not need"]),
        ("disk", {"disk": (Path("/results"), 2**29, True)}, Asked(), WARNING, ["512 MiB free in /results"]),
        ("disk", {"disk": (Path("/results"), 2**20, True)}, Asked(), PROBLEM, ["1 MiB free", "--out"]),
        ("disk", {"disk": (Path("/results"), 2**36, False)}, Asked(), PROBLEM, ["/results cannot be written to"]),
        ("versions", {}, Asked(), OK, ["torch 2.13.0+cpu"]),
        ("versions", {"versions__torch": "2.5.1"}, Asked(), PROBLEM, ["torch 2.5.1", "needs torch 2.6 or newer"]),
        ("versions", {"versions__torch": "2.7.0"}, Asked(), NOTE, ["tested with torch 2.13"]),
        ("versions", {"versions__torch": None}, Asked(), PROBLEM, ["torch is missing", "install torch"]),
        ("variables", {"variables__TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, Asked(), WARNING, ["=DETAIL", "unset it"]),
        ("variables", {"variables__TORCH_DISTRIBUTED_USE_TORCHCOMMS": "1"}, Asked(), WARNING, ["another backend"]),
        ("variables", {"variables__OMP_NUM_THREADS": "4"}, Asked(), NOTE, ["OMP_NUM_THREADS=4", "every host"]),
        ("lab", {}, Asked(), OK, ["can be made (root)"]),
        ("lab", {"lab_answer": (None, "user namespaces are off")}, Asked(), NOTE, ["user namespaces are off"]),
    ],
)
def test_each_check_says_what_it_sees_and_what_to_do(
    check: str, changes: dict[str, Any], asked: Asked, level: Level, words: list[str]
) -> None:
    found = [one for one in findings(check, FakeMachine(**changes), asked) if one.level is level]
    assert found, findings(check, FakeMachine(**changes), asked)
    text = " ".join(f"{one.seen} {one.advice}" for one in found)
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize(
    ("check", "changes", "asked"),
    [
        ("rendezvous", {}, NETWORK),
        ("mtu", {}, Asked()),
        ("firewall", {}, Asked()),
        ("clock", {"synchronised": None}, NETWORK),
    ],
)
def test_a_check_with_nothing_to_look_at_is_silent(check: str, changes: dict[str, Any], asked: Asked) -> None:
    assert findings(check, FakeMachine(**changes), asked) == []


def test_advice_comes_with_every_finding_but_the_good_ones() -> None:
    sick = FakeMachine(
        names={"alpha": ["127.0.1.1"]},
        table=(LO, MTU_600, DOWN),
        soft_limits={NOFILE: (10, 10), NPROC: (10, 10)},
        shm=None,
        sysctls__ipv4__tcp_window_scaling="0",
        cpus_allowed=1,
        governor="powersave",
        free=0,
        load=99.0,
        synchronised=False,
        disk=(Path("/"), 0, True),
        versions__torch=None,
        variables__TORCH_DISTRIBUTED_DEBUG="DETAIL",
        variables__GLOO_SOCKET_IFNAME="eth0",
        lab_answer=(None, "forbidden"),
    )
    everywhere = (NETWORK, Asked(), HERE, MEET, Asked(endpoint="alpha"), Asked(interface="eth1"))
    for machine, asked in product((sick, FakeMachine(), FakeMachine(connecting=None)), everywhere):
        found = examine(machine, asked)
        assert {name for name, _ in found} <= set(CHECKS)
        assert [(name, one) for name, one in found if bool(one.advice) != (one.level is not OK)] == []


def test_a_row_is_flat_and_its_text_has_the_advice_below() -> None:
    told = row("mtu", Finding(NOTE, "1400 bytes", "mind the tunnel"))
    assert told == {"check": "mtu", "level": "note", "seen": "1400 bytes", "advice": "mind the tunnel"}
    assert texts(told)["what was found"] == "1400 bytes\n-> mind the tunnel"
    assert texts(row("mtu", Finding(OK, "1500 bytes")))["what was found"] == "1500 bytes"


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("host0:29500", "host0", 29500),
        ("host0", "host0", 29400),
        ("10.0.0.1:1", "10.0.0.1", 1),
        ("[fd00::1]:65535", "fd00::1", 65535),
        ("[fd00::1]", "fd00::1", 29400),
        ("fd00::1", "fd00::1", 29400),
        ("::1", "::1", 29400),
    ],
)
def test_an_endpoint_is_read_as_torchrun_reads_it(text: str, host: str, port: int) -> None:
    assert parse_endpoint(text) == (host, port)


@pytest.mark.parametrize(
    "text", ["", ":29400", "host0:", "host0:0", "host0:65536", "host0:x", "a b", "host0:" + "9" * 9]
)
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{text!r} is not HOST:PORT")):
        parse_endpoint(text)


def test_a_name_server_that_does_not_answer_is_given_up_and_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def slow(self: Host, name: str) -> list[Address]:
        asked.append(name)
        time.sleep(1)
        return []

    monkeypatch.setattr(Host, "resolve", slow)
    monkeypatch.setattr("netbench.machine.RESOLVER_LIMIT_S", 0.05)
    host = PatientHost()
    for _ in range(2):
        with pytest.raises(TimeoutError, match="no answer within"):
            host.resolve("slow")
    assert asked == ["slow"]


def test_the_real_machine_answers_every_question(tmp_path: Path) -> None:
    machine = Machine()
    assert machine.limit(NOFILE)[0] == resource.getrlimit(NOFILE)[0]
    assert machine.read("/proc/self/no-such-file") is None
    assert machine.size_bytes(str(tmp_path / "nothing")) is None
    there, free, writable = machine.storage(tmp_path / "a" / "b")
    assert (there, writable) == (tmp_path, True)
    assert free > 0
    assert machine.clock_is_synchronised() in (True, False, None)
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen()
        port = door.getsockname()[1]
        machine.connect(ip_address("127.0.0.1"), port, 2.0)
        with pytest.raises(OSError, match="in use"):
            machine.listen(ip_address("127.0.0.1"), port)
    machine.listen(ip_address("127.0.0.1"), port)
    with pytest.raises(ConnectionRefusedError):
        machine.connect(ip_address("127.0.0.1"), port, 2.0)


def test_the_tested_torch_is_the_one_that_the_tests_install() -> None:
    pinned = re.search(r"^torch==(\d+\.\d+)\.", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert pinned[1] in doctor.TESTED_TORCH
    assert doctor.least_torch() == "2.6"
