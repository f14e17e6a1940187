"""The formulas of every mode, against numbers written out by hand."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import pytest

from netbench.modes import MODES, Lane

#: mode -> N -> (S over the tensor, T over the tensor, bus factor). From the definitions, not from the code.
FORMULAS = {
    "send_recv": {2: ("1", "1", "1"), 3: ("1", "1", "1"), 4: ("1", "1", "1"), 8: ("1", "1", "1")},
    "send": {2: ("1", "1", "1"), 3: ("1", "1", "1"), 4: ("1", "1", "1"), 8: ("1", "1", "1")},
    "exchange": {2: ("1", "1", "1"), 3: ("1", "1", "1"), 4: ("1", "1", "1"), 8: ("1", "1", "1")},
    "exchange_sends_first": {2: ("1", "1", "1"), 3: ("1", "1", "1"), 4: ("1", "1", "1"), 8: ("1", "1", "1")},
    "all_gather": {2: ("2", "1", "1/2"), 3: ("3", "2", "2/3"), 4: ("4", "3", "3/4"), 8: ("8", "7", "7/8")},
    "allreduce": {2: ("1", "1", "1"), 3: ("1", "4/3", "4/3"), 4: ("1", "3/2", "3/2"), 8: ("1", "7/4", "7/4")},
    "reduce_scatter": {2: ("1", "1/2", "1/2"), 3: ("1", "2/3", "2/3"), 4: ("1", "3/4", "3/4"), 8: ("1", "7/8", "7/8")},
    "broadcast": {2: ("1", "1", "1"), 3: ("1", "1", "1"), 4: ("1", "1", "1"), 8: ("1", "1", "1")},
    "all_to_all": {2: ("1", "1/2", "1/2"), 3: ("1", "2/3", "2/3"), 4: ("1", "3/4", "3/4"), 8: ("1", "7/8", "7/8")},
    "gather_copies": {2: ("2", "0", "0"), 3: ("3", "0", "0"), 4: ("4", "0", "0"), 8: ("8", "0", "0")},
}


def test_every_mode_has_its_numbers_here() -> None:
    assert set(FORMULAS) == set(MODES)


@pytest.mark.parametrize(("name", "world_size"), [(name, n) for name, table in FORMULAS.items() for n in table])
def test_sizes_and_bus_factor_are_those_of_the_definition(name: str, world_size: int) -> None:
    mode = MODES[name]
    message, transmit, bus = (Fraction(text) for text in FORMULAS[name][world_size])
    assert mode.ratio("tensor", world_size) == 1
    assert mode.ratio("message", world_size) == message
    assert mode.ratio("transmit", world_size) == transmit
    assert mode.bus_factor(world_size) == bus


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
def test_bus_bandwidth_is_what_each_rank_sends_over_time_where_all_ranks_send(name: str, world_size: int) -> None:
    mode = MODES[name]
    assert mode.bus_factor(world_size) * mode.message_ratio(world_size) == mode.transmit_ratio(world_size)


@pytest.mark.parametrize("name", [name for name, mode in MODES.items() if mode.pairwise])
def test_a_mode_of_two_ranks_has_the_same_formulas_in_any_world(name: str) -> None:
    assert len(set(FORMULAS[name].values())) == 1
    assert len({MODES[name].memory_ratio(world_size) for world_size in (2, 3, 9)}) == 1


@pytest.mark.parametrize("name", MODES)
def test_only_the_ping_pong_moves_its_message_twice(name: str) -> None:
    assert MODES[name].messages == (2 if name == "send_recv" else 1)


@pytest.mark.parametrize(
    ("name", "world_size", "ranks"),
    [("send_recv", 2, 2), ("send_recv", 5, 2), ("exchange", 4, 4), ("exchange", 5, 4), ("allreduce", 5, 5)],
)
def test_ranks_without_a_part_are_left_out(name: str, world_size: int, ranks: int) -> None:
    assert list(MODES[name].participants(world_size)) == list(range(ranks))


@pytest.mark.parametrize("name", MODES)
def test_the_other_spelling_of_the_field_is_understood(name: str) -> None:
    spelled = {"allreduce": "all_reduce", "all_gather": "allgather"}.get(name, name)
    assert MODES[spelled] is MODES[name]


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_the_memory_that_a_mode_asks_for_holds_its_buffers(name: str, world_size: int) -> None:
    made: list[int] = []
    MODES[name].buffers(lambda elements: made.append(elements) or elements, 24, world_size)  # type: ignore[arg-type,func-returns-value]
    assert sum(made) <= 24 * MODES[name].memory_ratio(world_size)


def test_a_lane_knows_its_place_from_its_group() -> None:
    lane = Lane(SimpleNamespace(rank=lambda: 3, size=lambda: 5), tag=7)
    assert (lane.rank, lane.world_size, lane.tag) == (3, 5, 7)
