"""What every fuzz test asks of a command, whatever it is fed: an exit code of ours, a message, no trace elsewhere.

``NETBENCH_FUZZ=long`` takes thousands of examples, new ones each time; without it a few, always the same.
"""

from __future__ import annotations

import io
import os
import signal
import tempfile
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from netbench.__main__ import run
from netbench.errors import Exit
from netbench.foreign import printable

#: A command that takes longer hangs, seconds; the machine may be busy.
LIMIT_S = 60

_LONG = os.environ.get("NETBENCH_FUZZ") == "long"

CODES = frozenset(int(code) for code in Exit)


def examples(few: int, many: int) -> settings:
    return settings(
        max_examples=many if _LONG else few,
        derandomize=not _LONG,
        deadline=None,  # the limit is kept by an alarm
        database=None,
        suppress_health_check=list(HealthCheck),
    )


class Hung(Exception):  # noqa: N818 - what the test found
    """The command did not end."""


@contextmanager
def limited() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Hung

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def place() -> Iterator[Path]:
    """A new folder with a folder ``here`` in it, which is the working folder meanwhile."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as made:
        outer = Path(made).resolve()
        (outer / "here").mkdir()
        os.chdir(outer / "here")
        try:
            yield outer
        finally:
            os.chdir(before)


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def ends_well(
    typed: Sequence[str], outer: Path, inside: str, codes: Collection[int] = CODES, raw: bool = False
) -> tuple[int, str, str]:
    """Runs a command and asks of its end what is always so; what it writes has to lie below ``outer / inside``.

    ``raw`` is for a command that prints the user's own paths.
    """
    before = names(outer)
    out, err = io.StringIO(), io.StringIO()
    with limited(), redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code = run(list(typed))
    text = out.getvalue() + err.getvalue()
    assert code in codes, (code, text)
    assert "Traceback" not in text, text
    text = err.getvalue() if raw else text
    unseen = [text[max(0, at - 40) : at + 40] for at, letter in enumerate(text) if printable(letter, True) != letter]
    assert not unseen, f"what commands a terminal reaches it: {unseen[:3]!a}"
    if code not in (Exit.DONE, Exit.CASE_FAILED, Exit.UNDECIDED):
        assert len(err.getvalue().strip()) > 10, "no message"
    new = {name for name in names(outer) - before if not Path(name).is_relative_to(inside)}
    assert not new, f"written outside: {new}"
    return code, out.getvalue(), err.getvalue()


#: Texts that have broken something somewhere.
EVIL = (
    "../../x",
    "/etc/passwd",
    "..",
    "",
    " ",
    "a\0b",
    "\x1b[31mred\x1b]0;title\x07",
    "[red]not red[/red]",
    "[/]",
    "$\\frac{",
    "$x$",
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "\u202eabc",
    "\ud800",
    "名前",
    "x" * 300,
    "x" * 5000,
    "a\nb",
    "{{ 7 * 7 }}",
    "%s%n",
    "-rf",
    "--help",
    "nan",
    "inf",
    "-1",
    "1e999",
    "9" * 400,
    "null",
)

texts = st.one_of(
    st.sampled_from(EVIL), st.text(max_size=30), st.text(alphabet="0123456789.,:-x@%KMGiBbits", max_size=20)
)

numbers = st.one_of(
    st.integers(-2, 5),
    st.sampled_from([0, -1, 2**31, 2**53, 2**63, 2**64, 10**30, -(2**63)]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([1e-320, 1e308, 0.0, -0.0]),
)

scalars = st.one_of(texts, numbers, st.booleans(), st.none())

values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=8,
)


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to everything in a document."""
    yield path
    if isinstance(document, dict):
        for key in document:
            yield from places(document[key], (*path, key))
    if isinstance(document, list):
        for index in range(len(document)):
            yield from places(document[index], (*path, index))


@st.composite
def mutated(draw: st.DrawFn, document: Any, most: int = 3) -> Any:
    """A document of which up to ``most`` parts are replaced, dropped, doubled, renamed or nested."""
    import copy

    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, most))):
        path = draw(st.sampled_from([path for path in places(document) if path]))
        parent = document
        for step in path[:-1]:
            parent = parent[step]
        what = draw(st.sampled_from(["replace", "replace", "replace", "drop", "double", "rename", "nest"]))
        if what == "replace":
            parent[path[-1]] = draw(values)
        elif what == "drop":
            del parent[path[-1]]
        elif what == "double" and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[path[-1]]))
        elif what == "rename" and isinstance(parent, dict):
            parent[draw(texts)] = parent.pop(path[-1])
        elif what == "nest":
            deep = parent[path[-1]]
            for _ in range(draw(st.sampled_from([1, 5, 200]))):
                deep = [deep]
            parent[path[-1]] = deep
        if not list(places(document))[1:]:
            break
    return document


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes of which some are changed, cut out, put in or cut off."""
    found = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, max(0, len(found) - 1)))
        what = draw(st.sampled_from(["set", "cut out", "put in", "cut off", "turn"]))
        if what == "set" and found:
            found[start] = draw(st.integers(0, 255))
        elif what == "turn" and found:
            found[start] ^= 1 << draw(st.integers(0, 7))
        elif what == "cut out":
            del found[start : start + draw(st.integers(1, 64))]
        elif what == "put in":
            found[start:start] = draw(st.binary(min_size=1, max_size=16))
        elif what == "cut off":
            del found[start:]
    return bytes(found)
