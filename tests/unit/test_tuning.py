"""Choices are arithmetic, and a table says what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netbench.errors import UsageError
from netbench.tuning import (
    KIB,
    MIB,
    SCHEDULES,
    BuiltIn,
    Choice,
    Fixed,
    Measurement,
    Rule,
    Tuned,
    TuningTable,
    build_table,
    fastest,
    read_table,
    write_table,
)

OPERATIONS = st.sampled_from(sorted(SCHEDULES))
BYTES = st.integers(0, 2**40)
RANKS = st.integers(1, 64)


@given(OPERATIONS, BYTES, RANKS, st.integers(1, 64), st.booleans())
def test_every_choice_can_be_carried_out(operation: str, size: int, n: int, streams: int, pay: bool) -> None:
    for policy in (BuiltIn(streams, pay), BuiltIn(streams, pay, True, 4), Fixed(streams), Fixed(streams, "gloo")):
        choice = policy.choose(operation, size, n)
        assert choice.schedule in SCHEDULES[operation]
        assert 1 <= choice.streams <= streams
        each_way = choice.streams // 2 if choice.schedule == "simplex" else choice.streams
        assert choice.chunks >= each_way or choice.streams == 1 or operation == "send_recv"


@given(OPERATIONS, RANKS, st.integers(1, 64), BYTES, BYTES)
def test_longer_messages_never_get_fewer_streams(operation: str, n: int, streams: int, one: int, other: int) -> None:
    policy = BuiltIn(streams, streams_pay=True)
    low, high = (policy.choose(operation, size, n).streams for size in sorted((one, other)))
    assert low <= high


def test_small_messages_take_one_stream_and_large_ones_all() -> None:
    policy = BuiltIn(16, streams_pay=True)
    assert policy.choose("allreduce", 4, 2).streams == 1
    assert policy.choose("allreduce", 400 * MIB, 2).streams == 16
    assert BuiltIn(16, streams_pay=False).choose("send_recv", 400 * MIB, 2).streams == 1


def test_large_messages_take_the_streams_that_were_fastest_for_one() -> None:
    policy = BuiltIn(16, streams_pay=False, fast=True, large_streams=4)
    assert policy.choose("send_recv", 18 * MIB - 1, 2).streams == 1
    assert policy.choose("send_recv", 18 * MIB, 2).streams == 4
    assert BuiltIn(2, streams_pay=False, fast=True, large_streams=4).choose("send_recv", 18 * MIB, 2).streams == 2


@pytest.mark.parametrize("operation", ["all_gather", "allreduce", "reduce_scatter", "all_to_all"])
def test_two_ranks_on_a_fast_path_take_streams_of_one_direction_each(operation: str) -> None:
    fast = BuiltIn(16, streams_pay=False, fast=True)
    assert fast.choose(operation, 4, 2) == Choice("gloo")
    assert fast.choose(operation, 4 * MIB, 2).schedule == "simplex"
    assert fast.choose(operation, 16 * MIB, 4).schedule == "simplex"
    for other in (BuiltIn(16, streams_pay=False), BuiltIn(16, streams_pay=True), BuiltIn(1, False, fast=True)):
        assert other.choose(operation, 4 * MIB, 2).schedule != "simplex"


def test_allreduces_on_a_fast_path_follow_what_was_measured() -> None:
    fast = BuiltIn(16, streams_pay=False, fast=True)
    chosen = [fast.choose("allreduce", size * MIB, 2) for size in (1, 8, 16, 23, 24)]
    assert chosen == [Choice("simplex", 2, chunks) for chunks in (1, 2, 4, 4)] + [Choice("gloo", 4, 4)]
    assert BuiltIn(3, False, fast=True).choose("allreduce", 24 * MIB, 2) == Choice("gloo", 3, 3)
    assert BuiltIn(16, False, fast=True, large_streams=2).choose("allreduce", 24 * MIB, 2) == Choice("gloo", 2, 2)
    assert BuiltIn(2, False, fast=True, large_streams=4).choose("allreduce", 24 * MIB, 2) == Choice("gloo", 2, 2)
    assert [fast.choose("allreduce", size * MIB, 3).schedule for size in (1, 2, 11, 12)] == [
        "simplex", "gloo", "gloo", "simplex",
    ]  # fmt: skip
    assert fast.choose("allreduce", 64 * MIB, 5) == Choice("gloo")


def test_a_fixed_count_is_kept_down_to_the_byte() -> None:
    assert Fixed(20).choose("send_recv", 40, 2).streams == 20
    assert Fixed(20).choose("send_recv", 7, 2).streams == 7


def measured(size: int, choice: Choice, *durations: int) -> Measurement:
    return Measurement("allreduce", 2, size, choice, durations)


ONE, FOUR = Choice("gloo", 1), Choice("gloo", 4)


def test_the_table_takes_the_least_median_at_each_size() -> None:
    table = build_table(
        [
            measured(100, ONE, 10, 11, 500),
            measured(100, FOUR, 20, 21, 22),
            measured(10_000, ONE, 300, 310, 320),
            measured(10_000, FOUR, 100, 110, 120),
        ],
        network="a lab",
    )
    assert table.choose("allreduce", 100, 2) == ONE
    assert table.choose("allreduce", 999, 2) == ONE
    assert table.choose("allreduce", 1001, 2) == FOUR
    assert table.choose("allreduce", 10**9, 2) == FOUR
    assert table.streams == 4
    assert table.network == "a lab"


def test_more_streams_have_to_be_worth_it() -> None:
    assert fastest([measured(1, ONE, 102), measured(1, FOUR, 100)]) == ONE
    assert fastest([measured(1, ONE, 110), measured(1, FOUR, 100)]) == FOUR


def test_equal_choices_become_one_rule() -> None:
    table = build_table([measured(size, ONE, 10) for size in (1, 2, 4)])
    assert table.entries[0].rules == [Rule(up_to_bytes=None, schedule="gloo", streams=1)]


def test_an_unmeasured_world_size_takes_the_nearest_and_an_unmeasured_operation_the_built_in_rule() -> None:
    table = build_table(
        [Measurement("allreduce", n, 1000, Choice("gloo", streams), (1,)) for n, streams in ((2, 3), (8, 5))]
    )
    assert table.choose("allreduce", 1000, 3).streams == 3
    assert table.choose("allreduce", 1000, 64).streams == 5
    assert table.choose("all_gather", 1000, 2) == BuiltIn(1, streams_pay=False).choose("all_gather", 1000, 2)


def test_a_table_survives_its_file(tmp_path: Path) -> None:
    table = build_table([measured(100, ONE, 1), measured(KIB * 64, FOUR, 1)], "loopback")
    write_table(tmp_path / "table.json", table)
    assert read_table(tmp_path / "table.json") == table


RULES = [{"up_to_bytes": None, "schedule": "gloo", "streams": 1}]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "is not JSON"),
        ("[]", "the table"),
        ({"entries": []} | {"schema_version": 2}, "schema_version"),
        ({"entries": [{"operation": "allreduse", "world_size": 2, "rules": RULES}]}, "did you mean 'allreduce'"),
        ({"entries": [{"operation": "allreduce", "world_size": 2, "rules": []}]}, r"entries\.0\.rules"),
        (
            {"entries": [{"operation": "allreduce", "world_size": 2, "rules": [RULES[0] | {"schedule": "ring"}]}]},
            "no schedule 'ring'",
        ),
        (
            {"entries": [{"operation": "allreduce", "world_size": 2, "rules": [RULES[0] | {"up_to_bytes": 5}]}]},
            "up_to_bytes null",
        ),
        (
            {
                "entries": [
                    {
                        "operation": "allreduce",
                        "world_size": 2,
                        "rules": [RULES[0] | {"up_to_bytes": 9}, RULES[0] | {"up_to_bytes": 5}, RULES[0]],
                    }
                ]
            },
            "must grow",
        ),
    ],
)
def test_a_damaged_table_says_where(tmp_path: Path, content: object, complaint: str) -> None:
    path = tmp_path / "table.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(UsageError, match=complaint):
        read_table(path)
    with pytest.raises(UsageError, match=r"table\.json"):
        read_table(path)


def test_a_rule_holds_up_to_its_border() -> None:
    rules = [Rule(up_to_bytes=10, schedule="gloo", streams=1), Rule(up_to_bytes=None, schedule="gloo", streams=2)]
    table = TuningTable(entries=[Tuned(operation="broadcast", world_size=2, rules=rules)])
    assert table.choose("broadcast", 10, 2).streams == 1
    assert table.choose("broadcast", 11, 2).streams == 2
