"""Whether bytes still move while an operation takes long: that tells a slow operation from a dead one.

A thread sleeps in the kernel until no sign of life has come for some seconds. As long as iterations are short it is
never woken, so it takes nothing from what is measured; after that it reads the connections' counters once a second.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
import time
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise

from netbench import wire
from netbench.units import about_bytes, about_rate, about_seconds

#: The counters are read after this many seconds without a sign of life, and then so often; both less where the limit
#: of an operation is short.
_QUIET_S, _PERIOD_S = 5.0, 1.0

#: An operation of which no byte has moved for so long is dead, whatever limit it was given, seconds.
STANDSTILL_S = 120.0


class Alarm:
    """A timer of the kernel: ``wait`` returns when it goes off, and ``set`` puts that off without waking anybody.

    Raises OSError where the kernel has none (``timerfd``, Linux).
    """

    def __init__(self) -> None:
        # os.timerfd_create is new in Python 3.13.
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")

    def set(self, first_s: float, then_s: float) -> None:
        """Goes off after ``first_s`` and from then on every ``then_s``, unless it is set again; 0 is never."""
        times = (int(part) for s in (then_s, first_s) for part in (s, s % 1 * 1e9))
        if self._libc.timerfd_settime(self._descriptor, 0, struct.pack("=4q", *times), None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def wait(self) -> None:
        os.read(self._descriptor, 8)


class Pulse:
    """One rank's watch over the operation under way.

    ``moving`` is told the rate in bit/s whenever bytes have moved; ``dead`` what to say of an operation that stands
    still for longer than ``standstill_s``. Both are called in the pulse's own thread.
    """

    def __init__(
        self,
        timeout_s: float,
        moving: Callable[[float], None],
        dead: Callable[[str], None],
        standstill_s: float = STANDSTILL_S,
    ) -> None:
        self._quiet_s, self._period_s = min(_QUIET_S, timeout_s / 2), min(_PERIOD_S, timeout_s / 5)
        self._moving, self._dead = moving, dead
        self._standstill_s = standstill_s
        self._connections: Collection[int] = ()
        #: How often the thread has been woken, and whether it has been since the last sign of life.
        self.ticks, self.ticking = 0, False
        #: Whether an operation is under way: in a barrier it is others whose bytes move.
        self.inside = False
        #: When, bytes sent, bytes received.
        self._readings: list[tuple[float, int, int]] = []
        self._alarm = Alarm()
        self.thread = threading.Thread(target=self._run, name="pulse", daemon=True)
        self.thread.start()

    def watch(self, connections: Collection[int]) -> None:
        """From now on over these, which must stay open until ``rest``."""
        self._connections = connections
        self.beat()

    def rest(self) -> None:
        """Until the next ``watch`` the thread sleeps."""
        self.inside = self.ticking = False
        self._alarm.set(0, 0)

    def beat(self) -> None:
        """A sign of life: the thread sleeps on."""
        self._readings = []
        self.ticking = False
        self._alarm.set(self._quiet_s, self._period_s)

    def watched(self, operation: Callable[[], None]) -> Callable[[], None]:
        """``operation``, for where it is not timed."""

        def run() -> None:
            self.beat()
            self.inside = True
            operation()
            self.inside = False

        return run

    def finding(self) -> str | None:
        """What is known of an operation that takes long; None of another, or where the kernel is silent."""
        readings = self._readings
        if len(readings) < 2:
            return None
        moved_at, rate = _progress(readings)
        if readings[-1][1:] != readings[-3:][0][1:]:
            return f"its bytes still moved, at {about_rate(rate)}: it is slow, not dead; a larger --timeout lets it end"
        found = f"none of its bytes moved in the last {about_seconds(readings[-1][0] - moved_at)}"
        try:
            waiting = wire.waiting(self._connections)
        except OSError:
            return found
        stuck = [f"{about_bytes(count)} for {peer}" for peer, count in waiting.items()]
        return f"{found}; not taken by the other side: {', '.join(stuck)}" if stuck else found

    def _run(self) -> None:
        while True:
            self._alarm.wait()
            self.ticks += 1
            self.ticking = True
            if self.inside:
                self._look()

    def _look(self) -> None:
        try:
            traffic = wire.traffic(self._connections) if self._connections else None
        except OSError:
            traffic = None  # the operation has just failed, and its connections are closed
        if traffic is None:
            return
        readings = self._readings
        readings.append((time.monotonic(), traffic.sent_bytes, traffic.received_bytes))
        if len(readings) < 2:
            return
        moved_at, _ = _progress(readings)
        if moved_at == readings[-1][0]:
            self._moving(_progress(readings[-2:])[1])
        elif readings[-1][0] - moved_at > self._standstill_s:
            self._dead(self.finding() or "")


def _progress(readings: Sequence[tuple[float, int, int]]) -> tuple[float, float]:
    """When bytes were last seen to move, and at what rate in bit/s on the whole, in the busier direction."""
    first, last = readings[0], readings[-1]
    moved = [after[0] for before, after in pairwise(readings) if after[1:] != before[1:]]
    moved_bytes = max(last[1] - first[1], last[2] - first[2])
    return max(moved, default=first[0]), 8 * moved_bytes / (last[0] - first[0])
