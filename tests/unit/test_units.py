"""Sizes, times and rates: read from text, and written back."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netbench.units import (
    about_bytes,
    about_rate,
    about_seconds,
    format_bytes,
    parse_bytes,
    parse_rate,
    parse_seconds,
    parse_sizes,
)

WHOLE_BYTES = st.integers(1, 2**50)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("65536", 65536),
        ("8B", 8),
        ("64KiB", 65536),
        ("64KB", 64000),
        ("64K", 65536),  # a bare letter is binary, as in nccl-tests
        ("64kib", 65536),
        ("1.5MiB", 1572864),
        (" 2 GB ", 2 * 10**9),
        ("1TiB", 2**40),
    ],
)
def test_a_size_is_read_with_its_unit(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("1Mbit", "sizes are bytes"),
        ("64kibit", "sizes are bytes"),
        ("12 parsecs", "KiB, MiB, GiB"),
        ("big", "64KiB"),
        ("", "64KiB"),
        ("-4", "64KiB"),
        ("1e6", "KiB"),
        ("1.5", "whole number of bytes"),
        ("0", "from 1 byte"),
        ("2PiB", "KiB"),
        ("9999TB", "1 PiB"),
    ],
)
def test_what_is_no_size_is_refused_with_the_text_and_advice(text: str, advice: str) -> None:
    with pytest.raises(ValueError, match=r"is (not|out of)|has no|counts bits") as refused:
        parse_bytes(text)
    assert repr(text) in str(refused.value)
    assert advice in str(refused.value)


@given(WHOLE_BYTES)
def test_a_written_size_reads_back_as_itself(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == size


@given(st.integers(1, 999), st.sampled_from(["KiB", "MiB", "GiB", "KB", "MB", "GB"]))
def test_a_round_size_is_written_as_short_as_it_was_read(number: int, unit: str) -> None:
    text = f"{number}{unit}"
    assert len(format_bytes(parse_bytes(text))) <= len(text)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("10KB", [10_000]),
        ("1KiB:64KiB:x4", [1024, 4096, 16384, 65536]),
        ("1KiB:60KiB:x4", [1024, 4096, 16384]),
        ("1:8:*2", [1, 2, 4, 8]),
        ("4:10:x1.5", [4, 6, 9]),
        ("1:3:x1.5", [1, 2]),  # 1, 1.5 and 2.25, rounded down, without the repetition
        ("7:7:x2", [7]),
    ],
)
def test_a_range_of_sizes_is_geometric(text: str, sizes: list[int]) -> None:
    assert parse_sizes(text) == sizes


@given(WHOLE_BYTES, WHOLE_BYTES, st.integers(11, 100))
def test_a_range_begins_at_its_lower_end_and_grows_within_its_bounds(one: int, other: int, tenths: int) -> None:
    low, high = sorted((one, other))
    sizes = parse_sizes(f"{low}:{high}:x{tenths / 10}")
    assert sizes[0] == low
    assert sizes[-1] <= high < (sizes[-1] + 1) * tenths / 10
    assert all(before < after for before, after in pairwise(sizes))


@pytest.mark.parametrize(
    "text", ["1KiB:64KiB", "1:2:3:4", "1:64:4", "1:64:x1", "1:64:x0.5", "64KiB:1KiB:x4", "1:64:xx"]
)
def test_what_is_no_range_is_refused_with_the_text(text: str) -> None:
    with pytest.raises(ValueError, match=r"min:max:xfactor|smaller size first") as refused:
        parse_sizes(text)
    assert repr(text) in str(refused.value)


def test_a_factor_next_to_one_is_refused_rather_than_counted_for_ever() -> None:
    with pytest.raises(ValueError, match="factor"):
        parse_sizes("1KiB:1GiB:x1.00001")


@pytest.mark.parametrize(
    ("text", "seconds"), [("0.1", 0.1), ("100ms", 0.1), ("30s", 30.0), ("2min", 120.0), ("5us", 5e-6), ("0", 0.0)]
)
def test_a_time_is_read_with_its_unit(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1", "nan", "5 weeks", "1e3"])
def test_what_is_no_time_is_refused_with_the_text(text: str) -> None:
    with pytest.raises(ValueError, match="write seconds as") as refused:
        parse_seconds(text)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1234567890, "1.15 GiB"),
        (1020 * 1024, "1020 KiB"),
        (-3 * 2**20, "-3 MiB"),
    ],
)
def test_bytes_for_people_have_three_digits_and_a_unit(count: int, text: str) -> None:
    assert about_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.00123, "1.23 ms"),
        (0.9996, "1000 ms"),
        (1.0, "1 s"),
        (42.0, "42 s"),
        (125.0, "2 min 05 s"),
        (3.5e-7, "350 ns"),
        (0.0, "0 ns"),
    ],
)
def test_seconds_for_people_have_the_unit_that_suits(seconds: float, text: str) -> None:
    assert about_seconds(seconds) == text


@pytest.mark.parametrize(
    ("text", "bit_s"),
    [("10gbit", 10e9), ("8Gbit/s", 8e9), ("1.2 GB/s", 9.6e9), ("200mbit", 2e8), ("64kbit/s", 64e3), ("100bit", 100)],
)
def test_rates_are_decimal(text: str, bit_s: float) -> None:
    assert parse_rate(text) == bit_s


@pytest.mark.parametrize("text", ["10Gbps", "10Mb/s", "1.2GB", "10", "fast", "-1gbit", "0gbit", "10GiB/s"])
def test_what_is_bits_to_some_and_bytes_to_others_is_no_rate(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        parse_rate(text)


def test_rates_for_people() -> None:
    assert [about_rate(rate) for rate in (191.28e6, 1.5e12, 8e9, 9600, 12)] == [
        "191 Mbit/s",
        "1.5 Tbit/s",
        "8 Gbit/s",
        "9.6 kbit/s",
        "12 bit/s",
    ]
