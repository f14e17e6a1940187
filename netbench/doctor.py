"""Looks for what could spoil a sweep, before anything is run: a function for each check. It reports and never tunes."""

from __future__ import annotations

import re
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

from netbench import limits
from netbench.errors import UsageError
from netbench.examination import Asked, Examination, Finding, Level
from netbench.interfaces import Address, Choice, reachable
from netbench.machine import Machine
from netbench.registry import Registry
from netbench.units import about_bytes, about_rate

#: What a rank holds beside its streams: torch, the control groups, files; counted generously.
_OTHER_DESCRIPTORS = 64
_OTHER_THREADS = 32

#: A rank that has imported torch and done nothing yet.
_RANK_BYTES = 300 * 2**20

_CONNECT_LIMIT_S = 2.0

#: The versions of torch that netbench's own tests run with.
TESTED_TORCH = ("2.13",)

_LEAST_SHM_BYTES = 64 * 2**20
_LITTLE_DISK_BYTES = 2**30
_NO_DISK_BYTES = 50 * 2**20
_LEAST_WINDOW_BYTES = 2**20

#: 2025-01-01: netbench is younger, so a clock before it is wrong.
_YOUNGEST_S = 1735689600


Look = Callable[[Examination], Iterator[Finding]]


class Check:
    """A function below; its name is the check's, its docstring says what it looks for."""

    def __init__(self, look: Look) -> None:
        self.name = look.__name__
        self.look = look
        self.__doc__ = look.__doc__


CHECKS: Registry[Check] = Registry("check")


def _check(look: Look) -> Look:
    CHECKS.add(Check(look))
    return look


def examine(machine: Machine, asked: Asked) -> list[tuple[str, Finding]]:
    """Every check's findings with its name, in the registry's order. Raises UsageError for a bad endpoint."""
    examination = Examination(machine, asked)
    return [(name, finding) for name, one in CHECKS.items() for finding in one.look(examination)]


def row(name: str, finding: Finding) -> dict[str, str]:
    return {"check": name, "level": finding.level.value, "seen": finding.seen, "advice": finding.advice}


def texts(row: Mapping[str, Any]) -> dict[str, str]:
    """What was seen, and the advice below it."""
    found = "\n".join(filter(None, (row["seen"], row["advice"] and f"-> {row['advice']}")))
    return {"check": row["check"], "level": row["level"], "what was found": found}


def count(findings: Sequence[tuple[str, Finding]], level: Level) -> int:
    return sum(finding.level is level for _, finding in findings)


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


@_check
def interface(exam: Examination) -> Iterator[Finding]:
    """Which interface and address the groups would be bound to, and why."""
    if isinstance(exam.choice, UsageError):
        text = str(exam.choice)
        if text.startswith("--rdzv-endpoint:"):
            yield Finding(Level.PROBLEM, "none can be chosen by the route to the rendezvous", "see rendezvous, below")
            return
        seen, _, advice = text.partition("; ")
        yield Finding(Level.PROBLEM, seen, advice)
        return
    assert exam.chosen is not None
    seen = f"{exam.choice.interface} {exam.choice.address} ({exam.choice.why})"
    if exam.chosen.loopback:
        yield Finding(
            Level.NOTE,
            seen,
            "good on one host alone; for several name it by --interface, --subnet or --rdzv-endpoint",
        )
        return
    speed = _speed_bit_s(exam)
    told = f"{about_rate(speed)} by its driver {exam.facts['interface']['driver']}" if speed else "speed not told"
    seen += f", MTU {exam.chosen.mtu_bytes} bytes, {told}"
    if speed and speed < 1e9:
        yield Finding(Level.WARNING, seen, "slower than 1 Gbit/s: look for a bad cable or an old port of the switch")
        return
    yield Finding(Level.OK, seen)


def _speed_bit_s(exam: Examination) -> float | None:
    """A virtual interface, which has no driver, names a speed that means nothing; 65535 stands for unknown."""
    told = exam.facts["interface"]
    speed = told["speed_mbit_per_s"]
    return speed * 1e6 if told["driver"] and speed and 0 < speed < 65535 else None


@_check
def interfaces(exam: Examination) -> Iterator[Finding]:
    """What else this host has: interfaces with an address that are up, or down."""
    others = [one for one in exam.table.values() if one is not exam.chosen]
    ready = [str(one) for one in others if one.running and one.addresses]
    if ready:
        yield Finding(Level.OK, f"also up: {', '.join(ready)}")
    for one in others:
        if one.addresses and not one.running:
            yield Finding(Level.NOTE, str(one), "has an address and carries nothing; bring it up if it is to be used")
    if not ready and (exam.chosen is None or exam.chosen.loopback):
        yield Finding(Level.NOTE, "no network interface has an address and is up", "this host can only measure itself")


@_check
def mtu(exam: Examination) -> Iterator[Finding]:
    """Whether packets have a size that needs care on the way."""
    if exam.chosen is None or exam.chosen.loopback or exam.chosen.mtu_bytes is None:
        return
    size = exam.chosen.mtu_bytes
    seen = f"{size} bytes on {exam.chosen.name}"
    if size == 1500:
        yield Finding(Level.OK, seen)
    elif size > 1500:
        advice = "every host and switch between must take packets as large, or small messages pass and large ones hang"
        yield Finding(Level.NOTE, seen, advice)
    elif size >= 1280:
        advice = "less than Ethernet's 1500: a tunnel or overlay takes its part; every host should have the same"
        yield Finding(Level.NOTE, seen, advice)
    else:
        yield Finding(
            Level.WARNING, seen, "less than IPv6 allows (1280): headers and CPU time weigh more than they need"
        )


@_check
def ip_versions(exam: Examination) -> Iterator[Finding]:
    """IPv4 and IPv6 on the chosen interface, against that of the rendezvous."""
    if exam.chosen is None:
        return
    have = sorted({one.version for one in exam.chosen.addresses if not (one.version == 6 and one.is_link_local)})
    seen = " and ".join(f"IPv{version}" for version in have)
    try:
        wanted = {one.version for one in reachable(exam.peer, exam.machine.host, "")} if exam.peer else set()
    except UsageError:
        wanted = set()
    if wanted and not wanted & set(have):
        needs = " or ".join(f"IPv{version}" for version in sorted(wanted))
        yield Finding(
            Level.WARNING,
            f"{exam.chosen.name} has {seen}, the rendezvous {needs}",
            "all hosts meet over the one and measure over the other; give an endpoint of the same kind",
        )
    else:
        yield Finding(Level.OK, f"{exam.chosen.name} has {seen}")


@_check
def hostname(exam: Examination) -> Iterator[Finding]:
    """Whether this machine's own name means an address that other hosts can use."""
    name = exam.machine.host.name
    level = Level.WARNING if exam.several_hosts else Level.NOTE
    try:
        addresses = exam.machine.host.resolve(name)
    except (OSError, UnicodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        yield Finding(level, f"{name!r} has no address here ({reason})", _hosts_line(exam))
        return
    seen = f"{name!r} is {' '.join(map(str, addresses))} here"
    if all(one.is_loopback for one in addresses):
        yield Finding(level, f"{seen}, which is loopback and reaches no other host", _hosts_line(exam))
    elif strange := [str(one) for one in addresses if not exam.owns(one)]:
        yield Finding(level, f"{seen}; {strange[0]} is not an address of this host", _hosts_line(exam))
    else:
        yield Finding(Level.OK, seen)


def _hosts_line(exam: Examination) -> str:
    address = exam.choice.address if isinstance(exam.choice, Choice) and exam.several_hosts else "ADDRESS"
    return (
        "torchrun and plain Gloo ask for it; between hosts give addresses instead of names, or have /etc/hosts say: "
        f"{address} {exam.machine.host.name}"
    )


@_check
def rendezvous(exam: Examination) -> Iterator[Finding]:
    """Whether the endpoint has an address, is not loopback, and can be listened on or connected to."""
    if exam.peer is None:
        return
    host = exam.machine.host
    try:
        addresses = reachable(exam.peer, host, "--rdzv-endpoint")
    except UsageError as error:
        seen, _, advice = str(error).partition("; ")
        yield Finding(Level.PROBLEM, seen, advice)
        return
    address = addresses[0]
    shown = exam.peer if exam.peer == str(address) else f"{exam.peer} ({address})"
    place = f"{shown} port {exam.port}"
    if address.is_loopback:
        yield Finding(Level.NOTE, f"{shown} is loopback", "good on one host alone; for several give an address")
    if exam.owns(address):
        yield _listening(exam, address, place)
    else:
        yield _connecting(exam, address, place)
    low, high = _ephemeral_ports(exam.machine)
    if low <= exam.port <= high:
        yield Finding(
            Level.NOTE,
            f"port {exam.port} is one of {low} to {high}, the kernel's for any connection (ip_local_port_range)",
            "it may be taken when the sweep starts; choose one outside",
        )


def _listening(exam: Examination, address: Address, place: str) -> Finding:
    try:
        exam.machine.listen(address, exam.port)
    except OSError as error:
        taken = f"see who has it: ss -ltnp 'sport = :{exam.port}'; end that, or choose another port"
        reserved = "ports below 1024 are for root; choose another"
        return Finding(
            Level.PROBLEM,
            f"{place} is this host's and cannot be listened on: {error.strerror or error}",
            reserved if isinstance(error, PermissionError) else taken,
        )
    return Finding(Level.OK, f"{place} is this host's and free to listen on")


def _connecting(exam: Examination, address: Address, place: str) -> Finding:
    try:
        source = exam.machine.host.source(address)
    except OSError as error:
        return Finding(
            Level.PROBLEM,
            f"{place}: no route to it ({error.strerror or error})",
            f"give an address that this host reaches, or repair its routes (ip route get {address})",
        )
    try:
        exam.machine.connect(address, exam.port, _CONNECT_LIMIT_S)
    except ConnectionRefusedError:
        return Finding(
            Level.OK,
            f"{place} is another host's and reached from {source}; nothing listens there yet",
        )
    except OSError as error:
        reason = (
            f"no answer within {_CONNECT_LIMIT_S:.0f} s" if isinstance(error, TimeoutError) else error.strerror or error
        )
        return Finding(
            Level.WARNING,
            f"{place} cannot be connected to from {source}: {reason}",
            "the host is down, or a firewall drops the packets: try ping, and let the port through",
        )
    return Finding(
        Level.NOTE,
        f"{place} is another host's and something listens there already",
        "good if it is this sweep's rank 0; else choose another port",
    )


def _ephemeral_ports(machine: Machine) -> tuple[int, int]:
    low, high = (machine.read("/proc/sys/net/ipv4/ip_local_port_range") or "32768 60999").split()
    return int(low), int(high)


@_check
def firewall(exam: Examination) -> Iterator[Finding]:
    """Which ports have to be open between hosts; whether they are shows only from another host."""
    if not exam.several_hosts:
        return
    low, high = _ephemeral_ports(exam.machine)
    yield Finding(
        Level.NOTE,
        f"Gloo listens on any of the TCP ports {low} to {high}; a firewall between cannot be seen from here",
        "run netbench matrix, which connects every pair of hosts",
    )


@_check
def open_files(exam: Examination) -> Iterator[Finding]:
    """Whether a rank may have the descriptors that its streams need."""
    streams, world_size = exam.asked.streams, exam.asked.world_size
    soft, hard = exam.machine.limit(resource.RLIMIT_NOFILE)
    each = limits.descriptors(streams, world_size)
    wanted = f"{_many(streams, 'stream')} between {_many(world_size, 'rank')}"
    needs = f"{wanted}: {each} for each backend, and {_OTHER_DESCRIPTORS} for the rest"
    if soft is None:
        yield Finding(Level.OK, f"no limit; {needs}")
        return
    seen = f"at most {soft} open files in a process ({needs})"
    fits = max(0, soft - _OTHER_DESCRIPTORS) // each
    advice = f"raise the limit, as by ulimit -n {_power_above(4 * each + _OTHER_DESCRIPTORS)}"
    if hard is not None and hard < 4 * each + _OTHER_DESCRIPTORS:
        advice += f" (above the hard limit of {hard}: root does that in /etc/security/limits.conf)"
    if fits < 1:
        yield Finding(Level.PROBLEM, seen, f"{advice}, or take fewer streams")
    elif fits < 4:
        yield Finding(
            Level.WARNING, seen, f"a sweep keeps the groups of all its backends and world sizes open; {advice}"
        )
    else:
        yield Finding(Level.OK, seen)


def _power_above(least: int) -> int:
    return 1 << (least - 1).bit_length()


@_check
def threads(exam: Examination) -> Iterator[Finding]:
    """Whether all ranks of this host together may have the threads that their streams need."""
    streams, world_size = exam.asked.streams, exam.asked.world_size
    needed = world_size * (limits.threads(streams) + _OTHER_THREADS)
    most = {
        "limit of this user (ulimit -u)": exam.machine.limit(resource.RLIMIT_NPROC)[0],
        "limit of this container (pids.max)": _number(exam.machine.read("/sys/fs/cgroup/pids.max")),
        "limit of the machine (kernel.threads-max)": _number(exam.machine.read("/proc/sys/kernel/threads-max")),
    }
    known = {name: number for name, number in most.items() if number is not None}
    needs = f"{_many(world_size, 'rank')} here with {_many(streams, 'stream')} each: about {needed} threads"
    if not known:
        yield Finding(Level.OK, f"no limit; {needs}")
        return
    name = min(known, key=lambda one: known[one])
    seen = f"{needs}; the {name} is {known[name]}"
    if needed > known[name]:
        yield Finding(Level.PROBLEM, seen, "raise it, or take fewer streams or ranks")
    elif 2 * needed > known[name]:
        yield Finding(Level.WARNING, seen, "whatever else runs counts as well; raise it to be sure")
    else:
        yield Finding(Level.OK, seen)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


@_check
def shared_memory(exam: Examination) -> Iterator[Finding]:
    """Whether /dev/shm is there; in containers it is often missing or tiny."""
    size = exam.machine.size_bytes("/dev/shm")
    if size is None:
        yield Finding(
            Level.WARNING,
            "/dev/shm is missing",
            "Gloo over TCP does without; NCCL and torch's data loaders do not: mount a tmpfs there",
        )
    elif size <= _LEAST_SHM_BYTES:
        yield Finding(
            Level.NOTE,
            f"/dev/shm has {about_bytes(size)}",
            "enough for Gloo over TCP; NCCL and data loaders want more (docker run --shm-size=1g)",
        )
    else:
        yield Finding(Level.OK, f"/dev/shm has {about_bytes(size)}")


@_check
def tcp(exam: Examination) -> Iterator[Finding]:
    """Kernel settings of TCP that are unusual, and what they do to numbers."""
    settings = {name.rpartition(".")[2]: value for name, value in exam.facts["sysctls"].items()}
    control = settings.get("tcp_congestion_control")
    most = {name: _number((settings.get(name) or "").split(" ")[-1]) for name in ("tcp_rmem", "tcp_wmem")}
    usual = True
    for finding in (
        _congestion_control(control),
        *(_window(name, size) for name, size in most.items()),
        *(_switch(settings, name, expected, advice) for name, expected, advice in _SWITCHES),
    ):
        if finding is not None:
            usual = False
            yield finding
    if usual:
        sizes = " and ".join(
            f"{about_bytes(size)} to {what}"
            for what, size in (("receive", most["tcp_rmem"]), ("send", most["tcp_wmem"]))
            if size
        )
        yield Finding(
            Level.OK, f"as usual: {control or 'unknown congestion control'}, buffers up to {sizes or 'unknown'}"
        )


#: Settings of TCP that are on as Linux comes, and what it means when they are off.
_SWITCHES = (
    ("tcp_window_scaling", "1", "a connection has at most 64 KiB under way, 0.5 Gbit/s at 1 ms: switch it on"),
    ("tcp_timestamps", "1", "round-trip times are measured seldom, and losses are repaired later: switch it on"),
    (
        "tcp_slow_start_after_idle",
        "1",
        "connections stay fast after a pause, unlike on hosts as they come: compare only with hosts set alike",
    ),
)


def _congestion_control(name: str | None) -> Finding | None:
    if name in ("cubic", "reno", None):
        return None
    advice = "not Linux's default, cubic: hosts must be set alike to be compared"
    if name == "bbr":
        advice += "; BBR lost up to 40 % of a lab's link when both directions were busy"
    return Finding(Level.NOTE, f"congestion control is {name}", advice)


def _window(name: str, size: int | None) -> Finding | None:
    if size is None or size >= _LEAST_WINDOW_BYTES:
        return None
    rate = about_rate(size * 8 / 1e-3)
    return Finding(
        Level.WARNING,
        f"{name} ends at {about_bytes(size)}",
        f"one connection cannot do more than {rate} at a round trip of 1 ms: raise its third number, or use streams",
    )


def _switch(settings: Mapping[str, str | None], name: str, expected: str, advice: str) -> Finding | None:
    value = settings.get(name)
    # The kernel has further values that also mean on.
    if value is None or (value != "0") == (expected != "0"):
        return None
    level = Level.NOTE if name == "tcp_slow_start_after_idle" else Level.WARNING
    return Finding(level, f"{name} is {value}", advice)


@_check
def cpus(exam: Examination) -> Iterator[Finding]:
    """Whether every rank has a CPU of its own, by affinity and by the container's limit."""
    allowed, whole = exam.facts["cpus_allowed"], exam.facts["cpus"]
    quota = _quota(exam.facts["container_limits"]["cpu"])
    seen = f"{allowed} of {whole} may be used"
    if quota is not None and quota < allowed:
        seen += f", and time of {quota:g} of them (the container's limit)"
    usable = min(allowed, quota or allowed)
    if usable < exam.asked.world_size:
        level = Level.NOTE if exam.several_hosts else Level.WARNING
        told = f"{seen}; {_many(exam.asked.world_size, 'rank')} here would share them"
        yield Finding(level, told, "times then measure the scheduler as well; spread the ranks, or take fewer")
    else:
        yield Finding(Level.OK, seen)
    if quota is not None and quota < allowed and usable >= exam.asked.world_size:
        yield Finding(
            Level.NOTE, "the container's limit stops all its threads for the rest of a period", "give it whole CPUs"
        )


def _quota(text: str | None) -> float | None:
    """CPUs, of ``150000 100000``."""
    used, _, period = (text or "").partition(" ")
    return int(used) / int(period) if used.isdecimal() and period.isdecimal() and int(period) else None


@_check
def governor(exam: Examination) -> Iterator[Finding]:
    """Whether CPUs run at full speed, or first when they have been busy for a while."""
    name = exam.facts["governor"]
    if name is None:
        yield Finding(Level.OK, "cannot be told here, as in most virtual machines")
    elif name == "performance":
        yield Finding(Level.OK, name)
    else:
        yield Finding(
            Level.NOTE, name, "small messages are slower and scatter more: cpupower frequency-set -g performance"
        )


@_check
def memory(exam: Examination) -> Iterator[Finding]:
    """Whether the ranks fit into memory; each case is held against it once more when a sweep starts."""
    free, needed = exam.machine.free_bytes(), exam.asked.world_size * _RANK_BYTES
    ranks = _many(exam.asked.world_size, "rank")
    seen = f"{about_bytes(free)} free; {ranks} here: {about_bytes(needed)} before any tensor"
    if free < needed:
        yield Finding(Level.PROBLEM, seen, "end something else, or take fewer ranks on this host")
    elif free < 2 * needed:
        yield Finding(Level.WARNING, seen, "large sizes will be skipped")
    else:
        yield Finding(Level.OK, seen)


@_check
def load(exam: Examination) -> Iterator[Finding]:
    """Whether somebody else is at work now."""
    busy, whole = exam.machine.load_1min(), exam.facts["cpus"]
    seen = f"{busy:.2f} over the last minute, on {whole} CPUs"
    if busy > whole / 2:
        yield Finding(Level.WARNING, seen, "wait until the machine is quiet, or expect scatter")
    elif busy > whole / 5:
        yield Finding(Level.NOTE, seen, "something runs beside; small messages will scatter")
    else:
        yield Finding(Level.OK, seen)


@_check
def clock(exam: Examination) -> Iterator[Finding]:
    """Whether the clock is set and cheap to read. Ranks' clocks are compared by netbench itself."""
    if exam.machine.now_s() < _YOUNGEST_S:
        yield Finding(Level.WARNING, "stands before 2025", "run folders are named by date: set it")
    source = exam.machine.read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    if source in ("hpet", "acpi_pm", "jiffies"):
        yield Finding(
            Level.WARNING, f"is read from {source}, which takes microseconds", "small messages are measured too slow"
        )
    synchronised = exam.machine.clock_is_synchronised()
    if synchronised is False and exam.several_hosts:
        yield Finding(
            Level.NOTE,
            "the kernel does not know it to be synchronised",
            "durations do not suffer; logs of several hosts are hard to lay side by side: run chrony or the like",
        )
    elif synchronised is not None:
        yield Finding(Level.OK, "synchronised" if synchronised else "not synchronised, which one host does not need")


@_check
def disk(exam: Examination) -> Iterator[Finding]:
    """Whether the record can be written where it is to be."""
    folder, free, writable = exam.machine.storage(exam.asked.out)
    seen = f"{about_bytes(free)} free in {folder}"
    if not writable:
        yield Finding(Level.PROBLEM, f"{folder} cannot be written to", "choose another folder by --out")
    elif free < _NO_DISK_BYTES:
        yield Finding(Level.PROBLEM, seen, "make room, or choose another folder by --out")
    elif free < _LITTLE_DISK_BYTES:
        yield Finding(Level.WARNING, seen, "samples of a long sweep take hundreds of MB; make room")
    else:
        yield Finding(Level.OK, seen)


@_check
def versions(exam: Examination) -> Iterator[Finding]:
    """Python and torch against what netbench needs and is tested with."""
    found = exam.facts["versions"]
    seen = ", ".join(f"{name} {version or 'is missing'}" for name, version in found.items())
    missing = [name for name, version in found.items() if version is None]
    torch, least = found.get("torch") or "", least_torch()
    if missing:
        yield Finding(Level.PROBLEM, seen, f"install {' and '.join(missing)}")
    elif _release(torch) < _release(least):
        yield Finding(Level.PROBLEM, seen, f"netbench needs torch {least} or newer")
    elif not torch.startswith(tuple(f"{version}." for version in TESTED_TORCH)):
        advice = f"netbench is tested with torch {', '.join(TESTED_TORCH)}; compare only runs of one version"
        yield Finding(Level.NOTE, seen, advice)
    else:
        yield Finding(Level.OK, seen)


def least_torch() -> str:
    """The oldest that this package says it runs with."""
    told = [re.match(r"torch\s*>=\s*([\d.]+)", line) for line in metadata.requires("netbench") or ()]
    return next((found[1] for found in told if found), "0")


def _release(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])[:2]))


@_check
def variables(exam: Examination) -> Iterator[Finding]:
    """Environment variables that change what is measured."""
    found = dict(exam.facts["variables"])
    for name, (harmless, advice) in _DISTURBING.items():
        value = found.pop(name, None)
        if value is not None and value.upper() not in harmless:
            yield Finding(Level.WARNING, f"{name}={value}", advice)
    if found:
        seen = ", ".join(f"{name}={value}" for name, value in found.items())
        yield Finding(Level.NOTE, seen, "set on purpose? They are recorded; have the same on every host")
    elif not exam.facts["variables"]:
        yield Finding(Level.OK, "none of those that matter is set")


#: Variable -> values that do no harm, and what others do.
_DISTURBING: dict[str, tuple[tuple[str, ...], str]] = {
    "TORCH_DISTRIBUTED_DEBUG": (
        ("", "OFF"),
        "DETAIL adds collectives of its own before each of yours, INFO logs: unset it",
    ),
    "TORCH_DISTRIBUTED_USE_TORCHCOMMS": (("", "0"), "torch then takes another backend than the one named: unset it"),
}


@_check
def lab(exam: Examination) -> Iterator[Finding]:
    """Whether emulated hosts can be had here, and why not."""
    way, refusal = exam.machine.lab()
    if way is None:
        yield Finding(Level.NOTE, "no lab here", refusal or "")
    else:
        yield Finding(Level.OK, f"can be made ({way})")
