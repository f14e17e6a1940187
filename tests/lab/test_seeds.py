"""Whole sweeps in a lab: what Gloo gets is what the link gives, and two ranks gather slower than three.

One launch serves all of it. Other work on the machine only slows an iteration down, so the fastest one has to reach the
ceiling and every one has to stay below it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from netbench.config import SweepConfig
from netbench.display import Display
from netbench.lab import LabSpec, capability
from netbench.model import Case
from netbench.modes import MODES
from netbench.plan import Plan, make_plan
from netbench.summary import Run, load_run
from netbench.sweep import Sweep, new_run

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]

SPEC = LabSpec.parse("4x200mbit")
TRANSMIT_BYTES = 4_000_000


def config(**axes: object) -> SweepConfig:
    shared = {
        "backends": ["gloo"],
        "streams": [1],
        "sizes": [TRANSMIT_BYTES],
        "sizes_of": "transmit",
        "iterations": 4,
        "warmup": 1,
        "rounds": 1,
        "lab": str(SPEC),
    }
    return SweepConfig.model_validate(shared | axes)


#: What must run at the link's rate, and what shows the anomaly: with a rank late, chance does not decide.
AT_RATE = make_plan(config(modes=["send_recv", "exchange", "allreduce"], world_sizes=[2, 3, 4]))
ANOMALY = make_plan(config(modes=["all_gather", "exchange"], world_sizes=[2, 3], entry_delays=["5ms"]))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        if reason := capability(SPEC).refusal:
            pytest.skip(reason)
        plan: Plan = AT_RATE.and_also(ANOMALY)
        folder, manifest = new_run(config(out=str(tmp_path_factory.mktemp("results"))), plan, ["netbench"])
        Sweep(folder, manifest, Display()).run()
        yield load_run(folder.path)


@pytest.mark.parametrize("case", AT_RATE.cases, ids=lambda case: case.id)
def test_gloo_reaches_the_ceiling_within_three_percent_and_never_exceeds_it(run: Run, case: Case) -> None:
    times_s = run.times(case.id) / 1e9
    messages = MODES[case.mode].messages
    sent = messages * case.transmit_bytes
    ceiling = SPEC.payload_ceiling() / 8
    assert sent / times_s.min() >= 0.97 * ceiling
    # Each message may begin with a full bucket.
    assert sent - messages * SPEC.burst_bytes <= ceiling * times_s.min()


def test_two_ranks_gather_slower_than_three_and_receives_first_do_not(run: Run) -> None:
    def median_s(mode: str, world_size: int) -> float:
        [case] = [case for case in ANOMALY.cases if (case.mode, case.world_size) == (mode, world_size)]
        return float(np.median(run.times(case.id) - case.entry_delay_us * 1000)) / 1e9

    three = median_s("all_gather", 3)
    assert median_s("all_gather", 2) / three > 1.3
    assert median_s("exchange", 2) / three < 1.15


def test_the_record_says_that_it_was_a_lab(run: Run) -> None:
    assert run.manifest.lab is not None
    assert run.manifest.lab.payload_ceiling_bit_s == pytest.approx(200e6 * 1448 / 1514)
    assert run.network == "lab 4x200mbit"
    assert run.hosts == ["host0", "host1", "host2", "host3"]
