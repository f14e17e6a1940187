"""What a lab can be asked to be, and what follows from it by formula."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netbench.lab.spec import LabSpec

RATES = st.integers(100, 32_000_000).map(lambda kbit: kbit * 1000)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("4x200mbit", LabSpec(4, 200_000_000)),
        ("2x400mbit,flow=40mbit", LabSpec(2, 400_000_000, flow_bit_s=40_000_000)),
        ("3x1gbit,delay=5ms,loss=0.1%", LabSpec(3, 1_000_000_000, delay_us=5000, loss_ppm=1000)),
        (" 8 x 1.5Gbit/s , Delay = 250us ", LabSpec(8, 1_500_000_000, delay_us=250)),
        ("1X100Mbit", LabSpec(1, 100_000_000)),
    ],
)
def test_a_specification_is_read(text: str, spec: LabSpec) -> None:
    assert LabSpec.parse(text) == spec


@given(
    st.builds(
        LabSpec,
        hosts=st.integers(1, 64),
        rate_bit_s=RATES,
        delay_us=st.integers(0, 1_000_000),
        loss_ppm=st.integers(0, 500_000),
    ),
    st.none() | RATES,
)
def test_what_is_written_reads_back(spec: LabSpec, flow: int | None) -> None:
    if flow is not None and flow < spec.rate_bit_s:
        spec = LabSpec(spec.hosts, spec.rate_bit_s, flow, spec.delay_us, spec.loss_ppm)
    assert LabSpec.parse(str(spec)) == spec


def test_it_is_written_in_the_largest_whole_unit() -> None:
    assert str(LabSpec.parse("2x1500mbit,loss=1.50%,delay=1000us")) == "2x1500mbit,delay=1ms,loss=1.5%"
    assert str(LabSpec.parse("2x1000mbit")) == "2x1gbit"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("200mbit", "'200mbit' is not HOSTSxRATE; write 4x200mbit"),
        ("0x200mbit", "0 is not a count of hosts; use 1 to 64"),
        ("65x200mbit", "65 is not a count of hosts; use 1 to 64"),
        ("4x200", "the rate '200' is not a rate in bits; write 200mbit or 1gbit"),
        ("4x200megabit", "the rate '200megabit' is not a rate in bits; write 200mbit or 1gbit"),
        ("4x200MB", "the rate '200MB' is not a rate in bits; write 200mbit or 1gbit"),
        ("4x200Mbps", "the rate '200Mbps' is not a rate in bits; write 200mbit or 1gbit"),
        ("4x25MB/s", "the rate '25MB/s' is not a rate in bits; write 200mbit or 1gbit"),
        ("4x40gbit", "the rate '40gbit' is out of range; use 100kbit to 32gbit, in whole bits"),
        ("4x10kbit", "the rate '10kbit' is out of range; use 100kbit to 32gbit, in whole bits"),
        ("4x200mbit,flwo=40mbit", "'flwo' is not a key; did you mean 'flow'? (known: flow, delay, loss)"),
        ("4x200mbit,", "'' is not a key (known: flow, delay, loss)"),
        ("4x200mbit,flow", "flow has no value; write flow=VALUE"),
        ("4x200mbit,flow=1mbit,flow=2mbit", "flow is given twice"),
        ("4x200mbit,flow=200mbit", "flow '200mbit' caps nothing on a link of 200mbit; use less, or leave it out"),
        ("4x200mbit,delay=5", "delay '5' is out of range; use whole microseconds, 1us to 1s"),
        ("4x200mbit,delay=soon", "delay 'soon' is not a time; write 5ms or 500us"),
        ("4x200mbit,loss=0.1", "loss '0.1' is not a share of packets; write 0.1%"),
        ("4x200mbit,loss=60%", "loss '60%' is out of range; use 0.0001% to 50%, at most four decimals"),
    ],
)
def test_a_mistake_is_named_with_its_value_and_the_way_out(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=r"^lab ") as caught:
        LabSpec.parse(text)
    assert str(caught.value) == f"lab {text!r}: {complaint}"


def test_the_ceiling_is_the_rate_less_headers() -> None:
    # 1500 bytes less 20 of IP, 20 of TCP and 12 of timestamps, over 1500 and 14 of Ethernet.
    assert LabSpec.parse("4x200mbit").payload_ceiling() == pytest.approx(191.28e6, rel=1e-4)
    assert LabSpec.parse("4x1gbit").payload_ceiling() == pytest.approx(1e9 * 1448 / 1514)


def test_with_a_cap_per_flow_connections_add_up_to_the_link() -> None:
    spec = LabSpec.parse("2x400mbit,flow=40mbit")
    ceilings = [spec.payload_ceiling(connections) for connections in (1, 2, 4, 10, 20)]
    assert ceilings == pytest.approx([rate * 1e6 * 1448 / 1514 for rate in (40, 80, 160, 400, 400)])
    assert spec.payload_ceiling() == spec.payload_ceiling(20)


def test_without_a_cap_the_ceiling_does_not_depend_on_connections() -> None:
    spec = LabSpec.parse("2x400mbit")
    assert spec.payload_ceiling(1) == spec.payload_ceiling(20) == spec.payload_ceiling()


def test_the_burst_is_a_millisecond_and_never_less_than_a_few_packets() -> None:
    assert LabSpec.parse("2x1gbit").burst_bytes == 125_000
    assert LabSpec.parse("2x1mbit").burst_bytes == 16 * 1024


def test_a_plan_with_a_lab_loads_nothing_heavy() -> None:
    code = "import sys, netbench.lab; print(*{'pyroute2', 'torch', 'numpy', 'pandas'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert found.stdout.split() == []
