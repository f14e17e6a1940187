"""Metrics by what must hold between them, for any mode, size, world size and time."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import make_case

from netbench.metrics import RATES, evaluate
from netbench.modes import MODES


@st.composite
def measured(draw: st.DrawFn) -> dict[str, object]:
    """A row of a summary with a time and its interval."""
    mode = MODES[draw(st.sampled_from(list(MODES)))]
    world_size = draw(st.integers(mode.min_world_size, 64))
    case = make_case(mode.name, world_size=world_size, tensor_bytes=4 * world_size * draw(st.integers(1, 10**8)))
    median_ns = draw(st.floats(1e3, 1e11))
    iterations = draw(st.integers(6, 1000))
    sent = iterations * draw(st.integers(1, 10**10))
    axes = {name: getattr(case, name) for name in ("mode", "world_size", "message_bytes", "transmit_bytes")}
    times = {"median_ns": median_ns, "low_ns": 0.9 * median_ns, "high_ns": 1.2 * median_ns, "p25_ns": 1, "p75_ns": 2}
    known = {"cpu_ns": 1e6, "ceiling_bit_s": 1e9, "wire_sent_bytes": sent, "iterations": iterations}
    return axes | times | known


@settings(deadline=None)  # the first call imports pandas
@given(measured(), st.sampled_from(list(RATES)))
def test_rate_times_time_is_bytes(row: dict[str, object], rate: str) -> None:
    [found] = evaluate(pd.DataFrame([row]), rate).to_dict("records")
    mode, world_size = MODES[str(row["mode"])], int(str(row["world_size"]))
    suffix, factor = RATES[rate].suffix, RATES[rate].factor
    seconds = found["time_us"] / 1e6
    assert found[f"algbw{suffix}"] / factor * seconds == pytest.approx(row["message_bytes"] * mode.messages)
    assert found[f"wirebw{suffix}"] / factor * seconds * row["iterations"] == pytest.approx(row["wire_sent_bytes"])
    assert found["latency_us"] * mode.messages == pytest.approx(found["time_us"])
    assert found["iteration_rate_per_s"] * seconds == pytest.approx(1)
    if not row["transmit_bytes"]:
        assert math.isnan(found[f"busbw{suffix}"])
        return
    busbw = found[f"busbw{suffix}"] / factor
    assert busbw * seconds == pytest.approx(row["message_bytes"] * mode.messages * float(mode.bus_factor(world_size)))
    assert found["ceiling_share"] * row["ceiling_bit_s"] == pytest.approx(busbw * 8)
    assert found["traffic_ratio"] * row["transmit_bytes"] * row["iterations"] == pytest.approx(row["wire_sent_bytes"])
    assert found["cpu_s_per_gb"] * row["transmit_bytes"] / 1e9 == pytest.approx(row["cpu_ns"] / 1e9)


@settings(deadline=None)
@given(measured())
def test_the_ends_of_an_interval_enclose_the_value(row: dict[str, object]) -> None:
    [found] = evaluate(pd.DataFrame([row])).to_dict("records")
    for name in ("time{}_us", "latency{}_us", "algbw{}_gbit_s", "iteration_rate{}_per_s", "ceiling_share{}"):
        low, value, high = (found[name.format(end)] for end in ("_low", "", "_high"))
        assert low < value < high or math.isnan(value)
    # The longest time is the lowest bandwidth.
    assert found["algbw_low_gbit_s"] * found["time_high_us"] == pytest.approx(found["algbw_gbit_s"] * found["time_us"])
