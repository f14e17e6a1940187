"""What goes on beside a case, read from this machine."""

from __future__ import annotations

import socket
import time
from dataclasses import replace

from netbench.surroundings import Surroundings


def test_own_work_and_own_traffic_show() -> None:
    before = Surroundings.now("lo")
    begun = time.process_time()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        with receiver:
            sender.sendall(b"x" * 100_000)
            left = 100_000
            while left:
                left -= len(receiver.recv(left))
    while time.process_time() - begun < 0.05:
        pass
    found = Surroundings.now("lo").since(before)
    assert found["own_cpu_ns"] >= 0.04e9
    assert found["window_ns"] >= 0.04e9
    assert found["interface_sent_bytes"] > 100_000
    assert found["interface_received_bytes"] > 100_000


def test_what_one_reading_does_not_know_stays_unknown() -> None:
    reading = Surroundings(1, 2, 3, 4, None, None, 7)
    assert replace(reading, window_ns=11, stalled_ns=5).since(reading) == {
        "window_ns": 10,
        "own_cpu_ns": 0,
        "machine_cpu_ns": 0,
        "stolen_ns": 0,
        "stalled_ns": None,
        "interface_sent_bytes": None,
        "interface_received_bytes": 0,
    }


def test_an_unknown_interface_has_no_counters() -> None:
    found = Surroundings.now("none0")
    assert found.interface_sent_bytes is None
    assert found.machine_cpu_ns is not None
