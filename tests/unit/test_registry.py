"""Named things, and what happens to a name that nothing has."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from netbench.catalogue import REGISTRIES
from netbench.errors import Exit, UsageError, did_you_mean
from netbench.registry import Registry, one_line


@dataclass(frozen=True)
class Fruit:
    """Grows on trees.

    And is eaten.
    """

    name: str


@pytest.fixture
def fruits() -> Registry[Fruit]:
    registry: Registry[Fruit] = Registry("fruit", aliases={"aubergine": "eggplant"})
    for name in ("quince", "apple", "eggplant"):
        registry.add(Fruit(name))
    return registry


def test_things_are_found_by_name_and_listed_as_they_were_added(fruits: Registry[Fruit]) -> None:
    assert list(fruits) == ["quince", "apple", "eggplant"]
    assert fruits["apple"] == Fruit("apple")


def test_another_spelling_finds_the_same_thing(fruits: Registry[Fruit]) -> None:
    assert "aubergine" in fruits
    assert fruits["aubergine"].name == "eggplant"
    assert len(fruits) == 3


def test_an_unknown_name_is_a_usage_error_with_the_nearest_and_all_names(fruits: Registry[Fruit]) -> None:
    assert "appel" not in fruits
    with pytest.raises(UsageError) as refused:
        fruits["appel"]
    assert str(refused.value) == "'appel' is not a fruit; did you mean 'apple'? (known: quince, apple, eggplant)"
    assert refused.value.exit_code == Exit.USAGE == 2


def test_one_name_names_one_thing(fruits: Registry[Fruit]) -> None:
    with pytest.raises(AssertionError, match="quince"):
        fruits.add(Fruit("quince"))


@pytest.mark.parametrize(
    ("value", "nearest"),
    [("all-reduce", "allreduce"), ("AllReduce", "allreduce"), ("send_rcv", "send_recv"), ("qwertz", None)],
)
def test_the_nearest_name_ignores_case_and_dashes_and_is_left_out_when_it_is_far(
    value: str, nearest: str | None
) -> None:
    hint = did_you_mean(value, ["send_recv", "allreduce"])
    assert hint == (f"; did you mean {nearest!r}?" if nearest else "")


def test_one_line_is_the_first_of_the_docstring() -> None:
    assert one_line(Fruit("fig")) == "Grows on trees."


@pytest.mark.parametrize("title", REGISTRIES)
def test_every_member_of_every_registry_says_what_it_is_in_one_line(title: str) -> None:
    registry = REGISTRIES[title]
    assert len(registry) > 0
    for name in registry:
        assert registry[name].name == name
        assert len(one_line(registry[name]).rstrip(".;")) > 10
