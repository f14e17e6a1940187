"""Whether somebody else was at work while a case ran: on its machines' CPUs, and on its interfaces.

Each number is of the machine or interface that fared worst. A record without the counters has none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from netbench.record import Manifest

#: The kernel counts a machine's CPU time in ticks of 10 ms on each CPU, so a difference is known no better.
_TICK_NS = 10_000_000

#: Headers and acknowledgements are less than this share of the payload that an interface carries. Short packets have
#: more, but there the next figure is larger.
_OVERHEAD = 0.08

#: Barriers and the exchange of samples take less than this from each rank in an iteration, headers included.
_CONTROL_BYTES = 8192


class Machine(NamedTuple):
    """A computer that hosts ranks; the hosts of a lab share one."""

    name: str
    cpus: int
    #: Those that the ranks may use.
    cpus_allowed: int


def machines(manifest: Manifest) -> dict[str, Machine]:
    """The machine of each host by the host's name; without those that the record does not describe."""
    return {
        host["host"]: Machine(host["machine"], host.get("cpus") or host["cpus_allowed"], host["cpus_allowed"])
        for host in manifest.environment
        if host.get("machine") and host.get("cpus_allowed")
    }


@dataclass(frozen=True)
class Interference:
    """A summary's columns on what others did; null where the record does not tell."""

    #: CPU time of processes that are not the ranks', as a share of the machine's.
    cpu_foreign: float | None = None
    #: CPU time that the hypervisor gave to other guests, as a share of the machine's.
    cpu_stolen: float | None = None
    #: In what share of the time a process that could run had to wait for a CPU, whose ever it was.
    cpu_stalled: float | None = None
    #: What the interface carried in one direction beyond the ranks' own data with its headers, bit/s.
    foreign_bit_s: float | None = None
    #: That over what the ranks' own data took in this direction.
    foreign_share: float | None = None


NAMES = tuple(field.name for field in fields(Interference))


def find(ranks: Sequence[Mapping[str, Any]], computers: Mapping[str, Machine], iterations: int) -> Interference:
    """``ranks`` are the facts of those that take part, ``computers`` comes from ``machines``."""
    told = [rank for rank in ranks if rank.get("window_ns")]
    if len(told) < len(ranks) or not told:
        return Interference()
    by_machine = _grouped(told, lambda rank: computers.get(rank["host"]))
    by_host = _grouped(told, lambda rank: rank["host"])
    foreign = [pair for group in by_host.values() for pair in _foreign_traffic(group, iterations)]
    bit_s, share = max(foreign, default=(None, None))
    cpus = [(machine, group) for machine, group in by_machine.items() if machine is not None]
    return Interference(
        cpu_foreign=max((share for m, g in cpus for share in _foreign_cpu(m, g)), default=None),
        cpu_stolen=max((share for m, g in cpus for share in _shares("stolen_ns", g, m.cpus)), default=None),
        cpu_stalled=max((share for _, g in cpus for share in _shares("stalled_ns", g, 1)), default=None),
        foreign_bit_s=bit_s,
        foreign_share=share,
    )


def _grouped(ranks: Sequence[Mapping[str, Any]], key: Any) -> dict[Any, list[Mapping[str, Any]]]:
    groups: dict[Any, list[Mapping[str, Any]]] = {}
    for rank in ranks:
        groups.setdefault(key(rank), []).append(rank)
    return groups


def _shares(name: str, ranks: Sequence[Mapping[str, Any]], of: int) -> Iterator[float]:
    for rank in ranks:
        if rank.get(name) is not None:
            yield rank[name] / rank["window_ns"] / of


def _foreign_cpu(machine: Machine, ranks: Sequence[Mapping[str, Any]]) -> Iterator[float]:
    """Of the machine's CPU time; the ranks' windows begin and end together."""
    seen = [rank["machine_cpu_ns"] for rank in ranks if rank.get("machine_cpu_ns") is not None]
    if seen:
        capacity_ns = max(rank["window_ns"] for rank in ranks) * machine.cpus
        own_ns = sum(rank["own_cpu_ns"] for rank in ranks)
        yield max(0, max(seen) - own_ns - _TICK_NS * machine.cpus) / capacity_ns


def _foreign_traffic(ranks: Sequence[Mapping[str, Any]], iterations: int) -> Iterator[tuple[float, float]]:
    """(bit/s, share of the ranks' own) for each direction of a host's interface."""
    for direction, opposite in (("sent", "received"), ("received", "sent")):
        seen, own, answered = (
            _known(f"{kind}_bytes", ranks)
            for kind in (f"interface_{direction}", f"wire_{direction}", f"wire_{opposite}")
        )
        if not seen or not own or not answered:
            continue
        # Acknowledgements of what goes the other way are part of it.
        expected = sum(own) * (1 + _OVERHEAD) + sum(answered) * _OVERHEAD / 2
        expected += _CONTROL_BYTES * len(ranks) * iterations
        foreign = max(0.0, max(seen) - expected)
        window_s = max(rank["window_ns"] for rank in ranks) / 1e9
        yield foreign * 8 / window_s, foreign / max(1, sum(own))


def _known(name: str, ranks: Sequence[Mapping[str, Any]]) -> list[int]:
    """The fact of every rank, or nothing where one does not know it."""
    values = [rank.get(name) for rank in ranks]
    return [value for value in values if value is not None] if None not in values else []
