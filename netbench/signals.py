"""Turning the signals that ask a program to end into an exception, so that everything is put in order first."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from netbench.errors import Exit, Stopped

_ENDINGS = {
    signal.SIGINT: Exit.INTERRUPTED,
    signal.SIGTERM: Exit.TERMINATED,
    signal.SIGHUP: Exit.TERMINATED,
}


@contextmanager
def stopping() -> Iterator[None]:
    """Within it Ctrl-C, SIGTERM and SIGHUP raise Stopped, once: while that is handled, more of them wait in vain."""

    def stop(number: int, _: object) -> None:
        for other in _ENDINGS:
            signal.signal(other, signal.SIG_IGN)
        ending = signal.Signals(number)
        raise Stopped(f"stopped by {ending.name}", _ENDINGS[ending])

    before = {number: signal.signal(number, stop) for number in _ENDINGS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
