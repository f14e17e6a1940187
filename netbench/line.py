"""Talk between two hosts of a sweep: a JSON object a line, over a connection that notices when the other is gone."""

from __future__ import annotations

import json
import select
import socket
import time
from typing import Any

#: A host that the kernel has heard nothing of for about this long is gone, seconds.
_GONE_S = 8

#: What is longer comes from a stranger. The job of a launch, with all of its cases, is the longest message.
_LONGEST_BYTES = 64 << 20

#: One message is through within this time, seconds.
_SEND_LIMIT_S = 20.0


class Gone(Exception):  # noqa: N818 - a state of the other side, which the caller words for its user
    """The connection has ended; the text says how."""


class NoAnswer(Gone):
    """What was waited for has not come; the connection is as it was."""


class Line:
    """One side of a connection; closed by the end of a ``with`` block."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._rest = b""
        self._waiting: list[dict[str, Any]] = []
        self.peer: str = connection.getpeername()[0]
        connection.settimeout(_SEND_LIMIT_S)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 3)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _GONE_S - 3)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _GONE_S * 1000)

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def fileno(self) -> int:
        return self._connection.fileno()

    def tell(self, **message: Any) -> None:
        """Raises Gone."""
        try:
            self._connection.sendall(json.dumps(message, allow_nan=False).encode() + b"\n")
        except OSError as error:
            raise Gone(_worded(error)) from None

    def hear(self, limit_s: float = 0.0) -> list[dict[str, Any]]:
        """What has come; waits up to ``limit_s`` for something to come. Raises Gone, after all that came before."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            return waiting
        if not select.select([self._connection], [], [], limit_s)[0]:
            return []
        try:
            came = self._connection.recv(1 << 20)
        except OSError as error:
            raise Gone(_worded(error)) from None
        if not came:
            raise Gone("its connection was closed")
        self._rest += came
        *lines, self._rest = self._rest.split(b"\n")
        if len(self._rest) > _LONGEST_BYTES:
            raise Gone("it does not speak as netbench does")
        return [self._message(line) for line in lines]

    def await_message(self, limit_s: float, what: str) -> dict[str, Any]:
        """The next message alone. Raises NoAnswer when it has not come within ``limit_s``."""
        deadline = time.monotonic() + limit_s
        while (left := deadline - time.monotonic()) > 0:
            if messages := self.hear(left):
                first, *self._waiting = messages
                return first
        raise NoAnswer(f"{what} did not come within {limit_s:.0f} s")

    def _message(self, line: bytes) -> dict[str, Any]:
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise Gone("it does not speak as netbench does")
        return message


def _worded(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return f"nothing was heard of it for {_GONE_S} s"
    return f"its connection broke: {error.strerror}"
