"""Work that is shared with other processes, where there is so much of it that they pay.

Reading and drawing hold the interpreter's lock most of the time, so threads would wait for each other. A helper is a
program of its own that gets its tasks through a pipe. It is none of multiprocessing's, since those import the script
that called netbench once more; and it ends when the pipe does, however this process ends.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable
from itertools import chain, islice
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any, TypeVar

from netbench.errors import NetbenchError

Item = TypeVar("Item")
Result = TypeVar("Result")

#: More would wait for the one process that draws what they save.
_MOST_HELPERS = 3

#: A helper has ended, or what it is to be told cannot be pickled.
_UNTOLD = (OSError, EOFError, pickle.PickleError, AttributeError, TypeError)


def shared(function: Callable[[Item], Result], items: Iterable[Item], many: int) -> list[Result]:
    """``function`` of each of ``items``, in their order; from ``many`` on by helpers too, one for each further CPU.

    ``items`` are made here, while helpers work. All that goes to and fro has to be picklable. Raises what ``function``
    raises. What a helper did not come to do, as when it was killed, is done here.
    """
    items, helpers = iter(items), min(_MOST_HELPERS, len(os.sched_getaffinity(0)) - 1)
    first = list(islice(items, many)) if helpers else []
    if len(first) < many or not helpers:
        return [function(item) for item in chain(first, items)]
    work, count = _Work(function), 0
    # Daemons, so that a second Ctrl-C need not wait for them.
    threads = [Thread(target=work.have_done, daemon=True) for _ in range(helpers)]
    try:
        for thread in threads:
            thread.start()
        for item in chain(first, items):
            work.tasks.put((count, item))
            count += 1
            while work.tasks.qsize() > many and work.do_one():  # what is made and not yet used up takes memory
                pass
        while work.do_one():
            pass
    except BaseException:
        work.stopped.set()
        raise
    finally:
        for _ in threads:
            work.tasks.put(None)
        for thread in threads:
            thread.join()  # a helper finishes what it has begun, so that no file is left half written
    work.do_the_rest()
    return [work.done[place] for place in range(count)]


class _Work:
    """Tasks, each with its place in the order, that several take from."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function
        self.tasks: SimpleQueue[tuple[int, Any] | None] = SimpleQueue()
        self.done: dict[int, Any] = {}
        #: Nobody is to begin with another task.
        self.stopped = Event()
        self._returned: list[tuple[int, Any]] = []
        self._failures: list[Exception] = []

    def do_one(self) -> bool:
        """Does the next task here; false where there is none. Raises what a helper's task has raised."""
        if self._failures:
            raise self._failures[0]
        try:
            task = self.tasks.get_nowait()
        except Empty:
            return False
        if task is not None:
            self.done[task[0]] = self.function(task[1])
        return True

    def do_the_rest(self) -> None:
        """Once the helpers have ended: what they gave back."""
        if self._failures:
            raise self._failures[0]
        for place, item in self._returned:
            self.done[place] = self.function(item)

    def have_done(self) -> None:
        """A thread's: starts a helper, and hands it one task after the other."""
        try:
            process = _start()
        except OSError:
            return
        with process:
            while (task := self.tasks.get()) is not None and not self.stopped.is_set():
                place, item = task
                try:
                    fine, result = _ask(process, (self.function, item))
                except _UNTOLD:
                    self._returned.append(task)
                    return
                if not fine:
                    self._failures.append(result)
                    return
                self.done[place] = result


def _start() -> subprocess.Popen[bytes]:
    # What is imported there is what is imported here.
    program = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve()"
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C reaches us alone
    )


def _ask(process: subprocess.Popen[bytes], task: tuple[Callable[[Any], Any], Any]) -> tuple[bool, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(pickle.dumps(task))
    process.stdin.flush()
    fine, result = pickle.load(process.stdout)
    return fine, result


def serve() -> None:
    """A helper's whole life: does what it is asked until nobody asks any more."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anyone prints is no answer
    while True:
        try:
            function, item = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: tuple[bool, Any] = True, function(item)
        except Exception as error:  # noqa: BLE001 - raised again by who asked
            if not isinstance(error, NetbenchError):  # a mistake of ours, and where it happened is lost otherwise
                error.add_note(traceback.format_exc())
            answer = False, error
        try:
            answers.write(pickle.dumps(answer))
            answers.flush()
        except BrokenPipeError:  # whoever asked has ended
            os._exit(0)
