"""In what two runs differ: what has to be said before their numbers, and what keeps a case from being compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from netbench.summary import Run

#: Settings that say nothing about what was measured; the axes are in the cases.
_IDLE_SETTINGS = {"name", "question", "out", "seed", "lab", "interface", "sizes", "sizes_of"} | {
    "modes",
    "backends",
    "streams",
    "world_sizes",
    "dtypes",
    "chunks",
    "entry_delays",
    "mallocs",
    "timelines",
    "pairs",
}

#: Facts that are never the same, or say nothing.
_IDLE_FACTS = ("host", "ranks", "load_1min", "interface.addresses", "memory_bytes")


class Difference(NamedTuple):
    """``what`` differs; texts, empty where a run does not say."""

    what: str
    base: str
    other: str


def differences(base: Run, other: Run) -> list[Difference]:
    """Of two runs as wholes: network, environment of their hosts, settings."""
    told = [dict(_said(run)) for run in (base, other)]
    names = dict.fromkeys([*told[0], *told[1]])
    pairs = [Difference(name, told[0].get(name, ""), told[1].get(name, "")) for name in names]
    return [pair for pair in pairs if pair.base != pair.other]


def _said(run: Run) -> Iterator[tuple[str, str]]:
    yield "network", run.network
    yield "netbench", run.manifest.netbench
    facts: dict[str, dict[str, None]] = {}
    for host in run.manifest.environment:
        for name, value in _flat(host):
            if name not in _IDLE_FACTS:
                facts.setdefault(name, {})[str(value)] = None
    yield "hosts", str(len(run.manifest.environment) or "")
    for name, values in facts.items():
        yield name, ", ".join(values)
    for name, value in run.manifest.config.items():
        if name not in _IDLE_SETTINGS:
            yield f"--{name.replace('_', '-')}", str(value)


def _flat(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def meaning(run: Run, case_id: str) -> dict[str, str]:
    """What a case's number is a number of, beside what its id says; two that differ in it are not the same thing."""
    facts = run.facts(case_id)
    kinds = {host["interface"].get("kind") for host in run.manifest.environment if host.get("interface")}
    return {
        "lab": facts.get("lab") or "none",
        "pause": f"{facts.get('pause_s') or 0:g} s",
        "interface": "lab" if facts.get("lab") else ", ".join(sorted(filter(None, kinds))) or "unknown",
    }


#: What ``--across`` may name.
MEANINGS = ("lab", "pause", "interface")
