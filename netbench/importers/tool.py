"""What every importer is made of: what the user adds to a file, what is found in it, and cases with exact bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from netbench.errors import UsageError
from netbench.model import DTYPES, Case, Point
from netbench.modes import MODES, sized
from netbench.quotes import Quote


class Misread(ValueError):  # noqa: N818 - the file is at fault, not the program
    """A file is not what it claims to be; ``line`` counts from 1."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")


@dataclass(frozen=True)
class Given:
    """What the user says of a file; None where they say nothing."""

    mode: str | None = None
    world_size: int | None = None
    backend: str | None = None
    in_place: bool = False

    def the_mode(self, told: str | None = None) -> str:
        """The mode: what the file tells or else the user. Raises UsageError when neither does, or they differ."""
        mode = None if self.mode is None else MODES[self.mode].name
        return str(_agreed("--mode", "which operation was run", told, mode))

    def the_world_size(self, told: int | None = None) -> int:
        return int(_agreed("--world-size", "how many ranks took part", told, self.world_size))


def _agreed(option: str, what: str, told: Any, given: Any) -> Any:
    if told is None and given is None:
        raise UsageError(f"{option}: the file does not say {what}; give it by {option}")
    if told is not None and given is not None and told != given:
        raise UsageError(f"{option}: {given} contradicts the file, which says {told}")
    return given if told is None else told


@dataclass(frozen=True)
class Findings:
    """What a file says. ``time`` is what its times are, in words that follow "time:"."""

    quotes: list[Quote]
    time: str
    version: str = ""
    started_at: datetime | None = None
    hosts: list[str] = field(default_factory=list)


class Tool(Protocol):
    """A tool whose output can be imported."""

    name: str

    def recognises(self, text: str) -> bool:
        """Whether the text looks like this tool's output."""

    def read(self, text: str, given: Given) -> Findings:
        """Raises Misread, or UsageError where the user has to say more."""


def exact_case(
    line: int, mode: str, backend: str, streams: int, world_size: int, dtype: str, tensor_bytes: int
) -> Case:
    """The case of a row. Raises Misread where netbench cannot run one of so many bytes, ranks or elements."""
    formulas, itemsize = MODES[mode], DTYPES[dtype]
    if world_size < formulas.min_world_size:
        raise Misread(line, f"{mode} needs {formulas.min_world_size} ranks, not {world_size}")
    block = itemsize * formulas.block(world_size)
    if tensor_bytes <= 0 or tensor_bytes % block:
        raise Misread(line, f"{tensor_bytes} bytes are no tensor of {dtype} for {mode} of {world_size} ranks")
    point = Point(mode=mode, backend=backend, streams=streams, world_size=world_size, dtype=dtype)
    return sized(point, tensor_bytes)


def strict_json(text: str) -> Any:
    """The value of a JSON text. Raises Misread; NaN and Infinity are no JSON."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise Misread(error.lineno, f"is not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise Misread(1, f"is not JSON: {error}") from None
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def elements(text: str, key: str = "") -> Iterator[tuple[int, Any]]:
    """Each element of the list that is the value of ``key``, or of the whole text, with the line it begins on.

    ``text`` has been read by strict_json. Raises Misread where there is no such list.
    """
    start = re.search(rf'"{key}"\s*:\s*\[' if key else r"\A\s*\[", text)
    if start is None:
        raise Misread(1, f"has no list {key!r}" if key else "is no list")
    decoder, place = json.JSONDecoder(), start.end()
    while match := re.compile(r"[\s,]*").match(text, place):
        place = match.end()
        if text[place] == "]":
            return
        value, end = decoder.raw_decode(text, place)
        yield text.count("\n", 0, place) + 1, value
        place = end


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects in a list; none where there is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


#: More bytes, ns or elements than anybody has measured; beyond it int64 ends.
_MOST = 1e18


def number(line: int, name: str, value: Any) -> float:
    """A number from 0 to 10^18. Raises Misread."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        raise Misread(line, f"{name} is {value!r}, not a number") from None
    if not 0 <= found <= _MOST or isinstance(value, bool):
        raise Misread(line, f"{name} is {value!r}, not a number from 0 to {_MOST:.0e}")
    return found
