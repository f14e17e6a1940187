"""What a run shows, in the form that verdicts ask for: the cases that send the same bytes, and numbers made of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from netbench.errors import UsageError
from netbench.model import Case
from netbench.statistics import Estimate, estimate
from netbench.summary import Run

#: How far two cases' bytes may differ and still count as equal: sizes are rounded to whole elements.
_EQUAL = 0.01


class NotMeasured(Exception):  # noqa: N818 - no error, but an answer
    """The run has no such case; ``str`` names it."""


class Evidence:
    """The finished cases of ``run`` in which every rank sends ``transmit_bytes``, or copies what an
    all_gather copies that sends them.

    Of several sizes in a run it takes the largest at which both all_gather and exchange between two ranks were
    measured, the one that is explained and the one that it is set against. Raises UsageError when there is none.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        cases = run.summaries()
        finished = set(cases[cases["status"] == "ok"]["case_id"])
        measured = [case for case in run.manifest.cases if case.id in finished]
        gathers, exchanges = (
            {case.transmit_bytes for case in measured if _is(case, mode)} for mode in ("all_gather", "exchange")
        )
        if not gathers & exchanges:
            raise UsageError(
                f"{run.folder.path}: nothing to explain: it needs all_gather and exchange over plain gloo between "
                "2 ranks, both finished at one size; netbench explain without a path measures all that it takes"
            )
        self.transmit_bytes = max(gathers & exchanges)
        self.cases = [case for case in measured if self._sends_as_much(case)]

    def _sends_as_much(self, case: Case) -> bool:
        size = case.transmit_bytes or case.tensor_bytes * (case.world_size - 1)
        return abs(size - self.transmit_bytes) <= _EQUAL * self.transmit_bytes

    def find(self, mode: str, **what: object) -> Case:
        """The case of ``mode`` that is plain gloo between two ranks and usual, but for ``what``.

        ``late`` says whether a rank enters late, however much. Raises NotMeasured.
        """
        for case in self.cases:
            if _is(case, mode=mode, **what):
                return case
        others = ", ".join(f"{name} {value}" for name, value in what.items())
        raise NotMeasured(f"{mode}{' with ' if others else ''}{others}")

    def all(self, mode: str, **what: object) -> list[Case]:
        """As ``find``, without a say on backend and streams, and all of them."""
        return [case for case in self.cases if _is(case, mode=mode, backend=case.backend, streams=case.streams, **what)]

    def times_s(self, case: Case) -> NDArray[np.float64]:
        """Headline times of the timed iterations, without the time for which the late rank was awaited."""
        times: NDArray[np.float64] = (self.run.times(case.id) - case.entry_delay_us * 1000) / 1e9
        return times

    def median_s(self, case: Case) -> float:
        return float(np.median(self.times_s(case)))

    def estimate(self, function: Callable[..., Any], *cases: Case) -> Estimate:
        """``function`` of the cases' median times in seconds, with its interval."""
        return estimate(function, *(self.times_s(case) for case in cases))

    def ratio(self, case: Case, to: Case) -> Estimate:
        return self.estimate(lambda one, other: one / other, case, to)

    def faults(self, case: Case) -> float:
        """Minor page faults in an iteration: the median over the timed ones, of the rank that has most."""
        faults = self._faults.get(case.id)
        if faults is None:
            raise NotMeasured(f"page faults of {case.id}")
        return faults

    @cached_property
    def _faults(self) -> dict[str, float]:
        samples = self.run.samples()
        timed = samples[samples["phase"] == "timed"]
        most = timed.groupby(["case_id", "iteration"], observed=True)["minor_faults"].max()
        counted = most.groupby("case_id", observed=True).median().dropna()
        return {str(case_id): float(faults) for case_id, faults in counted.items()}

    @property
    def ideal_s(self) -> float | None:
        """The time in which a lab's link carries the payload; None on a real network."""
        lab = self.run.manifest.lab
        return self.transmit_bytes * 8 / lab.payload_ceiling_bit_s if lab else None


def _is(case: Case, mode: str, **what: object) -> bool:
    usual: dict[str, object] = {
        "backend": "gloo",
        "streams": 1,
        "world_size": 2,
        "dtype": "float32",
        "chunks": 1,
        "late": False,
        "malloc": "default",
        "timeline": False,
        "pair": "",
    }
    wanted = usual | what
    late, timeline = wanted.pop("late"), wanted.pop("timeline")
    return (
        case.mode == mode
        and (case.entry_delay_us > 0) == late
        and (case.timeline_us > 0) == timeline
        and all(getattr(case, name) == value for name, value in wanted.items())
    )


def label(case: Case) -> str:
    """A case in words, without its size: ``exchange, sends first, 2 chunks, late``."""
    words = [
        {"exchange_sends_first": "exchange, sends first", "exchange": "exchange, receives first"}.get(
            case.mode, case.mode.replace("gather_copies", "all_gather's copies alone")
        ),
        f"{case.world_size} ranks" if case.world_size != 2 else "",
        {"gloo": "", "tcp": "plain TCP"}.get(case.backend, case.backend),
        f"{case.streams} streams" if case.streams > 1 else "",
        f"{case.chunks} chunks" if case.chunks > 1 else "",
        "late" if case.entry_delay_us else "",
        "memory kept" if case.malloc == "keep" else "",
        "counters read" if case.timeline_us else "",
    ]
    return ", ".join(word for word in words if word)
