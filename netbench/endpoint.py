"""``host0:29400``: where hosts meet, as users write it and as torchrun reads it."""

from __future__ import annotations


def format_endpoint(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_endpoint(text: str) -> tuple[str, int]:
    """Host and port of ``host0:29400`` or ``[fd00::1]:29400``. Raises ValueError, saying what would be right."""
    host, _, port = text.strip().rpartition(":")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"{text!r} is not an endpoint; write an IPv6 address in brackets, as [fd00::1]:29400")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ValueError(f"{text!r} is not an endpoint; write HOST:PORT, as host0:29400")
    return host, int(port)
