"""The controlled experiments: one function each, from what the path is like to a configuration of ordinary cases.

Every case sends the same bytes T on every rank, so any two of their times may be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Self

from netbench.backends import BACKENDS
from netbench.config import PLACE, SweepConfig, resolve
from netbench.errors import UsageError
from netbench.lab.spec import LabSpec
from netbench.plan import Plan, make_plan
from netbench.registry import Registry
from netbench.units import parse_bytes

#: One operation on the ideal link of a lab takes about this long, seconds: enough to hide neither burst nor latency,
#: and short enough for all experiments in three minutes.
_OPERATION_S = 0.2

#: On a path of unknown rate. From 16 MiB on, two ranks gather into so much fresh memory that malloc maps it anew.
_TRANSMIT_BYTES = 16 * 1024**2

#: Sizes are multiples of this, so that none of them is rounded: every mode sends exactly T at two and at three ranks.
_MULTIPLE = 64 * 1024


@dataclass(frozen=True)
class Setting:
    """What all experiments of one explanation have in common.

    ``entry_delay_s`` is how late the late rank is: more than a one-way latency, less than the operation takes. The
    ``iterations`` come in ``rounds``, so that a busy moment of the machine does not hit one case alone.
    """

    transmit_bytes: int
    iterations: int
    rounds: int
    entry_delay_s: float
    place: SweepConfig

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Suits the lab, or else this host's memory; ``options`` may say ``size``, and where it is to run.

        Raises UsageError naming the option that is wrong.
        """
        place = resolve(None, {key: value for key, value in options.items() if key != "size"})
        size = _size(options["size"]) if "size" in options else None
        if place.lab is None:
            return cls(size or _TRANSMIT_BYTES, 80, 4, 0.001, place)
        spec = LabSpec.parse(place.lab)
        suitable = int(min(spec.payload_ceiling(1) / 8 * _OPERATION_S, _TRANSMIT_BYTES))
        suitable = max(1, suitable // _MULTIPLE) * _MULTIPLE
        return cls(size or suitable, 10, 2, 0.005 + 2 * spec.delay_us / 1e6, place)

    def config(self, **axes: object) -> SweepConfig:
        """One experiment: plain Gloo between two ranks, but for ``axes``."""
        usual = {
            "name": "explain",
            "question": "Why does all_gather take longer than its bytes here?",
            "backends": ["gloo"],
            "streams": [1],
            "world_sizes": [2],
            "sizes": [self.transmit_bytes],
            "sizes_of": "transmit",
            "iterations": self.iterations,
            "rounds": self.rounds,
            "warmup": 1,
        }
        return SweepConfig.model_validate(self.place.model_dump(include={*PLACE}) | usual | axes)


def _size(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise UsageError(f"--size: {error}") from None


class Experiment:
    """``plan(setting)`` gives its cases; the function's docstring says what they show."""

    def __init__(self, configure: Callable[[Setting], SweepConfig]) -> None:
        self.name = configure.__name__
        self.configure = configure
        self.__doc__ = configure.__doc__

    def plan(self, setting: Setting) -> Plan:
        return make_plan(self.configure(setting))


EXPERIMENTS: Registry[Experiment] = Registry("experiment")


def _experiment(configure: Callable[[Setting], SweepConfig]) -> Callable[[Setting], SweepConfig]:
    EXPERIMENTS.add(Experiment(configure))
    return configure


def whole_plan(setting: Setting) -> Plan:
    """The cases of all experiments, each once however many of them share it."""
    return reduce(Plan.and_also, (experiment.plan(setting) for experiment in EXPERIMENTS.values()))


@_experiment
def collectives(setting: Setting) -> SweepConfig:
    """At equal bytes: all_gather, allreduce (receives first: must be fast), all_to_all (sends first: must be slow)."""
    return setting.config(modes=["all_gather", "allreduce", "all_to_all"], world_sizes=[2, 3])


@_experiment
def exchange(setting: Setting) -> SweepConfig:
    """The same bytes between two ranks, receives posted first: what Gloo can do on this path."""
    return setting.config(modes=["exchange"])


@_experiment
def order(setting: Setting) -> SweepConfig:
    """Sends or receives posted first, one rank late, in 1, 2 and 4 chunks: sends first costs 1/k of the time more."""
    return setting.config(
        modes=["exchange", "exchange_sends_first"], chunks=[1, 2, 4], entry_delays=[setting.entry_delay_s]
    )


@_experiment
def connections(setting: Setting) -> SweepConfig:
    """Sends first and one rank late, but a connection for each direction: what waits in one queue waits no more."""
    return setting.config(
        modes=["exchange_sends_first"], backends=["one_way_gloo"], entry_delays=[setting.entry_delay_s]
    )


@_experiment
def directions(setting: Setting) -> SweepConfig:
    """Receives first, on a connection for each direction: no thread that reads is locked out by one that writes."""
    return setting.config(modes=["exchange"], backends=["one_way_gloo"])


@_experiment
def scheduling(setting: Setting) -> SweepConfig:
    """allreduce, receives first, with I/O threads that take no core from a thread that runs."""
    return setting.config(modes=["allreduce"], backends=["batch_gloo"], world_sizes=[2, 3])


@_experiment
def memory(setting: Setting) -> SweepConfig:
    """all_gather with malloc as it is, and told to keep what was freed, so that no page is fresh and none faults."""
    return setting.config(
        modes=["all_gather"], world_sizes=[2, 3], mallocs=["default", "keep"], entry_delays=[setting.entry_delay_s]
    )


@_experiment
def copies(setting: Setting) -> SweepConfig:
    """The copies of an all_gather alone: T (N+1)/(N-1) bytes on every rank, so most between two."""
    sizes = [setting.transmit_bytes // (world_size - 1) for world_size in (2, 3)]
    return setting.config(modes=["gather_copies"], world_sizes=[2, 3], sizes=sizes, sizes_of="tensor")


@_experiment
def streams(setting: Setting) -> SweepConfig:
    """all_gather cut into 1/K over K groups: how far more connections help."""
    backend = "split_gloo" if "split_gloo" in BACKENDS else "parallel_gloo"
    return setting.config(modes=["all_gather"], backends=[backend], streams=[2, 4, 8])


@_experiment
def path(setting: Setting) -> SweepConfig:
    """Plain TCP over one and two connections, both ways at once: the path's own limit, without Gloo."""
    return setting.config(modes=["exchange"], backends=["tcp"], streams=[1, 2])


@_experiment
def timeline(setting: Setting) -> SweepConfig:
    """all_gather while its interface's counters are read: who sends and who receives when."""
    return setting.config(modes=["all_gather"], timelines=["2ms"])
