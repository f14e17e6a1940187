"""What a sweep is asked to do: the same keys as options and in TOML, checked with messages that help."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from netbench.config import SweepConfig, preset, presets, question, resolve
from netbench.errors import Exit, UsageError
from netbench.model import DTYPES
from netbench.plan import make_plan

#: Key -> (as an option, as TOML, what both mean).
WRITTEN: dict[str, tuple[str, str, Any]] = {
    "name": ("night-1", '"night-1"', "night-1"),
    "question": ("How fast?", '"How fast?"', "How fast?"),
    "modes": ("all_reduce,exchange", '["all_reduce", "exchange"]', ["allreduce", "exchange"]),
    "backends": ("multi_device_gloo", '"multi_device_gloo"', ["multi_device_gloo"]),
    "streams": ("1, 20,1", "[1, 20, 1]", [1, 20]),
    "world_sizes": ("2,5", "[2, 5]", [2, 5]),
    "dtypes": ("bfloat16,int8", '["bfloat16", "int8"]', ["bfloat16", "int8"]),
    "sizes": ("1KiB:4KiB:x2,10KB,7", '["1KiB:4KiB:x2", "10KB", 7]', [1024, 2048, 4096, 10_000, 7]),
    "chunks": ("1,4", "[1, 4]", [1, 4]),
    "entry_delays": ("0,0.2us,5ms", '[0, "0.2us", "5ms"]', [0.0, 0.005]),
    "mallocs": ("keep", '["keep"]', ["keep"]),
    "timelines": ("0,2ms", '[0, "2ms"]', [0.0, 0.002]),
    "pairs": ("none,all,01-3", '["none", "all", "1-3"]', ["none", "all", "1-3"]),
    "sizes_of": ("transmit", '"transmit"', "transmit"),
    "iterations": ("7", "7", 7),
    "budget": ("2s", "2", 2.0),
    "precision": ("2%", "0.02", 0.02),
    "rounds": ("5", "5", 5),
    "launches": ("4", "4", 4),
    "warmup": ("0", "0", 0),
    "pause": ("100ms", '"100ms"', 0.1),
    "timeout": ("2.5", "2.5", 2.5),
    "interface": ("eth7", '"eth7"', "eth7"),
    "subnet": ("10.1.0.0/16", '"10.1.0.0/16"', "10.1.0.0/16"),
    "launcher": ("ssh", '"ssh"', "ssh"),
    "nnodes": ("4", "4", 4),
    "nproc_per_node": ("2", "2", 2),
    "hosts": ("a,me@10.0.0.2", '["a", "me@10.0.0.2"]', ["a", "me@10.0.0.2"]),
    "rdzv_endpoint": ("[fd00::1]:29400", '"[fd00::1]:29400"', "[fd00::1]:29400"),
    "join_timeout": ("10s", "10", 10.0),
    "remote_python": ("/opt/python", '"/opt/python"', "/opt/python"),
    "lab": ("2x400mbit", '"2x400mbit"', "2x400mbit"),
    "seed": ("42", "42", 42),
    "out": ("elsewhere", '"elsewhere"', "elsewhere"),
}

#: Key -> wrong values as (option, TOML, the value in the message, what would be right).
WRONG: dict[str, list[tuple[str | None, str | None, str, str]]] = {
    "name": [("../up", '"../up"', "'../up'", "letters, digits"), (None, "3", "3", "valid string")],
    "question": [("x" * 201, f'"{"x" * 201}"', "xxx", "at most 200")],
    "modes": [
        ("allredcue", '["allredcue"]', "'allredcue'", "did you mean 'allreduce'?"),
        ("", "[]", "list", "name at least one"),
        (None, '[["allreduce"]]', "['allreduce']", "side by side"),
    ],
    "backends": [("paralel_gloo", '"paralel_gloo"', "'paralel_gloo'", "did you mean 'parallel_gloo'?")],
    "streams": [
        ("0", "0", "0", "whole numbers from 1"),
        ("1,two", '[1, "two"]', "two", "whole numbers from 1"),
        ("1.5", "1.5", "1.5", "whole numbers from 1"),
        (None, "true", "True", "whole numbers from 1"),
        (None, "[[1, 2]]", "[1, 2]", "side by side"),
    ],
    "world_sizes": [("-2", "-2", "-2", "whole numbers from 1"), ("9999", "9999", "9999", "to 1024")],
    "dtypes": [("float23", '"float23"', "'float23'", "did you mean 'float32'?"), (None, "32", "32", "known: float32")],
    "sizes": [
        ("1Mbit", '"1Mbit"', "'1Mbit'", "KiB"),
        ("1KiB:4KiB", '"1KiB:4KiB"', "'1KiB:4KiB'", "min:max:xfactor"),
        ("0", "0", "'0'", "from 1 byte"),
        (None, "[1.5]", "1.5", "whole bytes"),
        (None, "[true]", "True", "whole bytes"),
    ],
    "chunks": [("0", "0", "0", "whole numbers from 1")],
    "entry_delays": [("11", "11", "11", "0 to 10 s"), ("later", '["later"]', "'later'", "100ms")],
    "mallocs": [("kept", '"kept"', "'kept'", "did you mean 'keep'?")],
    "timelines": [("1us", '"1us"', "1us", "1ms to 10s"), ("often", '["often"]', "'often'", "100ms")],
    "pairs": [
        ("1-1", '"1-1"', "'1-1'", "write two ranks as 0-1"),
        ("every", '["every"]', "'every'", "or all, or none"),
        ("-1-2", "[-12]", "-1", "write two ranks"),
    ],
    "sizes_of": [
        ("tensors", '"tensors"', "'tensors'", "did you mean 'tensor'?"),
        (None, "[1]", "[1]", "known: tensor"),
    ],
    "iterations": [
        ("0", "0", "0", "greater than or equal to 1"),
        ("many", '"many"', "'many'", "valid integer"),
        (None, "true", "True", "not a number"),
    ],
    "budget": [("0", "0", "0", "greater than 0"), ("long", '"long"', "'long'", "100ms")],
    "precision": [
        ("0", "0", "0", "greater than 0"),
        ("200%", "2", "", "less than 1"),
        (None, "true", "True", "not a number"),
    ],
    "rounds": [("0", "0", "0", "greater than or equal to 1")],
    "launches": [("0", "0", "0", "greater than or equal to 1")],
    "warmup": [("-1", "-1", "-1", "greater than or equal to 0")],
    "pause": [
        ("a while", '"a while"', "'a while'", "100ms"),
        ("2h", "7200", "", "seconds|3600"),
        (None, "true", "True", "not a number"),
    ],
    "timeout": [("0", "0", "0", "greater than 0"), ("-1s", '"-1s"', "'-1s'", "30s"), (None, "nan", "nan", "86400")],
    "interface": [("", '""', "''", "at least 1 character"), (None, "0", "0", "valid string")],
    "subnet": [("", '""', "''", "at least 1 character")],
    "launcher": [("shh", '"shh"', "'shh'", "did you mean 'ssh'?")],
    "nnodes": [("0", "0", "0", "greater than or equal to 1"), (None, "true", "True", "not a number")],
    "nproc_per_node": [("0", "0", "0", "greater than or equal to 1")],
    "hosts": [
        ("a,-oProxyCommand=x", '["-oProxyCommand=x"]', "-oProxyCommand=x", "is not a host"),
        ("", "[]", "list", "name"),
    ],
    "rdzv_endpoint": [("host0:", '"host0:"', "'host0:'", "HOST:PORT"), ("h:0", '"h:0"', "'h:0'", "HOST:PORT")],
    "join_timeout": [("0", "0", "0", "greater than 0")],
    "remote_python": [("", '""', "''", "at least 1 character")],
    "lab": [("2x400parsec", '"2x400parsec"', "400parsec", "mbit")],
    "seed": [("-1", "-1", "-1", "greater than or equal to 0"), ("x", '"x"', "'x'", "valid integer")],
    "out": [("", '""', "''", "at least 1 character")],
}

KEYS = list(SweepConfig.model_fields)


def toml(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_these_tables_know_every_key() -> None:
    assert list(WRITTEN) == KEYS
    assert list(WRONG) == KEYS


@pytest.mark.parametrize("key", KEYS)
def test_an_option_and_a_toml_key_mean_the_same(key: str, tmp_path: Path) -> None:
    option, text, meaning = WRITTEN[key]
    assert getattr(SweepConfig(), key) != meaning
    assert getattr(resolve(None, {key: option}), key) == meaning
    assert getattr(resolve(toml(tmp_path, f"[sweep]\n{key} = {text}\n"), {}), key) == meaning


@pytest.mark.parametrize("key", KEYS)
def test_an_option_overrides_the_file_and_leaves_its_other_keys(key: str, tmp_path: Path) -> None:
    option, _, meaning = WRITTEN[key]
    other = "seed" if key != "seed" else "warmup"
    default = SweepConfig().model_dump()[key]
    file = toml(tmp_path, f"[sweep]\n{other} = 5\n" + ("" if default is None else f"{key} = {toml_value(default)}\n"))
    config = resolve(file, {key: option})
    assert getattr(config, key) == meaning
    assert getattr(config, other) == 5


def toml_value(value: object) -> str:
    return repr(value).replace("'", '"')


@pytest.mark.parametrize(("key", "wrong"), [(key, wrong) for key in KEYS for wrong in WRONG[key]])
def test_a_wrong_value_is_refused_by_key_and_value_with_what_would_be_right(
    key: str, wrong: tuple[str | None, str | None, str, str], tmp_path: Path
) -> None:
    option, text, value, right = wrong
    if option is not None:
        refuse(None, {key: option}, f"--{key.replace('_', '-')}: ", value, right)
    if text is not None:
        file = toml(tmp_path, f"[sweep]\n{key} = {text}\n")
        refuse(file, {}, f"{file}: sweep.{key}: ", value, right)


def refuse(file: Path | None, options: dict[str, object], place: str, value: str, right: str) -> None:
    with pytest.raises(UsageError) as refused:
        resolve(file, options)
    message = str(refused.value)
    assert message.startswith(place)
    assert value in message
    assert re.search(right, message)
    assert len(message.splitlines()) == 1
    assert refused.value.exit_code == Exit.USAGE


def test_two_mistakes_are_named_at_once() -> None:
    with pytest.raises(UsageError) as refused:
        resolve(None, {"modes": "nonsense", "iterations": "0"})
    assert [line.split(":")[0] for line in str(refused.value).splitlines()] == ["--modes", "--iterations"]


def test_a_mistake_in_an_option_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^--streams: "):
        resolve(toml(tmp_path, "[sweep]\nstreams = 1\n"), {"streams": "0"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[sweep]\niteratons = 5\n", ["sweep.iteratons", "did you mean 'iterations'?"]),
        ("[sweep]\nmode = 'allreduce'\n", ["sweep.mode", "did you mean 'modes'?"]),
        ("[sweeep]\nmodes = 'allreduce'\n", ["'sweeep'", "did you mean 'sweep'?"]),
        ("iterations = 5\n", ["'iterations'", "[sweep]"]),
        ("sweep = 5\n", ["'sweep'"]),
        ("[sweep\n", ["not valid TOML", "line 1"]),
        ("[sweep]\nseed = 1\nseed = 2\n", ["not valid TOML"]),
    ],
)
def test_a_file_that_is_wrong_is_named_with_the_nearest_right_word(text: str, words: list[str], tmp_path: Path) -> None:
    file = toml(tmp_path, text)
    with pytest.raises(UsageError) as refused:
        resolve(file, {})
    for word in [str(file), *words]:
        assert word in str(refused.value)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=re.escape(f"{file}: is not valid TOML")):
        resolve(file, {})


def test_a_folder_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=re.escape(f"{tmp_path}: cannot be read")):
        resolve(tmp_path, {})


def test_a_preset_is_found_by_name_and_a_file_by_path(tmp_path: Path) -> None:
    assert preset("smoke") == presets()["smoke"]
    file = toml(tmp_path, "[sweep]\n")
    assert preset(str(file)) == file


@pytest.mark.parametrize(
    ("name", "words"), [("smok", ["'smok'", "did you mean 'smoke'?"]), ("gone.toml", ["gone.toml", "no such file"])]
)
def test_what_is_neither_preset_nor_file_is_refused(name: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        preset(name)
    assert all(word in str(refused.value) for word in words)


def test_the_presets_that_were_promised_are_there() -> None:
    assert set(presets()) >= {"smoke", "default", "streams", "world_size", "torchft_199", "gloo_471"}


@pytest.mark.parametrize("name", presets())
def test_every_preset_plans_cases_and_says_which_question_it_answers(name: str) -> None:
    path = presets()[name]
    assert path.read_text().startswith("# ")
    assert question(path).endswith("?")
    config = resolve(path, {})
    assert config.name == name
    assert make_plan(config).cases


def test_a_bare_sweep_runs_the_defaults() -> None:
    written = resolve(presets()["default"], {}).model_dump(exclude={"name", "question"})
    assert written == SweepConfig().model_dump(exclude={"name", "question"})


def test_the_seed_gloo_471_is_there_to_the_letter() -> None:
    config = resolve(presets()["gloo_471"], {})
    assert len(config.sizes) == 36
    assert (config.sizes[0], config.sizes[-1]) == (1, 201_326_592)
    assert config.world_sizes == [2, 3, 4, 5, 6, 7, 8]
    assert (config.iterations, config.pause, config.sizes_of) == (5, 0.1, "tensor")
    assert set(config.modes) == {"send_recv", "all_gather"}


def test_the_seed_torchft_199_is_there_to_the_letter() -> None:
    config = resolve(presets()["torchft_199"], {})
    assert [size / DTYPES["float32"] for size in config.sizes] == [10**power for power in range(1, 9)]
    assert config.streams == [1, 2, 4, 10, 20]
    assert config.iterations == 100


def test_seed_two_is_asked_at_equal_bytes_sent() -> None:
    config = resolve(presets()["world_size"], {})
    plan = make_plan(config)
    for size in config.sizes:
        sent = {case.transmit_bytes for case in plan.cases if abs(case.transmit_bytes - size) < size / 1000}
        assert max(sent) - min(sent) < 7 * 4
