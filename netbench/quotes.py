"""Numbers of others: a run that netbench did not measure, one row a case in ``quoted.csv`` instead of samples.

A published table and the output of another tool give no sample of any rank, only what their author made of them. So
nothing is invented: a quote holds the numbers that its source holds and null for the rest, and the run's manifest
says by ``source`` whose they are and what their times mean.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from netbench.errors import RecordError
from netbench.facts import known_case
from netbench.foreign import read_bytes
from netbench.model import Case
from netbench.record import RunFolder, write_atomically


@dataclass(frozen=True, kw_only=True)
class Quote:
    """What a source says of one case: times of one iteration in ns, null where it says nothing.

    ``median_ns`` or ``mean_ns`` is known; where both are, the median stands for the case.
    """

    case: Case
    iterations: int | None = None
    median_ns: float | None = None
    mean_ns: float | None = None
    min_ns: float | None = None
    p25_ns: float | None = None
    p75_ns: float | None = None
    p95_ns: float | None = None
    p99_ns: float | None = None
    max_ns: float | None = None
    wrong_elements: int | None = None
    retransmits: int | None = None

    def __post_init__(self) -> None:
        if self.headline_ns is None or not self.headline_ns > 0:
            raise ValueError(f"{self.case.id}: has no time")

    @property
    def headline(self) -> str:
        """Which statistic stands for the case's time."""
        return "mean" if self.median_ns is None else "median"

    @property
    def headline_ns(self) -> float | None:
        return self.mean_ns if self.median_ns is None else self.median_ns

    @property
    def numbers(self) -> dict[str, Any]:
        """All but the case."""
        return {name: getattr(self, name) for name in _NUMBERS}


#: Of what a source may say of a case, in ns or whatever else is counted.
_MOST = 10**18

_AXES = {field.name: field.type for field in fields(Case)}
#: Axes that came later, and that older files do not have.
_OPTIONAL = {field.name for field in fields(Case) if field.default is not MISSING}
_NUMBERS = {field.name: field.type for field in fields(Quote) if field.name != "case"}


def write_quotes(folder: RunFolder, quotes: Iterable[Quote]) -> None:
    """Raises StorageError."""
    text = io.StringIO()
    table = csv.DictWriter(text, ["case_id", *_AXES, *_NUMBERS], lineterminator="\n")
    table.writeheader()
    for quote in quotes:
        table.writerow({"case_id": quote.case.id, **asdict(quote.case), **quote.numbers})
    write_atomically(folder.quotes, text.getvalue().encode())


def read_quotes(folder: RunFolder) -> dict[str, Quote]:
    """The quotes of a run by the ids of their cases; empty for a run that was measured. Raises RecordError."""
    try:
        text = read_bytes(folder.quotes).decode()
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RecordError(f"{folder.quotes}: cannot be read: {error}") from None
    try:
        return {quote.case.id: quote for quote in _parsed(folder, text)}
    except csv.Error as error:
        raise RecordError(f"{folder.quotes}: is damaged: {error}") from None


def _parsed(folder: RunFolder, text: str) -> Iterator[Quote]:
    table = csv.DictReader(io.StringIO(text))
    if "case_id" not in (table.fieldnames or ()):
        raise RecordError(f"{folder.quotes}: line 1 is damaged: it names no columns")
    for number, row in enumerate(table, start=2):
        try:
            axes = {name: kind for name, kind in _AXES.items() if name in row or name not in _OPTIONAL}
            case = known_case(Case(**{name: _value(row[name], kind) for name, kind in axes.items()}))
            yield Quote(case=case, **{name: _value(row.get(name), kind) for name, kind in _NUMBERS.items()})
        except (KeyError, TypeError, ValueError) as error:
            raise RecordError(f"{folder.quotes}: line {number} is damaged: {error}") from None


def _value(text: str | None, kind: Any) -> Any:
    """``kind`` is the annotation of a field: its text, since annotations are not evaluated here."""
    if not text and "None" in kind:
        return None
    if text is None:
        raise ValueError("it is too short")
    value = {"str": str, "int": int, "float": float}[kind.removesuffix(" | None")](text)
    if "None" in kind and not 0 <= value <= _MOST:
        raise ValueError(f"{text} is no number from 0 to {_MOST:.0e}")
    return value
