"""The bytes that the kernel counted are those that the formulas promise."""

from __future__ import annotations

import socket
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from netbench import wire
from netbench.backends import tensor_maker
from netbench.config import SweepConfig
from netbench.measure import make_operation
from netbench.model import Case, split
from netbench.modes import MODES
from netbench.plan import make_plan

CASES = make_plan(
    SweepConfig(
        modes=list(MODES),
        backends=["gloo", "split_gloo", "parallel_gloo"],
        streams=[1, 3],
        world_sizes=[2, 3],
        sizes=["3MiB"],
    )
).cases

ITERATIONS = 2


def senders(case: Case) -> int:
    """How many ranks send T in one iteration: all, but where every rank but one is sent S once."""
    ranks = len(MODES[case.mode].participants(case.world_size))
    return ranks - 1 if case.mode in ("broadcast", "send") else ranks


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_bytes_on_the_wire_are_those_of_the_formula(case: Case, opened: Callable[..., Any]) -> None:
    world, lanes, connections = opened(case.backend, case.streams, case.world_size)
    mode = MODES[case.mode]

    def body(rank: int) -> None:
        if rank not in mode.participants(case.world_size):
            return
        parts = split(case.elements, len(lanes[rank].lanes), mode.block(case.world_size))
        buffers = mode.buffers(tensor_maker("cpu", case.dtype), case.elements, case.world_size)
        operation = make_operation(mode, lanes[rank], buffers, [[part] for part in parts], world.timeout_s)
        for _ in range(ITERATIONS):
            operation()

    before = wire.traffic(connections)
    world.run(body)
    after = wire.traffic(connections)
    assert before is not None
    assert after is not None
    carried = after - before
    ideal = Fraction(case.tensor_bytes) * mode.transmit_ratio(case.world_size) * senders(case) * ITERATIONS
    # Gloo's reduce_scatter is an allreduce and sends twice the bytes; parallel_gloo's is not.
    overhead = 2 if case.mode == "reduce_scatter" and case.backend != "parallel_gloo" else 1
    assert carried.sent_bytes == pytest.approx(float(ideal * overhead), rel=0.01)
    assert carried.received_bytes == carried.sent_bytes


@pytest.fixture
def pair() -> Any:
    """Two connected TCP sockets on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname(), timeout=5)
        server, _ = listening.accept()
    server.settimeout(5)
    with client, server:
        yield client, server


def test_connected_tcp_sockets_are_found_and_others_are_not(pair: tuple[socket.socket, socket.socket]) -> None:
    client, server = pair
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        found = wire.connections()
        assert {client.fileno(), server.fileno()} <= found
        assert not {listening.fileno(), datagrams.fileno(), 0, 1, 2} & found


def test_what_was_sent_is_counted_to_the_byte(pair: tuple[socket.socket, socket.socket]) -> None:
    client, server = pair
    before = wire.traffic([client.fileno()])
    client.sendall(b"x" * 12_345)
    received = 0
    while received < 12_345:
        received += len(server.recv(65536))
    server.sendall(b"y" * 678)
    assert client.recv(678, socket.MSG_WAITALL) == b"y" * 678
    after = wire.traffic([client.fileno()])
    assert before is not None
    assert after is not None
    assert (after - before) == wire.Traffic(sent_bytes=12_345, received_bytes=678, retransmits=0)


def test_looking_leaves_the_connection_open(pair: tuple[socket.socket, socket.socket]) -> None:
    client, server = pair
    wire.traffic(wire.connections())
    client.sendall(b"still here")
    assert server.recv(100) == b"still here"


def test_no_connection_has_carried_nothing() -> None:
    assert wire.traffic([]) == wire.Traffic(0, 0, 0)


def test_what_is_no_connection_has_no_counters() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        assert wire.traffic([datagrams.fileno()]) is None
