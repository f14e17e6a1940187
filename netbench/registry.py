"""Named things of one kind, in the order they were written down.

The command line's choices, ``netbench list``, the checks of TOML keys, the parametrised tests and the tables in
the documentation all come from these.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from netbench.errors import UsageError, did_you_mean


class Named(Protocol):
    @property
    def name(self) -> str: ...


Thing = TypeVar("Thing", bound=Named)


class Registry(Mapping[str, Thing], Generic[Thing]):
    """``registry["all_gather"]`` is the thing of that name; an unknown name is a UsageError with the nearest one."""

    def __init__(self, kind: str, aliases: Mapping[str, str] | None = None) -> None:
        self.kind = kind
        self._aliases = dict(aliases or {})
        self._things: dict[str, Thing] = {}

    def add(self, thing: Thing) -> Thing:
        assert thing.name not in self._things, f"two {self.kind}s are named {thing.name}"
        self._things[thing.name] = thing
        return thing

    def __getitem__(self, name: str) -> Thing:
        try:
            return self._things[self._aliases.get(name, name)]
        except KeyError:
            raise UsageError(
                f"{name!r} is not a {self.kind}{did_you_mean(name, self)} (known: {', '.join(self)})"
            ) from None

    def __contains__(self, name: object) -> bool:
        return self._aliases.get(str(name), name) in self._things

    def __iter__(self) -> Iterator[str]:
        return iter(self._things)

    def __len__(self) -> int:
        return len(self._things)


def one_line(thing: object) -> str:
    """The first line of a thing's docstring: what ``netbench list`` and the documentation say of it."""
    text = inspect.getdoc(thing)
    assert text, f"{thing!r} has no docstring"
    return text.splitlines()[0]
