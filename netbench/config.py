"""What a sweep is asked to do: options and one TOML file, checked and resolved into a SweepConfig."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_serializer

from netbench.backends import BACKENDS
from netbench.endpoint import format_endpoint, parse_endpoint
from netbench.errors import UsageError, did_you_mean
from netbench.lab.spec import LabSpec
from netbench.launch import LAUNCHERS
from netbench.model import AUTO, DTYPES, MALLOCS, SIZE_KINDS, pair_ranks
from netbench.modes import MODES
from netbench.registry import Registry
from netbench.units import parse_seconds, parse_sizes

Item = TypeVar("Item")


def _items(value: object) -> list[object]:
    """A list from TOML, or the comma-separated text of an option, with repetitions dropped."""
    if isinstance(value, str):
        value = [piece.strip() for piece in value.split(",") if piece.strip()]
    items = value if isinstance(value, list) else [value]
    if not items:
        raise ValueError("the list is empty; name at least one")
    if nested := [item for item in items if isinstance(item, list | dict)]:
        raise ValueError(f"{nested[0]!r} is a list in a list; write its members side by side")
    return list(dict.fromkeys(items))


def _each(read: Callable[[object], Iterable[Item]]) -> BeforeValidator:
    return BeforeValidator(lambda value: list(dict.fromkeys(x for item in _items(value) for x in read(item))))


def _known(registry: Registry[Any]) -> Callable[[object], Iterable[str]]:
    def read(item: object) -> Iterable[str]:
        try:
            return [registry[str(item)].name]
        except UsageError as error:
            raise ValueError(str(error)) from None

    return read


def _choice(what: str, known: Collection[str]) -> Callable[[object], list[str]]:
    def read(item: object) -> list[str]:
        if str(item) not in known:
            raise ValueError(f"{item!r} is not a {what}{did_you_mean(str(item), known)} (known: {', '.join(known)})")
        return [str(item)]

    return read


def _count(what: str, most: int) -> Callable[[object], Iterable[int]]:
    def read(item: object) -> Iterable[int]:
        try:
            number = int(item) if isinstance(item, int | str) and not isinstance(item, bool) else 0
        except ValueError:
            number = 0
        if not 1 <= number <= most:
            raise ValueError(f"{item} is not a {what}; use whole numbers from 1 to {most}")
        return [number]

    return read


def _streams(item: object) -> Iterable[int]:
    return [AUTO] if item == "auto" else _count("stream count", 512)(item)


def _sizes(item: object) -> Iterable[int]:
    if isinstance(item, bool) or not isinstance(item, int | str):
        raise ValueError(f"{item!r} is not a size; write whole bytes as 65536 or a text as '64KiB'")
    return parse_sizes(str(item))


def _no_truth(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is not a number")
    return value


def _delay(item: object) -> Iterable[float]:
    seconds = parse_seconds(str(item))
    if not 0 <= seconds <= 10:
        raise ValueError(f"{item} is not an entry delay; use 0 to 10 s")
    return [round(seconds, 6)]  # a case's id knows whole microseconds


def _timeline(item: object) -> Iterable[float]:
    seconds = parse_seconds(str(item))
    if seconds and not 0.001 <= seconds <= 10:
        raise ValueError(f"{item} is not a timeline's period; use 1ms to 10s, or 0 for none")
    return [seconds]


def _pair(item: object) -> Iterable[str]:
    text = str(item).strip()
    return [text] if text in ("none", "all") else ["{}-{}".format(*pair_ranks(text))]


def _iterations(value: object) -> object:
    return None if value == "auto" else _no_truth(value)


def _share(value: object) -> object:
    """``5%`` is 0.05."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", value) if isinstance(value, str) else None
    return float(match[1]) / 100 if match else _no_truth(value)


def parse_share(text: str) -> float:
    """``"5%"`` or ``"0.05"``. Raises ValueError, saying what would be right."""
    try:
        share = float(str(_share(text)))
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise ValueError(f"{text!r} is not a share; write 5% or 0.05")
    return share


def _seconds(value: object) -> object:
    return parse_seconds(value) if isinstance(value, str) else _no_truth(value)


def _lab(value: object) -> object:
    return value if value is None else str(LabSpec.parse(str(value)))


def _host(item: object) -> Iterable[str]:
    # It becomes an argument of ssh, which must not take it for an option.
    if not isinstance(item, str) or not re.fullmatch(r"[A-Za-z0-9_.][A-Za-z0-9_.:@%-]{0,252}", item):
        raise ValueError(f"{item!r} is not a host; write it as ssh takes it: host1 or user@10.0.0.2")
    return [item]


def _endpoint(value: object) -> object:
    return value if value is None else format_endpoint(*parse_endpoint(str(value)))


Seconds = Annotated[float, BeforeValidator(_seconds)]
Count = Annotated[int, BeforeValidator(_no_truth)]


#: What ``--rigorous`` is short for.
RIGOROUS: dict[str, object] = {"budget": "3s", "precision": "2%", "launches": "3"}


#: The keys that say where a sweep runs and where it is put: options of every command that measures.
PLACE = (
    *("lab", "interface", "subnet", "launcher", "hosts", "nnodes", "nproc_per_node"),
    *("rdzv_endpoint", "join_timeout", "remote_python", "out"),
)


class SweepConfig(BaseModel):
    """Every key is an option of ``netbench sweep`` of the same name; the axes are the plurals."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field("sweep", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    question: str = Field("", max_length=200)
    modes: Annotated[list[str], _each(_known(MODES))] = ["send_recv", "all_gather", "allreduce"]
    backends: Annotated[list[str], _each(_known(BACKENDS))] = ["gloo", "parallel_gloo"]
    streams: Annotated[list[int], _each(_streams)] = [1, 4]
    world_sizes: Annotated[list[int], _each(_count("world size", 1024))] = [2, 3]
    dtypes: Annotated[list[str], _each(_choice("dtype", DTYPES))] = ["float32"]
    sizes: Annotated[list[int], _each(_sizes)] = parse_sizes("4KiB:16MiB:x4")
    chunks: Annotated[list[int], _each(_count("count of chunks", 4096))] = [1]
    entry_delays: Annotated[list[float], _each(_delay)] = [0.0]
    mallocs: Annotated[list[str], _each(_choice("malloc", MALLOCS))] = ["default"]
    timelines: Annotated[list[float], _each(_timeline)] = [0.0]
    pairs: Annotated[list[str], _each(_pair)] = ["none"]
    sizes_of: Annotated[str, BeforeValidator(lambda value: _choice("kind of size", SIZE_KINDS)(value)[0])] = "tensor"
    iterations: Annotated[Annotated[int, Field(ge=1, le=1_000_000)] | None, BeforeValidator(_iterations)] = None
    budget: Seconds = Field(0.3, gt=0, le=86400)
    precision: Annotated[float, BeforeValidator(_share), Field(gt=0, lt=1)] = 0.05
    rounds: Count = Field(3, ge=1, le=1000)
    launches: Count = Field(1, ge=1, le=1000)
    warmup: Count = Field(3, ge=0, le=1_000_000)
    pause: Seconds = Field(0.0, ge=0, le=3600)
    timeout: Seconds = Field(60.0, gt=0, le=86400)
    interface: str | None = Field(None, min_length=1)
    subnet: str | None = Field(None, min_length=1)
    launcher: Annotated[str, BeforeValidator(lambda value: _choice("launcher", LAUNCHERS)(value)[0])] = "local"
    nnodes: Annotated[int, BeforeValidator(_no_truth), Field(ge=1, le=1024)] | None = None
    nproc_per_node: Annotated[int, BeforeValidator(_no_truth), Field(ge=1, le=1024)] | None = None
    hosts: Annotated[list[str], _each(_host)] | None = None
    rdzv_endpoint: Annotated[str | None, BeforeValidator(_endpoint)] = None
    join_timeout: Seconds = Field(300.0, gt=0, le=86400)
    remote_python: str | None = Field(None, min_length=1)
    lab: Annotated[str | None, BeforeValidator(_lab)] = None
    seed: Count = Field(0, ge=0, lt=2**63)
    out: str = Field("results", min_length=1)

    @property
    def rounds_used(self) -> int:
        """Rounds in one launch: no more than there are iterations."""
        return min(self.rounds, self.iterations or self.rounds)

    @field_serializer("streams")
    def _as_written(self, streams: list[int]) -> list[int | str]:
        return ["auto" if count == AUTO else count for count in streams]


def resolve(path: Path | None, options: dict[str, object]) -> SweepConfig:
    """The configuration of one sweep: ``options`` over the file's ``[sweep]`` table over the defaults.

    Raises UsageError naming the option or the file's key, the value and what would be right.
    """
    table = _table(path) if path else {}
    for key, value in options.items():
        if isinstance(value, str) and not value.isascii() and value.encode(errors="replace").decode() != value:
            raise UsageError(f"--{key.replace('_', '-')}: {value!a} is no text in UTF-8")
    try:
        return SweepConfig.model_validate(table | options)
    except ValidationError as error:
        raise UsageError("\n".join(_complaint(detail, path, options) for detail in error.errors())) from None


def preset(name: str) -> Path:
    """The file that a sweep's argument means: a path, or the name of a preset such as ``smoke``."""
    path = Path(name)
    if path.suffix == ".toml" or path.is_file():
        if not path.is_file():
            raise UsageError(f"{name}: no such file; netbench list names the presets")
        return path
    if name not in presets():
        raise UsageError(
            f"{name!r} is neither a file nor a preset{did_you_mean(name, presets())} (known: {', '.join(presets())})"
        )
    return presets()[name]


def presets() -> dict[str, Path]:
    """The configurations that ship with netbench, by name: beside the package in a checkout, inside it in a wheel."""
    package = Path(__file__).parent
    folder = package / "configs" if (package / "configs").is_dir() else package.parent / "configs"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def question(path: Path) -> str:
    """Which question a configuration answers."""
    return str(_table(path).get("question", ""))


def _table(path: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: is not valid TOML: {error}") from None
    for key, value in document.items():
        if key not in ("sweep", "check") or not isinstance(value, dict):
            hint = did_you_mean(key, ["sweep"]) or "; every key belongs into the table [sweep]"
            raise UsageError(f"{path}: {key!r} is not a table that netbench knows{hint}")
    return dict(document.get("sweep", {}))


def _complaint(detail: Any, path: Path | None, options: dict[str, object]) -> str:
    key = str(detail["loc"][0])
    place = f"--{key.replace('_', '-')}" if key in options or path is None else f"{path}: sweep.{key}"
    if detail["type"] == "extra_forbidden":
        return f"{path}: sweep.{key}: no such key{did_you_mean(key, SweepConfig.model_fields)}"
    if detail["type"] == "value_error":
        return f"{place}: {detail['ctx']['error']}"
    message = detail["msg"].replace("Input should be", "should be")
    if detail["type"] == "string_pattern_mismatch":
        message = "should be letters, digits, '.', '_' and '-', at most 64, beginning with a letter or digit"
    return f"{place}: {re.sub(chr(10), ' ', repr(detail['input']))} {message}"
