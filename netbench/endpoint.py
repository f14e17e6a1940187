"""``host0:29400``: where hosts meet, as users write it and as torchrun reads it."""

from __future__ import annotations

import re
from contextlib import suppress
from ipaddress import IPv6Address

#: torchrun's own.
DEFAULT_PORT = 29400


def format_endpoint(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_endpoint(text: str) -> tuple[str, int]:
    """``host0:29400``, ``10.0.0.1``, ``[fd00::1]:29400``, ``fd00::1`` as host and port.

    Raises ValueError, saying what would be right.
    """
    with suppress(ValueError):
        return str(IPv6Address(text.strip())), DEFAULT_PORT
    found = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\s]+))(?::([0-9]{1,5}))?", text.strip())
    port = int((found and found[3]) or DEFAULT_PORT)
    if not found or not 0 < port < 65536:
        raise ValueError(f"{text!r} is not HOST:PORT; write it as host0:29400 or [fd00::1]:29400")
    return found[1] or found[2], port
