"""One end of K plain TCP connections, for rate checks.

``traffic.py listen|connect ADDRESS SEND RECEIVE CONNECTIONS ROUNDS``; every wait has a limit.

SEND and RECEIVE are bytes per connection and round. Prints when each round's sending began and its receiving ended,
in ns of the monotonic clock, which all processes of a machine share.
"""

import json
import socket
import sys
import threading
import time

PORT = 4300
LIMIT_S = 60.0


def connect(address: str) -> socket.socket:
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            return socket.create_connection((address, PORT), LIMIT_S)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def connections(role: str, address: str, count: int) -> list[socket.socket]:
    if role == "connect":
        return [connect(address) for _ in range(count)]
    with socket.create_server((address, PORT)) as server:
        server.settimeout(LIMIT_S)
        accepted = [server.accept()[0] for _ in range(count)]
    for connection in accepted:
        connection.settimeout(LIMIT_S)
    return accepted


def receive(connection: socket.socket, count: int) -> None:
    while count:
        data = connection.recv(min(count, 1 << 16))
        if not data:
            raise ConnectionError("the peer has gone")
        count -= len(data)


def one_round(ends: list[socket.socket], send: int, receive_: int) -> dict[str, int]:
    # Both ends begin together, and no byte of one round is under way in the next.
    ends[0].sendall(b".")
    receive(ends[0], 1)
    senders = [threading.Thread(target=end.sendall, args=(bytes(send),)) for end in ends]
    receivers = [threading.Thread(target=receive, args=(end, receive_)) for end in ends]
    began = time.monotonic_ns()
    for thread in (*receivers, *senders):
        thread.start()
    for thread in receivers:
        thread.join()
    ended = time.monotonic_ns()
    for thread in senders:
        thread.join()
    return {"began_ns": began, "ended_ns": ended}


def main() -> None:
    role, address, send, receive_, count, rounds = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:7])
    ends = connections(role, address, count)
    print(json.dumps([one_round(ends, send, receive_) for _ in range(rounds)]))


main()
