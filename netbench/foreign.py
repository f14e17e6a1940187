"""Files that anyone may have written, such as a record from a stranger: read as data, and fit to be shown.

Nothing here trusts a name or a text. A name from a file is a file's name only where ``file_name`` says so; a text from
a file reaches a terminal only without the characters that command it.
"""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import Any

#: Control characters, those that turn the direction of writing, and halves of characters, which no encoding can write.
_UNSEEN = re.compile("[\0-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSEEN_BUT_LINES = re.compile("[\0-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

#: How such a character can be in the text of a JSON document: escaped, or as it is.
_PERHAPS_UNSEEN = re.compile(r"\\u|\\[bfnrt]|[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

#: No file of netbench is anywhere near this; deeper ones would end in Python's own limit.
_DEEPEST = 32

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


def printable(text: str, lines: bool = False) -> str:
    """``text`` with what would command a terminal written out, as ``\\x1b``; with ``lines``, ends of lines are kept."""
    return (_UNSEEN_BUT_LINES if lines else _UNSEEN).sub(lambda found: ascii(found[0])[1:-1], text)


def file_name(text: str) -> str:
    """``text``, which is safe as a part of a file's name: it cannot lead into another folder. Raises ValueError."""
    if not isinstance(text, str) or len(text) > 128 or not _FILE_NAME.fullmatch(text):
        raise ValueError(
            f"{str(text)[:128]!r} is no name; use letters, digits, '.', '_', '+' and '-', at most 128, "
            "beginning with a letter, a digit or '_'"
        )
    return text


def read_bytes(path: Path) -> bytes:
    """The content of a file, which no pipe or device may stand in for. Raises OSError."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(0, "it is no ordinary file", str(path))
    return path.read_bytes()


def parse_json(text: str | bytes) -> Any:
    """The value of a strict JSON document, its texts made printable. Raises ValueError, saying what is wrong."""
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    try:
        value = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    _check_depth(value)
    # Nearly every document shows at once that it needs no more than this.
    plain = text.isascii() and "\\" not in text and "\x7f" not in text
    return value if plain or not _PERHAPS_UNSEEN.search(text) else _printable(value)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(_DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise ValueError("it is nested too deep")


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_printable(item) for item in value]
    if isinstance(value, dict):
        return {printable(key): _printable(item) for key, item in value.items()}
    return value
