"""The product of the axes: every point a case or a skip, once."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netbench.backends import BACKENDS
from netbench.config import SweepConfig, resolve
from netbench.errors import UsageError
from netbench.model import DTYPES, MALLOCS, SIZE_KINDS, Skip, split
from netbench.modes import MODES, participants
from netbench.plan import Plan, make_plan


def some(values: list[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True)


def numbers(most: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(1, most), min_size=1, max_size=3, unique=True)


CONFIGS = st.builds(
    SweepConfig,
    modes=some(list(MODES)),
    backends=some(list(BACKENDS)),
    streams=numbers(32),
    world_sizes=numbers(9),
    dtypes=some(list(DTYPES)),
    chunks=numbers(4),
    entry_delays=st.sampled_from([[0], [0, "1ms"]]),
    mallocs=some(list(MALLOCS)),
    timelines=st.sampled_from([[0], [0, "2ms"]]),
    pairs=st.sampled_from([["none"], ["none", "0-1"], ["1-7", "7-1"]]),
    sizes=st.lists(st.integers(1, 64) | st.integers(1, 2**40), min_size=1, max_size=4, unique=True),
    sizes_of=st.sampled_from(SIZE_KINDS),
)

often = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@often
@given(CONFIGS)
def test_every_point_of_the_product_is_a_case_or_a_skip_once(config: SweepConfig) -> None:
    plan = make_plan(config)
    axes = [axis for axis in config.model_dump().values() if isinstance(axis, list)]
    assert len(axes) >= 6
    assert len(plan.cases) + len(plan.skips) == math.prod(len(axis) for axis in axes)
    ids = Counter([case.id for case in plan.cases] + [skip.id for skip in plan.skips])
    assert [name for name, times in ids.items() if times > 1] == []
    assert all(skip.reason for skip in plan.skips)


@often
@given(CONFIGS)
def test_the_exact_bytes_never_exceed_what_was_asked_for_and_are_the_most_that_fit(config: SweepConfig) -> None:
    for case in make_plan(config).cases:
        mode, itemsize = MODES[case.mode], DTYPES[case.dtype]
        ratio = mode.ratio(config.sizes_of, case.world_size)
        one_more = mode.block(case.world_size) * itemsize
        assert any(case.tensor_bytes * ratio <= size < (case.tensor_bytes + one_more) * ratio for size in config.sizes)
        assert case.elements * itemsize == case.tensor_bytes
        assert case.elements % mode.block(case.world_size) == 0


@often
@given(CONFIGS)
def test_the_three_byte_counts_of_a_case_follow_from_its_modes_formulas(config: SweepConfig) -> None:
    for case in make_plan(config).cases:
        mode = MODES[case.mode]
        assert case.message_bytes == case.tensor_bytes * mode.message_ratio(case.world_size)
        assert 0 <= case.tensor_bytes * mode.transmit_ratio(case.world_size) - case.transmit_bytes < 1


def paired(**axes: object) -> Plan:
    config = {"modes": ["send_recv"], "backends": ["gloo"], "streams": [1], "world_sizes": [4], "sizes": [4096]}
    return make_plan(SweepConfig.model_validate(config | axes))


def test_all_pairs_are_a_case_each_and_need_the_whole_launch() -> None:
    plan = paired(pairs=["all", "1-3", "none"])
    pairs = ["0-1", "0-2", "0-3", "1-2", "1-3", "2-3"]
    assert [case.id for case in plan.cases] == [
        *(f"send_recv-gloo-k1-n4-4KiB-pair{pair}" for pair in pairs),
        "send_recv-gloo-k1-n4-4KiB",
    ]
    assert (plan.world_size, plan.skips) == (4, ())
    assert [case.is_usual for case in plan.cases] == [False] * 6 + [True]


def test_the_order_of_a_pair_says_who_is_first_in_it() -> None:
    [case] = paired(modes=["send"], pairs=["3-1"]).cases
    assert list(case.members) == [3, 1]
    assert participants(case.mode, case.world_size, case.pair) == [3, 1]
    assert (case.message_bytes, case.transmit_bytes) == (4096, 4096)


def test_a_pair_takes_two_ranks_of_the_launch_and_a_mode_made_for_two() -> None:
    plan = paired(modes=["exchange", "allreduce"], world_sizes=[2, 4], pairs=["1-3"])
    assert [case.id for case in plan.cases] == ["exchange-gloo-k1-n4-4KiB-pair1-3"]
    assert [skip.reason for skip in plan.skips] == [
        "there is no rank 3 among 2",
        *["allreduce is not made of two ranks; a pair takes send_recv, send, exchange, exchange_sends_first"] * 2,
    ]


@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes_of_transmit_gives_every_world_size_the_same_bytes_to_send(dtype: str) -> None:
    config = SweepConfig(
        modes=["all_gather"], backends=["gloo"], streams=[1], world_sizes=[2, 3, 4, 5], dtypes=[dtype],
        sizes=["12MB"], sizes_of="transmit",
    )  # fmt: skip
    cases = make_plan(config).cases
    assert [case.transmit_bytes for case in cases] == [12_000_000] * 4
    assert [case.tensor_bytes for case in cases] == [12_000_000, 6_000_000, 4_000_000, 3_000_000]
    assert [case.message_bytes for case in cases] == [24_000_000, 18_000_000, 16_000_000, 15_000_000]


def plan_of(**axes: object) -> Plan:
    chosen = {"modes": "allreduce", "backends": "gloo", "streams": 1, "world_sizes": 2, "sizes": "4KiB"} | axes
    return make_plan(SweepConfig.model_validate(chosen))


@pytest.mark.parametrize("mode", MODES)
def test_one_rank_is_enough_for_collectives_and_a_reason_to_skip_the_others(mode: str) -> None:
    plan = plan_of(modes=mode, world_sizes=1)
    if MODES[mode].min_world_size == 1:
        assert [(case.world_size, case.transmit_bytes) for case in plan.cases] == [(1, 0)]
    else:
        assert [skip.reason for skip in plan.skips] == [f"{mode} needs 2 ranks, not 1"]


@pytest.mark.parametrize("mode", [name for name in MODES if MODES[name].min_world_size == 1])
def test_one_rank_transmits_nothing_so_no_size_fixes_its_transmit_bytes(mode: str) -> None:
    plan = plan_of(modes=mode, world_sizes=1, sizes_of="transmit")
    assert plan.cases == ()
    assert "transmits nothing" in plan.skips[0].reason


def test_plain_gloo_has_one_stream_and_says_so() -> None:
    plan = plan_of(streams=[1, 4])
    assert [case.streams for case in plan.cases] == [1]
    assert [(skip.id, skip.reason) for skip in plan.skips] == [
        ("allreduce-gloo-k4-n2-4KiB", "gloo has one stream, not 4; parallel_gloo has more")
    ]


def test_nccl_without_enough_devices_says_how_many_there_are() -> None:
    skips = plan_of(backends="nccl", world_sizes=1000).skips
    assert skips[0].reason.startswith("nccl needs a CUDA device per rank: ")
    assert skips[0].reason.endswith("for 1000 ranks")


@pytest.mark.parametrize("sizes", [[5, 4], [4, 5]])
def test_two_sizes_that_become_the_same_bytes_are_measured_once(sizes: list[int]) -> None:
    plan = plan_of(sizes=sizes)
    assert [case.id for case in plan.cases] == ["allreduce-gloo-k1-n2-4B"]
    assert [(skip.id, skip.reason) for skip in plan.skips] == [
        ("allreduce-gloo-k1-n2-5B", "the same bytes as allreduce-gloo-k1-n2-4B")
    ]


def test_a_size_below_one_element_is_a_skip_that_names_the_least() -> None:
    plan = plan_of(sizes=[1], modes=["allreduce", "all_to_all"], world_sizes=3, dtypes="float64")
    assert [skip.reason for skip in plan.skips] == [
        "1B is less than the least size, 8B of float64",
        "1B is less than the least size, 24B of float64",
    ]


def test_an_id_reads_as_the_case_and_names_a_dtype_that_is_not_the_usual() -> None:
    plan = plan_of(modes="all_gather", backends="parallel_gloo", streams=4, sizes="1MiB", dtypes=["float32", "int8"])
    assert [case.id for case in plan.cases] == [
        "all_gather-parallel_gloo-k4-n2-1MiB",
        "all_gather-parallel_gloo-k4-n2-1MiB-int8",
    ]


BOTH = plan_of(modes=["allreduce", "broadcast"], streams=[1, 2], world_sizes=[2, 3])


def test_only_takes_an_id_or_a_pattern_of_cases_and_skips() -> None:
    assert [case.id for case in BOTH.only("allreduce-gloo-k1-n3-4KiB").cases] == ["allreduce-gloo-k1-n3-4KiB"]
    chosen = BOTH.only("broadcast-*-n2-*")
    assert [case.id for case in chosen.cases] == ["broadcast-gloo-k1-n2-4KiB"]
    assert [skip.id for skip in chosen.skips] == ["broadcast-gloo-k2-n2-4KiB"]


def test_only_that_matches_nothing_names_the_nearest_case() -> None:
    with pytest.raises(
        UsageError, match=r"^--only: .*none of the 8 cases; did you mean 'allreduce-gloo-k1-n3-4KiB'\?$"
    ):
        BOTH.only("allredce-gloo-k1-n3-4KiB")


def test_without_turns_cases_into_skips_with_a_reason() -> None:
    first, *rest = BOTH.cases
    plan = BOTH.without([Skip(first.id, "does not fit")])
    assert plan.cases == tuple(rest)
    assert plan.skips[-1] == Skip(first.id, "does not fit")


def test_a_launch_needs_the_ranks_of_the_largest_case() -> None:
    assert BOTH.world_size == 3
    assert Plan((), ()).world_size == 0


@given(st.integers(0, 2**63 - 1))
def test_shuffling_is_a_permutation_that_the_seed_fixes(seed: int) -> None:
    shuffled = BOTH.shuffled(seed)
    assert sorted(case.id for case in shuffled.cases) == sorted(case.id for case in BOTH.cases)
    assert shuffled == BOTH.shuffled(seed)
    assert shuffled.skips == BOTH.skips


def test_different_seeds_give_different_orders() -> None:
    many = plan_of(sizes="1KiB:1GiB:x2")
    assert len({many.shuffled(seed).cases for seed in range(10)}) == 10


@given(st.integers(0, 5000), st.integers(1, 40), st.integers(1, 9))
def test_parts_cover_the_tensor_in_order_and_differ_by_at_most_one_block(blocks: int, streams: int, block: int) -> None:
    elements = blocks * block
    parts = split(elements, streams, block)
    assert len(parts) == min(streams, blocks)
    assert [part.start for part in parts] == [0, *(part.stop for part in parts)][: len(parts)]
    assert (parts[-1].stop if parts else 0) == elements
    lengths = {part.stop - part.start for part in parts}
    assert all(length > 0 and length % block == 0 for length in lengths)
    assert max(lengths, default=0) - min(lengths, default=0) in (0, block)


@given(st.integers(1, 2**50), st.sampled_from([Fraction(1), Fraction(7), Fraction(4, 3)]), st.integers(1, 9))
def test_whole_elements_are_the_most_that_fit(requested: int, ratio: Fraction, block: int) -> None:
    from netbench.model import whole_elements

    elements = whole_elements(requested, ratio, 4, block)
    assert elements % block == 0
    assert elements * 4 * ratio <= requested < (elements + block) * 4 * ratio


def test_sums_that_are_not_exact_are_not_measured() -> None:
    plan = make_plan(resolve(None, {"world_sizes": "120,121", "dtypes": "int8,float32", "modes": "allreduce"}))
    assert {case.world_size for case in plan.cases if case.dtype == "int8"} == {120}
    assert {case.world_size for case in plan.cases if case.dtype == "float32"} == {120, 121}
    assert any("sums of int8 over 121 ranks are not exact" in skip.reason for skip in plan.skips)
