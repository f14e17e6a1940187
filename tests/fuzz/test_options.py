"""Configurations and option values: whatever is typed, a message, and nothing is started or written elsewhere."""

from __future__ import annotations

import io
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fuzzing import EVIL, damaged, ends_well, examples, mutated, place, texts, values
from hypothesis import given
from hypothesis import strategies as st
from synthetic import make_case, make_run
from typer.main import get_command

from netbench import lab, sweep
from netbench.cli import app
from netbench.config import SweepConfig, presets
from netbench.errors import Exit
from netbench.record import RunFolder
from netbench.tuning import read_table

#: These would wait for other hosts, or make a lab; what they are given is read by the same functions as elsewhere.
NOT_RUN = ("join", "lab exec", "lab list")

#: Of a sweep that is not only planned, nothing is started.
PLANNED = ("sweep", "explain", "matrix")


@pytest.fixture(autouse=True)
def nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("something was started")

    monkeypatch.setattr(sweep.Sweep, "run", lambda self: None)
    monkeypatch.setattr(sweep.Sweep, "_launch", refuse)
    monkeypatch.setattr(lab, "up", refuse)
    # A launcher of others is not asked for its hosts.
    monkeypatch.setenv("PATH", "/nonexistent")


def commands() -> Iterator[tuple[list[str], list[Any]]]:
    def walk(group: Any, words: list[str]) -> Iterator[tuple[list[str], list[Any]]]:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from walk(command, [*words, name])
            elif " ".join([*words, name]) not in NOT_RUN:
                yield [*words, name], command.params

    yield from walk(get_command(app), [])


COMMANDS = {" ".join(words): (words, params) for words, params in commands()}

#: What is right or nearly so, that the fuzzer may get past the first check.
LIKELY = [
    *("allreduce", "all_gather,send_recv", "gloo", "parallel_gloo,tcp", "1,2,auto", "2,3", "float32", "4KiB:1MiB:x4"),
    *("1MB", "5ms", "auto", "0.3", "5%", "3", "lo", "2x400mbit", "2x400mbit,flow=40mbit", "7", "a-name", "results"),
    *(
        "0-1",
        "all",
        "csv",
        "json",
        "table",
        "markdown",
        "GB/s",
        "dark",
        "10gbit",
        "trend,bimodal",
        "slower",
        "lab,pause",
    ),
    *("R", "R/run.json", ".", "smoke", "file.toml", "local", "127.0.0.0/8", "127.0.0.1:29400", "message", "keep"),
    *("allreduce@1MiB,n=2 >= 8Gbit/s", "allreduce-*", "iperf3", "nccl-tests", "a,b", "1024", "512", "1KiB:1TiB:x1.1"),
    *("bandwidth", "lab,pause"),
]


def usable(text: str) -> bool:
    """What stays in the working folder, where a name may be taken for that of a file."""
    return not text.startswith("/") and ".." not in text


given_texts = st.one_of(st.sampled_from(LIKELY), texts).filter(usable)


def prepared(outer: Path) -> None:
    make_run(outer / "here" / "R", [make_case(tensor_bytes=4096 * 4**step) for step in range(4)])
    (outer / "here" / "file.toml").write_text(
        "[sweep]\nmodes = ['allreduce']\n[check]\nrequire = ['allreduce >= 1bit/s']\n"
    )


@st.composite
def typed(draw: st.DrawFn, command: str) -> list[str]:
    words, params = COMMANDS[command]
    line = list(words)
    for param in draw(st.lists(st.sampled_from(params), max_size=5, unique_by=lambda one: one.name)) if params else []:
        if param.param_type_name == "argument":
            line.append(draw(given_texts))
        elif getattr(param, "is_flag", False):
            line.append(param.opts[0])
        else:
            line += [param.opts[0], draw(given_texts)]
    # Else it is less the options than their absence that is tried.
    for param in params:
        if param.param_type_name == "argument" and param.required and draw(st.booleans()):
            line += ["R"] * 2
        elif param.required and param.opts[0] not in line and draw(st.booleans()):
            line += [param.opts[0], draw(given_texts)]
    return [*line, "--dry-run"] if command in PLANNED and "--dry-run" not in line else line


@pytest.mark.parametrize("command", COMMANDS)
def test_options(command: str) -> None:
    few = 4 if command in ("plot", "report", "fit", "doctor", "compare") else 15

    @examples(few, 40 * few)
    @given(line=typed(command))
    def fuzz(line: list[str]) -> None:
        with place() as outer:
            prepared(outer)
            ends_well(line, outer, "here", raw=command in ("plot", "report"))

    fuzz()


@pytest.mark.parametrize("text", EVIL)
def test_evil_values_of_every_option_of_a_sweep(text: str) -> None:
    for param in COMMANDS["sweep"][1]:
        if not getattr(param, "is_flag", False) and param.param_type_name == "option":
            with place() as outer:
                ends_well(["sweep", "--sizes", "4KiB", param.opts[0], text, "--dry-run"], outer, "here/nothing")


@pytest.mark.parametrize(
    ("option", "text"),
    [
        (option, text)
        for option in ("--name", "--backend", "--question", "--out")
        for text in EVIL
        # A path is where the user says; no program can be given the others.
        if "\0" not in text and "\ud800" not in text and (option != "--out" or usable(text))
    ],
)
def test_an_import_writes_only_where_it_is_told_to(option: str, text: str) -> None:
    source = Path(__file__).parents[1] / "data" / "foreign" / "osu_latency.txt"
    with place() as outer:
        code, _, err = ends_well(["import", str(source), option, text], outer, "here", raw=option == "--out")
        assert code in (Exit.DONE, Exit.USAGE, Exit.STORAGE)
        if option in ("--name", "--backend") and not usable(text):
            assert code == Exit.USAGE
            assert option in err


def test_a_plan_that_nobody_could_run_is_refused_at_once() -> None:
    with place() as outer:
        line = ["sweep", "--sizes", "1KiB:1TiB:x1.1", "--streams", ",".join(map(str, range(1, 513))), "--dry-run"]
        line += ["--world-sizes", ",".join(map(str, range(2, 1025)))]
        code, _, err = ends_well(line, outer, "here")
        assert code == Exit.USAGE
        assert "more than" in err


def toml(value: Any) -> str:
    """A document as TOML, also where it is none."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(str(key))} = {toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.encode("unicode_escape").decode().replace("\\x", "\\u00").replace('"', '\\"')
        return f'"{escaped}"'
    return "''" if value is None else str(value)


VALID = {
    "sweep": {
        key: value
        for key, value in SweepConfig().model_dump().items()
        if value is not None and key not in ("out", "question")
    }
    | {"question": "Which?", "out": "results", "sizes": ["4KiB:64KiB:x4", 1000]},
    "check": {"require": ["allreduce >= 1bit/s"]},
}


@st.composite
def configurations(draw: st.DrawFn) -> bytes:
    kind = draw(st.sampled_from(["mutated", "mutated", "mutated", "any", "bytes", "damaged"]))
    if kind == "damaged":
        return draw(damaged(draw(st.sampled_from(sorted(presets().values()))).read_bytes()))
    if kind == "bytes":
        return draw(st.binary(max_size=200))
    document = draw(mutated(VALID)) if kind == "mutated" else draw(values)
    if not isinstance(document, dict):
        return toml(document).encode()
    lines = [f"{toml(str(key))} = {toml(inner)}" for key, inner in document.items()]
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def test_configurations() -> None:
    @examples(60, 6000)
    @given(content=configurations(), command=st.sampled_from(["sweep", "sweep", "check"]))
    def fuzz(content: bytes, command: str) -> None:
        with place() as outer:
            prepared(outer)
            (outer / "here" / "fuzz.toml").write_bytes(content)
            line = (
                ["sweep", "fuzz.toml", "--dry-run"] if command == "sweep" else ["check", "R", "--config", "fuzz.toml"]
            )
            ends_well(line, outer, "here/nothing")

    fuzz()


def test_the_valid_configuration_is_valid() -> None:
    """The test of the test above."""
    text = "\n".join(f"{key} = {toml(inner)}" for key, inner in VALID.items())
    assert tomllib.load(io.BytesIO(text.encode())) == VALID
    with place() as outer:
        (outer / "here" / "fuzz.toml").write_text(text)
        code, out, err = ends_well(["sweep", "fuzz.toml", "--dry-run"], outer, "here/nothing")
        assert code == Exit.DONE, err
        assert out


FOREIGN = sorted((Path(__file__).parents[1] / "data" / "foreign").glob("*_*.*"))


def test_imported_files() -> None:
    @examples(60, 6000)
    @given(
        content=st.sampled_from(FOREIGN).flatmap(lambda path: damaged(path.read_bytes())),
        more=st.sampled_from(
            [[], ["--mode", "allreduce", "--world-size", "2"], ["--tool", "iperf3"], ["--tool", "osu"]]
        ),
    )
    def fuzz(content: bytes, more: list[str]) -> None:
        with place() as outer:
            (outer / "here" / "foreign").write_bytes(content)
            code, out, _ = ends_well(["import", "foreign", *more], outer, "here/results")
            if code == Exit.DONE:
                assert RunFolder(Path(out.strip())).read_manifest().status == "imported"
                ends_well(["show", out.strip()], outer, "here/results", {Exit.DONE})

    fuzz()


def test_tuning_tables(tmp_path: Path) -> None:
    from netbench.errors import UsageError

    table = {
        "schema_version": 1,
        "network": "lo",
        "entries": [
            {
                "operation": "all_gather",
                "world_size": 2,
                "rules": [{"up_to_bytes": None, "schedule": "ring", "streams": 2, "chunks": 1}],
            }
        ],
    }
    import json

    @examples(80, 4000)
    @given(content=st.one_of(mutated(table).map(lambda one: json.dumps(one).encode()), st.binary(max_size=100)))
    def fuzz(content: bytes) -> None:
        path = tmp_path / "tuning.json"
        path.write_bytes(content)
        try:
            read = read_table(path)
        except UsageError as error:
            assert str(path) in str(error)  # noqa: PT017 - either of the two is right
        else:
            assert read.choose("all_gather", 4096, 2).streams >= 1

    fuzz()
