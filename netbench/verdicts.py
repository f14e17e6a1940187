"""What makes a case's number doubtful, and what sets its limit: one function a verdict, each with advice.

A verdict takes a row of a run's summary, in which what is unknown is None, and the circumstances of the run. It returns
what was found, naming the figure, and what to do about it; or None where there is nothing to say. Doubtful data is no
error: the number is shown, and the verdict beside it. The thresholds are where a reader would draw another conclusion.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from netbench.ceiling import Ceiling
from netbench.interference import Machine, machines
from netbench.lab.spec import burst_bytes
from netbench.modes import MODES, participants
from netbench.record import Manifest
from netbench.registry import Registry, one_line
from netbench.statistics import median_interval
from netbench.units import about_rate, about_seconds

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Circumstances:
    """What is known of a run beside its cases."""

    manifest: Manifest
    ceiling: Ceiling | None

    @cached_property
    def machines(self) -> dict[str, Machine]:
        """The machine of each host, by the host's name."""
        return machines(self.manifest)

    def crowd(self, case: Row) -> list[tuple[Machine, int]]:
        """How many of a case's ranks each machine hosts, where the record tells of all of them."""
        placed = {
            rank: self.machines[host["host"]]
            for host in self.manifest.environment
            if host["host"] in self.machines
            for rank in host.get("ranks", ())
        }
        ranks = _participants(case)
        if any(rank not in placed for rank in ranks):
            return []
        return list(Counter(placed[rank] for rank in ranks).items())


Function = Callable[[Row, Circumstances], "str | None"]


class Verdict:
    """``verdict(row, circumstances)``: advice or None. ``mark`` stands for it where there is little room."""

    def __init__(self, function: Function, mark: str) -> None:
        self.name: str = function.__name__
        self.mark = mark
        self.__doc__ = function.__doc__
        self._function = function

    def __call__(self, case: Row, circumstances: Circumstances) -> str | None:
        return self._function(case, circumstances)


VERDICTS: Registry[Verdict] = Registry("verdict")


def _verdict(mark: str) -> Callable[[Function], Function]:
    def add(function: Function) -> Function:
        assert mark not in {verdict.mark for verdict in VERDICTS.values()}, f"two verdicts are marked {mark}"
        VERDICTS.add(Verdict(function, mark))
        return function

    return add


def judge(case: Row, circumstances: Circumstances) -> dict[str, str]:
    """Name -> advice, of every verdict that has something to say about a case that is ok."""
    known: dict[str, Any] = defaultdict(lambda: None)
    # What is unknown may be missing, None, or a NaN, which is not equal to itself.
    known.update({name: value for name, value in case.items() if value == value})
    found = {verdict.name: verdict(known, circumstances) for verdict in VERDICTS.values()}
    return {name: advice for name, advice in found.items() if advice is not None}


#: Between the verdicts of a case where they are one text.
SEPARATOR = " | "


def named(text: str) -> frozenset[str]:
    """The verdicts of a list such as ``trend,bimodal``. Raises UsageError on an unknown one."""
    return frozenset(VERDICTS[name.strip()].name for name in text.split(",") if name.strip())


def _least(value: float | None, threshold: float) -> bool:
    return value is not None and value >= threshold


@_verdict("O")
def oversubscribed(case: Row, circumstances: Circumstances) -> str | None:
    """More ranks on a machine than it has CPUs for them, and they do wait for CPUs."""
    if _least(_link_use(case, circumstances), 0.9):
        return None  # the link sets the time, not the CPUs
    for machine, ranks in circumstances.crowd(case):
        if ranks > machine.cpus_allowed and (case["cpu_stalled"] is None or case["cpu_stalled"] >= 0.1):
            stalled = case["cpu_stalled"]
            waiting = "" if stalled is None else f", and {stalled:.0%} of the time at least one waited for a CPU"
            return (
                f"{ranks} ranks share {machine.cpus_allowed} CPUs of {machine.name}{waiting}; use fewer ranks a machine"
            )
    return None


@_verdict("N")
def noisy_cpu(case: Row, circumstances: Circumstances) -> str | None:
    """Others used the CPUs meanwhile: processes, other guests of the hypervisor, or a quota."""
    if _least(case["cpu_foreign"], 0.1):
        return f"other processes used {case['cpu_foreign']:.0%} of the machine's CPU time; stop them and measure again"
    if _least(case["cpu_stolen"], 0.03):
        return (
            f"the hypervisor gave {case['cpu_stolen']:.0%} of the CPU time to other guests; measure on a quieter host"
        )
    use = _cpu_use(case, circumstances)
    if _least(case["cpu_stalled"], 0.5) and use is not None and use < 0.5:
        return (
            f"processes waited for a CPU {case['cpu_stalled']:.0%} of the time though the ranks used only {use:.0%} "
            "of them; look for a CPU quota"
        )
    if case["cpu_foreign"] is None:
        for host in circumstances.manifest.environment:
            if (host.get("load_1min") or 0) >= 1.5 * host.get("cpus_allowed", 1e9):
                return f"the load was {host['load_1min']:.1f} on {host['cpus_allowed']} CPUs when the run began"
    return None


@_verdict("F")
def foreign_traffic(case: Row, circumstances: Circumstances) -> str | None:
    """The interface carried much that was not the ranks'."""
    rate, line = case["foreign_bit_s"], circumstances.ceiling
    if not _least(case["foreign_share"], 0.1) or rate < 1e6 or (line and rate < 0.01 * line.payload_bit_s):
        return None
    return (
        f"the interface carried {about_rate(rate)} that was not the ranks', {case['foreign_share']:.0%} of theirs; "
        "find out whose it is, or measure when it rests"
    )


@_verdict("R")
def retransmits(case: Row, circumstances: Circumstances) -> str | None:
    """Segments were lost and sent again, more than now and then."""
    count, iterations = case["retransmits"], case["iterations"]
    if not _least(count, 3):
        return None
    segments = (case["wire_sent_bytes"] or 0) * len(_participants(case)) / 1448
    share = count / max(1.0, segments)
    if share < 5e-4:
        return None
    return (
        f"{count} segments were sent again ({share:.2%} of all) in {iterations} iterations; "
        "look for drops at the interfaces and queues on the way"
    )


@_verdict("S")
def skew_limited(case: Row, circumstances: Circumstances) -> str | None:
    """The ranks begin so far apart that the first mostly waits for the last."""
    if case["entry_skew_ns"] is None or not case["transmit_bytes"]:
        return None
    skew_ns = case["entry_skew_ns"] - (case["entry_delay_us"] or 0) * 1000 - (case["clock_error_ns"] or 0)
    if skew_ns < 0.5 * case["median_ns"]:
        return None
    return (
        f"the ranks begin {about_seconds(skew_ns / 1e9)} apart, {skew_ns / case['median_ns']:.0%} of the time; "
        "it is more about when they start than about the network"
    )


@_verdict("B")
def bimodal(case: Row, circumstances: Circumstances) -> str | None:
    """The iterations fall into two groups with next to nothing between: their median says little."""
    if not _least(case["modes_apart"], 6) or case["iterations"] < 20 or not 0.1 <= case["slow_mode_share"] <= 0.9:
        return None
    fast_ns, slow_ns = case["fast_mode_ns"], case["slow_mode_ns"]
    if slow_ns < 1.15 * fast_ns:
        return None
    return (
        f"{1 - case['slow_mode_share']:.0%} of the iterations take about {about_seconds(fast_ns / 1e9)}, the others "
        f"{about_seconds(slow_ns / 1e9)}; look at both, the median is either"
    )


@_verdict("T")
def trend(case: Row, circumstances: Circumstances) -> str | None:
    """The times rise or fall from the first third of the iterations to the last."""
    change, p = case["trend"], case["trend_p"]
    if change is None or abs(change) < 0.15 or p >= 0.001:
        return None
    way = "slower" if change > 0 else "faster"
    return (
        f"the last third is {abs(change):.0%} {way} than the first (p = {p:.1g}); "
        "the machine or the network changed meanwhile: warm up longer, or measure again"
    )


@_verdict("n")
def few_samples(case: Row, circumstances: Circumstances) -> str | None:
    """Too few iterations for how much they differ: the median's interval is wide, or there is none."""
    if case["iterations"] is None:
        return None
    if median_interval(int(case["iterations"])) is None:
        return f"{case['iterations']} iterations are too few for an interval; 6 are the least"
    if case["low_ns"] is None:  # others measured, and tell none
        return None
    reach = max(case["median_ns"] - case["low_ns"], case["high_ns"] - case["median_ns"]) / case["median_ns"]
    if reach < 0.15:
        return None
    way = "a larger --budget" if case["stop_reason"] == "budget" else "more iterations"
    return f"the interval reaches {reach:.0%} from the median of {case['iterations']} iterations; use {way}"


@_verdict("U")
def unfinished(case: Row, circumstances: Circumstances) -> str | None:
    """The run ended, or has not come so far, before the case had all its rounds and launches."""
    if case["stop_reason"] != "unfinished":
        return None
    return f"{case['iterations']} iterations so far, with rounds to come; netbench sweep --resume goes on with it"


@_verdict("1")
def first_iteration(case: Row, circumstances: Circumstances) -> str | None:
    """The first timed iteration is unlike those after it: the warm-up was too short."""
    if not _least(case["first_ratio"], 2):
        return None
    return (
        f"the first iteration took {case['first_ratio']:.1f} times the longest of the next ten; use a larger --warmup"
    )


@_verdict("!")
def above_line_rate(case: Row, circumstances: Circumstances) -> str | None:
    """Faster than the link can be: something is not what it is taken for."""
    share = _link_use(case, circumstances)
    if share is None or share <= 1.03 or circumstances.ceiling is None:
        return None
    return (
        f"{share:.0%} of the payload ceiling ({circumstances.ceiling}); "
        "the data takes another way, or the line rate is wrong"
    )


@_verdict("L")
def link_bound(case: Row, circumstances: Circumstances) -> str | None:
    """As fast as the link, or the cap of each connection, allows."""
    share = _link_use(case, circumstances)
    if circumstances.ceiling is None or share is None:
        return None
    if 0.9 <= share <= 1.03:
        return f"{share:.0%} of the payload ceiling ({circumstances.ceiling}); only a faster link or less data helps"
    lab, streams = circumstances.manifest.lab, case["streams"]
    if lab is not None and lab.flow_bit_s is not None and streams:
        of_flows = share * lab.rate_bit_s / (lab.flow_bit_s * streams)
        if 0.9 <= of_flows <= 1.05:
            caps = "the cap of its connection" if streams == 1 else f"the caps of its {streams} connections"
            return f"{of_flows:.0%} of {caps}; use more streams"
    return None


@_verdict("C")
def cpu_bound(case: Row, circumstances: Circumstances) -> str | None:
    """The ranks keep their CPUs busy, and the link is not full."""
    use, link = _cpu_use(case, circumstances), _link_use(case, circumstances)
    if _least(link, 0.9):
        return None
    if _least(use, 0.8):
        return f"the ranks use {use:.0%} of their CPUs; a faster link would not help"
    if case["cpu_ns"] is not None and case["mean_ns"] and case["streams"] == 1:
        busy = case["cpu_ns"] / case["mean_ns"]
        if busy >= 0.95:
            return f"each rank keeps {busy:.2f} CPUs busy over one stream; more streams may help"
    return None


@_verdict("W")
def extra_traffic(case: Row, circumstances: Circumstances) -> str | None:
    """The wire carried more, or less, than the ideal algorithm would send."""
    ideal = case["transmit_bytes"]
    # Of shorter messages, the backend's own headers are a part that shows.
    if case["wire_sent_bytes"] is None or ideal < 16384 * (case["parts"] or 1):
        return None
    ratio = case["wire_sent_bytes"] / case["iterations"] / ideal
    if 0.9 <= ratio <= 1.1:
        return None
    return f"the busiest rank sends {ratio:.2f} times T. {one_line(MODES[case['mode']])}"


def _participants(case: Row) -> list[int]:
    return participants(case["mode"], int(case["world_size"]), case["pair"] or "")


def _cpu_use(case: Row, circumstances: Circumstances) -> float | None:
    """The share of the CPUs that the ranks used while an operation ran, on the machine with the most ranks a CPU."""
    crowd = circumstances.crowd(case)
    if case["cpu_ns"] is None or not case["mean_ns"] or not crowd:
        return None
    return float(max(ranks / machine.cpus_allowed for machine, ranks in crowd) * case["cpu_ns"] / case["mean_ns"])


def _link_use(case: Row, circumstances: Circumstances) -> float | None:
    """The share of the payload ceiling, by the bus bandwidth or what was really sent, whichever is more.

    In a lab without what its buckets let through at once, which is faster than the link.
    """
    ceiling, lab = circumstances.ceiling, circumstances.manifest.lab
    if ceiling is None or not case["transmit_bytes"]:
        return None
    mode = MODES[case["mode"]]
    factor = mode.messages * float(mode.bus_factor(int(case["world_size"])))
    carried = [float(factor * case["message_bytes"])]
    if case["wire_sent_bytes"] is not None:
        carried.append(case["wire_sent_bytes"] / case["iterations"])
    burst = burst_bytes(lab.rate_bit_s) if lab else 0
    if lab and lab.flow_bit_s:
        burst += int(case["parts"] or 1) * burst_bytes(lab.flow_bit_s)
    return float(max(0.0, max(carried) - burst) * 8 / (case["median_ns"] / 1e9) / ceiling.payload_bit_s)
