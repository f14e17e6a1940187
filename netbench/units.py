"""Bytes, seconds and rates: reading them from text, and writing them back.

KiB, MiB, GiB are powers of 1024; KB, MB, GB are powers of 1000; a bare K, M or G in a size is binary, as in
nccl-tests. Bits never name a size: ``1Mbit`` is refused. Every rate is decimal (1 Gbit/s = 10**9 bit/s).
"""

from __future__ import annotations

import re
from fractions import Fraction

_BYTES = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _BYTES |= {_letter: 1024**_power, f"{_letter}ib": 1024**_power, f"{_letter}b": 1000**_power}

_SECONDS = {
    "": Fraction(1),
    "s": Fraction(1),
    "ms": Fraction(1, 10**3),
    "us": Fraction(1, 10**6),
    "min": Fraction(60),
}

_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")

#: No message is anywhere near this; it keeps a typing error from becoming an endless plan.
_MAX_BYTES = 2**50

#: Thirty years, and a million times the fastest link that there is.
_MAX_SECONDS, _MAX_BIT_S = 10**9, 10**18

#: A smaller factor would make thousands of sizes, and its exact powers would take minutes to compute.
_MIN_FACTOR = Fraction(11, 10)


def parse_bytes(text: str) -> int:
    """``"64KiB"`` -> 65536. Raises ValueError, saying what would be right."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size; write bytes as 65536, 64KiB or 64KB")
    number, unit = match.groups()
    if "bit" in unit.lower():
        raise ValueError(f"{text!r} counts bits; sizes are bytes: write 65536, 64KiB or 64KB")
    if unit.lower() not in _BYTES:
        raise ValueError(f"{text!r} has no unit of bytes; use B, KiB, MiB, GiB (1024) or KB, MB, GB (1000)")
    size = Fraction(number) * _BYTES[unit.lower()]
    if size.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number of bytes")
    if not 1 <= size <= _MAX_BYTES:
        raise ValueError(f"{text!r} is out of range; sizes go from 1 byte to 1 PiB")
    return int(size)


def parse_sizes(text: str) -> list[int]:
    """One size (``10KB``) or a geometric range with both ends (``1KiB:64MiB:x4``), in bytes."""
    if ":" not in text:
        return [parse_bytes(text)]
    pieces = text.split(":")
    factor = re.fullmatch(r"\s*[x*](\d+(?:\.\d+)?)\s*", pieces[2]) if len(pieces) == 3 else None
    if factor is None or Fraction(factor[1]) < _MIN_FACTOR:
        raise ValueError(
            f"{text!r} is not a range of sizes; write min:max:xfactor with a factor from 1.1, as 1KiB:64MiB:x4"
        )
    low, high, step = parse_bytes(pieces[0]), parse_bytes(pieces[1]), Fraction(factor[1])
    if low > high:
        raise ValueError(f"{text!r} runs backwards; write the smaller size first")
    sizes: list[int] = []
    size = Fraction(low)
    while size <= high:
        if not sizes or int(size) != sizes[-1]:
            sizes.append(int(size))
        size *= step
    return sizes


def parse_seconds(text: str) -> float:
    """``"100ms"`` -> 0.1; a bare number is seconds. Raises ValueError, saying what would be right."""
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2].lower() not in _SECONDS:
        raise ValueError(f"{text!r} is not a time; write seconds as 0.1, 100ms or 30s")
    seconds = Fraction(match[1]) * _SECONDS[match[2].lower()]
    if seconds > _MAX_SECONDS:
        raise ValueError(f"{text[:40]!r} is out of range; write seconds as 0.1, 100ms or 30s")
    return float(seconds)


def format_bytes(count: float) -> str:
    """Exact and short: 65536 -> ``64KiB``, 16000000 -> ``16MB``, 1025 -> ``1025B``. Reads back with parse_bytes."""
    if count != int(count):
        return f"{count}B"
    whole = int(count)
    exact = [
        f"{whole // base**power}{letter}{suffix}"
        for base, suffix in ((1024, "iB"), (1000, "B"))
        for power, letter in enumerate("KMGT", start=1)
        if whole and whole % base**power == 0
    ]
    # 16 MB is also a whole number of KiB, but nobody would know 15625KiB again.
    return min([*exact, f"{whole}B"], key=len)


def about_bytes(count: float) -> str:
    """Rounded for people: 1234567890 -> ``1.15 GiB``."""
    for power, letter in ((4, "T"), (3, "G"), (2, "M"), (1, "K")):
        if abs(count) >= 1024**power:
            return f"{three_digits(count / 1024**power)} {letter}iB"
    return f"{count:.0f} B"


def about_seconds(seconds: float) -> str:
    """Rounded for people, in the unit that suits: 0.00123 -> ``1.23 ms``."""
    if seconds >= 120:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02d} s"
    for factor, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= factor:
            return f"{three_digits(seconds / factor)} {unit}"
    return f"{three_digits(seconds * 1e9)} ns"


def three_digits(value: float) -> str:
    """Without an exponent: 1234.5 -> ``1234``, 12.345 -> ``12.3``, 0.00123 -> ``0.00123``."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(bit|b)(/s)?\s*", re.IGNORECASE)


def parse_rate(text: str) -> float:
    """``"10gbit"``, ``"8Gbit/s"`` or ``"1.2GB/s"`` in bit/s. Raises ValueError, saying what would be right.

    ``Mb/s`` and ``Mbps`` are refused, since they are bits to some and bytes to others, and so is ``1.2GB``, no rate.
    """
    match = _RATE.fullmatch(text)
    if match is None or (match[3].lower() == "b" and (match[3] == "b" or not match[4])):
        raise ValueError(f"{text!r} is not a rate; write 10gbit, 8Gbit/s or 1.2GB/s")
    bits = 1 if match[3].lower() == "bit" else 8
    rate = Fraction(match[1]) * bits * 1000 ** " kmgt".index(match[2].lower() or " ")
    if not 0 < rate < _MAX_BIT_S:
        raise ValueError(f"{text[:40]!r} is no rate that anything could have")
    return float(rate)


def about_rate(bit_s: float) -> str:
    """Rounded for people, in bits: 191.28e6 -> ``191 Mbit/s``."""
    for factor, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if bit_s >= factor:
            return f"{three_digits(bit_s / factor)} {letter}bit/s"
    return f"{three_digits(bit_s)} bit/s"
