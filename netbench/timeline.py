"""An interface's byte counters over time, read while a case runs: who sends and who receives when."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

import numpy as np
import psutil

from netbench.record import TIMELINE


class Recorder:
    """Reads the counters of ``interface`` every ``period_s`` for the length of a ``with`` block, in a thread.

    They are those of the network namespace that this process is in, since psutil asks /proc and not /sys.
    """

    def __init__(self, interface: str, period_s: float) -> None:
        self._interface = interface
        self._period_s = period_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._readings: list[tuple[int, int, int]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def readings(self) -> np.ndarray:
        """int64 of shape (readings, len(TIMELINE))."""
        return np.array(self._readings, np.int64).reshape(-1, len(TIMELINE))

    def _run(self) -> None:
        due = time.monotonic()
        while not self._ended.wait(max(0.0, due - time.monotonic())):
            counters = psutil.net_io_counters(pernic=True)[self._interface]
            self._readings.append((time.monotonic_ns(), counters.bytes_sent, counters.bytes_recv))
            # A reading that comes late is not made up for: two at once would say nothing.
            due = max(due + self._period_s, time.monotonic())
