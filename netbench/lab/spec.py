"""What a lab is asked to be: ``4x200mbit``, ``2x400mbit,flow=40mbit``, ``3x1gbit,delay=5ms,loss=0.1%``.

Planning reads specifications, so nothing here touches the kernel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

from netbench.errors import did_you_mean
from netbench.framing import QUEUE_BYTES, Framing
from netbench.units import parse_seconds

MTU_BYTES = 1500

#: TCP payload over what the link's queue counts, in full packets: 1448/1514.
PAYLOAD_SHARE = Framing(MTU_BYTES, QUEUE_BYTES).payload_share

_MOST_HOSTS = 64
_LEAST_RATE_BIT_S = 100_000
#: The kernel's token buckets take a rate as 32 bits of bytes per second.
_MOST_RATE_BIT_S = 32_000_000_000
_MOST_DELAY_US = 1_000_000

_BIT_S = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?bit)(?:/s)?", re.IGNORECASE)
_SHAPE = re.compile(r"(\d+)\s*x\s*(.+)", re.IGNORECASE)
_KEYS = ("flow", "delay", "loss")

#: How long a link that has been idle may send faster than its rate. A late timer on a busy machine costs nothing
#: up to this; more of it would let several hundred kilobytes through at once and flatter short messages.
_BURST = Fraction(1, 1000)
_LEAST_BURST_BYTES = 16 * 1024


@dataclass(frozen=True)
class LabSpec:
    """``hosts`` hosts, each on a link of ``rate_bit_s`` in either direction.

    ``flow_bit_s`` caps each TCP connection, as some clouds do; ``delay_us`` is one way from host to host, so the
    round trip takes twice as long; ``loss_ppm`` packets of a million are lost on their way to a host.
    """

    hosts: int
    rate_bit_s: int
    flow_bit_s: int | None = None
    delay_us: int = 0
    loss_ppm: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads what ``str`` writes. Raises ValueError naming the key, the value and what would be right."""
        shape, *options = (piece.strip() for piece in text.split(","))
        match = _SHAPE.fullmatch(shape)
        if match is None:
            raise ValueError(f"lab {text!r}: {shape!r} is not HOSTSxRATE; write 4x200mbit")
        hosts = int(match[1])
        if not 1 <= hosts <= _MOST_HOSTS:
            raise ValueError(f"lab {text!r}: {hosts} is not a count of hosts; use 1 to {_MOST_HOSTS}")
        values: dict[str, str] = {}
        for option in options:
            key, separator, value = (piece.strip() for piece in option.partition("="))
            if key.lower() not in _KEYS:
                known = f"{did_you_mean(key, _KEYS)} (known: {', '.join(_KEYS)})"
                raise ValueError(f"lab {text!r}: {key!r} is not a key{known}")
            if not separator or not value:
                raise ValueError(f"lab {text!r}: {key} has no value; write {key}=VALUE")
            if key.lower() in values:
                raise ValueError(f"lab {text!r}: {key} is given twice")
            values[key.lower()] = value
        try:
            rate_bit_s = _parse_rate(match[2], "the rate")
            return cls(
                hosts,
                rate_bit_s,
                _parse_flow(values["flow"], rate_bit_s) if "flow" in values else None,
                _parse_delay(values["delay"]) if "delay" in values else 0,
                _parse_loss(values["loss"]) if "loss" in values else 0,
            )
        except ValueError as error:
            raise ValueError(f"lab {text!r}: {error}") from None

    def __str__(self) -> str:
        parts = [f"{self.hosts}x{_format_rate(self.rate_bit_s)}"]
        if self.flow_bit_s is not None:
            parts.append(f"flow={_format_rate(self.flow_bit_s)}")
        if self.delay_us:
            whole = self.delay_us % 1000 == 0
            parts.append(f"delay={self.delay_us // 1000}ms" if whole else f"delay={self.delay_us}us")
        if self.loss_ppm:
            percent = f"{self.loss_ppm // 10_000}.{self.loss_ppm % 10_000:04}".rstrip("0").rstrip(".")
            parts.append(f"loss={percent}%")
        return ",".join(parts)

    def payload_ceiling(self, connections: int | None = None) -> float:
        """The most payload that one host can send, or receive, in bit/s: the link's rate less all headers.

        With a flow cap, ``connections`` of them carry no more than their caps together; None means enough of
        them to fill the link.
        """
        rate = self.rate_bit_s
        if self.flow_bit_s is not None and connections is not None:
            rate = min(rate, connections * self.flow_bit_s)
        return float(rate * PAYLOAD_SHARE)

    @property
    def burst_bytes(self) -> int:
        """What an idle link lets through at once: up to this much of a message is faster than the ceiling."""
        return burst_bytes(self.rate_bit_s)


def burst_bytes(rate_bit_s: int) -> int:
    """The bucket of a link, or of a flow, of this rate."""
    return max(_LEAST_BURST_BYTES, int(rate_bit_s * _BURST / 8))


def _parse_rate(text: str, what: str) -> int:
    match = _RATE.fullmatch(text)
    if match is None:
        # Also MB/s, which counts bytes, and Mbps, which does to some and not to others.
        raise ValueError(f"{what} {text!r} is not a rate in bits; write 200mbit or 1gbit")
    rate = Fraction(match[1]) * _BIT_S[match[2].lower()]
    if rate.denominator != 1 or not _LEAST_RATE_BIT_S <= rate <= _MOST_RATE_BIT_S:
        raise ValueError(f"{what} {text!r} is out of range; use 100kbit to 32gbit, in whole bits")
    return int(rate)


def _parse_flow(text: str, rate_bit_s: int) -> int:
    flow = _parse_rate(text, "flow")
    if flow >= rate_bit_s:
        raise ValueError(
            f"flow {text!r} caps nothing on a link of {_format_rate(rate_bit_s)}; use less, or leave it out"
        )
    return flow


def _parse_delay(text: str) -> int:
    try:
        delay = Fraction(str(parse_seconds(text))) * 10**6
    except ValueError:
        raise ValueError(f"delay {text!r} is not a time; write 5ms or 500us") from None
    if delay.denominator != 1 or not 1 <= delay <= _MOST_DELAY_US:
        raise ValueError(f"delay {text!r} is out of range; use whole microseconds, 1us to 1s")
    return int(delay)


def _parse_loss(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text)
    if match is None:
        raise ValueError(f"loss {text!r} is not a share of packets; write 0.1%")
    loss = Fraction(match[1]) * 10_000
    if loss.denominator != 1 or not 1 <= loss <= 500_000:
        raise ValueError(f"loss {text!r} is out of range; use 0.0001% to 50%, at most four decimals")
    return int(loss)


def _format_rate(rate_bit_s: int) -> str:
    for unit, factor in reversed(_BIT_S.items()):
        if rate_bit_s % factor == 0:
            return f"{rate_bit_s // factor}{unit}"
    raise AssertionError("every rate is a whole number of bits")
