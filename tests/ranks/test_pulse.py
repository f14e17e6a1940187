"""What tells a slow operation from a dead one: bytes, looked at only while an operation takes long."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from netbench.pulse import Pulse

LIMIT_S = 10.0


class Heard:
    """What a pulse has told."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.dead: list[str] = []


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of one TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname(), LIMIT_S)
        there, _ = server.accept()
    with here, there:
        yield here, there


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < deadline, f"{what} did not happen within {LIMIT_S} s"
        time.sleep(0.01)


def begin(heard: Heard, connection: socket.socket, timeout_s: float, standstill_s: float = 60.0) -> Pulse:
    pulse = Pulse(timeout_s, heard.rates.append, heard.dead.append, standstill_s)
    pulse.watch([connection.fileno()])
    return pulse


def switches(thread: threading.Thread) -> int:
    """How often the kernel has put a thread to sleep: once more for each time that it was woken."""
    lines = Path(f"/proc/self/task/{thread.native_id}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("voluntary", "nonvoluntary")))


def test_nothing_wakes_up_while_signs_of_life_come(ends: tuple[socket.socket, socket.socket]) -> None:
    heard = Heard()
    pulse = begin(heard, ends[0], timeout_s=2.0)  # would look after a second
    until(lambda: switches(pulse.thread) > 0, "sleep")
    time.sleep(0.1)
    before = switches(pulse.thread)
    for _ in range(15):
        pulse.inside = True
        time.sleep(0.1)  # an iteration
        pulse.inside = False
        pulse.beat()
    pulse.rest()
    time.sleep(1.5)  # a long wait between two cases
    assert pulse.ticks == 0
    assert switches(pulse.thread) == before
    assert heard.rates == []


def test_an_operation_whose_bytes_move_is_slow_and_not_dead(ends: tuple[socket.socket, socket.socket]) -> None:
    heard = Heard()
    here, there = ends
    pulse = begin(heard, here, timeout_s=0.5, standstill_s=0.5)

    def operation() -> None:
        while len(heard.rates) < 8:
            there.sendall(b"x" * 1000)
            here.recv(65536)
            time.sleep(0.01)

    pulse.watched(operation)()
    assert min(heard.rates) > 0
    assert heard.dead == []
    finding = pulse.finding()
    pulse.rest()
    assert finding is not None
    assert "its bytes still moved, at " in finding
    assert "larger --timeout" in finding


def test_an_operation_whose_bytes_stand_still_is_dead(ends: tuple[socket.socket, socket.socket]) -> None:
    heard = Heard()
    here, _ = ends
    pulse = begin(heard, here, timeout_s=0.5, standstill_s=1.0)

    def operation() -> None:
        here.setblocking(False)
        try:
            while True:
                here.send(b"x" * 65536)  # until the other end's buffer and ours are full: nobody reads
        except BlockingIOError:
            pass
        until(lambda: heard.dead, "an end")

    begun = time.monotonic()
    pulse.watched(operation)()
    pulse.rest()
    assert time.monotonic() - begun > 1.0
    assert "none of its bytes moved in the last " in heard.dead[0]
    assert "not taken by the other side: " in heard.dead[0]
    assert " for 127.0.0.1" in heard.dead[0]


def test_a_standstill_is_told_from_the_second_look_on(ends: tuple[socket.socket, socket.socket]) -> None:
    pulse = begin(Heard(), ends[0], timeout_s=0.5)
    pulse.watched(lambda: until(pulse.finding, "a finding"))()
    assert "none of its bytes moved" in str(pulse.finding())
    pulse.rest()


def test_a_wait_for_others_is_no_operation(ends: tuple[socket.socket, socket.socket]) -> None:
    heard = Heard()
    pulse = begin(heard, ends[0], timeout_s=0.2, standstill_s=0.2)
    until(lambda: pulse.ticks > 10, "looks")  # a barrier in which nothing of ours moves
    pulse.rest()
    assert heard.dead == []
    assert pulse.finding() is None


def test_without_connections_nothing_is_said() -> None:
    heard = Heard()
    pulse = Pulse(0.2, heard.rates.append, heard.dead.append, 0.2)
    pulse.watch([])
    pulse.watched(lambda: until(lambda: pulse.ticks > 10, "looks"))()
    assert (heard.rates, heard.dead, pulse.finding()) == ([], [], None)
    pulse.rest()


def test_a_connection_that_is_closed_meanwhile_is_no_error(ends: tuple[socket.socket, socket.socket]) -> None:
    heard = Heard()
    closed = os.dup(ends[0].fileno())
    os.close(closed)
    pulse = Pulse(0.2, heard.rates.append, heard.dead.append, 0.2)
    pulse.watch([closed])
    pulse.watched(lambda: until(lambda: pulse.ticks > 10, "looks"))()
    pulse.rest()
    assert pulse.thread.is_alive()
    assert heard.dead == []
