"""Works made of several: one deadline for all, the first error kept, and progress when nobody waits.

The Works that Gloo hands out for messages complete only when they are waited for and have no future, so an
``Operation`` is driven by some thread: the one that waits, which costs nothing extra, or one in the background when
the caller wants to look (``is_completed``), to be called (``get_future``) or to go away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import torch
from torch import distributed as dist

#: torch's way of saying that the group's own timeout holds.
NO_TIMEOUT = timedelta(0)

_GRACE_S = 5.0

#: Whether an operation ends before or after its future is asked for is decided under this.
_FUTURES = threading.Lock()

_allocate_lock = threading.Lock

#: Runs a function on another thread.
Submit = Callable[[Callable[[], object]], object]


class Operation(dist.Work):
    """One operation on several streams or in several steps.

    ``steps`` yields the Works to wait for and adds every Work that it makes to ``posted``; it is advanced to its first
    yield here, so that its first messages are under way. ``results`` is what ``result()`` and the future give.
    """

    # Defaults, so that an operation that is simply waited for sets up as little as it needs.
    _error: BaseException | None = None
    _future: torch.futures.Future[Any] | None = None

    def __init__(
        self,
        steps: Iterator[Any],
        posted: list[Any],
        timeout: timedelta,
        results: Sequence[torch.Tensor],
        submit: Submit,
    ) -> None:
        super().__init__()
        self._steps = steps
        self._posted = posted
        self._timeout = timeout
        self._results = results
        self._submit = submit
        # Taking the only item is one step that no other thread can come between: who has it, drives.
        self._driver = [True]
        # Held until the operation has ended: a lock is the cheapest thing that another thread can wait for.
        self._running = _allocate_lock()
        self._running.acquire()
        try:
            self._next = next(steps, None)
        except Exception:
            self._wait_for_rest(time.monotonic() + timeout.total_seconds(), waited=[])
            raise

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Returns True when all has ended; raises the first error. With ``timeout``, gives up waiting after that.

        Without one, the group's timeout is the limit of the whole operation, and when it passes the streams are dead.
        """
        if not timeout and self._claim():
            self._run()
            self._finish()
        else:
            self.start()
            limit_s = (timeout or self._timeout).total_seconds()
            # The driver keeps the deadline; the grace is for its own clean-up.
            if not self._running.acquire(timeout=limit_s if timeout else limit_s + _GRACE_S):
                raise RuntimeError(f"timed out: the operation has not ended within {limit_s:g} s")
            self._running.release()
        if self._error is not None:
            raise self._error
        return True

    def start(self) -> None:
        """Has the operation driven in the background, unless somebody drives it already."""
        if self._claim():
            self._submit(self._drive_apart)

    def is_completed(self) -> bool:
        self.start()
        return not self._running.locked()

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return list(self._results)

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> torch.futures.Future[Any]:
        """Completes with the list of result tensors, or with the first error."""
        with _FUTURES:
            if self._future is not None:
                return self._future
            future: torch.futures.Future[Any] = torch.futures.Future()
            self._future = future
            ended = not self._running.locked()
        if ended:
            self._resolve(future)
        else:
            self.start()
        return future

    def _claim(self) -> bool:
        try:
            return self._driver.pop()
        except IndexError:
            return False

    def _drive_apart(self) -> None:
        # A tensor made in inference mode may be written to in that mode only, and modes belong to threads.
        with torch.inference_mode():
            self._run()
        self._finish()

    def _run(self) -> None:
        deadline = time.monotonic() + self._timeout.total_seconds()
        waited = []
        try:
            work, steps = self._next, self._steps
            while work is not None:
                waited.append(work)
                work.wait(_remaining(deadline))
                work = next(steps, None)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the one who waits must get it
            self._error = error
            self._wait_for_rest(deadline, waited)

    def _finish(self) -> None:
        self._posted.clear()
        self._next = None
        del self._steps
        with _FUTURES:
            self._running.release()
            future = self._future
        if future is not None:
            self._resolve(future)

    def _wait_for_rest(self, deadline: float, waited: list[Any]) -> None:
        """Nothing may still write into the caller's tensors when the error is raised."""
        done = {id(work) for work in waited}
        for work in self._posted:
            if id(work) not in done:
                try:
                    work.wait(_remaining(deadline))
                except RuntimeError:
                    continue  # the first error is the one that is told

    def _resolve(self, future: torch.futures.Future[Any]) -> None:
        if self._error is None:
            future.set_result(list(self._results))
        else:
            error = self._error
            future.set_exception(error if isinstance(error, Exception) else RuntimeError(str(error)))


class FromAny(Operation):
    """A message that may come from any rank; ``sender`` tells which, once it has come."""

    def __init__(self, *arguments: Any, sender: Callable[[], int]) -> None:
        super().__init__(*arguments)
        self._sender = sender
        # The sender of a long message waits until its later parts are asked for, which is after the first has come.
        self.start()

    def _source_rank(self) -> int:
        self.wait()
        return self._sender()

    source_rank = _source_rank


def _remaining(deadline: float) -> timedelta:
    # A millisecond is the least that Gloo counts; nought would mean its own timeout.
    return timedelta(seconds=max(0.001, deadline - time.monotonic()))


class Background:
    """One thread that drives the operations of a group in the order in which they were issued.

    In order is safe for collectives, which every rank issues in the same order. A receive may have to wait for
    something that the program does later, so messages get threads of their own (``apart``).
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], object]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._queue.put(work)

    def apart(self, work: Callable[[], object]) -> None:
        threading.Thread(target=work, name=f"{self._name}-message", daemon=True).start()

    def close(self, timeout_s: float) -> None:
        """Ends the thread after what is queued, waiting for it no longer than ``timeout_s``."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout_s)
            self._thread = None

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
