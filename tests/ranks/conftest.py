"""Worlds and lanes are opened once and used by all tests of their kind: opening costs more than moving data."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import pytest
from threads import World

from netbench import wire
from netbench.backends import BACKENDS, Lanes


class Opened(NamedTuple):
    """A world whose ranks have opened the lanes of one backend, and the sockets that this took."""

    world: World
    lanes: list[Lanes]
    connections: frozenset[int]


@pytest.fixture(scope="module")
def world() -> Iterator[object]:
    """``world(n)`` is the world of n ranks."""
    yield cache(World)
    gc.collect()


@pytest.fixture(scope="module")
def opened(world: object) -> object:
    """``opened(backend, streams, n)``: the same lanes whenever it is asked again."""

    @cache
    def open_lanes(backend: str, streams: int, world_size: int) -> Opened:
        ranks: World = world(world_size)  # type: ignore[operator]
        before = wire.connections()
        lanes = ranks.run(lambda rank: BACKENDS[backend].open(ranks.wiring(rank, f"{backend}{streams}"), streams))
        return Opened(ranks, lanes, wire.connections() - before)

    return open_lanes
