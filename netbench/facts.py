"""The parts of a record that may hold more than this netbench knows: facts of a case, of its ranks, of the hosts.

Whoever reads them gets dictionaries as they are in the file. What numbers and verdicts are made from is checked here,
so that nobody has to ask again what kind of thing it is; docs/results-format.md says what each means.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from netbench.foreign import parse_json
from netbench.model import Case
from netbench.modes import MODES

#: Beyond this, sums of them would come near where int64 ends.
_MOST = 2**56

_Number = Annotated[int, Field(ge=-_MOST, le=_MOST)] | None
_Count = Annotated[int, Field(ge=0, le=_MOST)] | None
_Amount = Annotated[float, Field(ge=0, le=_MOST)] | None
_Rank = Annotated[int, Field(ge=0, lt=2**20)]
_Some = Annotated[int, Field(ge=1, le=2**20)] | None


class _Facts(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class _Interface(_Facts):
    addresses: list[str] = []
    #: From the least that the headers leave room in.
    mtu_bytes: Annotated[int, Field(ge=128, le=2**24)] | None = None
    speed_mbit_per_s: Annotated[float, Field(ge=-1, le=1e9)] | None = None
    driver: str | None = None
    kind: str | None = None


class _Host(_Facts):
    host: str
    ranks: list[_Rank] = []
    machine: str | None = None
    cpus: _Some = None
    cpus_allowed: _Some = None
    load_1min: _Amount = None
    interface: _Interface | None = None
    sysctls: dict[str, str | None] | None = None


class _RankOfCase(_Facts):
    rank: _Rank
    host: str
    wrong_elements: _Count = None
    wire_sent_bytes: _Count = None
    wire_received_bytes: _Count = None
    retransmits: _Count = None
    clock_offset_ns: _Number = None
    clock_error_ns: _Count = None
    rtt_us: _Amount = None
    least_rtt_us: _Amount = None
    congestion_window: _Count = None
    congestion_control: str | None = None
    connections: _Count = None
    window_ns: _Count = None
    own_cpu_ns: _Count = None
    machine_cpu_ns: _Count = None
    stolen_ns: _Count = None
    stalled_ns: _Count = None
    interface_sent_bytes: _Count = None
    interface_received_bytes: _Count = None


class _OfCase(_Facts):
    status: Literal["ok", "wrong"] = "ok"
    wrong_elements: _Count = None
    parts: _Some = None
    schedule: str | None = None
    schedule_chunks: _Some = None
    stop_reason: str | None = None
    visits: _Count = None
    pause_s: _Amount = None
    interface: str | None = None
    lab: str | None = None
    ranks: list[_RankOfCase] = []


_HOSTS = TypeAdapter(list[_Host])
_OF_CASE = TypeAdapter(_OfCase)


def checked_hosts(hosts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The hosts of a manifest as they are. Raises ValueError, saying what is wrong with them."""
    _check(_HOSTS, hosts)
    return hosts


def seal(case: bytes, facts: bytes, columns: Iterable[str]) -> str:
    """What tells that case, facts and columns are as they were written: parquet has sums of its pages alone."""
    return f"{zlib.crc32(b' '.join([case, facts, *(name.encode() for name in columns)])):08x}"


def read_facts(text: bytes) -> dict[str, Any]:
    """The facts of a case, from the footer of its samples. Raises ValueError, saying what is wrong with them."""
    facts: dict[str, Any] = parse_json(text)
    _check(_OF_CASE, facts)
    return facts


def read_case(text: bytes) -> Case:
    """The case of a file of samples, from its footer. Raises ValueError or TypeError, saying what is wrong with it."""
    return known_case(Case(**parse_json(text)))


def known_case(case: Case) -> Case:
    """``case``, whose mode this netbench knows. Raises ValueError."""
    if case.mode not in MODES:
        raise ValueError(f"mode {case.mode!r} is none of {', '.join(MODES)}")
    if len(case.members) < MODES[case.mode].min_world_size:
        raise ValueError(f"{case.mode} needs {MODES[case.mode].min_world_size} ranks, not {len(case.members)}")
    return case


def first_complaint(error: ValidationError) -> str:
    """What is wrong with a file, and where: ``cases.3: dtype 'x' is none of ...``."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(piece) for piece in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    return f"{place}: {message}" if place else message


def _check(kind: TypeAdapter[Any], value: object) -> None:
    try:
        kind.validate_python(value)
    except ValidationError as error:
        raise ValueError(first_complaint(error)) from None
