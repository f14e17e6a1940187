"""Rows that a command answers with, as a table for people, CSV or strict JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from netbench.registry import Registry

Row = Mapping[str, Any]

#: How a row's texts for people are made of it: headings and cells.
Texts = Callable[[Row], Mapping[str, str]]

_Write = Callable[[Sequence[Row], Texts, TextIO], None]


class Listing:
    """``write(rows, texts, file)``; ``texts`` serves the table for people only."""

    def __init__(self, name: str, write: _Write) -> None:
        self.name = name
        self.write = write
        self.__doc__ = write.__doc__


LISTINGS: Registry[Listing] = Registry("format")


def _table(rows: Sequence[Row], texts: Texts, file: TextIO) -> None:
    """For people."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=file) if file.isatty() else Console(file=file, width=400)
    shown = [texts(row) for row in rows]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in dict.fromkeys(name for row in shown for name in row):
        numbers = all(row.get(heading, "")[:1] in "0123456789+-" for row in shown)
        table.add_column(heading, justify="right" if numbers else "left", overflow="fold")
    for row in shown:
        table.add_row(*map(Text, row.values()))
    console.print(table)


def _csv(rows: Sequence[Row], texts: Texts, file: TextIO) -> None:
    """Every field, comma-separated; what is unknown is blank, several values are separated by semicolons."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(rows[0] if rows else [])
    for row in rows:
        writer.writerow(["; ".join(value) if isinstance(value, list) else value for value in row.values()])


def _json(rows: Sequence[Row], texts: Texts, file: TextIO) -> None:
    """Every field, as a list of objects; what is unknown is null."""
    json.dump(list(rows), file, indent=1, allow_nan=False)
    file.write("\n")


LISTINGS.add(Listing("table", _table))
LISTINGS.add(Listing("csv", _csv))
LISTINGS.add(Listing("json", _json))
