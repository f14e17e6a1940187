"""Shares of payload by formula, and the ceilings that follow from them."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from netbench.ceiling import ceiling
from netbench.framing import QUEUE_BYTES, Framing
from netbench.lab.spec import LabSpec
from netbench.record import LabFacts, Manifest


def manifest(*interfaces: dict[str, object], lab: str | None = None, timestamps: str = "1") -> Manifest:
    return Manifest.model_validate(
        {
            "run_id": "run",
            "name": "run",
            "netbench": "0",
            "command": [],
            "started_at": "2025-01-01T00:00:00Z",
            "config": {},
            "cases": [],
            "environment": [
                {"host": str(number), "interface": interface, "sysctls": {"ipv4.tcp_timestamps": timestamps}}
                for number, interface in enumerate(interfaces)
            ],
            "lab": LabFacts.of(LabSpec.parse(lab)) if lab else None,
        }
    )


ETHERNET = {"name": "eth0", "mtu_bytes": 1500, "speed_mbit_per_s": 10000, "driver": "ixgbe", "addresses": ["10.0.0.1"]}


def test_shares_of_known_links() -> None:
    assert Framing().payload_share == Fraction(1448, 1538)
    assert Framing(9000).payload_share == Fraction(8948, 9038)
    assert Framing(1500, QUEUE_BYTES).payload_share == Fraction(1448, 1514)
    assert Framing(1500, ip_version=6).payload_share == Fraction(1428, 1538)
    assert Framing(1500, timestamps=False).payload_share == Fraction(1460, 1538)


@given(st.integers(576, 65536), st.sampled_from([4, 6]), st.booleans(), st.integers(0, 100))
def test_every_byte_is_payload_header_or_frame(mtu: int, version: int, timestamps: bool, link: int) -> None:
    framing = Framing(mtu, link, version, timestamps)
    assert framing.payload_bytes + framing.header_bytes + link == mtu + link
    assert 0 < framing.payload_share < 1


@given(st.floats(1e5, 4e11), st.integers(576, 9000))
def test_rate_times_time_is_bytes(line_bit_s: float, mtu: int) -> None:
    found = ceiling(manifest(ETHERNET | {"mtu_bytes": mtu}), line_bit_s)
    assert found is not None
    packets = line_bit_s / 8 / (mtu + 38)  # in a second
    assert abs(found.payload_bit_s / 8 - packets * (mtu - 52)) < 1e-6 * found.payload_bit_s


def test_the_rate_is_the_user_s_or_the_lab_s_or_the_interface_s() -> None:
    assert ceiling(manifest(ETHERNET)).line_bit_s == 10e9
    assert ceiling(manifest(ETHERNET), 25e9).line_bit_s == 25e9
    assert ceiling(manifest(ETHERNET, ETHERNET | {"speed_mbit_per_s": 1000})).line_bit_s == 1e9
    lab = ceiling(manifest(ETHERNET, lab="2x200mbit"))
    assert lab.payload_bit_s == LabSpec.parse("2x200mbit").payload_ceiling()
    assert "200 Mbit/s" in str(lab)


def test_a_speed_that_means_nothing_gives_no_ceiling() -> None:
    assert ceiling(manifest()) is None
    assert ceiling(manifest(ETHERNET | {"driver": None})) is None
    assert ceiling(manifest(ETHERNET | {"speed_mbit_per_s": 65535})) is None
    assert ceiling(manifest(ETHERNET, ETHERNET | {"speed_mbit_per_s": None})) is None


def test_what_the_hosts_say_of_headers_counts() -> None:
    assert ceiling(manifest(ETHERNET, timestamps="0")).framing.payload_bytes == 1460
    assert ceiling(manifest(ETHERNET | {"addresses": ["fe80::1"]})).framing.payload_bytes == 1428
