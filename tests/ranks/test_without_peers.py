"""Every wait ends: a rank that never comes is an error within the limit, not a hang.

The file's name makes it the last of its folder: groups that lost a peer go on trying in the background, which would
disturb tests that count this process's connections.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from threads import World, broken

from netbench.backends import BACKENDS, Wiring, gloo_group, tensor_maker
from netbench.control import Control
from netbench.measure import make_operation
from netbench.model import split
from netbench.modes import MODES

LIMIT_S = 0.5
GROUP_LIMIT_S = 3.0

#: On a busy machine; far below a second limit in a row, which would be waiting for each lane by itself.
SLACK_S = 0.9

#: More than the sockets of a stream buffer, so that a sender alone cannot end.
ELEMENTS = 12 * 2**20


def seconds_until_error(wait: Callable[[], object]) -> float:
    begun = time.monotonic()
    with pytest.raises(RuntimeError):
        wait()
    return time.monotonic() - begun


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "nccl"])
def test_a_peer_that_never_connects_is_an_error_within_the_limit(backend: str) -> None:
    world = World(2)
    wiring = world.wiring(0, "alone")
    short = Wiring(wiring.store, 0, 2, wiring.address, LIMIT_S)
    broken.append(world)
    assert seconds_until_error(lambda: BACKENDS[backend].open(short, 2)) < LIMIT_S + 5


@pytest.mark.parametrize("mode", [name for name in MODES if MODES[name].transmit_ratio(2)])
def test_a_peer_that_does_not_join_an_operation_is_an_error_within_one_limit_for_all_lanes(mode: str) -> None:
    world = World(2, timeout_s=GROUP_LIMIT_S)
    lanes = world.run(lambda rank: BACKENDS["split_gloo"].open(world.wiring(rank, "lanes"), 3))
    buffers = MODES[mode].buffers(tensor_maker("cpu", "float32"), ELEMENTS, 2)
    broken.append((lanes, buffers))
    parts = [[part] for part in split(ELEMENTS, 3, MODES[mode].block(2))]
    operation = make_operation(MODES[mode], lanes[0], buffers, parts, LIMIT_S)
    # torch's reduce_scatter heeds the limit of its group alone; in a sweep both are the same.
    limit_s = GROUP_LIMIT_S if mode == "reduce_scatter" else LIMIT_S
    assert limit_s * 0.9 < seconds_until_error(operation) < limit_s + SLACK_S


def test_a_barrier_that_one_rank_does_not_reach_ends_within_the_limit() -> None:
    world = World(3, timeout_s=GROUP_LIMIT_S)
    groups: list[Any] = world.run(lambda rank: gloo_group(world.wiring(rank, "barrier"), "barrier"))
    broken.append(groups)
    controls = [Control(group, LIMIT_S) for group in groups]
    times = world.run(lambda rank: seconds_until_error(controls[rank].barrier) if rank < 2 else LIMIT_S)
    assert max(times) < LIMIT_S + SLACK_S


def test_a_peer_that_does_not_come_is_an_error_within_the_limit() -> None:
    world = World(2, timeout_s=GROUP_LIMIT_S)
    groups: list[Any] = world.run(lambda rank: gloo_group(world.wiring(rank, "peer"), "peer"))
    broken.append(groups)
    assert seconds_until_error(lambda: Control(groups[0], LIMIT_S).meet_peer(1)) < LIMIT_S + SLACK_S


def test_a_meeting_has_a_limit_of_its_own() -> None:
    world = World(2, timeout_s=GROUP_LIMIT_S)
    groups: list[Any] = world.run(lambda rank: gloo_group(world.wiring(rank, "meeting"), "meeting"))
    broken.append(groups)
    assert seconds_until_error(lambda: Control(groups[0], 60.0).meet(LIMIT_S)) < LIMIT_S + SLACK_S
