"""What goes on beside a case while it runs: the machine's CPU time, waiting for CPUs, the interface's traffic.

Together with what the ranks themselves used, it tells whether somebody else did too. A container sees its machine's
``/proc``, which is what is wanted here: it is the machine that is shared.
"""

from __future__ import annotations

import resource
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Surroundings:
    """Counters that only grow, or what two readings differ by. Null where the kernel does not tell.

    ``window_ns`` is the monotonic clock. ``machine_cpu_ns`` is time in processes of all the machine's CPUs together,
    without interrupts, which nobody is to blame for; ``stolen_ns`` what the hypervisor gave to others of it;
    ``stalled_ns`` how long at least one process that could run had to wait for a CPU. ``own_cpu_ns`` is what this
    process used. The interface's bytes hold headers and everybody's traffic.
    """

    window_ns: int
    own_cpu_ns: int
    machine_cpu_ns: int | None
    stolen_ns: int | None
    stalled_ns: int | None
    interface_sent_bytes: int | None
    interface_received_bytes: int | None

    @classmethod
    def now(cls, interface: str) -> Surroundings:
        """Of this process, its machine, and an interface of the network namespace that it is in."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        times = psutil.cpu_times()
        # psutil asks /proc, not /sys, and so its own namespace.
        counters = psutil.net_io_counters(pernic=True, nowrap=False).get(interface)
        return cls(
            window_ns=time.monotonic_ns(),
            own_cpu_ns=int((usage.ru_utime + usage.ru_stime) * 1e9),
            machine_cpu_ns=int((times.user + times.nice + times.system) * 1e9),
            stolen_ns=int(times.steal * 1e9) if hasattr(times, "steal") else None,
            stalled_ns=_stalled_ns(),
            interface_sent_bytes=counters.bytes_sent if counters else None,
            interface_received_bytes=counters.bytes_recv if counters else None,
        )

    def since(self, earlier: Surroundings) -> dict[str, int | None]:
        """What has been added since ``earlier``, by name."""
        before, after = asdict(earlier), asdict(self)
        return {
            name: None if before[name] is None or after[name] is None else after[name] - before[name] for name in after
        }


def _stalled_ns() -> int | None:
    """Of ``some avg10=0.00 avg60=0.00 avg300=0.00 total=12``: the total, which is in us."""
    try:
        some = Path("/proc/pressure/cpu").read_text().splitlines()[0]
        return int(some.rpartition("total=")[2]) * 1000
    except (OSError, ValueError, IndexError):
        return None
