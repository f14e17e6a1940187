"""What the evidence says of each mechanism that can make a collective slow: one function a mechanism.

A verdict never says more than was measured: ``undecided`` when an interval lies on both sides of the line that decides,
when a control contradicts, or when what it takes was not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum

from netbench.courses import courses
from netbench.explain.evidence import Evidence, NotMeasured
from netbench.model import Case
from netbench.registry import Registry
from netbench.statistics import Estimate

#: Sends first must add at least this part of what blocking would add, 1/k of the time for k chunks, at every k.
_BLOCKED = 0.5

#: A cure must make an operation this much faster.
_FASTER = 1.1

#: From this share of all_gather's time on, a cost in memory is worth naming.
_WORTH_NAMING = 0.05

_PAGE_BYTES = 4096


class Outcome(StrEnum):
    AT_WORK = "at work"
    NOT_SEEN = "not seen here"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Number:
    """One measured number behind a verdict; ``expected`` is what the mechanism predicts for it, where it does."""

    label: str
    value: Estimate
    expected: float | None = None


@dataclass(frozen=True)
class Verdict:
    """``share`` is how much of all_gather's lost time the mechanism explains; None where that cannot be said."""

    outcome: Outcome
    finding: str
    share: Estimate | None = None
    numbers: tuple[Number, ...] = ()
    mechanism: str = ""


class Mechanism:
    """``judge(evidence)`` gives the verdict on it."""

    def __init__(self, name: str, judge: Callable[[Evidence], Verdict]) -> None:
        self.name = name
        self._judge = judge
        self.__doc__ = judge.__doc__

    def judge(self, evidence: Evidence) -> Verdict:
        try:
            verdict = self._judge(evidence)
        except NotMeasured as missing:
            verdict = Verdict(Outcome.UNDECIDED, f"not measured: {missing}")
        return replace(verdict, mechanism=self.name)


MECHANISMS: Registry[Mechanism] = Registry("mechanism")


def _mechanism(name: str) -> Callable[[Callable[[Evidence], Verdict]], Mechanism]:
    return lambda judge: MECHANISMS.add(Mechanism(name, judge))


def verdicts(evidence: Evidence) -> list[Verdict]:
    return [mechanism.judge(evidence) for mechanism in MECHANISMS.values()]


def lost_share(evidence: Evidence) -> Estimate:
    """What all_gather between two ranks takes longer than the same bytes exchanged, over the time of the exchange.

    With a rank late in both: two ranks that begin at the same instant, as they seldom do but at a barrier, may run at
    full speed, so that chance would decide.
    """
    return evidence.estimate(
        lambda gather, exchange: gather / exchange - 1,
        evidence.find("all_gather", late=True),
        evidence.find("exchange", late=True),
    )


def _decide(estimate: Estimate, line: float) -> Outcome:
    if estimate.is_above(line):
        return Outcome.AT_WORK
    return Outcome.NOT_SEEN if estimate.is_below(line) else Outcome.UNDECIDED


def _decide_all(predicted: Mapping[float, Estimate]) -> Outcome:
    """A law is at work where each of its predictions, line -> measured, holds, and not where one surely fails."""
    if all(measured.is_above(line) for line, measured in predicted.items()):
        return Outcome.AT_WORK
    if any(measured.is_below(line) for line, measured in predicted.items()):
        return Outcome.NOT_SEEN
    return Outcome.UNDECIDED


def _share(evidence: Evidence, cost: Callable[..., float], *cases: Case) -> Estimate | None:
    """``cost`` over what all_gather loses; None unless it surely loses something.

    ``cost`` takes the times of all_gather and exchange with a rank late and then those of ``cases``, in seconds.
    """
    if not lost_share(evidence).is_above(0):
        return None
    return evidence.estimate(
        lambda gather, exchange, *times: cost(gather, exchange, *times) / (gather - exchange),
        evidence.find("all_gather", late=True),
        evidence.find("exchange", late=True),
        *cases,
    )


@_mechanism("head-of-line blocking")
def head_of_line_blocking(evidence: Evidence) -> Verdict:
    """The message that allows the peer to send waits in one connection's queue behind this rank's own bulk data.

    Sends posted first, one rank late, k chunks: 1 + 1/k of the time. A connection for each direction must save most
    of what that adds.
    """
    first = {k: evidence.find("exchange", chunks=k, late=True) for k in (1, 2, 4)}
    blocked = {k: evidence.find("exchange_sends_first", chunks=k, late=True) for k in (1, 2, 4)}
    factors = {k: evidence.ratio(blocked[k], first[k]) for k in first}
    apart = evidence.find("exchange_sends_first", backend="one_way_gloo", late=True)
    cured = evidence.estimate(
        lambda sends, apart, receives: (sends - apart) / (sends - receives), blocked[1], apart, first[1]
    )
    outcome = _decide_all({1 + _BLOCKED / k: factor for k, factor in factors.items()})
    if outcome is Outcome.AT_WORK and not cured.is_above(0.5):
        outcome = Outcome.UNDECIDED
    numbers = [
        *(Number(f"sends first over receives first, {k} chunk{'s'[: k - 1]}", factors[k], 1 + 1 / k) for k in factors),
        Number("part of 1 chunk's wait that a connection for each direction saves", cured, 1.0),
        *_phases(evidence),
    ]
    if outcome is Outcome.NOT_SEEN:
        numbers.pop(3)  # a part of nothing
    if outcome is not Outcome.AT_WORK:
        return Verdict(outcome, _FINDINGS_BLOCKING[outcome], None, tuple(numbers))
    share = _share(evidence, lambda gather, exchange, sends, receives: sends - receives, blocked[2], first[2])
    return Verdict(outcome, _FINDINGS_BLOCKING[outcome], share, tuple(numbers))


def _phases(evidence: Evidence) -> Iterator[Number]:
    """How long rank 0 only sends, does both or only receives in an all_gather of two chunks: a third each."""
    with suppress(NotMeasured):
        for course in courses(evidence.run, evidence.find("all_gather", timeline=True).id)[:1]:
            for phase, part in course.phases.items():
                label = f"part of an all_gather's time in which rank {course.rank} {phase}"
                yield Number(label.replace("both", "does both"), Estimate(part, None, None), 1 / 3)


_FINDINGS_BLOCKING = {
    Outcome.AT_WORK: (
        "posting sends first makes two ranks take turns on their one connection; receives first, or a connection "
        "for each direction, do not; all_gather sends first, in two chunks"
    ),
    Outcome.NOT_SEEN: "posting sends first adds less than half of what waiting in one queue would add",
    Outcome.UNDECIDED: "the controls do not agree on whether posting sends first costs time here",
}


@_mechanism("page faults")
def page_faults(evidence: Evidence) -> Verdict:
    """Every call gathers into fresh memory, whose pages the kernel has to map and clear one by one.

    With malloc told to keep what was freed, the faults must be gone and the time with them.
    """
    usual, kept = (evidence.find("all_gather", late=True, malloc=malloc) for malloc in ("default", "keep"))
    ratio = evidence.ratio(usual, kept)
    more = evidence.faults(usual) - evidence.faults(kept)
    pages = usual.message_bytes / _PAGE_BYTES
    faulting = more > pages / 4
    outcome = _decide(ratio, _FASTER)
    if outcome is Outcome.AT_WORK and not faulting:
        outcome = Outcome.UNDECIDED
    numbers = [
        Number("all_gather, malloc as usual over malloc that keeps memory", ratio),
        Number("page faults in an iteration, malloc as usual", Estimate(evidence.faults(usual), None, None), pages),
        Number("page faults in an iteration, malloc that keeps memory", Estimate(evidence.faults(kept), None, None), 0),
    ]
    findings = {
        Outcome.AT_WORK: f"{more:.0f} pages of fresh memory are mapped in every call; kept memory saves that time",
        Outcome.NOT_SEEN: "memory that is kept makes all_gather no faster here"
        + ("" if faulting else ", and there are next to no page faults to save"),
        Outcome.UNDECIDED: "the times with kept and with fresh memory, or their page faults, do not decide it",
    }
    share = _share(evidence, lambda gather, exchange, kept: gather - kept, kept) if outcome is Outcome.AT_WORK else None
    return Verdict(outcome, findings[outcome], share, tuple(numbers))


@_mechanism("copies")
def copies(evidence: Evidence) -> Verdict:
    """all_gather copies each tensor into a flat buffer and out of it: T (N+1)/(N-1) bytes, 3 T between two ranks.

    The copies alone, on every rank at once, must cost a part of its time that is worth naming.
    """
    gather, alone = evidence.find("all_gather", late=True), evidence.find("gather_copies")
    part = evidence.ratio(alone, gather)
    outcome = _decide(part, _WORTH_NAMING)
    numbers = [Number("its copies alone over all_gather, 2 ranks", part)]
    with suppress(NotMeasured):  # there may be no third host
        three = evidence.find("all_gather", world_size=3, late=True), evidence.find("gather_copies", world_size=3)
        numbers.append(Number("its copies alone over all_gather, 3 ranks", evidence.ratio(three[1], three[0])))
        numbers.append(Number("copies of 2 ranks over copies of 3", evidence.ratio(alone, three[1]), 3 / 2))
    findings = {
        Outcome.AT_WORK: "the copies into and out of the flat buffer, made alone, take a part of the time worth naming",
        Outcome.NOT_SEEN: f"the copies are less than {_WORTH_NAMING:.0%} of all_gather's time here",
        Outcome.UNDECIDED: f"the copies may or may not be {_WORTH_NAMING:.0%} of all_gather's time",
    }
    share = _share(evidence, lambda gather, exchange, alone: alone, alone) if outcome is Outcome.AT_WORK else None
    return Verdict(outcome, findings[outcome], share, tuple(numbers))


@_mechanism("readers locked out")
def readers_locked_out(evidence: Evidence) -> Verdict:
    """Gloo locks a connection while it writes to it; the thread that should read it asks again and again until then.

    Receives first, so that nothing waits in a queue: a connection for each direction, on which nobody reads what
    another writes, must be faster than one for both. all_gather and the exchange that it is compared with suffer
    alike, so this has no share of what all_gather loses over the exchange.
    """
    both, apart = evidence.find("exchange"), evidence.find("exchange", backend="one_way_gloo")
    ratio = evidence.ratio(both, apart)
    outcome = _decide(ratio, _FASTER)
    findings = {
        Outcome.AT_WORK: "two ranks that send to each other are faster on a connection for each direction: on one for "
        "both, whoever writes locks out the thread that reads",
        Outcome.NOT_SEEN: "a connection for each direction makes an exchange no faster here",
        Outcome.UNDECIDED: f"a connection for each direction may or may not gain {_FASTER - 1:.0%}",
    }
    return Verdict(outcome, findings[outcome], None, (Number("one connection over one for each direction", ratio),))


@_mechanism("readers in the writers' place")
def readers_in_the_writers_place(evidence: Evidence) -> Verdict:
    """Woken by bytes that come, the I/O thread takes the core from the thread that writes and holds the lock; it polls
    for the rest of its time slice before that one can go on.

    Under batch scheduling it waits for a core instead. allreduce, which has writing and reading under way all the
    time, must gain by it; all_gather's own loss has causes of its own, so this has no share of it.
    """
    usual, batch = evidence.find("allreduce"), evidence.find("allreduce", backend="batch_gloo")
    ratio = evidence.ratio(usual, batch)
    outcome = _decide(ratio, _FASTER)
    numbers = [Number("allreduce, I/O threads scheduled as usual over batch, 2 ranks", ratio)]
    with suppress(NotMeasured):  # there may be no third host
        three = [evidence.find("allreduce", world_size=3, backend=backend) for backend in ("gloo", "batch_gloo")]
        numbers.append(Number("allreduce, I/O threads scheduled as usual over batch, 3 ranks", evidence.ratio(*three)))
    findings = {
        Outcome.AT_WORK: "allreduce is faster when Gloo's I/O threads wait for a core instead of taking one: chrt -b 0 "
        "before torchrun has all threads wait so",
        Outcome.NOT_SEEN: "how the I/O threads get their cores makes no difference here",
        Outcome.UNDECIDED: f"I/O threads that wait for a core may or may not gain {_FASTER - 1:.0%}",
    }
    return Verdict(outcome, findings[outcome], None, tuple(numbers))
