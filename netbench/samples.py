"""Sample files as they are read, by whichever half: whole and of the kinds that they should be, or a RecordError.

A record may come from a stranger, and a disk may have damaged it. Every page carries a sum, so that a flipped bit is no
other number; names and numbers are held against what they can be.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from netbench.errors import RecordError
from netbench.facts import read_case, read_facts, seal
from netbench.foreign import printable, read_bytes
from netbench.model import Case
from netbench.record import MEASURED, SCHEMA_VERSION, RunFolder, cannot_be_written

if TYPE_CHECKING:
    import numpy
    import pyarrow

#: What can be wrong with the content of a file, beside what pyarrow says of it.
_FAULTS = (OSError, ValueError, TypeError, KeyError, OverflowError, MemoryError)

#: The least of what is reckoned with; of the rest only means are taken. The sum of two does not reach the end of int64.
_LEAST = {"rank": 0, "duration_ns": 1, "start_ns": -(2**61)}
_MOST = 2**61


class Samples(NamedTuple):
    """A case, its facts, and its rows as they lie in the file."""

    case: Case
    facts: dict[str, Any]
    table: pyarrow.Table


def open_file(path: Path) -> Any:
    """The parquet file at ``path``, its footer read and its version checked. Raises RecordError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        content = read_bytes(path)
        if not content:
            raise RecordError(f"{path}: is empty")
        file = pq.ParquetFile(pa.py_buffer(content), page_checksum_verification=True)
        version = int((file.metadata.metadata or {}).get(b"netbench.schema_version", 0))
    except (pa.ArrowException, *_FAULTS) as error:
        raise RecordError(f"{path}: is damaged: {one_line(error)}") from None
    if version > SCHEMA_VERSION:
        raise RecordError(
            f"{path}: is of schema version {version}; this netbench reads up to {SCHEMA_VERSION}: upgrade it"
        )
    if version < 1:
        raise RecordError(f"{path}: is not a sample file of netbench")
    return file


def read_samples(path: Path, run_id: str | None = None, columns: Collection[str] = MEASURED) -> Samples:
    """The samples in a file; of ``columns`` those that it has, with rank and phase. Raises RecordError."""
    import pyarrow as pa

    file = open_file(path)
    try:
        metadata = file.metadata.metadata
        texts = metadata[b"netbench.case"], metadata[b"netbench.facts"]
        present = file.schema_arrow.names
        sealed = seal(*texts, present).encode()
        if metadata.get(b"netbench.seal", sealed) != sealed:  # the first records have none
            raise ValueError("its facts are not as they were written")
        case, facts = read_case(texts[0]), read_facts(texts[1])
        names = set(present)
        known = dict.fromkeys(["rank", *(name for name in columns if name in names and name != "warmup")])
        table = file.read([*known, "phase"], use_threads=False)
        check_integers(table, list(known))
        phase = table["phase"].type
        if (phase.value_type if isinstance(phase, pa.DictionaryType) else phase) != pa.string():
            raise ValueError(f"column phase holds {phase}, not words")
        words = pa.dictionary(pa.int8(), pa.string())
        if phase != words:  # another program may have written it so
            encoded = table["phase"].cast(pa.string()).dictionary_encode().cast(words)
            table = table.set_column(table.column_names.index("phase"), "phase", encoded)
    except (pa.ArrowException, *_FAULTS) as error:
        raise RecordError(f"{path}: is damaged: {one_line(error)}") from None
    written_by = metadata.get(b"netbench.run_id", b"").decode(errors="replace")
    if case.id != path.stem:
        raise RecordError(f"{path}: holds the samples of another case, {case.id}")
    if run_id is not None and written_by != run_id:
        raise RecordError(f"{path}: belongs to another run, {written_by}")
    return Samples(case, facts, table)


def check_integers(table: pyarrow.Table, integers: Collection[str]) -> None:
    """Raises ValueError or KeyError where a column is not what it should be."""
    import pyarrow as pa

    if len(set(table.column_names)) < table.num_columns:
        raise ValueError("it has two columns of one name")
    for name in integers:
        column = table[name]
        if column.type != pa.int64() or column.null_count:
            raise ValueError(f"column {name} holds {column.type}{' and nulls' if column.null_count else ''}, not int64")
        if name in _LEAST and len(column):
            numbers = column.to_numpy()
            if numbers.min() < _LEAST[name] or numbers.max() > _MOST:
                raise ValueError(f"column {name} holds numbers that it cannot have")


def visits_done(folder: RunFolder, case: Case) -> int:
    """How often a case that has rounds to come has been visited. Raises RecordError when its file is damaged."""
    import pyarrow as pa

    path = folder.partial_file(case.id)
    if not path.exists():
        return 0
    file = open_file(path)
    try:
        return int(read_facts(file.metadata.metadata[b"netbench.facts"])["visits"])
    except (pa.ArrowException, *_FAULTS) as error:
        raise RecordError(f"{path}: is damaged: {one_line(error)}; delete it, and the case begins anew") from None


def read_partial(folder: RunFolder, case: Case) -> tuple[list[tuple[int, numpy.ndarray]], dict[str, Any]] | None:
    """What ``samples_table`` was given for a case that has rounds to come; None where nothing is on disk.

    Raises RecordError, naming the file, when it is damaged.
    """
    import numpy as np

    path = folder.partial_file(case.id)
    if not path.exists():
        return None
    _, facts, table = read_samples(path)
    if missing := [name for name in MEASURED if name != "warmup" and name not in table.column_names]:
        raise RecordError(f"{path}: is damaged: it has no {missing[0]}; delete it, and the case begins anew")
    warmup = np.array([phase == "warmup" for phase in table["phase"].to_pylist()], np.int64)
    columns = [warmup if name == "warmup" else table[name].to_numpy() for name in MEASURED]
    rows, ranks = np.stack(columns, axis=1), table["rank"].to_numpy()
    return [(int(rank), rows[ranks == rank]) for rank in dict.fromkeys(ranks.tolist())], facts


def damaged(folder: RunFolder, run_id: str) -> dict[Path, RecordError]:
    """What is wrong with the samples of a run, file by file; every byte of them is read."""
    found = {}
    for path in folder.measured().values():
        try:
            read_samples(path, run_id)
        except RecordError as error:
            found[path] = error
    return found


def set_aside(path: Path) -> Path:
    """Renames a damaged file, so that its case is measured anew and what is left of it stays. Raises StorageError."""
    aside = path.with_name(f"{path.name}.damaged")
    try:
        path.replace(aside)
    except OSError as error:
        raise cannot_be_written(aside, error) from None
    return aside


def one_line(error: BaseException) -> str:
    """What is wrong with a file's content, fit to be shown."""
    if isinstance(error, KeyError):
        return f"it has no {error.args[0]!s}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    # pyarrow quotes bytes of the file as they are.
    return printable(" ".join(str(error).split())[:300])
